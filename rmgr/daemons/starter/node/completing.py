"""COMPLETE: commits what has ended of a node's blocks, and reads a block again whose commit met something else than expected.

Ends of placed jobs go together (`Joint`); those of other blocks each with its own commit, long ones through a row of the store. What
somebody else has deleted of a node's claims is put back (`DeletedClaims`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.decisions import keeping
from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stamped
from rmgr.coord.protocol.records import brief, decode_block
from rmgr.daemons.starter.core.blocks import ClaimedBlock, CompletePart, PendingNote
from rmgr.daemons.starter.execution.dispatch import words_of
from rmgr.daemons.starter.pull.hands import News
from rmgr.errors import RmgrError
from rmgr.model.base.units import utc
from rmgr.model.tasks.block import MAX_INLINE_OUTCOMES, MAX_STORY, Fragment, has_begun
from rmgr.model.tasks.block import Outcome as Ended
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: Jobs of one commit, and bytes of their outcomes.
MOST, MOST_BYTES = 40, MAX_INLINE_OUTCOMES * 2 // 3
#: Jobs that take less than `SHORT_S` let their ends gather for so long while others run.
SHORT_S, GATHER_S = 0.02, 0.01
#: What the fields of an outcome take beside its bytes.
_FIELDS_BYTES = 100
#: Between two looks: the leader ends what is nowhere after 8 s at the soonest (`leader/submissions/census.py`).
_LOOK_S = 3.0


class Completing:
    """The commits of one node's ends."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._joint = Joint(node)

    def settle(self, now_s: float) -> float:
        """Commits what is due. Returns when it is needed again without a new fact (monotonic), inf = never. Cost: O(blocks)."""
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
                self._shared.aside.add(paths.running_block(self._node.name, block.key), None, error)
                if not block.mend(f"its end cannot be written down: {words_of(error)}", now_s):
                    raised = error
        if raised is not None:
            raise raised
        return next_s

    def _settle(self, block: ClaimedBlock, now_s: float) -> float:
        due_s = block.due_s(task_s=self._shared.times.of(block.kind), slots=max(1, self._node.lanes.cores // block.key.cores))
        if due_s is None:
            return math.inf
        if due_s > now_s:
            return due_s
        part = block.take_part()
        if part.row:
            put, written = (lambda store: store.put(part.row, part.row_bytes)), partial(self._row_written, block, part)
            self._shared.io.run(put, written, size=len(part.row_bytes))
        else:
            self._complete(block, part)
        return math.inf

    def _row_written(self, block: ClaimedBlock, part: CompletePart, result: Exception | None) -> None:
        if self._node.blocks.get(block.key) is not block or block.sending is not part:
            return
        if isinstance(result, Exception):
            self._node.strike("fragment_not_stored", str(result))
            block.refused(machine.monotonic())
            return
        if self._shared.committer.may_commit:
            self._complete(block, part)
        else:
            block.refused(machine.monotonic())

    def _complete(self, block: ClaimedBlock, part: CompletePart) -> None:
        part.orders = self._node.orders.obeyed_by(block, part.indices)
        part.go_idle = self._node.puller.is_hungry and not self._node.idle.present and not self._node.idle.changing
        if part.go_idle:
            self._node.idle.changing = True
        gate = self._shared.gate
        seal = partial(gate.sign, block.key.submission) if gate is not None else lambda bare: bare
        multi = block.complete(part, self._shared.committer.fence(self._node.name), machine.guid()[:12], sign=seal)
        failpoint("starter.before_complete")
        news = News.of(block, multi)
        done = partial(self._completed, block, part)
        self._shared.committer.commit(multi, done, early=news.told if news is not None else None)
        if news is not None:
            news.ahead()
        self._node.hands.watch_ahead(sets_mark=part.go_idle, is_hinted=news is not None)

    def _completed(self, block: ClaimedBlock, part: CompletePart, outcome: Outcome) -> None:
        if part.go_idle:
            self._node.idle.changing = False
        if isinstance(outcome, Committed):
            failpoint("starter.after_complete")
            if part.go_idle:
                self._node.idle.present = True
            block.committed()
            self._node.orders.settled(block, part.indices, part.orders)
            self._shared.metrics.committed(len(part.outcomes), len(part.failed))
            if block.is_over:
                self._node.over(block)
            return
        assert isinstance(outcome, Conflict)
        self.refused(block, outcome, part.orders)

    def refused(self, block: ClaimedBlock, conflict: Conflict, orders: Sequence[str] = ()) -> None:
        """A COMPLETE or SPLIT met something: the mark, an order that is gone, or a block that is not what it should be."""
        now_s = machine.monotonic()
        self._node.orders.released(orders)
        if conflict.path == paths.idle(self._node.name):
            self._node.idle.present = True
            block.refused(now_s)
        elif any(conflict.path == paths.inbox(self._node.name, guid) for guid in orders):
            self._node.orders.gone(conflict.path.rpartition("/")[2])
            block.refused(now_s)
        elif conflict.path.startswith(f"{paths.sub(block.key.submission)}/"):
            discard(self._node, block, conflict)
        else:
            self._node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
            block.way_back_barred(now_s)
            self.reread(block)

    def reread(self, block: ClaimedBlock) -> None:
        """Takes the block from what its znode says; gone means: decided without us."""
        self._shared.metrics.resyncs.inc()
        self._node.stories.begin(self._reread(block), key=("reread", block))

    def _reread(self, block: ClaimedBlock) -> Story[None]:
        while self._node.blocks.get(block.key) is block and self._shared.committer.is_registered:
            try:
                found: Stamped | None = yield self._shared.coordinator.get(paths.running_block(self._node.name, block.key))
            except RmgrError:
                self._shared.metrics.resyncs.inc()
                continue
            if self._node.blocks.get(block.key) is not block or not self._shared.committer.is_registered:
                return
            if found is None:
                self._node.drop_block(block)
                return
            block.reread(decode_block(found.data), found.version, machine.monotonic())
            if block.is_over:
                self._node.over(block)
            return


# -- ends of placed jobs ---------------------------------------------------------------------------------------------------
# Ends of placed jobs committed together: what ends of one submission while a COMPLETE of it is in flight goes with the next. A placed job
# is a block of its own, so each would have its own commit, fragment and signature, and everybody who follows the submission its own read. A
# job alone waits for nobody; where others of its submission run, and such jobs are over in a moment, their ends gather.


class Joint:
    """The joint commits of one node. due_s: when `flush` is needed again without a new fact (monotonic), inf = never."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.due_s = math.inf

    def flush(self, now_s: float) -> list[ClaimedBlock]:
        """Commits the ends of jobs; returns the blocks whose ends are committed each by itself. Cost: O(blocks)."""
        rest: list[ClaimedBlock] = []
        ready: dict[tuple[int, int], list[ClaimedBlock]] = {}
        flying: set[tuple[int, int]] = set()
        running: set[tuple[int, int]] = set()
        for block in self._node.blocks.values():
            sending = block.sending
            if sending is None and not (block.arrived or block.failed):
                if block.live and block.is_placed:
                    running.add((block.key.submission, block.key.attempt))
                continue  # it has nothing to tell
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
                self._commit(blocks)
            else:
                self.due_s = min(self.due_s, due_s)
        return rest

    def _due_s(self, blocks: Sequence[ClaimedBlock]) -> float:
        """When they go at the latest."""
        task_s = self._shared.times.of(blocks[0].kind)
        return min(block.arrived_s for block in blocks) + GATHER_S if task_s is not None and task_s < SHORT_S else -math.inf

    def _commit(self, blocks: Sequence[ClaimedBlock]) -> None:
        some: list[tuple[ClaimedBlock, CompletePart]] = []
        size = 0
        for block in blocks[:MOST]:
            size += _size(block.arrived[0])
            if some and size > MOST_BYTES:
                break
            some.append((block, block.take_whole()))
        base_us = min(block.base_us for block, _ in some)
        outcomes = tuple(_since(base_us, block, outcome) for block, part in some for outcome in part.outcomes)
        first = some[0][0].key
        began = any(has_begun(outcome) for _, part in some for outcome in part.outcomes)
        fragment = Fragment(node=self._node.name, attempt=first.attempt, base_us=base_us if began else 0, outcomes=brief(outcomes))
        if self._shared.gate is not None:
            fragment = self._shared.gate.sign(first.submission, fragment)
        for block, part in some:
            part.orders = self._node.orders.obeyed_by(block, part.indices)
        idle = self._node.idle
        go_idle = self._node.puller.is_hungry and not idle.present and not idle.changing
        idle.changing = idle.changing or go_idle
        multi = place_ops.complete(
            self._node.name,
            self._shared.committer.fence(self._node.name),
            [(block.key, block.version) for block, _ in some],
            fragment,
            orders=[guid for _, part in some for guid in part.orders],
            go_idle=go_idle,
        )
        failpoint("starter.before_complete")
        self._shared.committer.commit(multi, partial(self._completed, some, go_idle))

    def _completed(self, some: Sequence[tuple[ClaimedBlock, CompletePart]], go_idle: bool, outcome: Outcome) -> None:
        idle = self._node.idle
        if go_idle:
            idle.changing = False
        if not isinstance(outcome, Committed):
            assert isinstance(outcome, Conflict)
            self._refused(some, outcome)
            return
        failpoint("starter.after_complete")
        idle.present = idle.present or go_idle
        self._shared.metrics.committed(len(some), 0)
        for block, part in some:
            block.committed()
            self._node.orders.settled(block, part.indices, part.orders)
            self._node.over(block)

    def _refused(self, some: Sequence[tuple[ClaimedBlock, CompletePart]], conflict: Conflict) -> None:
        """The mark, an order that is gone, or a block that is not what it should be: the others go with the next commit."""
        node = self._node
        gone = {paths.inbox(node.name, guid): guid for _, part in some for guid in part.orders}.get(conflict.path)
        odd = [block for block, _ in some if paths.running_block(node.name, block.key) == conflict.path]
        if conflict.path.startswith(f"{paths.sub(some[0][0].key.submission)}/"):
            for block, part in some:
                node.orders.released(part.orders)
                discard(node, block, conflict)
            return
        if conflict.path == paths.idle(node.name):
            node.idle.present = True
        elif gone is None and not odd:
            odd = [block for block, _ in some]
        for block, part in some:
            node.orders.released(part.orders)
            if block in odd:
                node.completing.reread(block)
            else:
                block.refused(0.0)
        if gone is not None:
            node.orders.gone(gone)
        for block in odd:
            node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)


def discard(node: NodeAgent, block: ClaimedBlock, conflict: Conflict) -> None:
    """Its submission has no place for what became of it (it was collected, or no SUBMIT made it): it goes, and nobody is told."""
    node.log.warning("block_discarded", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
    commits = node.shared.committer
    commits.commit(ops.discard(node.name, commits.fence(node.name), block.key), lambda _: None)
    node.drop_block(block)


def _is_plain(block: ClaimedBlock) -> bool:
    """A job that has ended, with little to tell."""
    one = block.sending is None and len(block.arrived) == block.key.count == 1
    return one and not (block.failed or block.unfinished or block.arrived[0].past) and _size(block.arrived[0]) <= MOST_BYTES


def _size(ended: Ended) -> int:
    text = len(ended.value) + len(ended.log[0]) + len(ended.log[1]) + len(ended.error) + sum(map(len, (*ended.helpers, *ended.story)))
    return _FIELDS_BYTES + text


def _since(base_us: int, block: ClaimedBlock, ended: Ended) -> Ended:
    """With its start counted from `base_us`."""
    if block.base_us == base_us:
        return ended
    return msgspec.structs.replace(ended, started_us=ended.started_us + block.base_us - base_us)


# -- claims that somebody has deleted --------------------------------------------------------------------------------------
# Notices that a claim of this node was deleted from ZooKeeper by somebody else, and puts it back while its work goes on. Only this node
# deletes its claims while its fence stands: by its own commits, whose answers come before that of a later look. When a claim is missing and
# none of them is in flight, it was deleted by hand, or lost when ZooKeeper was restored from an older state.


class DeletedClaims:
    """Compares the claims of one node with ZooKeeper. Cost: one request every `_LOOK_S` while something is claimed."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._next_s = -math.inf

    def settle(self, now_s: float) -> None:
        """Looks when it is time."""
        if now_s >= self._next_s and self._node.blocks and self._node.stories.begin(self._look(), key="claims"):
            self._next_s = now_s + _LOOK_S

    def _look(self) -> Story[None]:
        known = [block for block in self._node.blocks.values() if block.sending is None]
        try:
            standing = frozenset((yield self._shared.coordinator.children(paths.running_node(self._node.name))) or ())
        except RmgrError:
            return
        if not self._shared.committer.may_commit:
            return
        for block in known:
            is_here = self._node.blocks.get(block.key) is block and block.sending is None and not block.is_dropped
            if is_here and paths.block_name(block.key) not in standing:
                self._put_back(block)

    def _put_back(self, block: ClaimedBlock) -> None:
        name = self._node.name
        what = f"{keeping.CLAIM_WAS_GONE} at {utc(machine.wall_us())}, and node {name} put it back"
        data = msgspec.structs.replace(block.data, stamp=machine.guid()[:12], story=(*block.data.story, what)[-MAX_STORY:])
        block.sending = PendingNote(data=data)
        self._node.log.error("claim_was_gone", block=paths.block_name(block.key))
        multi = keeping.put_back(name, self._shared.committer.fence(name), block.key, data)
        self._shared.committer.commit(multi, partial(self._answered, block))

    def _answered(self, block: ClaimedBlock, outcome: Outcome) -> None:
        if self._node.blocks.get(block.key) is not block:
            return
        if isinstance(outcome, Committed):
            block.version = -1  # a new znode: its first version is 0
            block.committed()
            self._node.log.warning("claim_put_back", block=paths.block_name(block.key))
        elif isinstance(outcome, Conflict) and outcome.path == paths.running_block(self._node.name, block.key):
            block.refused(machine.monotonic())
            self._node.completing.reread(block)  # it stands after all
        else:  # the leader was faster, or its submission is gone
            self._node.log.warning("block_dropped", block=paths.block_name(block.key), why="it was decided without us")
            self._node.drop_block(block)
