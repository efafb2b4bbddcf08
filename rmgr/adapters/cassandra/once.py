"""Keys that must be new: at most one of many writers creates a key, without a compare-and-set.

Cassandra's own (LWT) needs four round trips, an unknown outcome when it times out, and clocks that plain writes do not
share. Here a writer raises a flag and looks at the others' (Dekker's idea): it writes a claim for the key, then reads all
claims for it, then the value. With a quorum on both sides, of two writers at least the later one sees the other:

- the value is there: the key exists;
- it is not, and another claim is held: ours is withdrawn, and after a random pause everything begins anew;
- neither: the key is ours until our claim expires, and the value is written well before that.

For a few keys claims and values are read at the same time, one round trip less. What a value said counts then only if nobody else's
claim was seen, not even one that was withdrawn: its writer may have written between the two answers. Such keys are looked at again, and
all of them when the answers took so long that a withdrawn claim might have been there and expired meanwhile.

So at most one writer succeeds, always. That one does, rests on the random pauses (milliseconds, for a handful of writers),
and a writer that dies with its claim raised blocks the key for 20 s. Nodes' clocks must agree within 5 s.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from rmgr.adapters.cassandra.calls import Calls
from rmgr.adapters.cassandra.layout import WriteClock
from rmgr.adapters.cassandra.rows import ValueManifest, manifest_of, seen_us
from rmgr.adapters.cassandra.statements import StatementRequest, ask
from rmgr.adapters.store_rules import CallDeadline, key_exists
from rmgr.coord.protocol.ports import NOTHING
from rmgr.errors import StoreUnavailable

CLAIM_TTL_S = 20
#: How long the holder of a claim may still write (s, of its own monotonic clock).
HOLD_S = 12.0
#: For how long a claim tells that it was withdrawn: above what answers may be apart, and clocks.
_WITHDRAWN_TTL_S = 10
#: So many keys are asked for claims and values at once; of more the requests fill the window, and waiting twice costs little.
_TOGETHER = 32
#: What was read with the claims counts for so long (s): see `_WITHDRAWN_TTL_S`.
_FRESH_S = 1.0
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
    ) -> tuple[KeyClaim, Seen]:
        """Claims all of `keys`, none of which has a live value then, other than the one with its hash in `replaces`.

        What was seen there tells the timestamp to go above.

        Raises: `KeyExists` naming those that do; `StoreUnavailable` when others hold claims until the deadline.
        """
        pause_s = 0.005
        while True:
            claim = KeyClaim(self._calls, self._clock, tuple(keys))
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


class KeyClaim:
    """Flags raised for some keys."""

    def __init__(self, calls: Calls, clock: WriteClock, keys: tuple[str, ...]) -> None:
        self._calls = calls
        self._clock = clock
        self._keys = keys
        self._claimant: UUID = uuid4()
        self._until = CallDeadline(HOLD_S)

    def hold(self, deadline: CallDeadline, doing: str) -> tuple[list[str], Seen]:
        """Raises the flags. Returns the keys for which others have raised theirs, and what lies under all of them.

        Cost: three requests a key; two round trips for up to 32 keys that nobody else wants, else three.
        """
        self._calls.all(self._requests(held=True, ttl_s=CLAIM_TTL_S), deadline, doing)
        begun_s = time.monotonic()
        is_together = len(self._keys) <= _TOGETHER
        asked = [ask("claims", key) for key in self._keys]
        answers = self._calls.all(asked + (_asked(self._keys) if is_together else []), deadline, doing)
        others = {
            key: [held for claimant, held in rows if claimant != self._claimant]
            for key, rows in zip(self._keys, answers[: len(asked)], strict=True)
        }
        seen = _seen(self._keys, answers[len(asked) :]) if is_together else {}
        if time.monotonic() - begun_s > _FRESH_S:
            seen = {}
        seen |= look(self._calls, [key for key in self._keys if others[key] or key not in seen], deadline, doing)
        return [key for key, held in others.items() if any(held)], seen

    def deadline(self, deadline: CallDeadline) -> CallDeadline:
        """The earlier of `deadline` and the moment until which the claim protects a write."""
        return deadline if deadline.at <= self._until.at else self._until

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


def _seen(keys: Sequence[str], answers: Sequence[Any]) -> Seen:
    return {key: (manifest_of(rows), seen_us(rows)) for key, rows in zip(keys, answers, strict=True)}
