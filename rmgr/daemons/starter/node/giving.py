"""Gives back what has not begun: half of a long tail to hungry nodes (SPLIT), and what this node may not or cannot run (RETURN).

It may not run: anything while the node drains; work whose submission has ended, which is refused as if it came now; work that was signed
with a key which was revoked, whose fate is the leader's to say (`leader/submissions/owners.py`); work of users whom the node cannot serve.
"""

from __future__ import annotations

import math
import zlib
from functools import partial
from typing import TYPE_CHECKING

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock, Return, split_share
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.trust import Gate
    from rmgr.daemons.starter.node.node import NodeAgent

#: Work that is left must last this long for a tail of it to be worth giving to a hungry node.
_SPLIT_WORTH_S = 0.03
#: Nodes with work to give wait up to this long, each its own time, so that not all answer one hungry node.
_STAGGER_S = 0.02


class Giving:
    """Gives back what one node does not need, or may not run. given_s: when it gave something to the hungry, -inf = never."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.given_s = -math.inf
        self._split_s: float | None = None
        self._gate_seen = 0

    # -- to the hungry ---------------------------------------------------------------------------------------------------

    def has_tail(self) -> bool:
        """Another node could be given something."""
        waiting = [block for block in self._node.blocks.values() if block.ready and not block.is_placed]
        if self._node.is_draining or not waiting:
            return False
        stalled = self._node.dispatch.is_stalled(machine.monotonic())
        return any(self._worth(block, stalled=stalled) for block in waiting)

    def _worth(self, block: ClaimedBlock, *, stalled: bool) -> bool:
        """Its waiting tasks would take long enough here."""
        if not block.ready or block.data.serial or block.is_placed or block.info.needs:
            return False  # the hungry need not have what it needs
        pace_s = self._node.pace(block)
        is_long = stalled or pace_s is None or len(block.ready) * pace_s > _SPLIT_WORTH_S
        return is_long and len(block.ready) > self._node.dispatch.kept(block)

    def split(self, hungry: frozenset[str], now_s: float) -> None:
        """Half of the largest tail goes back to the queue, where the hungry find it."""
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

    # -- what may not run here -------------------------------------------------------------------------------------------

    def return_barred(self, *, is_draining: bool) -> None:
        """Gives back what may not begin. is_draining: all that has not begun. Cost: 1 us a block."""
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
        """Something has ended or was revoked: what of it has not begun is looked at again."""
        doubtful = [block for block in blocks if gate.has_ended(block) or gate.is_barred(block.seal, block.info)]
        for block in doubtful:
            self._node.dispatch.doubt(block)
            if gate.is_barred(block.seal, block.info):
                block.judge(BlockVerdict.BARRED)
        if doubtful:
            self._node.dispatch.recall_all()

    def return_refused(self) -> float:
        """Gives back what has not begun of users whom the node cannot serve; no slot of theirs has to prove itself.

        Of those who must be looked at again nothing starts before that: else what waits would open slot after slot that cannot come up,
        and never be seen waiting long enough to be given back.
        Returns: seconds until the next call that is needed, inf = when something changes.
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
        """Its start has come to nothing, or cannot be here: what of it has not begun goes back."""
        block.judge(BlockVerdict.REVOKED)
        self.return_unstarted(block)

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """What of it has not started goes back to its queue."""
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
            self.give_back(block, count, name="RETURN", held=held)

    # -- the commit of both ----------------------------------------------------------------------------------------------

    def give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> None:
        """Its last `count` waiting tasks become a block of their own. name: of the multi. held: the submission's gate is away."""
        for index in list(block.ready)[-count:]:
            self._node.stager.done(block, index)
        multi = block.give_back(count, self._shared.committer.fence(self._node.name), machine.guid()[:12], name=name, held=held)
        failpoint("starter.before_split")
        self._shared.committer.commit(multi, partial(self._gave_back, block))

    def _gave_back(self, block: ClaimedBlock, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            failpoint("starter.after_split")
            sent = block.committed()
            assert isinstance(sent, Return)
            self._shared.metrics.given_back.inc(sent.end - sent.first)
            if block.is_over:
                self._node.over(block)
            return
        assert isinstance(outcome, Conflict)
        self._node.completing.refused(block, outcome)
