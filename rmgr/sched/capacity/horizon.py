"""Answers what promises leave free before a draft starts a job, and records what is promised.

Two representations answer it: `units.py` with counts (identical one-core nodes), `horizon_node.py` with free capacity per node.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from rmgr.sched.job import Job, Placement

#: (when the limit ends it, job id, units of the pool that come back then)
Ending: TypeAlias = tuple[int, int, int]
#: A window of maintenance: (start, a job of whole nodes that stands there meanwhile, where).
Closing: TypeAlias = tuple[int, Job, Placement]


class Horizon(Protocol):
    """May a job start now and run for its whole limit without breaking a promise?"""

    def admits(self, job: Job) -> bool:
        """Yes, on the nodes that `place` would choose. The job fits now, promises aside."""
        ...

    def place(self, job: Job) -> Placement | None:
        """The free nodes of lowest id on which it may."""
        ...

    def allows(self, job: Job, placement: Placement) -> bool:
        """It may on these nodes, which are free now."""
        ...

    def started(self, job: Job, placement: Placement) -> None:
        """It did: the pool has it."""
        ...


class Timeline(Horizon, Protocol):
    """The horizon of many promises."""

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """When and where the job could be promised a start; None when no such time is known. Counts need no nodes: placement `()`."""
        ...

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Promises the earliest start, for which its old promise does not count. None: that is withdrawn, and there is no other."""
        ...

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        """From `at_us` on, for its limit, this is the job's."""
        ...

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        """It is not."""
        ...

    @property
    def overdrawn(self) -> bool:
        """More is promised than there is."""
        ...
