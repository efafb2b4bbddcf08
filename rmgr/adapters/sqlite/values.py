"""Large values as files beside the SQLite file: written and synced before the row that names them, hashed whenever they are read.

A file is named by its generation, a number that no value has twice and that is reserved in the database before the file is made:
exactly one row of `manifest` or of `unreferenced` names each file, whatever dies when, and a sweep never looks for orphans.
Once its row is committed, a file never changes; replaced and deleted ones go with the sweep, and a process that has one open keeps it.
"""

from __future__ import annotations

import errno
import io
import math
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path

from rmgr.adapters.sqlite import rows as table
from rmgr.adapters.sqlite.file import StoreFile
from rmgr.adapters.sqlite.rows import ManifestRow, Readers
from rmgr.adapters.sqlite.writer import Writer
from rmgr.adapters.store_rules import CHUNK_BYTES, CallDeadline, data_lost, now_ms, patience_s
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES
from rmgr.errors import KeyExists, StoreUnavailable
from rmgr.model.base.units import format_duration
from rmgr.runner.host.files import write_whole

#: Generations that a process reserves with one commit, and for how long (ms): in the last quarter no upload begins.
_RESERVED = 32
_RESERVED_MS = 3_600_000
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OLD = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ROW_BYTES = 200
_SWEEP_FILES = 64
#: Bytes read and hashed at a time: they stay in the processor's cache.
_HASH_BYTES = 256 * 1024


class ValueFiles:
    """Reads and writes the large values of one store. Thread-safe; files are written on the caller's thread."""

    def __init__(self, file: StoreFile, writer: Writer, readers: Readers) -> None:
        self._file = file
        self._writer = writer
        self._readers = readers
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._free_until_ms = -math.inf

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(
        self,
        row: ManifestRow,
        parts: Iterable[bytes],
        *,
        overwrite: bool,
        deadline: CallDeadline,
        mark: Callable[[bytes], str] | None = None,
    ) -> None:
        """Makes a file of `parts` durable, then commits the manifest `row`. `row.sha256`: if known. mark: makes the encoding column.

        Raises: KeyExists, StoreUnavailable, and errors of `parts`. Cost: 0.5 ms per MB, and an fsync of the file besides the commit's.
        """
        doing = f"put {row.key!r}"
        make = lambda path: self._make(path, parts, row.sha256, deadline, doing)  # noqa: E731 - beside its use
        self._put(row, make, overwrite=overwrite, deadline=deadline, mark=mark)

    def adopt(self, row: ManifestRow, source: str, *, deadline: CallDeadline, mark: Callable[[bytes], str]) -> tuple[int, bytes] | None:
        """Puts the file `source`, which gets a second name here. `row.sha256`: if known.

        Returns: its size and SHA-256, or None if it cannot get another name. Raises: StoreUnavailable; OSError if it cannot be read.
        Cost: reading and hashing it, unless the hash is known, and an fsync.
        """
        with open(os.open(source, _OLD), "rb", buffering=0) as file:
            make = lambda path: self._link(path, source, file, row, deadline)  # noqa: E731 - beside its use
            return self._put(row, make, overwrite=True, deadline=deadline, mark=mark)

    def _put(
        self,
        row: ManifestRow,
        make: Callable[[Path], tuple[int, bytes] | None],
        *,
        overwrite: bool,
        deadline: CallDeadline,
        mark: Callable[[bytes], str] | None,
    ) -> tuple[int, bytes] | None:
        """Makes a file durable, then commits its row; returns (size, SHA-256), or None if the file cannot be made in this way."""
        doing = f"put {row.key!r}"
        generation = self._reserve(deadline, doing)
        path = self._path(generation)
        try:
            made = make(path)
            if made is None:
                return None
            size, digest = made
            column = row.encoding if mark is None else mark(digest)
        except BaseException:
            _remove(path)  # a sweep removes its number
            raise
        manifest = row._replace(size=size, sha256=digest, encoding=column, generation=generation, chunks=-(-size // CHUNK_BYTES))
        try:
            self._writer.write(
                lambda connection: table.end_upload(connection, manifest, overwrite=overwrite),
                deadline,
                weight_bytes=_ROW_BYTES,
                doing=doing,
            )
        except (KeyExists, table.Swept):  # if a sweep came before the file was made, no sweep knows of it any more
            _remove(path)
            raise  # after other errors it may be unknown whether it is committed: then a sweep finds out
        return made

    def _reserve(self, deadline: CallDeadline, doing: str) -> int:
        """Returns a generation whose file no sweep touches for as long as this call may last."""
        if not self._lock.acquire(timeout=deadline.left_s()):  # the holder waits for the writer, up to its own caller's deadline
            raise StoreUnavailable(f"the store {self._file.path} did not begin to {doing} within {format_duration(deadline.timeout_s)}")
        try:
            now, lasts_ms = now_ms(), int((deadline.timeout_s + patience_s(MAX_VALUE_BYTES)) * 1000)
            if not self._free or now + lasts_ms > self._free_until_ms:
                until_ms = now + lasts_ms + _RESERVED_MS
                self._free = self._writer.write(
                    lambda connection: table.begin_uploads(connection, until_ms, _RESERVED), deadline, weight_bytes=_ROW_BYTES, doing=doing
                )
                self._free_until_ms = until_ms - _RESERVED_MS // 4
            return self._free.pop()
        finally:
            self._lock.release()

    def _make(self, path: Path, parts: Iterable[bytes], known: bytes, deadline: CallDeadline, doing: str) -> tuple[int, bytes]:
        """Writes the file and makes it and its name durable; returns (size, SHA-256), the latter `known` unless that is empty."""
        digest = sha256()
        size = 0
        try:
            fd, folder = self._create(path, lambda folder: os.open(path.name, _NEW, 0o600, dir_fd=folder))
            try:
                for part in parts:
                    deadline.allow(len(part))
                    deadline.check(doing)
                    if not known:
                        digest.update(part)
                    size += len(part)
                    write_whole(fd, part)
                os.fsync(fd)
                os.fsync(folder)
            finally:
                os.close(fd)
                os.close(folder)
        except OSError as error:
            raise self._file.os_error(error, f"{doing} in") from error
        return size, known or digest.digest()

    def _link(
        self, path: Path, source: str, file: io.FileIO, row: ManifestRow, deadline: CallDeadline
    ) -> tuple[int, bytes] | None:
        """Makes the open file `source` durable under a second name; returns (size, SHA-256), or None if it gets no name."""
        doing = f"put {row.key!r}"
        made = (row.size, row.sha256) if row.sha256 else self._hash(file, deadline, doing)
        try:
            fd, folder = self._create(path, lambda folder: _linked(file, source, path.name, folder))
        except OSError:  # another file system, or one without such names
            return None
        try:
            os.fsync(fd)
            os.fsync(folder)
        except OSError as error:
            raise self._file.os_error(error, f"{doing} in") from error
        finally:
            os.close(fd)
            os.close(folder)
        return made

    def _hash(self, file: io.FileIO, deadline: CallDeadline, doing: str) -> tuple[int, bytes]:
        digest, size = sha256(), 0
        room = memoryview(bytearray(_HASH_BYTES))
        while count := file.readinto(room):
            deadline.allow(count)
            deadline.check(doing)
            digest.update(room[:count])
            size += count
        return size, digest.digest()

    def _create(self, path: Path, make: Callable[[int], int]) -> tuple[int, int]:
        """Returns descriptors of a file made by `make` and of its directory. Readers of the store's file may read them, nobody else."""
        owner = self._file.path.stat()
        mode = stat.S_IMODE(owner.st_mode) & 0o666
        is_new, fd = False, -1
        try:
            folder = os.open(path.parent, _FOLDER)
        except FileNotFoundError:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            is_new, folder = True, os.open(path.parent, _FOLDER)
        try:
            if is_new:
                _hand_over(folder, mode | (mode & 0o444) >> 2, owner)
                self._sync_parent()
            try:
                fd = make(folder)
            except FileExistsError:  # from a database restored from an older copy: none of its rows names this file
                os.unlink(path.name, dir_fd=folder)
                fd = make(folder)
            _hand_over(fd, mode & 0o444, owner)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            os.close(folder)
            raise
        return fd, folder

    def _sync_parent(self) -> None:
        fd = os.open(self._file.path.parent, _FOLDER)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, row: ManifestRow, deadline: CallDeadline) -> tuple[ManifestRow, bytes] | None:
        """Returns the current row of the row's key and its value, not yet compared. Raises: DataLost, StoreUnavailable."""
        while True:
            try:
                with self._open(row) as file:
                    return row, file.readall()
            except FileNotFoundError:
                now = self._again(row, deadline)
            except OSError as error:
                raise self._file.os_error(error, f"read {row.key!r} from") from error
            if now is None or not now.chunks:
                return None if now is None else (now, now.inline or b"")
            row = now

    def stream(self, row: ManifestRow, timeout_s: float) -> Iterator[bytes]:
        """Yields the value of `row` in pieces, the last one only if the hash agreed. It may be replaced and swept in the meantime."""
        try:
            file = self._open(row)
        except FileNotFoundError:
            self._again(row, CallDeadline(timeout_s))
            raise StoreUnavailable(f"the value of {row.key!r} was replaced or deleted while it was read", hint="read it again") from None
        except OSError as error:
            raise self._file.os_error(error, f"read {row.key!r} from") from error
        return self._pieces(row, file)

    def _pieces(self, row: ManifestRow, file: io.FileIO) -> Iterator[bytes]:
        digest, left = sha256(), row.size
        with file:
            while left:
                try:
                    piece = file.read(min(left, CHUNK_BYTES))
                except OSError as error:
                    raise self._file.os_error(error, f"read {row.key!r} from") from error
                if not piece:
                    raise data_lost(row.key, f"{row.size - left:,} of {row.size:,} bytes found")
                digest.update(piece)
                left -= len(piece)
                if not left and (digest.digest() != row.sha256 or file.read(1)):
                    raise data_lost(row.key, f"{row.size:,} bytes read, the hash differs")
                yield piece

    def fetch(self, row: ManifestRow, path: str, deadline: CallDeadline, *, is_compared: bool) -> bool:
        """Makes `path` a second name of the file of `row`, or a copy, reading and comparing it. Returns False if it was just replaced.

        is_compared: False if a second name is enough because the caller compares.

        Raises: DataLost, StoreUnavailable; OSError if it cannot be copied.
        """
        copy = None
        deadline.allow(row.size)
        try:
            os.link(self._path(row.generation), path, follow_symlinks=False)
        except OSError:  # another file system, or one without such names; or there is no such file
            copy = open(os.open(path, _NEW, 0o600), "wb", buffering=0)  # noqa: SIM115 - closed below
        try:
            if copy is None and not is_compared:
                if (size := os.stat(path).st_size) != row.size:
                    raise data_lost(row.key, f"{size:,} of {row.size:,} bytes found")
                return True
            with copy or nullcontext():
                return self._compare(row, path if copy is None else self._path(row.generation), copy, deadline)
        except FileNotFoundError:
            _remove(Path(path))
            self._again(row, deadline)
            return False
        except BaseException:
            _remove(Path(path))
            raise

    def _compare(self, row: ManifestRow, path: str | Path, copy: io.FileIO | None, deadline: CallDeadline) -> bool:
        digest, size = sha256(), 0
        room = memoryview(bytearray(_HASH_BYTES))
        with open(os.open(path, _OLD), "rb", buffering=0) as file:
            while count := file.readinto(room):
                digest.update(room[:count])
                size += count
                left = room[:count] if copy is not None else room[:0]
                while left:
                    left = left[copy.write(left) or 0 :]  # type: ignore[union-attr]
                deadline.check(f"read {row.key!r}")
        if size != row.size or digest.digest() != row.sha256:
            raise data_lost(row.key, f"{size:,} of {row.size:,} bytes found, the hash differs")
        return True

    def _open(self, row: ManifestRow) -> io.FileIO:
        return open(os.open(self._path(row.generation), _OLD), "rb", buffering=0)

    def _again(self, row: ManifestRow, deadline: CallDeadline) -> ManifestRow | None:
        """Returns the current row of a row whose file is gone. Raises: DataLost if it is the same row."""
        with self._readers.reading(deadline, f"read {row.key!r} from", row.key) as connection:
            now = table.select(connection, row.key)
        if now is not None and now.chunks and now.generation == row.generation:
            raise data_lost(row.key, f"its file {self._path(row.generation)} is missing")
        return now

    # -- values that are no longer needed --------------------------------------------------------------------------------------

    def free(self, before_ms: int, deadline: CallDeadline) -> int:
        """Removes files that have been unreferenced since before `before_ms`; returns the number of generations."""
        freed = 0
        while not deadline.passed():
            with self._readers.reading(deadline, "sweep") as connection:
                some = table.select_unreferenced(connection, before_ms, _SWEEP_FILES)
            for generation in some:
                try:
                    self._path(generation).unlink(missing_ok=True)
                except OSError as error:
                    raise self._file.os_error(error, "sweep") from error
            if some:
                self._write(lambda connection, some=some: table.forget_unreferenced(connection, some), deadline)  # type: ignore[misc]
            freed += len(some)
            if len(some) < _SWEEP_FILES:
                break
        return freed

    def _write(self, run: Callable[[sqlite3.Connection], None], deadline: CallDeadline) -> None:
        self._writer.write(run, deadline, weight_bytes=_ROW_BYTES, doing="sweep")

    def _path(self, generation: int) -> Path:
        return self._file.values_path / f"{generation:012d}"


def _linked(file: io.FileIO, source: str, name: str, folder: int) -> int:
    """Gives an open file a second name; returns a new descriptor of it. Raises: OSError."""
    os.link(source, name, dst_dir_fd=folder, follow_symlinks=False)
    fd = os.open(name, _OLD, dir_fd=folder)
    if not os.path.sameopenfile(fd, file.fileno()):  # it was replaced just now
        os.close(fd)
        os.unlink(name, dir_fd=folder)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), source)
    return fd


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _hand_over(fd: int, mode: int, owner: os.stat_result) -> None:
    """Sets mode and owner as SQLite does for its own side files: the store's mode, and as root the store's owner."""
    if os.geteuid() == 0:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    os.fchmod(fd, mode)
