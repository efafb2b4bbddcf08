"""The manifest of a value as a row of Cassandra, and the requests that write it together with its entry in the index.

Keys that must be new: at most one of many writers creates a key, without a compare-and-set. Cassandra's own (LWT) needs four round trips,
an unknown outcome when it times out, and clocks that plain writes do not share. Here a writer raises a flag and looks at the others'
(Dekker's idea): it writes a claim for the key, then reads all claims for it, then the value. With a quorum on both sides, of two writers
at least the later one sees the other:

- the value is there: the key exists;
- it is not, and another claim is held: ours is withdrawn, and after a random pause everything begins anew;
- neither: the key is ours until our claim expires, and the value is written well before that. A claim is renewed while the writes of
  many keys last.

For a few keys claims and values are read at the same time, one round trip less. What a value said counts then only if nobody else's
claim was seen, not even one that was withdrawn: its writer may have written between the two answers. Such keys are looked at again, and
all of them when the answers took so long that a withdrawn claim might have been there and expired meanwhile.

A write whose outcome is not known may land late. Its writer's claim was written after it (withdrawn, that is), or falls well after it: who
creates the key next goes above all claims that it sees there, whatever the clocks say.

So at most one writer succeeds, always. That one does, rests on the random pauses (milliseconds, for a handful of writers),
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


# -- keys that must be new -----------------------------------------------------------------------------------------------------


CLAIM_TTL_S = 20
#: How long the holder of a claim may still write (s, of its own monotonic clock).
HOLD_S = 12.0
#: For how long a claim tells that it was withdrawn: above what answers may be apart, and clocks.
_WITHDRAWN_TTL_S = 10
#: So many keys are asked for claims and values at once; of more the requests fill the window, and waiting twice costs little.
TOGETHER = 32
#: Keys that are claimed, and written, together: what is done for so many takes a fraction of `HOLD_S` even on a slow cluster.
PART = 500
#: What was read with the claims counts for so long (s): see `_WITHDRAWN_TTL_S`.
FRESH_S = 1.0
_LONGEST_PAUSE_S = 1.0

#: key -> (manifest, timestamp) as they were read, None where nothing is.
Seen = dict[str, tuple[ValueManifest | None, int | None]]


class KeyClaims:
    """Claims of one process."""

    def __init__(self, calls: Calls, clock: WriteClock) -> None:
        self._calls = calls
        self._clock = clock

    def raise_for(
        self, keys: Sequence[str], deadline: CallDeadline, doing: str, replaces: Mapping[str, bytes] = NOTHING
    ) -> tuple[HeldKeys, Seen]:
        """Claims all of `keys`, none of which has a live value then, other than the one with its hash in `replaces`.

        What was seen there tells the timestamp to go above.

        Raises: `KeyExists` naming those that do; `StoreUnavailable` when others hold claims until the deadline.
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
            pause_s = max(pause_s, time.monotonic() - begun_s)  # shorter than a look at the others, pauses would decide nothing
            if deadline.left_s() <= pause_s:
                raise StoreUnavailable(f"cannot {doing}: others are creating {contested[0]!r} at the same time", hint="try again")
            threading.Event().wait(random.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class HeldKeys:
    """Claims for any number of keys, in parts of 500. Each part is renewed while others are claimed, looked at or written."""

    def __init__(self, parts: list[KeyClaim]) -> None:
        self._parts = parts

    def hold(self, deadline: CallDeadline, doing: str) -> tuple[list[str], Seen]:
        """Raises the flags. Returns the keys for which others have raised theirs, and what lies under all of them."""
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
        """Renews the parts of whose time a third is over: of many keys on a slow cluster each step takes seconds.

        Raises: `StoreUnavailable`: a part was not renewed while it still protected what it is for.
        """
        for part in self._parts:
            if part.left_s() < HOLD_S * 2 / 3:
                part.hold(deadline, doing)

    def deadline(self, deadline: CallDeadline) -> CallDeadline:
        """The earlier of `deadline` and the moment until which all parts protect a write."""
        return min(deadline, *(part.until for part in self._parts), key=lambda one: one.at)

    def withdraw(self) -> None:
        """Lowers the flags, without waiting: they also fall by themselves."""
        for part in self._parts:
            part.withdraw()


class KeyClaim:
    """Flags raised for some keys."""

    def __init__(self, calls: Calls, clock: WriteClock, keys: tuple[str, ...]) -> None:
        self._calls = calls
        self._clock = clock
        self._keys = keys
        self._claimant: UUID = uuid4()
        self.until = CallDeadline(math.inf)  #: the moment until which it protects a write

    def left_s(self) -> float:
        """How long it still protects a write."""
        return self.until.left_s()

    def hold(self, deadline: CallDeadline, doing: str) -> None:
        """Raises the flags, or once more before they fall."""
        until = CallDeadline(HOLD_S)
        self._calls.all(self.flags(), min(deadline, self.until, key=lambda one: one.at), doing)
        self.until = until

    def look(self, deadline: CallDeadline, doing: str) -> tuple[list[str], Seen]:
        """The keys for which others have raised their flags, and what lies under all of them; once ours are raised.

        Cost: two requests a key; one round trip for up to 32 keys that nobody else wants, else two.
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
        """Raises them: acknowledged before `questions` are asked."""
        return self._requests(held=True, ttl_s=CLAIM_TTL_S)

    def questions(self) -> list[StatementRequest]:
        """Reads the claims of all keys; of up to 32 keys at the same time what lies under them."""
        return [ask("claims", key) for key in self._keys] + (_asked(self._keys) if len(self._keys) <= TOGETHER else [])

    def read(self, answers: Sequence[Rows]) -> tuple[dict[str, list[tuple[bool, int]]], Seen]:
        """The answers to `questions`: for each key the others' claims (held or withdrawn, written when (us)); and what lies there."""
        others = {
            key: [(held, written_us) for claimant, held, written_us in rows if claimant != self._claimant]
            for key, rows in zip(self._keys, answers[: len(self._keys)], strict=True)
        }
        there = answers[len(self._keys) :]
        return others, _seen(self._keys, there) if there else {}

    def withdraw(self) -> None:
        """Lowers the flags, without waiting: they also fall by themselves."""
        for request in self._requests(held=False, ttl_s=_WITHDRAWN_TTL_S):
            self._calls.forget(request)

    def _requests(self, *, held: bool, ttl_s: int) -> list[StatementRequest]:
        return [ask("set_claim", key, self._claimant, held, self._clock.next_us(), ttl_s) for key in self._keys]


def look(calls: Calls, keys: Sequence[str], deadline: CallDeadline, doing: str) -> Seen:
    """What lies under `keys` now, with timestamps."""
    return _seen(keys, calls.all(_asked(keys), deadline, doing))


def _asked(keys: Sequence[str]) -> list[StatementRequest]:
    return [ask("value_seen", key) for key in keys]


def _seen(keys: Sequence[str], answers: Sequence[Rows]) -> Seen:
    return {key: (manifest_of(rows), seen_us(rows)) for key, rows in zip(keys, answers, strict=True)}
