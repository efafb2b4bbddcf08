"""Keeps what a newer release wrote when an older one rewrites it: fields of JSON records, trailing elements of blocks.

    {"next":17,"newer_field":1}  --decode-->  Tail(next=17, newer={"newer_field":1})  --encode-->  the same bytes

A record of the same release costs one comparison more; only bytes that this release would have written otherwise are
looked at closely. Which records are rewritten by others than their writer: `/subs/..` and its tail and done (owner, its
successor, the leader, users), `/nodes/..` (FENCE), `/config`, `/meta`, and blocks (every claim, split and return).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

_json = msgspec.json.Encoder(order="sorted")
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
