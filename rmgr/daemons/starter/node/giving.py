"""Gives back what has not begun: half of a long tail to hungry nodes (SPLIT), and what this node may not or cannot run (RETURN)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stat
from rmgr.daemons.starter.core.blocks import ClaimedBlock, Return, split_share
from rmgr.daemons.starter.core.doors import TreeCommits
from rmgr.daemons.starter.core.metrics import StarterMetrics
from rmgr.daemons.starter.execution.dispatch import Dispatcher
from rmgr.daemons.starter.staging.stage import Stager
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import BlockKey
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: Work that is left must last this long for a tail of it to be worth giving to a hungry node.
_SPLIT_WORTH_S = 0.03
#: Nodes with work to give wait up to this long, each its own time, so that not all answer one hungry node.
_STAGGER_S = 0.02


class GivingNode(Protocol):
    """The node whose blocks are given back."""

    name: str
    blocks: dict[BlockKey, ClaimedBlock]

    @property
    def is_draining(self) -> bool: ...

    def pace(self, block: ClaimedBlock) -> float | None:
        """Seconds in which the slots take a task of it, None = unknown."""
        ...

    def at(self, at_s: float) -> None:
        """Asks for a turn at this monotonic time."""
        ...

    def over(self, block: ClaimedBlock) -> None:
        """Nothing of it is left here."""
        ...


class Giving:
    """Gives back what one node does not need. given_s: when it gave something to the hungry, -inf = never.

    Args: on_refused: is called with each block whose commit met something else than expected.
    """

    def __init__(
        self,
        node: GivingNode,
        tree: TreeCommits,
        metrics: StarterMetrics,
        *,
        dispatch: Dispatcher,
        stager: Stager,
        on_refused: Callable[[ClaimedBlock, Conflict], None],
    ) -> None:
        self._on_refused = on_refused
        self._node = node
        self._tree = tree
        self._metrics = metrics
        self._dispatch = dispatch
        self._stager = stager
        self.given_s = -math.inf
        self._split_s: float | None = None
        self._returning: set[BlockKey] = set()

    def forget(self, key: BlockKey) -> None:
        """The block is over, or not the node's own any more."""
        self._returning.discard(key)

    def reset(self) -> None:
        """A new registration."""
        self._returning.clear()

    def has_tail(self) -> bool:
        """Another node could be given something."""
        waiting = [block for block in self._node.blocks.values() if block.ready and not block.is_placed]
        if self._node.is_draining or not waiting:
            return False
        stalled = self._dispatch.is_stalled(machine.monotonic())
        return any(self._worth(block, stalled=stalled) for block in waiting)

    def _worth(self, block: ClaimedBlock, *, stalled: bool) -> bool:
        """Its waiting tasks would take long enough here."""
        if not block.ready or block.data.serial or block.is_placed or block.info.needs:
            return False  # the hungry need not have what it needs
        pace_s = self._node.pace(block)
        return (stalled or pace_s is None or len(block.ready) * pace_s > _SPLIT_WORTH_S) and len(block.ready) > self._dispatch.kept(block)

    def split(self, hungry: frozenset[str], now_s: float) -> None:
        """Half of the largest tail goes back to the queue, where the hungry find it."""
        others = len(hungry) - (self._node.name in hungry)
        if not others or self._node.is_draining:
            self._split_s = None
            return
        stalled = self._dispatch.is_stalled(now_s)
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
        count = split_share(min(block.tail(256), len(block.ready) - self._dispatch.kept(block)), others)
        self.give_back(block, count, name="SPLIT", held=False)

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """What of it has not started goes back to its queue."""
        if block.may_return(machine.monotonic()) and block.key not in self._returning:
            self._returning.add(block.key)
            future = self._tree.coordinator.stat(paths.gate(block.key.submission))
            future.add_done_callback(lambda done: self._tree.post(partial(self._gate_known, block, done)))

    def _gate_known(self, block: ClaimedBlock, done: Future[Stat | None]) -> None:
        self._returning.discard(block.key)
        goes_back = self._node.is_draining or block.is_revoked or block.is_barred or block.turned_away
        if self._node.blocks.get(block.key) is not block or block.sending is not None or not goes_back:
            return
        count = block.tail(256)
        if not self._tree.committer.may_commit or not count:
            return
        try:
            held = done.result() is None
        except RmgrError:
            return
        self.give_back(block, count, name="RETURN", held=held)

    def give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> None:
        """Its last `count` waiting tasks become a block of their own. name: of the multi. held: the submission's gate is away."""
        for index in list(block.ready)[-count:]:
            self._stager.done(block, index)
        multi = block.give_back(count, self._tree.committer.fence(self._node.name), machine.guid()[:12], name=name, held=held)
        failpoint("starter.before_split")
        self._tree.committer.commit(multi, partial(self._gave_back, block))

    def _gave_back(self, block: ClaimedBlock, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            failpoint("starter.after_split")
            sent = block.committed()
            assert isinstance(sent, Return)
            self._metrics.given_back.inc(sent.end - sent.first)
            if block.is_over:
                self._node.over(block)
            return
        assert isinstance(outcome, Conflict)
        self._on_refused(block, outcome)
