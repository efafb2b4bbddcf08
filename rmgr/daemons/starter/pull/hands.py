"""Blocks that a Submitter hands straight to this node (HAND): its idle marker goes, and the block is claimed already.

The mark is watched while it stands. When it goes without this node's doing, the node's claimed blocks are listed, and one
that nobody here knows is taken as if its claim had just been answered. Who submits one task after another waits for this:
the mark is watched right behind the commit that sets it, and the block that is to be expected is asked for by the thread
that brings the news. A client with a direct line says what it hands over (`starter/pull/hints.py`): then the mark is watched a
moment later only. Level-triggered, as everything here: a watch that
was lost with its connection fires, a CLAIM that finds the mark gone looks, and a new registration fails what it never saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.validity import check_block, decode
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.daemons.starter.pull.caps import Caps
from rmgr.daemons.starter.pull.hints import Hints, HintServices
from rmgr.errors import RmgrError
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.wire.line import Hint
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.adapters.rpc.line import DirectLine
    from rmgr.daemons.starter.core.commits import IdleMark
    from rmgr.daemons.starter.core.records import Info
    from rmgr.daemons.starter.staging.stage import Stager

_FAILED_PAUSE_S = 0.2
#: The mark is watched so much later where the client that was served last would say what comes.
_HINTED_S = 0.03


class Doubts(Protocol):
    """The claims of the same node."""

    def in_doubt(self) -> Collection[BlockKey]:
        """Claims in flight."""
        ...

    def suits(self, info: Info, key: BlockKey) -> bool:
        """The node could run it, if it ran nothing else."""
        ...


class HandedNode(Protocol):
    """The node that blocks are handed to."""

    name: str
    incarnation: int
    blocks: dict[BlockKey, ClaimedBlock]
    idle: IdleMark
    stager: Stager

    @property
    def puller(self) -> Doubts: ...

    def claimed(self, block: ClaimedBlock) -> None:
        """A block is the node's own now."""
        ...

    def give_back(self, block: ClaimedBlock, count: int, *, name: str, held: bool) -> None:
        """Commits that the last `count` tasks of it go back to their queue. name: of the multi. held: its submission is."""
        ...


class Hands:
    """Blocks that one node is handed.

    Attributes: due_s: when `settle` is needed again without a new fact (monotonic), inf = never.
    """

    def __init__(self, node: HandedNode, shared: HintServices, *, caps: Caps, log: Log) -> None:
        self._caps = caps
        self._node = node
        self._coordinator: Coordinator = shared.coordinator
        self._records = shared.records
        self._post: Callable[[Callable[[], None]], None] = shared.post
        self._log = log
        self._generation = 0
        self.due_s = math.inf
        self.hints = Hints(node, shared, read=self._hinted)
        self._met: dict[BlockKey, tuple[ClaimedBlock, int]] = {}
        self.reset()

    def reset(self) -> None:
        """A new registration: what stood before it was adopted or failed."""
        self._generation += 1
        self._watched = self._listing = self._again = False
        self._reading: set[BlockKey] = set()
        for block, _ in self._met.values():
            self._node.stager.forget(block)
        self._met.clear()
        self._look_s, self._watch_s = math.inf, -math.inf  # looks never, watches at once
        self.hints.reset()
        self._strange: set[str] = set()  #: names in the list that nobody could have handed over, or whose data nobody could
        self._next: BlockKey | None = None  #: what comes next, if it goes on as before

    @property
    def is_taking(self) -> bool:
        """Something may have been handed over that is not among the node's blocks yet."""
        return self._listing or bool(self._reading) or bool(self._met)

    def settle(self, boards: Sequence[PendingQueue], now_s: float) -> None:
        """Watches the mark while it stands; takes what has come."""
        idle = self._node.idle
        self.due_s = math.inf
        if idle.present and not idle.changing and not self._watched:
            if now_s >= self._watch_s:
                self._watch()
            else:
                self.due_s = self._watch_s
        if now_s >= self._look_s:
            self.look()
        self.hints.settle(now_s)
        self.due_s = min(self.due_s, self.hints.due_s)
        for key in list(self._met):
            self._take(key, boards)

    def watch_ahead(self, *, sets_mark: bool, is_hinted: bool) -> None:
        """A commit is on its way, which may set the mark: what is asked behind it is answered behind it."""
        if is_hinted:
            self._watch_s = machine.monotonic() + _HINTED_S
        elif sets_mark and not self._watched:
            self._watch()

    def heard(self, line: DirectLine, hint: Hint) -> None:
        """A client says what it is handing over. On the line's thread."""
        self.hints.heard(line, hint, self._generation)

    def look(self, key: BlockKey | None = None, asked: Future[Stamped | None] | None = None) -> None:
        """The mark has gone: is there a block? asked: `key` is being read."""
        self._look_s = math.inf
        if self._listing:
            self._again = True
            return
        self._listing, self._again = True, False
        if self._next is not None and not self._is_known(self._next):
            if asked is None or key != self._next:
                key, asked = self._next, self._coordinator.get(paths.running_block(self._node.name, self._next))
            future, self._next = asked, None
            future.add_done_callback(lambda read: self._post(partial(self._guessed, self._generation, key, read)))
        else:
            self._list()

    def _guessed(self, generation: int, key: BlockKey, done: Future[Stamped | None]) -> None:
        """Somebody who submits one task after another hands over the next one: a reading less before it runs."""
        if generation != self._generation:
            return
        try:
            is_there = done.result() is not None
        except RmgrError:
            is_there = False
        if not is_there or self._again:
            self._list()
            return
        self._listing = False
        self._read(generation, key, done)

    def _hinted(self, generation: int, key: BlockKey, done: Future[Stamped | None]) -> None:
        """What was announced was asked for."""
        if generation != self._generation or self._is_known(key):
            return
        idle = self._node.idle
        is_there = done.exception() is None and done.result() is not None
        if is_there:
            if idle.present and not idle.changing:
                idle.present = False  # it went with it
            self._read(generation, key, done)
        else:
            self._watch_s = -math.inf  # it came too early, or came to nothing: as without it

    def _list(self) -> None:
        self._again = False
        future = self._coordinator.children(paths.running_node(self._node.name))
        future.add_done_callback(lambda done: self._post(partial(self._listed, self._generation, done)))

    # -- the mark ----------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._watched = True
        fired = partial(self._on_fired, self._generation, self._next)
        future = self._coordinator.stat(paths.idle(self._node.name), watch=fired)
        future.add_done_callback(lambda done: self._post(partial(self._seen, self._generation, done)))

    def _on_fired(self, generation: int, key: BlockKey | None) -> None:
        """On the thread that brings it."""
        idle = self._node.idle
        may_ask = key is not None and generation == self._generation and not (idle.present and idle.changing)  # else it is a CLAIM's doing
        asked = self._coordinator.get(paths.running_block(self._node.name, key)) if may_ask and key is not None else None
        self._post(partial(self._fired, generation, key, asked))

    def _fired(self, generation: int, key: BlockKey | None, asked: Future[Stamped | None] | None) -> None:
        if generation != self._generation:
            return
        self._watched = False
        idle = self._node.idle
        if idle.present and not idle.changing:  # else a commit of one's own took it away, or will tell that it was gone
            idle.present = False
            self.look(key, asked)

    def _seen(self, generation: int, done: Future[Stat | None]) -> None:
        if generation != self._generation:
            return
        try:
            is_there = done.result() is not None
        except RmgrError:
            return  # the watch fires with the connection
        idle = self._node.idle
        if not is_there and idle.present and not idle.changing:
            idle.present = False
            self.look()

    # -- the block ---------------------------------------------------------------------------------------------------------

    def _listed(self, generation: int, done: Future[list[str] | None]) -> None:
        if generation != self._generation:
            return
        self._listing = False
        try:
            names = done.result() or []
        except RmgrError:
            self._look_s = machine.monotonic() + _FAILED_PAUSE_S
            return
        self._strange &= set(names)
        for name, key in paths.blocks_in(name for name in names if name not in self._strange):
            if key.seq != HANDED_SEQ:
                self._strange.add(name)
                continue
            if self._is_known(key):
                continue
            self._reading.add(key)
            future = self._coordinator.get(paths.running_block(self._node.name, key))
            future.add_done_callback(lambda read, key=key: self._post(partial(self._read, generation, key, read)))  # type: ignore[misc]
        if self._again:
            self.look()

    def _is_known(self, key: BlockKey) -> bool:
        node = self._node
        return key in node.blocks or key in self._reading or key in self._met or key in node.puller.in_doubt()

    def _read(self, generation: int, key: BlockKey, done: Future[Stamped | None]) -> None:
        if generation != self._generation:
            return
        self._reading.discard(key)
        try:
            found = done.result()
        except RmgrError:
            self._look_s = machine.monotonic() + _FAILED_PAUSE_S
            return
        if found is None or self._is_known(key):
            return
        name = paths.block_name(key)
        try:
            block = self.hints.meet(key, found.data) or ClaimedBlock.claimed(self._node.name, "", key, _handed(key, found.data))
            if not block.data.incarnation:  # else it was given back and claimed here, and ended meanwhile
                self._met[key] = block, found.version
                return
        except RmgrError as error:
            self._log.warning("block_not_readable", node=self._node.name, block=name, error=error.message)
        self._strange.add(name)

    def _take(self, key: BlockKey, boards: Sequence[PendingQueue]) -> None:
        info = self._records.get(key.submission)
        if info is None:
            if self._records.is_refused(key.submission):  # it cannot be run, nor ended: not looked at again while it stands there
                self._node.stager.forget(self._met.pop(key)[0])
                self._strange.add(paths.block_name(key))
            return  # it is on its way, or asked for again in a while
        failpoint("starter.handed")
        node = self._node
        block, version = self._met.pop(key)
        block.version = version
        now_us = machine.wall_us()
        block.data = msgspec.structs.replace(
            block.data, incarnation=node.incarnation, claimed_us=now_us, stamp=machine.guid()[:12], started=0
        )
        block.queue, block.base_us, block.info = info.queue.name, now_us, info
        node.claimed(block)
        self._next = replace(key, first=key.end)
        if info.refusal:
            return  # it ends here: nothing of it runs
        board = next((board for board in boards if board.spec.name == block.queue and board.spec.state != "stopped"), None)
        why = "" if board is not None and node.puller.suits(info, key) else "its queue is not served here, or it does not fit"
        if board is not None:
            why = why or not_admitted(board.spec, info.record, key, is_newer=0 < board.since < info.czxid)
        if not why and self._caps.is_on and self._caps.room(info.record.user, key.cores, machine.monotonic()) == 0:
            why = self._caps.why(info.record.user)
        if why:
            self._log.warning("block_refused", node=node.name, block=paths.block_name(key), why=why)
            block.turned_away = why
            node.give_back(block, block.tail(key.count), name="RETURN", held=False)


def _handed(key: BlockKey, data: bytes) -> BlockData:
    """A block as a Submitter hands it over: signed, and nothing else. Raises: InvalidRecord, WrongCluster."""
    name = paths.block_name(key)
    found = decode(data, BlockData, name)
    check_block(key, found, pulled=True)
    return found
