"""Notices that a claim of this node was deleted from ZooKeeper by somebody else, and puts it back while its work goes on.

Only this node deletes its claims while its fence stands: by its own commits, whose answers come before that of a later look. When
a claim is missing and none of them is in flight, it was deleted by hand, or lost when ZooKeeper was restored from an older state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from rmgr.coord.decisions import keeping
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome
from rmgr.daemons.starter.core.blocks import ClaimedBlock, PendingNote
from rmgr.errors import RmgrError
from rmgr.model.base.units import utc
from rmgr.model.tasks.block import MAX_STORY
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.doors import TreeCommits
    from rmgr.model.tasks.block import BlockKey

#: Between two looks: the leader ends what is nowhere after 8 s at the soonest (`leader/submissions/census.py`).
_LOOK_S = 3.0


class ClaimingNode(Protocol):
    """The node whose claims are looked after."""

    name: str
    incarnation: int
    blocks: dict[BlockKey, ClaimedBlock]

    def drop_block(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        ...


class Claims:
    """Compares the claims of one node with ZooKeeper. Cost: one request every `_LOOK_S` while something is claimed.

    Args: reread: takes a block from what its znode says.
    """

    def __init__(self, node: ClaimingNode, shared: TreeCommits, log: Log, *, reread: Callable[[ClaimedBlock], None]) -> None:
        self._node = node
        self._shared = shared
        self._log = log
        self._reread = reread
        self._is_looking = False
        self._next_s = -float("inf")

    def settle(self, now_s: float) -> None:
        """Looks when it is time."""
        if self._is_looking or now_s < self._next_s or not self._node.blocks:
            return
        self._is_looking, self._next_s = True, now_s + _LOOK_S
        known = [block for block in self._node.blocks.values() if block.sending is None]
        future = self._shared.coordinator.children(paths.running_node(self._node.name))
        future.add_done_callback(lambda done: self._shared.post(partial(self._listed, self._node.incarnation, known, done)))

    def _listed(self, incarnation: int, known: Collection[ClaimedBlock], done: Future[list[str] | None]) -> None:
        self._is_looking = False
        try:
            standing = frozenset(done.result() or ())
        except RmgrError:
            return
        if incarnation != self._node.incarnation or not self._shared.committer.may_commit:
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
        self._log.error("claim_was_gone", block=paths.block_name(block.key))
        multi = keeping.put_back(name, self._shared.committer.fence(name), block.key, data)
        self._shared.committer.commit(multi, partial(self._answered, block))

    def _answered(self, block: ClaimedBlock, outcome: Outcome) -> None:
        if self._node.blocks.get(block.key) is not block:
            return
        if isinstance(outcome, Committed):
            block.version = -1  # a new znode: its first version is 0
            block.committed()
            self._log.warning("claim_put_back", block=paths.block_name(block.key))
        elif isinstance(outcome, Conflict) and outcome.path == paths.running_block(self._node.name, block.key):
            block.refused(machine.monotonic())
            self._reread(block)  # it stands after all
        else:  # the leader was faster, or its submission is gone
            self._log.warning("block_dropped", block=paths.block_name(block.key), why="it was decided without us")
            self._node.drop_block(block)
        self._shared.wake()
