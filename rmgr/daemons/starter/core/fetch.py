"""Fetches what work needs from the data store before it starts, once: functions, modules, scripts, arguments of blocks.

Level-triggered: `get` returns what is here, or None and starts a fetch (the owner is woken when it ends, and asks again).
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import msgspec

from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, Store
from rmgr.coord.protocol.records import UNREADABLE, array_length, decode_payloads
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.core.uploads import StagingRoom, Uploads
from rmgr.errors import DataLost, KeyExists, NotFound, PermissionDenied, RowGone, UsageError, ValueTooLarge
from rmgr.model.block import MAX_TASKS
from rmgr.model.frames import MAX_INLINE_FUNCTION
from rmgr.model.states import Reason
from rmgr.model.stream import MAX_FRAME
from rmgr.model.submission import MAX_FUNCTION_BYTES, MAX_MODULE_BYTES, MAX_UPLOAD_BYTES
from rmgr.runner.host.kernel import NODE_TROUBLE
from rmgr.runtime import machine

V = TypeVar("V")
#: How long a failed fetch is not tried again.
_FAILURE_S = 1.0
#: How long it is believed that a program is there, or is not.
_PROGRAM_S = 5.0
#: Values above this are kept as files.
_IN_MEMORY = 1024 * 1024
#: Most bytes of a value that clients store, by the family of its key; larger ones are not fetched.
MOST_BYTES = {"fn": MAX_FUNCTION_BYTES, "mod": MAX_MODULE_BYTES}
#: Bytes of one kind kept on a node for work that may come (functions, modules, a user's copies of them).
KEEP_BYTES = 1024 * 1024 * 1024
#: A value used within this time stays, whatever its size: work that needs several large ones must find them together.
RECENT_S = 60.0
_HASH = re.compile(r"[0-9a-f]{64}\Z")
#: Errors caused by names of files, which users choose: the node is not to blame.
_OF_NAMES = frozenset({errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.EILSEQ, errno.ENOTEMPTY})
#: A row above this is never in memory.
IN_MEMORY_BYTES = 256 * 1024 * 1024
#: Most bytes of one call in a message: the rest of the frame fits beside it.
MOST_IN_MESSAGE = MAX_FRAME - 4 * 2**20
#: Most bytes that the Starter itself reads for one task: the names of its keys, or its line of `--each-line`.
MOST_READ_BYTES = 16 * 1024 * 1024
#: A row with at least this many bytes a task, on average, is kept as a file.
FILE_BYTES = 256 * 1024
#: Most bytes of a block whose arguments are smaller on average, with room for the encoding.
MOST_SMALL_BYTES = FILE_BYTES * MAX_TASKS + 64 * 1024
_views = msgspec.msgpack.Decoder(tuple[memoryview, ...])
#: MessagePack: first byte of a value -> number of bytes of its length.
_ARRAYS = {0xDC: 2, 0xDD: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC1: 8}  # the last is our own, from 4 GiB: `client.content.parts_of`


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """A failed fetch, and what it means for the work that needs the row.

    blames_node: this node may be at fault. is_final: no other attempt, here or elsewhere, would find the row.
    is_refusal: the node refuses to run the work, which is audited.
    """

    reason: Reason
    error: str
    blames_node: bool = True
    is_final: bool = False
    is_refusal: bool = False

    @classmethod
    def of(cls, error: Exception, words: str) -> FetchFailure:
        """Returns what `error` means for the work; `words` are shown to its user."""
        theirs = isinstance(error, PermissionDenied | DataLost | KeyExists | NotFound | ValueTooLarge | UsageError | ValueError)
        theirs = theirs or (isinstance(error, OSError) and error.errno in _OF_NAMES)
        gone, refused = isinstance(error, RowGone), isinstance(error, PermissionDenied)
        return cls(reason_of(error), words, blames_node=not theirs, is_final=gone, is_refusal=refused)


def reason_of(error: Exception) -> Reason:
    """Returns the reason for a failed preparation: content was exchanged, is gone, this node is in trouble, or the work cannot start."""
    if isinstance(error, PermissionDenied):
        return Reason.UNTRUSTED
    if isinstance(error, DataLost):
        return Reason.DATA_LOST
    if isinstance(error, KeyExists):
        return Reason.OUTPUT_EXISTS
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Reason.NODE_LOST  # something removes files of this node
    return Reason.NODE_LOST if isinstance(error, OSError) and error.errno in NODE_TROUBLE else Reason.START_FAILED


class KeptFile(str):
    """The path of a file of this node; the file is removed once no reference to this object is left. size: in bytes."""

    __slots__ = ("__weakref__", "size")
    size: int

    @classmethod
    def of(cls, path: Path, size: int) -> KeptFile:
        """Wraps a file that only this object removes, and whose name is used only once."""
        made = cls(path)
        made.size = size
        weakref.finalize(made, _remove, str(path)).atexit = False
        return made


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes by content hash. data: if small; path: a file of this node if large, or if a file was asked for."""

    data: bytes
    path: str
    size: int


class Fetched(Generic[V]):
    """A cache of what `load(store, key)` returns; the least recently used values are forgotten.

    load: raises DataLost or RowGone (with a sentence) if there is no value; may hang: it is called once at a time for each key. keep: most
    values. Their attributes `size` add up to KEEP_BYTES at most, except for recently used values. fresh_s: how long a value is believed.
    """

    def __init__(
        self, io: StoreIO, load: Callable[[Store, str], V], *, keep: int, fresh_s: Callable[[V], float] | None = None
    ) -> None:
        self._io = io
        self._load = load
        self._keep = keep
        self._fresh_s = fresh_s
        self._here: OrderedDict[str, V | FetchFailure] = OrderedDict()
        self._bytes = 0
        self._asked_s: dict[str, float] = {}
        self._coming: set[str] = set()
        self._loaded_s: dict[str, float] = {}

    def get(self, key: str, user: str = "") -> V | FetchFailure | None:
        """Returns the value, a failure, or None while it is fetched in the turns of `user`. Owner's thread only. Cost: O(1)."""
        found = self._here.get(key)
        if found is None or ((self._fresh_s is not None or type(found) is FetchFailure) and self._is_stale(key, found)):
            if key not in self._coming:
                self._coming.add(key)
                self._io.run(lambda store: self._load(store, key), lambda result: self._on_loaded(key, result), user=user, is_read=True)
            return None
        self._here.move_to_end(key)
        self._asked_s[key] = machine.monotonic()
        return found

    def forget_lost(self, path_of: Callable[[V], str]) -> None:
        """Forgets values whose file is gone, so that the next use fetches them. Owner's thread only. Cost: an lstat each."""
        for key, found in list(self._here.items()):
            path = "" if isinstance(found, FetchFailure) else path_of(found)
            if isinstance(found, FetchFailure) or (path and not os.path.lexists(path)):
                self.forget(key)

    def _on_loaded(self, key: str, result: V | Exception) -> None:
        self._coming.discard(key)
        self.forget(key)
        if isinstance(result, Exception):
            self._here[key] = FetchFailure.of(result, str(result))
        else:
            self._here[key] = result
            self._bytes += getattr(result, "size", 0)
        self._asked_s[key] = self._loaded_s[key] = machine.monotonic()
        while len(self._here) > self._keep or (self._bytes > KEEP_BYTES and self._is_old(next(iter(self._here)))):
            self.forget(next(iter(self._here)))

    def _is_stale(self, key: str, found: V | FetchFailure) -> bool:
        fresh_s = _FAILURE_S if isinstance(found, FetchFailure) or self._fresh_s is None else self._fresh_s(found)
        return machine.monotonic() - self._loaded_s[key] > fresh_s

    def _is_old(self, key: str) -> bool:
        return machine.monotonic() - self._asked_s.get(key, -math.inf) > RECENT_S

    def forget(self, key: str) -> None:
        """Drops a value from the cache. Owner's thread only."""
        self._bytes -= getattr(self._here.pop(key, None), "size", 0)
        self._loaded_s.pop(key, None)
        self._asked_s.pop(key, None)


class Fetcher:
    """Everything that is fetched for work on this node.

    Args:
        directory: for the files. room: for uploads and staged files.
    """

    def __init__(self, io: StoreIO, directory: Path, room: StagingRoom | None = None) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        #: store key -> bytes, in a file if large
        self.blobs: Fetched[Blob] = Fetched(io, self._blob, keep=512)
        #: store key -> file (archives, large standard input)
        self.files: Fetched[KeptFile] = Fetched(io, self._file, keep=512)
        #: store key -> arguments of a block
        self.rows: Fetched[Arguments] = Fetched(io, self._row, keep=8)
        #: path -> whether that program can be executed; on a thread, since it may be on a file server that does not answer
        self.programs: Fetched[bool] = Fetched(io, lambda _store, path: os.access(path, os.X_OK), keep=256, fresh_s=lambda _: _PROGRAM_S)
        self.uploads = Uploads(directory / "uploads", room=room)

    def content(self, key: str, most: int, user: str = "") -> bytes | FetchFailure | None:
        """Returns the bytes of a value that goes into messages, a failure if there are more than `most`. Raises: OSError."""
        blob = self.blobs.get(key, user)
        if blob is None or isinstance(blob, FetchFailure):
            return blob
        if blob.size > most:
            error = _too_large(key, blob.size, most)
            return FetchFailure.of(error, error.message)
        return Path(blob.path).read_bytes() if blob.path and not blob.data else blob.data  # an empty value has no file

    def forget_lost(self) -> None:
        """Forgets lost files after directories were removed. Owner's thread only."""
        self.blobs.forget_lost(lambda blob: blob.path)
        self.files.forget_lost(str)
        self.rows.forget_lost(lambda arguments: arguments.path)

    def _blob(self, store: Store, key: str) -> Blob:
        found = store.get_noted_many([key], largest=_IN_MEMORY).get(key)
        if found is None:
            raise RowGone(f"{key} is not in the data store")
        data, about = found
        if data is None:
            file = self.streamed(store, key, about.size)
            return Blob(b"", file, file.size)
        check_content(key, hashlib.sha256(data).hexdigest())
        return Blob(data, "" if len(data) <= MAX_INLINE_FUNCTION else self._write(key, iter((data,))), len(data))

    def _row(self, store: Store, key: str) -> Arguments:
        return read_arguments(store, key, self._directory, check_content)

    def _file(self, store: Store, key: str) -> KeptFile:
        head = store.head(key)
        return self.streamed(store, key, 0 if head is None else head[0])

    def streamed(self, store: Store, key: str, size: int) -> KeptFile:
        """Writes a row to a file without holding it in memory whole. size: of the row, as read a moment ago."""
        most = _most_bytes(key)
        if size > most:
            raise _too_large(key, size, most)
        chunks = store.stream(key)
        if chunks is None:
            raise RowGone(f"{key} is not in the data store")
        return self._write(key, chunks)

    def _write(self, key: str, chunks: Iterable[bytes]) -> KeptFile:
        """Makes a new file for `key`, complete or not at all."""
        path = self._directory / machine.guid()
        digest, size, most = hashlib.sha256(), 0, _most_bytes(key)
        try:
            with path.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    if size > most:  # another row than the one whose size was read
                        raise _too_large(key, size, most)
            check_content(key, digest.hexdigest())
            path.chmod(0o644)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return KeptFile.of(path, size)


def _most_bytes(key: str) -> int:
    return MOST_BYTES.get(key.partition("/")[0], MAX_UPLOAD_BYTES)


def _too_large(key: str, size: int, most: int) -> ValueTooLarge:
    return ValueTooLarge(f"{key} has {size:,} bytes; the limit is {most:,}")


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def check_content(key: str, sha256: str) -> None:
    """Checks a row that is named by its content hash: only its bytes count, not what the store says about them.

    Raises: PermissionDenied.
    """
    name = key.rpartition("/")[2]
    if _HASH.match(name) and name != sha256:
        raise PermissionDenied(f"{key} in the data store is not what its name says: its bytes hash to {sha256}")


# -- arguments in rows -----------------------------------------------------------------------------------------------------
# Arguments of blocks that lie in store rows: small ones in memory, large ones in a file of which each worker reads its part. So the
# bytes of a large argument pass through this process at most once, on an IO thread, and through no socket.


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
        """Returns the bytes. Raises: OSError."""
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return file.read(self.size)


class OwnPiece(ArgumentsPiece):
    """A part of a file that belongs to the user of the work: the user's workers read it, the Starter cannot trust it and never does."""

    __slots__ = ()


class Arguments(Sequence[bytes | ArgumentsPiece]):
    """Arguments of consecutive tasks. Their file is removed once no reference to them is left. size: bytes of the file."""

    def __init__(self, values: tuple[bytes, ...] | tuple[ArgumentsPiece, ...], path: str = "", *, held: object = None) -> None:
        """held: its finalizer removes the file; None means that this object's does."""
        self._values = values
        self._held = held
        self.path = path
        self.size = sum(map(len, values)) if path else 0
        if path and held is None:
            weakref.finalize(self, _remove, path)

    @property
    def largest(self) -> int:
        """Bytes of the largest argument in the file, 0 if all are in memory."""
        return max(map(len, self._values), default=0) if self.path else 0

    def moved(self, path: str) -> Arguments:
        """Returns the same arguments in a copy of their file that belongs to their user, and is removed with the object `path`."""
        plain = str(path)  # messages take only plain strings
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
    """Returns where a worker finds arguments that are not in its message: a file, or a part of one."""
    return {"path": payload} if isinstance(payload, str) else {"path": payload.path, "start": payload.start, "size": payload.size}


def read_arguments(store: Store, key: str, directory: Path, check: Callable[[str, str], None]) -> Arguments:
    """Reads the arguments in row `key`. Makes files in `directory` (of this process's user, closed to others).

    A large row becomes a file without being in memory whole; if the store has its own file on this machine, that gets a second name.

    Args:
        check: gets the key and the SHA-256 of the row as text; raises if the hash is wrong.
    Raises: DataLost, StoreUnavailable, whatever `check` raises.
    """
    path = str(directory / f"arguments-{machine.guid()}")
    try:
        found = store.fetch(key, path, largest=MAX_VALUE_BYTES)
    except OSError:  # e.g. a full disk: keep them in memory
        whole = store.get_noted_many([key], largest=IN_MEMORY_BYTES).get(key)
        if whole is not None and whole[0] is None:
            raise  # too large for memory, which other work shares
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
    """Decodes the arguments in row `key`. Makes files in `directory` (of this process's user, mode 0600).

    Raises: DataLost; OSError if no file can be made and the arguments fit no message.
    """
    try:
        if len(data) < FILE_BYTES:
            return Arguments(decode_payloads(data))
        if array_length(data) > MAX_TASKS:
            decode_payloads(data)  # raises the error that says why
        views = _views.decode(data)
        if len(data) < FILE_BYTES * len(views):
            return Arguments(decode_payloads(data))
    except UNREADABLE as error:
        raise DataLost(f"the arguments {key} cannot be read: {error}") from None
    path = str(directory / f"arguments-{machine.guid()}")
    try:
        pieces = _spill(views, path)
    except OSError:  # e.g. a full disk: keep them in memory
        _remove(path)
        if max(map(len, views)) > MOST_IN_MESSAGE:
            raise
        return Arguments(decode_payloads(data))
    return Arguments(pieces, path)


def too_large(key: str, row: Arguments) -> str:
    """Returns, for people, that an argument in a row is larger than `MOST_READ_BYTES`."""
    message = f"the arguments {key} have {row.largest:,} bytes for a task that takes names of keys, or a line of text"
    return f"{message}; the limit is {MOST_READ_BYTES:,}"


def _small(key: str, path: str) -> bytes:
    """Reads a file with many small arguments. Raises: DataLost if it is larger than any block's, as it would take as much memory."""
    size = os.stat(path).st_size
    if size > MOST_SMALL_BYTES:
        raise DataLost(f"the arguments {key} have {size:,} bytes; in parts that small a block has {MOST_SMALL_BYTES:,} at most")
    return Path(path).read_bytes()


def _pieces_of(key: str, path: str) -> tuple[ArgumentsPiece, ...] | None:
    """Returns the arguments in the file of a row, None if they are many small ones. Raises: DataLost."""
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
    """Returns (length, bytes of the header) of the MessagePack value that begins with `head`. kinds: first byte -> bytes of the length."""
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
