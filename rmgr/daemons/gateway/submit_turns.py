"""Gives turns to take the next number: who submits seldom is not outrun by a hundred who submit all the time.

A SUBMIT names the number that is due, and of all who have read the same one gets it. Left to chance, a person beside a hundred who
submit in loops reads and tries fifty times, and the gateway is busy with what comes too late. So who was too late has a turn, a few at
once; while all turns are taken, SUBMITs of others wait at this gateway, for half a second, and are too late then. A turn ends with a
number, or when its user does not try for a moment: he has none for some time then, since his machine is slow or he means it. Whoever
paused after his last number goes before whoever wants the next at once; of those who paused, who came first.

Nothing depends on it: the version of `/ids` decides who gets a number, also between gateways and for direct clients.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rmgr.runtime import machine

#: SubmitTurns at once; how long one waits for its user; how long a SUBMIT waits for a turn.
TURNS, TURN_S, WAIT_S = 4, 0.5, 0.5
#: A loop pauses less between a number and its first try to get the next; who pauses longer gains nothing more.
PAUSE_S = 0.3
#: Who lets a turn go by has none for so long; twice as long after each one more, up to so long, after which it is forgotten.
LAPSE_S, LAPSE_MOST_S = 0.5, 60.0
#: A try is given up when nothing more is heard of it for so long; who has not submitted for so long is forgotten, of so many.
_GIVEN_UP_S, _FORGET_S, _MOST_USERS = 10.0, 600.0, 10_000

#: Greater goes first: how long he paused, and the earlier first try of those who paused as long.
Rank = tuple[float, float]


@dataclass(slots=True)
class _Submitter:
    seen_s: float
    made_s: float = -math.inf  #: when he had his last number
    began_s: float | None = None  #: when he first tried to have the next
    lapse_s: float = 0.0  #: how long the last lapse cost
    barred_until_s: float = -math.inf


@dataclass(slots=True)
class _Waiter:
    user: str
    rank: Rank
    woken: threading.Event = field(default_factory=threading.Event)


def _rank_of(waiter: _Waiter) -> Rank:
    return waiter.rank


@dataclass(frozen=True, slots=True)
class _Turn:
    rank: Rank
    until_s: float


class SubmitTurns:
    """Args: clock: monotonic seconds. Thread-safe. Cost: 2 us while nobody is too late."""

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or machine.monotonic
        self._lock = threading.Lock()
        self._users: dict[str, _Submitter] = {}
        self._waiting: list[_Waiter] = []
        self._turns: dict[str, _Turn] = {}

    def enter(self, user: str, *, waits: bool = True) -> bool:
        """He is about to try a number; waits up to `WAIT_S` while all turns are taken by others who go before him.

        Returns: False: they still are, and he is to be told that he was too late.
        """
        with self._lock:
            now_s = self._clock()
            known = self._known(user, now_s)
            rank = self._rank(known, now_s)
            if not self._is_behind(user, rank, now_s):
                return True
            if not waits:
                return False
            waiter = _Waiter(user, rank)
            self._waiting.append(waiter)
        try:
            return self._wait(waiter, now_s + WAIT_S)
        finally:
            with self._lock:
                known.seen_s = self._clock()
                self._waiting.remove(waiter)
                self._poke()

    def made(self, user: str) -> None:
        """He has his number."""
        with self._lock:
            now_s = self._clock()
            known = self._known(user, now_s)
            known.made_s, known.began_s = now_s, None
            known.lapse_s /= 2
            if self._turns.pop(user, None) is not None:
                self._pass_on(now_s)

    def lost(self, user: str) -> None:
        """Somebody else had the number that he tried."""
        with self._lock:
            now_s = self._clock()
            known = self._known(user, now_s)
            rank = self._rank(known, now_s)
            if now_s >= known.barred_until_s and not self._is_behind(user, rank, now_s):
                if user not in self._turns and len(self._turns) >= TURNS:
                    del self._turns[self._last()]
                self._turns[user] = _Turn(rank, now_s + TURN_S)
                self._poke()

    # -- inside, under the lock

    def _wait(self, waiter: _Waiter, end_s: float) -> bool:
        """Without the lock: until nobody goes before him, or `end_s`. Returns: nobody does."""
        while True:
            with self._lock:
                now_s = self._clock()
                if not self._is_behind(waiter.user, waiter.rank, now_s):
                    return True
                if now_s >= end_s:
                    return False
                waiter.woken.clear()
                wake_s = min(end_s, *(turn.until_s for turn in self._turns.values())) if waiter is self._next() else end_s
            waiter.woken.wait(max(0.001, wake_s - now_s))

    def _is_behind(self, user: str, rank: Rank, now_s: float) -> bool:
        """All turns are taken, by others who go before him; for whoever has let one go by, any is."""
        over = [holder for holder, turn in self._turns.items() if now_s >= turn.until_s]
        for holder in over:
            self._lapsed(holder, now_s)
            del self._turns[holder]
        if over:
            self._pass_on(now_s)
        if user in self._turns:
            return False
        if now_s < self._users[user].barred_until_s:
            return bool(self._turns)
        return len(self._turns) >= TURNS and rank <= self._turns[self._last()].rank

    def _last(self) -> str:
        """Of those who have a turn, who goes after the others."""
        return min(self._turns, key=lambda user: self._turns[user].rank)

    def _pass_on(self, now_s: float) -> None:
        """SubmitTurns that are free are those of whoever goes first of those who wait."""
        able = [one for one in self._waiting if one.user not in self._turns and now_s >= self._users[one.user].barred_until_s]
        for waiter in sorted(able, key=_rank_of, reverse=True):
            if len(self._turns) >= TURNS:
                break
            self._turns[waiter.user] = _Turn(waiter.rank, now_s + TURN_S)
            waiter.woken.set()
        if len(self._turns) < TURNS:
            for waiter in self._waiting:
                waiter.woken.set()
        self._poke()

    def _next(self) -> _Waiter | None:
        """Of those who wait, who looks when a turn ends."""
        return max((waiter for waiter in self._waiting if waiter.user not in self._turns), key=_rank_of, default=None)

    def _poke(self) -> None:
        """Whoever looks next may be another one now."""
        waiter = self._next()
        if waiter is not None:
            waiter.woken.set()

    def _lapsed(self, user: str, now_s: float) -> None:
        known = self._known(user, now_s)
        before_s = known.lapse_s if now_s - known.barred_until_s < LAPSE_MOST_S else 0.0
        known.lapse_s = min(LAPSE_MOST_S, max(LAPSE_S, 2 * before_s))
        known.barred_until_s = now_s + known.lapse_s
        known.made_s, known.began_s = now_s, None

    def _rank(self, known: _Submitter, now_s: float) -> Rank:
        if known.began_s is None or now_s - known.seen_s > _GIVEN_UP_S:
            known.began_s = now_s
        known.seen_s = now_s
        return min(PAUSE_S, known.began_s - known.made_s), -known.began_s

    def _known(self, user: str, now_s: float) -> _Submitter:
        known = self._users.get(user)
        if known is None:
            if len(self._users) >= _MOST_USERS:
                waiting = {waiter.user for waiter in self._waiting}
                old = [name for name, one in self._users.items() if now_s - one.seen_s > _FORGET_S and name not in waiting]
                for name in old:
                    del self._users[name]
            known = self._users[user] = _Submitter(now_s)
        return known
