"""Writes checkpoints into a job's block, and ends an attempt that is given up: NOTE and STOP, one at a time for a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stat
from rmgr.daemons.starter.core.blocks import ClaimedBlock, PendingNote
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import MAX_STORY, STORY_CHARS, PastAttempt
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.doors import NodeOrders, TreeCommits

#: Pause before a commit that could not be made now is tried again.
_PAUSE_S = 0.1


@dataclass(slots=True, kw_only=True, eq=False)
class _Wish:
    """Something to commit; its words are in the block already. past: of a STOP, None: a NOTE. moved: by a policy."""

    block: ClaimedBlock
    orders: list[str]
    past: PastAttempt | None = None
    moved: bool = False


class NotingNode(Protocol):
    """The node that has the job's block."""

    name: str

    @property
    def orders(self) -> NodeOrders: ...


@dataclass(slots=True, eq=False)
class Notes:
    """Commits of one node. reread: takes a block from what its znode says. over: told of a block that was given up."""

    node: NotingNode
    shared: TreeCommits
    reread: Callable[[ClaimedBlock], None]
    over: Callable[[ClaimedBlock], None]
    log: Log
    _waiting: dict[ClaimedBlock, deque[_Wish]] = field(default_factory=dict)
    _sent: dict[ClaimedBlock, _Wish] = field(default_factory=dict)

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
        """Adds to the story of a job; orders are crossed off with it. stopping, awaits, saving: from now on, None = as it is."""
        data = block.data
        story = (*data.story, words[:STORY_CHARS])[-MAX_STORY:] if words else data.story
        stopping, awaits = data.stopping if stopping is None else stopping, data.awaits if awaits is None else awaits
        saving = data.saving if saving is None else saving
        block.data = msgspec.structs.replace(data, story=story, stopping=stopping, awaits=awaits, saving=saving)
        self._put(_Wish(block=block, orders=list(orders)))

    def give_up(self, block: ClaimedBlock, past: PastAttempt, words: str, orders: Sequence[str], *, moved: bool = False) -> None:
        """STOP: the job waits again. Its processes are dead, and what it has saved lies in the store. moved: by a policy."""
        data = block.data
        block.data = msgspec.structs.replace(data, story=(*data.story, words[:STORY_CHARS])[-MAX_STORY:])
        self._put(_Wish(block=block, orders=list(orders), past=past, moved=moved))

    def carries(self, guid: str) -> bool:
        """The order is crossed off with something that is not committed yet."""
        waiting = (wish for wishes in self._waiting.values() for wish in wishes)
        return any(guid in wish.orders for wish in (*waiting, *self._sent.values()))

    def forget(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        self._waiting.pop(block, None)
        self._sent.pop(block, None)

    def reset(self) -> None:
        """A new registration: what was sent is answered to nobody."""
        for block, wish in list(self._sent.items()):
            self._waiting.setdefault(block, deque()).appendleft(wish)
            self._later(block)
        self._sent.clear()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _put(self, wish: _Wish) -> None:
        self._waiting.setdefault(wish.block, deque()).append(wish)
        self._next(wish.block)

    def _later(self, block: ClaimedBlock) -> None:
        self.shared.after(_PAUSE_S, partial(self._next, block))

    def _next(self, block: ClaimedBlock) -> None:
        waiting = self._waiting.get(block)
        if not waiting or block in self._sent:
            return
        if block.sending is not None or not self.shared.committer.may_commit:
            self._later(block)
            return
        wish = waiting.popleft()
        self._sent[block] = wish
        if wish.past is None:
            data = msgspec.structs.replace(block.data, stamp=machine.guid()[:12])
            block.sending = PendingNote(data=data)
            fence = self.shared.committer.fence(self.node.name)
            multi = place_ops.note(self.node.name, fence, block.key, data, block.version, orders=wish.orders)
            self.shared.committer.commit(multi, partial(self._answered, wish))
            return
        block.sending = PendingNote(data=block.data)
        future = self.shared.coordinator.stat(paths.gate(block.key.submission))
        future.add_done_callback(lambda done: self.shared.post(partial(self._gate_known, wish, done)))

    def _gate_known(self, wish: _Wish, done: Future[Stat | None]) -> None:
        block, past = wish.block, wish.past
        if self._sent.get(block) is not wish or past is None:
            return
        try:
            held = done.result() is None
        except RmgrError:
            self._again(wish)
            return
        if not self.shared.committer.may_commit:
            self._again(wish)
            return
        multi, _ = place_ops.stop(
            self.node.name,
            self.shared.committer.fence(self.node.name),
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
        self.shared.committer.commit(multi, partial(self._answered, wish))

    def _again(self, wish: _Wish) -> None:
        block = wish.block
        self._sent.pop(block, None)
        if isinstance(block.sending, PendingNote):
            block.sending = None
        self._waiting.setdefault(block, deque()).appendleft(wish)
        self._later(block)

    def _answered(self, wish: _Wish, outcome: Outcome) -> None:
        block = wish.block
        if self._sent.get(block) is not wish:
            return
        if isinstance(outcome, Committed):
            del self._sent[block]
            failpoint("starter.after_stop" if wish.past is not None else "starter.after_note")
            for guid in wish.orders:
                self.node.orders.gone(guid)
            if wish.past is not None:
                self._waiting.pop(block, None)
                self.over(block)
                return
            block.committed()
            self._next(block)
            self.shared.wake()
            return
        assert isinstance(outcome, Conflict)
        gone = next((guid for guid in wish.orders if outcome.path == paths.inbox(self.node.name, guid)), None)
        if gone is not None:
            wish.orders.remove(gone)
            self.node.orders.gone(gone)
        else:
            self.log.warning("block_reread", block=paths.block_name(block.key), kind=outcome.kind.value, path=outcome.path)
            self.reread(block)
        self._again(wish)
