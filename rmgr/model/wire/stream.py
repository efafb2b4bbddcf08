"""A byte stream of frames: a 4-byte little-endian length, and one MessagePack value of a type that both ends know.

Decoders of types are made once, by one thread at a time. msgspec describes a type to itself when its first decoder is made. It does so
partly in Python, and other threads see the description before it is whole: where two decode a type for the first time, the process ends
by SIGSEGV (msgspec 0.22). So a type that a thread may be the first to decode gets its decoder here, and never by `decode(..., type=...)`.
"""

from __future__ import annotations

from _thread import allocate_lock  # held while a decoder is made, a millisecond at most: nothing waits in it
from typing import Any, Generic, TypeVar

import msgspec

from rmgr.errors import UNREADABLE_TEXT

#: Largest frame either side accepts; a longer one means a broken stream.
MAX_FRAME = 64 * 1024 * 1024
HEADER = 4
#: What decoders raise: other bytes, text that is no UTF-8, keys that cannot be keys, fields that nobody knows and that are nested
#: thousands deep. The other end may be a user's, and an error of another kind ends the thread that reads, or its whole process.
UNREADABLE = (*UNREADABLE_TEXT, TypeError)
#: Characters of what they say.
_TOLD = 300
#: Values of one frame, counted in frames of more than so many bytes: each byte may be a struct of a hundred bytes once it is decoded.
#: The most that honest ones have are those of a task with 100,000 output keys: six each.
MAX_VALUES, FEW_BYTES = 1_000_000, 1024 * 1024
#: After the first byte of a MessagePack value: bytes that belong to it; or the width of a number that says how many bytes, values or
#: pairs follow, and what is to be skipped beside them.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_LONG = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


class FrameError(ValueError):
    """The stream is broken: a frame too long, or one that does not decode."""


_encoder = msgspec.msgpack.Encoder()


def encode(frame: object) -> bytes:
    """One frame with its header. Raises: FrameError above MAX_FRAME. Cost: O(size)."""
    buffer = bytearray(HEADER)
    _encoder.encode_into(frame, buffer, HEADER)
    if (size := len(buffer) - HEADER) > MAX_FRAME:
        raise FrameError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
    buffer[:HEADER] = size.to_bytes(HEADER, "little")
    return bytes(buffer)


F = TypeVar("F")


def is_crowded(data: bytes | memoryview, most: int = MAX_VALUES) -> bool:
    """It has more than `most` values, or says so. What else is no MessagePack is left to the decoder.

    Cost: 0.3 us a value until what has come and what is announced are too many; nothing is built.
    """
    at, left, seen = 0, 1, 0
    while left and at < len(data):
        if seen + left > most:
            return True
        head = data[at]
        at, left, seen = at + 1, left - 1, seen + 1
        if 0x80 <= head <= 0x8F:
            left += 2 * (head & 0x0F)
        elif 0x90 <= head <= 0x9F:
            left += head & 0x0F
        elif 0xA0 <= head <= 0xBF:
            at += head & 0x1F
        elif head in _FIXED:
            at += _FIXED[head]
        elif head in _LONG:
            width, beside = _LONG[head]
            at += width + beside + int.from_bytes(data[at : at + width], "big")
        elif head in _MANY:
            width, each = _MANY[head]
            left += each * int.from_bytes(data[at : at + width], "big")
            at += width
    return False


class FrameReader(Generic[F]):
    """Cuts a byte stream into frames of one direction (`kind`: a struct, or a union of structs with tags)."""

    def __init__(self, kind: object) -> None:
        self._decode = msgpack_decoder(kind).decode
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> list[F]:
        """All frames that `data` completes. Raises: FrameError. Cost: O(len(data)) amortised."""
        buffer = self._buffer
        if buffer:
            buffer += data
        frames: list[F] = []
        view = memoryview(buffer or data)  # what comes whole is not copied
        start, end = 0, len(view)
        try:
            while end - start >= HEADER:
                size = int.from_bytes(view[start : start + HEADER], "little")
                if size > MAX_FRAME:
                    raise FrameError(f"a frame of {size} bytes is announced, the limit is {MAX_FRAME}")
                if end - start - HEADER < size:
                    break
                start += HEADER
                if size > FEW_BYTES and is_crowded(view[start : start + size]):
                    raise FrameError(f"a frame has more than {MAX_VALUES} values")
                frames.append(self._decode(view[start : start + size]))
                start += size
        except FrameError:
            raise
        except UNREADABLE as error:
            raise FrameError(f"a frame does not decode: {str(error)[:_TOLD]}") from error
        finally:
            view.release()
        if buffer:
            del buffer[:start]
        elif start < end:
            buffer += data[start:]
        return frames


# -- decoders ------------------------------------------------------------------------------------------------------------------


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
