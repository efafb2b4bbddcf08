"""The start of a job on several nodes: its script starts when every helper has said that it is ready, or the job goes back.

The head takes its own cores first (a seat), so that nothing pulled gets between; asks each helper's Starter over gRPC; and
gives the block back to its queue when the start is not complete within the cluster's `barrier_us`.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.jobs.lookout import Lookouts, PeerServices, Promise
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.tasks.block import STORY_CHARS, BlockKey
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.checkpoint.checkpoint import Checkpoints
    from rmgr.daemons.starter.core.doors import TreeAccess
    from rmgr.daemons.starter.execution.gangs import Gangs
    from rmgr.daemons.starter.execution.lanes import Lanes

#: Pause before a helper that could not be asked is asked again.
_PAUSE_S = 0.2
#: A start that takes longer is told in the block: which nodes it waits for.
_TELL_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Barrier:
    """The start of one block.

    asked: helpers that are being asked, and by which record they were found (None: it is being read); ready: what those that answered
    have promised; lost: who was lost since.
    """

    block: ClaimedBlock
    end_s: float
    asked: dict[str, NodeRecord | None] = field(default_factory=dict)
    ready: dict[str, Promise] = field(default_factory=dict)
    retry_s: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    last: str = ""
    is_seated: bool = False  #: the head had its cores
    tell_s: float = math.inf  #: when people are told next what it waits for
    told: tuple[str, ...] = ()  #: the nodes that they were told of


class BarrierNode(Protocol):
    """The node that runs the job's script."""

    name: str
    lanes: Lanes

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives the block back to its queue."""
        ...


class BarredJobs(Protocol):
    """The jobs that wait for their other nodes."""

    checkpoints: Checkpoints
    gangs: Gangs

    def lose(self, block: ClaimedBlock, node: str) -> None:
        """A node of its allocation is gone."""
        ...


class Barriers:
    """Starts of jobs whose script this node runs."""

    def __init__(self, node: BarrierNode, jobs: BarredJobs, tree: TreeAccess, shared: PeerServices, log: Log) -> None:
        self._node = node
        self._jobs = jobs
        self._tree = tree
        self._shared = shared
        self._log = log
        self._open: dict[BlockKey, _Barrier] = {}
        self._lookouts = Lookouts(tree, log, self._seen)

    def may_start(self, block: ClaimedBlock) -> bool:
        """All its nodes are ready; sees to it that they get ready. Raises: OSError when no slot can be opened."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers:
            return True
        now_s = machine.monotonic()
        barrier = self._open.get(block.key)
        if barrier is None:
            barrier = self._open[block.key] = _Barrier(block=block, end_s=now_s, tell_s=now_s + _TELL_S)
            self._tree.after(_TELL_S, self._tree.wake)
            self._lookouts.begin(block)
        self._sit_down(block)
        if not barrier.is_seated:  # its time begins when its head has room: another job may still be giving that up
            limit_s = self._shared.settings().barrier_us / 1e6
            barrier.end_s, barrier.is_seated = now_s + limit_s, block.seat is not None
            if barrier.is_seated:
                self._tree.after(limit_s, self._tree.wake)
        waiting = [node for node, _ in allocation.helpers if node not in barrier.ready]
        if not waiting and block.seat is not None and not block.is_revoked:
            if not self._jobs.checkpoints.restores.is_everywhere(block):
                return False
            self._stand_up(block)
            return True
        if block.is_revoked:
            self._node.return_unstarted(block)
        elif now_s >= barrier.end_s:
            block.is_revoked = True
            why = f"not ready in time: {', '.join(waiting) or block.node}{f' ({barrier.last})' if barrier.last else ''}"
            self._log.warning("start_revoked", block=paths.block_name(block.key), why=why)
            self._node.return_unstarted(block)
        else:
            for helper in waiting:
                if helper not in barrier.asked and now_s >= barrier.retry_s.get(helper, -math.inf):
                    self._ask(barrier, helper)
            if now_s >= barrier.tell_s:
                self._tell(barrier, waiting, now_s)
        return False

    def _tell(self, barrier: _Barrier, waiting: list[str], now_s: float) -> None:
        """Writes down which nodes the start waits for, whenever they are others, so that whoever leads can say it."""
        block = barrier.block
        awaited = tuple(waiting) if block.seat is not None else (block.node, *waiting)
        barrier.tell_s = now_s + _TELL_S
        if awaited == barrier.told:
            return
        barrier.told = awaited
        parts = [f"{', '.join(waiting)} to say that its cores are free for it"] if waiting else []
        parts += [f"cores of {block.node}"] if block.seat is None else []
        last = f" ({' '.join(barrier.last.split())})" if barrier.last and waiting else ""
        self._jobs.checkpoints.notes.tell(block, "", awaits=f"{' and '.join(parts) or 'its files'}{last}"[:STORY_CHARS])

    def promise_of(self, block: ClaimedBlock, helper: str) -> Promise | None:
        """What that node said when it was ready."""
        barrier = self._open.get(block.key)
        return barrier.ready.get(helper) if barrier is not None else None

    def forget(self, block: ClaimedBlock) -> None:
        """The block is over, or not the node's own any more."""
        self._lookouts.end(block)
        barrier = self._open.get(block.key)
        if barrier is not None and barrier.block is block:
            del self._open[block.key]
        self._stand_up(block)

    # -- the head's own cores ----------------------------------------------------------------------------------------------

    def _sit_down(self, block: ClaimedBlock) -> None:
        if block.seat is None or block.seat.owner is not block:
            part = self._jobs.gangs.label(block)
            block.seat = self._node.lanes.open_for(block.info, None, *self._node.lanes.size_of(block), part=part)
            if block.seat is not None:
                block.seat.owner = block

    def _stand_up(self, block: ClaimedBlock) -> None:
        seat, block.seat = block.seat, None
        if seat is not None and seat.owner is block:
            self._node.lanes.give_up(seat)

    # -- the helpers -------------------------------------------------------------------------------------------------------

    def _ask(self, barrier: _Barrier, helper: str) -> None:
        barrier.asked[helper] = None
        future = self._tree.coordinator.get(paths.node(helper))
        future.add_done_callback(lambda done: self._tree.post(partial(self._found, barrier, helper, done)))

    def _found(self, barrier: _Barrier, helper: str, done: Future[Stamped | None]) -> None:
        peers = self._shared.peers
        try:
            found = done.result()
            record = decode_record(found.data, NodeRecord, helper) if found is not None else None
        except RmgrError as error:
            self._answered(barrier, helper, error)
            return
        if record is None or peers is None or not record.endpoint:
            self._answered(barrier, helper, RmgrError(f"node {helper} has no Starter that could be asked"))
            return
        barrier.asked[helper] = record
        key, allocation = barrier.block.key, barrier.block.data.allocation
        assert allocation is not None
        cores = next(count * allocation.threads for node, count in allocation.helpers if node == helper)
        left_s = max(0.1, barrier.end_s - machine.monotonic())
        failpoint("starter.before_prepare")

        def answered(error: RmgrError | None, life: str, incarnation: int) -> None:
            promise = Promise(life=life, incarnation=incarnation, endpoint=record.endpoint)
            self._tree.post(partial(self._heard, barrier, helper, record, error, promise))

        hold = f"{key.submission}.{key.first}.{key.attempt}"
        peers.prepare(record.endpoint, helper, hold, head=self._node.name, cores=cores, timeout_s=left_s, done=answered)

    def _heard(self, barrier: _Barrier, helper: str, asked: NodeRecord, error: RmgrError | None, promise: Promise) -> None:
        if barrier.asked.get(helper) is asked:  # else somebody else has been asked since
            self._answered(barrier, helper, error, promise)

    def _answered(self, barrier: _Barrier, helper: str, error: RmgrError | None, promise: Promise | None = None) -> None:
        barrier.asked.pop(helper, None)
        if promise is not None and error is None:
            barrier.ready[helper] = promise
        else:
            barrier.last = error.message if error is not None else ""
            barrier.retry_s[helper] = machine.monotonic() + _PAUSE_S
            self._tree.after(_PAUSE_S, self._tree.wake)
        self._tree.wake()

    def _seen(self, block: ClaimedBlock, helper: str, record: NodeRecord | None) -> None:
        """The record of one of its nodes was read."""
        barrier = self._open.get(block.key)
        if barrier is None or barrier.block is not block or helper in barrier.lost:
            return
        promise, is_fenced = barrier.ready.get(helper), record is None or record.state is NodeState.FENCED
        asked = barrier.asked.get(helper)
        if record is not None and asked is not None and record.incarnation > asked.incarnation and record.endpoint != asked.endpoint:
            del barrier.asked[helper]  # who was asked is not there any more, and would be waited for until the time is up
            self._tree.wake()
        if not (is_fenced if promise is None else promise.is_broken(record)):
            return
        if is_fenced or not block.ready:
            barrier.lost.add(helper)
            why = "it was fenced" if is_fenced else "what ran there was killed"
            self._log.warning("job_lost_a_node", block=paths.block_name(block.key), target=helper, why=why)
            self._jobs.lose(block, helper)
        else:  # nothing of it has started: the node may be ready again in time
            self._log.info("node_asked_again", block=paths.block_name(block.key), target=helper)
            del barrier.ready[helper]
        self._tree.wake()
