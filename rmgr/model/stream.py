"""A byte stream of frames: a 4-byte little-endian length, and one MessagePack value of a type known to both ends.

Only one thread at a time creates decoders. msgspec describes a type to itself when its first decoder is made, partly in
Python, and other threads see the incomplete description: if two threads decode a type for the first time at once, the process dies
of SIGSEGV (msgspec 0.22). So every type that a thread may be the first to decode gets its decoder here, never by `decode(..., type=...)`.
"""

from __future__ import annotations

from _thread import allocate_lock  # held while a decoder is made, at most a millisecond: nothing waits inside
from typing import Any, Generic, TypeVar

import msgspec

from rmgr.errors import UNREADABLE_TEXT

#: Largest frame that either side accepts; a longer one means a broken stream.
MAX_FRAME = 64 * 1024 * 1024
HEADER = 4
#: Errors of decoders: other bytes, invalid UTF-8, invalid keys, unknown fields nested thousands deep.
#: The other end may be a user's, and an unexpected kind of error would end the reading thread, or its whole process.
UNREADABLE = (*UNREADABLE_TEXT, TypeError)
#: Most characters of their messages.
_TOLD = 300
#: Most values of one frame, counted in frames above this many bytes: each byte may become a struct of a hundred bytes when decoded.
#: Honest frames have at most those of a task with 100,000 output keys: six each.
MAX_VALUES, FEW_BYTES = 1_000_000, 1024 * 1024
#: After the first byte of a MessagePack value: bytes that belong to it; or the width of a number that counts the following bytes,
#: values or pairs, and the bytes to skip beside them.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED |= {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_LONG = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


class FrameError(ValueError):
    """The stream is broken: a frame too long, or one that does not decode."""


_encoder = msgspec.msgpack.Encoder()


def encode(frame: object) -> bytes:
    """Returns one frame with its header. Raises: FrameError above MAX_FRAME. Cost: O(size)."""
    buffer = bytearray(HEADER)
    _encoder.encode_into(frame, buffer, HEADER)
    if (size := len(buffer) - HEADER) > MAX_FRAME:
        raise FrameError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
    buffer[:HEADER] = size.to_bytes(HEADER, "little")
    return bytes(buffer)


F = TypeVar("F")


def is_crowded(data: bytes | memoryview, most: int = MAX_VALUES) -> bool:
    """Returns whether the data have, or announce, more than `most` values. Leaves other faults to the decoder.

    Cost: 0.3 us per value until the values seen and announced are too many; builds nothing.
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
        """Returns all frames that `data` completes. Raises: FrameError. Cost: O(len(data)) amortised."""
        buffer = self._buffer
        if buffer:
            buffer += data
        frames: list[F] = []
        view = memoryview(buffer or data)  # frames that arrive whole are not copied
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
    """Returns the JSON decoder of a type. Cost: 0.1 us."""
    decoder = _json.get(kind)
    if decoder is None:
        with _making:
            decoder = _json[kind] = msgspec.json.Decoder(kind)
    return decoder


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns the MessagePack decoder. kind: a type, or a union of structs. Cost: 0.1 us."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _making:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return decoder
