"""How much a Starter claims, and for whom: how long tasks take here, whose turn it is in a fair queue, who is at a cap of cores.

A Starter keeps about `AHEAD_S` of work claimed beyond what runs, so that its slots never wait for a commit; it keeps no more, so that
other Starters find work in the queue. Until a task of the same kind has ended here, it claims one task for each free slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import expm1, inf, log

from rmgr.coord.decisions import admitted
from rmgr.model.queue import CORES, CappedUse, UserLimits
from rmgr.runtime import machine

#: Work claimed beyond what runs, in seconds of all slots.
AHEAD_S = 0.2
#: Tasks claimed beyond what runs, for each ended task of the same kind.
GROWTH = 8
#: Work handed to a slot in one message, in seconds of that slot.
BATCH_S = 0.03
#: A slot with less than this to do is handed more.
LOW_S = 0.01
#: The same for a slot that runs commands: its spawner reports ends only every 10 ms.
LOW_COMMANDS_S = 0.02
#: Most tasks in one message.
BATCH_TASKS = 128
#: What a task costs a slot besides its own run time.
OVERHEAD_S = 60e-6
#: Weight of one observed task.
_WEIGHT = 0.1
#: Kinds whose times are remembered.
_REMEMBERED = 4096
#: What tasks with similar run times have in common: a function's hash, a command, else their submission.
Kind = str | int
#: After this time half of what a user has used is forgotten; the comment above `Turns` says why.
HALF_LIFE_S = 3600.0
#: Core-seconds by which a newcomer ranks below the waiting user who has used least.
_AHEAD = 0.01
#: Assumed run time of a task whose kind has not ended here yet (s).
UNKNOWN_S = 1.0
#: Most users remembered.
_REMEMBERED_USERS = 4096
#: Instead of fading old counts, new ones are scaled up, which keeps their order; after so many half-lives all are scaled down again.
_REBASE = 256
#: The chance of a user at the cap is drawn again after this time, unless new figures came before.
AGAIN_S = 2.0


class TaskTimes:
    """Smoothed run time of the tasks of each kind; the newest kinds are kept."""

    def __init__(self) -> None:
        self._times: dict[Kind, float] = {}
        self._ended: dict[Kind, int] = {}

    def observe(self, kind: Kind, tasks: int, busy_s: float) -> None:
        """Records that `tasks` tasks ended after `busy_s` of slot time in all. Cost: O(1)."""
        mean = busy_s / tasks + OVERHEAD_S
        known = self._times.get(kind)
        if known is None:
            if len(self._times) >= _REMEMBERED:
                oldest = next(iter(self._times))
                del self._times[oldest], self._ended[oldest]
            self._times[kind], self._ended[kind] = mean, tasks
            return
        keep = (1 - _WEIGHT) ** min(tasks, 100)
        self._times[kind] = known * keep + mean * (1 - keep)
        self._ended[kind] += tasks

    def of(self, kind: Kind) -> float | None:
        """Returns the seconds of slot time that a task takes, None if none has ended here."""
        return self._times.get(kind)

    def ended(self, kind: Kind) -> int:
        """Returns how many tasks of a kind have ended here."""
        return self._ended.get(kind, 0)


def claim_size(
    *, count: int, serial: bool, at_most_once: bool, free: int, slots: int, task_s: float | None, ended: int, ahead_s: float
) -> int:
    """Returns how many tasks of a waiting block to claim now, 0 if none yet.

    Args:
        count: tasks in the block. serial: the block is taken whole and uses one slot. at_most_once: a claim means a start.
        free: tasks of this shape that could start at once. slots: how many of them an empty node runs.
        task_s: measured time of a task, None if unknown. ended: tasks of the same kind that have ended here.
        ahead_s: claimed work that has not started, in seconds of slot time; infinite if unknown.
    """
    if serial:
        return count if free > 0 else 0
    if at_most_once or task_s is None:
        return min(count, max(0, free))
    if ahead_s >= AHEAD_S * slots:
        return min(count, free)
    # The number of ended tasks bounds what a submission with a few quick tasks in front of long ones can hoard.
    ahead = min(AHEAD_S * slots - ahead_s, (GROWTH * ended + slots) * task_s - ahead_s)
    return min(count, max(free, int(ahead / task_s)))


def wants_more(*, free: int, slots: int, ahead_s: float) -> bool:
    """Returns whether to claim now: a slot is free, or the work ahead has fallen to half of its target."""
    return free > 0 or ahead_s < AHEAD_S * slots / 2


def batch_size(*, ready: int, slots: int, task_s: float | None) -> int:
    """Returns how many of `ready` tasks to hand to one of `slots` slots in one message.

    One task while their time is unknown; never so many that other slots would find nothing.
    """
    if task_s is None or ready <= 1:
        return min(ready, 1)
    share = -(-ready // max(1, slots))
    return max(1, min(int(BATCH_S / task_s), share, BATCH_TASKS))


# -- whose turn it is ------------------------------------------------------------------------------------------------------
# Whose turn it is in a fair queue: a Starter counts the core-seconds that each user has used there, and serves the user with the least
# next. Pure. Starters do not ask each other: each is fair among its waiting users, and so the cluster is. Half of what was counted is
# forgotten after an hour. While two users wait, both get the same core-seconds, whether their tasks take 1 s or an hour: a user who has
# just had an hour waits until the other has had one, too. A half-life of minutes would forget that hour too soon; with one of days, a bad
# night would count all week. What a user used while nobody else waited counts only as long as that user waits: a user who comes or comes
# back starts between the first and the last of the waiting ones. So newcomers are served at once, no old user waits until a newcomer has
# caught up, and leaving for a moment gains nothing.


class Turns:
    """What users have used of one Starter in one queue. users: tags in names of blocks; counts: core-seconds; times: monotonic seconds."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  #: times 2 ** (half-lives since `_since_s`)
        self._since_s = 0.0
        self._owed: dict[str, Mapping[str, float]] = {}

    def charge(self, user: str, cores: int, seconds: float, tasks: int, now_s: float) -> None:
        """Counts `tasks` ended tasks of `cores` cores each, which took `seconds` in all. Cost: 1 us; now and then O(users) for a new
        user."""
        if user not in self._had and len(self._had) >= _REMEMBERED_USERS:
            for old in sorted(self._had, key=self._had.__getitem__)[: _REMEMBERED_USERS // 4]:
                del self._had[old]
        self._had[user] = self._had.get(user, 0.0) + cores * tasks * _decayed_s(seconds / tasks) * self._scale(now_s)

    def owe(self, node: str, owed: Mapping[str, float]) -> None:
        """Replaces what users owe for one node of the Starter: what they have claimed and were not charged for (`owed_of`)."""
        self._owed[node] = owed

    def enter(self, users: Iterable[str], waiting: Iterable[str], now_s: float) -> None:
        """Lets `users` begin to wait, beside those already waiting. Cost: O(users)."""
        scale, debts = self._scale(now_s), self._debts()
        users, waiting = tuple(users), tuple(waiting)
        if len(self._had) > _REMEMBERED_USERS:
            self._had = {user: self._had[user] for user in (*users, *waiting, *debts) if user in self._had}
        counts = [self._had.get(user, 0.0) + debts.get(user, 0.0) * scale for user in waiting]
        least, most = min(counts, default=0.0) - _AHEAD * scale, max(counts, default=0.0)
        for user in users:
            debt = debts.get(user, 0.0) * scale
            self._had[user] = max(0.0, min(max(self._had.get(user, 0.0) + debt, least), most) - debt)

    def order(self, users: Iterable[str], now_s: float) -> Iterator[str]:
        """Yields `users`, least used first, equals in the given order. Cost: O(users) for the first, 0.1 us each; for all: O(n log n)."""
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
    """Returns the core-seconds that a claimed block has used or will use, except those of its ended tasks.

    Args:
        count: tasks of the block. unfinished: those that have not ended. live: those that run, or are about to.
        task_s: measured time of a task, None if unknown. age_s: time since the claim.
    """
    each_s = UNKNOWN_S if task_s is None else task_s
    ran_s = max(0.0, age_s - (count - unfinished) * each_s / live) if live else 0.0
    return cores * max(unfinished * _decayed_s(each_s), live * _decayed_s(ran_s))


def _decayed_s(seconds: float) -> float:
    """Returns what remains of `seconds`, used one after another, at their end."""
    return HALF_LIFE_S / log(2) * -expm1(-log(2) * seconds / HALF_LIFE_S)


# -- users with a cap ------------------------------------------------------------------------------------------------------
# Users who have a cap: how many cores a Starter may claim for each of them now. The leader publishes every second what each user has in
# use in the whole cluster (`/usage`). A Starter adds what has changed here since: ended tasks make room at once, so a user at the cap keeps
# its cores, however short the tasks are. Published figures hold until new ones come, even without a leader.
# `coord/decisions/admitted.py` says how Starters share what is left.


class Caps:
    """Caps of users, over all nodes of a Starter."""

    def __init__(self) -> None:
        self.limits = UserLimits()
        self._told: CappedUse | None = None
        self._here: dict[str, dict[str, int]] = {}  #: node -> user -> cores in use
        self._had: Counter[str] = Counter()  #: by user, over all nodes, when the figures came
        self._chances: dict[str, float] = {}
        self._drawn_s = -inf

    @property
    def is_on(self) -> bool:
        """Whether any user has a cap."""
        return bool(self.limits.max_cores_per_user or self.limits.cores_of)

    def told(self, use: CappedUse) -> None:
        """Takes new figures of the leader; `uses` has just counted what is in use here."""
        self._told, self._had, self._drawn_s = use, Counter(), -inf
        for each in self._here.values():
            self._had.update(each)

    def uses(self, node: str, wanted: Mapping[str, int], cores: int) -> None:
        """Replaces what users have claimed, or have placed, on a node of `cores` cores."""
        self._here[node] = {user: min(most, cores) for user, most in wanted.items()}

    def room(self, user: str, cores: int, now_s: float) -> int | None:
        """Returns the cores that may be claimed now for a user whose task takes `cores`; 0 at the cap, None without one. Cost: 1 us a
        node."""
        cap = self.limits.of(CORES, user)
        if not cap:
            return None
        told, more = self._told, self._more(user)
        if told is None:  # no figures yet: claim a little when nothing runs
            return min(cap, cores) if more <= 0 else 0
        has = told.cores.get(user, 0)
        among = max(told.free if has < cap else told.nodes.get(user, 0), len(self._here))
        return admitted.room_below_cap(
            cap=cap, told=has, more=more, part=len(self._here) / max(1, among), cores=cores, chance=self._chance(user, now_s)
        )

    def may_ever(self, user: str, cores: int) -> bool:
        """Returns whether the cap allows a task of `cores` cores at all, once little enough is in use."""
        cap = self.limits.of(CORES, user)
        return not cap or cores <= cap

    def is_within(self, user: str) -> bool:
        """Returns whether the user is within the cap, so that work waiting for cores in use may be claimed."""
        cap = self.limits.of(CORES, user)
        return not cap or self._in_all(user) + self._more(user) <= cap

    def why(self, user: str) -> str:
        """Returns why work of the user is refused, for people."""
        return f"{user} has {self._in_all(user) + self._more(user)} of the {self.limits.of(CORES, user)} cores that {user} may have at once"

    def _in_all(self, user: str) -> int:
        return self._told.cores.get(user, 0) if self._told is not None else 0

    def _more(self, user: str) -> int:
        return sum(each.get(user, 0) for each in self._here.values()) - self._had[user]

    def _chance(self, user: str, now_s: float) -> float:
        """Drawn again with new figures and now and then, or an unlucky user would wait until another user's work ends."""
        if now_s - self._drawn_s > AGAIN_S:
            self._drawn_s = now_s
            self._chances.clear()
        if user not in self._chances:
            self._chances[user] = machine.uniform(0.0, 1.0)
        return self._chances[user]
