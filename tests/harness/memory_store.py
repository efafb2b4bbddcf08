"""A data store in the memory of one process, which obeys the port: for property tests and examples, never for a cluster."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from rmgr.adapters.store_rules import (
    CHUNK_BYTES,
    CallDeadline,
    check_key,
    check_limit,
    check_prefix,
    check_size,
    expiry_ms,
    key_exists,
    notes_of,
    now_ms,
    pieces,
    sweep_ms,
    verify,
)
from rmgr.coord.protocol.ports import About, Encoding, Store, Writing
from rmgr.errors import StoreUnavailable, UsageError
from rmgr.model.units import counted


@dataclass(frozen=True, slots=True)
class _Row:
    value: bytes
    digest: bytes
    encoding: Encoding
    expires_ms: int | None
    note: bytes = b""

    @property
    def about(self) -> About:
        return About(len(self.value), self.encoding, self.digest, self.note)


class _Shelf:
    """The rows of one named store."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, _Row] = {}
        self.order: list[str] = []  # keys, sorted


_SHELVES: dict[str, _Shelf] = {}
_SHELVES_LOCK = threading.Lock()


class MemoryStore(Store):
    """A `Store` (coord/protocol/ports.py). Stores with the same non-empty name share their rows; one without a name shares none."""

    def __init__(self, name: str = "") -> None:
        if name:
            with _SHELVES_LOCK:
                self._shelf = _SHELVES.setdefault(name, _Shelf())
        else:
            self._shelf = _Shelf()
        self._closed = False
        self.outage = ""  #: what is wrong with the store; while not empty, every call fails as if the store were away
        self.url = f"memory:{name}"

    def write(self, key: str, value: bytes | Iterable[bytes | memoryview], how: Writing) -> None:
        """See `Store.put`."""
        deadline = self._begin(how.timeout_s, f"put {key!r}")
        check_key(key)
        ttl_ms = expiry_ms(how.ttl_s)
        if isinstance(value, str):
            raise UsageError(f"the value of {key!r} must be bytes, not text; encode it first")
        if isinstance(value, bytes | bytearray | memoryview):
            check_size(key, memoryview(value).nbytes)
            whole = bytes(value)
        else:
            parts = []
            for piece in pieces(key, value, CHUNK_BYTES):
                deadline.check(f"put {key!r}")
                parts.append(piece)
            whole = b"".join(parts)
        digest = sha256(whole).digest()
        row = _Row(whole, digest, how.encoding, ttl_ms, how.note if isinstance(how.note, bytes) else how.note(digest))
        with self._shelf.lock:
            if not how.overwrite and self._alive(key) is not None:
                raise key_exists([key])
            self._set(key, row)

    def write_many(self, rows: Sequence[tuple[str, bytes]], how: Writing) -> None:
        """See `Store.put_many`."""
        self._begin(how.timeout_s, "put values")
        ttl_ms = expiry_ms(how.ttl_s)
        for key, value in rows:
            check_key(key)
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {key!r} must be bytes, not {type(value).__name__}")
            check_size(key, len(value))
        with self._shelf.lock:
            there = {} if how.overwrite else {key: row for key, _ in rows if (row := self._alive(key)) is not None}
            taken = sorted(key for key, row in there.items() if row.digest != how.replaces.get(key))
            if taken:
                raise key_exists(taken)
            for (key, value), note in zip(rows, notes_of(rows, how.notes), strict=True):
                self._set(key, _Row(value, sha256(value).digest(), how.encoding, ttl_ms, note))

    def stream(self, key: str, *, timeout_s: float = 30.0) -> Iterator[bytes] | None:
        """See `Store.stream`."""
        found = self.get(key, timeout_s=timeout_s)
        if found is None:
            return None
        return (found[0][start : start + CHUNK_BYTES] for start in range(0, len(found[0]), CHUNK_BYTES))

    def get_noted_many(self, keys: Sequence[str], *, largest: int, timeout_s: float = 30.0) -> dict[str, tuple[bytes | None, About]]:
        """See `Store.get_noted_many`."""
        self._begin(timeout_s, f"read {counted(len(keys), 'value')}")
        with self._shelf.lock:
            rows = {key: self._alive(check_key(key)) for key in keys}
        return {
            key: (verify(key, row.value, len(row.value), row.digest) if len(row.value) <= largest else None, row.about)
            for key, row in rows.items()
            if row is not None
        }

    def delete_many(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[str]:
        """See `Store.delete_many`."""
        self._begin(timeout_s, f"delete {counted(len(keys), 'value')}")
        wanted = list(dict.fromkeys(map(check_key, keys)))
        with self._shelf.lock:
            found = [key for key in wanted if self._alive(key) is not None]
            for key in wanted:
                self._remove(key)
        return found

    def keys(self, prefix: str = "", *, after: str = "", limit: int = 1000, timeout_s: float = 30.0) -> list[str]:
        """See `Store.keys`."""
        self._begin(timeout_s, f"list {prefix!r}")
        check_prefix(prefix)
        check_prefix(after)
        check_limit(limit)
        with self._shelf.lock:
            order = self._shelf.order
            found: list[str] = []
            for at in range(max(bisect_left(order, prefix), bisect_right(order, after)), len(order)):
                if not order[at].startswith(prefix) or len(found) == limit:
                    break
                if self._alive(order[at]) is not None:
                    found.append(order[at])
        return found

    def usage(self, prefix: str = "", *, timeout_s: float = 30.0) -> tuple[int, int]:
        """See `Store.usage`."""
        self._begin(timeout_s, f"measure {prefix!r}")
        check_prefix(prefix)
        with self._shelf.lock:
            sizes = [len(row.value) for key in self._shelf.order if key.startswith(prefix) and (row := self._alive(key)) is not None]
        return len(sizes), sum(sizes)

    def sweep(self, *, now_ms: int | None = None, timeout_s: float = 30.0) -> int:
        """See `Store.sweep`."""
        self._begin(timeout_s, "sweep")
        at_ms = sweep_ms(now_ms)
        with self._shelf.lock:
            gone = [key for key, row in self._shelf.rows.items() if row.expires_ms is not None and row.expires_ms <= at_ms]
            for key in gone:
                self._remove(key)
        return len(gone)

    def health(self, *, timeout_s: float = 5.0) -> str | None:
        """See `Store.health`."""
        return "the store is closed" if self._closed else self.outage or None

    def close(self) -> None:
        """See `Store.close`. Rows of a named store stay."""
        self._closed = True

    def _begin(self, timeout_s: float, doing: str) -> CallDeadline:
        if self._closed:
            raise StoreUnavailable(f"cannot {doing}: the store is closed")
        if self.outage:
            raise StoreUnavailable(f"cannot {doing}: {self.outage}")
        deadline = CallDeadline(timeout_s)
        deadline.check(doing)
        return deadline

    def _alive(self, key: str) -> _Row | None:
        row = self._shelf.rows.get(key)
        return row if row is not None and (row.expires_ms is None or row.expires_ms > now_ms()) else None

    def _set(self, key: str, row: _Row) -> None:
        if key not in self._shelf.rows:
            insort(self._shelf.order, key)
        self._shelf.rows[key] = row

    def _remove(self, key: str) -> None:
        if self._shelf.rows.pop(key, None) is not None:
            del self._shelf.order[bisect_left(self._shelf.order, key)]
