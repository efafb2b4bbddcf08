"""What promises leave free in a partition of identical one-core nodes: a shadow for one promise, a timeline of counts for many.

Both answer the draft's question: may this job start now and run for its whole limit without breaking a promise?
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmgr.sched.job import Job


@dataclass(slots=True)
class UnitShadow:
    """One promise: from `at_us` on, all but `extra` of the free nodes belong to it."""

    now_us: int
    at_us: int
    extra: int

    @classmethod
    def of(cls, job: Job, now_us: int, free: int, endings: Sequence[tuple[int, int, int]]) -> UnitShadow | None:
        """The earliest time at which `job` fits if every run uses its limit; None when it never does. An overdue run ends "soon".

        Args: endings: (end, job id, nodes that come back), sorted. Cost: O(runs that end before it).
        """
        soon = now_us + 1
        at_us = now_us
        for end_us, _, units in endings:
            if free >= job.processes and end_us > at_us:
                break
            at_us = max(soon, end_us)
            free += units
        return cls(now_us, at_us, free - job.processes) if free >= job.processes else None

    def admits(self, job: Job) -> bool:
        return job.processes <= self.extra or self.now_us + job.planned_us <= self.at_us

    def started(self, job: Job) -> None:
        if self.now_us + job.planned_us > self.at_us:
            self.extra -= job.processes


class UnitTimeline:
    """Free nodes per step: `_frees[i]` from `_times[i]` until `_times[i + 1]`, the last step for ever. Promises are subtracted from it."""

    __slots__ = ("_frees", "_now", "_times")

    def __init__(self, now_us: int, free: int, endings: Iterable[tuple[int, int, int]]) -> None:
        times, frees = [now_us], [free]
        for end_us, _, units in endings:
            at = end_us if end_us > now_us else now_us + 1
            free += units
            if at == times[-1]:
                frees[-1] = free
            else:
                times.append(at)
                frees.append(free)
        self._times, self._frees, self._now = times, frees, now_us

    def admits(self, job: Job) -> bool:
        """The job fits from now on for its whole limit."""
        end = self._now + job.planned_us
        wanted = job.processes
        for at, free in zip(self._times, self._frees, strict=True):
            if at >= end:
                return True
            if free < wanted:
                return False
        return True

    def started(self, job: Job) -> None:
        self.occupy(self._now, job.planned_us, job.processes)

    def earliest(self, wanted: int, length_us: int) -> int | None:
        """The first time from which `wanted` nodes stay free for `length_us`; None if there is none. O(steps)."""
        times, frees = self._times, self._frees
        start = -1  # where the current run of sufficient steps began
        for at, free in zip(times, frees, strict=True):
            if start >= 0 and at - start >= length_us:
                return start
            if free < wanted:
                start = -1
            elif start < 0:
                start = at
        return start if start >= 0 else None

    def occupy(self, start_us: int, length_us: int, count: int) -> None:
        """Takes (or, with a negative count, gives back) nodes during an interval; what lies before now is left out."""
        frees = self._frees
        low = self._cut(max(start_us, self._now))
        high = self._cut(max(start_us + length_us, self._now))
        for i in range(low, high):
            frees[i] -= count
        for i in (high, low):  # steps that no longer differ are one step
            if 0 < i < len(frees) and frees[i] == frees[i - 1]:
                del frees[i], self._times[i]

    def lowest(self) -> int:
        """Fewest free nodes at any time: below 0, promises overlap."""
        return min(self._frees)

    def _cut(self, at_us: int) -> int:
        times = self._times
        i = bisect_left(times, at_us)
        if i == len(times) or times[i] != at_us:
            times.insert(i, at_us)
            self._frees.insert(i, self._frees[i - 1])
        return i

    def free_at(self, at_us: int) -> int:
        return self._frees[bisect_right(self._times, at_us) - 1]
