# ruff: noqa: S608 - the SQL is put together from constants of this file; every value is bound
"""The statements of the SQLite store: all changes to its tables, inside a transaction that the caller has opened.

Every generation, which has a file, is named by exactly one row of `manifest` or of `unreferenced`. The triggers of the
schema (sqlite/file.py) and the functions here keep that true, so a sweep never has to look for orphans.
"""

from __future__ import annotations

import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from rmgr.adapters.sqlite.file import StoreFile, is_corrupt
from rmgr.adapters.store_rules import CallDeadline, data_lost, key_exists, now_ms
from rmgr.coord.protocol.keys import prefix_end
from rmgr.coord.protocol.ports import NOTHING
from rmgr.errors import RmgrError, StoreUnavailable

#: Most keys in one `IN (...)`.
KEYS_PER_STATEMENT = 256
#: True for a row that has not expired; its parameter is the time in ms.
ALIVE = "(expires_ms IS NULL OR expires_ms > ?)"

# Few statement texts, so that they stay prepared; steps of at most half, so that little is written twice.
_ROWS_PER_STATEMENT = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MAX_ROWS = _ROWS_PER_STATEMENT[-1]  #: rows in one `INSERT`
_COLUMNS = "key, size, sha256, encoding, expires_ms, generation, chunks, inline"
_COLUMNS_UP_TO = _COLUMNS.replace("inline", "CASE WHEN size <= ? THEN inline END")
_REPLACE = (
    "ON CONFLICT (key) DO UPDATE SET size = excluded.size, sha256 = excluded.sha256, encoding = excluded.encoding,"
    " expires_ms = excluded.expires_ms, generation = excluded.generation, chunks = excluded.chunks, inline = excluded.inline"
)
_INSERT = {n: f"INSERT INTO manifest ({_COLUMNS}) VALUES {', '.join(['(?,?,?,?,?,?,?,?)'] * n)} {_REPLACE}" for n in _ROWS_PER_STATEMENT}


class ManifestRow(NamedTuple):
    """One row of `manifest`: the value itself (`chunks` = 0) or the name of its generation.

    chunks: number of pieces of `CHUNK_BYTES` in the value's file.
    """

    key: str
    size: int
    sha256: bytes
    encoding: str
    expires_ms: int | None
    generation: int
    chunks: int
    inline: bytes | None


def select(connection: sqlite3.Connection, key: str) -> ManifestRow | None:
    """Returns the row of `key`, None if absent or expired."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM manifest WHERE key = ? AND {ALIVE}", (key, now_ms())).fetchone()
    return None if row is None else ManifestRow(*row)


def select_many(connection: sqlite3.Connection, keys: list[str], largest: int) -> list[ManifestRow]:
    """Returns the rows of up to `KEYS_PER_STATEMENT` keys; rows of values above `largest` bytes come without the value."""
    sql = f"SELECT {_COLUMNS_UP_TO} FROM manifest WHERE key IN ({_marks(keys)}) AND {ALIVE}"
    return list(map(ManifestRow._make, connection.execute(sql, (largest, *keys, now_ms()))))


def select_keys(connection: sqlite3.Connection, prefix: str, after: str, limit: int) -> list[str]:
    """Returns up to `limit` keys with `prefix`, sorted, greater than `after`."""
    where, parameters = _range(prefix)
    sql = f"SELECT key FROM manifest WHERE {where} AND key > ? AND {ALIVE} ORDER BY key LIMIT ?"
    return [key for (key,) in connection.execute(sql, (*parameters, after, now_ms(), limit))]


def select_usage(connection: sqlite3.Connection, prefix: str) -> tuple[int, int]:
    """Returns the number of values under `prefix` and the sum of their sizes."""
    where, parameters = _range(prefix)
    sql = f"SELECT count(*), coalesce(sum(size), 0) FROM manifest WHERE {where} AND {ALIVE}"
    count, size = connection.execute(sql, (*parameters, now_ms())).fetchone()
    return count, size


def insert(connection: sqlite3.Connection, rows: list[ManifestRow]) -> None:
    """Writes rows in the given order; an existing key is replaced. One statement for up to `MAX_ROWS` rows.

    Each statement releases the interpreter's lock and has to win it back, which costs 5 ms beside a thread that
    computes. Hence many rows per statement, the last row repeated up to the next prepared size, which changes nothing.
    """
    for start in range(0, len(rows), MAX_ROWS):
        some = rows[start : start + MAX_ROWS]
        size = _ROWS_PER_STATEMENT[bisect_left(_ROWS_PER_STATEMENT, len(some))]
        some += [some[-1]] * (size - len(some))
        connection.execute(_INSERT[size], [column for row in some for column in row])


def insert_new(connection: sqlite3.Connection, rows: list[ManifestRow], replaces: Mapping[str, bytes] = NOTHING) -> None:
    """Writes all rows, or none and raises `KeyExists`: see `refuse_existing`."""
    refuse_existing(connection, [row.key for row in rows], replaces)
    insert(connection, rows)


def refuse_existing(connection: sqlite3.Connection, keys: list[str], replaces: Mapping[str, bytes] = NOTHING) -> None:
    """Raises `KeyExists` if one of `keys` has a value, except one whose hash is in `replaces`; expired values count as absent."""
    taken: list[str] = []
    for start in range(0, len(keys), KEYS_PER_STATEMENT):
        some = keys[start : start + KEYS_PER_STATEMENT]
        sql = f"SELECT key, sha256 FROM manifest WHERE key IN ({_marks(some)}) AND {ALIVE} ORDER BY key"
        taken += [key for key, digest in connection.execute(sql, (*some, now_ms())) if digest != replaces.get(key)]
    if taken:
        raise key_exists(taken)


def delete_many(connection: sqlite3.Connection, keys: list[str]) -> list[str]:
    """Removes rows; returns the keys that were there and had not expired, unsorted. Their files become unreferenced."""
    found: list[str] = []
    for start in range(0, len(keys), KEYS_PER_STATEMENT):
        some = keys[start : start + KEYS_PER_STATEMENT]
        marks = _marks(some)
        found += [key for (key,) in connection.execute(f"SELECT key FROM manifest WHERE key IN ({marks}) AND {ALIVE}", (*some, now_ms()))]
        connection.execute(f"DELETE FROM manifest WHERE key IN ({marks})", some)
    return found


# -- values that are no longer needed --------------------------------------------------------------------------------------


def begin_uploads(connection: sqlite3.Connection, since_ms: int, count: int) -> list[int]:
    """Returns new generations for values that are written before their rows; they count as unreferenced from `since_ms` on."""
    connection.execute("UPDATE info SET value = value + ? WHERE name = 'generation'", (count,))
    (last,) = connection.execute("SELECT value FROM info WHERE name = 'generation'").fetchone()
    generations = [int(last) - count + 1 + n for n in range(count)]
    marks = ", ".join(["(?, ?)"] * count)
    connection.execute(f"INSERT INTO unreferenced VALUES {marks}", [item for one in generations for item in (one, since_ms)])
    return generations


class Swept(StoreUnavailable):
    """A sweep may have removed the value that was being written: it is not committed."""


def end_upload(connection: sqlite3.Connection, manifest: ManifestRow, *, overwrite: bool) -> None:
    """Makes an uploaded value visible: removes its generation from `unreferenced` and inserts its row.

    Raises: KeyExists; Swept.
    """
    if not overwrite:
        refuse_existing(connection, [manifest.key])
    took = connection.execute("DELETE FROM unreferenced WHERE generation = ? AND since_ms > ?", (manifest.generation, now_ms()))
    if took.rowcount != 1:
        raise Swept(f"cannot put {manifest.key!r}: it took so long that its first part was swept away", hint="put it again")
    insert(connection, [manifest])


def remove_expired(connection: sqlite3.Connection, at_ms: int, limit: int) -> int:
    """Removes up to `limit` rows that had expired at `at_ms`; returns their number."""
    sql = "DELETE FROM manifest WHERE key IN (SELECT key FROM manifest WHERE expires_ms <= ? LIMIT ?)"
    return connection.execute(sql, (at_ms, limit)).rowcount


def has_large(connection: sqlite3.Connection) -> bool:
    """Returns whether any value lies in a file. Cost: O(values) if none does."""
    return connection.execute("SELECT 1 FROM manifest WHERE chunks > 0 LIMIT 1").fetchone() is not None


def select_unreferenced(connection: sqlite3.Connection, before_ms: int, limit: int) -> list[int]:
    """Returns up to `limit` generations unreferenced since before `before_ms`."""
    sql = "SELECT generation FROM unreferenced WHERE since_ms <= ? LIMIT ?"
    return [generation for (generation,) in connection.execute(sql, (before_ms, limit))]


def forget_unreferenced(connection: sqlite3.Connection, generations: list[int]) -> None:
    """Removes the entries of generations whose files are gone."""
    connection.executemany("DELETE FROM unreferenced WHERE generation = ?", [(one,) for one in generations])


def _marks(keys: list[str]) -> str:
    return ",".join("?" * len(keys))


def _range(prefix: str) -> tuple[str, tuple[str, ...]]:
    if not prefix:
        return "1", ()
    end = prefix_end(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))


# -- connections that only read ------------------------------------------------------------------------------------------------


_BUSY_MS = 5000
_STEPS_BETWEEN_CHECKS = 20_000  # steps of SQLite's virtual machine: under a millisecond


class Readers:
    """A pool of read connections on one store. Thread-safe."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def reading(self, deadline: CallDeadline, doing: str, key: str = "") -> Iterator[sqlite3.Connection]:
        """Yields a connection for the block; its statements are cut off at the deadline.

        Args:
            doing: completes "cannot ... the store", e.g. "list 'a/' in".
            key: the key whose value is read, for `DataLost` if the file is damaged there.
        Raises: `StoreUnavailable`, `DataLost`.
        """
        deadline.check(doing.removesuffix(" from").removesuffix(" in"))
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"cannot {doing} the store {self._file.path}: it is closed")
            reader = self._idle.pop() if self._idle else None
        reader = reader or _Reader(self._file)
        try:
            reader.until(deadline)
            yield reader.connection
        except sqlite3.Error as error:
            reader.close()
            if key and is_corrupt(error):
                raise data_lost(key, f"the store {self._file.path} is damaged ({error})") from error
            raise self._file.explain(error, doing) from error
        except RmgrError:
            self._give_back(reader)
            raise
        except BaseException:  # for instance Ctrl-C in mid-statement: a snapshot may still be open
            reader.close()
            raise
        self._give_back(reader)

    def close(self) -> None:
        """Closes the idle connections now, the others when they are given back. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def _give_back(self, reader: _Reader) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(reader)
                return
        reader.close()


class _Reader:
    """A connection with a deadline that also ends a long scan."""

    __slots__ = ("_busy_ms", "_deadline", "connection")

    def __init__(self, file: StoreFile) -> None:
        self.connection = file.connect()
        self._busy_ms = -1
        self._deadline = CallDeadline(0)
        self.connection.set_progress_handler(self._too_late, _STEPS_BETWEEN_CHECKS)

    def until(self, deadline: CallDeadline) -> None:
        self._deadline = deadline
        busy_ms = min(int(deadline.left_s() * 1000), _BUSY_MS)
        if busy_ms != self._busy_ms:
            self._busy_ms = busy_ms
            self.connection.execute(f"PRAGMA busy_timeout={busy_ms}")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.connection.close()

    def _too_late(self) -> bool:
        return self._deadline.passed()
