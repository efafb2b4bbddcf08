"""Values read from Cassandra, never with wrong bytes: every piece is hashed, and a bad one is asked for at other nodes.

And keys in order, out of an index in many partitions: scope by scope, with the buckets of a scope merged. Cost of a page: one
request for each of the 16 buckets of every scope that it touches; a prefix with its family (and, for divided families, the submission)
touches one scope. For people, tools and collection, never to find work.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from itertools import chain, groupby
from typing import Any

from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra.link import Calls
from rmgr.adapters.cassandra.rows import ValueManifest, manifest_of
from rmgr.adapters.cassandra.schema import StatementRequest, ask, chunk_place
from rmgr.adapters.store_rules import CallDeadline, about_of, check_size, data_lost, now_ms, verify
from rmgr.coord.protocol.ports import About
from rmgr.errors import DataLost, StoreUnavailable
from rmgr.model.units import counted

#: Chunks of one value in flight: while it is read whole (4 MiB), and while it is streamed (2 MiB).
_WINDOW = 8
_STREAM_CHUNKS = 4


class Replaced(Exception):
    """The chunks of a manifest are gone because the value has been replaced."""


class Reader:
    """Reads values of one store."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def manifest(self, key: str, deadline: CallDeadline, doing: str) -> ValueManifest | None:
        """Returns the live manifest of `key`."""
        found = manifest_of(self._calls.one(ask("value", key), deadline, doing))
        return found if found is not None and found.is_live else None

    def existing(self, keys: list[str], deadline: CallDeadline, doing: str) -> list[str]:
        """Returns those of `keys` that have a live value."""
        answers = self._calls.all([ask("value", key) for key in keys], deadline, doing)
        found = zip(keys, map(manifest_of, answers), strict=True)
        return [key for key, manifest in found if manifest is not None and manifest.is_live]

    def fetch(self, key: str, path: str, deadline: CallDeadline, *, largest: int) -> tuple[bytes | None, bytes] | None:
        """Returns the value and its SHA-256; a chunked value goes to the new file `path`, with None in its place.

        Raises: in addition, ValueTooLarge above `largest` bytes, and OSError; both leave no file.
        """
        doing = f"read {key!r}"
        while True:
            manifest = self.manifest(key, deadline, doing)
            if manifest is None:
                return None
            check_size(key, manifest.size, largest)
            if not manifest.chunks:
                value = self._inline(key, manifest, deadline, doing)
                return value, sha256(value).digest()
            try:
                self._to_file(key, manifest, path, deadline, doing)
            except BaseException as error:
                with suppress(OSError):
                    os.unlink(path)
                if not isinstance(error, Replaced):
                    raise
                deadline.check(doing)
            else:
                return None, manifest.digest

    def _to_file(self, key: str, manifest: ValueManifest, path: str, deadline: CallDeadline, doing: str) -> None:
        size, digest = 0, sha256()
        deadline.allow(manifest.size)
        requests = [_chunk_request(manifest, number) for number in range(manifest.chunks)]
        answers = self._calls.each(requests, deadline, doing, window=_STREAM_CHUNKS)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
            for request, rows in zip(requests, answers, strict=True):
                left = memoryview(self._checked(key, manifest, request, rows, deadline, doing))
                digest.update(left)
                size += len(left)
                while left:
                    left = left[file.write(left) :]
        if size != manifest.size or digest.digest() != manifest.digest:
            raise data_lost(key, f"{size:,} of {manifest.size:,} bytes read, the hash differs")

    def get_noted_many(self, keys: list[str], deadline: CallDeadline, *, largest: int) -> dict[str, tuple[bytes | None, About]]:
        """Returns the values of those `keys` that have one; for values above `largest` bytes only their `About`.

        A value that is replaced in the meantime is read again from the start.
        """
        doing = f"read {keys[0]!r}" if len(keys) == 1 else f"read {counted(len(keys), 'value')}"
        found: dict[str, tuple[bytes | None, About]] = {}
        while keys:
            deadline.check(doing)
            chunked: dict[str, ValueManifest] = {}
            for key, rows in zip(keys, self._calls.each([ask("value", key) for key in keys], deadline, doing), strict=True):
                manifest = manifest_of(rows)
                if manifest is None or not manifest.is_live:
                    continue
                if manifest.size > largest:
                    found[key] = None, about_of(manifest.size, manifest.encoding, manifest.digest)
                elif manifest.chunks:
                    deadline.allow(manifest.size)
                    chunked[key] = manifest
                else:
                    found[key] = self._noted(key, manifest, deadline, doing)
            keys = []
            for key, value in self._assemble(chunked, deadline, doing):
                if value is None:
                    keys.append(key)
                else:
                    manifest = chunked[key]
                    found[key] = value, about_of(manifest.size, manifest.encoding, manifest.digest)
        return found

    def stream(self, key: str, timeout_s: float) -> Iterator[bytes] | None:
        """Returns the chunks of the value, read four at a time."""
        deadline = CallDeadline(timeout_s)
        doing = f"read {key!r}"
        manifest = self.manifest(key, deadline, doing)
        if manifest is None:
            return None
        if manifest.chunks:
            return self._stream(key, manifest, timeout_s)
        value = self._inline(key, manifest, deadline, doing)
        return iter((value,) if value else ())

    def _assemble(self, manifests: Mapping[str, ValueManifest], deadline: CallDeadline, doing: str) -> Iterator[tuple[str, bytes | None]]:
        """Yields chunked values, one by one while chunks of later ones are on their way; None for one replaced in the meantime."""
        asked = [(key, _chunk_request(manifest, number)) for key, manifest in manifests.items() for number in range(manifest.chunks)]
        answers = self._calls.each([request for _, request in asked], deadline, doing, window=_WINDOW)
        for key, group in groupby(zip(asked, answers, strict=True), key=lambda pair: pair[0][0]):
            manifest, whole, is_replaced = manifests[key], BytesIO(), False  # its bytes can be taken without a copy
            for (_, request), rows in group:
                try:
                    if not is_replaced:
                        whole.write(self._checked(key, manifest, request, rows, deadline, doing))
                except Replaced:
                    is_replaced = True
            yield key, None if is_replaced else verify(key, whole.getvalue(), manifest.size, manifest.digest)

    def _noted(self, key: str, manifest: ValueManifest, deadline: CallDeadline, doing: str) -> tuple[bytes, About]:
        value = self._inline(key, manifest, deadline, doing)
        # It may have come from another node's row, with another hash.
        digest = manifest.digest if value is manifest.inline else sha256(value).digest()
        return value, about_of(len(value), manifest.encoding, digest)

    def _stream(self, key: str, manifest: ValueManifest, timeout_s: float) -> Iterator[bytes]:
        doing = f"read {key!r}"
        seen_bytes = 0
        digest = sha256()
        for start in range(0, manifest.chunks, _STREAM_CHUNKS):
            deadline = CallDeadline(timeout_s)
            requests = [_chunk_request(manifest, number) for number in range(start, min(start + _STREAM_CHUNKS, manifest.chunks))]
            for request, rows in zip(requests, self._calls.all(requests, deadline, doing), strict=True):
                try:
                    data = self._checked(key, manifest, request, rows, deadline, doing)
                except Replaced:
                    raise StoreUnavailable(
                        f"the value of {key!r} was replaced or deleted while it was read", hint="read it again"
                    ) from None
                seen_bytes += len(data)
                digest.update(data)
                if request is requests[-1] and start + len(requests) == manifest.chunks and digest.digest() != manifest.digest:
                    raise data_lost(key, f"{seen_bytes:,} of {manifest.size:,} bytes read, the hash differs")
                yield data

    def _inline(self, key: str, manifest: ValueManifest, deadline: CallDeadline, doing: str) -> bytes:
        try:
            return verify(key, manifest.inline, manifest.size, manifest.digest)
        except DataLost:
            for rows in self._calls.elsewhere(ask("value", key), deadline, doing):
                other = manifest_of(rows)
                if other is not None and other.is_live and not other.chunks and sha256(other.inline).digest() == other.digest:
                    return other.inline
            raise

    def _checked(
        self, key: str, manifest: ValueManifest, request: StatementRequest, rows: list[Any], deadline: CallDeadline, doing: str
    ) -> bytes:
        """Returns the bytes of one chunk, from another node if these are bad."""
        data = _good(rows)
        if data is not None:
            return data
        now = self.manifest(key, deadline, doing)
        if now is None or now.generation != manifest.generation:
            raise Replaced
        for answer in self._calls.elsewhere(request, deadline, doing):
            data = _good(answer)
            if data is not None:
                return data
        number = request.rows[0][2]
        raise data_lost(key, f"chunk {number} of {manifest.chunks} is {'damaged' if rows else 'missing'} on every node that was asked")


def _chunk_request(manifest: ValueManifest, number: int) -> StatementRequest:
    return ask("chunk", *chunk_place(manifest.generation, number))


def _good(rows: list[Any]) -> bytes | None:
    """Returns the bytes of a chunk if it is there and matches its hash."""
    if not rows or not rows[0][1]:
        return None
    data, digest = rows[0]
    return data if sha256(data).digest() == digest else None


# -- keys in order -------------------------------------------------------------------------------------------------------------


#: (key, size in bytes)
Entry = tuple[str, int]

_SCOPES_A_PAGE = 500
_LEAST_PAGE, _LARGEST_PAGE = 8, 1000


class Listing:
    """Reads the index of keys."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def entries(self, prefix: str, after: str, limit: int, deadline: CallDeadline, doing: str) -> Iterator[Entry]:
        """Yields live entries with `prefix` after `after`, sorted by key. `limit` is about how many the caller wants."""
        page = min(_LARGEST_PAGE, max(_LEAST_PAGE, 2 * limit // schema.INDEX_BUCKETS))
        walk = _Walk(self._calls, *schema.span(prefix, after), page, deadline, doing)
        streams = [walk.scope(scope) for scope in self._undivided_scopes(prefix, deadline, doing)]
        streams += [walk.family(self._divided_scopes(family, prefix, after, deadline, doing)) for family in _divided_families(prefix)]
        return heapq.merge(*streams)

    def scopes(self, register: str, start: str, deadline: CallDeadline, doing: str) -> Iterator[tuple[str, int]]:
        """Yields (scope, since_ms) from one partition of the register, from `start` on, in order."""
        while True:
            rows = self._calls.one(ask("scopes", register, start, _SCOPES_A_PAGE), deadline, doing)
            yield from rows
            if len(rows) < _SCOPES_A_PAGE:
                return
            start = rows[-1][0] + "\x01"

    def _undivided_scopes(self, prefix: str, deadline: CallDeadline, doing: str) -> list[str]:
        """Returns the scopes that are a whole family, or the keys without one."""
        family, slash, rest = prefix.partition("/")
        if slash:
            return [] if family in schema.DIVIDED and "/" in rest else [f"{family}/"]
        known = [scope for scope, _ in self.scopes(schema.FAMILIES, prefix, deadline, doing) if schema.may_hold(scope, prefix)]
        return [schema.NO_FAMILY, *(scope for scope in known if scope != schema.NO_FAMILY)]

    def _divided_scopes(self, family: str, prefix: str, after: str, deadline: CallDeadline, doing: str) -> Iterator[str]:
        """Yields the scopes of a divided family in order, from the one that holds the first key."""
        if prefix.count("/") > 1:  # the prefix names the scope
            yield schema.scope_of(prefix)
            return
        start = prefix
        if after.startswith(family):
            start = max(start, schema.scope_of(after))
        elif after > family:
            return
        for scope, _ in self.scopes(family, start, deadline, doing):
            if not schema.may_hold(scope, prefix):
                if scope > prefix:
                    return
                continue
            yield scope


def _divided_families(prefix: str) -> list[str]:
    return [f"{name}/" for name in sorted(schema.DIVIDED) if f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")]


class _Walk:
    """One listing under way."""

    def __init__(self, calls: Calls, low: str, high: str, page: int, deadline: CallDeadline, doing: str) -> None:
        self._calls = calls
        self._low, self._high, self._page = low, high, page
        self._deadline, self._doing = deadline, doing

    def family(self, scopes: Iterator[str]) -> Iterator[Entry]:
        """Yields the entries of scopes that do not overlap and come in order; each scope is opened when the one before has ended."""
        return chain.from_iterable(map(self.scope, scopes))

    def scope(self, scope: str) -> Iterator[Entry]:
        """Yields the entries of one scope: reads the first pages of all buckets at once, further ones as needed."""
        first = [ask("index", scope, bucket, self._low, self._high, self._page) for bucket in range(schema.INDEX_BUCKETS)]
        pages = self._calls.all(first, self._deadline, self._doing)
        yield from heapq.merge(*(self._bucket(scope, bucket, rows) for bucket, rows in enumerate(pages)))

    def _bucket(self, scope: str, bucket: int, rows: list[Any]) -> Iterator[Entry]:
        while True:
            now = now_ms()
            for key, (size, expires_ms) in rows:
                if size >= 0 and (expires_ms is None or expires_ms > now):
                    yield key, size
            if len(rows) < self._page:
                return
            request = ask("index", scope, bucket, rows[-1][0] + "\x01", self._high, self._page)
            rows = self._calls.one(request, self._deadline, self._doing)
