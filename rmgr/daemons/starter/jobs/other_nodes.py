"""The other nodes of a job whose script runs here: ready before it starts, watched while it runs, asked when it has ended badly.

    start    the head takes its own cores (a seat), so that nothing pulled gets between, and asks each helper's Starter over gRPC; the block
             goes back to its queue if the start is not complete within the cluster's `barrier_us`
    running  a node that was fenced, or where all work was killed, is lost to its job. The leader reports nodes that it fences. It does not
             notice a Starter that died and came back before that; only the node's record shows the new life. So the node that runs the
             script watches the records of the job's other nodes
    bad end  by itself, or because the system lost some of its ranks? A process that waits for ranks on a dying node learns of it before
             the cluster does, and fails. So a bad end is committed only after all other nodes of the job have answered that they are
             unchanged. It is NODE_LOST, whatever the exit code, if a node has died, was fenced or stays silent, or if the system ended
             ranks there (`Door.lost`)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.tree import SELDOM_S, WatchedZnode, record_of, settle_again
from rmgr.daemons.starter.staging.outputs import Ending
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.tasks.block import BlockKey, run_label, story_line
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: Pause before a helper that could not be asked is asked again.
_AGAIN_S = 0.2
#: A start that takes longer tells in the block which nodes it waits for.
_TELL_S = 1.0
#: Ends that a lost node may have caused.
_DOUBTFUL = frozenset({Reason.EXIT_CODE, Reason.SIGNAL, Reason.EXCEPTION})
#: Longest time of one question, pause before the next, and silence after which a node counts as lost. Time without ZooKeeper does not
#: count, since the end could not be committed then.
_ASK_S, _PAUSE_S, _LONGEST_S = 2.0, 0.5, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Answer of a node that was ready: the life in which it has the job's cores, and its incarnation then (0 if not given).

    endpoint: of its Starter, which keeps it as long as it lives: another endpoint means another life.
    """

    life: str
    incarnation: int
    endpoint: str = ""

    def is_broken(self, record: NodeRecord | None) -> bool:
        """Returns whether `record` (None if absent) breaks the promise. A record older than the promise, from a server that lags, does not
        count."""
        if record is None:
            return True
        if record.incarnation < self.incarnation:
            return False
        is_another = bool(record.life) and record.life != self.life and record.incarnation > self.incarnation
        return record.state is NodeState.FENCED or is_another


def _request_promise(node: NodeAgent, block: ClaimedBlock, helper: str, endpoint: str, *, cores: int, timeout_s: float) -> Future[Promise]:
    """Asks the Starter at `endpoint`; the future is done once the job has its cores there. cores: 0 = any."""
    answer: Future[Promise] = Future()

    def answered(error: RmgrError | None, life: str, incarnation: int) -> None:
        with suppress(InvalidStateError):  # the question was given up
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(Promise(life=life, incarnation=incarnation, endpoint=endpoint))

    assert node.shared.peers is not None
    hold = run_label(block.key.submission, block.key.first, block.key.attempt)
    node.shared.peers.prepare(endpoint, helper, hold, head=node.name, cores=cores, timeout_s=timeout_s, done=answered)
    return answer


# -- before it starts ------------------------------------------------------------------------------------------------------


class _BegunAnewError(RmgrError):
    """The Starter that was asked is gone, and its answer would be awaited until the time is up."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Barrier:
    """The start of one block.

    asked: helpers being asked, with the record by which they were found; ready: promises of those that answered; lost: nodes lost since.
    """

    block: ClaimedBlock
    end_s: float
    asked: dict[str, tuple[NodeRecord, Future[Promise]]] = field(default_factory=dict)
    ready: dict[str, Promise] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    last: str = ""
    is_seated: bool = False  #: the head has got its cores
    tell_s: float = math.inf  #: when the block next says what it waits for
    told: tuple[str, ...] = ()  #: the nodes that the block names


class Barriers:
    """Starts of jobs whose script this node runs."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._open: dict[BlockKey, _Barrier] = {}
        self._lookouts = Lookouts(node, self._seen)

    def may_start(self, block: ClaimedBlock) -> bool:
        """Returns whether all its nodes are ready; asks those that are not. Raises: OSError if no slot can be opened."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers:
            return True
        now_s = machine.monotonic()
        barrier = self._open.get(block.key)
        if barrier is None:
            barrier = self._open[block.key] = _Barrier(block=block, end_s=now_s, tell_s=now_s + _TELL_S)
            self._shared.after(_TELL_S, settle_again)
            self._lookouts.begin(block)
        self._sit_down(block)
        if not barrier.is_seated:  # its time begins when the head has room: until then another job may be leaving
            limit_s = self._shared.settings().barrier_us / 1e6
            barrier.end_s, barrier.is_seated = now_s + limit_s, block.seat is not None
            if barrier.is_seated:
                self._shared.after(limit_s, settle_again)
        waiting = [node for node, _ in allocation.helpers if node not in barrier.ready]
        if not waiting and block.seat is not None:
            if not self._node.jobs.checkpoints.restores.is_everywhere(block):
                return False
            self._stand_up(block)
            return True
        if now_s >= barrier.end_s:
            why = f"not ready in time: {', '.join(waiting) or block.node}{f' ({barrier.last})' if barrier.last else ''}"
            self._node.log.warning("start_revoked", block=paths.block_name(block.key), why=why)
            self._node.giving.revoke(block)
        else:
            for helper in waiting:
                self._node.jobs.stories.begin(self._prepare(barrier, helper), key=("prepare", block, helper))
            if now_s >= barrier.tell_s:
                self._tell(barrier, waiting, now_s)
        return False

    def _prepare(self, barrier: _Barrier, helper: str) -> Story[None]:
        """Asks a helper until its cores are free for the job."""
        allocation = barrier.block.data.allocation
        assert allocation is not None
        cores = next(count * allocation.threads for node, count in allocation.helpers if node == helper)
        while self._open.get(barrier.block.key) is barrier and machine.monotonic() < barrier.end_s:
            try:
                record: NodeRecord | None = yield from record_of(self._shared.coordinator, helper)
                if record is None or self._shared.peers is None or not record.endpoint:
                    raise RmgrError(f"node {helper} has no Starter that could be asked")
                failpoint("starter.before_prepare")
                left_s = max(0.1, barrier.end_s - machine.monotonic())
                answer = _request_promise(self._node, barrier.block, helper, record.endpoint, cores=cores, timeout_s=left_s)
                barrier.asked[helper] = record, answer
                barrier.ready[helper] = yield answer
                return
            except _BegunAnewError:
                continue
            except RmgrError as error:
                barrier.last = error.message
            finally:
                barrier.asked.pop(helper, None)
            yield Pause(_AGAIN_S)

    def _seen(self, block: ClaimedBlock, helper: str, record: NodeRecord | None) -> None:
        """Takes the record of one of its nodes."""
        barrier = self._open.get(block.key)
        if barrier is None or barrier.block is not block or helper in barrier.lost:
            return
        promise, is_fenced = barrier.ready.get(helper), record is None or record.state is NodeState.FENCED
        asked, answer = barrier.asked.get(helper, (None, None))
        if record is not None and asked is not None and record.incarnation > asked.incarnation and record.endpoint != asked.endpoint:
            assert answer is not None
            with suppress(InvalidStateError):
                answer.set_exception(_BegunAnewError(f"node {helper} has begun anew"))
        if not (is_fenced if promise is None else promise.is_broken(record)):
            return
        if is_fenced or not block.ready:
            barrier.lost.add(helper)
            why = "it was fenced" if is_fenced else "what ran there was killed"
            self._node.log.warning("job_lost_a_node", block=paths.block_name(block.key), target=helper, why=why)
            self._node.jobs.lose(block, helper)
        else:  # nothing of it has started: the node may be ready again in time
            self._node.log.info("node_asked_again", block=paths.block_name(block.key), target=helper)
            del barrier.ready[helper]

    def _tell(self, barrier: _Barrier, waiting: list[str], now_s: float) -> None:
        """Writes into the block which nodes the start waits for, whenever they change, so that any leader can report it."""
        block = barrier.block
        awaited = tuple(waiting) if block.seat is not None else (block.node, *waiting)
        barrier.tell_s = now_s + _TELL_S
        if awaited == barrier.told:
            return
        barrier.told = awaited
        parts = [f"{', '.join(waiting)} to say that its cores are free for it"] if waiting else []
        parts += [f"cores of {block.node}"] if block.seat is None else []
        last = f" ({' '.join(barrier.last.split())})" if barrier.last and waiting else ""
        self._node.notes.tell(block, "", awaits=story_line(f"{' and '.join(parts) or 'its files'}{last}"))

    def promise_of(self, block: ClaimedBlock, helper: str) -> Promise | None:
        """Returns the promise of a node that is ready, else None."""
        barrier = self._open.get(block.key)
        return barrier.ready.get(helper) if barrier is not None else None

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is over, or no longer the node's own."""
        self._lookouts.end(block)
        barrier = self._open.get(block.key)
        if barrier is not None and barrier.block is block:
            del self._open[block.key]
        self._stand_up(block)

    # -- the head's own cores ----------------------------------------------------------------------------------------------

    def _sit_down(self, block: ClaimedBlock) -> None:
        if block.seat is None or block.seat.owner is not block:
            part = self._node.jobs.gangs.label(block)
            block.seat = self._node.lanes.open_for(block.info, None, *self._node.lanes.size_of(block), part=part)
            if block.seat is not None:
                block.seat.owner = block

    def _stand_up(self, block: ClaimedBlock) -> None:
        seat, block.seat = block.seat, None
        if seat is not None and seat.owner is block:
            self._node.lanes.give_up(seat)


# -- while it runs ---------------------------------------------------------------------------------------------------------


class Lookouts:
    """Watches on records of nodes. Cost: one for each node, however many jobs have a part there.

    Args:
        tell: called with (job, node, its record or None) in the owner's thread, whenever the record was read.
    """

    def __init__(self, node: NodeAgent, tell: Callable[[ClaimedBlock, str, NodeRecord | None], None]) -> None:
        self._shared = node.shared
        self._log = node.log
        self._tell = tell
        self._watches: dict[str, WatchedZnode[Stamped | None]] = {}
        self._jobs: dict[str, list[ClaimedBlock]] = {}

    def begin(self, block: ClaimedBlock) -> None:
        """Watches the other nodes of a job."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            self._jobs.setdefault(node, []).append(block)
            if node not in self._watches:
                get, path, aside = self._shared.coordinator.get, paths.node(node), self._shared.aside
                self._watches[node] = WatchedZnode(get, path, self._on_record, node, loop=self._shared, aside=aside, resync_s=SELDOM_S)
                self._watches[node].start()

    def end(self, block: ClaimedBlock) -> None:
        """Ends the watches of a job."""
        allocation = block.data.allocation
        for node, _ in allocation.helpers if allocation is not None else ():
            left = [other for other in self._jobs.get(node, ()) if other is not block]
            if left:
                self._jobs[node] = left
            elif node in self._jobs:
                del self._jobs[node]
                self._watches.pop(node).stop()

    def _on_record(self, node: str, found: Stamped | None) -> None:
        try:
            record = decode_record(found.data, NodeRecord, node) if found is not None else None
        except RmgrError as error:
            self._log.warning("node_record_unreadable", target=node, error=error.message)
            return
        for block in list(self._jobs.get(node, ())):
            self._tell(block, node, record)


# -- when it ends badly ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class _Case:
    """One end that is not yet reported. tell: reports `ending` as it is then. left: nodes that have not answered."""

    block: ClaimedBlock
    ending: Ending
    tell: Callable[[], None]
    left: set[str]
    end_s: float
    is_decided: bool = False


class Verdicts:
    """Ends of jobs whose script one node runs."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._open: dict[ClaimedBlock, _Case] = {}

    def is_awaited(self, block: ClaimedBlock, ending: Ending, tell: Callable[[], None]) -> bool:
        """Returns True if `tell` is called later, with what is known then in `ending`."""
        allocation = block.data.allocation
        if allocation is None or not allocation.helpers or ending.reason not in _DOUBTFUL or self._shared.peers is None:
            return False
        if block.cancel_words(block.key.first) is not None:
            return False
        helpers = {node for node, _ in allocation.helpers}
        end_s = machine.monotonic() + _LONGEST_S
        case = self._open[block] = _Case(block=block, ending=ending, tell=tell, left=helpers, end_s=end_s)
        for helper in sorted(helpers):
            self._node.jobs.stories.begin(self._question(case, helper))
        return True

    def _question(self, case: _Case, helper: str) -> Story[None]:
        """Asks a node until it is known to be unchanged or another one, or was silent for too long."""
        jobs = self._node.jobs
        while not case.is_decided:
            try:
                record: NodeRecord | None = yield from record_of(self._shared.coordinator, helper)
            except RmgrError:
                case.end_s = max(case.end_s, machine.monotonic() + _LONGEST_S)
                record, is_known = None, False
            else:
                is_known = True
            if case.is_decided:
                return
            if is_known:
                promise = jobs.barriers.promise_of(case.block, helper)
                if record is None or (record.state is NodeState.FENCED if promise is None else promise.is_broken(record)):
                    self._decide(case, helper)
                    return
                try:
                    now: Promise = yield _request_promise(self._node, case.block, helper, record.endpoint, cores=0, timeout_s=_ASK_S)
                except RmgrError:
                    if not case.is_decided and jobs.lost_ranks(case.block):  # this is known, whatever the node would answer
                        self._decide(case, "")
                else:
                    if not case.is_decided:
                        self._on_promise(case, helper, now)
                    return
            if not case.is_decided and machine.monotonic() >= case.end_s:
                self._decide(case, helper)
            yield Pause(_PAUSE_S)

    def _on_promise(self, case: _Case, helper: str, now: Promise) -> None:
        promise = self._node.jobs.barriers.promise_of(case.block, helper)
        if promise is not None and now.life != promise.life:  # all work there was killed meanwhile
            self._decide(case, helper)
            return
        case.left.discard(helper)
        if not case.left:
            self._decide(case, "")

    def lose(self, block: ClaimedBlock, node: str) -> bool:
        """Takes the loss of a node, as reported by the cluster. False: the job's end is not awaited."""
        case = self._open.get(block)
        if case is None:
            return False
        self._decide(case, node)
        return True

    def cancelled(self, block: ClaimedBlock) -> None:
        """Decides at once for a job that its user has cancelled."""
        case = self._open.get(block)
        if case is not None:
            self._decide(case, "")

    def __len__(self) -> int:
        """Number of awaited ends."""
        return len(self._open)

    def forget(self, block: ClaimedBlock) -> None:
        """Forgets a block that is no longer the node's own."""
        case = self._open.pop(block, None)
        if case is not None:
            case.is_decided = True

    def _decide(self, case: _Case, lost: str) -> None:
        case.is_decided = True
        self._open.pop(case.block, None)
        if why := f"node {lost} was lost" if lost else self._node.jobs.lost_ranks(case.block):
            name = paths.block_name(case.block.key)
            self._node.log.warning("job_lost_a_node", block=name, target=lost, why=why, exit_code=case.ending.exit_code)
            case.ending.reason, case.ending.error = Reason.NODE_LOST, f"{why} ({case.ending.error})"
        case.tell()
