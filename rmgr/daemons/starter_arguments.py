"""Arguments of blocks that lie in store rows: small ones in memory, large ones in a file that workers read their part of.

So the bytes of a large argument pass through this process once, on a thread of its own, and through no socket.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import overload

import msgspec

from rmgr.coord.ports import Store
from rmgr.coord.records import decode_payloads
from rmgr.errors import DataLost

#: From this many bytes a task, on average, a row is kept as a file.
FILE_BYTES = 256 * 1024
_views = msgspec.msgpack.Decoder(tuple[memoryview, ...])


class Piece:
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


class Arguments(Sequence[bytes | Piece]):
    """Arguments of consecutive tasks. Their file goes when nobody holds them any more."""

    def __init__(self, values: tuple[bytes, ...] | tuple[Piece, ...], path: str = "") -> None:
        self._values = values
        if path:
            weakref.finalize(self, _remove, path)

    @overload
    def __getitem__(self, at: int) -> bytes | Piece: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[bytes, ...] | tuple[Piece, ...]: ...
    def __getitem__(self, at: int | slice) -> bytes | Piece | tuple[bytes, ...] | tuple[Piece, ...]:
        return self._values[at]

    def __len__(self) -> int:
        return len(self._values)


def read_whole(store: Store, key: str) -> tuple[bytes, str] | None:
    """(value, its SHA-256 as text), None when there is none; hashed once where the store tells what it found while it checked.

    Raises: DataLost, StoreUnavailable.
    """
    hashed = getattr(store, "get_hashed", None)
    if hashed is not None:
        found = hashed(key)
        return None if found is None else (found[0], found[2].hex())
    plain = store.get(key)
    return None if plain is None else (plain[0], sha256(plain[0]).hexdigest())


def decode(key: str, data: bytes, directory: Path) -> Arguments:
    """The arguments in row `key`. Files are made in `directory` (of this process's user, mode 0600). Raises: DataLost."""
    try:
        if len(data) < FILE_BYTES:
            return Arguments(decode_payloads(data))
        views = _views.decode(data)
        if len(data) < FILE_BYTES * len(views):
            return Arguments(decode_payloads(data))
    except msgspec.DecodeError as error:
        raise DataLost(f"the arguments {key} cannot be read: {error}") from None
    path = str(directory / f"arguments-{uuid.uuid4().hex}")
    try:
        pieces = _spill(views, path)
    except OSError:  # a full disk, say: they are in memory
        _remove(path)
        return Arguments(decode_payloads(data))
    return Arguments(pieces, path)


def _spill(views: tuple[memoryview, ...], path: str) -> tuple[Piece, ...]:
    pieces, at = [], 0
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
        for view in views:
            left = view
            while len(left):
                left = left[file.write(left) :]
            pieces.append(Piece(path, at, len(view)))
            at += len(view)
    return tuple(pieces)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
