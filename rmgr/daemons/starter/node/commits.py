"""What a node commits for its blocks: COMPLETE for ended tasks, SPLIT and RETURN of what it gives back, NOTE and STOP of placed jobs.

Ends of placed jobs go together (`Joint`); each other block has its own commit, with long outcomes in a row of the store. A block whose
commit has met something unexpected is read again (`Completing.reread`). Claims of the node that were deleted from outside are put back
(`DeletedClaims`).
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord import validity
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stamped
from rmgr.coord.protocol.records import brief
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock, CompletePart, PendingNote, Return, split_share
from rmgr.daemons.starter.core.tree import IdleStage
from rmgr.daemons.starter.execution.dispatch import words_of
from rmgr.daemons.starter.pull.hands import News
from rmgr.errors import RmgrError
from rmgr.model.block import MAX_INLINE_OUTCOMES, MAX_STORY, BlockData, Fragment, PastAttempt, has_begun, story_line
from rmgr.model.block import Outcome as Ended
from rmgr.model.units import utc
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.submissions import Gate
    from rmgr.daemons.starter.node.node import NodeAgent

#: Most jobs of one commit, and bytes of their outcomes.
MOST, MOST_BYTES = 40, MAX_INLINE_OUTCOMES * 2 // 3
#: Ends of jobs shorter than `SHORT_S` gather for this long while others run.
SHORT_S, GATHER_S = 0.02, 0.01
#: Size of an outcome's fields besides its bytes.
_FIELDS_BYTES = 100
#: Pause before a block is read again after a failed read, and before a commit that could not be built is built again.
_REREAD_S = 0.5
#: Pause between two looks for deleted claims: the leader ends tasks that are nowhere after 8 s or more (`leader/submissions/sweep.py`).
_LOOK_S = 3.0
#: A tail is given to a hungry node only if the waiting work would last longer than this.
_SPLIT_WORTH_S = 0.03
#: Nodes with work to give wait up to this long, each a different time, so that not all answer one hungry node.
_STAGGER_S = 0.02
#: Pause before a NOTE or STOP that could not be committed is tried again.
_NOTE_PAUSE_S = 0.1


class Completing:
    """Commits the ends of one node."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._joint = Joint(node)

    def settle(self, now_s: float) -> float:
        """Commits what is due. Returns when it must be called without a new fact (monotonic), inf = never. Cost: O(blocks)."""
        raised: Exception | None = None
        try:
            rest = self._joint.flush(now_s)
        except Exception as error:  # noqa: BLE001 - the boundary of jobs: all others are committed
            rest, raised = [block for block in self._node.blocks.values() if block.sending is None], error
        next_s = self._joint.due_s
        for block in rest:
            try:
                next_s = min(next_s, self._settle(block, now_s))
            except Exception as error:  # noqa: BLE001 - the boundary of one block: all others are committed
                if self.mend(block, error, now_s):
                    next_s = now_s
                else:
                    raised = error
        if raised is not None:
            raise raised
        return next_s

    def mend(self, block: ClaimedBlock, error: Exception, now_s: float) -> bool:
        """Handles a COMPLETE that could not be built: ends that cannot be encoded become FAILED. False: there is none; the commit is
        repeated."""
        part = block.sending
        if isinstance(part, CompletePart):
            self._node.orders.released(part.orders)
            if part.go_idle:
                self._node.idle.answered(stands=False)
        self._shared.aside.add(paths.running_block(self._node.name, block.key), None, error)
        return block.mend(f"its end cannot be written down: {words_of(error)}", now_s)

    def _settle(self, block: ClaimedBlock, now_s: float) -> float:
        due_s = block.due_s(task_s=self._shared.times.of(block.kind), slots=max(1, self._node.lanes.cores // block.key.cores))
        if due_s is None:
            return math.inf
        if due_s > now_s:
            return due_s
        part = block.take_part()
        if part.row:
            self._node.stories.begin(self.complete_by_row(block, part))
        else:
            self.complete(block, part)
        return math.inf

    def complete_by_row(self, block: ClaimedBlock, part: CompletePart) -> Story[None]:
        error: Exception | None = None
        try:
            yield self._shared.io.answer(lambda store: store.put(part.row, part.row_bytes), size=len(part.row_bytes))
        except Exception as found:  # noqa: BLE001 - whatever it is, what has ended is not forgotten
            error = found
        if self._node.blocks.get(block.key) is not block or block.sending is not part:
            return
        if error is None and self._shared.committer.may_commit:
            try:
                self.complete(block, part)
                return
            except Exception as found:  # noqa: BLE001 - the boundary of one block
                error = found
            yield Pause(_REREAD_S)  # otherwise its row would be written again and again
            if self._node.blocks.get(block.key) is block and block.sending is part:
                now_s = machine.monotonic()
                if not self.mend(block, error, now_s):
                    self._node.failed(error, now_s)
            return
        if error is not None:
            self._node.strike("fragment_not_stored", str(error))
        block.refused(machine.monotonic())

    def complete(self, block: ClaimedBlock, part: CompletePart) -> None:
        part.orders = self._node.orders.obeyed_by(block, part.indices)
        part.go_idle = self._node.puller.is_hungry and self._node.idle.goes(IdleStage.SETTING)
        sign = self._shared.gate.sign if self._shared.gate is not None else None
        multi = block.complete(part, self._shared.committer.fence(self._node.name), machine.guid()[:12], sign=sign)
        failpoint("starter.before_complete")
        news = News.of(block, multi)
        early = news.told if news is not None else None
        self._shared.committer.commit(multi, lambda outcome: self.completed([(block, part)], outcome), early=early)
        if news is not None:
            news.ahead()
        self._node.hands.watch_ahead(sets_mark=part.go_idle, is_hinted=news is not None)

    def completed(self, some: Sequence[tuple[ClaimedBlock, CompletePart]], outcome: Outcome) -> None:
        """Takes the answer to a COMPLETE of these blocks, the first of which carried the mark."""
        if some[0][1].go_idle:
            self._node.idle.answered(stands=stands_after(self._node, outcome))
        if not isinstance(outcome, Committed):
            assert isinstance(outcome, Conflict)
            self.refused([(block, part.orders) for block, part in some], outcome)
            return
        failpoint("starter.after_complete")
        self._shared.metrics.committed(sum(len(part.outcomes) for _, part in some), sum(len(part.failed) for _, part in some))
        for block, part in some:
            block.committed()
            self._node.orders.settled(part.orders)
            if block.is_over:
                self._node.over(block)

    def refused(self, some: Sequence[tuple[ClaimedBlock, Sequence[str]]], conflict: Conflict) -> None:
        """Handles the conflict of a COMPLETE or SPLIT of blocks, with orders: the mark, an order that is gone, or an unexpected block.

        What the others carried goes with the next commit.
        """
        node, path, now_s = self._node, conflict.path, machine.monotonic()
        gone = {paths.inbox(node.name, guid): guid for _, orders in some for guid in orders}.get(path)
        is_lost = path.startswith(f"{paths.sub(some[0][0].key.submission)}/")
        odd = [block for block, _ in some if paths.running_block(node.name, block.key) == path]
        if gone is None and not odd and path != paths.idle(node.name):
            odd = [block for block, _ in some]
        for block, orders in some:
            node.orders.released(orders)
            if is_lost:
                discard(node, block, conflict)
            elif block in odd:
                block.way_back_barred(now_s)
                self.reread(block, conflict)
            else:
                block.refused(now_s)
        if gone is not None:
            node.orders.gone(gone)

    def reread(self, block: ClaimedBlock, conflict: Conflict) -> None:
        """Reads an unexpected block again from its znode; if that is gone, another process has decided its fate."""
        self._node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
        self._node.stories.begin(self._reread(block), key=("reread", block))

    def _reread(self, block: ClaimedBlock) -> Story[None]:
        name = paths.block_name(block.key)
        while True:
            self._shared.metrics.resyncs.inc()
            try:
                found: Stamped | None = yield self._shared.coordinator.get(paths.running_block(self._node.name, block.key))
                break
            except RmgrError:
                yield Pause(_REREAD_S)
            if not self._is_ours(block):
                return
        if not self._is_ours(block):
            return
        try:
            data = validity.decode(found.data, BlockData, name) if found is not None else None
        except RmgrError as error:  # as at a registration: no commit of it would be believed
            self._node.log.error("block_unreadable", block=name, error=error.message)
            data = None
        if found is None or data is None:
            self._node.drop_block(block)
            return
        block.reread(data, found.version, machine.monotonic())
        if block.is_over:
            self._node.over(block)

    def _is_ours(self, block: ClaimedBlock) -> bool:
        return self._node.blocks.get(block.key) is block and self._shared.committer.is_registered


# -- ends of placed jobs ---------------------------------------------------------------------------------------------------
# Ends of placed jobs are committed together: while a COMPLETE of a submission is in flight, its new ends wait for the next one. A placed
# job is a block of its own, so each would need its own commit, fragment and signature, and its own read by every follower of the
# submission. A single job waits for nothing; if other short jobs of its submission run, their ends gather.


class Joint:
    """Joint commits of one node. due_s: when `flush` must be called without a new fact (monotonic), inf = never."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.due_s = math.inf

    def flush(self, now_s: float) -> list[ClaimedBlock]:
        """Commits the ends of jobs; returns the blocks that need a commit of their own. Cost: O(blocks)."""
        rest: list[ClaimedBlock] = []
        ready: dict[tuple[int, int], list[ClaimedBlock]] = {}
        flying: set[tuple[int, int]] = set()
        running: set[tuple[int, int]] = set()
        for block in self._node.blocks.values():
            sending = block.sending
            if sending is None and not (block.arrived or block.failed):
                if block.live and block.is_placed:
                    running.add((block.key.submission, block.key.attempt))
                continue  # nothing to commit
            if not block.is_placed:
                rest.append(block)
            elif isinstance(sending, CompletePart):
                if not sending.row:
                    flying.add((block.key.submission, block.key.attempt))
            elif _is_plain(block):
                ready.setdefault((block.key.submission, block.key.attempt), []).append(block)
            else:
                rest.append(block)
        self.due_s = math.inf
        for group, blocks in ready.items():
            if group in flying:
                continue
            due_s = self._due_s(blocks) if group in running and len(blocks) < MOST else -math.inf
            if due_s <= now_s:
                self._commit(blocks, now_s)
            else:
                self.due_s = min(self.due_s, due_s)
        return rest

    def _due_s(self, blocks: Sequence[ClaimedBlock]) -> float:
        """Returns when the ends go at the latest."""
        task_s = self._shared.times.of(blocks[0].kind)
        return min(block.arrived_s for block in blocks) + GATHER_S if task_s is not None and task_s < SHORT_S else -math.inf

    def _commit(self, blocks: Sequence[ClaimedBlock], now_s: float) -> None:
        some: list[tuple[ClaimedBlock, CompletePart]] = []
        size = 0
        for block in blocks[:MOST]:
            size += _size(block.arrived[0])
            if some and size > MOST_BYTES:
                break
            some.append((block, block.take_whole()))
        try:
            self._send(some)
        except Exception as error:
            mended = [self._node.completing.mend(block, error, now_s) for block, _ in some]
            if not any(mended):
                raise
            self.due_s = now_s

    def _send(self, some: Sequence[tuple[ClaimedBlock, CompletePart]]) -> None:
        base_us = min(block.base_us for block, _ in some)
        outcomes = tuple(_since(base_us, block, outcome) for block, part in some for outcome in part.outcomes)
        first, carrier = some[0][0].key, some[0][1]
        began = any(has_begun(outcome) for _, part in some for outcome in part.outcomes)
        fragment = Fragment(node=self._node.name, attempt=first.attempt, base_us=base_us if began else 0, outcomes=brief(outcomes))
        if self._shared.gate is not None:
            fragment = self._shared.gate.sign(first.submission, fragment)
        for block, part in some:
            part.orders = self._node.orders.obeyed_by(block, part.indices)
        carrier.go_idle = self._node.puller.is_hungry and self._node.idle.goes(IdleStage.SETTING)
        multi = place_ops.complete(
            self._node.name,
            self._shared.committer.fence(self._node.name),
            [(block.key, block.version) for block, _ in some],
            fragment,
            orders=[guid for _, part in some for guid in part.orders],
            go_idle=carrier.go_idle,
        )
        failpoint("starter.before_complete")
        self._shared.committer.commit(multi, lambda outcome: self._node.completing.completed(some, outcome))


def stands_after(node: NodeAgent, outcome: Outcome) -> bool:
    """Returns whether the idle mark stands after a multi that was to set it: the multi made it, or met it."""
    return isinstance(outcome, Committed) or (isinstance(outcome, Conflict) and outcome.path == paths.idle(node.name))


def discard(node: NodeAgent, block: ClaimedBlock, conflict: Conflict) -> None:
    """Drops a block whose submission cannot record its ends (it was collected, or no SUBMIT made it)."""
    node.log.warning("block_discarded", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
    commits = node.shared.committer
    commits.commit(ops.discard(node.name, commits.fence(node.name), block.key), lambda _: None)
    node.drop_block(block)


def _is_plain(block: ClaimedBlock) -> bool:
    """Returns whether the block is a job that has ended, with a small outcome."""
    one = block.sending is None and len(block.arrived) == block.key.count == 1
    return one and not (block.failed or block.unfinished or block.arrived[0].past) and _size(block.arrived[0]) <= MOST_BYTES


def _size(ended: Ended) -> int:
    text = len(ended.value) + len(ended.log[0]) + len(ended.log[1]) + len(ended.error) + sum(map(len, (*ended.helpers, *ended.story)))
    return _FIELDS_BYTES + text


def _since(base_us: int, block: ClaimedBlock, ended: Ended) -> Ended:
    """Returns the outcome with its start counted from `base_us`."""
    if block.base_us == base_us:
        return ended
    return msgspec.structs.replace(ended, started_us=ended.started_us + block.base_us - base_us)


# -- giving work back ------------------------------------------------------------------------------------------------------
# Work that has not begun goes back to its queue: half of a long tail for hungry nodes (SPLIT), and work that this node may not or
# cannot run (RETURN). The node may run nothing new while it drains; nothing of an ended submission, which is refused as if it came now;
# nothing signed with a key that was revoked since, whose fate the leader decides (`leader/submissions/subs.py`); and nothing of users
# whom the node cannot serve.


class Giving:
    """Gives back what one node does not need or may not run. given_s: when it last gave work to hungry nodes, -inf = never."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.given_s = -math.inf
        self._split_s: float | None = None
        self._gate_seen = 0

    # -- to hungry nodes -------------------------------------------------------------------------------------------------

    def has_tail(self) -> bool:
        """Returns whether the node has work for another node."""
        waiting = [block for block in self._node.blocks.values() if block.ready and not block.is_placed]
        if self._node.is_draining or not waiting:
            return False
        stalled = self._node.dispatch.is_stalled(machine.monotonic())
        return any(self._worth(block, stalled=stalled) for block in waiting)

    def _worth(self, block: ClaimedBlock, *, stalled: bool) -> bool:
        """Returns whether the block's waiting tasks would take long enough here."""
        if not block.ready or block.data.serial or block.is_placed or block.info.needs:
            return False  # a hungry node may lack its resources
        pace_s = self._node.pace(block)
        is_long = stalled or pace_s is None or len(block.ready) * pace_s > _SPLIT_WORTH_S
        return is_long and len(block.ready) > self._node.dispatch.kept(block)

    def split(self, hungry: frozenset[str], now_s: float) -> None:
        """Gives half of the largest tail back to the queue, where hungry nodes find it."""
        others = len(hungry) - (self._node.name in hungry)
        if not others or self._node.is_draining:
            self._split_s = None
            return
        stalled = self._node.dispatch.is_stalled(now_s)
        free = [block for block in self._node.blocks.values() if block.sending is None and block.tail(1)]
        long_waiting = [block for block in free if self._worth(block, stalled=stalled)]
        if not long_waiting:
            return
        if self._split_s is None:
            self._split_s = now_s + _STAGGER_S * (zlib.crc32(f"{self._node.name}{min(hungry)}".encode()) % 100) / 100
        if now_s < self._split_s:
            self._node.at(self._split_s)
            return
        self._split_s = now_s + _STAGGER_S
        self.given_s = now_s
        block = max(long_waiting, key=lambda one: (one.tail(256), one.key.sort_key()))
        count = split_share(min(block.tail(256), len(block.ready) - self._node.dispatch.kept(block)), others)
        self.give_back(block, count, name="SPLIT", held=False)

    # -- work that may not run here --------------------------------------------------------------------------------------

    def return_barred(self, *, is_draining: bool) -> None:
        """Gives back what may not begin; all that has not begun if `is_draining`. Cost: 1 us a block."""
        gate, blocks = self._shared.gate, list(self._node.blocks.values())
        if is_draining:
            self._node.dispatch.recall_all()
        if gate is not None and gate.generation != self._gate_seen:
            self._gate_seen = gate.generation
            self._doubt(gate, blocks)
        for block in blocks:
            if is_draining or block.goes_back:
                self.return_unstarted(block)

    def _doubt(self, gate: Gate, blocks: list[ClaimedBlock]) -> None:
        """Checks unstarted work again after a submission has ended or a key was revoked."""
        doubtful = [block for block in blocks if gate.has_ended(block) or gate.is_barred(block.seal, block.info)]
        for block in doubtful:
            self._node.dispatch.doubt(block)
            if gate.is_barred(block.seal, block.info):
                block.judge(BlockVerdict.BARRED)
        if doubtful:
            self._node.dispatch.recall_all()

    def return_refused(self) -> float:
        """Gives back unstarted work of users whom the node cannot serve; their slots are not reopened.

        Nothing starts for users who must be checked again: otherwise their waiting work would open one failing slot after another, and
        never wait long enough to be given back.
        Returns: seconds until the next necessary call, inf = when something changes.
        """
        users = self._node.accounts
        if users is None:
            return math.inf
        again_s, refused = users.settle(), users.refused
        if uncertain := users.uncertain:
            self._node.dispatch.withhold(uncertain)
        if not refused:
            return again_s
        self._node.ends.reopening.forget(refused)
        for block in list(self._node.blocks.values()):
            if block.ready and block.info.record.user in refused:
                self.revoke(block)
        return again_s

    def revoke(self, block: ClaimedBlock) -> None:
        """Gives back the unstarted tasks of a block whose start has failed or is impossible here."""
        block.judge(BlockVerdict.REVOKED)
        self.return_unstarted(block)

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives unstarted tasks of a block back to the queue."""
        if block.may_return(machine.monotonic()):
            self._node.stories.begin(self._return(block), key=("return", block))

    def _return(self, block: ClaimedBlock) -> Story[None]:
        try:
            held = (yield self._shared.coordinator.stat(paths.gate(block.key.submission))) is None
        except RmgrError:
            return
        if self._node.blocks.get(block.key) is not block or block.sending is not None:
            return
        if not (self._node.is_draining or block.goes_back):
            return
        count = block.tail(256)
        if count and self._shared.committer.may_commit:
            yield from self._give_back(block, count, name="RETURN", held=held)

    # -- the commit of both ----------------------------------------------------------------------------------------------

    def give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> None:
        """Gives back the last `count` waiting tasks as a block of their own. name: of the multi. held: the submission's gate is absent."""
        self._node.stories.begin(self._give_back(block, count, name=name, held=held))

    def _give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> Story[None]:
        for index in list(block.ready)[-count:]:
            self._node.stager.done(block, index)
        multi = block.give_back(count, self._shared.committer.fence(self._node.name), machine.guid()[:12], name=name, held=held)
        failpoint("starter.before_split")
        try:
            outcome: Outcome = yield self._shared.committer.outcome_of(multi)
        except RmgrError:  # it was not sent
            block.way_back_barred(machine.monotonic())
            block.refused(machine.monotonic())
            raise
        if isinstance(outcome, Committed):
            failpoint("starter.after_split")
            sent = block.committed()
            assert isinstance(sent, Return)
            self._shared.metrics.given_back.inc(sent.end - sent.first)
            if block.is_over:
                self._node.over(block)
            return
        assert isinstance(outcome, Conflict)
        self._node.completing.refused([(block, ())], outcome)


# -- placed jobs while they run --------------------------------------------------------------------------------------------
# Notes in the block of a placed job (NOTE), and the end of an attempt that is given up (STOP): one commit at a time for each block.


@dataclass(slots=True, kw_only=True, eq=False)
class _Wish:
    """A pending NOTE or STOP; its words are already in the block. past: of a STOP; None for a NOTE. moved: by a policy."""

    block: ClaimedBlock
    orders: list[str]
    past: PastAttempt | None = None
    moved: bool = False


class Notes:
    """Notes and stops of one node."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._waiting: dict[ClaimedBlock, deque[_Wish]] = {}  #: the first of each may be in flight

    def tell(
        self,
        block: ClaimedBlock,
        words: str,
        *,
        orders: Sequence[str] = (),
        stopping: str | None = None,
        awaits: str | None = None,
        saving: str | None = None,
    ) -> None:
        """Adds to the story of a job, and crosses off `orders` with it. stopping, awaits, saving: new values, None = unchanged."""
        data = block.data
        story = (*data.story, story_line(words))[-MAX_STORY:] if words else data.story
        stopping, awaits = data.stopping if stopping is None else stopping, data.awaits if awaits is None else awaits
        saving = data.saving if saving is None else saving
        block.data = msgspec.structs.replace(data, story=story, stopping=stopping, awaits=awaits, saving=saving)
        self._put(_Wish(block=block, orders=list(orders)))

    def give_up(self, block: ClaimedBlock, past: PastAttempt, words: str, orders: Sequence[str], *, moved: bool = False) -> None:
        """Commits a STOP: the job waits again. Its processes must be dead, its saved state in the store. moved: by a policy."""
        data = block.data
        block.data = msgspec.structs.replace(data, story=(*data.story, story_line(words))[-MAX_STORY:])
        self._put(_Wish(block=block, orders=list(orders), past=past, moved=moved))

    def carries(self, guid: str) -> bool:
        """Returns whether a pending commit will cross off the order."""
        return any(guid in wish.orders for wishes in self._waiting.values() for wish in wishes)

    def forget(self, block: ClaimedBlock) -> None:
        """Drops pending notes of a block that is no longer the node's."""
        self._waiting.pop(block, None)

    def reset(self) -> None:
        """Sends pending notes again after a new registration, since old answers are dropped."""
        for block in list(self._waiting):
            self._begin(block)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _put(self, wish: _Wish) -> None:
        self._waiting.setdefault(wish.block, deque()).append(wish)
        self._begin(wish.block)

    def _begin(self, block: ClaimedBlock) -> None:
        self._node.stories.begin(self._write(block, self._waiting[block]), key=("notes", block))

    def _write(self, block: ClaimedBlock, waiting: deque[_Wish]) -> Story[None]:
        """Commits the pending notes of a block, one after another."""
        while waiting:
            if block.sending is not None or not self._shared.committer.may_commit:
                yield Pause(_NOTE_PAUSE_S)
                if self._waiting.get(block) is not waiting:
                    return
                continue
            wish = waiting[0]
            try:
                outcome = yield from (self._note(wish) if wish.past is None else self._stop(wish, wish.past))
            except Exception:  # it was not sent: what else is committed of the block does not wait for it
                if isinstance(block.sending, PendingNote):
                    block.sending = None
                raise
            if self._waiting.get(block) is not waiting:
                return
            if isinstance(outcome, Committed):
                waiting.popleft()
                self._on_committed(wish)
                if self._waiting.get(block) is not waiting:  # a STOP ends the block
                    return
                continue
            if outcome is not None:
                self._refused(wish, outcome)
            if isinstance(block.sending, PendingNote):
                block.sending = None
            yield Pause(_NOTE_PAUSE_S)
            if self._waiting.get(block) is not waiting:
                return
        self._waiting.pop(block, None)

    def _note(self, wish: _Wish) -> Story[Committed | Conflict | None]:
        block = wish.block
        data = msgspec.structs.replace(block.data, stamp=machine.guid()[:12])
        block.sending = PendingNote(data=data)
        fence = self._shared.committer.fence(self._node.name)
        multi = place_ops.note(self._node.name, fence, block.key, data, block.version, orders=wish.orders)
        outcome: Committed | Conflict = yield self._shared.committer.outcome_of(multi)
        return outcome

    def _stop(self, wish: _Wish, past: PastAttempt) -> Story[Committed | Conflict | None]:
        """Commits a STOP; None if that is not possible now."""
        block = wish.block
        block.sending = PendingNote(data=block.data)
        try:
            held = (yield self._shared.coordinator.stat(paths.gate(block.key.submission))) is None
        except RmgrError:
            return None
        if self._node.blocks.get(block.key) is not block or not self._shared.committer.may_commit:
            return None
        multi, _ = place_ops.stop(
            self._node.name,
            self._shared.committer.fence(self._node.name),
            block.queue,
            block.key,
            block.data,
            block.version,
            past=past,
            stamp=machine.guid()[:12],
            held=held,
            moved=wish.moved,
            orders=wish.orders,
        )
        failpoint("starter.before_stop")
        outcome: Committed | Conflict = yield self._shared.committer.outcome_of(multi)
        return outcome

    def _on_committed(self, wish: _Wish) -> None:
        block = wish.block
        failpoint("starter.after_stop" if wish.past is not None else "starter.after_note")
        for guid in wish.orders:
            self._node.orders.gone(guid)
        if wish.past is None:
            block.committed()
        else:
            self._node.jobs.checkpoints.given_up(block)

    def _refused(self, wish: _Wish, conflict: Conflict) -> None:
        gone = next((guid for guid in wish.orders if conflict.path == paths.inbox(self._node.name, guid)), None)
        if gone is not None:
            wish.orders.remove(gone)
            self._node.orders.gone(gone)
            return
        self._node.completing.reread(wish.block, conflict)


# -- deleted claims --------------------------------------------------------------------------------------------------------
# Notices that another process has deleted a claim of this node from ZooKeeper, and puts it back while its work goes on. While its fence
# stands, only this node deletes its claims, by commits whose answers come before that of a later read. A claim that is missing while no
# such commit is in flight was deleted by hand, or lost when ZooKeeper was restored from an older state.


class DeletedClaims:
    """Compares the claims of one node with ZooKeeper. Cost: one request every `_LOOK_S` while anything is claimed."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._next_s = -math.inf

    def settle(self, now_s: float) -> None:
        """Compares when it is time."""
        if now_s >= self._next_s and self._node.blocks and self._node.stories.begin(self._look(), key="claims"):
            self._next_s = now_s + _LOOK_S

    def _look(self) -> Story[None]:
        known = [block for block in self._node.blocks.values() if block.sending is None]
        try:
            standing = frozenset((yield self._shared.coordinator.children(paths.running_node(self._node.name))) or ())
        except RmgrError:
            return
        for block in known:
            is_here = self._node.blocks.get(block.key) is block and block.sending is None and self._shared.committer.may_commit
            if is_here and paths.block_name(block.key) not in standing:
                self._node.stories.begin(self._put_back(block))

    def _put_back(self, block: ClaimedBlock) -> Story[None]:
        node, name = self._node.name, paths.block_name(block.key)
        what = f"{ops.CLAIM_WAS_GONE} at {utc(machine.wall_us())}, and node {node} put it back"
        data = msgspec.structs.replace(block.data, stamp=machine.guid()[:12], story=(*block.data.story, what)[-MAX_STORY:])
        block.sending = PendingNote(data=data)
        self._node.log.error("claim_was_gone", block=name)
        commits = self._shared.committer
        try:
            outcome: Outcome = yield commits.outcome_of(ops.put_back(node, commits.fence(node), block.key, data))
        except RmgrError:  # it was not sent
            block.sending = None
            raise
        if self._node.blocks.get(block.key) is not block:
            return
        if isinstance(outcome, Committed):
            block.version = -1  # a new znode: its first version is 0
            block.committed()
            self._node.log.warning("claim_put_back", block=name)
        elif isinstance(outcome, Conflict) and outcome.path == paths.running_block(node, block.key):
            block.refused(machine.monotonic())
            self._node.completing.reread(block, outcome)  # it stands after all
        else:  # the leader was faster, or the submission is gone
            self._node.log.warning("block_dropped", block=name, why="it was decided without us")
            self._node.drop_block(block)
