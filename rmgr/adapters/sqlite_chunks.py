"""Large values of a store of version 1: rows of chunks beside the manifest, written in groups, the manifest last.

Every page of such a value is written twice, into the log and into the file, which costs 1.8 ms of processor a MB and more; stores
made since then have files instead (sqlite_values.py). A store of version 1 stays as it is, so that older releases can read it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import TypeVar

from rmgr.adapters import sqlite_rows as table
from rmgr.adapters.sqlite_readers import Readers
from rmgr.adapters.sqlite_rows import Row
from rmgr.adapters.sqlite_writer import Write, Writer
from rmgr.adapters.store_rules import CHUNK_BYTES, Deadline, data_lost, now_ms, patience_s, pieces
from rmgr.errors import RmgrError, StoreUnavailable, ValueTooLarge
from rmgr.model.units import counted

T = TypeVar("T")

#: Bytes that go into one commit; an upload holds three of these: one being written, two read ahead.
_STAGE_BYTES = 4 * CHUNK_BYTES
_ROW_BYTES = 200
_SWEEP_CHUNKS = 32
#: Chunks that a generation has numbers for: 512 MiB. Stores made since then take larger values.
_MOST_CHUNKS = 1 << 10


class ChunkRows:
    """Reads and writes the large values of one store."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    def put(
        self, row: Row, parts: Iterable[bytes], *, overwrite: bool, deadline: Deadline, mark: Callable[[bytes], str] | None = None
    ) -> None:
        """A commit for every part, while the next one is read, and the manifest `row` in the last; `row.sha256`: if it is known.

        mark: what stands as its encoding, by its SHA-256.

        Raises: KeyExists, StoreUnavailable, and what `parts` raises.
        """
        doing = f"put {row.key!r}"
        # It counts as unreferenced only from when this call is over, so no sweep takes the chunks while it lasts.
        since_ms = now_ms() + int((deadline.timeout_s + patience_s(_MOST_CHUNKS * CHUNK_BYTES)) * 1000)
        (generation,) = self._write(lambda connection: table.begin_uploads(connection, since_ms, 1), deadline, _ROW_BYTES, doing)
        digest = None if row.sha256 else sha256()
        size = chunks = 0
        writing: Write | None = None
        try:
            for part in pieces(row.key, parts, _STAGE_BYTES):
                deadline.allow(len(part))
                deadline.check(doing)
                if chunks + -(-len(part) // CHUNK_BYTES) > _MOST_CHUNKS:
                    raise ValueTooLarge(
                        f"the value of {row.key!r} is over 512 MiB, the most that a data store made by rmgr 0.1 takes",
                        hint="split it over several keys, or move to a data store that is made anew",
                    )
                if digest is not None:
                    digest.update(part)
                if writing is not None:
                    self._writer.wait(writing, deadline)
                writing = self._writer.begin(_chunk_writer(generation, chunks, part), deadline, weight_bytes=len(part), doing=doing)
                size += len(part)
                chunks += -(-len(part) // CHUNK_BYTES)
            if writing is not None:
                self._writer.wait(writing, deadline)
            taken = row.sha256 if digest is None else digest.digest()
            column = row.encoding if mark is None else mark(taken)
            manifest = row._replace(size=size, sha256=taken, encoding=column, generation=generation, chunks=chunks)
            self._write(lambda connection: table.end_upload(connection, manifest, overwrite=overwrite), deadline, _ROW_BYTES, doing)
        except BaseException:
            with suppress(RmgrError):
                self._writer.begin(
                    lambda connection: table.abandon_upload(connection, generation),
                    Deadline(0.1),
                    weight_bytes=_ROW_BYTES,
                    doing="end an upload",
                )
            raise

    def get(self, row: Row, deadline: Deadline) -> tuple[Row, bytes] | None:
        """The value of the key of `row` with its present row, in one snapshot. Raises: DataLost, StoreUnavailable."""
        key = row.key
        with self._readers.reading(deadline, f"read {key!r} from", key) as connection:
            connection.execute("BEGIN")
            try:
                now = table.select(connection, key)
                if now is None or not now.chunks:
                    return None if now is None else (now, now.inline or b"")
                chunks = [data for (data,) in table.select_chunks(connection, now.generation, now.chunks)]
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")
        if len(chunks) != now.chunks:
            raise data_lost(key, f"{len(chunks)} of {counted(now.chunks, 'chunk')} found")
        return now, b"".join(chunks)

    def stream(self, row: Row, timeout_s: float) -> Iterator[bytes]:
        """The chunks of `row`, the last one only when the hash agreed."""
        seen_bytes = 0
        digest = sha256()
        for number in range(row.chunks):
            with self._readers.reading(Deadline(timeout_s), f"read {row.key!r} from", row.key) as connection:
                data = table.select_chunk(connection, row.generation, number)
                if data is None:
                    now = table.select(connection, row.key)
                    if now is None or now.generation != row.generation:
                        raise StoreUnavailable(f"the value of {row.key!r} was replaced or deleted while it was read", hint="read it again")
                    raise data_lost(row.key, f"chunk {number} of {row.chunks} is missing")
            seen_bytes += len(data)
            digest.update(data)
            if number == row.chunks - 1 and (seen_bytes != row.size or digest.digest() != row.sha256):
                raise data_lost(row.key, f"{seen_bytes:,} of {row.size:,} bytes read, the hash differs")
            yield data

    def fetch(self, row: Row, path: str, deadline: Deadline) -> bool:  # noqa: ARG002 - the same as of files
        """False: there is no file."""
        return False

    def free(self, before_ms: int, deadline: Deadline) -> int:
        """Frees what nobody has referred to since `before_ms`, some chunks a commit; returns how many values that were."""
        freed, more = 0, True
        while more and not deadline.passed():
            count, more = self._write(
                lambda connection: table.free_unreferenced(connection, before_ms, _SWEEP_CHUNKS), deadline, CHUNK_BYTES, "sweep"
            )
            freed += count
        return freed

    def _write(self, run: Callable[[sqlite3.Connection], T], deadline: Deadline, weight_bytes: int, doing: str) -> T:
        return self._writer.write(run, deadline, weight_bytes=weight_bytes, doing=doing)


def _chunk_writer(generation: int, number: int, data: bytes) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: table.insert_chunks(connection, generation, number, data)
