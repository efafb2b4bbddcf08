"""Writes checkpoints into a job's block, and ends an attempt that is given up: NOTE and STOP, one at a time for a block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.ops import place as place_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict
from rmgr.daemons.starter.core.blocks import ClaimedBlock, PendingNote
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import MAX_STORY, STORY_CHARS, PastAttempt
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.starter.node.node import NodeAgent

#: Pause before a commit that could not be made now is tried again.
_PAUSE_S = 0.1


@dataclass(slots=True, kw_only=True, eq=False)
class _Wish:
    """Something to commit; its words are in the block already. past: of a STOP, None: a NOTE. moved: by a policy."""

    block: ClaimedBlock
    orders: list[str]
    past: PastAttempt | None = None
    moved: bool = False


class Notes:
    """Commits of one node. over: told of a block that was given up."""

    def __init__(self, node: NodeAgent, over: Callable[[ClaimedBlock], None]) -> None:
        self._node = node
        self._shared = node.shared
        self._over = over
        self._waiting: dict[ClaimedBlock, deque[_Wish]] = {}  #: the first of each may be on its way

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
        return any(guid in wish.orders for wishes in self._waiting.values() for wish in wishes)

    def forget(self, block: ClaimedBlock) -> None:
        """The block is not the node's own any more."""
        self._waiting.pop(block, None)

    def reset(self) -> None:
        """A new registration: what was sent is answered to nobody, and sent again."""
        for block in list(self._waiting):
            self._begin(block)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _put(self, wish: _Wish) -> None:
        self._waiting.setdefault(wish.block, deque()).append(wish)
        self._begin(wish.block)

    def _begin(self, block: ClaimedBlock) -> None:
        self._node.stories.begin(self._write(block, self._waiting[block]), key=("notes", block))

    def _write(self, block: ClaimedBlock, waiting: deque[_Wish]) -> Story[None]:
        """Commits what is to be written of a block, one after another."""
        while waiting:
            if block.sending is not None or not self._shared.committer.may_commit:
                yield Pause(_PAUSE_S)
                if self._waiting.get(block) is not waiting:
                    return
                continue
            wish = waiting[0]
            outcome = yield from (self._note(wish) if wish.past is None else self._stop(wish, wish.past))
            if self._waiting.get(block) is not waiting:
                return
            if isinstance(outcome, Committed):
                waiting.popleft()
                self._committed(wish)
                if self._waiting.get(block) is not waiting:  # a STOP was the last of it
                    return
                continue
            if outcome is not None:
                self._refused(wish, outcome)
            if isinstance(block.sending, PendingNote):
                block.sending = None
            yield Pause(_PAUSE_S)
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
        """None: it cannot be committed now."""
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

    def _committed(self, wish: _Wish) -> None:
        block = wish.block
        failpoint("starter.after_stop" if wish.past is not None else "starter.after_note")
        for guid in wish.orders:
            self._node.orders.gone(guid)
        if wish.past is None:
            block.committed()
        else:
            self._over(block)

    def _refused(self, wish: _Wish, conflict: Conflict) -> None:
        gone = next((guid for guid in wish.orders if conflict.path == paths.inbox(self._node.name, guid)), None)
        if gone is not None:
            wish.orders.remove(gone)
            self._node.orders.gone(gone)
            return
        block = wish.block
        self._node.log.warning("block_reread", block=paths.block_name(block.key), kind=conflict.kind.value, path=conflict.path)
        self._node.completing.reread(block)
