"""Connection reservation of paper 000 (its proposal 2): a waiting job is promised the resources of named running jobs.

Algorithm, one pass:
1. Selection: jobs that name no queue go to the strictest class (`queue_first_fit.py`; option select=no).
2. Jobs whose chosen running jobs have all ended start on what was held for them. For the other reservations, cores held since the last
   pass that can be spared are given back (step 5 of the choice).
3. First-Fit in every queue, in the order of scanning; a job with a reservation waits for what it is promised. Every start past waiting jobs
   of its queue adds to their individual priority.
4. In each queue below its limit of simultaneous reservations, jobs reserve in this order (steps 1 to 4 of the choice):
   a. priority: jobs whose individual priority is above the threshold of the queue, nearest the head first;
   b. head: the first of the queue, if something ended since the last pass and it could not start (classes with `head_trigger`: d512);
   c. no waiter: the first of the queue, if the queue was empty after the last pass: the job has just come and cannot start.
Without enough running jobs, or at the limit, nothing happens: the job goes on waiting like the others.
No other job can use promised resources, before or after they come free; flag F of a running job means that it is part of a reservation.
Reservations are records (`Hold`), and so are two notes on the partition for each queue: how often jobs were overtaken (while any job
waits there), and how many reservations each trigger has made (for users to read). Another leader goes on with them.

The choice: which running jobs are promised to a job (`chosen`), and which of their cores it will use (`spared`).
1. C = the running jobs of the requester's queue whose resources are not promised (flag F unset).
2. A match: of the jobs in C with the same CPU request (processes and threads; option: CPUs only) the one that started first. The requester
   takes over exactly its cores.
3. No match: if all running jobs of the queue together have fewer CPUs than the requester needs, C becomes all running jobs with F unset
   (widening).
4. Take the largest job of C (most CPUs, then most threads, then the earliest start) until the requester can be placed on what is freed.
   If C runs empty before that, nothing is promised.
5. Surplus: whenever one of the chosen jobs has ended, as many of its cores as the requester can spare are given back at once. So they come
   from the job that ends first among those that have any.
"Can be placed" takes nodes into account: the threads of a process lie inside one node; a node that is closed or lacks a feature does not
count. Ties go to the lowest job id and the lowest node id. Idle CPUs are not collected.

Individual priority: how often a waiting job was overtaken in its queue, and when that is enough to reserve (`Overtaken`).
1. A waiting job begins at 0. Whenever a job behind it in its queue starts (a new arrival, or by First-Fit), every job it passed gains the
   constant w(j) = (threads(j) / threads_max(q) x cpu(j) / cpu_max(q)) ^ (-1/2): the smaller the job, the more.
2. Above the threshold of its queue ("exceeds": equal is not enough) it reserves; of several jobs the one nearest the head goes first.
w is never added up: value = overtakings x w, so value > threshold is count^2 x threads_max x cpu_max > threshold^2 x threads x cpu, in
integers, exactly.
Representation: one record per queue, not per job. A start is recorded at the nearest waiting job ahead of the starter; a job's count is
the sum of the entries at it and behind it. A job that its class admits has w >= 1, so more overtakings than the threshold are always
enough, and entries ahead of that many are dropped. So a pass writes at most one record per queue, of at most threshold + 1 entries, however
many jobs wait or were passed. A job that comes back to its queue (migrated, preempted) counts the starts past jobs still waiting behind it.

Parameters: queues (classes with limits, reservation_threshold (a number, table 3), max_reservations, head_trigger; default tables 2 to 4),
scan, thread_affinity, firstfit_nodes, select (default yes), match (`shape`: processes and threads; `cpus`: of step 2 of the choice).
Source: papers.md 1.4, 1.5, paper 000 sections 3.2 and 3.3, formula (1). Differs from it in: a job above its threshold that found the limit
reached tries again in each pass, not only when it is next overtaken; step 5 of the choice defines what the paper calls a suitable
job, and applies it when jobs end, not beforehand, since the order of ends is not known earlier. Kept as in the paper: in a class without
`head_trigger` a job that came while another waited, and that no job of its own class overtakes, never reserves; a stream of other classes
can starve it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from heapq import heapify, heapreplace
from math import sqrt
from operator import attrgetter
from typing import ClassVar, NamedTuple, TypeAlias

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Running, count_of, each_node, spans_of
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Why
from rmgr.sched.policies.queue_first_fit import Place, Scanned, ScanningPolicy, route_all
from rmgr.sched.policy import Cause
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Hold, Share, by_node, cores_of
from rmgr.sched.state.partition import arrival

TAKES_OVER = Why("connection_reservation", "every running job whose resources it was promised has ended")
SPARES = Why("connection_reservation", "needs fewer cores than have come free for it")
LOST = Why("connection_reservation", "it does not fit on what it was promised any more: nodes were closed or changed")
CHANGING = frozenset({Cause.NODES_CHANGED, Cause.TAKE_OVER})
ONE = "starts when running job {} has ended, on its resources"
SEVERAL = "starts when running job {} and {} others have ended, on their resources"
#: Node id -> cores.
Cores: TypeAlias = Mapping[int, int]
#: (job, node id, cores there) -> how many of the job's processes fit on them.
RoomOf: TypeAlias = Callable[[Job, int, int], int]
_NEVER = 1 << 60


class Match(StrEnum):
    """How a running job matches the CPU request of another job."""

    SHAPE = "shape"  #: as many processes of as many threads
    CPUS = "cpus"


class Trigger(IntEnum):
    """Trigger of a reservation in step 4; its value is the index of its count in the note."""

    PRIORITY = 0
    HEAD = 1
    NO_WAITER = 2


@dataclass(frozen=True, slots=True)
class ConnectionReservation(ScanningPolicy):
    name: ClassVar[str] = "connection_reservation"
    waives: ClassVar[Mapping[str, str]] = {
        "endless": "papers.md C0.7: a job whose class may not reserve waits until the stream stops, and so may one behind a reserved job"
    }
    thread_affinity: bool = field(default=False, metadata=about("jobs of few processes go to the queue for threads where it admits them"))
    select: bool = field(default=True, metadata=about("choose the queue of jobs that name none; no: an earlier stage does"))
    match: Match = field(default=Match.SHAPE, metadata=about("what a running job must equal to be taken over alone"))

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
        scanned = self.scan_all(draft, holds)
        book = _Book(draft, holds, active, by_cpus=self.match is Match.CPUS)
        for queue, found in scanned:
            if queue is not None and queue.max_reservations:
                _record_overtakings(book, queue, found, ended=Cause.JOB_ENDED in causes)
        book.say_why()


def fired_in(queue: str) -> str:
    """Returns the kind of the note that counts the reservations of a queue, by trigger."""
    return f"reserved in {queue}"


def _is_over(draft: Draft, job: Job, hold: Hold, *, nodes_changed: bool) -> bool:
    """Carries out step 2 for one reservation. True if it is over: its job has started or can no longer use it."""
    if not hold.waits_for:
        match draft.start(job.id, TAKES_OVER):
            case Insufficient(why) | Infeasible(why):
                draft.release(job.id, why)
        return True
    if not nodes_changed and (not hold.held or _count_cores(hold.held) + _count_cores(hold.waits_for) == job.cpus):
        return False
    held, coming = (by_node(share.cores for share in shares) for shares in (hold.held, hold.waits_for))
    left = spared(job, held, coming, draft.room)
    if left is None:
        draft.release(job.id, LOST)
        return True
    if left:
        rest = Counter(left)
        kept = [*(_share_without(share, rest) for share in hold.held), *hold.waits_for]
        draft.hold(job.id, [share for share in kept if share.cores], SPARES)
    return False


def _share_without(share: Share, rest: Counter[int]) -> Share:
    """Returns the share without the cores in `rest`, and removes those from `rest`."""
    kept: list[tuple[int, int]] = []
    for node, count in each_node(share.cores):
        gone = min(count, rest[node])
        rest[node] -= gone
        kept += [(node, count - gone)] if count > gone else []
    return Share(share.run_id, spans_of(kept))


def _count_cores(shares: tuple[Share, ...]) -> int:
    return sum(count_of(share.cores) for share in shares)


def _record_overtakings(book: _Book, queue: QueueClass, found: Scanned, *, ended: bool) -> None:
    """Records step 3 and carries out step 4 for one queue. The record exists while any job waits there."""
    draft, kind = book.draft, f"overtaken in {queue.name}"
    record = draft.note_of(kind, 0)
    if not found.waiting:
        if record is not None:
            draft.forget(kind, 0)
        return
    overtaken = None
    if record is None or found.ahead:
        overtaken = Overtaken.recorded(record).passed(found.ahead, arrival(found.waiting[0]), queue)
        draft.note(kind, 0, overtaken.record())
    if not book.is_full(queue):
        _reserve_for(book, queue, found.waiting, overtaken or Overtaken.recorded(record), was_empty=record is None, ended=ended)


def _reserve_for(book: _Book, queue: QueueClass, waiting: Sequence[Job], overtaken: Overtaken, *, was_empty: bool, ended: bool) -> None:
    """Carries out step 4 for a queue with waiting jobs. was_empty: the queue was empty after the last pass."""
    for job in overtaken.above(waiting, queue):
        if book.is_full(queue):
            return
        text = "was overtaken {} times or more, worth {:.4g} each: above the threshold {} of {}"
        facts = (overtaken.of(arrival(job)), constant(job, queue), queue.reservation_threshold, queue.name)
        book.reserve(job, queue, Trigger.PRIORITY, Why("connection_reservation", text, facts))
    head = waiting[0]
    if queue.head_trigger and ended:
        why = Why("connection_reservation", "first of {}, and cannot start though something has ended", (queue.name,))
        book.reserve(head, queue, Trigger.HEAD, why)
    if was_empty:
        why = Why("connection_reservation", "came to the empty queue {} and cannot start", (queue.name,))
        book.reserve(head, queue, Trigger.NO_WAITER, why)


class _Book:
    """The reservations of this pass: which jobs have one, and how many each queue has."""

    def __init__(self, draft: Draft, holds: dict[int, Hold], active: Counter[str], *, by_cpus: bool) -> None:
        self.draft = draft
        self._holds = holds
        self._by_cpus = by_cpus
        self._active = active

    def is_full(self, queue: QueueClass) -> bool:
        return self._active[queue.name] >= queue.max_reservations

    def reserve(self, job: Job, queue: QueueClass, trigger: Trigger, why: Why) -> None:
        """Makes the choice of step 4; does nothing if the job has a reservation, the queue is at its limit, or too little runs."""
        if job.id in self._holds or self.is_full(queue):
            return
        mine: list[Running] = []
        others: list[Running] = []
        for run in self.draft.running():
            (mine if run.job.queue == queue.name else others).append(run)
        promised = {share.run_id for hold in self._holds.values() for share in hold.waits_for}
        runs = chosen(job, mine, others, promised.__contains__, self.draft.room, by_cpus=self._by_cpus)
        shares = [Share(run.job.id, spans_of(cores_of(run).items())) for run in runs]
        if runs and isinstance(self.draft.hold(job.id, shares, why), Accepted):
            held = self.draft.held_for(job.id)
            assert held is not None
            self._holds[job.id] = held
            self._active[queue.name] += 1
            fired = self.draft.note_of(fired_in(queue.name), 0) or (0,) * len(Trigger)
            self.draft.note(fired_in(queue.name), 0, tuple(count + (at == trigger) for at, count in enumerate(fired)))

    def say_why(self) -> None:
        """Sets the reasons of jobs with a reservation: the runs that they wait for."""
        for job_id, hold in self._holds.items():
            others = len(hold.waits_for) - 1
            facts = (hold.waits_for[0].run_id, others)
            self.draft.leave_pending(job_id, Why("connection_reservation", SEVERAL if others else ONE, facts))


def chosen(job: Job, mine: Sequence[Running], others: Sequence[Running], promised: Callable[[int], bool], room: RoomOf, *,
           by_cpus: bool = False) -> tuple[Running, ...]:  # fmt: skip
    """Returns the running jobs whose resources the job is promised; an empty tuple if there are not enough.

    Args:
        mine, others: runs from the job's queue, and from all other queues. promised: tells by job id whether flag F is set.
        room: counts processes on nodes as they are. by_cpus: a match has as many CPUs; otherwise as many processes and threads.
    Cost: O(runs), and a sort of them without a match.
    """
    candidates = [run for run in mine if not promised(run.job.id)]
    earliest = sorted(candidates, key=lambda run: (run.start_us, run.job.id))
    wanted = attrgetter("wanted_cpus" if by_cpus else "wanted")
    matches = (run for run in earliest if wanted(run.job) == wanted(job))
    match = next((run for run in matches if _has_room(job, cores_of(run), room)), None)
    if match is not None:
        return (match,)
    if sum(run.job.cpus for run in mine) < job.cpus:
        candidates += [run for run in others if not promised(run.job.id)]
    taken: list[Running] = []
    freed: Counter[int] = Counter()
    processes = 0
    for run in sorted(candidates, key=lambda run: (-run.job.cpus, -run.job.threads, run.start_us, run.job.id)):
        taken.append(run)
        for node, cores in cores_of(run).items():
            before = freed[node]
            freed[node] = before + cores
            processes += room(job, node, before + cores) - (room(job, node, before) if before else 0)
        if processes >= job.processes:
            return tuple(taken)
    return ()


def spared(job: Job, held: Cores, coming: Cores, room: RoomOf) -> Cores | None:
    """Returns how many of the cores already held for the job it can spare, by node; None if it fits on none of this.

    Args:
        held: cores left to it by ended jobs. coming: cores of chosen jobs that still run.
    To spare the most cores, put each process where it costs least; cost never falls on a node, so placing one process at a time is optimal.
    Cost: O((nodes + processes) log nodes).
    """
    # (cost of the next process on the node, node, processes there so far); only as many as fit count
    costs: list[tuple[int, int, int]] = []
    most: dict[int, int] = {}
    for node in sorted(held.keys() | coming.keys()):
        most[node] = room(job, node, held.get(node, 0) + coming.get(node, 0))
        if most[node]:
            costs.append((_cores_used_up(job, held.get(node, 0), coming.get(node, 0), 1), node, 0))
    if sum(most.values()) < job.processes:
        return None
    heapify(costs)
    used: Counter[int] = Counter()
    for _ in range(job.processes):
        _, node, count = costs[0]
        count += 1
        used[node] = count
        next_cost = _cores_used_up(job, held.get(node, 0), coming.get(node, 0), count + 1) if count < most[node] else _NEVER
        heapreplace(costs, (next_cost, node, count))
    found = {node: _cores_left(job, cores, coming.get(node, 0), used[node]) for node, cores in held.items()}
    return {node: cores for node, cores in found.items() if cores}


def _has_room(job: Job, cores: Cores, room: RoomOf) -> bool:
    return sum(room(job, node, count) for node, count in cores.items()) >= job.processes


def _cores_left(job: Job, held: int, coming: int, processes: int) -> int:
    """Returns how many held cores so many processes on this node leave."""
    return min(held, held + coming - processes * job.threads)


def _cores_used_up(job: Job, held: int, coming: int, processes: int) -> int:
    """Returns how many held cores the last of so many processes uses up."""
    return _cores_left(job, held, coming, processes - 1) - _cores_left(job, held, coming, processes)


class Overtaken(NamedTuple):
    """Starts past the waiting jobs of a queue: places in ascending order, and the number of starts at each."""

    places: tuple[Place, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def recorded(cls, value: Sequence[int] | None) -> Overtaken:
        """Reads the record: triples (time, id, count) one after the other."""
        if not value:
            return cls()
        return cls(tuple(zip(value[::3], value[1::3], strict=True)), tuple(value[2::3]))

    def record(self) -> tuple[int, ...]:
        return tuple(number for (at_us, job_id), count in zip(self.places, self.counts, strict=True) for number in (at_us, job_id, count))

    def of(self, place: Place) -> int:
        """Returns how often the job at this place was overtaken: exact up to the threshold, a lower bound above it."""
        return sum(self.counts[bisect_left(self.places, place) :])

    def above(self, waiting: Iterable[Job], queue: QueueClass) -> Iterator[Job]:
        """Yields the waiting jobs (given in the order of the queue) above the threshold, nearest the head first. Cost: O(queue)."""
        left, at = sum(self.counts), 0
        for job in waiting:
            place = arrival(job)
            while at < len(self.places) and self.places[at] < place:
                left -= self.counts[at]
                at += 1
            if not left:
                return
            if exceeds(left, job, queue):
                yield job

    def passed(self, ahead: Iterable[Place], oldest: Place, queue: QueueClass) -> Overtaken:
        """Returns the record after a pass. ahead: for each start the nearest waiting place before it. oldest: first waiting place now."""
        found = dict(zip(self.places, self.counts, strict=True))
        for place in ahead:
            found[place] = found.get(place, 0) + 1
        kept: list[tuple[Place, int]] = []
        total = 0
        for place in sorted(found, reverse=True):
            if place < oldest or total > queue.reservation_threshold:
                break
            kept.append((place, found[place]))
            total += found[place]
        return Overtaken(tuple(place for place, _ in reversed(kept)), tuple(count for _, count in reversed(kept)))


def constant(job: Job, queue: QueueClass) -> float:
    """Returns w(j), the gain per overtaking. For users to read; decisions are made by `exceeds`."""
    return sqrt(queue.max_threads * queue.max_cpus / (job.wanted[1] * job.wanted_cpus))


def exceeds(overtakings: int, job: Job, queue: QueueClass) -> bool:
    """Whether a job overtaken so often has an individual priority above the threshold of its queue. Exact."""
    gained = overtakings * overtakings * queue.max_threads * queue.max_cpus
    return gained > queue.reservation_threshold * queue.reservation_threshold * job.wanted[1] * job.wanted_cpus
