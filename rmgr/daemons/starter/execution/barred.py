"""Bars claimed work from beginning: all of it while the node drains, and work that may not be run any more.

Work whose submission has ended is refused as if it came now. Work of its user's that was signed with a key which was revoked
goes back to its queue, where it waits: what is decided about it is the leader's to say (`leader/submissions/owners.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.daemons.starter.execution.dispatch import Dispatcher
    from rmgr.daemons.starter.health.trust import Gate
    from rmgr.model.tasks.block import BlockKey


class Returning(Protocol):
    """The node that has the blocks."""

    blocks: dict[BlockKey, ClaimedBlock]

    def return_unstarted(self, block: ClaimedBlock) -> None:
        """Gives back to its queue what of it has not begun."""
        ...


class Barred:
    """Barred work of one node."""

    def __init__(self, node: Returning, gate: Gate | None, dispatch: Dispatcher) -> None:
        self._node = node
        self._gate = gate
        self._dispatch = dispatch
        self._seen = 0

    def settle(self, *, is_draining: bool) -> None:
        """is_draining: all that has not begun goes back. Cost: 1 us a block."""
        gate, blocks = self._gate, list(self._node.blocks.values())
        if is_draining:
            self._dispatch.recall_all()
        if gate is not None and gate.generation != self._seen:
            self._look(gate, blocks)
        for block in blocks:
            if is_draining or ((block.is_barred or block.turned_away) and block.ready):
                self._node.return_unstarted(block)

    def _look(self, gate: Gate, blocks: list[ClaimedBlock]) -> None:
        self._seen = gate.generation
        doubtful = [block for block in blocks if gate.has_ended(block) or gate.is_barred(block.seal, block.info)]
        for block in doubtful:
            self._dispatch.doubt(block)
            block.is_barred = gate.is_barred(block.seal, block.info)
        if doubtful:
            self._dispatch.recall_all()
