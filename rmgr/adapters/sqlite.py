# ruff: noqa: S608 - the SQL is put together from constants of this file; every value is bound
"""The embedded data store: one SQLite file in WAL mode on a local disk, used by many processes and threads at once.

Durable on return (synchronous=FULL). Values of up to one chunk stand in their manifest row and are one commit; larger
ones are written in groups of chunks, the manifest last, so no reader ever sees a part. Processes that open a store and
then `fork` must open it again in the child.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BytesIO
from typing import Self, TypeVar

from rmgr.adapters.sqlite_file import StoreFile
from rmgr.adapters.sqlite_writer import Writer
from rmgr.adapters.store_rules import (
    CHUNK_BYTES,
    Deadline,
    bind,
    check_key,
    check_limit,
    check_prefix,
    check_size,
    data_lost,
    expiry_ms,
    key_exists,
    now_ms,
    pieces,
    verify,
)
from rmgr.coord.keys import prefix_end
from rmgr.coord.ports import Encoding
from rmgr.errors import RmgrError, StoreUnavailable, UsageError

T = TypeVar("T")

#: Bytes of a large value that go into one commit; two of these are held at most (one being written, one being filled).
STAGE_BYTES = 8 * CHUNK_BYTES
#: A replaced or deleted large value is kept this long for those who are reading it.
GRACE_S = 300.0
_GENERATION_SHIFT = 10  # chunk id = generation << 10 | number: 256 MiB are 512 chunks
_ROWS_PER_STATEMENT = (256, 32, 4, 1)  # few statement texts, so that they stay prepared
_KEYS_PER_STATEMENT = 256
_SWEEP_ROWS = 500
_SWEEP_CHUNKS = 32

_ROW = "key, size, sha256, encoding, expires_ms, generation, chunks, inline"
_REPLACE = (
    " ON CONFLICT (key) DO UPDATE SET size = excluded.size, sha256 = excluded.sha256, encoding = excluded.encoding,"
    " expires_ms = excluded.expires_ms, generation = excluded.generation, chunks = excluded.chunks, inline = excluded.inline"
)
_INSERT = {n: f"INSERT INTO manifest ({_ROW}) VALUES {', '.join(['(?,?,?,?,?,?,?,?)'] * n)}{_REPLACE}" for n in _ROWS_PER_STATEMENT}
_ALIVE = "(expires_ms IS NULL OR expires_ms > ?)"
_SELECT = f"SELECT size, sha256, encoding, generation, chunks, inline FROM manifest WHERE key = ? AND {_ALIVE}"


class SqliteStore:
    """A `Store` (coord/ports.py) in one SQLite file."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True, timeout_s: float = 10.0, grace_s: float = GRACE_S) -> None:
        """Opens the store `path`, and makes it (mode 0600) unless `create` is False.

        Args:
            timeout_s: how long to wait for another process that is just making it.
            grace_s: how long `sweep` keeps large values that were replaced or deleted, for their readers.
        Raises: `StoreUnavailable` with the reason and the cure.
        """
        self._file = StoreFile(path, create=create, timeout_s=timeout_s)
        self._grace_ms = int(grace_s * 1000)
        self._writer = Writer(self._file)
        self._readers: list[_Reader] = []
        self._readers_lock = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """`sqlite:PATH`."""
        return f"sqlite:{self._file.path}"

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        value: bytes | Iterable[bytes],
        *,
        encoding: Encoding = Encoding.RAW,
        ttl_s: float | None = None,
        overwrite: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """See `Store.put`. One commit up to 4 MiB, else one per 4 MiB; holds at most 8 MiB of an iterable."""
        deadline = Deadline(timeout_s)
        check_key(key)
        expires = expiry_ms(ttl_s)
        if isinstance(value, str):
            raise UsageError(f"the value of {key!r} must be bytes, not text; encode it first")
        if isinstance(value, bytes | bytearray | memoryview):
            whole = bytes(value)
            check_size(key, len(whole))
            stages: Iterator[bytes] = iter((whole,)) if len(whole) <= STAGE_BYTES else _slices(whole)
        else:
            stages = pieces(key, value, STAGE_BYTES)
        if not overwrite and self.head(key, timeout_s=deadline.left_s()) is not None:
            raise key_exists([key])  # early; what decides is the check in the last commit
        first = next(stages, b"")
        second = next(stages, None)
        if second is None:
            self._put_at_once(key, first, encoding, expires, overwrite=overwrite, deadline=deadline)
        else:
            self._put_in_stages(key, first, second, stages, encoding, expires, overwrite=overwrite, deadline=deadline)

    def put_many(
        self,
        rows: Sequence[tuple[str, bytes]],
        *,
        encoding: Encoding = Encoding.RAW,
        ttl_s: float | None = None,
        overwrite: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """See `Store.put_many`. One commit for all rows up to 4 MiB; rows over 512 KiB go one by one after the others."""
        deadline = Deadline(timeout_s)
        expires = expiry_ms(ttl_s)
        small: list[tuple[object, ...]] = []
        names: list[str] = []
        large: list[tuple[str, bytes]] = []
        weight = 0
        for key, value in rows:
            check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            if len(value) > CHUNK_BYTES:
                large.append((key, value))
                continue
            if weight > STAGE_BYTES:
                self._put_rows(small, names, weight, overwrite=overwrite, deadline=deadline)
                small, names, weight = [], [], 0
            small.append((key, len(value), sha256(value).digest(), encoding.value, expires, 0, 0, value))
            names.append(key)
            weight += len(value) + 100
        if small:
            self._put_rows(small, names, weight, overwrite=overwrite, deadline=deadline)
        for key, value in large:
            self.put(key, value, encoding=encoding, ttl_s=ttl_s, overwrite=overwrite, timeout_s=deadline.left_s())

    def delete(self, key: str, *, timeout_s: float = 30.0) -> bool:
        """See `Store.delete`. The chunks of a large value are freed by `sweep`."""
        check_key(key)

        def run(connection: sqlite3.Connection) -> bool:
            found = connection.execute(f"SELECT 1 FROM manifest WHERE key = ? AND {_ALIVE}", (key, now_ms())).fetchone()
            connection.execute("DELETE FROM manifest WHERE key = ?", (key,))
            return found is not None

        return self._write(run, Deadline(timeout_s), 100, f"delete {key!r}")

    def bind_cluster(self, cluster_id: str, *, timeout_s: float = 30.0) -> None:
        """See `Store.bind_cluster`."""
        bind(self, cluster_id, timeout_s=timeout_s)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, timeout_s: float = 30.0) -> tuple[bytes, Encoding] | None:
        """See `Store.get`. A value over 512 KiB is read in one snapshot; peak memory is about its size."""
        deadline = Deadline(timeout_s)
        check_key(key)
        with self._reading(deadline, f"read {key!r} from", key) as connection:
            row = connection.execute(_SELECT, (key, now_ms())).fetchone()
            if row is None:
                return None
            if row[4]:
                return self._get_chunks(connection, key)
        return verify(key, row[5], row[0], row[1]), Encoding(row[2])

    def get_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> dict[str, tuple[bytes, Encoding]]:
        """See `Store.get_many`. One statement per 256 keys."""
        deadline = Deadline(timeout_s)
        wanted = list(dict.fromkeys(map(check_key, keys)))
        found: dict[str, tuple[bytes, Encoding]] = {}
        chunked: list[str] = []
        for start in range(0, len(wanted), _KEYS_PER_STATEMENT):
            some = wanted[start : start + _KEYS_PER_STATEMENT]
            marks = ",".join("?" * len(some))
            with self._reading(deadline, f"read {len(wanted)} values from", some[0]) as connection:
                rows = connection.execute(
                    f"SELECT key, size, sha256, encoding, chunks, inline FROM manifest WHERE key IN ({marks}) AND {_ALIVE}",
                    (*some, now_ms()),
                ).fetchall()
            for key, size, digest, encoding, chunks, inline in rows:
                if chunks:
                    chunked.append(key)
                else:
                    found[key] = verify(key, inline, size, digest), Encoding(encoding)
        for key in chunked:
            value = self.get(key, timeout_s=deadline.left_s())
            if value is not None:
                found[key] = value
        return found

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`. `timeout_s` holds for each chunk; the last one is handed out only after the hash agreed.

        Raises while iterating: `StoreUnavailable` if the value was replaced longer ago than the grace of `sweep`.
        """
        check_key(key)
        with self._reading(Deadline(timeout_s), f"read {key!r} from", key) as connection:
            row = connection.execute(_SELECT, (key, now_ms())).fetchone()
        if row is None:
            return None
        size, digest, _, generation, chunks, inline = row
        if not chunks:
            return iter((verify(key, inline, size, digest),) if size else ())
        return self._stream_chunks(key, size, digest, generation, chunks, timeout_s)

    def head(self, key: str, *, timeout_s: float = 30.0) -> tuple[int, Encoding] | None:
        """See `Store.head`."""
        check_key(key)
        with self._reading(Deadline(timeout_s), f"read {key!r} from", key) as connection:
            row = connection.execute(f"SELECT size, encoding FROM manifest WHERE key = ? AND {_ALIVE}", (key, now_ms())).fetchone()
        return None if row is None else (row[0], Encoding(row[1]))

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`. Reads `limit` rows of the key index, however large the store is."""
        check_prefix(prefix)
        check_prefix(after)
        check_limit(limit)
        where, parameters = _range(prefix)
        with self._reading(Deadline(timeout_s), f"list {prefix!r} in") as connection:
            rows = connection.execute(
                f"SELECT key FROM manifest WHERE {where} AND key > ? AND {_ALIVE} ORDER BY key LIMIT ?",
                (*parameters, after, now_ms(), limit),
            ).fetchall()
        return [key for (key,) in rows]

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """See `Store.usage`. Reads every manifest below `prefix`, no value."""
        check_prefix(prefix)
        where, parameters = _range(prefix)
        with self._reading(Deadline(timeout_s), f"measure {prefix!r} in") as connection:
            count, total = connection.execute(
                f"SELECT count(*), coalesce(sum(size), 0) FROM manifest WHERE {where} AND {_ALIVE}",
                (*parameters, now_ms()),
            ).fetchone()
        return count, total

    # -- looking after it ---------------------------------------------------------------------------------------------

    def sweep(self, *, timeout_s: float = 30.0) -> int:
        """See `Store.sweep`. In small commits, so that others write in between; ends early at the deadline, without error."""
        deadline = Deadline(timeout_s)
        removed = 0

        def expired(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM manifest WHERE key IN (SELECT key FROM manifest WHERE expires_ms <= ? LIMIT ?)", (now_ms(), _SWEEP_ROWS)
            ).rowcount

        def unreferenced(connection: sqlite3.Connection) -> tuple[int, int]:
            row = connection.execute(
                "SELECT generation FROM unreferenced WHERE since_ms <= ? LIMIT 1", (now_ms() - self._grace_ms,)
            ).fetchone()
            if row is None:
                return 0, 0
            first = row[0] << _GENERATION_SHIFT
            freed = connection.execute(
                "DELETE FROM chunk WHERE id IN (SELECT id FROM chunk WHERE id >= ? AND id < ? LIMIT ?)",
                (first, first + (1 << _GENERATION_SHIFT), _SWEEP_CHUNKS),
            ).rowcount
            if freed < _SWEEP_CHUNKS:
                connection.execute("DELETE FROM unreferenced WHERE generation = ?", row)
                return 1, 1
            return 0, 1

        with suppress(_OutOfTime):
            while count := self._sweep_step(expired, deadline):
                removed += count
            while True:
                count, more = self._sweep_step(unreferenced, deadline)
                removed += count
                if not more:
                    break
        return removed

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """See `Store.health`. Writes one row (one commit) and reads it back."""
        deadline = Deadline(timeout_s)
        mark = f"{os.getpid()} {now_ms()} {id(deadline)}"

        def run(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO info VALUES (?, ?)", (f"health/{os.getpid() % 64}", mark))

        try:
            self._write(run, deadline, 100, "write a probe")
            with self._reading(deadline, "read a probe from") as connection:
                connection.execute("SELECT value FROM info WHERE name = ?", (f"health/{os.getpid() % 64}",)).fetchone()
        except RmgrError as error:
            return error.message
        return None

    def close(self) -> None:
        """See `Store.close`. Waits up to 10 s for what other threads are writing."""
        self._closed = True
        self._writer.close()
        with self._readers_lock:
            readers, self._readers = self._readers, []
        for reader in readers:
            reader.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- private ------------------------------------------------------------------------------------------------------

    def _write(self, run: Callable[[sqlite3.Connection], T], deadline: Deadline, weight_bytes: int, doing: str) -> T:
        return self._writer.write(run, deadline, weight_bytes=weight_bytes, doing=doing)

    def _put_at_once(self, key: str, value: bytes, encoding: Encoding, expires: int | None, *, overwrite: bool, deadline: Deadline) -> None:
        digest = sha256(value).digest()

        def run(connection: sqlite3.Connection) -> None:
            if not overwrite:
                _refuse_existing(connection, [key])
            if len(value) <= CHUNK_BYTES:
                connection.execute(_INSERT[1], (key, len(value), digest, encoding.value, expires, 0, 0, value))
                return
            generation = _new_generation(connection)
            count = _insert_chunks(connection, generation, 0, value)
            connection.execute(_INSERT[1], (key, len(value), digest, encoding.value, expires, generation, count, None))

        self._write(run, deadline, len(value) + 200, f"put {key!r}")

    def _put_rows(self, rows: list[tuple[object, ...]], keys: list[str], weight: int, *, overwrite: bool, deadline: Deadline) -> None:
        def run(connection: sqlite3.Connection) -> None:
            if not overwrite:
                _refuse_existing(connection, keys)
            # One statement for many rows: each statement gives up the interpreter's lock and has to win it back, which
            # costs up to 5 ms a time beside a thread that computes (tests/bench/store.py, "busy").
            start = 0
            for n in _ROWS_PER_STATEMENT:
                while len(rows) - start >= n:
                    connection.execute(_INSERT[n], [field for row in rows[start : start + n] for field in row])
                    start += n

        self._write(run, deadline, weight, f"put {len(keys)} values ({keys[0]!r} ...)")

    def _put_in_stages(
        self,
        key: str,
        first: bytes,
        second: bytes,
        rest: Iterator[bytes],
        encoding: Encoding,
        expires: int | None,
        *,
        overwrite: bool,
        deadline: Deadline,
    ) -> None:
        doing = f"put {key!r}"
        digest = sha256()
        size = count = 0
        # The row in `unreferenced` dates from when this call is over, so no sweep takes the chunks while it lasts.
        since_ms = now_ms() + int(deadline.timeout_s * 1000)

        def begin(connection: sqlite3.Connection) -> int:
            generation = _new_generation(connection)
            connection.execute("INSERT INTO unreferenced VALUES (?, ?)", (generation, since_ms))
            return generation

        generation = self._write(begin, deadline, 200, doing)
        pending: Future[int] | None = None
        try:
            stage: bytes | None = first
            upcoming: bytes | None = second
            while stage is not None:
                digest.update(stage)
                if pending is not None:
                    self._writer.wait(pending, deadline, doing=doing)
                pending = self._writer.begin(_chunk_writer(generation, count, stage), deadline, weight_bytes=len(stage), doing=doing)
                size += len(stage)
                count += -(-len(stage) // CHUNK_BYTES)
                deadline.check(doing)
                stage, upcoming = upcoming, (next(rest, None) if upcoming is not None else None)
            if pending is not None:
                self._writer.wait(pending, deadline, doing=doing)

            def end(connection: sqlite3.Connection) -> None:
                if not overwrite:
                    _refuse_existing(connection, [key])
                if connection.execute("DELETE FROM unreferenced WHERE generation = ?", (generation,)).rowcount != 1:
                    raise StoreUnavailable(f"cannot {doing}: its first chunks were swept away before the last one came")
                connection.execute(_INSERT[1], (key, size, digest.digest(), encoding.value, expires, generation, count, None))

            self._write(end, deadline, 200, doing)
        except BaseException:
            self._abandon(generation)
            raise

    def _abandon(self, generation: int) -> None:
        """Gives the chunks of an upload that failed to the next sweep."""

        def run(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE unreferenced SET since_ms = 0 WHERE generation = ?", (generation,))

        with suppress(RmgrError):
            self._writer.begin(run, Deadline(0.1), weight_bytes=100, doing="abandon an upload")

    def _get_chunks(self, connection: sqlite3.Connection, key: str) -> tuple[bytes, Encoding] | None:
        connection.execute("BEGIN")
        try:
            row = connection.execute(_SELECT, (key, now_ms())).fetchone()
            if row is None:
                return None
            size, digest, encoding, generation, chunks, inline = row
            if not chunks:
                return verify(key, inline, size, digest), Encoding(encoding)
            whole = BytesIO()
            first = generation << _GENERATION_SHIFT
            seen = 0
            for (data,) in connection.execute("SELECT data FROM chunk WHERE id >= ? AND id < ? ORDER BY id", (first, first + chunks)):
                whole.write(data)
                seen += 1
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")
        if seen != chunks:
            raise data_lost(key, f"{chunks - seen} of {chunks} chunks are missing")
        return verify(key, whole.getvalue(), size, digest), Encoding(encoding)

    def _stream_chunks(self, key: str, size: int, digest: bytes, generation: int, chunks: int, timeout_s: float) -> Iterator[bytes]:
        seen_bytes = 0
        seen = sha256()
        for number in range(chunks):
            with self._reading(Deadline(timeout_s), f"read {key!r} from", key) as connection:
                row = connection.execute("SELECT data FROM chunk WHERE id = ?", ((generation << _GENERATION_SHIFT) + number,)).fetchone()
                if row is None:
                    now = connection.execute(_SELECT, (key, now_ms())).fetchone()
                    if now is None or now[3] != generation:
                        raise StoreUnavailable(f"the value of {key!r} was replaced or deleted while it was read", hint="read it again")
                    raise data_lost(key, f"chunk {number} of {chunks} is missing")
            seen_bytes += len(row[0])
            seen.update(row[0])
            if number == chunks - 1 and (seen_bytes != size or seen.digest() != digest):
                raise data_lost(key, f"{seen_bytes:,} of {size:,} bytes read, the hash differs")
            yield row[0]

    def _sweep_step(self, run: Callable[[sqlite3.Connection], T], deadline: Deadline) -> T:
        if deadline.passed():
            raise _OutOfTime
        return self._write(run, deadline, 64 * 1024, "sweep")

    @contextmanager
    def _reading(self, deadline: Deadline, doing: str, key: str = "") -> Iterator[sqlite3.Connection]:
        """A connection that belongs to this thread for the length of the block; statements are cut off at the deadline."""
        deadline.check(doing.removesuffix(" from").removesuffix(" in"))
        if self._closed:
            raise StoreUnavailable(f"cannot {doing} the store {self._file.path}: it is closed")
        self._writer.check_not_forked()
        with self._readers_lock:
            reader = self._readers.pop() if self._readers else None
        if reader is None:
            reader = _Reader(self._file)
        reader.until(deadline)
        try:
            yield reader.connection
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                reader.connection.close()
            if key and (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_CORRUPT:
                raise data_lost(key, f"the store {self._file.path} is damaged ({error})") from error
            raise self._file.explain(error, doing) from error
        except BaseException:
            self._give_back(reader)
            raise
        self._give_back(reader)

    def _give_back(self, reader: _Reader) -> None:
        with self._readers_lock:
            if not self._closed:
                self._readers.append(reader)
                return
        reader.connection.close()


class _OutOfTime(Exception):
    pass


class _Reader:
    """A connection that only reads, with a deadline that also ends a long scan."""

    __slots__ = ("_busy_ms", "_deadline", "connection")

    def __init__(self, file: StoreFile) -> None:
        self.connection = file.connect()
        self._busy_ms = -1
        self._deadline = Deadline(0)
        self.connection.set_progress_handler(self._too_late, 20_000)

    def until(self, deadline: Deadline) -> None:
        self._deadline = deadline
        busy_ms = min(int(deadline.left_s() * 1000), 5000)
        if busy_ms != self._busy_ms:
            self._busy_ms = busy_ms
            self.connection.execute(f"PRAGMA busy_timeout={busy_ms}")

    def _too_late(self) -> bool:
        return self._deadline.passed()


def _slices(value: bytes) -> Iterator[bytes]:
    for start in range(0, len(value), STAGE_BYTES):
        yield value[start : start + STAGE_BYTES]


def _range(prefix: str) -> tuple[str, tuple[str, ...]]:
    if not prefix:
        return "1", ()
    end = prefix_end(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))


def _refuse_existing(connection: sqlite3.Connection, keys: list[str]) -> None:
    """Raises `KeyExists` if one of `keys` has a value; expired rows count as absent (the insert replaces them)."""
    taken: list[str] = []
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        some = keys[start : start + _KEYS_PER_STATEMENT]
        marks = ",".join("?" * len(some))
        sql = f"SELECT key FROM manifest WHERE key IN ({marks}) AND {_ALIVE} ORDER BY key"
        taken += [key for (key,) in connection.execute(sql, (*some, now_ms()))]
    if taken:
        raise key_exists(taken)


def _new_generation(connection: sqlite3.Connection) -> int:
    connection.execute("UPDATE info SET value = value + 1 WHERE name = 'generation'")
    (generation,) = connection.execute("SELECT value FROM info WHERE name = 'generation'").fetchone()
    return int(generation)


def _insert_chunks(connection: sqlite3.Connection, generation: int, number: int, data: bytes) -> int:
    view = memoryview(data)
    first = (generation << _GENERATION_SHIFT) + number
    count = -(-len(data) // CHUNK_BYTES)
    for n in range(count):
        connection.execute("INSERT INTO chunk VALUES (?, ?)", (first + n, view[n * CHUNK_BYTES : (n + 1) * CHUNK_BYTES]))
    return count


def _chunk_writer(generation: int, number: int, data: bytes) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: _insert_chunks(connection, generation, number, data)
