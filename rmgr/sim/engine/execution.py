"""Computes how long a job runs where it was placed, and what is left when it moves: as recorded, or by a model of the machine.

The driver keeps what is left of each job (`Work`) and asks an `Execution` what that means in time. A stretch that was planned to take
`duration_us` and was broken off after `elapsed_us` leaves exactly `unexecuted(left, elapsed_us, duration_us)`: integers, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rmgr.sched.job import Node, Placement
from rmgr.sim.workload.jobs import WorkloadJob

_UNIT = 1_000_000

#: What is left of a job: one amount or several, each >= 0, in units that only the execution model knows (as calculation, communication).
Work: TypeAlias = tuple[int, ...]


class Execution(Protocol):
    """A frozen, picklable object of parameters; every answer depends on its arguments only."""

    def work(self, job: WorkloadJob) -> Work:
        """All of the job, before it has run; and again after it lost what it had done (preempted, or its node failed)."""
        ...

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:
        """How long this much of the job takes there, at least 1 us; asked once a start, and again after each migration."""
        ...

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:
        """What a migration makes of the part that was not executed: a penalty is added here. The job may go on anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job runs for the time that its trace or model says, wherever it stands; a migration costs `penalty_us`."""

    penalty_us: int = 0

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the same everywhere
        return left[0]

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - the same for all
        return (left[0] + self.penalty_us,)


@dataclass(frozen=True, slots=True)
class BySpeed:
    """A job runs as fast as the slowest of its nodes: what is recorded is its time at speed 1. A migration costs nothing.

    millionths: node id -> its speed in millionths, whole numbers above 0.
    """

    millionths: Mapping[int, int]

    def work(self, job: WorkloadJob) -> Work:
        return (job.run_us,)

    def duration_us(self, job: WorkloadJob, left: Work, placement: Placement) -> int:  # noqa: ARG002 - the work says it all
        """Rounded up to a microsecond. Cost: O(nodes of the placement)."""
        slowest = min(self.millionths[node] for first, last, _ in placement for node in range(first, last + 1))
        return -(-left[0] * _UNIT // slowest)

    def after_migration(self, job: WorkloadJob, left: Work) -> Work:  # noqa: ARG002 - it is not asked who moves
        return left


def by_speed(nodes: Iterable[Node]) -> Execution:
    """The model for these nodes: as recorded, unless one of them has a speed other than 1."""
    millionths = {node.id: max(round(node.speed * _UNIT), 1) for node in nodes}
    return BySpeed(millionths) if any(speed != _UNIT for speed in millionths.values()) else Recorded()


def unexecuted(left: Work, elapsed_us: int, duration_us: int) -> Work:
    """What is left of `left` when `elapsed_us` of `duration_us` have passed: every part in proportion, rounded up to a whole unit."""
    rest_us = duration_us - elapsed_us
    return tuple(-(-part * rest_us // duration_us) for part in left)
