"""Turns of users for work that a server does for few at once: of those who wait, the user with the least recent server time goes first.

So a user who asks now and then is served as if alone, however many others ask without pause; these share the rest. A user's server
time is the time spent on that user, in all turns of one server together; half of it is forgotten after some seconds. It counts more
the more requests the user has waiting: a user with one request at a time goes before one who sends a hundred at once.

In a gateway, a crowd that asks without end may use a part of one processor only while somebody else asks, too (`Breath`): being first
helps little where each message then waits several times for an interpreter that is always busy.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Generic, TypeVar

from rmgr.errors import LimitReached, QueueFull, Throttled

#: Seconds after which half of a user's server time is forgotten.
HALF_S = 5.0
#: Stands for callers without a name.
_NOBODY = "nobody"
#: Each this many waiting requests of a user add one more multiple of the user's server time.
_FEW = 4
#: Most users remembered; those with the least server time are forgotten first.
_KEEP = 10_000
_LARGEST = 1e100
#: Users who wait at once make a crowd if they are more than this; the part of one processor that a crowd may use.
CROWD, CROWD_PART = 16, 0.5
#: Seconds for which a crowd leaves room to others after a request of theirs.
_GUEST_S = 2.0
#: Seconds between two looks at a crowd, and at whether there is one; most processor time (s) that is saved up, and most that is owed.
_CROWD_LOOK_S, _LOOK_S = 0.005, 0.25
_SAVED_S, _OWED_S = 0.02, 0.1
#: Longest rest (s): by then a crowd has paid what it may owe. If the process is still busy, that is somebody else's doing.
_LONGEST_REST_S = _OWED_S / CROWD_PART


class Had:
    """How much server time each user has used recently, with exponential decay. Thread-safe. Cost: 1 us."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # reentrant: a garbage collection on this thread may end a call
        self._since_s = clock()
        self._of: dict[str, float] = {}  #: in seconds as of `_since_s`: later time weighs more, so that nothing has to be scaled down
        self._waiting: Counter[str] = Counter()
        self._crowd_from = 0.0  #: server time from which on a user belongs to the crowd, as of the last look at it; 0: none was seen
        self._guest_s = -math.inf  #: when a user asked who does not belong to it
        self._is_resting = False
        self._callbacks: list[Callable[[], None]] = []

    def add(self, user: str, seconds: float) -> None:
        """Adds time that was spent on the user."""
        with self._lock:
            weight = 2.0 ** ((self._clock() - self._since_s) / HALF_S)
            if weight > _LARGEST:
                self._of = {name: had / weight for name, had in self._of.items() if had / weight > 1e-6}
                self._since_s, weight = self._clock(), 1.0
            self._of[user] = self._of.get(user, 0.0) + seconds * weight
            if len(self._of) > _KEEP:
                for name, _ in sorted(self._of.copy().items(), key=itemgetter(1))[: _KEEP // 2]:
                    self._of.pop(name, None)

    @contextmanager
    def waiting(self, user: str, count: int) -> Iterator[None]:
        """Counts `count` requests of the user as waiting during the block."""
        self.wait(user, count)
        try:
            yield
        finally:
            self.wait(user, -count)

    def wait(self, user: str, count: int) -> None:
        """Adjusts the number of the user's waiting requests by `count` (may be negative)."""
        with self._lock:
            if count > 0 and self._crowd_from > self.of(user):
                self._guest_s = self._clock()
            self._waiting[user] += count
            if self._waiting[user] <= 0:
                del self._waiting[user]

    def of(self, user: str) -> float:
        """Returns the user's server time: only comparable with that of others at the same moment."""
        return self._of.get(user, 0.0) * (1 + self._waiting[user] / _FEW)

    # -- breath

    def must_rest(self, user: str) -> bool:
        """Returns whether the user waits although there is room, because a crowd has used its part and the user belongs to it."""
        return self._is_resting and self.of(user) >= self._crowd_from

    def on_breath(self, callback: Callable[[], None]) -> None:
        """Has `callback` called whenever nobody must rest any more."""
        self._callbacks.append(callback)

    @property
    def is_crowded(self) -> bool:
        """Whether more users wait than a crowd begins with."""
        return len(self._waiting) > CROWD

    @property
    def has_guest(self) -> bool:
        """Whether somebody who does not belong to the crowd has asked lately."""
        return self._clock() - self._guest_s < _GUEST_S

    def look(self) -> None:
        """Finds out who belongs to the crowd: those who wait and have had at least half of their mean."""
        with self._lock:
            had = [self.of(user) for user in list(self._waiting)]
        self._crowd_from = sum(had) / max(1, len(had)) / 2

    def rest(self, *, begins: bool) -> None:
        """Begins or ends a rest of the crowd."""
        self._is_resting = begins
        if not begins:
            for callback in self._callbacks:
                callback()


class Breath:
    """Rests a crowd that has used more than its part while others ask. Without others nobody rests, however busy the process is."""

    def __init__(self, had: Had) -> None:
        self._had = had
        self._resting_since_s = math.inf
        self._left_s = 0.0  #: processor time that the crowd may still use
        self._now_s = self._used_s = 0.0
        self._looked_s = -math.inf

    def start(self) -> None:
        """Begins to look, on a thread of its own."""
        threading.Thread(target=self._run, name="breath", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_CROWD_LOOK_S if self._had.is_crowded or self._resting_since_s < math.inf else _LOOK_S)
            self.look(time.monotonic(), time.process_time())

    def look(self, now_s: float, used_s: float) -> None:
        """Begins or ends a rest. used_s: processor time of the process so far."""
        gained_s = (now_s - self._now_s) * CROWD_PART - (used_s - self._used_s)
        self._now_s, self._used_s = now_s, used_s
        self._left_s = max(-_OWED_S, min(_SAVED_S, self._left_s + gained_s))
        if now_s - self._resting_since_s >= _LONGEST_REST_S:
            self._left_s = _SAVED_S
        is_over = self._had.is_crowded and self._left_s < 0
        if is_over and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._had.look()
        if is_over and self._had.has_guest:
            self._resting_since_s = min(self._resting_since_s, now_s)
            self._had.rest(begins=True)
        elif self._resting_since_s < math.inf:
            self._resting_since_s = math.inf
            self._had.rest(begins=False)


class _Waiting:
    __slots__ = ("called", "is_called", "is_turned_away")

    def __init__(self) -> None:
        self.called = threading.Event()
        self.is_called = self.is_turned_away = False


class Turns:
    """Lets `at_once` through, `of_one` of them of one user; a quarter is for users who have none under way. Thread-safe.

    Args:
        had: shared by all turns of a server. most: how many may wait; beyond it, the user with most waiting, or most time, is turned away.
        of_user: most turns of one user by the settings, 0 = no further limit. refuse: makes the error for a user who has reached it.
        what: for messages.
    """

    def __init__(
        self,
        had: Had,
        *,
        at_once: int,
        of_one: int,
        most: int,
        of_user: Callable[[], int] = lambda: 0,
        refuse: Callable[[str, int], LimitReached] | None = None,
        what: str = "questions",
    ) -> None:
        self.at_once = at_once
        self.most = most
        self._of_one = of_one
        self._of_user = of_user
        self._refuse = refuse
        self._what = what
        self._had = had
        self._lock = threading.Lock()
        self._over: deque[str] = deque()  #: users whose turns have ended: a garbage collection may end one while this thread holds the lock
        self._waiting: dict[str, deque[_Waiting]] = {}  #: never holds an empty queue
        self._count = 0  #: number of waiting requests
        self._served: Counter[str] = Counter()
        self._operators: set[str] = set()  #: operators among the waiting users
        had.on_breath(self._call_again)

    def taken(self, user: str) -> int:
        """Returns the number of the user's turns, including those that wait."""
        user = user or _NOBODY
        return self._served[user] + len(self._waiting.get(user, ()))

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self._count

    @contextmanager
    def turn(self, user: str, timeout_s: float, *, is_operator: bool = False) -> Iterator[None]:
        """Waits for the user's turn, and gives it back after the block. Operators go before all others.

        Raises: LimitReached (`refuse`); QueueFull: too many wait that have used less; Throttled: the turn did not come in time, or was
            given up in favour of a user who has used less.
        """
        user = user or _NOBODY
        self._enter(user, timeout_s, is_operator)
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._had.add(user, time.monotonic() - began_s)
            self._over.append(user)
            self._settle()

    def _settle(self) -> None:
        """Gives back turns that have ended. If another thread holds the lock, that thread does it afterwards."""
        while self._over and self._lock.acquire(blocking=False):
            try:
                while self._over:
                    user = self._over.popleft()
                    self._served[user] -= 1
                    if not self._served[user]:
                        del self._served[user]
                self._call()
            finally:
                self._lock.release()

    def _enter(self, user: str, timeout_s: float, is_operator: bool) -> None:
        try:
            mine = self._line_up(user, is_operator)
        finally:
            self._settle()
        if mine is None:
            return
        mine.called.wait(timeout_s)
        with self._lock:
            if not (mine.is_called or mine.is_turned_away):
                self._forget(user, mine)
        self._settle()
        if not mine.is_called:
            why = "others have asked for less" if mine.is_turned_away else f"not within {timeout_s:.3g} s"
            raise Throttled(f"this server has too much to do just now for {user}: {why}", hint="try again in a moment; rmgr limits")

    def _line_up(self, user: str, is_operator: bool) -> _Waiting | None:
        """Queues the user's request; returns None if the user's turn is now."""
        with self._lock:
            limit = self._of_user()
            if limit and self._refuse is not None and self.taken(user) >= limit:
                raise self._refuse(user, limit)
            if not self._count and self._may(user):
                self._served[user] += 1
                return None
            if self._count >= self.most and not self._make_room(user, is_operator):
                raise QueueFull(f"all {self.most} places for {self._what} are taken", hint="try again in a moment; rmgr limits")
            mine = _Waiting()
            self._waiting.setdefault(user, deque()).append(mine)
            self._count += 1
            if is_operator:
                self._operators.add(user)
            self._call()
            return mine

    def _may(self, user: str) -> bool:
        """Returns whether there is a turn for the user. Called under the lock."""
        if user not in self._operators and self._had.must_rest(user):
            return False
        total, his = self._served.total(), self._served[user]
        return total < self.at_once and his < self._of_one and (not his or total < self.at_once - self.at_once // 4)

    def _call(self) -> None:
        """Calls the next users while there is room. Called under the lock. Cost: O(waiting users) for each who is called, else 0.2 us."""
        while self._count and self._served.total() < self.at_once:
            able = [user for user in self._waiting if self._may(user)]
            if not able:
                return
            user = min(able, key=lambda one: (one not in self._operators, self._had.of(one)))
            called = self._waiting[user][0]
            self._forget(user, called)
            self._served[user] += 1
            called.is_called = True
            called.called.set()

    def _call_again(self) -> None:
        with self._lock:
            self._call()
        self._settle()

    def _make_room(self, user: str, is_operator: bool) -> bool:
        """Turns away the last request of the greediest user, unless that is `user`. Called under the lock."""

        def greed(name: str, more: int = 0) -> tuple[bool, int, float]:
            is_free = name in self._operators or (name == user and is_operator)
            return (not is_free, len(self._waiting.get(name, ())) + more, self._had.of(name))

        greediest = max(self._waiting, key=greed)
        if greediest == user or greed(greediest) <= greed(user, 1):
            return False
        last = self._waiting[greediest][-1]
        last.is_turned_away = True
        self._forget(greediest, last)
        last.called.set()
        return True

    def _forget(self, user: str, one: _Waiting) -> None:
        his = self._waiting[user]
        his.remove(one)
        self._count -= 1
        if not his:
            del self._waiting[user]
            self._operators.discard(user)


# -- jobs that wait for threads ------------------------------------------------------------------------------------------------


J = TypeVar("J")


class UserTurns(Generic[J]):
    """Waiting jobs; those of the process itself (user "") go first. Cost: O(1), `newcomer` O(users); `next` too, with `had`.

    Args:
        most_of_one: most running jobs of one user.
        had: returns what a job's user has used, the user with the least goes first; None: users go in turn.
        rests: whether a job must wait although a thread is free.
    """

    def __init__(
        self, most_of_one: int, had: Callable[[J], float] | None = None, rests: Callable[[J], bool] = lambda _: False
    ) -> None:
        self._most_of_one = most_of_one
        self._had = had
        self._rests = rests
        self._of: OrderedDict[str, deque[J]] = OrderedDict()  #: no queue is empty; the next user stands first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, user: str, job: J) -> None:
        """Adds a job as its user's last."""
        self._of.setdefault(user, deque()).append(job)
        self._count += 1

    def appendleft(self, user: str, job: J) -> None:
        """Adds a job as its user's next."""
        self._of.setdefault(user, deque()).appendleft(job)
        self._count += 1

    def next(self, under_way: Mapping[str, int]) -> str | None:
        """Returns the user with the next job; skips users who have as many jobs running as allowed. under_way: running jobs by user."""
        if "" in self._of:
            return ""
        able = (user for user, jobs in self._of.items() if under_way[user] < self._most_of_one and not self._rests(jobs[0]))
        had = self._had
        return next(able, None) if had is None else min(able, key=lambda user: had(self._of[user][0]), default=None)

    def take(self, user: str) -> J:
        """Takes the next job of a waiting user."""
        jobs = self._of[user]
        job = jobs.popleft()
        self._count -= 1
        if jobs:
            self._of.move_to_end(user)
        else:
            del self._of[user]
        return job

    def newcomer(self, *served: Container[str]) -> str | None:
        """Returns the first waiting user who is in none of `served`."""
        return next((user for user in self._of if not any(user in some for some in served)), None)

    def clear(self) -> None:
        """Drops all jobs."""
        self._of.clear()
        self._count = 0
