"""The embedded data store: one SQLite file in WAL mode on a local disk, used by many processes and threads at once.

Durable on return (synchronous=FULL); keys whose caller goes on once they are `decided` (`Store.put_many`) become durable with the next
write of any process. Values of up to one chunk are part of their manifest row and take one commit; larger ones are files in `PATH.values`
(`ValueFiles`), durable before the manifest is committed, so no reader ever sees a part.

A process that opens a store and then calls `fork` must open it again in the child.
"""

from __future__ import annotations

import errno
import io
import math
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec

from rmgr.adapters import store_rules as rules
from rmgr.adapters.sqlite import rows as table
from rmgr.adapters.sqlite.file import StoreFile
from rmgr.adapters.sqlite.rows import ManifestRow, Readers
from rmgr.adapters.sqlite.writer import Write, Writer
from rmgr.coord.protocol.ports import MAX_VALUE_BYTES, TIMEOUT_S, About, Encoding, Note, Store, Writing
from rmgr.errors import KeyExists, RmgrError, StoreUnavailable, UsageError
from rmgr.model.units import counted, format_duration
from rmgr.runner.host.files import write_whole

T = TypeVar("T")

#: Bytes of an iterable to gather before they are written.
STAGE_BYTES = 4 * rules.CHUNK_BYTES
#: Seconds for which a replaced or deleted large value is kept for its readers.
GRACE_S = 300.0
_ROW_BYTES = 200  # of a manifest row besides its value, about
_SWEEP_ROWS = 500
_SOON_BYTES = 64 * 1024
_DELETED_ROWS = 2000


class SqliteStore(Store):
    """A `Store` (coord/protocol/ports.py) in one SQLite file."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, timeout_s: float = 10.0, grace_s: float = GRACE_S) -> None:
        """Opens the store `path`, and makes it (mode 0600) unless `create` is False.

        Args:
            timeout_s: how long to wait for another process that is just making it.
            grace_s: how long `sweep` keeps large values that were replaced or deleted, for their readers.
        Raises: `StoreUnavailable` with the reason and the remedy.
        """
        self._file = StoreFile(path, create=create, timeout_s=timeout_s)
        self._grace_ms = int(grace_s * 1000)
        self._writer = Writer(self._file)
        self._readers = Readers(self._file)
        self._large = ValueFiles(self._file, self._writer, self._readers)

    @property
    def url(self) -> str:
        """`sqlite:PATH`."""
        return f"sqlite:{self._file.path}"

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """See `Store.put`. One commit, preceded by a file above 512 KiB; holds at most 4 MiB of an iterable."""
        deadline = rules.CallDeadline(how.timeout_s)
        rules.check_key(key)
        expires_ms = rules.expiry_ms(how.ttl_s)
        stages = rules.cut(key, value, max(len(value), 1) if isinstance(value, bytes) else STAGE_BYTES)
        if not how.overwrite and self.head(key, timeout_s=deadline.left_s()) is not None:
            raise rules.key_exists([key])  # an early answer; the check in the last commit decides
        first = next(stages, b"")
        second = next(stages, None)
        row = ManifestRow(key, 0, b"", how.encoding.value, expires_ms, 0, 0, None)
        if second is None and len(first) <= rules.CHUNK_BYTES:
            digest = sha256(first).digest()
            row = row._replace(size=len(first), sha256=digest, encoding=rules.marked(how.encoding, how.note, digest), inline=first)
            self._put_rows([row], len(first) + _ROW_BYTES, how, deadline)
            return
        parts = (first,) if second is None else chain((first, second), stages)
        self._large.put(row, parts, overwrite=how.overwrite, deadline=deadline, mark=partial(rules.marked, how.encoding, how.note))

    def put_hashed(self, key: str, parts: Sequence[bytes], digest: bytes) -> None:
        """Puts raw bytes whose SHA-256 the caller has computed. With a wrong `digest` the value cannot be read (`DataLost`)."""
        rules.check_key(key)
        size = sum(map(len, parts))
        rules.check_size(key, size)
        deadline = rules.CallDeadline(TIMEOUT_S)
        row = ManifestRow(key, size, digest, Encoding.RAW.value, None, 0, 0, None)
        if size > rules.CHUNK_BYTES:
            self._large.put(row, parts, overwrite=True, deadline=deadline)
        else:
            self._put_rows([row._replace(inline=b"".join(parts))], size + _ROW_BYTES, Writing(), deadline)

    def adopt(
        self, key: str, path: str, *, encoding: Encoding = Encoding.RAW, note: Note = b"", sha256: bytes = b""
    ) -> tuple[int, bytes] | None:
        """See `Store.adopt`. Above 512 KiB, on the store's own file system."""
        rules.check_key(key)
        if (size := os.stat(path, follow_symlinks=False).st_size) <= rules.CHUNK_BYTES:
            return None
        rules.check_size(key, size)
        row = ManifestRow(key, size, sha256, encoding.value, None, 0, 0, None)
        return self._large.adopt(row, path, deadline=rules.CallDeadline(TIMEOUT_S), mark=partial(rules.marked, encoding, note))

    def adopts_above(self, directory: str) -> int | None:
        return rules.CHUNK_BYTES if os.stat(directory).st_dev == os.stat(self._file.path.parent).st_dev else None

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`. A commit for every 4 MiB of rows; rows over 512 KiB follow one by one."""
        deadline = rules.CallDeadline(how.timeout_s)
        expires_ms = rules.expiry_ms(how.ttl_s)
        small: list[ManifestRow] = []
        large: list[tuple[str, bytes, bytes]] = []
        weight = 0
        for (key, value), note in zip(rows, rules.notes_of(rows, how.notes), strict=True):
            rules.check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            if len(value) > rules.CHUNK_BYTES:
                rules.check_size(key, len(value))
                large.append((key, value, note))
                continue
            small.append(
                ManifestRow(key, len(value), sha256(value).digest(), rules.marked(how.encoding, note, b""), expires_ms, 0, 0, value)
            )
            weight += len(value) + _ROW_BYTES
            if weight > 2 * STAGE_BYTES:
                self._put_rows(small, weight, how, deadline)
                small, weight = [], 0
        if small:
            self._put_rows(small, weight, how, deadline)
        for key, value, note in large:
            self.write(key, value, msgspec.structs.replace(how, note=note, timeout_s=deadline.left_s()))

    @property
    def puts_soon(self) -> bool:
        return True

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        """See `Store.put_soon`. Up to 64 KiB. A write is decided only at its end, so `decided` is never called."""
        weight = sum(len(value) + _ROW_BYTES for _, value in rows)
        if weight > _SOON_BYTES or not rows:
            return False
        made = [
            ManifestRow(rules.check_key(key), len(value), sha256(value).digest(), rules.marked(how.encoding, note, b""), None, 0, 0, value)
            for (key, value), note in zip(rows, rules.notes_of(rows, how.notes), strict=True)
        ]
        run = None if how.overwrite else partial(table.insert_new, rows=made)
        return self._writer.take(Write(run, made, weight, f"put {rows[0][0]!r}", is_synced=how.overwrite, told=done))

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """See `Store.delete_many`. A commit for every 2,000 keys."""
        deadline = rules.CallDeadline(timeout_s)
        wanted = list(dict.fromkeys(map(rules.check_key, keys)))
        gone: set[str] = set()
        for start in range(0, len(wanted), _DELETED_ROWS):
            some = wanted[start : start + _DELETED_ROWS]
            doing = f"delete {counted(len(wanted), 'value')} ({some[0]!r} ...)" if len(wanted) > 1 else f"delete {some[0]!r}"
            gone.update(self._write(partial(table.delete_many, keys=some), deadline, len(some) * _ROW_BYTES, doing))
        return [key for key in wanted if key in gone]

    # -- reading ------------------------------------------------------------------------------------------------------

    def fetch(self, key: str, path: str, *, largest: int, is_compared: bool = True) -> tuple[bytes | None, bytes] | None:
        """See `Store.fetch`. `path` becomes a second name of the value's file, or a copy on another file system."""
        rules.check_key(key)
        deadline = rules.CallDeadline(TIMEOUT_S)
        while (row := self._select(key, deadline)) is not None:
            rules.check_size(key, row.size, largest)
            if not row.chunks:
                return _whole(row), row.sha256
            if self._large.fetch(row, path, deadline, is_compared=is_compared):
                return None, row.sha256
            deadline.check(f"read {key!r}")  # it was replaced just now
        return None

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. One statement for every 256 keys; values above 512 KiB are read one by one from their files."""
        deadline = rules.CallDeadline(timeout_s)
        wanted = list(dict.fromkeys(map(rules.check_key, keys)))
        found: dict[str, tuple[bytes | None, About]] = {}
        in_files: list[ManifestRow] = []
        for start in range(0, len(wanted), table.KEYS_PER_STATEMENT):
            some = wanted[start : start + table.KEYS_PER_STATEMENT]
            doing = f"read {some[0]!r} from" if len(wanted) == 1 else f"read {counted(len(wanted), 'value')} from"
            with self._reading(deadline, doing, some[0]) as connection:
                batch = table.select_many(connection, some, largest)
            for row in batch:
                if row.chunks and row.size <= largest:
                    in_files.append(row)
                else:
                    found[row.key] = None if row.size > largest else _whole(row), rules.about_of(row.size, row.encoding, row.sha256)
        for row in in_files:
            deadline.allow(row.size)
            if (read := self._large.get(row, deadline)) is not None:
                now, value = read
                whole = rules.verify(now.key, value, now.size, now.sha256)
                found[now.key] = whole if now.size <= largest else None, rules.about_of(now.size, now.encoding, now.sha256)
        return found

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`. `timeout_s` applies to each chunk; the last one is handed out only after the hash agreed."""
        rules.check_key(key)
        row = self._select(key, rules.CallDeadline(timeout_s))
        if row is None:
            return None
        if row.chunks:
            return self._large.stream(row, timeout_s)
        value = _whole(row)
        return iter((value,) if value else ())

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`. Reads `limit` entries of the key index, however large the store is."""
        rules.check_prefix(prefix)
        rules.check_prefix(after)
        rules.check_limit(limit)
        with self._reading(rules.CallDeadline(timeout_s), f"list {prefix!r} in") as connection:
            return table.select_keys(connection, prefix, after, limit)

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """See `Store.usage`. Reads every manifest below `prefix`, no value."""
        rules.check_prefix(prefix)
        with self._reading(rules.CallDeadline(timeout_s), f"measure {prefix!r} in") as connection:
            return table.select_usage(connection, prefix)

    # -- looking after it ---------------------------------------------------------------------------------------------

    def sweep(self, *, now_ms: int | None = None, timeout_s: float = 30.0) -> int:
        """See `Store.sweep`. In small commits, so that other processes write in between; stops at the deadline, without error."""
        deadline = rules.CallDeadline(timeout_s)
        at_ms = rules.sweep_ms(now_ms)
        removed = 0
        more = True
        while more and not deadline.passed():
            count = self._write(lambda connection: table.remove_expired(connection, at_ms, _SWEEP_ROWS), deadline, _ROW_BYTES, "sweep")
            removed += count
            more = count > 0
        return removed + self._large.free(at_ms - self._grace_ms, deadline)

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """See `Store.health`. Writes one row (one commit) and reads it back."""
        deadline = rules.CallDeadline(timeout_s)
        name = f"health/{os.getpid() % 64}"
        mark = f"{os.getpid()} {rules.now_ms()} {id(deadline)}"

        def probe(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO info VALUES (?, ?)", (name, mark))

        try:
            self._file.check_in_place()
            self._write(probe, deadline, _ROW_BYTES, "write a probe")
            with self._reading(deadline, "read a probe from") as connection:
                connection.execute("SELECT value FROM info WHERE name = ?", (name,)).fetchone()
        except RmgrError as error:
            return error.message
        return None

    def close(self) -> None:
        """See `Store.close`. Waits up to 10 s for the writes of other threads."""
        self._writer.close()
        self._readers.close()

    # -- private ------------------------------------------------------------------------------------------------------

    def _select(self, key: str, deadline: rules.CallDeadline) -> ManifestRow | None:
        with self._reading(deadline, f"read {key!r} from", key) as connection:
            return table.select(connection, key)

    def _write(
        self, run: Callable[[sqlite3.Connection], T], deadline: rules.CallDeadline, weight_bytes: int, doing: str, *, is_synced: bool = True
    ) -> T:
        return self._writer.write(run, deadline, weight_bytes=weight_bytes, doing=doing, is_synced=is_synced)

    def _reading(self, deadline: rules.CallDeadline, doing: str, key: str = "") -> AbstractContextManager[sqlite3.Connection]:
        self._writer.check_not_forked()
        return self._readers.reading(deadline, doing, key)

    def _put_rows(self, batch: list[ManifestRow], weight: int, how: Writing, deadline: rules.CallDeadline) -> None:
        doing = f"put {batch[0].key!r}" if len(batch) == 1 else f"put {counted(len(batch), 'value')} ({batch[0].key!r} ...)"
        if how.overwrite:
            self._writer.insert(batch, deadline, weight_bytes=weight, doing=doing)
            return
        run = partial(table.insert_new, rows=batch, replaces=how.replaces)
        # Where the caller wants to hear of the decision, the write is now decided: durable with the next write of any process.
        self._write(run, deadline, weight, doing, is_synced=how.decided is None)


def _whole(row: ManifestRow) -> bytes:
    return rules.verify(row.key, row.inline or b"", row.size, row.sha256)


# -- large values: files beside the SQLite file --------------------------------------------------------------------------------

# A file is named by its generation, a number that no value has twice and that is reserved in the database before the file is made:
# exactly one row of `manifest` or of `unreferenced` names each file, whatever dies when, and a sweep never looks for orphans.
# It is written and synced before the row that names it. Once its row is committed, a file never changes; it is hashed whenever it is read.
# Replaced and deleted ones go with the sweep, and a process that has one open keeps it.

#: Generations that a process reserves with one commit, and for how long (ms): in the last quarter no upload begins.
_RESERVED = 32
_RESERVED_MS = 3_600_000
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OLD = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
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
        deadline: rules.CallDeadline,
        mark: Callable[[bytes], str] | None = None,
    ) -> None:
        """Makes a file of `parts` durable, then commits the manifest `row`. `row.sha256`: if known. mark: makes the encoding column.

        Raises: KeyExists, StoreUnavailable, and errors of `parts`. Cost: 0.5 ms per MB, and an fsync of the file besides the commit's.
        """
        doing = f"put {row.key!r}"
        make = lambda path: self._make(path, parts, row.sha256, deadline, doing)  # noqa: E731 - beside its use
        self._put(row, make, overwrite=overwrite, deadline=deadline, mark=mark)

    def adopt(
        self, row: ManifestRow, source: str, *, deadline: rules.CallDeadline, mark: Callable[[bytes], str]
    ) -> tuple[int, bytes] | None:
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
        deadline: rules.CallDeadline,
        mark: Callable[[bytes], str] | None,
    ) -> tuple[int, bytes] | None:
        """Makes a file durable, then commits its row; returns (size, SHA-256), or None if the file cannot be made in this way."""
        doing = f"put {row.key!r}"
        self._check_there(deadline, f"{doing} in")
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
        manifest = row._replace(size=size, sha256=digest, encoding=column, generation=generation, chunks=-(-size // rules.CHUNK_BYTES))
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

    def _reserve(self, deadline: rules.CallDeadline, doing: str) -> int:
        """Returns a generation whose file no sweep touches for as long as this call may last."""
        if not self._lock.acquire(timeout=deadline.left_s()):  # the holder waits for the writer, up to its own caller's deadline
            raise StoreUnavailable(f"the store {self._file.path} did not begin to {doing} within {format_duration(deadline.timeout_s)}")
        try:
            now, lasts_ms = rules.now_ms(), int((deadline.timeout_s + rules.patience_s(MAX_VALUE_BYTES)) * 1000)
            if not self._free or now + lasts_ms > self._free_until_ms:
                until_ms = now + lasts_ms + _RESERVED_MS
                self._free = self._writer.write(
                    lambda connection: table.begin_uploads(connection, until_ms, _RESERVED), deadline, weight_bytes=_ROW_BYTES, doing=doing
                )
                self._free_until_ms = until_ms - _RESERVED_MS // 4
            return self._free.pop()
        finally:
            self._lock.release()

    def _make(self, path: Path, parts: Iterable[bytes], known: bytes, deadline: rules.CallDeadline, doing: str) -> tuple[int, bytes]:
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

    def _link(self, path: Path, source: str, file: io.FileIO, row: ManifestRow, deadline: rules.CallDeadline) -> tuple[int, bytes] | None:
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

    def _hash(self, file: io.FileIO, deadline: rules.CallDeadline, doing: str) -> tuple[int, bytes]:
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

    def get(self, row: ManifestRow, deadline: rules.CallDeadline) -> tuple[ManifestRow, bytes] | None:
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
            self._again(row, rules.CallDeadline(timeout_s))
            raise StoreUnavailable(f"the value of {row.key!r} was replaced or deleted while it was read", hint="read it again") from None
        except OSError as error:
            raise self._file.os_error(error, f"read {row.key!r} from") from error
        return self._pieces(row, file)

    def _pieces(self, row: ManifestRow, file: io.FileIO) -> Iterator[bytes]:
        digest, left = sha256(), row.size
        with file:
            while left:
                try:
                    piece = file.read(min(left, rules.CHUNK_BYTES))
                except OSError as error:
                    raise self._file.os_error(error, f"read {row.key!r} from") from error
                if not piece:
                    raise rules.data_lost(row.key, f"{row.size - left:,} of {row.size:,} bytes found")
                digest.update(piece)
                left -= len(piece)
                if not left and (digest.digest() != row.sha256 or file.read(1)):
                    raise rules.data_lost(row.key, f"{row.size:,} bytes read, the hash differs")
                yield piece

    def fetch(self, row: ManifestRow, path: str, deadline: rules.CallDeadline, *, is_compared: bool) -> bool:
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
                    raise rules.data_lost(row.key, f"{size:,} of {row.size:,} bytes found")
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

    def _compare(self, row: ManifestRow, path: str | Path, copy: io.FileIO | None, deadline: rules.CallDeadline) -> bool:
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
            raise rules.data_lost(row.key, f"{size:,} of {row.size:,} bytes found, the hash differs")
        return True

    def _open(self, row: ManifestRow) -> io.FileIO:
        return open(os.open(self._path(row.generation), _OLD), "rb", buffering=0)

    def _again(self, row: ManifestRow, deadline: rules.CallDeadline) -> ManifestRow | None:
        """Returns the current row of a row whose file is gone. Raises: DataLost if it is the same row; StoreUnavailable if all are gone."""
        with self._readers.reading(deadline, f"read {row.key!r} from", row.key) as connection:
            now = table.select(connection, row.key)
        if now is not None and now.chunks and now.generation == row.generation:
            self._check_there(deadline, f"read {row.key!r} from")
            raise rules.data_lost(row.key, f"its file {self._path(row.generation)} is missing")
        return now

    # -- values that are no longer needed --------------------------------------------------------------------------------------

    def free(self, before_ms: int, deadline: rules.CallDeadline) -> int:
        """Removes files that have been unreferenced since before `before_ms`; returns the number of generations.

        None while there is nothing in their directory: it may be away, and a number that is forgotten leaves its file for ever.
        """
        freed = 0
        while not deadline.passed():
            with self._readers.reading(deadline, "sweep") as connection:
                some = table.select_unreferenced(connection, before_ms, _SWEEP_FILES)
            if some and not freed and self._lack("sweep"):  # a store without large values is not searched for one at each sweep
                self._check_there(deadline, "sweep")
                break
            for generation in some:
                try:
                    self._path(generation).unlink(missing_ok=True)
                except OSError as error:
                    raise self._file.os_error(error, "sweep") from error
            if some:
                forget = partial(table.forget_unreferenced, generations=some)
                self._writer.write(forget, deadline, weight_bytes=_ROW_BYTES, doing="sweep")
            freed += len(some)
            if len(some) < _SWEEP_FILES:
                break
        return freed

    def _check_there(self, deadline: rules.CallDeadline, doing: str) -> None:
        """Raises StoreUnavailable if there are large values but none of their files: then nothing is known to be lost, a file system was
        unmounted or the directory moved, and what is written now would lie elsewhere. Cost: a look into the directory.
        """
        if not self._lack(doing):
            return
        with self._readers.reading(deadline, doing) as connection:
            has_large = table.has_large(connection)
        if has_large and (what := self._lack(doing)):  # again: the first file may have come meanwhile, before its row
            place = self._file.values_path
            raise StoreUnavailable(
                f"cannot {doing} the store: {place}, the directory of its large values, is {what}",
                hint=f"mount its file system, or move it back; if they are lost for good: mkdir -p {place} && touch {place}/lost",
            )

    def _lack(self, doing: str) -> str:
        """Returns "missing" or "empty" of the directory, "" if anything is there. Raises: StoreUnavailable."""
        try:
            with os.scandir(self._file.values_path) as found:
                return "empty" if next(found, None) is None else ""
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            raise self._file.os_error(error, doing) from error

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
