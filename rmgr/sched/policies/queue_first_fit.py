"""Several queues that share the nodes (paper 000): First-Fit in each queue in turn, and the choice of a queue for jobs that name none.

Algorithm of First-Fit (the conventional system):
1. Go through the queues in their configured order (small jobs first, unless configured otherwise), then through any other queue by name.
2. In each, look at the waiting jobs in order of arrival and start every job that fits. So a new job tries to start at once, even if
   others wait; if it cannot, it is the last of its queue.
One scan finds all, because free capacity only shrinks during it. Large jobs may wait for ever under a stream of small ones.
Option firstfit_nodes: a job that passes another one of its queue may use only the first `firstfit_nodes` nodes (0, the default: all).

Algorithm of automatic queue selection (proposal 1: a job that names no queue goes to the strictest class that admits it):
1. For each waiting job whose queue is not one of the classes: of the classes whose limits it keeps (CPUs, processes, threads, requested
   time) take the one with the smallest parallelism limit (`rmgr.sched.queue_class.selected`); route the job there. No class: reject it.
2. First-Fit in every queue, as above. Option start=no: leave starting to the next stage.

Parameters: queues (classes; default those of HPC2500, table 2, in the order of scanning), scan (names that go first, in this order; default
none), firstfit_nodes (nodes, of lowest id); for the selection: thread_affinity (default no), start (default yes).
Source: papers.md 1.2 to 1.4, 1.8, paper 000 section 3.1. Differs from it in: nothing. Of several jobs that arrive at one instant, the one
in the queue scanned first goes first. A job keeps the queue that its user named.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause
from rmgr.sched.queue_class import HPC2500, Ladder, QueueClass, checked, selected
from rmgr.sched.state.partition import arrival

FITS = Why("first_fit", "the first of its queue that fits in what is free")
LIMITED = Why("first_fit", "would fit, but may pass others on the first nodes only")
REST = Why("first_fit", "needs more than is free after this pass")
#: Place in a queue: (submit time, job id).
Place: TypeAlias = tuple[int, int]
STRICTEST = "{} is the strictest queue for {} processes x {} threads ({} CPUs)"
FOR_THREADS = "{} is the queue for few processes of many threads that admits {} processes x {} threads ({} CPUs)"


@dataclass(frozen=True, slots=True)
class ScanningPolicy:
    """Parameters of every policy that scans queue after queue."""

    queues: tuple[QueueClass, ...] = field(default=HPC2500, metadata=about("the classes, in the order of scanning"))
    scan: tuple[str, ...] = field(default=(), metadata=about("names of queues that are scanned first, in this order"))
    firstfit_nodes: int = field(default=0, metadata=about("nodes on which a job may pass others of its queue; 0: all", least=0))

    def __post_init__(self) -> None:
        """Raises: ValueError for a duplicate class, or a queue to scan that no class describes."""
        names = {queue.name for queue in checked(self.queues)}
        wrong = [name for name in self.scan if name not in names]
        if wrong:
            raise ValueError(f"queue {wrong[0]} is to be scanned, but no class describes it: {', '.join(sorted(names))}")

    def scan_all(self, draft: Draft, reserved: Container[int] = ()) -> list[tuple[QueueClass | None, Scanned]]:
        """Scans every queue in its turn, and returns what it found in each; jobs in `reserved` wait for what they are promised."""
        room = Room.of(draft, self.firstfit_nodes)
        found = [(queue, scan(draft, name, room, reserved)) for name, queue in in_order(draft, self.queues, self.scan)]
        draft.leave_rest(REST)
        return found


@dataclass(frozen=True, slots=True)
class QueueFirstFit(ScanningPolicy):
    """First-Fit in each queue."""

    name: ClassVar[str] = "queue_first_fit"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 1.4: what passes a job is never held back for it"}

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        self.scan_all(draft)


@dataclass(frozen=True, slots=True)
class QueueSelect(ScanningPolicy):
    """Automatic queue selection, then First-Fit in each queue."""

    name: ClassVar[str] = "queue_select"
    waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 1.7 (C0.7): without reservations a large job waits until the stream stops"}
    thread_affinity: bool = field(default=False, metadata=about("jobs of few processes go to the queue for threads where it admits them"))
    start: bool = field(default=True, metadata=about("start what fits, too; no: that is the next stage's"))

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        route_all(draft, self.queues, thread_affinity=self.thread_affinity)
        if self.start:
            self.scan_all(draft)


def route_all(draft: Draft, queues: Ladder, *, thread_affinity: bool = False) -> None:
    """Routes every waiting job in a queue that is not a class's to the class for it, or rejects it. Cost: O(these jobs)."""
    names = {queue.name for queue in queues}
    for name in sorted(draft.queues()):
        if name in names:
            continue
        for job in list(draft.queue(name)):
            found = selected(job, queues, thread_affinity=thread_affinity)
            shape = (*job.wanted, job.wanted_cpus)
            if found is None:
                draft.reject(job.id, Why("queue_select", "no queue admits {} processes x {} threads ({} CPUs) for its time", shape))
            else:
                is_strictest = not thread_affinity or found == selected(job, queues)
                why = Why("queue_select", STRICTEST if is_strictest else FOR_THREADS, (found.name, *shape))
                draft.route(job.id, found.name, why)


def in_order(draft: Draft, queues: Ladder, first: Sequence[str] = ()) -> Iterator[tuple[str, QueueClass | None]]:
    """Returns the queues to scan: those named in `first`, the other classes in their order, then queues that no class describes."""
    known = {queue.name: queue for queue in queues if queue.partition in {"", draft.partition}}
    order = dict.fromkeys((*(name for name in first if name in known), *known, *sorted(draft.queues())))
    return ((name, known.get(name)) for name in order)


class Room(NamedTuple):
    """Room before the first scan. free: cores; larger jobs are skipped. last: last node that jobs passing others may use."""

    free: int
    last: int | None = None

    @classmethod
    def of(cls, draft: Draft, firstfit_nodes: int) -> Room:
        ids = list(draft.nodes) if firstfit_nodes else []
        return cls(draft.free_cores, ids[firstfit_nodes - 1] if firstfit_nodes and firstfit_nodes < len(ids) else None)


def scan(draft: Draft, queue: str, room: Room, reserved: Container[int] = ()) -> Scanned:
    """Starts, in order of arrival, every job of the queue that fits; jobs in `reserved` wait for what they are promised."""
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
            ahead.append(arrival(waiting[-1]))
    return Scanned(waiting, ahead)


class Scanned(NamedTuple):
    """Result of scanning one queue. ahead: for each job that started past another, the nearest waiting place before it."""

    waiting: Sequence[Job]
    ahead: Sequence[Place]


def _start_limited(draft: Draft, jobs: Sequence[Job], startable: Iterator[Job], last: int) -> set[int]:
    """Starts jobs; one that passes a waiting job of its queue must fit on nodes up to `last` (lowest ids are taken first)."""
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
