"""Counts what each user takes of one server, compares it with the settings, and refuses the excess with a typed error that names the limit.

Requests go through a bucket that fills at the rate of the settings. A client's stream that asks for more is slowed down (it is not read
from, and TCP throttles the client) before anything is refused; single calls are refused at once, and clients retry them. `turns.py` decides
who is served first when many ask.

`Rates` limits what each address, or user, may do per second: TLS handshakes (2 to 4 ms of a processor each), messages on direct
lines. Each has a rate of its own, so that a flood takes nothing from the others; a further rate limits all together.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rmgr.adapters.access.turns import Had, Turns
from rmgr.errors import LimitReached, QueueFull, Throttled
from rmgr.model.queue import BOUND, UserLimits

#: Longest wait of a stream for its turn; seconds of a user's rate that the user may request at once.
PATIENCE_S, BURST_S = 1.0, 2.0
#: Seconds without a request after which a user who holds nothing is forgotten.
_FORGET_S = 60.0
_COUNT_S = 0.25
#: Each further multiple of this many bytes counts as one more request.
_WEIGHT_BYTES = 32 * 1024
#: Most that all users of one server may hold together; beyond it, only users who hold less than their part get more.
TOTALS = {"followed": 100_000, "held_bytes": 192 * 1024 * 1024}
_HOUR_S, _HOURS = 3600.0, 24
#: Limits whose use falls by itself.
_SOON = frozenset({"requests_per_s", "calls", "held_bytes"})


class _User:
    __slots__ = ("balance", "filled_s", "held", "lock", "refused", "seen_s", "written")

    def __init__(self, now_s: float) -> None:
        self.lock = threading.RLock()  # reentrant: a garbage collection on this thread may end a call, which then gives back what it held
        self.balance = math.inf  # until the first request: the full burst
        self.filled_s = self.seen_s = now_s
        self.held: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.written: dict[int, int] = {}  #: bytes by hour

    def forget_before(self, hour: int) -> None:
        """Uncounts what was written in that hour or before. Called under `lock`."""
        for old in [old for old in self.written if old <= hour]:
            self.held["store_bytes"] -= self.written.pop(old)
        if self.held["store_bytes"] <= 0:
            del self.held["store_bytes"]


class Bounds:
    """Args:
    limits: the initial ones; the attribute `limits` may be replaced at any time. clock: monotonic seconds.

    Thread-safe; users do not wait for one another. Cost of each call: about 2 us.
    """

    def __init__(self, limits: UserLimits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or UserLimits()
        self.had = Had()  #: server time that each user has used
        self._clock = clock
        self._lock = threading.RLock()  # guards the following, except the contents of a _User
        self._users: dict[str, _User] = {}
        self._places: dict[str, list[Shares | Turns]] = {}
        self._totals: Counter[str] = Counter()  # approximate: as of the last count
        self._holders: Counter[str] = Counter()
        self._counted_s = clock()

    # -- requests

    def wait_s(self, user: str, size_bytes: int = 0, *, cost: float = 1.0) -> float:
        """Returns how long the user's request must wait (s). Raises Throttled if that exceeds `PATIENCE_S`. cost: in units of one read."""
        return self._spend(user, cost + size_bytes / _WEIGHT_BYTES, PATIENCE_S)

    def spend(self, user: str, cost: float = 1.0) -> None:
        """Charges a call that does not wait. Raises Throttled."""
        self._spend(user, cost, 0.0)

    def _spend(self, user: str, cost: float, patience_s: float) -> float:
        rate = float(self.limits.requests_per_s)
        now_s = self._clock()
        if now_s - self._counted_s > _COUNT_S:
            self._count(now_s)
        known = self._user(user, now_s)
        with known.lock:
            known.seen_s = now_s
            if not rate:
                return 0.0
            burst = rate * BURST_S
            known.balance = min(burst, known.balance + (now_s - known.filled_s) * rate)
            known.filled_s = now_s
            wait_s = max(0.0, (cost - known.balance) / rate)
            if wait_s <= patience_s or known.balance >= burst / 2:  # a cost above the whole burst is paid off later
                known.balance -= cost
                return wait_s
        raise self.refuse("requests_per_s", user, self.limits.requests_per_s)

    def _count(self, now_s: float) -> None:
        with self._lock:
            self._counted_s = now_s
            totals: Counter[str] = Counter()
            holders: Counter[str] = Counter()
            for user, known in list(self._users.items()):
                with known.lock:
                    for name, amount in known.held.items():
                        totals[name] += amount
                        holders[name] += 1
                    if known.seen_s < now_s - _FORGET_S and not known.held:
                        self._users.pop(user, None)
            self._totals, self._holders = totals, holders

    # -- what is held

    def take(self, name: str, user: str, amount: int = 1) -> None:
        """Counts that the user holds `amount` more. Raises LimitReached."""
        known = self._user(user, self._clock())
        with known.lock:
            limit = self._limit(name, known)
            if limit is None or known.held[name] + amount <= limit:
                known.held[name] += amount
                return
            known.refused[name] += 1
        raise _error(name, user, limit)

    def hold(self, name: str, user: str, amount: int) -> None:
        """Counts that the user holds `amount` more, whatever the limit."""
        known = self._user(user, self._clock())
        with known.lock:
            known.held[name] += amount

    def give_back(self, name: str, user: str, amount: int = 1) -> None:
        """Uncounts what the user took or held."""
        known = self._user(user, self._clock())
        with known.lock:
            known.held[name] -= amount
            if known.held[name] <= 0:
                del known.held[name]

    def has_room(self, name: str, user: str) -> bool:
        """Returns whether the user holds less than allowed."""
        known = self._users.get(user)
        if known is None:
            return True
        with known.lock:
            limit = self._limit(name, known)
            return limit is None or known.held[name] < limit

    def write(self, user: str, amount: int) -> None:
        """Counts bytes that the user writes into the store, for a day. Raises LimitReached."""
        hour = int(self._clock() // _HOUR_S)
        known = self._user(user, self._clock())
        with known.lock:
            known.forget_before(hour - _HOURS)
        self.take("store_bytes", user, amount)
        with known.lock:
            known.written[hour] = known.written.get(hour, 0) + amount

    def written(self) -> dict[str, dict[int, int]]:
        """Returns what each user has written within the last day, as bytes by hours ago; forgets what is older. Cost: O(users)."""
        hour = int(self._clock() // _HOUR_S)
        with self._lock:
            users = list(self._users.items())
        found = {}
        for user, known in users:
            with known.lock:
                known.forget_before(hour - _HOURS)
                if known.written:
                    found[user] = {hour - at: amount for at, amount in known.written.items()}
        return found

    def recall(self, written: dict[str, dict[int, int]]) -> None:
        """Adds what users had written before this process began, as `written` returned it, to what they have written since."""
        hour = int(self._clock() // _HOUR_S)
        for user, amounts in written.items():
            known = self._user(user, self._clock())
            with known.lock:
                for ago, amount in amounts.items():
                    if 0 <= ago < _HOURS:
                        known.held["store_bytes"] += amount
                        known.written[hour - ago] = known.written.get(hour - ago, 0) + amount

    def _limit(self, name: str, known: _User) -> int | None:
        """Returns the user's limit: that of the settings, and an equal part while all together hold too much. None = no limit."""
        limit = int(getattr(self.limits, name)) or None
        total = TOTALS.get(name)
        if total is None or self._totals[name] < total:
            return limit
        part = total // max(1, self._holders[name] + (name not in known.held))
        return part if limit is None else min(part, limit)

    # -- places

    def places(self, name: str, most: int) -> Shares:
        """Makes places that users share, limited by the setting `name`; a tenth of them is reserved for operators."""
        made = Shares(most, reserved=most // 10, of_one=lambda: int(getattr(self.limits, name)))
        self._places.setdefault(name, []).append(made)
        return made

    def turns(self, name: str, *, at_once: int, of_one: int, most: int, what: str = "questions") -> Turns:
        """Makes turns limited by the setting `name`; see `Turns`."""

        def of_user() -> int:
            return int(getattr(self.limits, name))

        refuse = partial(self.refuse, name)
        made = Turns(self.had, at_once=at_once, of_one=of_one, most=most, of_user=of_user, refuse=refuse, what=what)
        self._places.setdefault(name, []).append(made)
        return made

    @contextmanager
    def place(self, name: str, user: str, places: Shares, *, is_operator: bool, told: str = "") -> Iterator[None]:
        """Holds one of the `places` during the block. Raises as `no_place` returns."""
        if not places.take(user, is_operator=is_operator):
            raise self.no_place(name, user, places, told)
        try:
            yield
        finally:
            places.give_back(user)

    def no_place(self, name: str, user: str, places: Shares, told: str = "") -> LimitReached | QueueFull:
        """Returns why the user got no place: the user's limit is reached, or all places are taken (`told`)."""
        self._refused(name, user)
        if places.taken(user) >= places.of_one and len(places) < places.most:
            return _error(name, user, places.of_one)
        return QueueFull(told or f"all {places.most} places for {BOUND[name].what} are taken", hint=BOUND[name].advice)

    # -- what is told

    def refuse(self, name: str, user: str, limit: int) -> LimitReached:
        """Counts a refusal and returns its error."""
        self._refused(name, user)
        return _error(name, user, limit)

    def used(self, user: str) -> dict[str, int]:
        """Returns what the user holds now, by limit."""
        known = self._users.get(user)
        held: dict[str, int] = {}
        if known is not None:
            with known.lock:
                held = dict(known.held)
        for name, some in self._places.items():
            held[name] = sum(places.taken(user) for places in some)
        return held

    def refused(self, user: str) -> dict[str, int]:
        """Returns how many requests were refused since the user was last forgotten (a minute without a request), by limit."""
        known = self._users.get(user)
        if known is None:
            return {}
        with known.lock:
            return dict(known.refused)

    def users(self) -> list[str]:
        """Returns all users of whom anything is known."""
        with self._lock:
            return sorted(self._users)

    def _refused(self, name: str, user: str) -> None:
        known = self._user(user, self._clock())
        with known.lock:
            known.refused[name] += 1

    def _user(self, user: str, now_s: float) -> _User:
        known = self._users.get(user)
        if known is None:
            with self._lock:
                known = self._users.setdefault(user, _User(now_s))
        return known


def _error(name: str, user: str, limit: int) -> LimitReached:
    """Returns the error that refuses `user` at the limit `name`."""
    bound = BOUND[name]
    kind = Throttled if name in _SOON else LimitReached
    return kind(f"{user or 'this user'} has reached the limit {name} = {limit}: {bound.what}", hint=f"{bound.advice}; rmgr limits")


# -- places --------------------------------------------------------------------------------------------------------------------


class Shares:
    """`most` places at once, three quarters of them for one user, or fewer. Thread-safe.

    Args:
        reserved: places that only operators get. of_one: most places of one user by the settings, 0 = three quarters.
    """

    def __init__(self, most: int, *, reserved: int = 0, of_one: Callable[[], int] = lambda: 0) -> None:
        self.most = most
        self._for_all = most - reserved
        self._of_one = of_one
        self._taken: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Number of places taken."""
        return self._taken.total()

    @property
    def of_one(self) -> int:
        """Most places of one user."""
        return min(self._of_one() or self.most, self.most - self.most // 4)

    def taken(self, user: str) -> int:
        """Returns how many places the user has."""
        return self._taken[user]

    def take(self, user: str, timeout_s: float = 0.0, *, is_operator: bool = False) -> bool:
        """Takes a place; returns False if none gets free for the user within `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        most = self.most if is_operator else self._for_all
        with self._changed:
            while self._taken[user] >= self.of_one or self._taken.total() >= most:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    self._forget(user)
                    return False
            self._taken[user] += 1
            return True

    def give_back(self, user: str) -> None:
        """Gives one place back; to be called once for each place taken."""
        with self._changed:
            self._taken[user] -= 1
            self._forget(user)
            self._changed.notify_all()

    def greediest(self, user: str) -> str | None:
        """Returns the user who shall make room: the one with the most places, if more than `user` would then have; None = no one."""
        with self._changed:
            [(other, most)] = self._taken.most_common(1) or [("", 0)]
            return other if other != user and self._taken.get(user, 0) + 1 < most and self._taken.get(user, 0) < self.of_one else None

    def _forget(self, user: str) -> None:
        if not self._taken[user]:
            del self._taken[user]


# -- rates of addresses --------------------------------------------------------------------------------------------------------


#: Most addresses remembered; the latest ones stay.
_KEEP = 1024


class Rates:
    """Args:
    rate, burst: limits of each, per second and at once. all_: factor for all together. clock: monotonic seconds.

    For one thread. Cost: 1 us.
    """

    def __init__(self, rate: float, burst: float, *, all_: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._rate, self._burst, self._times = rate, burst, all_
        self._clock = clock
        self._all = (math.inf, clock())  #: (what is left, as of when)
        self.left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may(self, who: str) -> bool:
        """Returns whether this address or user may act now, and counts it if so."""
        now_s = self._clock()
        mine = _refill(self.left.pop(who, (math.inf, now_s)), self._rate, self._burst, now_s)
        whole = _refill(self._all, self._rate * self._times, self._burst * self._times, now_s)
        is_free = mine >= 1 and whole >= 1
        self.left[who] = mine - is_free, now_s
        self._all = whole - is_free, now_s
        if len(self.left) > _KEEP:
            self.left.popitem(last=False)
        self.refused += not is_free
        return is_free


def _refill(bucket: tuple[float, float], rate: float, burst: float, now_s: float) -> float:
    left, at_s = bucket
    return min(burst, left + (now_s - at_s) * rate)
