"""The part of a run that a picture shows: [start, end) in seconds since the first submit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.reading import Integers, Run
from rmgr.sim.plots.parts.timing import moment


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """start, end: seconds; end None = until everything has ended."""

    start: float = 0.0
    end: float | None = None

    @property
    def is_whole(self) -> bool:
        return not self.start and self.end is None

    def of(self, run: Run) -> tuple[float, float]:
        """(start, end) on this run's axis. Raises: UsageError when the run was over before it."""
        end = run.end if self.end is None else self.end
        if self.start >= run.end and run.end > 0:
            told = f"{run.directory} ends {moment(run.end)} after its first submit"
            raise UsageError(f"{told}, before the part that is to be drawn", hint=f"--from below {run.end:g}")
        return self.start, max(end, self.start + 1e-6)

    def spells(self, run: Run) -> Integers:
        """Places of the spells that touch it."""
        start, end = self.of(run)
        return np.flatnonzero((run.spells.start < end) & (run.spells.end > start))

    def told(self, run: Run) -> str:
        """For titles."""
        if self.is_whole:
            return ""
        start, end = self.of(run)
        return f"from {moment(start)} to {moment(end)}"
