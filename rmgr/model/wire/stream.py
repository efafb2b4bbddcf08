"""A byte stream of frames: a 4-byte little-endian length, and one MessagePack value of a type that both ends know."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

#: Largest frame either side accepts; a longer one means a broken stream.
MAX_FRAME = 64 * 1024 * 1024
HEADER = 4


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


class FrameReader(Generic[F]):
    """Cuts a byte stream into frames of one direction (`kind`: a struct, or a union of structs with tags)."""

    def __init__(self, kind: object) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
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
                frames.append(self._decode(view[start : start + size]))
                start += size
        except msgspec.MsgspecError as error:
            raise FrameError(f"a frame does not decode: {error}") from error
        finally:
            view.release()
        if buffer:
            del buffer[:start]
        elif start < end:
            buffer += data[start:]
        return frames
