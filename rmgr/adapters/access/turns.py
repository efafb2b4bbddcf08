"""Turns of users at what a server does for few at once: of those who wait, whoever has had least of it lately goes first.

So who asks now and then is served as if he were alone, however many others ask without end; these share what is left. What somebody
has had is the time that was spent on him, in all turns of one server together; half of it is forgotten after some seconds. It counts the
more the more he has said that waits still: who asks one thing after another goes before those who ask a hundred at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter

from rmgr.errors import LimitReached, QueueFull, Throttled

#: Half of what a user has had is forgotten after so long (s).
HALF_S = 5.0
#: Whoever calls without a name.
_NOBODY = "nobody"
#: What waits of somebody makes what he has had count twice, three times, ...
_FEW = 4
#: Users who are remembered; who has had least of them is forgotten first.
_KEEP = 10_000
_LARGEST = 1e100


class Had:
    """What users have had of a server lately. Thread-safe. Cost: 1 us."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a collection of garbage on this thread may end a call
        self._since_s = clock()
        self._of: dict[str, float] = {}  #: in seconds of `_since_s`: what comes later weighs more, so nothing has to be made less
        self._waiting: Counter[str] = Counter()

    def add(self, user: str, seconds: float) -> None:
        """So long was spent on him."""
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
        """So many things that he has said wait meanwhile."""
        self.wait(user, count)
        try:
            yield
        finally:
            self.wait(user, -count)

    def wait(self, user: str, count: int) -> None:
        """So many more wait; below 0: so many less."""
        with self._lock:
            self._waiting[user] += count
            if self._waiting[user] <= 0:
                del self._waiting[user]

    def of(self, user: str) -> float:
        """What he has had: to be compared with what others have had, at the same moment."""
        return self._of.get(user, 0.0) * (1 + self._waiting[user] / _FEW)


class _Waiting:
    __slots__ = ("called", "is_called", "is_turned_away")

    def __init__(self) -> None:
        self.called = threading.Event()
        self.is_called = self.is_turned_away = False


class Turns:
    """Lets `at_once` through, `of_one` of them of one user; a quarter is for users who have none under way. Thread-safe.

    Args:
        had: shared by all turns of a server. most: who may wait. Above it whoever waits with the most, or has had most, is turned away.
        of_user: what the settings give one user, 0 = no more than said above. refuse: the error for who has reached that.
        what: for texts.
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
        self._over: deque[str] = deque()  #: whose turns have ended: a collection of garbage ends some while this thread has the lock
        self._waiting: dict[str, deque[_Waiting]] = {}  #: none is empty
        self._count = 0  #: that wait
        self._served: Counter[str] = Counter()
        self._operators: set[str] = set()  #: of those who wait

    def taken(self, user: str) -> int:
        """His turns, those for which he waits too."""
        user = user or _NOBODY
        return self._served[user] + len(self._waiting.get(user, ()))

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    @contextmanager
    def turn(self, user: str, timeout_s: float, *, is_operator: bool = False) -> Iterator[None]:
        """Waits until it is his turn, and gives it back. An operator goes before all others.

        Raises: LimitReached (`refuse`); QueueFull: too many wait who have had less; Throttled: his turn did not come in time, or he was
            turned away for somebody who had less.
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
        """Turns that have ended are given back. Whoever has the lock meanwhile does it afterwards."""
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
        """None: it is his turn."""
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
        """There is a turn for him. Under the lock."""
        total, his = self._served.total(), self._served[user]
        return total < self.at_once and his < self._of_one and (not his or total < self.at_once - self.at_once // 4)

    def _call(self) -> None:
        """Whoever is next, as long as there is room. Under the lock. Cost: O(users who wait)."""
        while self._count:
            able = [user for user in self._waiting if self._may(user)]
            if not able:
                return
            user = min(able, key=lambda one: (one not in self._operators, self._had.of(one)))
            called = self._waiting[user][0]
            self._forget(user, called)
            self._served[user] += 1
            called.is_called = True
            called.called.set()

    def _make_room(self, user: str, is_operator: bool) -> bool:
        """Turns the last one of the greediest away, if that is somebody else. Under the lock."""

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
