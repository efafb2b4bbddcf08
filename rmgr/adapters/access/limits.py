"""Counts what each user takes of one server, compares it with the settings, and refuses more with a typed error that names the limit.

Requests go through a bucket. While the server has room, it fills at the rate of the settings, or of the user's part of what the
server can bear. When so many ask that a part is less than what one busy person needs (`FLOOR_PER_S`), who asks for no more than that
goes on as before, and who asks for more gets little for some seconds: that is what tells somebody at work from a flood. A client's
stream is slowed down (it is not read from, and TCP tells it so) before anything is refused; single calls are refused at once
and tried again by clients.

A server that is overloaded answers so late that nobody asks for much: then who asks for many things at once floods, too, whatever
he gets (`strained`), until threads get their turn again; and floods get less and less meanwhile, and nobody else does.

That is measured (`StrainMeter`), for what a request costs is no constant: other processes take the machine's cores, and the threads of
hundreds of sessions wait for one interpreter. A thread that sleeps for some milliseconds and wakes later than it asked for has waited as
any request does.

`Rates` bounds what each address, or user, may have done a second: TLS handshakes (2 to 4 ms of a processor each), messages on direct
lines. Each has a rate of its own, so that who floods takes nothing from the others, and all together have one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from rmgr.errors import LimitReached, PermissionDenied, QueueFull, Throttled
from rmgr.model.cluster.queue import BOUND, UserLimits

#: Requests a second that one server answers for all users together, while there are several.
CAPACITY_PER_S = 1200.0
#: What one busy person needs; and which part of the capacity is left to those who ask for more, while that is too much, for how long.
FLOOR_PER_S, FLOODS_PART, FLOOD_S = 150.0, 0.25, 10.0
_LEAST_PER_S = 2.0
#: Threads that get their turn so late (s, on average), or a process that computes for such a part of the time: then it is strained.
LATE_S, BUSY_PART = 0.005, 0.6
#: Below these it is at ease. At each look floods become slower by the one factor, or faster by the other; what they have at least.
EARLY_S, IDLE_PART, _SLOWER, _FASTER, _LEAST_EASE = 0.002, 0.45, 0.7, 1.15, 0.2
#: Requests of one user under way: who has more does not wait for each of his answers. People and their commands have fewer.
DEEP = 16
#: Who has waited so long, beyond this part of the time, asks for more than he gets.
_LATE_S, _LATE_PART = 0.3, 0.1
#: A stream waits for its turn at most so long; how much of its rate a user may ask for at once (s).
PATIENCE_S, BURST_S = 1.0, 2.0
_CROWD_S = 0.5  # among so many that nobody has more than `FLOOR_PER_S`: a crowd that comes at once must not be a flood
#: After its threads had their turn late a server is strained for so long.
_STRAIN_S = 3.0
#: Who has asked within this time shares the server; a user of whom nothing is held is forgotten after the second.
_ACTIVE_S, _FORGET_S = 5.0, 60.0
_COUNT_S = 0.25
#: A request of so many bytes counts twice.
_WEIGHT_BYTES = 32 * 1024
#: What writing into the store costs beside the call: a sync of a disk, and one more for so many bytes.
_STORED_COST, _STORED_BYTES = 4.0, 16 * 1024
#: What a request beside its own cost is taken for that its client, unless it is hostile, never makes.
_FORBIDDEN_COST = 5.0
#: What opening a stream costs: two threads.
SESSION_COST = 25.0
#: What all users of one server may hold together; beyond it who holds less than his part of it is served.
TOTALS = {"followed": 100_000, "held_bytes": 192 * 1024 * 1024}
_HOUR_S, _HOURS = 3600.0, 24
#: Bounds that let go by themselves.
_SOON = frozenset({"requests_per_s", "calls", "held_bytes"})


class _User:
    __slots__ = ("balance", "filled_s", "flooded_s", "held", "late_s", "lock", "refused", "seen_s", "under_way", "waited_s", "written")

    def __init__(self, now_s: float) -> None:
        self.lock = threading.RLock()  # whatever a collection of garbage ends meanwhile gives back what it held, on this thread
        self.balance = math.inf  # until the first request: as much as he may have at once
        self.filled_s = self.seen_s = self.late_s = now_s
        self.waited_s = 0.0
        self.under_way = 0
        self.flooded_s = -math.inf
        self.held: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.written: dict[int, int] = {}  #: bytes by hour

    def forget_before(self, hour: int) -> None:
        """What was written in that hour or before counts no more. Under `lock`."""
        for old in [old for old in self.written if old <= hour]:
            self.held["store_bytes"] -= self.written.pop(old)
        if self.held["store_bytes"] <= 0:
            del self.held["store_bytes"]


class Bounds:
    """Args:
    limits: at first; `limits` may be replaced at any time. capacity_per_s: see `CAPACITY_PER_S`. clock: monotonic seconds.

    Thread-safe; users do not wait for one another. Cost of each call: about 2 us.
    """

    def __init__(
        self,
        limits: UserLimits | None = None,
        *,
        capacity_per_s: float = CAPACITY_PER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or UserLimits()
        self._capacity_per_s = capacity_per_s
        self._clock = clock
        self._lock = threading.RLock()  # of what follows, but for what is in a _User
        self._users: dict[str, _User] = {}
        self._places: dict[str, list[Shares]] = {}
        self._totals: Counter[str] = Counter()  # about: as of the last count
        self._holders: Counter[str] = Counter()
        self._active = 1
        self._counted_s = clock()
        self._strained_s = -math.inf
        self.ease = 1.0  #: which part of the rate of those who flood they have: all of it, while threads get their turn

    # -- requests

    @property
    def is_crowded(self) -> bool:
        """So many ask that somebody at work has to be told from a flood."""
        return self._active > 1 and self._capacity_per_s / self._active < FLOOR_PER_S

    def strained(self, late_s: float, busy_part: float = 0.0) -> None:
        """To be told some times a second.

        Args: late_s: how much later than they ask for threads of this process get their turn, on average.
            busy_part: how many processors it takes: with one interpreter hardly more than 1.
        """
        if late_s > LATE_S or busy_part > BUSY_PART:
            self.ease = max(_LEAST_EASE, self.ease * _SLOWER)
            self._strained_s = self._clock()
        elif late_s < EARLY_S and busy_part < IDLE_PART:
            self.ease = min(1.0, self.ease * _FASTER)

    def wait_s(self, user: str, size_bytes: int = 0, *, cost: float = 1.0) -> float:
        """How long a request of his waits for its turn. Raises Throttled when that were more than `PATIENCE_S`.

        Args: cost: in reads; only in a crowd one counts for more than a read.
        """
        cost = cost if self.is_crowded else min(cost, 1.0)
        return self._spend(user, cost + size_bytes / _WEIGHT_BYTES, PATIENCE_S)

    def begin(self, user: str, count: int) -> None:
        """So many requests of his are under way."""
        known = self._user(user, self._clock())
        with known.lock:
            known.under_way += count

    def end(self, user: str, count: int) -> None:
        """So many of them are answered, or given up."""
        known = self._user(user, self._clock())
        with known.lock:
            known.under_way = max(0, known.under_way - count)

    def spend(self, user: str, cost: float = 1.0) -> None:
        """A call that does not wait. Raises Throttled."""
        self._spend(user, cost, 0.0)

    def _spend(self, user: str, cost: float, patience_s: float) -> float:
        limit = self.limits.requests_per_s
        now_s = self._clock()
        if now_s - self._counted_s > _COUNT_S:
            self._count(now_s)
        known = self._user(user, now_s)
        with known.lock:
            known.seen_s = now_s
            if not limit:
                return 0.0
            if known.under_way > DEEP and self.is_crowded and now_s - self._strained_s < _STRAIN_S:
                known.flooded_s = now_s
            rate = self._rate(known, float(limit), now_s)
            burst = rate * (_CROWD_S if self.is_crowded else BURST_S)
            known.balance = min(burst, known.balance + (now_s - known.filled_s) * rate)
            known.filled_s = now_s
            wait_s = max(0.0, (cost - known.balance) / rate)
            if wait_s <= patience_s or known.balance >= burst / 2:  # what costs more than can be saved up is paid later
                known.balance -= cost
                known.waited_s = max(0.0, known.waited_s - (now_s - known.late_s) * _LATE_PART) + wait_s
                known.late_s = now_s
                if known.waited_s > _LATE_S:
                    known.flooded_s = now_s
                return wait_s
            known.refused["requests_per_s"] += 1
            known.flooded_s = now_s
        raise _error("requests_per_s", user, limit, "" if self._active <= 1 else f"; {self._active} users share this server just now")

    def charge_stored(self, user: str, size: int) -> None:
        """He writes so many bytes into the store, for which others wait in a crowd."""
        if self.is_crowded:
            self.charge(user, _STORED_COST + size / _STORED_BYTES)

    def failed(self, user: str, error: Exception) -> None:
        """He was refused something: who is honest asks but seldom for what is not his to ask for."""
        if isinstance(error, PermissionDenied):
            self.charge(user, _FORBIDDEN_COST)

    def charge(self, user: str, cost: float) -> None:
        """What he has asked for was more than it seemed."""
        known = self._user(user, self._clock())
        with known.lock:
            known.balance -= cost

    def _rate(self, known: _User, limit: float, now_s: float) -> float:
        """Requests a second that he has now."""
        part = self._capacity_per_s / self._active
        if self._active <= 1 or part >= limit:
            return limit
        if part >= FLOOR_PER_S:
            return part
        if now_s - known.flooded_s < FLOOD_S:
            return min(limit, max(_LEAST_PER_S, part * FLOODS_PART) * self.ease)
        return min(limit, FLOOR_PER_S)

    def _count(self, now_s: float) -> None:
        with self._lock:
            self._counted_s = now_s
            users = list(self._users.items())
            self._active = max(1, sum(known.seen_s > now_s - _ACTIVE_S for _, known in users))
            totals: Counter[str] = Counter()
            holders: Counter[str] = Counter()
            for user, known in users:
                with known.lock:
                    for name, amount in known.held.items():
                        totals[name] += amount
                        holders[name] += 1
                    if known.seen_s < now_s - _FORGET_S and not (known.held or known.under_way):
                        self._users.pop(user, None)
            self._totals, self._holders = totals, holders

    # -- what is held

    def take(self, name: str, user: str, amount: int = 1) -> None:
        """He holds so much more. Raises LimitReached."""
        known = self._user(user, self._clock())
        with known.lock:
            limit = self._limit(name, known)
            if limit is None or known.held[name] + amount <= limit:
                known.held[name] += amount
                return
            known.refused[name] += 1
        raise _error(name, user, limit)

    def hold(self, name: str, user: str, amount: int) -> None:
        """The same, come what may."""
        known = self._user(user, self._clock())
        with known.lock:
            known.held[name] += amount

    def give_back(self, name: str, user: str, amount: int = 1) -> None:
        """What he took or held."""
        known = self._user(user, self._clock())
        with known.lock:
            known.held[name] -= amount
            if known.held[name] <= 0:
                del known.held[name]

    def has_room(self, name: str, user: str) -> bool:
        """He holds less than he may."""
        known = self._users.get(user)
        if known is None:
            return True
        with known.lock:
            limit = self._limit(name, known)
            return limit is None or known.held[name] < limit

    def write(self, user: str, amount: int) -> None:
        """He writes so many bytes into the store, which count for a day. Raises LimitReached."""
        hour = int(self._clock() // _HOUR_S)
        known = self._user(user, self._clock())
        with known.lock:
            known.forget_before(hour - _HOURS)
        self.take("store_bytes", user, amount)
        with known.lock:
            known.written[hour] = known.written.get(hour, 0) + amount

    def written(self) -> dict[str, dict[int, int]]:
        """What each user has written within the last day: bytes by how many hours ago. What is older is forgotten. Cost: O(users)."""
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
        """What users had written before this process began, as `written` told it; beside what they have written since."""
        hour = int(self._clock() // _HOUR_S)
        for user, amounts in written.items():
            known = self._user(user, self._clock())
            with known.lock:
                for ago, amount in amounts.items():
                    if 0 <= ago < _HOURS:
                        known.held["store_bytes"] += amount
                        known.written[hour - ago] = known.written.get(hour - ago, 0) + amount

    def _limit(self, name: str, known: _User) -> int | None:
        """What he may hold: what the settings say, and where all together hold too much no more than his part. None = no limit."""
        limit = int(getattr(self.limits, name)) or None
        total = TOTALS.get(name)
        if total is None or self._totals[name] < total:
            return limit
        part = total // max(1, self._holders[name] + (name not in known.held))
        return part if limit is None else min(part, limit)

    # -- places

    def places(self, name: str, most: int) -> Shares:
        """Places that users share, for what is bounded by `name`; a tenth of them is for operators."""
        made = Shares(most, reserved=most // 10, of_one=lambda: int(getattr(self.limits, name)))
        self._places.setdefault(name, []).append(made)
        return made

    def no_place(self, name: str, user: str, places: Shares, told: str = "") -> LimitReached | QueueFull:
        """Why he did not get one: he has what he may have, or all are taken (`told`)."""
        self._refused(name, user)
        if places.taken(user) >= places.of_one and len(places) < places.most:
            return _error(name, user, places.of_one)
        return QueueFull(told or f"all {places.most} places for {BOUND[name].what} are taken", hint=BOUND[name].advice)

    # -- what is told

    def refuse(self, name: str, user: str, limit: int) -> LimitReached:
        """Counts a refusal, and is the error of it."""
        self._refused(name, user)
        return _error(name, user, limit)

    def used(self, user: str) -> dict[str, int]:
        """What he holds now, by bound."""
        known = self._users.get(user)
        held: dict[str, int] = {}
        if known is not None:
            with known.lock:
                held = dict(known.held)
        for name, some in self._places.items():
            held[name] = sum(places.taken(user) for places in some)
        return held

    def refused(self, user: str) -> dict[str, int]:
        """What was refused to him since he was last forgotten (a minute without a request), by bound."""
        known = self._users.get(user)
        if known is None:
            return {}
        with known.lock:
            return dict(known.refused)

    def users(self) -> list[str]:
        """Of whom anything is known."""
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


def _error(name: str, user: str, limit: int, more: str = "") -> LimitReached:
    """The refusal of `user` at the bound `name`."""
    bound = BOUND[name]
    kind = Throttled if name in _SOON else LimitReached
    return kind(f"{user or 'this user'} has reached the limit {name} = {limit}: {bound.what}{more}", hint=f"{bound.advice}; rmgr limits")


# -- places --------------------------------------------------------------------------------------------------------------------


class Shares:
    """`most` places at once, three quarters of them for one user, or fewer. Thread-safe.

    Args:
        reserved: places that only operators get. of_one: what the settings give one user, 0 = no more than said above.
    """

    def __init__(self, most: int, *, reserved: int = 0, of_one: Callable[[], int] = lambda: 0) -> None:
        self.most = most
        self._for_all = most - reserved
        self._of_one = of_one
        self._taken: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many are taken."""
        return self._taken.total()

    @property
    def of_one(self) -> int:
        """How many one user may have."""
        return min(self._of_one() or self.most, self.most - self.most // 4)

    def taken(self, user: str) -> int:
        """How many he has."""
        return self._taken[user]

    def take(self, user: str, timeout_s: float = 0.0, *, is_operator: bool = False) -> bool:
        """Takes a place; False when there is none for him within `timeout_s`."""
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
        """Once for each place that he has taken."""
        with self._changed:
            self._taken[user] -= 1
            self._forget(user)
            self._changed.notify_all()

    def greediest(self, user: str) -> str | None:
        """Who is to make room for him: whoever has the most places, and more than he would have then; None = he waits his turn."""
        with self._changed:
            [(other, most)] = self._taken.most_common(1) or [("", 0)]
            return other if other != user and self._taken.get(user, 0) + 1 < most and self._taken.get(user, 0) < self.of_one else None

    def _forget(self, user: str) -> None:
        if not self._taken[user]:
            del self._taken[user]


# -- lateness of threads -------------------------------------------------------------------------------------------------------


_SLEEP_S, _SAMPLES, _IDLE_S = 0.02, 12, 0.5


class StrainMeter:
    """Args: bounds: told of the mean lateness and of the processor time, four times a second while many ask.

    Cost: 0.2 % of a core then, else nothing.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._stopped = threading.Event()

    def start(self) -> StrainMeter:
        """Begins to measure."""
        threading.Thread(target=self._run, name="strain", daemon=True).start()
        return self

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._bounds.is_crowded:
                self._bounds.strained(0.0)
                self._stopped.wait(_IDLE_S)
                continue
            late_s, burnt_s, looked_s = 0.0, time.process_time(), time.monotonic()
            for _ in range(_SAMPLES):
                began_s = time.monotonic()
                self._stopped.wait(_SLEEP_S)
                late_s += max(0.0, time.monotonic() - began_s - _SLEEP_S)
            self._bounds.strained(late_s / _SAMPLES, (time.process_time() - burnt_s) / (time.monotonic() - looked_s))


# -- rates of addresses --------------------------------------------------------------------------------------------------------


#: Those that are remembered, the latest ones.
_KEEP = 1024


class Rates:
    """Args:
    rate, burst: of each, a second and at once. all_: so many times as much for all together. clock: monotonic seconds.

    For one thread. Cost: 1 us.
    """

    def __init__(self, rate: float, burst: float, *, all_: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._rate, self._burst, self._times = rate, burst, all_
        self._clock = clock
        self._all = (math.inf, clock())  #: what is left, as of when
        self._of: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may(self, who: str) -> bool:
        """Whether this address, or user, gets one now; it is counted then."""
        now_s = self._clock()
        mine = _filled(self._of.pop(who, (math.inf, now_s)), self._rate, self._burst, now_s)
        whole = _filled(self._all, self._rate * self._times, self._burst * self._times, now_s)
        is_free = mine >= 1 and whole >= 1
        self._of[who] = mine - is_free, now_s
        self._all = whole - is_free, now_s
        if len(self._of) > _KEEP:
            self._of.popitem(last=False)
        self.refused += not is_free
        return is_free


def _filled(bucket: tuple[float, float], rate: float, burst: float, now_s: float) -> float:
    left, at_s = bucket
    return min(burst, left + (now_s - at_s) * rate)
