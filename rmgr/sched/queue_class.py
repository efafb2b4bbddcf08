"""Queue classes: what a job may ask for in a queue, and the ladder of classes that queue selection climbs.

A ladder is the sequence of configured classes. The code knows no particular site: `HPC2500`, the paper's configuration, is one value
among others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rmgr.model.units import format_duration
from rmgr.sched.job import Job

HOUR_US = 3_600_000_000

Ladder: TypeAlias = tuple["QueueClass", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueClass:
    """A queue and its limits; a job may run in it if it keeps them all. 0 = no limit, unless stated otherwise.

    Counts are those that the job's user asked for (`Job.wanted`). max_cpus: processes x threads. max_processes, max_threads (of one
    process): counts. max_time_us: the requested time must be below it (us); a job without a request counts as longer.
    partition: where the queue lives; "" = in every partition.
    reservation_threshold: individual priority above which a job reserves (a number; formula (1) of paper 000).
    max_reservations: how many jobs of the queue may hold a connection reservation at a time; 0 = none.
    head_trigger: the first job of the queue makes a reservation when something ended and the job cannot start.
    """

    name: str
    max_cpus: int = 0
    max_processes: int = 0
    max_threads: int = 0
    max_time_us: int = 0
    partition: str = ""
    reservation_threshold: int = 20
    max_reservations: int = 0
    head_trigger: bool = False

    def __post_init__(self) -> None:
        """Raises: ValueError for a queue without a name or a negative number, naming queue and field."""
        if not self.name:
            raise ValueError("a queue class needs a name")
        for field in ("max_cpus", "max_processes", "max_threads", "max_time_us", "reservation_threshold", "max_reservations"):
            if getattr(self, field) < 0:
                raise ValueError(f"queue {self.name}: {field} is {getattr(self, field)}, it cannot be negative")
        if self.max_reservations and not (self.max_cpus and self.max_threads):
            raise ValueError(f"queue {self.name}: reservations need max_cpus and max_threads: formula (1) divides by them")

    def admits(self, job: Job) -> bool:
        """Whether the job may run in this queue."""
        return (
            (not self.max_cpus or job.wanted_cpus <= self.max_cpus)
            and (not self.max_processes or job.wanted[0] <= self.max_processes)
            and (not self.max_threads or job.wanted[1] <= self.max_threads)
            and (not self.max_time_us or 0 < job.limit_us < self.max_time_us)
            and self.partition in {"", job.partition}
        )

    @property
    def limits(self) -> str:
        """The limits in words, for users."""
        counts = (("CPUs", self.max_cpus), ("processes", self.max_processes), ("threads a process", self.max_threads))
        told = [f"{what} <= {most}" for what, most in counts if most]
        told += [f"time < {format_duration(self.max_time_us / 1e6)}"] if self.max_time_us else []
        return ", ".join(told) or "no limits"

    @property
    def is_for_threads(self) -> bool:
        """Whether the class allows more threads per process than processes: a job of few, large processes belongs here."""
        return 0 < self.max_processes < (self.max_threads or _UNBOUNDED)


def selected(job: Job, ladder: Ladder, *, thread_affinity: bool = False) -> QueueClass | None:
    """Returns the class with the strictest limits among those that admit the job; None if none does.

    Strictest: the fewest CPUs; then the shortest time, the fewest processes, the fewest threads; then the order of the ladder.
    thread_affinity: a class for threads that admits the job goes before a class that takes more processes (papers.md 1.3: jobs of at
    most 8 processes and at most 32 CPUs go to s128 instead of d32).
    Cost: O(classes). Source: papers.md 1.3 (paper 000, 3.1); differs from it in: nothing, its ladder is what this rule gives for `HPC2500`.
    """
    able = sorted(
        (c for c in ladder if c.admits(job)),
        key=lambda c: [most or _UNBOUNDED for most in (c.max_cpus, c.max_time_us, c.max_processes, c.max_threads)],
    )
    if not able:
        return None
    chosen = able[0]
    if thread_affinity:
        for other in able[1:]:
            if other.is_for_threads and other.max_processes < (chosen.max_processes or _UNBOUNDED):
                return other
    return chosen


def admitting(job: Job, ladder: Ladder) -> Iterator[QueueClass]:
    """Yields every class in which the job may run, in the order of the ladder."""
    return (c for c in ladder if c.admits(job))


def checked(ladder: Sequence[QueueClass]) -> Ladder:
    """Returns the classes as a ladder. Raises: ValueError for an empty one or a name that occurs twice."""
    names = [c.name for c in ladder]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"queue {twice[0]} is configured twice")
    if not names:
        raise ValueError("no queue class is configured")
    return tuple(ladder)


_UNBOUNDED = 1 << 60


#: Tables 2 to 4 of paper 000, proposal 2; in the order in which queues are scanned (papers.md 1.8: small queues first).
HPC2500: Ladder = (
    QueueClass(name="ss8", max_cpus=8, max_processes=8, max_threads=8, max_time_us=2 * HOUR_US),
    QueueClass(name="s8", max_cpus=8, max_processes=8, max_threads=8),
    QueueClass(name="s128", max_cpus=128, max_processes=8, max_threads=128, reservation_threshold=30, max_reservations=1),
    QueueClass(name="d32", max_cpus=32, max_processes=32, max_threads=32, reservation_threshold=20, max_reservations=3),
    QueueClass(name="d128", max_cpus=128, max_processes=128, max_threads=32, reservation_threshold=20, max_reservations=2),
    QueueClass(
        name="d512", max_cpus=512, max_processes=512, max_threads=32, reservation_threshold=20, max_reservations=1, head_trigger=True
    ),
)
