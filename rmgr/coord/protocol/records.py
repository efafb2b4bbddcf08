"""Codecs of everything in znodes: canonical JSON for records, MessagePack for blocks and fragments.

When an older release rewrites what a newer one wrote, it keeps unknown fields of JSON records and trailing elements of blocks.

    {"next":17,"newer_field":1}  --decode-->  Tail(next=17, newer={"newer_field":1})  --encode-->  the same bytes

A record of the same release costs one comparison more; only bytes that this release would have written otherwise are
examined closely. Records that others than their writer rewrite: `/subs/..` and its tail and done (owner, its
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
from rmgr.model import stream
from rmgr.model.block import MAX_TASKS, BlockData, FailedRange, Fragment, KeyedPayload, Outcome
from rmgr.model.stream import json_decoder

T = TypeVar("T")

#: Newest record format that this release reads; a newer one is refused with a clear error.
FORMAT = 1

#: Errors of decoders, for records and frames, including numbers that no release can write again.
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
#: Most values of a page: it has at most 180 fragments of 12 KiB, and each of their bytes may be a value.
_MOST_PAGE_VALUES = 3_000_000
#: An empty fragment.
NOTHING = Fragment(attempt=0)
#: Index of the first seldom used field of an outcome, and the usual values from there on.
_PLAIN = Outcome.__struct_fields__.index("max_rss_kib")
_USUAL = astuple(Outcome(index=0))[_PLAIN:]
#: The same index for an outcome of a task that never ran.
_ENDED = Outcome.__struct_fields__.index("exit_code")
_payloads = msgspec.msgpack.Decoder(tuple[bytes, ...])
_keyed = msgspec.msgpack.Decoder(KeyedPayload)


def cut(error: Exception) -> str:
    """Returns a decoder's message, shortened: the data that it quotes may have a megabyte."""
    told = str(error)
    return told if len(told) <= 300 else f"{told[:150]}...{told[-100:]}"


def encode_record(record: object) -> bytes:
    """Returns canonical JSON (sorted keys, no spaces) of a frozen dataclass, with the fields of a newer release in it."""
    return restore(_json.encode(record))


def decode_record(data: bytes, kind: type[T], path: str = "") -> T:
    """Decodes a znode's bytes into a record of `kind`; unknown fields stay in its `newer`, missing ones get their defaults.

    Raises: WrongCluster naming `path` if the bytes are something else.
    """
    try:
        record = json_decoder(kind).decode(data)
        is_newer = getattr(record, "format", FORMAT) > FORMAT
        if not is_newer:
            keep(record, data)
    except UNREADABLE as error:
        message = f"the record at {path or kind.__name__} cannot be read: {cut(error)}"
        raise WrongCluster(message, hint="rmgr version; rmgr doctor") from error
    if is_newer:
        raise WrongCluster(f"the record at {path} was written by a newer release of rmgr", hint="rmgr version; upgrade this installation")
    return record


class _WideBlock(BlockData, frozen=True, array_like=True, kw_only=True):
    """A block whose mask has more bits than MessagePack's integers: the mask is written as little-endian bytes."""

    done: bytes  # type: ignore[assignment]


_wide_block = msgspec.msgpack.Decoder(_WideBlock)


class _NewerBlock(BlockData, frozen=True, array_like=True, kw_only=True):
    """A block with elements of a newer release at its end: cut and replaced like any other, and written with them."""

    newer: tuple[Any, ...] = ()


_FIELDS = len(BlockData.__struct_fields__)
_any = msgspec.msgpack.Decoder()


def encode_block(data: BlockData) -> bytes:
    """Returns the data of a block's znode."""
    if type(data) is _NewerBlock:
        known = {name: getattr(data, name) for name in BlockData.__struct_fields__}
        return _pack.encode([*_any.decode(encode_block(BlockData(**known))), *data.newer])
    if data.done < _WIDE:
        return _pack.encode(data)
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    mask = data.done.to_bytes(MAX_TASKS // 8, "little")
    return _pack.encode(_WideBlock(**(fields | {"done": mask})))


def unpack(decode: Callable[[bytes], T], data: bytes, most: int = stream.MAX_VALUES) -> T:
    """Decodes MessagePack with `decode`. Raises only msgspec.DecodeError, whatever the bytes are: callers expect nothing else.

    Cost: above 1 MiB, 0.3 us per value beside the decoder, which then builds at most a million.
    """
    if len(data) > stream.FEW_BYTES and stream.is_crowded(data, most):
        raise msgspec.DecodeError(f"it has more than {most:,} values")
    try:
        return decode(data)
    except msgspec.DecodeError:
        raise
    except UNREADABLE as error:  # not UTF-8, or nested too deep
        raise msgspec.DecodeError(f"{type(error).__name__}: {cut(error)}") from None


def decode_block(data: bytes) -> BlockData:
    """Reads the data of a block's znode. Raises msgspec.DecodeError."""
    return unpack(_decode_block, data)


def _decode_block(data: bytes) -> BlockData:
    if array_length(data) > _FIELDS:
        elements = _any.decode(data)
        if is_deep(elements):
            raise msgspec.DecodeError("it is nested too deep")
        known = _decode_block(_pack.encode(elements[:_FIELDS]))
        values = {name: getattr(known, name) for name in BlockData.__struct_fields__}
        return _NewerBlock(**values, newer=tuple(elements[_FIELDS:]))
    try:
        return _block.decode(data)
    except msgspec.ValidationError:
        wide = _wide_block.decode(data)
    fields = {name: getattr(wide, name) for name in wide.__struct_fields__}
    return BlockData(**(fields | {"done": int.from_bytes(wide.done, "little")}))


def encode_fragment(fragment: Fragment) -> bytes:
    """Returns the data of a fragment's znode."""
    return _pack.encode(fragment)


def decode_fragment(data: bytes) -> Fragment:
    """Reads the data of a fragment's znode. Raises msgspec.DecodeError."""
    return unpack(_fragment.decode, data)


def read_fragment(data: bytes) -> Fragment:
    """Reads a fragment as `decode_fragment` does, or returns NOTHING: writers of outcomes could write anything there."""
    try:
        return _fragment.decode(data)
    except UNREADABLE:
        return NOTHING


class _GlancedFragment(Fragment, frozen=True, array_like=True, kw_only=True):
    """A fragment whose outcomes are counted but not decoded."""

    outcomes: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]


_glanced = msgspec.msgpack.Decoder(_GlancedFragment)


def glance_fragment(data: bytes) -> Fragment:
    """Reads a fragment as `read_fragment` does, for callers that only count outcomes. Cost: a fifth of it."""
    try:
        return _glanced.decode(data)
    except UNREADABLE:
        return NOTHING


def encode_failed(record: FailedRange) -> bytes:
    """Returns the data of a failed range's znode."""
    return _pack.encode(record)


def decode_failed(data: bytes) -> FailedRange:
    """Reads the data of a failed range's znode. Raises msgspec.DecodeError."""
    return unpack(_failed.decode, data)


def brief(outcomes: Iterable[Outcome]) -> tuple[Any, ...]:
    """Shortens outcomes for writing: one with only usual trailing values loses these, and is read back whole.

    MessagePack structs write their trailing defaults, too: 24 of the 59 bytes of a no-op's outcome. Cost: 0.4 us each.
    """
    return tuple([fields[:_PLAIN] if (fields := astuple(outcome))[_PLAIN:] == _USUAL else outcome for outcome in outcomes])


def brief_ends(outcomes: Iterable[Outcome]) -> tuple[Any, ...]:
    """Shortens outcomes of tasks that never ran in the same way: one without further details ends after its reason."""
    usual = _USUAL[_ENDED - _PLAIN :]
    return tuple([fields[:_ENDED] if (fields := astuple(outcome))[_ENDED:] == usual else outcome for outcome in outcomes])


def encode_outcomes(outcomes: tuple[Any, ...]) -> bytes:
    """Returns the store row for outcomes that do not fit their fragment's znode; `brief` or whole ones."""
    return _pack.encode(outcomes)


def decode_outcomes(data: bytes) -> tuple[Outcome, ...]:
    """Reads bytes made by `encode_outcomes`. Raises msgspec.DecodeError."""
    return unpack(_outcomes.decode, data)


def join_page(fragments: list[bytes]) -> bytes:
    """Returns the store row of fragments that left ZooKeeper, oldest first (their own rows stay): byte for byte, of any release."""
    return array_of(fragments)


def decode_page(data: bytes) -> tuple[Fragment, ...]:
    """Reads bytes made by `join_page`. Raises msgspec.DecodeError."""
    return unpack(_page.decode, data, _MOST_PAGE_VALUES)


def split_page(data: bytes) -> list[bytes]:
    """Splits bytes made by `join_page`, keeping what a newer release wrote or signed. Raises msgspec.DecodeError."""
    return [bytes(raw) for raw in unpack(_raw_page.decode, data, _MOST_PAGE_VALUES)]


def encode_payloads(payloads: tuple[bytes, ...]) -> bytes:
    """Returns the store row for arguments that do not fit their block's znode."""
    return _pack.encode(payloads)


def decode_payloads(data: bytes) -> tuple[bytes, ...]:
    """Reads bytes made by `encode_payloads`. Raises msgspec.DecodeError."""
    if (count := array_length(data)) > MAX_TASKS:
        raise msgspec.DecodeError(f"it has arguments of {count:,} tasks, a block has {MAX_TASKS}")
    return unpack(_payloads.decode, data)


def encode_keyed(payload: KeyedPayload) -> bytes:
    """Returns the arguments of a task in the keyed form as bytes."""
    return _pack.encode(payload)


def decode_keyed(data: bytes) -> KeyedPayload:
    """Reads bytes made by `encode_keyed`. Raises msgspec.DecodeError."""
    return unpack(_keyed.decode, data)


# -- fields of a newer release -------------------------------------------------------------------------------------------------


_plain = msgspec.json.Decoder()
_MARK = b'"newer":{'
_FIELD = "newer"
#: Most levels of a newer release's fields. Encoding takes as much stack as decoding did, and the encoder may have less left.
_MOST_LEVELS = 32


def keep(record: object, data: bytes) -> None:
    """Puts what `data` has and `record`, decoded from it, lacks into `newer` fields. Changes the record, which is not shared yet."""
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
    """Returns whether the value has more levels than a newer release may write. Cost: O(size)."""
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
    """Returns an encoded record with the contents of `newer` fields back in place. (Users' texts never match: their quotes are escaped.)"""
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
    """Returns the number of elements of a MessagePack array, 0 for anything else. Cost: O(1)."""
    if not data:
        return 0
    head = data[0]
    if 0x90 <= head <= 0x9F:
        return head & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(head, 0)
    return int.from_bytes(data[1 : 1 + width], "big") if width else 0


def array_of(encoded: list[bytes]) -> bytes:
    """Returns a MessagePack array of elements that are encoded already, byte for byte."""
    count = len(encoded)
    if count < 16:
        head = bytes([0x90 | count])
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(encoded)
