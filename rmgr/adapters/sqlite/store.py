"""The embedded data store: one SQLite file in WAL mode on a local disk, used by many processes and threads at once.

Durable on return (synchronous=FULL); keys whose caller goes on once they are `decided` (`Store.put_many`) become durable with the next
write of any process. Values of up to one chunk are part of their manifest row and take one commit; larger ones are files in `PATH.values`
(sqlite/values.py), durable before the manifest is committed, so no reader ever sees a part.
A process that opens a store and then calls `fork` must open it again in the child.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import TypeVar

import msgspec

from rmgr.adapters.sqlite import rows as table
from rmgr.adapters.sqlite.file import StoreFile
from rmgr.adapters.sqlite.rows import ManifestRow, Readers
from rmgr.adapters.sqlite.values import ValueFiles
from rmgr.adapters.sqlite.writer import Write, Writer
from rmgr.adapters.store_rules import (
    CHUNK_BYTES,
    CallDeadline,
    about_of,
    check_key,
    check_limit,
    check_prefix,
    check_size,
    cut,
    expiry_ms,
    key_exists,
    marked,
    notes_of,
    now_ms,
    verify,
)
from rmgr.coord.protocol.ports import About, Encoding, Note, Store, Writing
from rmgr.errors import RmgrError, UsageError
from rmgr.model.base.units import counted

T = TypeVar("T")

#: Bytes of an iterable to gather before they are written.
STAGE_BYTES = 4 * CHUNK_BYTES
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
        deadline = CallDeadline(how.timeout_s)
        check_key(key)
        expires_ms = expiry_ms(how.ttl_s)
        stages = cut(key, value, max(len(value), 1) if isinstance(value, bytes) else STAGE_BYTES)
        if not how.overwrite and self.head(key, timeout_s=deadline.left_s()) is not None:
            raise key_exists([key])  # an early answer; the check in the last commit decides
        first = next(stages, b"")
        second = next(stages, None)
        row = ManifestRow(key, 0, b"", how.encoding.value, expires_ms, 0, 0, None)
        if second is None and len(first) <= CHUNK_BYTES:
            digest = sha256(first).digest()
            row = row._replace(size=len(first), sha256=digest, encoding=marked(how.encoding, how.note, digest), inline=first)
            self._put_rows([row], len(first) + _ROW_BYTES, how, deadline)
            return
        parts = (first,) if second is None else chain((first, second), stages)
        self._large.put(row, parts, overwrite=how.overwrite, deadline=deadline, mark=partial(marked, how.encoding, how.note))

    def put_hashed(self, key: str, parts: Sequence[bytes], digest: bytes, *, timeout_s: float = 30.0) -> None:
        """Puts raw bytes whose SHA-256 the caller has computed. With a wrong `digest` the value cannot be read (`DataLost`)."""
        check_key(key)
        size = sum(map(len, parts))
        check_size(key, size)
        deadline = CallDeadline(timeout_s)
        row = ManifestRow(key, size, digest, Encoding.RAW.value, None, 0, 0, None)
        if size > CHUNK_BYTES:
            self._large.put(row, parts, overwrite=True, deadline=deadline)
        else:
            self._put_rows([row._replace(inline=b"".join(parts))], size + _ROW_BYTES, Writing(), deadline)

    def adopt(
        self,
        key: str,
        path: str,
        *,
        encoding: Encoding = Encoding.RAW,
        note: Note = b"",
        sha256: bytes = b"",
        timeout_s: float = 30.0,
    ) -> tuple[int, bytes] | None:
        """See `Store.adopt`. Above 512 KiB, on the store's own file system."""
        check_key(key)
        if (size := os.stat(path, follow_symlinks=False).st_size) <= CHUNK_BYTES:
            return None
        check_size(key, size)
        row = ManifestRow(key, size, sha256, encoding.value, None, 0, 0, None)
        return self._large.adopt(row, path, deadline=CallDeadline(timeout_s), mark=partial(marked, encoding, note))

    def adopts_above(self, directory: str) -> int | None:
        """See `Store.adopts_above`."""
        return CHUNK_BYTES if os.stat(directory).st_dev == os.stat(self._file.path.parent).st_dev else None

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`. A commit for every 4 MiB of rows; rows over 512 KiB follow one by one."""
        deadline = CallDeadline(how.timeout_s)
        expires_ms = expiry_ms(how.ttl_s)
        small: list[ManifestRow] = []
        large: list[tuple[str, bytes, bytes]] = []
        weight = 0
        for (key, value), note in zip(rows, notes_of(rows, how.notes), strict=True):
            check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            if len(value) > CHUNK_BYTES:
                check_size(key, len(value))
                large.append((key, value, note))
                continue
            small.append(ManifestRow(key, len(value), sha256(value).digest(), marked(how.encoding, note, b""), expires_ms, 0, 0, value))
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
        """See `Store.puts_soon`."""
        return True

    def write_soon(self, rows: Sequence[tuple[str, bytes]], how: Writing, done: Callable[[RmgrError | None], None]) -> bool:
        """See `Store.put_soon`. Up to 64 KiB. A write is decided only at its end, so `decided` is never called."""
        weight = sum(len(value) + _ROW_BYTES for _, value in rows)
        if weight > _SOON_BYTES or not rows:
            return False
        made = [
            ManifestRow(check_key(key), len(value), sha256(value).digest(), marked(how.encoding, note, b""), None, 0, 0, value)
            for (key, value), note in zip(rows, notes_of(rows, how.notes), strict=True)
        ]
        run = None if how.overwrite else partial(table.insert_new, rows=made)
        return self._writer.take(Write(run, made, weight, f"put {rows[0][0]!r}", is_synced=how.overwrite, told=done))

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """See `Store.delete_many`. A commit for every 2,000 keys."""
        deadline = CallDeadline(timeout_s)
        wanted = list(dict.fromkeys(map(check_key, keys)))
        gone: set[str] = set()
        for start in range(0, len(wanted), _DELETED_ROWS):
            some = wanted[start : start + _DELETED_ROWS]
            doing = f"delete {counted(len(wanted), 'value')} ({some[0]!r} ...)" if len(wanted) > 1 else f"delete {some[0]!r}"
            gone.update(self._write(partial(table.delete_many, keys=some), deadline, len(some) * _ROW_BYTES, doing))
        return [key for key in wanted if key in gone]

    # -- reading ------------------------------------------------------------------------------------------------------

    def fetch(
        self, key: str, path: str, *, largest: int, is_compared: bool = True, timeout_s: float = 30.0
    ) -> tuple[bytes | None, bytes] | None:
        """See `Store.fetch`. `path` becomes a second name of the value's file, or a copy on another file system."""
        check_key(key)
        deadline = CallDeadline(timeout_s)
        while (row := self._select(key, deadline)) is not None:
            check_size(key, row.size, largest)
            if not row.chunks:
                return _whole(row), row.sha256
            if self._large.fetch(row, path, deadline, is_compared=is_compared):
                return None, row.sha256
            deadline.check(f"read {key!r}")  # it was replaced just now
        return None

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`. One statement for every 256 keys; values above 512 KiB are read one by one from their files."""
        deadline = CallDeadline(timeout_s)
        wanted = list(dict.fromkeys(map(check_key, keys)))
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
                    found[row.key] = None if row.size > largest else _whole(row), about_of(row.size, row.encoding, row.sha256)
        for row in in_files:
            deadline.allow(row.size)
            if (read := self._large.get(row, deadline)) is not None:
                now, value = read
                whole = verify(now.key, value, now.size, now.sha256)
                found[now.key] = whole if now.size <= largest else None, about_of(now.size, now.encoding, now.sha256)
        return found

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`. `timeout_s` applies to each chunk; the last one is handed out only after the hash agreed."""
        check_key(key)
        row = self._select(key, CallDeadline(timeout_s))
        if row is None:
            return None
        if row.chunks:
            return self._large.stream(row, timeout_s)
        value = _whole(row)
        return iter((value,) if value else ())

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`. Reads `limit` entries of the key index, however large the store is."""
        check_prefix(prefix)
        check_prefix(after)
        check_limit(limit)
        with self._reading(CallDeadline(timeout_s), f"list {prefix!r} in") as connection:
            return table.select_keys(connection, prefix, after, limit)

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """See `Store.usage`. Reads every manifest below `prefix`, no value."""
        check_prefix(prefix)
        with self._reading(CallDeadline(timeout_s), f"measure {prefix!r} in") as connection:
            return table.select_usage(connection, prefix)

    # -- looking after it ---------------------------------------------------------------------------------------------

    def sweep(self, *, timeout_s: float = 30.0) -> int:
        """See `Store.sweep`. In small commits, so that other processes write in between; stops at the deadline, without error."""
        deadline = CallDeadline(timeout_s)
        before_ms = now_ms() - self._grace_ms
        removed = 0
        more = True
        while more and not deadline.passed():
            count = self._write(lambda connection: table.remove_expired(connection, _SWEEP_ROWS), deadline, _ROW_BYTES, "sweep")
            removed += count
            more = count > 0
        return removed + self._large.free(before_ms, deadline)

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """See `Store.health`. Writes one row (one commit) and reads it back."""
        deadline = CallDeadline(timeout_s)
        name = f"health/{os.getpid() % 64}"
        mark = f"{os.getpid()} {now_ms()} {id(deadline)}"

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

    def _select(self, key: str, deadline: CallDeadline) -> ManifestRow | None:
        with self._reading(deadline, f"read {key!r} from", key) as connection:
            return table.select(connection, key)

    def _write(
        self, run: Callable[[sqlite3.Connection], T], deadline: CallDeadline, weight_bytes: int, doing: str, *, is_synced: bool = True
    ) -> T:
        return self._writer.write(run, deadline, weight_bytes=weight_bytes, doing=doing, is_synced=is_synced)

    def _reading(self, deadline: CallDeadline, doing: str, key: str = "") -> AbstractContextManager[sqlite3.Connection]:
        self._writer.check_not_forked()
        return self._readers.reading(deadline, doing, key)

    def _put_rows(self, batch: list[ManifestRow], weight: int, how: Writing, deadline: CallDeadline) -> None:
        doing = f"put {batch[0].key!r}" if len(batch) == 1 else f"put {counted(len(batch), 'value')} ({batch[0].key!r} ...)"
        if how.overwrite:
            self._writer.insert(batch, deadline, weight_bytes=weight, doing=doing)
            return
        run = partial(table.insert_new, rows=batch, replaces=how.replaces)
        # Where the caller wants to hear of the decision, the write is now decided: durable with the next write of any process.
        self._write(run, deadline, weight, doing, is_synced=how.decided is None)


def _whole(row: ManifestRow) -> bytes:
    return verify(row.key, row.inline or b"", row.size, row.sha256)
