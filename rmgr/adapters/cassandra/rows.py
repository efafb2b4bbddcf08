"""The manifest of a value as a row of Cassandra, and the requests that write it together with its entry in the index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from rmgr.adapters.cassandra.layout import bucket_of, scope_of
from rmgr.adapters.cassandra.statements import StatementRequest, ask
from rmgr.adapters.store_rules import expiry_ms, marked, now_ms
from rmgr.coord.protocol.ports import Encoding, Note
from rmgr.errors import UsageError
from rmgr.model.base.units import format_duration

#: Values up to this size (bytes) lie in their manifest; larger ones in chunks of their own generation.
INLINE_BYTES = 64 * 1024
#: How long a deleted value says so (s). After that it is an ordinary tombstone for `gc_grace_seconds`.
MARKER_TTL_S = 86_400
#: The same of its entry in the index: at once, so that nodes and not clients skip it.
_INDEX_MARKER_TTL_S = 1
_MAX_TTL_S = 20 * 365 * 86_400  # Cassandra's own limit
_BATCH_BYTES = 4000  # a node warns at 5 KiB
_DELETED = -1


class ValueManifest(NamedTuple):
    """The tuple in the table `value`, field by field."""

    size: int
    digest: bytes
    encoding: str
    expires_ms: int | None
    generation: UUID | None
    chunks: int
    inline: bytes

    @property
    def is_live(self) -> bool:
        """Neither deleted nor expired. Nodes expire rows by whole seconds, this says it to the millisecond."""
        return self.size >= 0 and (self.expires_ms is None or self.expires_ms > now_ms())


DELETED = ValueManifest(_DELETED, b"", "", None, None, 0, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Lifetime of a value, for readers (`expires_ms`) and for Cassandra (`ttl_s`, whole seconds, 0: for ever)."""

    expires_ms: int | None
    ttl_s: int


def lifetime(ttl_s: float | None) -> Lifetime:
    """Raises: `UsageError` for a time that is not positive, or above Cassandra's 20 years."""
    expires = expiry_ms(ttl_s)
    if ttl_s is None:
        return Lifetime(expires_ms=None, ttl_s=0)
    if ttl_s > _MAX_TTL_S:
        told = f"the time to live must be below 20 years, not {format_duration(ttl_s)}"
        raise UsageError(told, hint="leave it out: the value stays for ever")
    return Lifetime(expires_ms=expires, ttl_s=math.ceil(ttl_s) + 1)


def small(value: bytes, encoding: Encoding, life: Lifetime, note: Note = b"") -> ValueManifest:
    """The manifest that holds `value` itself."""
    digest = sha256(value).digest()
    return ValueManifest(len(value), digest, marked(encoding, note, digest), life.expires_ms, None, 0, value)


def manifest_of(rows: list[Any]) -> ValueManifest | None:
    """What "value" or "value_seen" answered."""
    return ValueManifest(*rows[0][0]) if rows and rows[0][0] is not None else None


def seen_us(rows: list[Any]) -> int | None:
    """The timestamp that "value_seen" answered."""
    return rows[0][1] if rows else None


def value_requests(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Writes of manifests, in the order of the keys; a deleted one stays for a day."""
    for key, manifest in manifests.items():
        yield ask("set_value", key, tuple(manifest), stamps[key], MARKER_TTL_S if manifest.size < 0 else ttl_s)


def requests_at_once(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Writes of manifests and of their index entries, for one round trip."""
    index, values = index_requests(manifests, stamps, ttl_s), value_requests(manifests, stamps, ttl_s)
    if len(manifests) == 1 and all(len(manifest.inline) < _BATCH_BYTES for manifest in manifests.values()):
        yield replace(next(values), beside=next(index))
    else:
        yield from index
        yield from values


def index_requests(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Writes of index entries, those of one partition together."""
    placed = sorted((scope_of(key), bucket_of(key), key) for key in manifests)
    for (scope, bucket), group in groupby(placed, key=lambda place: place[:2]):
        rows = (_index_row(scope, bucket, key, manifests[key], stamps[key], ttl_s) for _, _, key in group)
        for batch in _batches(rows):
            yield StatementRequest("set_index", batch)


def _index_row(scope: str, bucket: int, key: str, manifest: ValueManifest, stamp: int, ttl_s: int) -> tuple[Any, ...]:
    return scope, bucket, key, (manifest.size, manifest.expires_ms), stamp, _INDEX_MARKER_TTL_S if manifest.size < 0 else ttl_s


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], ...]]:
    batch: list[tuple[Any, ...]] = []
    weight = 0
    for row in rows:
        size = len(row[0]) + 4 * len(row[2]) + 60
        if batch and weight + size > _BATCH_BYTES:
            yield tuple(batch)
            batch, weight = [], 0
        batch.append(row)
        weight += size
    if batch:
        yield tuple(batch)
