"""COMPLETE: commits what has ended of a node's blocks, and reads a block again whose commit met something else than expected.

Ends of placed jobs go together (`jobs/joint.py`); those of other blocks each with its own commit, long ones through a row of the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stamped
from rmgr.coord.protocol.records import decode_block
from rmgr.daemons.starter.core.blocks import ClaimedBlock, CompletePart
from rmgr.daemons.starter.execution.launch import words_of
from rmgr.daemons.starter.jobs.joint import EndingNode, Joint, JointServices, discard
from rmgr.daemons.starter.pull.hints import News
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.daemons.starter.core.io import StoreIO


class CompletingNode(EndingNode, Protocol):
    """The node whose blocks have ended, in part or as a whole."""

    def over(self, block: ClaimedBlock) -> None:
        """Nothing of it is left to do here."""
        ...


class CompletingServices(JointServices, Protocol):
    """Commits, signs and counts; writes rows, and reads blocks again. post: runs a call on the loop's thread."""

    coordinator: Coordinator
    io: StoreIO
    aside: Aside

    def post(self, call: Callable[[], None], /) -> None: ...


class AnnounceAhead(Protocol):
    """Hears of a commit on its way: whether it sets the idle marker, and whether it was announced to a client."""

    def __call__(self, *, sets_mark: bool, is_hinted: bool) -> None: ...


class Completing:
    """The commits of one node's ends.

    Args:
        cores: of the node's slots. on_strike: is called with kind and cause when a row cannot be written.
        announce: is called for each commit on its way.
    """

    def __init__(
        self,
        node: CompletingNode,
        shared: CompletingServices,
        *,
        cores: int,
        on_strike: Callable[[str, str], None],
        announce: AnnounceAhead,
    ) -> None:
        self._node = node
        self._shared = shared
        self._cores = cores
        self._on_strike = on_strike
        self._announce = announce
        self._joint = Joint(node, shared, over=node.over, reread=self.reread)

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
        due_s = block.due_s(task_s=self._shared.times.of(block.kind), slots=max(1, self._cores // block.key.cores))
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
            self._on_strike("fragment_not_stored", str(result))
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
        self._announce(sets_mark=part.go_idle, is_hinted=news is not None)

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
            discard(self._node, self._shared.committer, block, conflict)
        else:
            self._node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
            block.way_back_barred(now_s)
            self.reread(block)

    def reread(self, block: ClaimedBlock) -> None:
        """Takes the block from what its znode says; gone means: decided without us."""
        self._shared.metrics.resyncs.inc()
        future = self._shared.coordinator.get(paths.running_block(self._node.name, block.key))

        def arrived() -> None:
            if self._node.blocks.get(block.key) is not block or not self._shared.committer.is_registered:
                return
            try:
                found: Stamped | None = future.result()
            except RmgrError:
                self.reread(block)
                return
            if found is None:
                self._node.drop_block(block)
            else:
                block.reread(decode_block(found.data), found.version, machine.monotonic())
                if block.is_over:
                    self._node.over(block)

        future.add_done_callback(lambda _: self._shared.post(arrived))
