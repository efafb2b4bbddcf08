"""The manifest of a value as a row of Cassandra, and the requests that write it together with its entry in the index.

Keys that must be new: at most one of many writers creates a key, without a compare-and-set. Cassandra's own (LWT) needs four round trips,
has an unknown outcome when it times out, and uses clocks that plain writes do not share. Here a writer raises a flag and looks at the flags
of others (Dekker's idea): it writes a claim for the key, then reads all claims for it, then the value. With a quorum on both sides, at
least the later of two writers sees the other:

- if the value is there, the key exists;
- if it is not, but another claim is held, ours is withdrawn, and after a random pause everything begins again;
- otherwise the key is ours until our claim expires, and the value is written well before that. A claim is renewed while the writes of
  many keys last.

For a few keys, claims and values are read at the same time, which saves one round trip. The value's answer then counts only if no other
claim was seen, not even a withdrawn one: its writer may have written between the two answers. Such keys are looked at again; so are
all of them if the answers took so long that a withdrawn claim might have been there and have expired.

A write with an unknown outcome may land late. Its writer's claim was written after it (as withdrawn), or expires well after it: the next
writer to create the key uses a timestamp above all claims that it sees there, whatever the clocks say.

So at most one writer succeeds, always. That one does succeed rests on the random pauses (milliseconds, for a handful of writers),
and a writer that dies with its claim raised blocks the key for 20 s. Nodes' clocks must agree within 5 s.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from rmgr.adapters.cassandra.link import Calls, Rows
from rmgr.adapters.cassandra.schema import StatementRequest, WriteClock, ask, bucket_of, scope_of
from rmgr.adapters.store_rules import CallDeadline, expiry_ms, key_exists, marked, now_ms
from rmgr.coord.protocol.ports import NOTHING, Encoding, Note
from rmgr.errors import StoreUnavailable, UsageError
from rmgr.model.units import format_duration

#: Values up to this size (bytes) are part of their manifest; larger ones lie in chunks of their own generation.
INLINE_BYTES = 64 * 1024
#: Seconds for which a deleted value leaves a marker, which then is an ordinary tombstone for `gc_grace_seconds`.
MARKER_TTL_S = 86_400
#: The same for its entry in the index: short, so that nodes and not clients skip it.
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
        """Whether the value is neither deleted nor expired, to the millisecond: nodes expire rows by whole seconds."""
        return self.size >= 0 and (self.expires_ms is None or self.expires_ms > now_ms())


DELETED = ValueManifest(_DELETED, b"", "", None, None, 0, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Lifetime of a value, for readers (`expires_ms`) and for Cassandra (`ttl_s`, whole seconds, 0: for ever)."""

    expires_ms: int | None
    ttl_s: int


def lifetime(ttl_s: float | None) -> Lifetime:
    """Returns the lifetime for a TTL. Raises: `UsageError` for a time that is not positive, or above Cassandra's 20 years."""
    expires = expiry_ms(ttl_s)
    if ttl_s is None:
        return Lifetime(expires_ms=None, ttl_s=0)
    if ttl_s > _MAX_TTL_S:
        message = f"the time to live must be below 20 years, not {format_duration(ttl_s)}"
        raise UsageError(message, hint="leave it out: the value stays for ever")
    return Lifetime(expires_ms=expires, ttl_s=math.ceil(ttl_s) + 1)


def small(value: bytes, encoding: Encoding, life: Lifetime, note: Note = b"") -> ValueManifest:
    """Returns the manifest that holds `value` itself."""
    digest = sha256(value).digest()
    return ValueManifest(len(value), digest, marked(encoding, note, digest), life.expires_ms, None, 0, value)


def manifest_of(rows: list[Any]) -> ValueManifest | None:
    """Returns the manifest that "value" or "value_seen" answered."""
    return ValueManifest(*rows[0][0]) if rows and rows[0][0] is not None else None


def seen_us(rows: list[Any]) -> int | None:
    """Returns the timestamp that "value_seen" answered."""
    return rows[0][1] if rows else None


def value_requests(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Yields writes of manifests, in the order of the keys; the marker of a deleted value stays for a day."""
    for key, manifest in manifests.items():
        yield ask("set_value", key, tuple(manifest), stamps[key], MARKER_TTL_S if manifest.size < 0 else ttl_s)


def requests_at_once(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Yields writes of manifests and of their index entries, for one round trip."""
    index, values = index_requests(manifests, stamps, ttl_s), value_requests(manifests, stamps, ttl_s)
    if len(manifests) == 1 and all(len(manifest.inline) < _BATCH_BYTES for manifest in manifests.values()):
        yield replace(next(values), beside=next(index))
    else:
        yield from index
        yield from values


def index_requests(manifests: Mapping[str, ValueManifest], stamps: Mapping[str, int], ttl_s: int) -> Iterator[StatementRequest]:
    """Yields writes of index entries, batched by partition."""
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


# -- keys that must be new -----------------------------------------------------------------------------------------------------


CLAIM_TTL_S = 20
#: Seconds, of its own monotonic clock, for which the holder of a claim may still write.
HOLD_S = 12.0
#: Seconds for which a withdrawn claim stays visible: more than answers, and clocks, may be apart.
_WITHDRAWN_TTL_S = 10
#: Most keys whose claims and values are read at once; the requests of more fill the window, and waiting twice costs little.
TOGETHER = 32
#: Most keys claimed and written together: the work for them takes a fraction of `HOLD_S` even on a slow cluster.
PART = 500
#: Seconds for which a value read together with claims counts: see `_WITHDRAWN_TTL_S`.
FRESH_S = 1.0
_LONGEST_PAUSE_S = 1.0

#: key -> (manifest, timestamp) as read, None where absent.
Seen = dict[str, tuple[ValueManifest | None, int | None]]


class KeyClaims:
    """Makes the claims of one process."""

    def __init__(self, calls: Calls, clock: WriteClock) -> None:
        self._calls = calls
        self._clock = clock

    def raise_for(
        self, keys: Sequence[str], deadline: CallDeadline, doing: str, replaces: Mapping[str, bytes] = NOTHING
    ) -> tuple[HeldKeys, Seen]:
        """Claims all of `keys`; none of them then has a live value, except one whose hash is in `replaces`.

        The returned `Seen` has the timestamps that the writes must exceed.

        Raises: `KeyExists` naming the keys that exist; `StoreUnavailable` if others hold claims until the deadline.
        """
        pause_s = 0.005
        while True:
            parts = (tuple(keys[at : at + PART]) for at in range(0, len(keys), PART))
            claim = HeldKeys([KeyClaim(self._calls, self._clock, part) for part in parts])
            begun_s = time.monotonic()
            try:
                contested, seen = claim.hold(deadline, doing)
                live = {key: manifest for key, (manifest, _) in seen.items() if manifest is not None and manifest.is_live}
                taken = sorted(key for key, manifest in live.items() if manifest.digest != replaces.get(key))
                if taken:
                    raise key_exists(taken)
                if not contested:
                    return claim, seen
            except BaseException:
                claim.withdraw()
                raise
            claim.withdraw()
            pause_s = max(pause_s, time.monotonic() - begun_s)  # a pause shorter than a look at the others would decide nothing
            if deadline.left_s() <= pause_s:
                raise StoreUnavailable(f"cannot {doing}: others are creating {contested[0]!r} at the same time", hint="try again")
            threading.Event().wait(random.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class HeldKeys:
    """Claims for any number of keys, in parts of 500. Each part is renewed while others are claimed, looked at or written."""

    def __init__(self, parts: list[KeyClaim]) -> None:
        self._parts = parts

    def hold(self, deadline: CallDeadline, doing: str) -> tuple[list[str], Seen]:
        """Raises the flags. Returns the keys for which others have raised theirs, and the values and timestamps of all keys."""
        for part in self._parts:
            part.hold(deadline, doing)
            self.keep(deadline, doing)
        contested: list[str] = []
        seen: Seen = {}
        for part in self._parts:
            others, there = part.look(deadline, doing)
            contested += others
            seen |= there
            self.keep(deadline, doing)
        return contested, seen

    def keep(self, deadline: CallDeadline, doing: str) -> None:
        """Renews parts with a third of their time gone: with many keys on a slow cluster, each step takes seconds.

        Raises: `StoreUnavailable` if a part was not renewed in time to protect its keys.
        """
        for part in self._parts:
            if part.left_s() < HOLD_S * 2 / 3:
                part.hold(deadline, doing)

    def deadline(self, deadline: CallDeadline) -> CallDeadline:
        """Returns the earlier of `deadline` and the moment until which all parts protect a write."""
        return min(deadline, *(part.until for part in self._parts), key=lambda one: one.at)

    def withdraw(self) -> None:
        """Lowers the flags, without waiting: they also expire by themselves."""
        for part in self._parts:
            part.withdraw()


class KeyClaim:
    """Flags raised for some keys."""

    def __init__(self, calls: Calls, clock: WriteClock, keys: tuple[str, ...]) -> None:
        self._calls = calls
        self._clock = clock
        self._keys = keys
        self._claimant: UUID = uuid4()
        self.until = CallDeadline(math.inf)  #: the moment until which the claim protects a write

    def left_s(self) -> float:
        """Returns how long the claim still protects a write."""
        return self.until.left_s()

    def hold(self, deadline: CallDeadline, doing: str) -> None:
        """Raises the flags, or renews them before they expire."""
        until = CallDeadline(HOLD_S)
        self._calls.all(self.flags(), min(deadline, self.until, key=lambda one: one.at), doing)
        self.until = until

    def look(self, deadline: CallDeadline, doing: str) -> tuple[list[str], Seen]:
        """Returns the keys for which others have raised flags, and what lies under all keys; to be called once ours are raised.

        Cost: two requests per key; one round trip for up to 32 uncontested keys, else two.
        """
        begun_s = time.monotonic()
        others, seen = self.read(self._calls.all(self.questions(), deadline, doing))
        if time.monotonic() - begun_s > FRESH_S:
            seen = {}
        seen |= look(self._calls, [key for key in self._keys if others[key] or key not in seen], deadline, doing)
        for key, claims in others.items():
            if claims:
                manifest, stamp = seen[key]
                seen[key] = manifest, max(stamp or 0, *(written_us for _, written_us in claims))
        return [key for key, claims in others.items() if any(held for held, _ in claims)], seen

    def flags(self) -> list[StatementRequest]:
        """Returns the requests that raise the flags; they must be acknowledged before `questions` are asked."""
        return self._requests(held=True, ttl_s=CLAIM_TTL_S)

    def questions(self) -> list[StatementRequest]:
        """Returns requests for the claims of all keys; for up to 32 keys, also for the values under them."""
        return [ask("claims", key) for key in self._keys] + (_read_requests(self._keys) if len(self._keys) <= TOGETHER else [])

    def read(self, answers: Sequence[Rows]) -> tuple[dict[str, list[tuple[bool, int]]], Seen]:
        """Decodes the answers to `questions`: by key, the others' claims (held or withdrawn, time written in us); and the values seen."""
        others = {
            key: [(held, written_us) for claimant, held, written_us in rows if claimant != self._claimant]
            for key, rows in zip(self._keys, answers[: len(self._keys)], strict=True)
        }
        there = answers[len(self._keys) :]
        return others, _seen(self._keys, there) if there else {}

    def withdraw(self) -> None:
        """Lowers the flags, without waiting: they also expire by themselves."""
        for request in self._requests(held=False, ttl_s=_WITHDRAWN_TTL_S):
            self._calls.forget(request)

    def _requests(self, *, held: bool, ttl_s: int) -> list[StatementRequest]:
        return [ask("set_claim", key, self._claimant, held, self._clock.next_us(), ttl_s) for key in self._keys]


def look(calls: Calls, keys: Sequence[str], deadline: CallDeadline, doing: str) -> Seen:
    """Returns what lies under `keys` now, with timestamps."""
    return _seen(keys, calls.all(_read_requests(keys), deadline, doing))


def _read_requests(keys: Sequence[str]) -> list[StatementRequest]:
    return [ask("value_seen", key) for key in keys]


def _seen(keys: Sequence[str], answers: Sequence[Rows]) -> Seen:
    return {key: (manifest_of(rows), seen_us(rows)) for key, rows in zip(keys, answers, strict=True)}
