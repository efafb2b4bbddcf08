"""Jobs that were asked to give their nodes up: what came of it is found out, and told the scheduler as a fact.

An order lies in the inbox of the job's head until it was obeyed. Then either the job's block is gone (it waits again as the next attempt,
or has ended), or it is still there: the stop was refused, or has failed, and the job goes on. Each is looked at where it is said, by name:
the order's znode, the block under `/running`, the block that STOP leaves under `pending`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rmgr.coord import paths
from rmgr.coord.multi import Stamped, Stat
from rmgr.coord.records import decode_block
from rmgr.daemons.leader_desk import Desk
from rmgr.daemons.leader_mirror import Mirror, data_of
from rmgr.daemons.placing_book import Placed
from rmgr.model.node import InboxOrder, Order
from rmgr.model.placing import task_of
from rmgr.sched.job import Job, Running
from rmgr.sched.policy import Cause
from rmgr.sched.state import ClusterState

if TYPE_CHECKING:
    from rmgr.daemons.leader_place import Placer

#: A job that has refused to stop is not asked by a policy again for so long.
PIN_US = 60_000_000
_RETRY_S = 1.0
#: `extra` of an order.
THEN, STOP, GO_ON = "then", "stop", "go-on"
USER, DRAIN, POLICY = "user", "drain", "policy"


@dataclass(slots=True, kw_only=True)
class Stop:
    """One job that was asked. guid: of the order. run: its last stretch. mark: where its next start must be, "" = anywhere.

    is_obeyed: the order is crossed off. is_gone: its block is not under /running any more. is_back: it waits in its queue. is_refused: it
    goes on; the scheduler hears of it as soon as nobody else counts on its nodes.
    """

    job: int
    placed: Placed
    guid: str
    run: Running
    route: str = ""
    order: Mirror[Stamped] | None = None
    is_obeyed: bool = False
    is_gone: bool = False
    is_back: bool = False
    is_ended: bool = False
    back_s: float = -math.inf
    is_refused: bool = False
    why: str = ""  #: it was refused, as its node tells it


def stop_order(job: int, *, why: str, detail: str, kill: bool = False, grace_us: int = 0) -> InboxOrder:
    """The order to give the nodes up. kill: without being asked to save anything. grace_us: 0 = as the job says."""
    submission, index = task_of(job)
    extra = {THEN: STOP, "why": why} | ({"kill": "1"} if kill else {}) | ({"grace_us": str(grace_us)} if grace_us else {})
    return InboxOrder(order=Order.CHECKPOINT, submission=submission, index=index, detail=detail[:500], extra=extra)


class Stops:
    """All of them, by job. They are touched in the leader's loop while no pass is under way."""

    def __init__(self, desk: Desk, placer: Placer) -> None:
        self.by_job: dict[int, Stop] = {}
        self.refusals: dict[int, str] = {}  #: job that goes on -> why
        self.is_dirty = False  #: one was refused: it is recorded at once, or a successor would take it for the answer to the next request
        self._desk = desk
        self._placer = placer

    def forget(self) -> None:
        """Everything will be read again."""
        for stop in self.by_job.values():
            if stop.order is not None:
                stop.order.stop()
        self.by_job.clear()

    def resync(self) -> None:
        """Looks at every order again, watch or not."""
        for stop in self.by_job.values():
            if stop.order is not None:
                stop.order.refresh()

    # -- asking

    def begin(self, state: ClusterState, run: Running, guid: str, now_us: int) -> Stop:
        """The job is about to be asked: the scheduler hears that it neither waits nor runs. `watch` follows when it was asked."""
        placer, job = self._placer, run.job.id
        stop = Stop(job=job, placed=placer.book.placed[job], guid=guid, run=run, route=placer.book.routes.get(job, ""))
        self.by_job[job] = stop
        placer.tell(state, "job_stopping", run, now_us)
        placer.because(Cause.JOB_ENDED)
        return stop

    def adopt(self, stop: Stop) -> None:
        """One that a leader before has asked; without an order it goes on, although others were given its nodes."""
        self.by_job[stop.job] = stop
        if stop.guid:
            self.watch(stop)
        else:
            stop.is_obeyed = stop.is_refused = True

    def watch(self, stop: Stop) -> None:
        """Its order is in the inbox: it is looked at until it was obeyed."""
        if self.by_job.get(stop.job) is stop and stop.order is None:
            stop.order = data_of(self._desk, paths.inbox(stop.placed.node, stop.guid), partial(self._looked, stop))
            stop.order.refresh()

    # -- what came of it

    def _looked(self, stop: Stop) -> None:
        if stop.order is not None and stop.order.value is None and not stop.is_obeyed:
            stop.is_obeyed = True
            stop.order.stop()
            self._look_at_block(stop)

    def _look_at_block(self, stop: Stop) -> None:
        """Obeyed: by giving it up, by its end, or by saying no."""
        if not self._is_open(stop):
            return

        def failed() -> None:
            self._desk.after(_RETRY_S, partial(self._look_at_block, stop))

        self._desk.get(paths.running_block(stop.placed.node, stop.placed.key), partial(self._on_block, stop), failed=failed)

    def _on_block(self, stop: Stop, found: Stamped | None) -> None:
        if not self._is_open(stop) or found is None:
            return
        story = decode_block(found.data).story
        stop.is_refused, stop.why = True, story[-1] if story else ""
        submission, index = task_of(stop.job)
        self._desk.log.warning(
            "stop_refused", submission=submission, first=index, node=stop.placed.node, why=stop.why, epoch=self._desk.epoch
        )
        self._placer.wake()

    def vacated(self, job: int, placed: Placed) -> bool:
        """A job's block is gone from its head. True: it was asked to, and what came of it is being looked at."""
        self.refusals.pop(job, None)
        stop = self.by_job.get(job)
        if stop is None:
            return False
        stop.is_gone = True
        if stop.order is not None:
            stop.order.stop()
        self._look_for_return(stop, placed)
        return True

    def _look_for_return(self, stop: Stop, placed: Placed) -> None:
        """STOP commits both at once, so it waits there by now, or it has ended, or was set aside."""
        if not self._is_open(stop):
            return

        def failed() -> None:
            self._desk.after(_RETRY_S, partial(self._look_for_return, stop, placed))

        following = replace(placed.key, attempt=placed.key.attempt + 1)
        self._desk.stat(paths.pending_block(placed.queue, following), partial(self._on_return, stop), failed=failed)

    def _on_return(self, stop: Stop, found: Stat | None) -> None:
        if self._is_open(stop):
            stop.is_back, stop.is_ended, stop.back_s = found is not None, found is None, self._desk.clock()
            self._placer.look_at(paths.pending(stop.placed.queue))

    def _is_open(self, stop: Stop) -> bool:
        return self.by_job.get(stop.job) is stop

    # -- facts

    def settle(self, state: ClusterState, now_us: int) -> None:
        """Tells the scheduler what is known by now of jobs that have ended or go on."""
        for stop in list(self.by_job.values()):
            if stop.is_ended or (stop.is_back and self._left_again(stop)):
                self._close(stop)
                self._placer.book.marks.pop(stop.job, None)
                self._placer.tell(state, "job_ended", stop.job, stop.placed.partition, now=now_us)
                self._placer.because(Cause.JOB_ENDED)
            elif stop.is_refused and not stop.is_gone:
                self._go_on(state, stop, now_us)
        self._unpin(state, now_us)

    def _left_again(self, stop: Stop) -> bool:
        """It was back, and was cancelled or held before its queue was read."""
        pending = self._placer.pending(stop.placed.queue)
        following = paths.block_name(replace(stop.placed.key, attempt=stop.placed.key.attempt + 1))
        return pending is not None and pending.asked_s > stop.back_s and following not in (pending.value or ())

    def returned(self, state: ClusterState, job: Job, now_us: int) -> None:
        """It waits again: the job comes back with what is remembered of it."""
        stop = self.by_job[job.id]
        self._close(stop)
        book = self._placer.book
        book.queued[job.id] = now_us
        if stop.route:
            book.routes[job.id] = stop.route
            job = replace(job, queue=stop.route)
        self._placer.tell(state, "job_returned", replace(job, queued_us=now_us))
        self._placer.because(Cause.JOB_SUBMITTED)

    def _go_on(self, state: ClusterState, stop: Stop, now_us: int) -> None:
        part = state.partitions[stop.placed.partition]
        if not part.has_room_for(stop.run):
            return  # others were given its nodes, and wait there: when they are done
        book = self._placer.book
        self._close(stop)
        self.is_dirty = True
        self.refusals[stop.job] = stop.why
        book.marks.pop(stop.job, None)
        self._placer.tell(state, "job_went_on", stop.job, now_us, stop.placed.partition)
        run = part.running[stop.job]
        book.stays[stop.job] = (run.start_us, run.end_us)
        self.pin(state, stop.job, stop.placed.partition, until_us=now_us + PIN_US)
        self._placer.because(Cause.TIMER)

    def _close(self, stop: Stop) -> None:
        if stop.order is not None:
            stop.order.stop()
        del self.by_job[stop.job]

    # -- pins

    def started(self, state: ClusterState, job: int) -> None:
        """A job is on its nodes: one that runs once, whatever happens, is not sent back by a policy."""
        if not self._placer.may_move(job):
            self.pin(state, job, self._placer.book.waiting[job].partition)

    def pin(self, state: ClusterState, job: int, partition: str, *, until_us: int = 0) -> None:
        """Policies may not send it back: until then, or (0) as long as it runs."""
        if until_us:
            self._placer.book.pins[job] = until_us
            self._desk.after(PIN_US / 1e6 + 0.1, self._placer.wake)
        self._placer.tell(state, "job_pinned", job, True, partition)

    def _unpin(self, state: ClusterState, now_us: int) -> None:
        pins = self._placer.book.pins
        for job in [job for job, until_us in pins.items() if until_us <= now_us]:
            del pins[job]
            placed = self._placer.book.placed.get(job)
            if placed is not None and job in state.partitions[placed.partition].pinned and self._placer.may_move(job):
                self._placer.tell(state, "job_pinned", job, False, placed.partition)
                self._placer.because(Cause.TIMER)
