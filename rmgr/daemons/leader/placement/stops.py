"""Finds out what became of jobs that were asked to give up their nodes, and tells the scheduler as facts.

An order lies in the inbox of the job's head until it is obeyed. Then either the job's block is gone (it waits again as the next attempt,
or has ended), or it is still there: the stop was refused or failed, and the job goes on. Each sign is read by name: the order's znode,
the block under `/running`, the block that STOP leaves under `pending`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import cut, decode_block
from rmgr.daemons.leader.facts import Known, known_of, with_known
from rmgr.daemons.leader.placement.job_table import PlacedJob
from rmgr.daemons.leader.placement.view import label
from rmgr.model.block import BlockData, BlockKey, task_of
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.runtime import machine
from rmgr.runtime.story import Story, insist
from rmgr.sched.job import Job, Running, nodes_of
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

#: Time in which a policy does not again ask a job that refused to stop.
PIN_US = 60_000_000
_RETRY_S = 1.0
#: `extra` of an order. UNSAVED: fate of a job that has not saved its state within its grace: it goes on (otherwise it is ended).
#: UNBEGUN: only a job that has not begun gives up its nodes.
THEN, STOP, GO_ON = "then", "stop", "go-on"
UNSAVED, UNBEGUN = "unsaved", "unbegun"
USER, DRAIN, POLICY = "user", "drain", "policy"


@dataclass(frozen=True, slots=True)
class SentOrder:
    """An order in flight to the head of a running job. stop: set if the job is to give up its nodes."""

    job: int
    guid: str
    order: InboxOrder
    stop: PendingStop | None = None


class StopStage(Enum):
    """What has become of a job that was asked to give up its nodes."""

    ASKED = auto()  #: its order is in flight, in the inbox of its head, or just obeyed
    REFUSED = auto()  #: it goes on; the scheduler is told once no other job counts on its nodes
    GONE = auto()  #: its block is no longer under /running
    BACK = auto()  #: it waits in its queue
    ENDED = auto()  #: it has ended, or was set aside


@dataclass(slots=True, kw_only=True, eq=False)
class PendingStop:
    """One job that was asked to stop. guid: of the order. run: its last stretch. route: its queue class, chosen by a policy.

    asked_us: since when, None = unknown. by_policy: counts as a move. is_taken_back: it was placed on nodes that another job has not left
    after all; it gives them back unless it has begun. back_s: since when it is known whether it is back.
    """

    job: int
    placed: PlacedJob
    guid: str
    run: Running
    route: str = ""
    stage: StopStage = StopStage.ASKED
    back_s: float = -math.inf
    why: str = ""  #: the node's reason for the refusal
    asked_us: int | None = None
    by_policy: bool = False
    is_taken_back: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether the job goes on."""
        return self.stage is StopStage.REFUSED

    @property
    def is_back(self) -> bool:
        """Whether the job waits in its queue."""
        return self.stage is StopStage.BACK


def _next_names(placed: PlacedJob) -> tuple[BlockKey, BlockKey]:
    """Returns the keys under which a job that left its nodes may wait: the next attempt, or the same one, not begun."""
    return replace(placed.key, attempt=placed.key.attempt + 1), placed.key


def stop_order(
    job: int, *, why: str, detail: str, kill: bool = False, grace_us: int = 0, unsaved: str = "", unbegun: bool = False
) -> InboxOrder:
    """Returns an order to give up the nodes. kill: without saving anything. grace_us: 0 = the job's own. Others: see `UNSAVED`."""
    submission, index = task_of(job)
    extra = {THEN: STOP, "why": why} | ({"kill": "1"} if kill else {}) | ({"grace_us": str(grace_us)} if grace_us else {})
    extra |= ({UNSAVED: unsaved} if unsaved else {}) | ({UNBEGUN: "1"} if unbegun else {})
    return InboxOrder(order=OrderKind.CHECKPOINT, submission=submission, index=index, detail=detail[:500], extra=extra)


class Stops:
    """All stops, by job. Touched in the leader's loop, only while no pass is running."""

    def __init__(self, placer: Placer) -> None:
        self.by_job: dict[int, PendingStop] = {}
        self.refusals: dict[int, str] = {}  #: job that goes on -> why
        self._learned: dict[int, Known] = {}  # facts from blocks
        self._taken: list[SentOrder] = []  # orders to give back nodes to jobs that may not have begun
        self._begun: set[int] = set()  # jobs that had begun
        self.is_dirty = False  #: a stop was refused: recorded at once, or a successor would take it for the answer to the next request
        self._term = placer.term
        self._job_table = placer.job_table
        self._lists = placer.lists
        self._updates = placer.updates

    def forget(self) -> None:
        """Forgets all stops before everything is read again."""
        for stop in list(self.by_job.values()):
            self._close(stop)
        self._learned.clear()
        self._taken.clear()
        self._begun.clear()

    # -- asking

    def begin(self, state: ClusterState, run: Running, guid: str, now_us: int, *, by_policy: bool = False) -> PendingStop:
        """Tells the scheduler that the job, about to be asked, neither waits nor runs. `watch` follows once it was asked."""
        job, job_table = run.job.id, self._job_table
        route = job_table.routes.get(job, "")
        stop = PendingStop(job=job, placed=job_table.placed[job], guid=guid, run=run, route=route, asked_us=now_us, by_policy=by_policy)
        self.by_job[job] = stop
        self._updates.tell(state, "job_stopping", run, now_us)
        self._updates.because(Cause.JOB_ENDED)
        return stop

    def adopt(self, stop: PendingStop) -> None:
        """Takes over a stop of an earlier leader; without an order the job goes on, although others were given its nodes."""
        self.by_job[stop.job] = stop
        if stop.guid:
            self.watch(stop)
        else:
            stop.stage = StopStage.REFUSED

    def watch(self, stop: PendingStop) -> None:
        """Watches the order in the inbox until it is obeyed."""
        if self._is_open(stop):
            self._term.tell(self._follow(stop), f"the stop of job {stop.job}", key=stop)

    # -- outcomes

    def _follow(self, stop: PendingStop) -> Story[None]:
        """Waits until the order is obeyed, then looks how: the job gave up its nodes, ended, or refused."""
        yield from self._term.mirror.until_gone(paths.inbox(stop.placed.node, stop.guid))
        found = yield from insist(lambda: self._term.get(paths.running_block(stop.placed.node, stop.placed.key)), _RETRY_S)
        if found is None:
            return
        stop.stage = StopStage.REFUSED
        stop.why = self.said_of(stop.job, found.data)
        submission, index = task_of(stop.job)
        self._term.log.warning("stop_refused", submission=submission, first=index, node=stop.placed.node, why=stop.why)
        self._updates.wake()

    def vacated(self, job: int, placed: PlacedJob) -> bool:
        """Handles a block gone from its head. Returns whether the job was asked to leave, so that its fate is being looked up."""
        self.refusals.pop(job, None)
        self._begun.discard(job)
        stop = self.by_job.get(job)
        if stop is None:
            return False
        stop.stage = StopStage.GONE
        self._term.stories.end(stop)
        self._term.tell(self._look_for_return(stop, placed), f"the return of job {stop.job}", key=(stop.guid, "returned"))
        return True

    def _look_for_return(self, stop: PendingStop, placed: PlacedJob) -> Story[None]:
        """Looks where the job went. STOP, and RETURN of an unbegun job, commit both changes at once: it waits, ended, or is set aside."""
        wanted = [paths.pending_block(placed.queue, key) for key in _next_names(placed)]
        found = yield from insist(lambda: self._term.get_all(wanted), _RETRY_S)
        if self._is_open(stop):
            stop.stage = StopStage.BACK if any(found) else StopStage.ENDED
            stop.back_s = self._term.clock()
            self._lists.look_at(paths.pending(stop.placed.queue))

    def _is_open(self, stop: PendingStop) -> bool:
        return self.by_job.get(stop.job) is stop

    # -- learned facts about running jobs

    def learn(self, job: int, data: BlockData) -> None:
        """Learns from a job's block whether its program has answered, and how often it was moved; the next turn tells the scheduler."""
        submission = self._job_table.submissions.get(task_of(job)[0])
        if submission is not None:
            self._learned[job] = known_of(submission, data.answered, data.moves)
            self._updates.wake()

    def said_of(self, job: int, block: bytes) -> str:
        """Returns the node's last word about the job in its block, "" if none; learns the rest of the block."""
        try:
            data = decode_block(block)
        except msgspec.DecodeError as error:
            return f"its block cannot be read: {cut(error)}"
        self.learn(job, data)
        return data.story[-1] if data.story else ""

    def _tell_known(self, state: ClusterState, job: int, known: Known) -> bool:
        """Tells the scheduler facts about a job, also one just given to its nodes. Returns False if nothing is new, or the job is gone."""
        placed = self._job_table.placed.get(job) or self._job_table.waiting.get(job)
        run = None if placed is None else state.partitions[placed.partition].running.get(job)
        if placed is None or run is None or known == (run.job.saves, run.job.moves):
            return False
        self._updates.tell(state, "job_known", job, *known, placed.partition)
        self._remember(with_known(run.job, known))
        return True

    def _remember(self, job: Job) -> None:
        """Remembers facts that the job's record does not contain."""
        submission = self._job_table.submissions.get(task_of(job.id)[0])
        known = (job.saves, job.moves)
        if submission is None or known_of(submission, False, 0) != known:
            self._job_table.learn(job.id, known)

    # -- facts

    def settle(self, state: ClusterState, now_us: int) -> None:
        """Tells the scheduler which jobs have ended or go on."""
        for stop in list(self.by_job.values()):
            if stop.stage is StopStage.ENDED or (stop.is_back and self._has_left_again(stop)):
                self._close(stop)
                self._job_table.marks.pop(stop.job, None)
                self._updates.tell(state, "job_ended", stop.job, stop.placed.partition, now=now_us)
                self._updates.because(Cause.JOB_ENDED)
        self._look_at_refused(state, now_us)
        learned, self._learned = self._learned, {}
        for job, known in learned.items():
            if self._tell_known(state, job, known):
                self._updates.because(Cause.TIMER)
        self._unpin(state, now_us)

    def _look_at_refused(self, state: ClusterState, now_us: int) -> None:
        for stop in list(self.by_job.values()):
            if stop.is_refused and self._is_open(stop):
                self._go_on(state, stop, now_us)

    def _has_left_again(self, stop: PendingStop) -> bool:
        """Whether the job was back, but was cancelled or held before its queue was read."""
        pending = self._lists.pending.get(stop.placed.queue)
        names = {paths.block_name(key) for key in _next_names(stop.placed)}
        return pending is not None and pending.asked_s > stop.back_s and names.isdisjoint(pending.value or ())

    def returned(self, state: ClusterState, job: Job, now_us: int) -> None:
        """Puts a job that waits again back into the state, with all that is remembered about it."""
        stop = self.by_job[job.id]
        self._close(stop)
        job_table = self._job_table
        if stop.is_taken_back:  # as if it had never left
            now_us = stop.run.job.queued_us
            self._updates.tell(state, "job_stopping", stop.run, self._updates.now_us())
        if not stop.is_taken_back or now_us > job.submit_us:
            job_table.queued[job.id] = now_us
        if stop.route:
            job_table.routes[job.id] = stop.route
            job = replace(job, queue=stop.route)
        before = stop.run.job
        is_moved = stop.by_policy and job.restarts > before.restarts
        job = with_known(job, (before.saves, before.moves + is_moved))
        self._remember(job)
        self._updates.tell(state, "job_returned", replace(job, queued_us=now_us))
        self._updates.because(Cause.JOB_SUBMITTED)
        if stop.is_taken_back:  # before a pass sees its nodes free
            self._look_at_refused(state, self._updates.now_us())

    def _go_on(self, state: ClusterState, stop: PendingStop, now_us: int) -> None:
        part = state.partitions[stop.placed.partition]
        if stop.is_taken_back:
            self._close(stop)
            self._begun.add(stop.job)
            self._updates.wake()
            return
        if not part.has_room_for(stop.run):
            self._take_back(part, stop, now_us)
            return  # later: when that job is back; if others have begun on the remaining nodes, when they end
        job_table = self._job_table
        self._close(stop)
        self.is_dirty = True
        self.refusals[stop.job] = stop.why
        job_table.marks.pop(stop.job, None)
        self._updates.tell(state, "job_went_on", stop.job, now_us, stop.placed.partition)
        run = part.running[stop.job]
        job_table.stays[stop.job] = (run.start_us, run.end_us)
        self.pin(state, stop.job, stop.placed.partition, until_us=now_us + PIN_US)
        self._updates.because(Cause.TIMER)

    def _take_back(self, part: Partition, stop: PendingStop, now_us: int) -> None:
        """Asks the last job that was given these nodes since to give them back, if it has not begun (its node knows). One at a time.

        The scheduler counts that job as running until it is back: nothing else gets its nodes meanwhile.
        """
        wanted = set(nodes_of(stop.run.placement))
        for run in sorted(part.running.values(), key=lambda run: (run.start_us, run.job.id), reverse=True):
            job = run.job.id
            if stop.asked_us is not None and run.start_us < stop.asked_us:
                return
            placed = self._job_table.placed.get(job)
            if job in self._begun or placed is None or wanted.isdisjoint(nodes_of(run.placement)):
                continue
            if job not in self.by_job:
                why = f"job {label(stop.job, self._job_table.submissions)} goes on where it is, and this one has not begun"
                order = stop_order(job, why=POLICY, detail=why, unsaved=GO_ON, unbegun=True)
                taken = PendingStop(job=job, placed=placed, guid=machine.guid()[:12], run=run, asked_us=now_us, is_taken_back=True)
                taken.route = self._job_table.routes.get(job, "")
                self.by_job[job] = taken
                self._taken.append(SentOrder(job, taken.guid, order, taken))
            return

    def taken_back(self) -> list[SentOrder]:
        """Returns new orders to jobs that must give their nodes back."""
        found, self._taken = self._taken, []
        return found

    def _close(self, stop: PendingStop) -> None:
        self._term.stories.end(stop)
        del self.by_job[stop.job]

    # -- pins

    def started(self, state: ClusterState, job: int, data: BlockData) -> None:
        """Pins a started job that may run only once, so that no policy sends it back. data: of its block, as it waited."""
        submission = self._job_table.submissions.get(task_of(job)[0])
        if submission is not None:
            self._tell_known(state, job, known_of(submission, data.answered, data.moves))
        if not self._job_table.may_move(job):
            self.pin(state, job, self._job_table.waiting[job].partition)

    def pin(self, state: ClusterState, job: int, partition: str, *, until_us: int = 0) -> None:
        """Keeps policies from sending the job back: until `until_us`, or (0) as long as it runs."""
        if until_us:
            self._job_table.pins[job] = until_us
            self._term.after(PIN_US / 1e6 + 0.1, self._updates.wake)
        self._updates.tell(state, "job_pinned", job, True, partition)

    def _unpin(self, state: ClusterState, now_us: int) -> None:
        pins = self._job_table.pins
        for job in [job for job, until_us in pins.items() if until_us <= now_us]:
            del pins[job]
            placed = self._job_table.placed.get(job)
            if placed is not None and job in state.partitions[placed.partition].pinned and self._job_table.may_move(job):
                self._updates.tell(state, "job_pinned", job, False, placed.partition)
                self._updates.because(Cause.TIMER)
