"""Hears on direct lines which blocks clients hand over, and tells clients early how these ended (`adapters/rpc/line.py`).

A hint makes the Starter ask ZooKeeper for the block at once, instead of after a watch; and verify what is announced, and read its
inputs, while it waits for the answer. An early one, given before the block is committed, has only the latter effect. Only what was
read from ZooKeeper is run: a hint that is wrong, late or lost changes nothing. The client that gave it is told what is committed of
the block: the fragment when the COMPLETE goes out, its number once it is committed.

Of a block whose output keys are left to this node it is the client that claims them, and says so (`staging/left.py`). Its word counts, for
these are the keys of its own tasks. When it does not come, this node claims them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.line import DirectLine, LineServer
from rmgr.coord.ops.work import HANDED_SEQ
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Multi, Stamped
from rmgr.coord.validity import check_block, decode
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.quietly import Quietly
from rmgr.errors import RmgrError
from rmgr.model.cluster.identity import Role
from rmgr.model.tasks.block import BlockData, BlockKey, KeyedPayload
from rmgr.model.wire.line import Ahead, Claimed, ClaimStage, Hint, Message, Told
from rmgr.runtime import machine
from rmgr.runtime.logger import Log

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.daemons.starter.core.records import RecordCache
    from rmgr.daemons.starter.health.trust import Gate
    from rmgr.daemons.starter.staging.stage import Stager

#: Announced blocks of one node that have not been met, of one client's user, of one gateway and of all; how long they are remembered.
_OF_ONE, _OF_GATEWAY, _OF_ALL, _KEEP_S = 8, 32, 64, 2.0
#: So long a client may take to claim output keys (s).
_CLAIM_S = 0.25


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


class HintedNode(Protocol):
    """The node that is to be handed blocks."""

    name: str
    stager: Stager


class HintServices(Protocol):
    """Reads blocks and records, verifies seals, returns to the loop's thread."""

    coordinator: Coordinator
    records: RecordCache
    gate: Gate | None

    def post(self, call: Callable[[], None], /) -> None:
        """Runs it on the loop's thread."""
        ...


class Hints:
    """Hints of one node; the owner's thread, but for `heard`.

    Args: read: takes the answer about an announced block, as after a watch (`Hands`).
    """

    def __init__(self, node: HintedNode, shared: HintServices, *, read: Callable[[int, BlockKey, Future[Stamped | None]], None]) -> None:
        self._node = node
        self._shared = shared
        self._read = read
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
            self._shared.gate.refusal(block)  # remembered with the block; if it is refused, it is again when it is met

    def _answered(self, generation: int, key: BlockKey, asked: Future[Stamped | None]) -> None:
        self._asking.pop(key, None)
        self._read(generation, key, asked)


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


class HintedHands(Protocol):
    """Takes hints of one node. hints: what clients say beside."""

    hints: Hints

    def heard(self, line: DirectLine, hint: Hint) -> None:
        """A client says what it is handing over. On the line's thread."""
        ...


class HintTarget(Protocol):
    """A node to which hints go."""

    @property
    def hands(self) -> HintedHands: ...


class Switchboard:
    """The lines of a Starter: its thread, its port, and to which node a hint goes.

    Args: nodes: filled by the caller before the first line can come.
    """

    def __init__(
        self,
        address: tuple[str, int],
        nodes: Mapping[str, HintTarget],
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
