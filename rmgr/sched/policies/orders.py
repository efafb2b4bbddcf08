"""Orders of the queue: by arrival, by one key each, which never changes while a job waits, and ageing over any order.

Each key ends with submit time and job id: at equal keys the earlier submit time goes first, then the smaller job id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job
from rmgr.sched.policy import Order

DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Order: first come, first served.

    Algorithm: 1. the earliest submit time first; 2. at equal times the smaller job id.
    Parameters: none. Source: papers.md 2.2 (FCFS). Differs from it in: nothing.
    """

    name: ClassVar[str] = "fcfs"

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.by_arrival()


@dataclass(frozen=True, slots=True)
class Sjf:
    """Order: smallest job first.

    Algorithm: fewer CPUs (processes x threads) first. Parameters: none.
    Source: papers.md 2.2 (SJF: "smallest job first", by size, not by length). Differs from it in: nothing.
    """

    name: ClassVar[str] = "sjf"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.6: starvation that comes from sorting the queue; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (job.cpus, job.submit_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


@dataclass(frozen=True, slots=True)
class Ljf:
    """Order: largest job first.

    Algorithm: more CPUs (processes x threads) first. Parameters: none. Source: papers.md 2.2 (LJF). Differs from it in: nothing.
    """

    name: ClassVar[str] = "ljf"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.6: starvation that comes from sorting the queue; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.cpus, job.submit_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


@dataclass(frozen=True, slots=True)
class Priority:
    """Order: the job's own priority.

    Algorithm: the larger priority first. Parameters: none. Source: Slurm's habit. Differs from it in: a fixed number per job, no factors.
    """

    name: ClassVar[str] = "priority"
    waives: ClassVar[Mapping[str, str]] = {"endless": "a larger priority goes first, however long the smaller one waits; max_wait cures it"}

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.priority, job.submit_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


@dataclass(frozen=True, slots=True)
class Ageing:
    """Order: ageing over any other order. A job that has waited too long goes first.

    Algorithm: 1. jobs that have waited `max_wait_us` or longer, the earliest submit time first; 2. the others in the order of `base`.
    With a search that lets others pass the head (First-Fit), going first guarantees no start; with a blocking head or backfilling it does.
    Parameters: max_wait_us (us, > 0, default one day), base (default sjf).
    Source: papers.md 2.6 (future work of paper 001, section 5). Differs from it in: nothing; the order changes at the first pass after the
    wait is over, not at the exact time.
    """

    name: ClassVar[str] = "ageing"
    max_wait_us: int = DAY_US
    base: Order = field(default_factory=Sjf)

    def __post_init__(self) -> None:
        """Raises: ValueError unless max_wait_us is positive."""
        if self.max_wait_us <= 0:
            raise ValueError(f"max_wait_us is {self.max_wait_us} us, it must be above 0")

    def arrange(self, draft: Draft) -> Iterator[Job]:
        oldest = draft.now_us - self.max_wait_us
        aged: set[int] = set()
        for job in takewhile(lambda job: job.submit_us <= oldest, draft.by_arrival()):
            aged.add(job.id)
            yield job
        for job in self.base.arrange(draft):
            if job.id not in aged:
                yield job
