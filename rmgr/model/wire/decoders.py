"""Decoders of types, made once, by one thread at a time.

msgspec describes a type to itself when its first decoder is made. It does so partly in Python, and other threads see the description before
it is whole: where two decode a type for the first time, the process ends by SIGSEGV (msgspec 0.22). So a type that a thread may be the
first to decode gets its decoder here, and never by `decode(..., type=...)`.
"""

from __future__ import annotations

from _thread import allocate_lock  # held while a decoder is made, a millisecond at most: nothing waits in it
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_making = allocate_lock()
_json: dict[object, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[object, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Of JSON. Cost: 0.1 us."""
    decoder = _json.get(kind)
    if decoder is None:
        with _making:
            decoder = _json[kind] = msgspec.json.Decoder(kind)
    return decoder


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Of MessagePack. kind: a type, or a union of structs. Cost: 0.1 us."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _making:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return decoder
