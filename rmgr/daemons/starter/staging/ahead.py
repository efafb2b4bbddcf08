"""Inputs of keyed calls, read before the turn of their tasks: many at a time, within so many bytes of memory.

A task's inputs are read once: its message is kept until it has ended here or was given away. Values that are too large for a message,
alone or together, become files (`Stager`); all others go from the store's answer into the message that the worker gets.

Output keys that their Submitter has left unclaimed (HAND, protocol.md 5) are claimed at the same time. No task starts before both are done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_keyed
from rmgr.daemons.starter.core.arguments import ArgumentsPiece
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.room import GivenUpError, Wish
from rmgr.daemons.starter.staging.claims import OutputClaims
from rmgr.daemons.starter.staging.convoy import Convoy
from rmgr.daemons.starter.staging.inputs import ROWS_TOGETHER, Input, Inputs, TaskReads
from rmgr.daemons.starter.staging.left import LeftKeys
from rmgr.daemons.starter.staging.want import FoundInputs, Message, Want
from rmgr.errors import PermissionDenied
from rmgr.model.tasks.block import MAX_KEYED_BYTES, MAX_KEYS, MAX_LEFT_KEYS, KeyedPayload
from rmgr.model.wire.frames import MAX_INLINE_PAYLOAD, KeyedCall, KeyedInput

#: Input values up to this many bytes travel in the message, larger ones as files.
INLINE_INPUT = 256 * 1024
#: Values of the keyed calls of a node that are kept in memory where nobody sets another limit ([starter] values_cap_bytes).
CAP_BYTES = 64 * 1024 * 1024


class ReadAhead:
    """Reads for one node.

    Args:
        arrived: gets each task with its `Message`, what was `FoundInputs`, or why it cannot have it; on the owner's thread. False: no
            node has to settle.
        claims: of output keys that are left to this node; None: there are none.
        cap_bytes: of messages, and of what is being read. A task that alone needs more is read when nothing else is held.
    """

    def __init__(
        self,
        io: StoreIO,
        inputs: Inputs,
        arrived: Callable[[Want, Message | FoundInputs | Exception], bool],
        *,
        claims: OutputClaims | None = None,
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        self._io = io
        self._inputs = inputs
        self._tell = arrived
        self.cap_bytes = cap_bytes
        self.held_bytes = 0
        self._convoy: Convoy[Want] = Convoy(io, self._carry, self._arrived, weight=_weight, most=ROWS_TOGETHER, is_read=True)
        self.left = LeftKeys(io, claims, self._tell_all_of)

    def begin(self, block: ClaimedBlock, index: int, wish: Wish, *, is_next: bool) -> bool:
        """Reads for a task, unless the memory is full: False. is_next: nothing is read before it. Raises: OSError, PermissionDenied."""
        keyed = keyed_of(block, index)
        need_bytes = min(len(keyed.inputs) * INLINE_INPUT, MAX_INLINE_PAYLOAD)
        if self.held_bytes + need_bytes > self.cap_bytes and not is_next and self.held_bytes:
            return False
        self.held_bytes += need_bytes
        want = Want(block, index, wish, keyed, need_bytes)
        if keyed.claims_by and keyed.outputs:
            self.left.begin(want)
        if _weight(want) <= ROWS_TOGETHER:
            self._convoy.add(want)
        else:  # seconds of one thread: others' inputs, which few jobs carry, do not wait behind it
            carry, arrived = partial(self._carry, wants=[want]), partial(self._arrived, [want])
            self._io.run(carry, arrived, user=block.info.record.user, is_read=True, is_long=True, tells=True)
        return True

    @property
    def has_room(self) -> bool:
        """A task with one input may be read."""
        return self.held_bytes + INLINE_INPUT <= self.cap_bytes or not self.held_bytes

    def settle(self, taken_bytes: int, really_bytes: int) -> None:
        """What was taken holds so many bytes: 0 gives it back."""
        self.held_bytes += really_bytes - taken_bytes

    # -- on an IO thread

    def _carry(self, store: Store, wants: list[Want]) -> list[Message | FoundInputs | Exception]:
        wanted = [want for want in wants if want.wish.is_wanted]
        asks = [
            TaskReads(
                user=want.block.info.record.user,
                inputs=want.keyed.inputs,
                outputs=() if want.keyed.claims_by else want.keyed.outputs,  # whose they are is asked where they are claimed
                trust=want.keyed.trust,
            )
            for want in wanted
        ]
        found = dict(zip(wanted, self._inputs.find_many(store, asks, largest=INLINE_INPUT), strict=True)) if asks else {}
        return [_message(want.keyed, found[want]) if want in found else GivenUpError() for want in wants]

    # -- on the owner's thread

    def _arrived(self, wants: list[Want], result: list[Message | FoundInputs | Exception] | Exception) -> bool:
        must_settle = False
        for number, want in enumerate(wants):
            want.found = result if isinstance(result, Exception) else result[number]
            must_settle = self._tell_all_of(want) or must_settle
        return must_settle

    def _tell_all_of(self, want: Want) -> bool:
        """Once its inputs are here and its keys are its own, or somebody else's. True: its node has to settle."""
        if want.found is None or want.is_claiming:
            return False
        found, want.found = want.found, None
        return self._tell(want, want.refusal or found)


def keyed_of(block: ClaimedBlock, index: int) -> KeyedPayload:
    """The arguments of a task in the keyed form. Raises: PermissionDenied where its user has put something else there; OSError."""
    payload = block.payload(index)
    why = f"they have {len(payload):,} bytes, at most {MAX_KEYED_BYTES:,} are allowed"
    if len(payload) <= MAX_KEYED_BYTES:
        try:
            keyed = decode_keyed(payload.read() if isinstance(payload, ArgumentsPiece) else payload)
        except msgspec.DecodeError as error:
            why = str(error)
        else:
            most = MAX_LEFT_KEYS if keyed.claims_by else MAX_KEYS
            if len(keyed.outputs) <= most and len(keyed.inputs) + len(keyed.outputs) <= MAX_KEYS:
                return keyed
            why = f"{len(keyed.inputs):,} inputs and {len(keyed.outputs):,} outputs are more than a task may have"
    told = f"refused: the arguments of task {block.key.submission}_{index} are no keys: {why}"
    raise PermissionDenied(told, hint="only rmgr's own library writes them; rmgr version")


def encode_call(inputs: list[KeyedInput], keyed: KeyedPayload) -> bytes:
    """The message of a task."""
    return msgspec.msgpack.encode(KeyedCall(tuple(inputs), len(keyed.outputs)))


def _message(keyed: KeyedPayload, found: list[Input] | Exception) -> Message | FoundInputs | Exception:
    if isinstance(found, Exception):
        return found
    inputs = []
    for one in found:
        if one.data is None:
            return FoundInputs(found)
        inputs.append(KeyedInput(data=one.data, pickled=one.pickled))
    call = encode_call(inputs, keyed) if sum(len(one.data) for one in inputs) < MAX_INLINE_PAYLOAD else b""
    return Message(call) if 0 < len(call) <= MAX_INLINE_PAYLOAD else FoundInputs(found)


def _weight(want: Want) -> int:
    return 1 + len(want.keyed.inputs) + len(want.keyed.outputs)
