"""Ends of placed jobs committed together: what ends of one submission while a COMPLETE of it is in flight goes with the next.

A placed job is a block of its own, so each would have its own commit, fragment and signature, and everybody who follows the submission
its own read. A job alone waits for nobody; where others of its submission run, and such jobs are over in a moment, their ends gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome
from rmgr.coord.protocol.records import brief
from rmgr.daemons.starter.core.blocks import ClaimedBlock, CompletePart
from rmgr.model.tasks.block import MAX_INLINE_OUTCOMES, Fragment, has_begun
from rmgr.model.tasks.block import Outcome as Ended
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.commits import Committer, IdleMark
    from rmgr.daemons.starter.core.doors import NodeOrders
    from rmgr.daemons.starter.core.estimate import TaskTimes
    from rmgr.daemons.starter.core.metrics import StarterMetrics
    from rmgr.daemons.starter.health.trust import Gate
    from rmgr.model.tasks.block import BlockKey
    from rmgr.runtime.logger import Log

#: Jobs of one commit, and bytes of their outcomes.
MOST, MOST_BYTES = 40, MAX_INLINE_OUTCOMES * 2 // 3
#: Jobs that take less than `SHORT_S` let their ends gather for so long while others run.
SHORT_S, GATHER_S = 0.02, 0.01
#: What the fields of an outcome take beside its bytes.
_FIELDS_BYTES = 100


class DiscardingNode(Protocol):
    """The node that has the block."""

    name: str
    log: Log

    def drop_block(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        ...


class Appetite(Protocol):
    """Knows whether the node wants work."""

    is_hungry: bool


class EndingNode(DiscardingNode, Protocol):
    """The node whose jobs have ended."""

    blocks: dict[BlockKey, ClaimedBlock]
    idle: IdleMark

    @property
    def orders(self) -> NodeOrders: ...

    @property
    def puller(self) -> Appetite: ...


class JointServices(Protocol):
    """Commits, signs and counts; knows how long jobs take."""

    committer: Committer
    gate: Gate | None
    metrics: StarterMetrics
    times: TaskTimes


class Joint:
    """The joint commits of one node.

    Args:
        over: is told each block that is over. reread: each whose znode is not what it should be.
    Attributes: due_s: when `flush` is needed again without a new fact (monotonic), inf = never.
    """

    def __init__(
        self, node: EndingNode, shared: JointServices, *, over: Callable[[ClaimedBlock], None], reread: Callable[[ClaimedBlock], None]
    ) -> None:
        self._node = node
        self._shared = shared
        self._over = over
        self._reread = reread
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
            self._over(block)

    def _refused(self, some: Sequence[tuple[ClaimedBlock, CompletePart]], conflict: Conflict) -> None:
        """The mark, an order that is gone, or a block that is not what it should be: the others go with the next commit."""
        node = self._node
        gone = {paths.inbox(node.name, guid): guid for _, part in some for guid in part.orders}.get(conflict.path)
        odd = [block for block, _ in some if paths.running_block(node.name, block.key) == conflict.path]
        if conflict.path.startswith(f"{paths.sub(some[0][0].key.submission)}/"):
            for block, part in some:
                node.orders.released(part.orders)
                discard(node, self._shared.committer, block, conflict)
            return
        if conflict.path == paths.idle(node.name):
            node.idle.present = True
        elif gone is None and not odd:
            odd = [block for block, _ in some]
        for block, part in some:
            node.orders.released(part.orders)
            if block in odd:
                self._reread(block)
            else:
                block.refused(0.0)
        if gone is not None:
            node.orders.gone(gone)
        for block in odd:
            node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)


def discard(node: DiscardingNode, commits: Committer, block: ClaimedBlock, conflict: Conflict) -> None:
    """Its submission has no place for what became of it (it was collected, or no SUBMIT made it): it goes, and nobody is told."""
    node.log.warning("block_discarded", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
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
