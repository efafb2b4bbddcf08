"""Answers what promises leave free before a draft starts a job, and records promises.

Two representations implement it: `units.py` with counts (identical one-core nodes), `horizon_node.py` with free capacity per node.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from rmgr.sched.job import Job, Placement

#: (time at which the run's limit ends it, job id, units of the pool that come back then)
Ending: TypeAlias = tuple[int, int, int]
#: A window of maintenance: (start, a job of whole nodes that occupies the window, its placement).
Closing: TypeAlias = tuple[int, Job, Placement]


class Horizon(Protocol):
    """Answers whether a job may start now and run for its whole limit without breaking a promise."""

    def admits(self, job: Job) -> bool:
        """Whether the job may start on the nodes that `place` would choose. The job must fit now, promises aside."""
        ...

    def place(self, job: Job) -> Placement | None:
        """Returns the free nodes of lowest id on which the job may start, or None."""
        ...

    def allows(self, job: Job, placement: Placement) -> bool:
        """Whether the job may start on these nodes, which are free now."""
        ...

    def started(self, job: Job, placement: Placement) -> None:
        """Records that the job has started; the pool has already taken its nodes."""
        ...


class Timeline(Horizon, Protocol):
    """A horizon of many promises."""

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """Returns when and where the job can be promised a start, or None if unknown. Where nodes are counted, the placement is `()`."""
        ...

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Promises the earliest start, not counting the job's old promise. None: the old promise is withdrawn and no start is known."""
        ...

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        """Promises the job these nodes from `at_us` on, for its limit."""
        ...

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        """Takes the promise back."""
        ...

    @property
    def overdrawn(self) -> bool:
        """Whether more is promised than exists."""
        ...
