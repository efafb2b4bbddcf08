"""Connection reservation of paper 000 (its proposal 2): a job that waits is promised the resources of named running jobs.

Algorithm, one pass:
1. Selection: jobs that name no queue go to the strictest class (`queue_select`; option select=no).
2. Jobs whose chosen running jobs have all ended start on what was held for them. Of the others, what has been held since and can be spared
   is given back (`connection_choice`, step 5).
3. First-Fit in every queue, in the order of scanning (`queue_first_fit`); a job with a reservation waits for what it is promised. Every
   start past waiting jobs of its queue adds to their individual priority (`individual_priority`).
4. In each queue whose limit of simultaneous reservations is not reached, in this order, a job reserves (`connection_choice`, steps 1 to 4):
   a. priority: whose individual priority is above the threshold of the queue, nearest the head first;
   b. head: the first of the queue, if something ended since the last pass and it could not start (classes with `head_trigger`: d512);
   c. no waiter: the first of the queue, if nobody waited in it after the last pass: it has just come, and cannot start.
   Without enough running jobs, or at the limit, nothing happens: the job goes on waiting like the others.
Promised resources can be used by nobody else, before or after they come free; the flag F of a running job is its place in a reservation.
Reservations are records (`Hold`), and so are two notes of the partition for each queue: who was overtaken how often (while somebody waits
in it), and how many reservations each trigger has made (for people). Another leader goes on with them.
Parameters: queues (classes with limits, reservation_threshold, max_reservations, head_trigger; default tables 2 to 4), scan,
thread_affinity, firstfit_nodes, select (default yes), match (`shape`: processes and threads; `cpus`: of step 2 of the choice).
Source: papers.md 1.4, 1.5, paper 000 sections 3.2 and 3.3. Differs from it in: a job above its threshold that found the limit reached
tries again in each pass, not only when it is overtaken the next time. Taken from it as it is: in a class without `head_trigger` a job that
came while another waited, and that no job of its own class overtakes, never reserves; a stream of other classes can starve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import ClassVar

from rmgr.sched.capacity.holds import by_node, cores_of, each_node
from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Running
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.connection_choice import chosen, spans_of, spared
from rmgr.sched.policies.individual_priority import Overtaken, constant, place_of
from rmgr.sched.policies.queue_first_fit import REST, Room, Scanned, check_scan, in_order, scan
from rmgr.sched.policies.queue_select import route_all
from rmgr.sched.policy import Cause
from rmgr.sched.queue_class import HPC2500, QueueClass
from rmgr.sched.records import Hold, Share

TAKES_OVER = Why("connection_reservation", "every running job whose resources it was promised has ended")
SPARES = Why("connection_reservation", "needs fewer cores than have come free for it")
LOST = Why("connection_reservation", "it does not fit on what it was promised any more: nodes were closed or changed")
CHANGING = frozenset({Cause.NODES_CHANGED, Cause.TAKE_OVER})
ONE = "starts when running job {} has ended, on its resources"
SEVERAL = "starts when running job {} and {} others have ended, on their resources"


class Match(StrEnum):
    """Rule by which running jobs match the CPU request of another."""

    SHAPE = "shape"  #: as many processes, of as many threads
    CPUS = "cpus"


class Trigger(IntEnum):
    """Trigger of a reservation, step 4; the place of its count in the note."""

    PRIORITY = 0
    HEAD = 1
    NO_WAITER = 2


def fired_in(queue: str) -> str:
    """The kind of the note that counts the reservations of a queue, by trigger."""
    return f"reserved in {queue}"


@dataclass(frozen=True, slots=True)
class ConnectionReservation:
    name: ClassVar[str] = "connection_reservation"
    waives: ClassVar[Mapping[str, str]] = {
        "endless": "papers.md C0.7: a job whose class may not reserve waits until the stream stops, and so may one behind a reserved job"
    }
    queues: tuple[QueueClass, ...] = field(default=HPC2500, metadata=about("the classes, in the order of scanning"))
    scan: tuple[str, ...] = field(default=(), metadata=about("names of queues that are scanned first, in this order"))
    firstfit_nodes: int = field(default=0, metadata=about("nodes on which a job may pass others of its queue; 0: all", least=0))
    thread_affinity: bool = field(default=False, metadata=about("jobs of few processes go to the queue for threads where it admits them"))
    select: bool = field(default=True, metadata=about("choose the queue of jobs that name none; no: an earlier stage does"))
    match: Match = field(default=Match.SHAPE, metadata=about("what a running job must equal to be taken over alone"))

    def __post_init__(self) -> None:
        """Raises: ValueError for a class that stands in it twice, or a queue to scan that no class describes."""
        check_scan(self.queues, self.scan)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        if self.select:
            route_all(draft, self.queues, thread_affinity=self.thread_affinity)
        holds = {hold.job_id: hold for hold in draft.holds()}
        active: Counter[str] = Counter()  # by queue
        for hold in list(holds.values()):
            job = draft.job(hold.job_id)
            assert job is not None, "a reservation goes with its job"
            if _is_over(draft, job, hold, nodes_changed=not causes.isdisjoint(CHANGING)):
                del holds[job.id]
            else:
                active[job.queue] += 1
        room = Room.of(draft, self.firstfit_nodes)
        scanned = [(queue, scan(draft, name, room, holds)) for name, queue in in_order(draft, self.queues, self.scan)]
        book = _Book(draft, holds, active, by_cpus=self.match is Match.CPUS)
        for queue, found in scanned:
            if queue is not None and queue.max_reservations:
                _watch(book, queue, found, ended=Cause.JOB_ENDED in causes)
        book.say_why()
        draft.leave_rest(REST)


def _is_over(draft: Draft, job: Job, hold: Hold, *, nodes_changed: bool) -> bool:
    """Step 2 for one reservation; over, because its job has started or cannot use it any more."""
    if not hold.waits_for:
        match draft.start(job.id, TAKES_OVER):
            case Insufficient(why) | Infeasible(why):
                draft.release(job.id, why)
        return True
    if not nodes_changed and (not hold.held or _count(hold.held) + _count(hold.waits_for) == job.cpus):
        return False
    held, coming = (by_node(share.cores for share in shares) for shares in (hold.held, hold.waits_for))
    left = spared(job, held, coming, draft.room)
    if left is None:
        draft.release(job.id, LOST)
        return True
    if left:
        rest = Counter(left)
        kept = [*(_without(share, rest) for share in hold.held), *hold.waits_for]
        draft.hold(job.id, [share for share in kept if share.cores], SPARES)
    return False


def _without(share: Share, rest: Counter[int]) -> Share:
    """The share without the cores in `rest`, which are struck off there."""
    kept: dict[int, int] = {}
    for node, count in each_node(share.cores):
        gone = min(count, rest[node])
        rest[node] -= gone
        kept[node] = count - gone
    return Share(share.run_id, spans_of(kept))


def _count(shares: tuple[Share, ...]) -> int:
    return sum(count * (last - first + 1) for share in shares for first, last, count in share.cores)


def _watch(book: _Book, queue: QueueClass, found: Scanned, *, ended: bool) -> None:
    """Step 3, its record, and step 4, for one queue. The record is there while somebody waits."""
    draft, kind = book.draft, f"overtaken in {queue.name}"
    record = draft.note_of(kind, 0)
    if not found.waiting:
        if record is not None:
            draft.forget(kind, 0)
        return
    overtaken = None
    if record is None or found.ahead:
        overtaken = Overtaken.recorded(record).passed(found.ahead, place_of(found.waiting[0]), queue)
        draft.note(kind, 0, overtaken.record())
    if not book.is_full(queue):
        _trigger(book, queue, found.waiting, overtaken or Overtaken.recorded(record), was_empty=record is None, ended=ended)


def _trigger(book: _Book, queue: QueueClass, waiting: Sequence[Job], overtaken: Overtaken, *, was_empty: bool, ended: bool) -> None:
    """Step 4 for one queue in which somebody waits. was_empty: nobody waited after the last pass."""
    for job in overtaken.above(waiting, queue):
        if book.is_full(queue):
            return
        text = "was overtaken {} times or more, worth {:.4g} each: above the threshold {} of {}"
        facts = (overtaken.of(place_of(job)), constant(job, queue), queue.reservation_threshold, queue.name)
        book.reserve(job, queue, Trigger.PRIORITY, Why("connection_reservation", text, facts))
    head = waiting[0]
    if queue.head_trigger and ended:
        why = Why("connection_reservation", "first of {}, and cannot start though something has ended", (queue.name,))
        book.reserve(head, queue, Trigger.HEAD, why)
    if was_empty:
        why = Why("connection_reservation", "came to the empty queue {} and cannot start", (queue.name,))
        book.reserve(head, queue, Trigger.NO_WAITER, why)


class _Book:
    """The reservations of this pass: who has one, and how many there are in each queue."""

    def __init__(self, draft: Draft, holds: dict[int, Hold], active: Counter[str], *, by_cpus: bool) -> None:
        self.draft = draft
        self._holds = holds
        self._by_cpus = by_cpus
        self._active = active

    def is_full(self, queue: QueueClass) -> bool:
        return self._active[queue.name] >= queue.max_reservations

    def reserve(self, job: Job, queue: QueueClass, trigger: Trigger, why: Why) -> None:
        """Step 4, the choice; nothing happens when the job has a reservation, the queue is at its limit, or too little runs."""
        if job.id in self._holds or self.is_full(queue):
            return
        mine: list[Running] = []
        others: list[Running] = []
        for run in self.draft.running():
            (mine if run.job.queue == queue.name else others).append(run)
        promised = {share.run_id for hold in self._holds.values() for share in hold.waits_for}
        runs = chosen(job, mine, others, promised.__contains__, self.draft.room, by_cpus=self._by_cpus)
        shares = [Share(run.job.id, spans_of(cores_of(run))) for run in runs]
        if runs and isinstance(self.draft.hold(job.id, shares, why), Accepted):
            held = self.draft.held_for(job.id)
            assert held is not None
            self._holds[job.id] = held
            self._active[queue.name] += 1
            fired = self.draft.note_of(fired_in(queue.name), 0) or (0,) * len(Trigger)
            self.draft.note(fired_in(queue.name), 0, tuple(count + (at == trigger) for at, count in enumerate(fired)))

    def say_why(self) -> None:
        """What those with a reservation wait for."""
        for job_id, hold in self._holds.items():
            others = len(hold.waits_for) - 1
            facts = (hold.waits_for[0].run_id, others)
            self.draft.leave_pending(job_id, Why("connection_reservation", SEVERAL if others else ONE, facts))
