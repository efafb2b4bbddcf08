"""Outcome of a run: when and where each job ran, and how each stretch of running ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rmgr.model.base.states import State
from rmgr.sim.workload.jobs import WorkloadJob


class Parting(StrEnum):
    """Reason for which a job left its nodes."""

    ENDED = "ended"
    SUSPENDED = "suspended"  #: stopped in place, what it had done is kept
    MIGRATED = "migrated"  #: back to the queue, what it had done is kept
    PREEMPTED = "preempted"  #: back to the queue, it starts again from nothing
    LOST = "lost"  #: its node failed or went into maintenance
    CANCELLED = "cancelled"


#: After these a job has kept what it had done.
KEEPING = frozenset({Parting.SUSPENDED, Parting.MIGRATED})


class Spell(NamedTuple):
    """One stretch of running: [start, end) in microseconds, on cores given as inclusive ranges ((0, 3), (7, 7))."""

    start_us: int
    end_us: int
    cores: tuple[tuple[int, int], ...]
    parting: Parting = Parting.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The fate of one job. `spells` in order of time; more than one when it was suspended, migrated or lost its node; none when refused.

    turns: slots in which it ran, in a gang; 0: it had its cores for itself. served_us: how long it ran in them, where its spells do not
    say it (a spell is then a whole stay on its nodes, which others used in other slots).
    job: as it was submitted (a job that waited for the end of another may have been submitted at another time than its trace says).
    """

    job: WorkloadJob
    spells: tuple[Spell, ...]
    state: State = State.COMPLETED
    queue: str = ""
    served_us: int | None = None
    turns: int = 0

    @property
    def start_us(self) -> int:
        """Its first start. Raises IndexError for a job that never started."""
        return self.spells[0].start_us

    @property
    def end_us(self) -> int:
        """Its last end. Raises IndexError for a job that never started."""
        return self.spells[-1].end_us

    @property
    def ran_us(self) -> int:
        """How long it ran, all spells together; at least 1 us."""
        if self.served_us is not None:
            return max(self.served_us, 1)
        return sum(spell.end_us - spell.start_us for spell in self.spells)

    @property
    def turnaround_us(self) -> int:
        """From its submit to its end."""
        return self.end_us - self.job.submit_us

    @property
    def wait_us(self) -> int:
        """All the time it was not running between its submit and its end (one spell: start - submit)."""
        return self.turnaround_us - self.ran_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole run.

    Attributes:
        outcomes: in job order, one a job. processors: of the machine. policy: as named. seed: of the run.
        passes: of the pipeline. wall_seconds: real time between first event and last (not part of any file: it is never the same twice).
        faults: what policies did that they must not -> how often.
    """

    outcomes: Sequence[JobOutcome]
    processors: int
    policy: str
    seed: int
    passes: int
    wall_seconds: float
    faults: tuple[tuple[str, int], ...] = ()
