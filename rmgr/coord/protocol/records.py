"""Codecs of everything that lies in a znode: canonical JSON for records, MessagePack for blocks and fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple

from rmgr.coord.protocol import skew
from rmgr.errors import WrongCluster
from rmgr.model.tasks.block import MAX_TASKS, BlockData, KeyedPayload
from rmgr.model.tasks.outcome import FailedRange, Fragment, Outcome
from rmgr.model.wire import stream
from rmgr.model.wire.decoders import json_decoder

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
    return skew.restore(_json.encode(record))


def decode_record(data: bytes, kind: type[T], path: str = "") -> T:
    """Bytes of a znode -> record of `kind`; what it does not know stays in its `newer`, what is missing has its default.

    Raises: WrongCluster naming `path` when they are something else.
    """
    try:
        record = json_decoder(kind).decode(data)
        is_newer = getattr(record, "format", FORMAT) > FORMAT
        if not is_newer:
            skew.keep(record, data)
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
    if skew.array_length(data) > _FIELDS:
        elements = _any.decode(data)
        if skew.is_deep(elements):
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
    return skew.array_of(fragments)


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
    if (count := skew.array_length(data)) > MAX_TASKS:
        raise msgspec.DecodeError(f"it has arguments of {count:,} tasks, a block has {MAX_TASKS}")
    return unpack(_payloads.decode, data)


def encode_keyed(payload: KeyedPayload) -> bytes:
    """Arguments of a task in the keyed form."""
    return _pack.encode(payload)


def decode_keyed(data: bytes) -> KeyedPayload:
    """Reverse of `encode_keyed`. Raises msgspec.DecodeError."""
    return unpack(_keyed.decode, data)
