"""Search: First-Fit in each of several queues that share the nodes, queue after queue.

Algorithm:
1. Go through the queues in their configured order (small jobs first, unless configured otherwise), then through any other queue by name.
2. In each, look at the waiting jobs in order of arrival and start every one that fits. So a new job tries to start at once, whoever waits;
   if it cannot, it is the last of its queue.
One scan finds all, because what is free only shrinks during it. Large jobs may wait for ever under a stream of small ones.
Option firstfit_nodes: a job that passes another one of its queue may stand on the first so many nodes only (0, the default: on all).
Parameters: queues (classes; default those of HPC2500, in the order of scanning), scan (names that go first, in this order; default none),
firstfit_nodes (nodes, of lowest id).
Source: papers.md 1.2, 1.4, 1.8 (paper 000: the conventional system). Differs from it in: nothing. Of several jobs that arrive at one
instant the one in the queue scanned first goes first.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policies.individual_priority import Place, place_of
from rmgr.sched.policy import Cause
from rmgr.sched.queue_class import HPC2500, Ladder, QueueClass, checked

FITS = Why("first_fit", "the first of its queue that fits in what is free")
LIMITED = Why("first_fit", "would fit, but may pass others on the first nodes only")
REST = Why("first_fit", "needs more than is free after this pass")


class Scanned(NamedTuple):
    """Rest of a scan of one queue. ahead: for each job that started past another, the nearest waiting place before it."""

    waiting: Sequence[Job]
    ahead: Sequence[Place]


class Room(NamedTuple):
    """Before the first scan. free: cores; larger jobs are not asked about. last: node up to which jobs that pass others may stand."""

    free: int
    last: int | None = None

    @classmethod
    def of(cls, draft: Draft, firstfit_nodes: int) -> Room:
        ids = list(draft.nodes) if firstfit_nodes else []
        return cls(draft.free_cores, ids[firstfit_nodes - 1] if firstfit_nodes and firstfit_nodes < len(ids) else None)


def scan(draft: Draft, queue: str, room: Room, reserved: Container[int] = ()) -> Scanned:
    """Starts, in order of arrival, every job of the queue that fits; those in `reserved` wait for what they are promised."""
    jobs = list(draft.queue(queue))
    if not jobs:
        return Scanned((), ())
    small = [job for job in jobs if job.cpus <= room.free and job.id not in reserved]
    if not small:
        return Scanned(jobs, ())
    startable = draft.startable(iter(small))
    if room.last is None:
        started = {job.id for job in startable if isinstance(draft.start(job.id, FITS), Accepted)}
    else:
        started = _start_limited(draft, jobs, startable, room.last)
    if not started:
        return Scanned(jobs, ())
    waiting: list[Job] = []
    ahead: list[Place] = []
    for job in jobs:
        if job.id not in started:
            waiting.append(job)
        elif waiting:
            ahead.append(place_of(waiting[-1]))
    return Scanned(waiting, ahead)


def _start_limited(draft: Draft, jobs: Sequence[Job], startable: Iterator[Job], last: int) -> set[int]:
    """Those that pass a waiting job of their queue start only where nodes up to `last` are enough (nodes of lowest id are taken first)."""
    started: set[int] = set()
    place = {job.id: at for at, job in enumerate(jobs)}
    for job in startable:
        passes = place[job.id] > len(started)
        with draft.fork() as trial:
            if isinstance(draft.start(job.id, FITS), Accepted):
                run = draft.run(job.id)
                if run is not None and (not passes or run.placement[-1][1] <= last):
                    trial.keep()
                    started.add(job.id)
        if job.id not in started:
            draft.leave_pending(job.id, LIMITED)
    return started


def in_order(draft: Draft, queues: Ladder, first: Sequence[str] = ()) -> Iterator[tuple[str, QueueClass | None]]:
    """The queues to scan: those named in `first`, the other classes in their order, then queues that no class describes."""
    known = {queue.name: queue for queue in queues if queue.partition in {"", draft.partition}}
    order = dict.fromkeys((*(name for name in first if name in known), *known, *sorted(draft.queues())))
    return ((name, known.get(name)) for name in order)


@dataclass(frozen=True, slots=True)
class QueueFirstFit:
    name: ClassVar[str] = "queue_first_fit"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 1.4: what passes a job is never held back for it"}
    queues: tuple[QueueClass, ...] = field(default=HPC2500, metadata=about("the classes, in the order of scanning"))
    scan: tuple[str, ...] = field(default=(), metadata=about("names of queues that are scanned first, in this order"))
    firstfit_nodes: int = field(default=0, metadata=about("nodes on which a job may pass others of its queue; 0: all", least=0))

    def __post_init__(self) -> None:
        """Raises: ValueError for a class that stands in it twice, or a queue to scan that no class describes."""
        check_scan(self.queues, self.scan)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        room = Room.of(draft, self.firstfit_nodes)
        for name, _ in in_order(draft, self.queues, self.scan):
            scan(draft, name, room)
        draft.leave_rest(REST)


def check_scan(queues: Ladder, first: Sequence[str]) -> None:
    """Raises: ValueError for a class that stands in it twice, or a queue to scan that no class describes."""
    names = {queue.name for queue in checked(queues)}
    wrong = [name for name in first if name not in names]
    if wrong:
        raise ValueError(f"queue {wrong[0]} is to be scanned, but no class describes it: {', '.join(sorted(names))}")
