"""Whose turn it is in a fair queue: a Starter counts the core-seconds that users had of it there, and who had least is next. Pure.

No Starter asks another. Each is fair among those who wait, and so the cluster is.

Half of what was counted is forgotten after an hour. While two users wait, each gets as many core-seconds as the other, be their tasks 1 s
or an hour long: who has just had an hour waits until the other one has had it, too. With minutes, an hour would be forgotten before;
with days, one bad night would count all week. What was had while nobody else waited counts only as long as its user waits:
who comes, or comes back, begins between the first and the last of those who wait. So newcomers are served at once, nobody waits until
they have caught up, and nobody gains by leaving for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import expm1, log

#: See the module.
HALF_LIFE_S = 3600.0
#: Core-seconds that who comes has had less than all who wait.
_AHEAD = 0.01
#: What a task is taken to last of whose kind none has ended here (s).
UNKNOWN_S = 1.0
#: Users who are remembered.
_REMEMBERED = 4096
#: Counts are kept as if they grew, not faded, so that their order stays; after so many half-lives they are made small again.
_REBASE = 256


class Turns:
    """What users had of one Starter in one queue. users: by the tags of their blocks; counts: core-seconds; times: monotonic seconds."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  #: times 2 ** (half-lives since `_since_s`)
        self._since_s = 0.0
        self._owed: dict[str, Mapping[str, float]] = {}

    def charge(self, user: str, cores: int, seconds: float, tasks: int, now_s: float) -> None:
        """`tasks` tasks of `cores` cores each have ended after `seconds` in all. Cost: 1 us; O(users) for a new one now and then."""
        if user not in self._had and len(self._had) >= _REMEMBERED:
            for old in sorted(self._had, key=self._had.__getitem__)[: _REMEMBERED // 4]:
                del self._had[old]
        self._had[user] = self._had.get(user, 0.0) + cores * tasks * _faded(seconds / tasks) * self._scale(now_s)

    def owe(self, node: str, owed: Mapping[str, float]) -> None:
        """What users have claimed on one of the Starter's nodes and were not charged (`owed_of`); in place of what was said before."""
        self._owed[node] = owed

    def enter(self, users: Iterable[str], waiting: Iterable[str], now_s: float) -> None:
        """`users` wait from now on, beside those who have waited. Cost: O(users)."""
        scale, debts = self._scale(now_s), self._debts()
        users, waiting = tuple(users), tuple(waiting)
        if len(self._had) > _REMEMBERED:
            self._had = {user: self._had[user] for user in (*users, *waiting, *debts) if user in self._had}
        counts = [self._had.get(user, 0.0) + debts.get(user, 0.0) * scale for user in waiting]
        least, most = min(counts, default=0.0) - _AHEAD * scale, max(counts, default=0.0)
        for user in users:
            debt = debts.get(user, 0.0) * scale
            self._had[user] = max(0.0, min(max(self._had.get(user, 0.0) + debt, least), most) - debt)

    def order(self, users: Iterable[str], now_s: float) -> Iterator[str]:
        """`users`, who had least first, of equals as they come. Cost: O(users) for the first, 0.1 us each; all: O(n log n)."""
        had, scale = self._had, self._scale(now_s)
        counts = {user: had.get(user, 0.0) for user in users}
        for user, debt in self._debts().items():
            if user in counts:
                counts[user] += debt * scale
        if counts:
            first = min(counts, key=counts.__getitem__)
            yield first
            del counts[first]
            yield from sorted(counts, key=counts.__getitem__)

    def _debts(self) -> dict[str, float]:
        debts: dict[str, float] = {}
        for owed in self._owed.values():
            for user, debt in owed.items():
                debts[user] = debts.get(user, 0.0) + debt
        return debts

    def _scale(self, now_s: float) -> float:
        past = (now_s - self._since_s) / HALF_LIFE_S
        if past > _REBASE:
            shrunk = 2.0 ** -min(past, 1000.0)
            self._had = {user: had * shrunk for user, had in self._had.items()}
            self._since_s, past = now_s, 0.0
        return float(2.0**past)


def owed_of(*, cores: int, count: int, unfinished: int, live: int, task_s: float | None, age_s: float) -> float:
    """Core-seconds that a claimed block has had or will have, beside those of its tasks that have ended.

    Args:
        count: its tasks. unfinished: those that have not ended. live: those that run, or are about to.
        task_s: measured time of a task, None = unknown. age_s: since it was claimed.
    """
    each_s = UNKNOWN_S if task_s is None else task_s
    ran_s = max(0.0, age_s - (count - unfinished) * each_s / live) if live else 0.0
    return cores * max(unfinished * _faded(each_s), live * _faded(ran_s))


def _faded(seconds: float) -> float:
    """What counts of so many seconds at their end, since they were had one after another."""
    return HALF_LIFE_S / log(2) * -expm1(-log(2) * seconds / HALF_LIFE_S)
