"""Chunks that no value refers to any more, and scopes without keys: found through a journal, freed without a DELETE.

Before the first chunk of a generation is written, and before a value is replaced or deleted, the generation is noted in
the journal of an hour. When that hour and the grace of readers are over, one look at the value decides: if the value refers to
another generation (or is gone), the chunks are overwritten with nothing and a TTL of a second, and compaction frees them.
So a crash at any moment leaves nothing for ever, and a sweep reads only what was written since the last one.

Expired values need no sweep: Cassandra drops them itself. If no sweep runs for a week, that week's journal expires, and
the chunks it would have freed stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from uuid import UUID

from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra.link import Calls
from rmgr.adapters.cassandra.reading import Listing
from rmgr.adapters.cassandra.rows import manifest_of
from rmgr.adapters.cassandra.schema import FOUNDED_NAME, StatementRequest, ask
from rmgr.adapters.store_rules import CallDeadline, now_ms

JOURNAL_TTL_S = 7 * 86_400
HOUR_S = 3600.0
SWEPT = "swept_hour"
_PAGE = 200
_NO_UUID = UUID(int=0)
#: Time without writes after which a scope without keys leaves the register; writers register their scopes far more often.
_SCOPE_REST_MS = 86_400_000
REGISTER_AGAIN_S = 3600.0
_SCOPES_A_SWEEP = 200


class Journal:
    """The journal of one store, and the sweep that works through it."""

    def __init__(self, calls: Calls, listing: Listing, clock: schema.WriteClock, *, grace_s: float, hour_s: float) -> None:
        """hour_s: length of an hour of the journal; the same for every user of the keyspace."""
        self._calls = calls
        self._listing = listing
        self._clock = clock
        self._grace_ms = int(grace_s * 1000)
        self._hour_ms = int(hour_s * 1000)
        self._walked = ""  # the last scope that was checked

    def note(self, generation: UUID, key: str, *, later_s: float = 0.0) -> StatementRequest:
        """Returns the request that notes that `generation` of `key` may be unreferenced from `later_s` seconds on."""
        hour = (now_ms() + int(later_s * 1000)) // self._hour_ms
        return ask("set_journal", hour, schema.journal_part(generation), generation, key, self._clock.next_us(), JOURNAL_TTL_S)

    def sweep(self, deadline: CallDeadline) -> int:
        """Works through the hours that are over; returns the number of freed generations and forgotten scopes. Stops at the deadline."""
        over = (now_ms() - self._grace_ms) // self._hour_ms
        hour = self._first_hour(over, deadline)
        freed = 0
        while hour < over and not deadline.passed():
            for generation, key in self._noted(hour, deadline):
                freed += self._settle(generation, key, deadline)
            hour += 1
            self._calls.one(ask("set_info", SWEPT, str(hour), self._clock.next_us(), 0), deadline, "sweep")
        return freed + self._forget_scopes(deadline)

    def _first_hour(self, over: int, deadline: CallDeadline) -> int:
        oldest = over - int(JOURNAL_TTL_S * 1000) // self._hour_ms
        if rows := self._calls.one(ask("info", SWEPT), deadline, "sweep"):
            return max(oldest, int(rows[0][0]))
        rows = self._calls.one(ask("info", FOUNDED_NAME), deadline, "sweep")
        return max(oldest, int(rows[0][0]) // self._hour_ms) if rows else oldest

    def _noted(self, hour: int, deadline: CallDeadline) -> Iterator[tuple[UUID, str]]:
        for part in range(schema.JOURNAL_PARTS):
            behind = _NO_UUID
            while True:
                rows = self._calls.one(ask("journal", hour, part, behind, _PAGE), deadline, "sweep")
                yield from rows
                if len(rows) < _PAGE:
                    break
                behind = rows[-1][0]

    def _settle(self, generation: UUID, key: str, deadline: CallDeadline) -> bool:
        manifest = manifest_of(self._calls.one(ask("value", key), deadline, "sweep"))
        if manifest is not None and manifest.generation == generation:
            return False
        freed = False
        bucket = 0
        while numbers := self._calls.one(ask("chunk_numbers", generation, bucket), deadline, "sweep"):
            stamp = self._clock.next_us()
            gone = [ask("set_chunk", generation, bucket, number, b"", b"", stamp, 1) for (number,) in numbers]
            self._calls.all(gone, deadline, "sweep")
            freed = True
            bucket += 1
        return freed

    # -- the register of scopes ----------------------------------------------------------------------------------------

    def _forget_scopes(self, deadline: CallDeadline) -> int:
        """Checks the register of divided families, from where the last sweep ended; returns the number of forgotten scopes."""
        forgotten = looked = 0
        before_ms = now_ms() - _SCOPE_REST_MS
        for family in sorted(f"{name}/" for name in schema.DIVIDED):
            if family < self._walked and not self._walked.startswith(family):
                continue
            start = self._walked if self._walked.startswith(family) else ""
            for scope, since_ms in self._listing.scopes(family, start, deadline, "sweep"):
                self._walked = scope
                if looked >= _SCOPES_A_SWEEP or deadline.passed():
                    return forgotten
                if since_ms > before_ms:
                    continue
                looked += 1
                if next(self._listing.entries(scope, "", 1, deadline, "sweep"), None) is None:
                    self._calls.one(ask("set_scope", family, scope, since_ms, self._clock.next_us(), 1), deadline, "sweep")
                    forgotten += 1
        self._walked = ""
        return forgotten


class Register:
    """Writes the scopes that this process uses into the register, each once an hour."""

    def __init__(self, calls: Calls, clock: schema.WriteClock) -> None:
        self._calls = calls
        self._clock = clock
        self._known: dict[str, float] = {}  # scope -> monotonic time until which it need not be written again

    def requests(self, scopes: Iterable[str], now_s: float) -> list[StatementRequest]:
        """Returns writes for those of the scopes that are due."""
        due = [scope for scope in sorted(scopes) if self._known.get(scope, -math.inf) <= now_s]
        return [ask("set_scope", schema.register_of(scope), scope, now_ms(), self._clock.next_us(), 0) for scope in due]

    def written(self, scopes: Iterable[str], now_s: float) -> None:
        """Notes that `scopes` are in the register."""
        if len(self._known) > 10_000:
            self._known.clear()
        for scope in scopes:
            if self._known.get(scope, -math.inf) <= now_s:
                self._known[scope] = now_s + REGISTER_AGAIN_S
