"""Clearing of fenced nodes: blocks that they had claimed are marked FAILED, orders to them and their idle markers are taken away.

A clearing begins after FENCE (`leader/nodes/nodes.py`), when the old incarnation can commit nothing any more.
It ends when nothing is claimed, or with the node's return: what is left then is its own business.
It is level-triggered: a successor finds it again by the same znodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rmgr.coord import validity
from rmgr.coord.decisions import liveness
from rmgr.coord.ops.leader import fail
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Committed, Conflict, ConflictKind, Delete, Gone, Multi, Outcome, Stamped
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.errors import RmgrError
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.runtime.failpoint import failpoint

_RETRY_S = 1.0


@dataclass(slots=True)
class _Clearing:
    """A fenced node on its way to having nothing claimed. open: blocks of this round without an outcome yet. before: failed before it."""

    version: int
    open: set[str] = field(default_factory=set)
    failed: int = 0
    before: int = 0


class Clearer:
    """All clearings of one leadership.

    Args:
        queue_of: asks for the queue of a submission; the answer (None: no such submission) comes by callback.
        turn: 0.0: the next block may be FAILED; else how long to wait before asking again. fetch: the node's record is another by now.
    """

    def __init__(
        self,
        tree: LeaderCommits,
        term: Term,
        queue_of: Callable[[int, Callable[[str | None], None]], None],
        turn: Callable[[], float],
        fetch: Callable[[str], None],
    ) -> None:
        self._tree = tree
        self._term = term
        self._queue_of = queue_of
        self._turn = turn
        self._fetch = fetch
        self._clearings: dict[str, _Clearing] = {}
        self._cleared: dict[str, int] = {}  # fenced version up to which nothing is left under /running

    def clear(self, name: str, version: int) -> None:
        """The node is fenced, at this version of its record; often called, once done."""
        if name not in self._clearings and self._cleared.get(name) != version:
            self._clearings[name] = _Clearing(version)
            self._clear(name)

    def leave(self, name: str) -> None:
        """The node is not fenced (any more)."""
        self._clearings.pop(name, None)

    def _clear(self, name: str) -> None:
        clearing = self._clearings.get(name)
        if clearing is None:
            return
        self._tree.children(paths.running_node(name), partial(self._on_left, name, clearing), failed=partial(self._clear_later, name))

    def _clear_later(self, name: str) -> None:
        self._tree.after(_RETRY_S, partial(self._clear, name))

    def _on_left(self, name: str, clearing: _Clearing, names: list[str] | None) -> None:
        if self._clearings.get(name) is not clearing:
            return
        blocks = paths.blocks_in(names)
        if not blocks:
            self._tidy(name, clearing)
            return
        clearing.open, clearing.before = {block for block, _ in blocks}, clearing.failed
        for _, key in sorted(blocks):
            self._queue_of(key.submission, partial(self._on_queue, name, clearing, key))

    def _on_queue(self, name: str, clearing: _Clearing, key: BlockKey, queue: str | None) -> None:
        if self._clearings.get(name) is clearing:
            done = partial(self._close_block, name, clearing, key)
            self._tree.get(paths.running_block(name, key), partial(self._fail, name, clearing, key, queue), failed=done)

    def _fail(self, name: str, clearing: _Clearing, key: BlockKey, queue: str | None, found: Stamped | None) -> None:
        if self._clearings.get(name) is not clearing:
            return
        if found is None:
            self._close_block(name, clearing, key)
            return
        wait_s = self._turn()
        if wait_s:
            self._tree.after(wait_s, partial(self._fail, name, clearing, key, queue, found))
            return
        fenced = Check(paths.node(name), clearing.version)  # registered again: the rest is its own business
        try:
            if queue is not None:
                validity.decode(found.data, BlockData, paths.running_block(name, key))
        except RmgrError as error:  # whoever may hand work over may write what is none: it goes, and spreads nowhere
            self._term.log.error("block_discarded", path=paths.running_block(name, key), error=error.message)
            queue = None
        if queue is None:
            multi = _discard(fenced, name, key, found.version)
        else:
            failpoint("leader.before_fail")
            multi = fail(fenced, name, queue, key, found.data, found.version, reason=Reason.NODE_LOST, now_us=self._term.wall_us())
        self._tree.commit(multi, partial(self._on_failed, name, clearing, key), urgent=True)

    def _on_failed(self, name: str, clearing: _Clearing, key: BlockKey, outcome: Outcome) -> None:
        match outcome:
            case Committed():
                clearing.failed += 1
                self._term.metrics.failed_blocks.inc()
                failpoint("leader.after_fail")
            case Conflict(path=path) if path == paths.node(name):
                self._fetch(name)
            case Conflict(kind=ConflictKind.NO_NODE, path=path) if path != paths.running_block(name, key):
                self._queue_of(key.submission, partial(self._on_orphan, name, clearing, key))
                return
            case Conflict(path=path, kind=kind):
                self._term.log.debug("leader_fail_conflict", node=name, path=path, kind=kind)
        self._close_block(name, clearing, key)

    def _on_orphan(self, name: str, clearing: _Clearing, key: BlockKey, queue: str | None) -> None:
        """FAIL found no place for its record: was the submission collected? Then nobody waits for these tasks."""
        if queue is None:
            self._on_queue(name, clearing, key, None)
        else:
            self._close_block(name, clearing, key)

    def _close_block(self, name: str, clearing: _Clearing, key: BlockKey) -> None:
        clearing.open.discard(paths.block_name(key))
        if not clearing.open and self._clearings.get(name) is clearing:
            self._tree.after(0.0 if clearing.failed > clearing.before else _RETRY_S, partial(self._clear, name))

    def _tidy(self, name: str, clearing: _Clearing) -> None:
        """Nothing is claimed any more: orders to the node, and its idle marker, are of no use."""
        self._clearings.pop(name, None)
        self._cleared[name] = clearing.version
        if clearing.failed:
            self._term.log.info("node_cleared", node=name, failed=clearing.failed, epoch=self._term.epoch)
        self._tree.children(paths.inbox_node(name), partial(self._on_orders, name, clearing))

    def _on_orders(self, name: str, clearing: _Clearing, orders: list[str] | None) -> None:
        self._tree.stat(
            paths.idle(name),
            lambda idle: self._sweep_up(name, clearing, orders or [], idle is not None),
        )

    def _sweep_up(self, name: str, clearing: _Clearing, orders: list[str], idle: bool) -> None:
        multi = liveness.tidy(self._term.epoch_version, name, clearing.version, orders=orders, idle=idle)
        if multi is not None:
            self._tree.commit(multi)


def _discard(fenced: Check, node: str, key: BlockKey, version: int) -> Multi:
    """A claimed block of a submission that does not exist (any more) goes."""
    path = paths.running_block(node, key)
    return Multi(name="DISCARD", ops=(fenced, Delete(path, version)), proof=Gone(path))
