"""Keys that must be new: at most one of many writers creates a key, without a compare-and-set.

Cassandra's own (LWT) needs four round trips, an unknown outcome when it times out, and clocks that plain writes do not
share. Here a writer raises a flag and looks at the others' (Dekker's idea): it writes a claim for the key, then reads all
claims for it, then the value. With a quorum on both sides, of two writers at least the later one sees the other:

- the value is there: the key exists;
- it is not, and another claim is held: ours is withdrawn, and after a random pause everything begins anew;
- neither: the key is ours until our claim expires, and the value is written well before that.

So at most one writer succeeds, always. That one does, rests on the random pauses (milliseconds, for a handful of writers),
and a writer that dies with its claim raised blocks the key for 20 s. Nodes' clocks must agree within 5 s.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

from rmgr.adapters.cassandra_calls import Calls
from rmgr.adapters.cassandra_layout import WriteClock
from rmgr.adapters.cassandra_rows import Manifest, manifest_of, seen_us
from rmgr.adapters.cassandra_statements import Request, ask
from rmgr.adapters.store_rules import Deadline, key_exists
from rmgr.coord.ports import NOTHING
from rmgr.errors import StoreUnavailable

CLAIM_TTL_S = 20
#: How long the holder of a claim may still write (s, of its own monotonic clock).
HOLD_S = 12.0
_WITHDRAWN_TTL_S = 2
_LONGEST_PAUSE_S = 1.0

#: key -> (manifest, timestamp) as they were read, None where nothing is.
Seen = dict[str, tuple[Manifest | None, int | None]]


class Claims:
    """Claims of one process."""

    def __init__(self, calls: Calls, clock: WriteClock) -> None:
        self._calls = calls
        self._clock = clock

    def raise_for(
        self, keys: Sequence[str], deadline: Deadline, doing: str, replaces: Mapping[str, bytes] = NOTHING
    ) -> tuple[Claim, Seen]:
        """Claims all of `keys`, none of which has a live value then, other than the one with its hash in `replaces`.

        What was seen there tells the timestamp to go above.

        Raises: `KeyExists` naming those that do; `StoreUnavailable` when others hold claims until the deadline.
        """
        pause_s = 0.005
        while True:
            claim = Claim(self._calls, self._clock, tuple(keys))
            begun_s = time.monotonic()
            try:
                contested = claim.hold(deadline, doing)
                seen = look(self._calls, keys, deadline, doing)
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


class Claim:
    """Flags raised for some keys."""

    def __init__(self, calls: Calls, clock: WriteClock, keys: tuple[str, ...]) -> None:
        self._calls = calls
        self._clock = clock
        self._keys = keys
        self._claimant: UUID = uuid4()
        self._until = Deadline(HOLD_S)

    def hold(self, deadline: Deadline, doing: str) -> list[str]:
        """Raises the flags and returns the keys for which others have raised theirs."""
        self._calls.all(self._requests(held=True, ttl_s=CLAIM_TTL_S), deadline, doing)
        claims = self._calls.all([ask("claims", key) for key in self._keys], deadline, doing)
        return [
            key for key, rows in zip(self._keys, claims, strict=True) if any(held and claimant != self._claimant for claimant, held in rows)
        ]

    def deadline(self, deadline: Deadline) -> Deadline:
        """The earlier of `deadline` and the moment until which the claim protects a write."""
        return deadline if deadline.at <= self._until.at else self._until

    def withdraw(self) -> None:
        """Lowers the flags, without waiting: they also fall by themselves."""
        for request in self._requests(held=False, ttl_s=_WITHDRAWN_TTL_S):
            self._calls.forget(request)

    def _requests(self, *, held: bool, ttl_s: int) -> list[Request]:
        return [ask("set_claim", key, self._claimant, held, self._clock.next_us(), ttl_s) for key in self._keys]


def look(calls: Calls, keys: Sequence[str], deadline: Deadline, doing: str) -> Seen:
    """What lies under `keys` now, with timestamps."""
    answers = calls.all([ask("value_seen", key) for key in keys], deadline, doing)
    return {key: (manifest_of(rows), seen_us(rows)) for key, rows in zip(keys, answers, strict=True)}
