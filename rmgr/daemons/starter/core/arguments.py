"""Arguments of blocks that lie in store rows: small ones in memory, large ones in a file that workers read their part of.

So the bytes of a large argument pass through this process once at most, on a thread of its own, and through no socket.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, overload

import msgspec

from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Store
from rmgr.coord.protocol.records import UNREADABLE, array_length, decode_payloads
from rmgr.errors import DataLost, RowGone
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.wire.stream import MAX_FRAME
from rmgr.runtime import machine

#: A row above this is never in memory.
IN_MEMORY_BYTES = 256 * 1024 * 1024
#: What one call has is in no message above this: what a frame has beside it fits the rest.
_MOST_IN_MESSAGE = MAX_FRAME - 4 * 2**20
#: What a Starter reads of one task itself: the names of its keys, or its line of `--each-line`.
MOST_READ_BYTES = 16 * 1024 * 1024
#: From this many bytes a task, on average, a row is kept as a file.
FILE_BYTES = 256 * 1024
#: A block has no more in arguments that are smaller on average, with room for what stands around them.
_MOST_SMALL_BYTES = FILE_BYTES * MAX_TASKS + 64 * 1024
_views = msgspec.msgpack.Decoder(tuple[memoryview, ...])
#: MessagePack: first byte of a value to the number of bytes that its length has.
_ARRAYS = {0xDC: 2, 0xDD: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC1: 8}  # the last is our own, from 4 GiB: `client.content.parts_of`


class ArgumentsPiece:
    """Arguments of one task: a part of a file of this node."""

    __slots__ = ("path", "size", "start")

    def __init__(self, path: str, start: int, size: int) -> None:
        self.path = path
        self.start = start
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes. Raises: OSError."""
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


class OwnPiece(ArgumentsPiece):
    """A part of a file that belongs to the user of the work, whose workers read it; the Starter, which cannot trust it, never does."""

    __slots__ = ()


class Arguments(Sequence[bytes | ArgumentsPiece]):
    """Arguments of consecutive tasks. Their file goes when nobody holds them any more. size: bytes of it."""

    def __init__(self, values: tuple[bytes, ...] | tuple[ArgumentsPiece, ...], path: str = "", *, held: object = None) -> None:
        """held: removes the file when nobody holds it, None = this does."""
        self._values = values
        self._held = held
        self.path = path
        self.size = sum(map(len, values)) if path else 0
        if path and held is None:
            weakref.finalize(self, _remove, path)

    @property
    def largest(self) -> int:
        """Bytes of the largest that lies in their file, 0 = all are in memory."""
        return max(map(len, self._values), default=0) if self.path else 0

    def moved(self, path: str) -> Arguments:
        """The same in a copy of their file that belongs to their user, and is removed with the object `path`."""
        plain = str(path)  # messages bear no other kind
        pieces = tuple([OwnPiece(plain, piece.start, piece.size) for piece in self._values if isinstance(piece, ArgumentsPiece)])
        return Arguments(pieces, plain, held=path)

    @overload
    def __getitem__(self, at: int) -> bytes | ArgumentsPiece: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[bytes, ...] | tuple[ArgumentsPiece, ...]: ...
    def __getitem__(self, at: int | slice) -> bytes | ArgumentsPiece | tuple[bytes, ...] | tuple[ArgumentsPiece, ...]:
        return self._values[at]

    def __len__(self) -> int:
        return len(self._values)


def where(payload: str | ArgumentsPiece) -> dict[str, Any]:
    """Where a worker finds the arguments of a task that are not in its message: in a file, in a part of one."""
    return {"path": payload} if isinstance(payload, str) else {"path": payload.path, "start": payload.start, "size": payload.size}


def read_arguments(store: Store, key: str, directory: Path, check: Callable[[str, str], None]) -> Arguments:
    """The arguments in row `key`. Files are made in `directory` (of this process's user, closed to others).

    A large row becomes one file, without being in memory whole; the file of the store itself gets a second name where it has one here.

    Args:
        check: gets the key and the SHA-256 of the row as text; raises when it is not what it should be.
    Raises: DataLost, StoreUnavailable, what `check` raises.
    """
    path = str(directory / f"arguments-{machine.guid()}")
    try:
        found = store.fetch(key, path, largest=MAX_VALUE_BYTES)
    except OSError:  # a full disk, say: they are in memory
        whole = store.get_noted_many([key], largest=IN_MEMORY_BYTES).get(key)
        if whole is not None and whole[0] is None:
            raise  # nor there: others work on this machine
        found = None if whole is None else (whole[0], whole[1].sha256)
    if found is None:
        raise RowGone(f"the arguments {key} are not in the data store")
    data, digest = found
    try:
        check(key, digest.hex())
        if data is None:
            pieces = _pieces_of(key, path)
            if pieces is not None:
                return Arguments(pieces, path)
            data = _small(key, path)
    except BaseException:
        _remove(path)
        raise
    if found[0] is None:
        _remove(path)
    return decode(key, data, directory)


def decode(key: str, data: bytes, directory: Path) -> Arguments:
    """The arguments in row `key`. Files are made in `directory` (of this process's user, mode 0600).

    Raises: DataLost; OSError where no file can be made and no message bears them.
    """
    try:
        if len(data) < FILE_BYTES:
            return Arguments(decode_payloads(data))
        if array_length(data) > MAX_TASKS:
            decode_payloads(data)  # says why not
        views = _views.decode(data)
        if len(data) < FILE_BYTES * len(views):
            return Arguments(decode_payloads(data))
    except UNREADABLE as error:
        raise DataLost(f"the arguments {key} cannot be read: {error}") from None
    path = str(directory / f"arguments-{machine.guid()}")
    try:
        pieces = _spill(views, path)
    except OSError:  # a full disk, say: they are in memory
        _remove(path)
        if max(map(len, views)) > _MOST_IN_MESSAGE:
            raise
        return Arguments(decode_payloads(data))
    return Arguments(pieces, path)


def too_large(key: str, row: Arguments) -> str:
    """Says so, for people, of a row with something above `MOST_READ_BYTES`."""
    told = f"the arguments {key} have {row.largest:,} bytes for a task that takes names of keys, or a line of text"
    return f"{told}; the limit is {MOST_READ_BYTES:,}"


def _small(key: str, path: str) -> bytes:
    """A file with many small arguments. Raises: DataLost for one that no block has, which would be as large in memory."""
    size = os.stat(path).st_size
    if size > _MOST_SMALL_BYTES:
        raise DataLost(f"the arguments {key} have {size:,} bytes; in parts that small a block has {_MOST_SMALL_BYTES:,} at most")
    return Path(path).read_bytes()


def _pieces_of(key: str, path: str) -> tuple[ArgumentsPiece, ...] | None:
    """The arguments in a file with a row, None when they are many small ones. Raises: DataLost."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size
        count, at = _length(file.read(5), _ARRAYS)
        if left < FILE_BYTES * count:
            return None
        pieces = []
        for _ in range(count):
            file.seek(at)
            size, header = _length(file.read(9), _BYTES)
            at += header
            pieces.append(ArgumentsPiece(path, at, size))
            at += size
    if at != left:
        raise DataLost(f"the arguments {key} cannot be read: {at} bytes instead of {left}")
    return tuple(pieces)


def _length(head: bytes, kinds: dict[int, int]) -> tuple[int, int]:
    """(length, bytes of the header) of the MessagePack value that begins with `head`. kinds: bytes of the length by first byte."""
    first = head[:1]
    if kinds is _ARRAYS and first and 0x90 <= first[0] <= 0x9F:
        return first[0] & 0x0F, 1
    width = kinds.get(first[0], 0) if first else 0
    if not width or len(head) <= width:
        raise DataLost("the arguments of a block cannot be read: they are no list of byte strings")
    return int.from_bytes(head[1 : 1 + width], "big"), 1 + width


def _spill(views: tuple[memoryview, ...], path: str) -> tuple[ArgumentsPiece, ...]:
    pieces, at = [], 0
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
        for view in views:
            left = view
            while len(left):
                left = left[file.write(left) :]
            pieces.append(ArgumentsPiece(path, at, len(view)))
            at += len(view)
    return tuple(pieces)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
