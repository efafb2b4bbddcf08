"""Blocks that a Submitter hands straight to this node (HAND), which deletes its idle mark and makes a claimed block; and direct lines.

The mark is watched while it stands. When another process deletes it, the node's claimed blocks are listed, and an unknown one is taken as
if its claim had just been answered. A client that submits one task after another waits for this, so the mark is watched right behind the
commit that sets it, and the thread that brings the event asks for the expected block at once. A client with a direct line announces what
it hands over; then the mark is watched only a moment later. Level-triggered, as everything here: a watch lost with its connection fires,
a CLAIM that finds the mark gone looks, and a new registration fails blocks that were never seen.
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
from rmgr.model.block import BlockData, BlockKey, KeyedPayload
from rmgr.model.identity import Role
from rmgr.model.line import Ahead, Claimed, ClaimStage, Hint, Message, Told
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.daemons.starter.node.node import NodeAgent

_FAILED_PAUSE_S = 0.2
#: How much later the mark is watched if the last client is going to announce the next block.
_HINTED_S = 0.03
#: Most announced blocks of a node that have not come: of one client's user, of one gateway, of all; and how long they are remembered.
_OF_ONE, _OF_GATEWAY, _OF_ALL, _KEEP_S = 8, 32, 64, 2.0
#: How long a client may take to claim output keys (s).
_CLAIM_S = 0.25


class Hands:
    """Blocks that are handed to one node.

    Attributes: due_s: when `settle` must be called without a new fact (monotonic), inf = never.
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
        """Forgets everything after a new registration, which has adopted or failed what stood."""
        self._generation += 1
        self._watched = self._is_searching = self._again = False
        self._reading: set[BlockKey] = set()
        for block, _ in self._met.values():
            self._node.stager.forget(block)
        self._met.clear()
        self._look_s, self._watch_s = math.inf, -math.inf  # no look is due; watches at once
        self.hints.reset()
        self._strange: set[str] = set()  #: listed names that were not handed over validly
        self._next: BlockKey | None = None  #: the next block if the client goes on as before

    @property
    def is_taking(self) -> bool:
        """Whether a block may have been handed over that is not yet among the node's blocks."""
        return self._is_searching or bool(self._reading) or bool(self._met)

    def settle(self, boards: Sequence[PendingQueue], now_s: float) -> None:
        """Watches the mark while it stands; takes blocks that have come."""
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
        """Called behind a commit, which may set the mark: a watch set now is answered right behind the commit."""
        if is_hinted:
            self._watch_s = machine.monotonic() + _HINTED_S
        elif sets_mark and not self._watched:
            self._watch()

    def heard(self, line: DirectLine, hint: Hint) -> None:
        """Takes the hint of a client that hands over a block. On the line's thread."""
        self.hints.heard(line, hint, self._generation)

    def look(self, key: BlockKey | None = None, asked: Future[Stamped | None] | None = None) -> None:
        """Looks for blocks after the mark has gone. asked: the read of `key`, already sent."""
        self._look_s = math.inf
        if not self._node.stories.begin(self._search(key, asked), key="handed"):
            self._again = True

    def _search(self, key: BlockKey | None, asked: Future[Stamped | None] | None) -> Story[None]:
        self._is_searching, self._again = True, False
        try:
            # A client that submits one task after another hands over the next one: that saves a read before it runs.
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
        """Takes the answer to the read of an announced block."""
        if generation != self._generation or self._is_known(key):
            return
        idle = self._node.idle
        found = done.result() if done.exception() is None else None
        if found is not None:
            if idle.is_set:
                idle.goes(IdleStage.ABSENT)  # the HAND deleted the mark, too
            self._meet(key, found)
        else:
            self._watch_s = -math.inf  # the hint was early or wrong: go on as without it

    # -- the mark ----------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._watched = True
        fired = partial(self._on_fired, self._generation, self._next)
        future = self._coordinator.stat(paths.idle(self._node.name), watch=fired)
        future.add_done_callback(lambda done: self._post(partial(self._on_stat, self._generation, done)))

    def _on_fired(self, generation: int, key: BlockKey | None) -> None:
        """On the thread that brings the event."""
        idle = self._node.idle
        may_ask = key is not None and generation == self._generation and idle.stage is not IdleStage.CLEARING  # else a CLAIM deleted it
        asked = self._coordinator.get(paths.running_block(self._node.name, key)) if may_ask and key is not None else None
        self._post(lambda: self._on_watch(generation, key, asked))

    def _on_watch(self, generation: int, key: BlockKey | None, asked: Future[Stamped | None] | None) -> None:
        if generation != self._generation:
            return
        self._watched = False
        idle = self._node.idle
        if idle.is_set:  # else a commit of this node deleted it, or will report that it was gone
            idle.goes(IdleStage.ABSENT)
            self.look(key, asked)

    def _on_stat(self, generation: int, done: Future[Stat | None]) -> None:
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
        """Takes a block that was handed over, by the content of its znode."""
        name = paths.block_name(key)
        try:
            block = self.hints.meet(key, found.data) or ClaimedBlock.claimed(self._node.name, "", key, _decode_handed(key, found.data))
            if not block.data.incarnation:  # else it was given back and claimed here, and has ended meanwhile
                self._met[key] = block, found.version
                return
        except RmgrError as error:
            self._node.log.warning("block_not_readable", block=name, error=error.message)
        self._strange.add(name)

    def _take(self, key: BlockKey, boards: Sequence[PendingQueue]) -> None:
        info = self._shared.records.get(key.submission)
        if info is None:
            if self._shared.records.is_refused(key.submission):  # it can neither run nor end: ignored while it stands
                self._node.stager.forget(self._met.pop(key)[0])
                self._strange.add(paths.block_name(key))
            return  # its record is being read, or will be asked for again
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
            self._node.log.warning("block_refused", block=paths.block_name(key), why=why)
            block.judge(BlockVerdict.TURNED_AWAY, why)
            node.giving.give_back(block, block.tail(key.count), name="RETURN", held=False)


def _decode_handed(key: BlockKey, data: bytes) -> BlockData:
    """Returns a block as a Submitter hands it over, without marks of a run. Raises: InvalidRecord, WrongCluster."""
    name = paths.block_name(key)
    found = decode(data, BlockData, name)
    check_block(key, found, pulled=True)
    return found


# -- hints -----------------------------------------------------------------------------------------------------------------
# Clients announce on direct lines which blocks they hand over, and hear early how these ended (`adapters/rpc/line.py`). On a hint the
# Starter asks ZooKeeper for the block at once, instead of after a watch; while it waits for the answer, it verifies the announced block and
# reads its inputs. An early hint, given before the block is committed, has only the latter effect. Only what was read from ZooKeeper is
# run: a hint that is wrong, late or lost changes nothing. The client that gave the hint is told what is committed of the block: the
# fragment when the COMPLETE goes out, its number once it is committed. If the output keys of a block are left to this node, the client
# claims them and says so (`staging/stage.py`). Its word counts, since these are the keys of its own tasks. Without it, this node claims
# them.


@dataclass(frozen=True, slots=True)
class Announced:
    """An announced block. block: verified as far as possible. data: as announced."""

    line: DirectLine
    block: ClaimedBlock
    data: bytes
    until_s: float


@dataclass(frozen=True, slots=True)
class News:
    """A message to a client about one COMPLETE."""

    line: DirectLine
    submission: int
    fragment: bytes
    serial: int

    @classmethod
    def of(cls, block: ClaimedBlock, multi: Multi) -> News | None:
        """Returns the news for the client of a block, None if there is no open line or no fragment."""
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
        """Tells the client that the COMPLETE was sent."""
        self.line.send(Ahead(self.serial, self.submission, self.fragment))

    def told(self, outcome: Committed) -> None:
        """Tells the client that it was committed. On any thread."""
        prefix = paths.fragment_prefix(self.submission)
        made = next((path for path in outcome.paths if path.startswith(prefix)), "")
        if made and not outcome.resolved:  # else the number of the fragment is unknown
            self.line.send(Told(self.serial, self.submission, int(made.removeprefix(prefix))))


class Hints:
    """Hints of one node; owner's thread, except for `heard`."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self._announced: dict[BlockKey, Announced] = {}
        self._asking: dict[BlockKey, DirectLine] = {}
        self._early: dict[BlockKey, DirectLine] = {}  #: early hints that were not looked at yet
        self._claiming: dict[BlockKey, Announced] = {}  #: blocks whose clients are claiming their output keys

    def heard(self, line: DirectLine, hint: Hint, generation: int) -> None:
        """Takes a hint on the line's thread, and asks for the block first. generation: of the registration."""
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
                self._shared.post(Quietly(lambda: self._announce(line, key, hint.data)))
            return
        self._asking[key] = line
        asked = self._shared.coordinator.get(paths.running_block(self._node.name, key))
        self._shared.post(Quietly(lambda: self._announce(line, key, hint.data)))
        asked.add_done_callback(lambda _: self._shared.post(lambda: self._answered(generation, key, asked)))

    def reset(self) -> None:
        """Forgets announcements after a new registration."""
        for key in list(self._announced):
            self._drop(key)
        while self._claiming:
            self._node.stager.left.advance(self._claiming.popitem()[1].block, ClaimStage.HERE)

    @property
    def due_s(self) -> float:
        """When `settle` must be called without a new fact (monotonic), inf = never."""
        return min((claiming.until_s for claiming in self._claiming.values()), default=math.inf)

    def settle(self, now_s: float) -> None:
        """Forgets blocks that were announced long ago and never came. Cost: O(announced)."""
        for old in [one for one, announced in self._announced.items() if announced.until_s < now_s]:
            self._drop(old)
        for key in [one for one, claiming in self._claiming.items() if claiming.until_s <= now_s or not claiming.line.is_open]:
            self._node.stager.left.advance(self._claiming.pop(key).block, ClaimStage.HERE)

    def claimed(self, line: DirectLine, message: Claimed) -> None:
        """Notes how far a client's claim of output keys is. On the line's thread."""
        try:
            key = paths.parse_block(message.block)
        except ValueError:
            line.close()
            return
        self._shared.post(Quietly(lambda: self._advance(line, key, message.stage)))

    def _lines(self) -> list[DirectLine]:
        """Returns the lines of announced blocks. On any thread."""
        return [announced.line for announced in list(self._announced.values())]

    def _advance(self, line: DirectLine, key: BlockKey, stage: ClaimStage) -> bool:
        """Advances a claim of output keys. Returns: whether a task waited for it."""
        claiming = self._claiming.get(key)
        if claiming is None or claiming.line is not line:
            return False
        if stage is not ClaimStage.DECIDED:
            del self._claiming[key]
        return self._node.stager.left.advance(claiming.block, stage)

    def meet(self, key: BlockKey, data: bytes) -> ClaimedBlock | None:
        """Returns the block announced under `key` if its data were read in ZooKeeper; its client is told about it from now on."""
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
        """Does what can be done before the block was read in ZooKeeper."""
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
            self._shared.gate.admission(block)  # kept with the block; a refusal is repeated when the block comes

    def _answered(self, generation: int, key: BlockKey, asked: Future[Stamped | None]) -> None:
        self._asking.pop(key, None)
        self._node.hands.hinted(generation, key, asked)


def _has_room(line: DirectLine, others: Iterable[DirectLine]) -> bool:
    """Returns whether one more block of this line may be kept beside those of `others`: no user takes the room of others."""
    kept = list(others)
    user = _user_of(line)
    most = _OF_GATEWAY if _is_gateway(line) else _OF_ONE
    return len(kept) < _OF_ALL and sum(_user_of(one) == user for one in kept) < most


def _user_of(line: DirectLine) -> str | int:
    """Returns the user at the other end of a line; without names each line counts as a user."""
    return line.peer.name if line.peer is not None else id(line)


def _is_gateway(line: DirectLine) -> bool:
    """Returns whether a gateway is at the other end, which speaks for all its clients."""
    return line.peer is not None and line.peer.role is Role.SUBMITTER


def _is_his(line: DirectLine, block: ClaimedBlock) -> bool:
    """Returns whether the peer is the block's user, or a gateway, which lets clients hand over only their own work."""
    return line.peer is None or _is_gateway(line) or line.peer.name == block.info.record.user


class Switchboard:
    """The direct lines of a Starter: their thread, their port, and the node that each hint goes to.

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
        self._loop = Loop("rmgr-lines", on_crash=self._log_crash)
        self._server = LineServer(
            address,
            loop=self._loop,
            credentials=credentials,
            is_revoked=is_revoked,
            on_message=self._on_message,
            of_one=lambda: bounds.limits.lines,
        )
        self.port = self._server.port

    def close(self) -> None:
        """Ends all lines."""
        self._server.close()
        self._loop.close()

    def _on_message(self, line: DirectLine, message: Message) -> None:
        node = self._nodes.get(message.node) if isinstance(message, Hint | Claimed) else None
        if isinstance(message, Hint) and node is not None:
            node.hands.heard(line, message)
        elif isinstance(message, Claimed) and node is not None:
            node.hands.hints.claimed(line, message)
        else:
            line.close()

    def _log_crash(self, error: BaseException) -> None:
        """Logs the end of all lines; work goes on without, as for clients that have none."""
        self._log.error("lines_ended", error=repr(error))
