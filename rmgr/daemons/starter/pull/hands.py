"""Blocks that a Submitter hands straight to this node (HAND): its idle marker goes, and the block is claimed already; and direct lines.

The mark is watched while it stands. When it goes without this node's doing, the node's claimed blocks are listed, and one
that nobody here knows is taken as if its claim had just been answered. Who submits one task after another waits for this:
the mark is watched right behind the commit that sets it, and the block that is to be expected is asked for by the thread
that brings the news. A client with a direct line says what it hands over (`starter/pull/hands.py`): then the mark is watched a
moment later only. Level-triggered, as everything here: a watch that
was lost with its connection fires, a CLAIM that finds the mark gone looks, and a new registration fails what it never saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.line import DirectLine, LineServer
from rmgr.coord.decisions.admitted import not_admitted
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Multi, Stamped, Stat
from rmgr.coord.validity import check_block, decode
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock
from rmgr.daemons.starter.core.io import Quietly
from rmgr.daemons.starter.core.tree import IdleStage
from rmgr.daemons.starter.pull.board import PendingQueue
from rmgr.errors import RmgrError
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import BlockData, BlockKey, KeyedPayload
from rmgr.model.wire.line import Ahead, Claimed, ClaimStage, Hint, Message, Told
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.daemons.starter.node.node import NodeAgent

_FAILED_PAUSE_S = 0.2
#: The mark is watched so much later where the client that was served last would say what comes.
_HINTED_S = 0.03
#: Announced blocks of one node that have not been met, of one client's user, of one gateway and of all; how long they are remembered.
_OF_ONE, _OF_GATEWAY, _OF_ALL, _KEEP_S = 8, 32, 64, 2.0
#: So long a client may take to claim output keys (s).
_CLAIM_S = 0.25


class Hands:
    """Blocks that one node is handed.

    Attributes: due_s: when `settle` is needed again without a new fact (monotonic), inf = never.
    """

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._coordinator = node.shared.coordinator
        self._post = node.shared.post
        self._generation = 0
        self.due_s = math.inf
        self.hints = Hints(node)
        self._met: dict[BlockKey, tuple[ClaimedBlock, int]] = {}
        self.reset()

    def reset(self) -> None:
        """A new registration: what stood before it was adopted or failed."""
        self._generation += 1
        self._watched = self._is_searching = self._again = False
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
        return self._is_searching or bool(self._reading) or bool(self._met)

    def settle(self, boards: Sequence[PendingQueue], now_s: float) -> None:
        """Watches the mark while it stands; takes what has come."""
        idle = self._node.idle
        self.due_s = math.inf
        if idle.is_set and not self._watched:
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
        if not self._node.stories.begin(self._search(key, asked), key="handed"):
            self._again = True

    def _search(self, key: BlockKey | None, asked: Future[Stamped | None] | None) -> Story[None]:
        self._is_searching, self._again = True, False
        try:
            # Somebody who submits one task after another hands over the next one: a reading less before it runs.
            if (expected := self._next) is not None and not self._is_known(expected):
                if asked is None or key != expected:
                    asked = self._coordinator.get(paths.running_block(self._node.name, expected))
                self._next = None
                with suppress(RmgrError):
                    found: Stamped | None = yield asked
                    if found is not None and not self._again:
                        if not self._is_known(expected):  # else a hint was quicker
                            self._meet(expected, found)
                        return
            while True:
                self._again = False
                names: list[str] | None = yield self._coordinator.children(paths.running_node(self._node.name))
                self._read_new(names or ())
                if not self._again:
                    return
        except RmgrError:
            self._look_s = machine.monotonic() + _FAILED_PAUSE_S
        finally:
            self._is_searching = False

    def hinted(self, generation: int, key: BlockKey, done: Future[Stamped | None]) -> None:
        """What was announced was asked for."""
        if generation != self._generation or self._is_known(key):
            return
        idle = self._node.idle
        found = done.result() if done.exception() is None else None
        if found is not None:
            if idle.is_set:
                idle.goes(IdleStage.ABSENT)  # with it
            self._meet(key, found)
        else:
            self._watch_s = -math.inf  # it came too early, or came to nothing: as without it

    # -- the mark ----------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._watched = True
        fired = partial(self._on_fired, self._generation, self._next)
        future = self._coordinator.stat(paths.idle(self._node.name), watch=fired)
        future.add_done_callback(lambda done: self._post(partial(self._seen, self._generation, done)))

    def _on_fired(self, generation: int, key: BlockKey | None) -> None:
        """On the thread that brings it."""
        idle = self._node.idle
        may_ask = key is not None and generation == self._generation and idle.stage is not IdleStage.CLEARING  # else it is a CLAIM's doing
        asked = self._coordinator.get(paths.running_block(self._node.name, key)) if may_ask and key is not None else None
        self._post(partial(self._fired, generation, key, asked))

    def _fired(self, generation: int, key: BlockKey | None, asked: Future[Stamped | None] | None) -> None:
        if generation != self._generation:
            return
        self._watched = False
        idle = self._node.idle
        if idle.is_set:  # else a commit of one's own took it away, or will tell that it was gone
            idle.goes(IdleStage.ABSENT)
            self.look(key, asked)

    def _seen(self, generation: int, done: Future[Stat | None]) -> None:
        if generation != self._generation:
            return
        try:
            is_there = done.result() is not None
        except RmgrError:
            return  # the watch fires with the connection
        idle = self._node.idle
        if not is_there and idle.is_set:
            idle.goes(IdleStage.ABSENT)
            self.look()

    # -- the block ---------------------------------------------------------------------------------------------------------

    def _read_new(self, names: Iterable[str]) -> None:
        self._strange &= set(names)
        for name, key in paths.blocks_in(name for name in names if name not in self._strange):
            if key.seq != HANDED_SEQ:
                self._strange.add(name)
            elif not self._is_known(key):
                self._node.stories.begin(self._read(key))

    def _is_known(self, key: BlockKey) -> bool:
        node = self._node
        return key in node.blocks or key in self._reading or key in self._met or key in node.puller.in_doubt()

    def _read(self, key: BlockKey) -> Story[None]:
        self._reading.add(key)
        try:
            found: Stamped | None = yield self._coordinator.get(paths.running_block(self._node.name, key))
        except RmgrError:
            self._look_s = machine.monotonic() + _FAILED_PAUSE_S
            return
        finally:
            self._reading.discard(key)
        if found is not None and not self._is_known(key):
            self._meet(key, found)

    def _meet(self, key: BlockKey, found: Stamped) -> None:
        """A block that was handed over, by what stands there."""
        name = paths.block_name(key)
        try:
            block = self.hints.meet(key, found.data) or ClaimedBlock.claimed(self._node.name, "", key, _handed(key, found.data))
            if not block.data.incarnation:  # else it was given back and claimed here, and ended meanwhile
                self._met[key] = block, found.version
                return
        except RmgrError as error:
            self._node.log.warning("block_not_readable", node=self._node.name, block=name, error=error.message)
        self._strange.add(name)

    def _take(self, key: BlockKey, boards: Sequence[PendingQueue]) -> None:
        info = self._shared.records.get(key.submission)
        if info is None:
            if self._shared.records.is_refused(key.submission):  # it cannot be run, nor ended: not looked at again while it stands there
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
            block.judge(BlockVerdict.REFUSED, info.refusal)
            return  # it ends here: nothing of it runs
        board = next((board for board in boards if board.spec.name == block.queue and board.spec.state != "stopped"), None)
        why = "" if board is not None and node.puller.suits(info, key) else "its queue is not served here, or it does not fit"
        if board is not None:
            why = why or not_admitted(board.spec, info.record, key, is_newer=0 < board.since < info.czxid)
        caps = self._shared.caps
        if not why and caps.is_on and caps.room(info.record.user, key.cores, machine.monotonic()) == 0:
            why = caps.why(info.record.user)
        if why:
            self._node.log.warning("block_refused", node=node.name, block=paths.block_name(key), why=why)
            block.judge(BlockVerdict.TURNED_AWAY, why)
            node.giving.give_back(block, block.tail(key.count), name="RETURN", held=False)


def _handed(key: BlockKey, data: bytes) -> BlockData:
    """A block as a Submitter hands it over: signed, and nothing else. Raises: InvalidRecord, WrongCluster."""
    name = paths.block_name(key)
    found = decode(data, BlockData, name)
    check_block(key, found, pulled=True)
    return found


# -- hints -----------------------------------------------------------------------------------------------------------------
# Hears on direct lines which blocks clients hand over, and tells clients early how these ended (`adapters/rpc/line.py`). A hint makes the
# Starter ask ZooKeeper for the block at once, instead of after a watch; and verify what is announced, and read its inputs, while it waits
# for the answer. An early one, given before the block is committed, has only the latter effect. Only what was read from ZooKeeper is run: a
# hint that is wrong, late or lost changes nothing. The client that gave it is told what is committed of the block: the fragment when the
# COMPLETE goes out, its number once it is committed. Of a block whose output keys are left to this node it is the client that claims them,
# and says so (`staging/stage.py`). Its word counts, for these are the keys of its own tasks. When it does not come, this node claims them.


@dataclass(frozen=True, slots=True)
class Announced:
    """block: verified as far as possible. data: as announced."""

    line: DirectLine
    block: ClaimedBlock
    data: bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class News:
    """Message to a client about one COMPLETE."""

    line: DirectLine
    submission: int
    fragment: bytes
    serial: int

    @classmethod
    def of(cls, block: ClaimedBlock, multi: Multi) -> News | None:
        """None: there is nobody to tell, or nothing."""
        line: DirectLine | None = block.line
        if line is None or not line.is_open:
            return None
        prefix = paths.fragment_prefix(block.key.submission)
        fragment = next((op.data for op in multi.ops if isinstance(op, Create) and op.path == prefix), None)
        if fragment is None:
            return None
        line.serial += 1
        return cls(line, block.key.submission, fragment, line.serial)

    def ahead(self) -> None:
        """The COMPLETE is on its way."""
        self.line.send(Ahead(self.serial, self.submission, self.fragment))

    def told(self, outcome: Committed) -> None:
        """It was committed. On any thread."""
        prefix = paths.fragment_prefix(self.submission)
        made = next((path for path in outcome.paths if path.startswith(prefix)), "")
        if made and not outcome.resolved:  # else its number is not known
            self.line.send(Told(self.serial, self.submission, int(made.removeprefix(prefix))))


class Hints:
    """Hints of one node; the owner's thread, but for `heard`."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._announced: dict[BlockKey, Announced] = {}
        self._asking: dict[BlockKey, DirectLine] = {}
        self._early: dict[BlockKey, DirectLine] = {}  #: announced before they are asked for, and not looked at yet
        self._claiming: dict[BlockKey, Announced] = {}  #: their clients are claiming their output keys

    def heard(self, line: DirectLine, hint: Hint, generation: int) -> None:
        """On the line's thread: asks before anything else is done. generation: of the registration."""
        try:
            key = paths.parse_block(hint.block)
        except ValueError:
            line.close()
            return
        if key.seq != HANDED_SEQ or key in self._asking or not _has_room(line, self._asking.values()):
            return
        if hint.is_early:
            if key not in self._announced and _has_room(line, [*self._lines(), *self._early.values()]):
                self._early[key] = line
                self._shared.post(Quietly(partial(self._announce, line, key, hint.data)))
            return
        self._asking[key] = line
        asked = self._shared.coordinator.get(paths.running_block(self._node.name, key))
        self._shared.post(Quietly(partial(self._announce, line, key, hint.data)))
        asked.add_done_callback(lambda _: self._shared.post(partial(self._answered, generation, key, asked)))

    def reset(self) -> None:
        """A new registration."""
        for key in list(self._announced):
            self._drop(key)
        while self._claiming:
            self._node.stager.left.advance(self._claiming.popitem()[1].block, ClaimStage.HERE)

    @property
    def due_s(self) -> float:
        """When `settle` is needed without a new fact (monotonic), inf = never."""
        return min((claiming.until_s for claiming in self._claiming.values()), default=math.inf)

    def settle(self, now_s: float) -> None:
        """What was announced long ago, and never came, is forgotten. Cost: O(announced)."""
        for old in [one for one, announced in self._announced.items() if announced.until_s < now_s]:
            self._drop(old)
        for key in [one for one, claiming in self._claiming.items() if claiming.until_s <= now_s or not claiming.line.is_open]:
            self._node.stager.left.advance(self._claiming.pop(key).block, ClaimStage.HERE)

    def claimed(self, line: DirectLine, message: Claimed) -> None:
        """A client says how far the claim of output keys is. On the line's thread."""
        try:
            key = paths.parse_block(message.block)
        except ValueError:
            line.close()
            return
        self._shared.post(Quietly(partial(self._advance, line, key, message.stage)))

    def _lines(self) -> list[DirectLine]:
        """Of what is announced. On any thread."""
        return [announced.line for announced in list(self._announced.values())]

    def _advance(self, line: DirectLine, key: BlockKey, stage: ClaimStage) -> bool:
        """True: something waited for it."""
        claiming = self._claiming.get(key)
        if claiming is None or claiming.line is not line:
            return False
        if stage is not ClaimStage.DECIDED:
            del self._claiming[key]
        return self._node.stager.left.advance(claiming.block, stage)

    def meet(self, key: BlockKey, data: bytes) -> ClaimedBlock | None:
        """The block that was announced under `key`, if it is what was read; it is told of from here on."""
        found = self._announced.get(key)
        if found is None or found.data != data:
            self._drop(key)
            return None
        del self._announced[key]
        found.block.line = found.line
        return found.block

    def _drop(self, key: BlockKey) -> None:
        found = self._announced.pop(key, None)
        if found is not None:
            self._claiming.pop(key, None)
            self._node.stager.forget(found.block)

    def _announce(self, line: DirectLine, key: BlockKey, data: bytes) -> None:
        """Does what can be done before it is known that the block is there."""
        now_s = machine.monotonic()
        self._early.pop(key, None)
        self.settle(now_s)
        known = self._announced.get(key)
        if known is not None and known.line is line and known.data == data:
            self._announced[key] = replace(known, until_s=now_s + _KEEP_S)
            return
        info = self._shared.records.get(key.submission, is_announced=True)
        if info is None or not _has_room(line, self._lines()):
            return
        try:
            found = decode(data, BlockData, "a hint")
            check_block(key, found)
            are_left = found.keyed and any(decode(one, KeyedPayload, "a hint").claims_by for one in found.payloads)
        except RmgrError:
            line.close()
            return
        block = ClaimedBlock.claimed(self._node.name, info.queue.name, key, found)
        block.info = info
        if block.data.incarnation or block.is_placed or not _is_his(line, block):
            return
        self._drop(key)
        self._announced[key] = Announced(line, block, data, now_s + _KEEP_S)
        if are_left:
            block.claims = ClaimStage.AWAITED
            self._claiming[key] = Announced(line, block, data, now_s + _CLAIM_S)
        self._node.stager.meet(block)  # on other threads, while it is verified here
        if self._shared.gate is not None:
            self._shared.gate.admission(block)  # remembered with the block; if it is refused, it is again when it is met

    def _answered(self, generation: int, key: BlockKey, asked: Future[Stamped | None]) -> None:
        self._asking.pop(key, None)
        self._node.hands.hinted(generation, key, asked)


def _has_room(line: DirectLine, others: Iterable[DirectLine]) -> bool:
    """One more of this line may be kept beside those of `others`: nobody takes the room of other users."""
    kept = list(others)
    whose = _user_of(line)
    most = _OF_GATEWAY if _is_gateway(line) else _OF_ONE
    return len(kept) < _OF_ALL and sum(_user_of(one) == whose for one in kept) < most


def _user_of(line: DirectLine) -> str | int:
    """Who is at its other end; where nobody has a name each line is somebody."""
    return line.peer.name if line.peer is not None else id(line)


def _is_gateway(line: DirectLine) -> bool:
    """At the other end is a gateway, which speaks for all its clients."""
    return line.peer is not None and line.peer.role is Role.SUBMITTER


def _is_his(line: DirectLine, block: ClaimedBlock) -> bool:
    """The client at the other end is the user of that block, or a gateway, which lets a client hand over its own work alone."""
    return line.peer is None or _is_gateway(line) or line.peer.name == block.info.record.user


class Switchboard:
    """The lines of a Starter: its thread, its port, and to which node a hint goes.

    Args: nodes: filled by the caller before the first line can come.
    """

    def __init__(
        self,
        address: tuple[str, int],
        nodes: Mapping[str, NodeAgent],
        *,
        credentials: Credentials | None,
        is_revoked: Callable[[str], bool],
        log: Log,
        bounds: Bounds,
    ) -> None:
        self._nodes = nodes
        self._log = log
        self._loop = Loop("rmgr-lines", on_crash=self._crashed)
        self._server = LineServer(
            address,
            loop=self._loop,
            credentials=credentials,
            is_revoked=is_revoked,
            on_message=self._heard,
            of_one=lambda: bounds.limits.lines,
        )
        self.port = self._server.port

    def close(self) -> None:
        """Ends all lines."""
        self._server.close()
        self._loop.close()

    def _heard(self, line: DirectLine, message: Message) -> None:
        node = self._nodes.get(message.node) if isinstance(message, Hint | Claimed) else None
        if isinstance(message, Hint) and node is not None:
            node.hands.heard(line, message)
        elif isinstance(message, Claimed) and node is not None:
            node.hands.hints.claimed(line, message)
        else:
            line.close()

    def _crashed(self, error: BaseException) -> None:
        """Work goes on without lines, as it does for clients that have none."""
        self._log.error("lines_ended", error=repr(error))
