"""Codecs of everything that lies in a znode: canonical JSON for records, MessagePack for blocks and fragments.

What a newer release wrote is kept when an older one rewrites it: fields of JSON records, trailing elements of blocks.

    {"next":17,"newer_field":1}  --decode-->  Tail(next=17, newer={"newer_field":1})  --encode-->  the same bytes

A record of the same release costs one comparison more; only bytes that this release would have written otherwise are
looked at closely. Which records are rewritten by others than their writer: `/subs/..` and its tail and done (owner, its
successor, the leader, users), `/nodes/..` (FENCE), `/config`, `/meta`, and blocks (every claim, split and return).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from rmgr.errors import WrongCluster
from rmgr.model.tasks.block import MAX_TASKS, BlockData, FailedRange, Fragment, KeyedPayload, Outcome
from rmgr.model.wire import stream
from rmgr.model.wire.stream import json_decoder

T = TypeVar("T")

#: Newest record format that this release reads; a newer one is refused with a clear error, never guessed.
FORMAT = 1

#: What decoders raise, of records as of frames; also of numbers that no release can write again.
UNREADABLE = stream.UNREADABLE

_WIDE = 1 << 63

_json = msgspec.json.Encoder(order="sorted")
_pack = msgspec.msgpack.Encoder()
_block = msgspec.msgpack.Decoder(BlockData)
_fragment = msgspec.msgpack.Decoder(Fragment)
_failed = msgspec.msgpack.Decoder(FailedRange)
_outcomes = msgspec.msgpack.Decoder(tuple[Outcome, ...])
_page = msgspec.msgpack.Decoder(tuple[Fragment, ...])
_raw_page = msgspec.msgpack.Decoder(list[msgspec.Raw])
#: A page has at most 180 fragments of 12 KiB, and each of their bytes may be a value.
_MOST_PAGE_VALUES = 3_000_000
#: A fragment that tells nothing.
NOTHING = Fragment(attempt=0)
#: Fields of an outcome before those that are seldom used, and the values of these.
_PLAIN = Outcome.__struct_fields__.index("max_rss_kib")
_USUAL = astuple(Outcome(index=0))[_PLAIN:]
#: The same of one that never ran.
_ENDED = Outcome.__struct_fields__.index("exit_code")
_payloads = msgspec.msgpack.Decoder(tuple[bytes, ...])
_keyed = msgspec.msgpack.Decoder(KeyedPayload)


def cut(error: Exception) -> str:
    """What a decoder says, without all of what it did not like: that may have a megabyte."""
    told = str(error)
    return told if len(told) <= 300 else f"{told[:150]}...{told[-100:]}"


def encode_record(record: object) -> bytes:
    """Canonical JSON (sorted keys, no spaces) of a frozen dataclass, with what a newer release had written into it."""
    return restore(_json.encode(record))


def decode_record(data: bytes, kind: type[T], path: str = "") -> T:
    """Bytes of a znode -> record of `kind`; what it does not know stays in its `newer`, what is missing has its default.

    Raises: WrongCluster naming `path` when they are something else.
    """
    try:
        record = json_decoder(kind).decode(data)
        is_newer = getattr(record, "format", FORMAT) > FORMAT
        if not is_newer:
            keep(record, data)
    except UNREADABLE as error:
        told = f"the record at {path or kind.__name__} cannot be read: {cut(error)}"
        raise WrongCluster(told, hint="rmgr version; rmgr doctor") from error
    if is_newer:
        raise WrongCluster(f"the record at {path} was written by a newer release of rmgr", hint="rmgr version; upgrade this installation")
    return record


class _WideBlock(BlockData, frozen=True, array_like=True, kw_only=True):
    """A block whose mask has more bits than MessagePack's integers: the mask travels as little-endian bytes."""

    done: bytes  # type: ignore[assignment]


_wide_block = msgspec.msgpack.Decoder(_WideBlock)


class _NewerBlock(BlockData, frozen=True, array_like=True, kw_only=True):
    """A block with elements at its end that a newer release wrote: cut and replaced like any other, and written with them."""

    newer: tuple[Any, ...] = ()


_FIELDS = len(BlockData.__struct_fields__)
_any = msgspec.msgpack.Decoder()


def encode_block(data: BlockData) -> bytes:
    """Data of a block's znode."""
    if type(data) is _NewerBlock:
        known = {name: getattr(data, name) for name in BlockData.__struct_fields__}
        return _pack.encode([*_any.decode(encode_block(BlockData(**known))), *data.newer])
    if data.done < _WIDE:
        return _pack.encode(data)
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    mask = data.done.to_bytes(MAX_TASKS // 8, "little")
    return _pack.encode(_WideBlock(**(fields | {"done": mask})))


def unpack(decode: Callable[[bytes], T], data: bytes, most: int = stream.MAX_VALUES) -> T:
    """What `decode` makes of MessagePack. Raises msgspec.DecodeError alone, whatever stands there: who reads expects nothing else.

    Cost: of more than 1 MiB 0.3 us a value beside the decoder, which then builds no more than a million.
    """
    if len(data) > stream.FEW_BYTES and stream.is_crowded(data, most):
        raise msgspec.DecodeError(f"it has more than {most:,} values")
    try:
        return decode(data)
    except msgspec.DecodeError:
        raise
    except UNREADABLE as error:  # text that is no UTF-8, say, or what is nested too deep
        raise msgspec.DecodeError(f"{type(error).__name__}: {cut(error)}") from None


def decode_block(data: bytes) -> BlockData:
    """Data of a block's znode. Raises msgspec.DecodeError."""
    return unpack(_block_of, data)


def _block_of(data: bytes) -> BlockData:
    if array_length(data) > _FIELDS:
        elements = _any.decode(data)
        if is_deep(elements):
            raise msgspec.DecodeError("it is nested too deep")
        known = _block_of(_pack.encode(elements[:_FIELDS]))
        values = {name: getattr(known, name) for name in BlockData.__struct_fields__}
        return _NewerBlock(**values, newer=tuple(elements[_FIELDS:]))
    try:
        return _block.decode(data)
    except msgspec.ValidationError:
        wide = _wide_block.decode(data)
    fields = {name: getattr(wide, name) for name in wide.__struct_fields__}
    return BlockData(**(fields | {"done": int.from_bytes(wide.done, "little")}))


def encode_fragment(fragment: Fragment) -> bytes:
    """Data of a fragment's znode."""
    return _pack.encode(fragment)


def decode_fragment(data: bytes) -> Fragment:
    """Data of a fragment's znode. Raises msgspec.DecodeError."""
    return unpack(_fragment.decode, data)


def read_fragment(data: bytes) -> Fragment:
    """As `decode_fragment`, or NOTHING: whoever may create outcomes could write anything there."""
    try:
        return _fragment.decode(data)
    except UNREADABLE:
        return NOTHING


class _GlancedFragment(Fragment, frozen=True, array_like=True, kw_only=True):
    """A fragment whose outcomes are counted, and passed on as they are."""

    outcomes: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]


_glanced = msgspec.msgpack.Decoder(_GlancedFragment)


def glance_fragment(data: bytes) -> Fragment:
    """As `read_fragment`, for who counts outcomes and looks at none. Cost: a fifth of it."""
    try:
        return _glanced.decode(data)
    except UNREADABLE:
        return NOTHING


def encode_failed(record: FailedRange) -> bytes:
    """Data of a failed range's znode."""
    return _pack.encode(record)


def decode_failed(data: bytes) -> FailedRange:
    """Data of a failed range's znode. Raises msgspec.DecodeError."""
    return unpack(_failed.decode, data)


def brief(outcomes: Iterable[Outcome]) -> tuple[Any, ...]:
    """Outcomes for writing: of one with nothing unusual only what differs, which is read back as the whole.

    MessagePack structs write their trailing defaults, too: 24 of the 59 bytes of a no-op's outcome. Cost: 0.4 us each.
    """
    return tuple([fields[:_PLAIN] if (fields := astuple(outcome))[_PLAIN:] == _USUAL else outcome for outcome in outcomes])


def brief_ends(outcomes: Iterable[Outcome]) -> tuple[Any, ...]:
    """The same for outcomes of tasks that never ran: of one without more to tell nothing behind its reason."""
    usual = _USUAL[_ENDED - _PLAIN :]
    return tuple([fields[:_ENDED] if (fields := astuple(outcome))[_ENDED:] == usual else outcome for outcome in outcomes])


def encode_outcomes(outcomes: tuple[Any, ...]) -> bytes:
    """The store row of a fragment that does not fit its znode; `brief` or whole ones."""
    return _pack.encode(outcomes)


def decode_outcomes(data: bytes) -> tuple[Outcome, ...]:
    """Reverse of `encode_outcomes`. Raises msgspec.DecodeError."""
    return unpack(_outcomes.decode, data)


def join_page(fragments: list[bytes]) -> bytes:
    """The store row of fragments that left ZooKeeper, oldest first (their own rows stay): byte for byte, whatever release wrote them."""
    return array_of(fragments)


def decode_page(data: bytes) -> tuple[Fragment, ...]:
    """Reverse of `join_page`. Raises msgspec.DecodeError."""
    return unpack(_page.decode, data, _MOST_PAGE_VALUES)


def split_page(data: bytes) -> list[bytes]:
    """Reverse of `join_page`: what a newer release wrote, or signed, is still there. Raises msgspec.DecodeError."""
    return [bytes(raw) for raw in unpack(_raw_page.decode, data, _MOST_PAGE_VALUES)]


def encode_payloads(payloads: tuple[bytes, ...]) -> bytes:
    """The store row of a block's arguments that do not fit its znode."""
    return _pack.encode(payloads)


def decode_payloads(data: bytes) -> tuple[bytes, ...]:
    """Reverse of `encode_payloads`. Raises msgspec.DecodeError."""
    if (count := array_length(data)) > MAX_TASKS:
        raise msgspec.DecodeError(f"it has arguments of {count:,} tasks, a block has {MAX_TASKS}")
    return unpack(_payloads.decode, data)


def encode_keyed(payload: KeyedPayload) -> bytes:
    """Arguments of a task in the keyed form."""
    return _pack.encode(payload)


def decode_keyed(data: bytes) -> KeyedPayload:
    """Reverse of `encode_keyed`. Raises msgspec.DecodeError."""
    return unpack(_keyed.decode, data)


# -- what a newer release wrote ------------------------------------------------------------------------------------------------


_plain = msgspec.json.Decoder()
_MARK = b'"newer":{'
_FIELD = "newer"
#: Levels of what a newer release may have written. Encoding takes as much of the stack as decoding did, and who encodes may have less left.
_MOST_LEVELS = 32


def keep(record: object, data: bytes) -> None:
    """Puts what `data` has and `record`, decoded from it, does not know into the `newer` fields. In place: nobody has it yet."""
    if dataclasses.is_dataclass(record) and _json.encode(record) != data:
        _keep(record, _plain.decode(data))


def _keep(value: object, raw: object) -> None:
    if isinstance(raw, dict) and dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = _names(type(value))
        unknown = {key: item for key, item in raw.items() if key not in names}
        if unknown and _FIELD in names:
            if is_deep(unknown):
                raise ValueError("what no release knows is nested too deep")
            object.__setattr__(value, _FIELD, unknown)
        for name in names & raw.keys():
            _keep(getattr(value, name), raw[name])
    elif isinstance(raw, list) and isinstance(value, tuple):
        for item, raw_item in zip(value, raw, strict=False):
            _keep(item, raw_item)


def is_deep(value: object) -> bool:
    """It has more levels than a newer release may write. Cost: O(size)."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [item for one in level for item in _items(one)]
        if not level:
            return False
    return True


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, list | tuple) else ()


def restore(data: bytes) -> bytes:
    """Encoded record, with what its `newer` fields hold where it was found. (A user's text never matches: its quotes are escaped.)"""
    return _json.encode(_lift(_plain.decode(data))) if _MARK in data else data


def _lift(raw: Any) -> Any:
    if isinstance(raw, dict):
        unknown = raw.get(_FIELD)
        if not isinstance(unknown, dict):
            return {key: _lift(item) for key, item in raw.items()}
        return unknown | {key: _lift(item) for key, item in raw.items() if key != _FIELD}
    if isinstance(raw, list):
        return [_lift(item) for item in raw]
    return raw


@cache
def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))


def array_length(data: bytes) -> int:
    """Elements of a MessagePack array, 0 for anything else. Cost: O(1)."""
    if not data:
        return 0
    head = data[0]
    if 0x90 <= head <= 0x9F:
        return head & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(head, 0)
    return int.from_bytes(data[1 : 1 + width], "big") if width else 0


def array_of(encoded: list[bytes]) -> bytes:
    """A MessagePack array of elements that are encoded already, byte for byte as they are."""
    count = len(encoded)
    if count < 16:
        head = bytes([0x90 | count])
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(encoded)
