"""How much a Starter claims, and for whom: how long tasks take here, whose turn it is in a fair queue, who is at a cap of cores.

A Starter keeps about `AHEAD_S` of work claimed beyond what runs, so that its slots never wait for a commit, and no more,
so that others find work in the queue. Until a task of its kind has ended here a block's tasks are claimed one a free slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import expm1, inf, log

from rmgr.coord.decisions import admitted
from rmgr.model.cluster.queue import CORES, CappedUse, UserLimits
from rmgr.runtime import machine

#: Work claimed beyond what runs, in seconds of all slots.
AHEAD_S = 0.2
#: Tasks claimed beyond what runs, for each of their kind that has ended.
GROWTH = 8
#: Work handed to a slot in one message, in seconds of that slot.
BATCH_S = 0.03
#: A slot with less than this to do is handed more.
LOW_S = 0.01
#: The same for a slot that runs commands, whose spawner tells of their ends every 10 ms.
LOW_COMMANDS_S = 0.02
#: Most tasks in one message.
BATCH_TASKS = 128
#: What a task costs a slot besides its own run time.
OVERHEAD_S = 60e-6
#: Weight of one observed task.
_WEIGHT = 0.1
#: Kinds whose times are remembered.
_REMEMBERED = 4096
#: What tasks that take similar times have in common: a function's hash, a command, else their submission.
Kind = str | int
#: See the module.
HALF_LIFE_S = 3600.0
#: Core-seconds that who comes has had less than all who wait.
_AHEAD = 0.01
#: What a task is taken to last of whose kind none has ended here (s).
UNKNOWN_S = 1.0
#: Users who are remembered.
_REMEMBERED_USERS = 4096
#: Counts are kept as if they grew, not faded, so that their order stays; after so many half-lives they are made small again.
_REBASE = 256
#: Who is at the cap is looked at again after this, if nothing was told meanwhile.
AGAIN_S = 2.0


class TaskTimes:
    """Smoothed run time of the tasks of each kind, newest kinds kept."""

    def __init__(self) -> None:
        self._times: dict[Kind, float] = {}
        self._ended: dict[Kind, int] = {}

    def observe(self, kind: Kind, tasks: int, busy_s: float) -> None:
        """`tasks` tasks ended after `busy_s` of slot time in all. Cost: O(1)."""
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
        """Seconds of slot time a task takes, None when none has ended here."""
        return self._times.get(kind)

    def ended(self, kind: Kind) -> int:
        """How many have ended here."""
        return self._ended.get(kind, 0)


def claim_size(
    *, count: int, serial: bool, at_most_once: bool, free: int, slots: int, task_s: float | None, ended: int, ahead_s: float
) -> int:
    """How many tasks of a waiting block to claim now, 0 = none yet.

    Args:
        count: tasks in the block. serial: taken whole, it uses one slot. at_most_once: a claim means a start.
        free: tasks of this shape that could start at once. slots: how many of them an empty node runs.
        task_s: measured time of a task, None = unknown. ended: tasks of its kind that have ended here.
        ahead_s: claimed and not started, in seconds of slot time; infinite when its length is unknown.
    """
    if serial:
        return count if free > 0 else 0
    if at_most_once or task_s is None:
        return min(count, max(0, free))
    if ahead_s >= AHEAD_S * slots:
        return min(count, free)
    # What a submission with a few quick tasks in front of long ones can hoard is bounded by how many have ended.
    ahead = min(AHEAD_S * slots - ahead_s, (GROWTH * ended + slots) * task_s - ahead_s)
    return min(count, max(free, int(ahead / task_s)))


def wants_more(*, free: int, slots: int, ahead_s: float) -> bool:
    """It is time to claim: a slot is free, or the work ahead has fallen to half of what it should be."""
    return free > 0 or ahead_s < AHEAD_S * slots / 2


def batch_size(*, ready: int, slots: int, task_s: float | None) -> int:
    """How many of `ready` tasks to hand to one of `slots` slots in one message.

    One while their time is unknown; never so many that the other slots would find nothing.
    """
    if task_s is None or ready <= 1:
        return min(ready, 1)
    share = -(-ready // max(1, slots))
    return max(1, min(int(BATCH_S / task_s), share, BATCH_TASKS))


# -- whose turn it is ------------------------------------------------------------------------------------------------------
# Whose turn it is in a fair queue: a Starter counts the core-seconds that users had of it there, and who had least is next. Pure. No
# Starter asks another. Each is fair among those who wait, and so the cluster is. Half of what was counted is forgotten after an hour. While
# two users wait, each gets as many core-seconds as the other, be their tasks 1 s or an hour long: who has just had an hour waits until the
# other one has had it, too. With minutes, an hour would be forgotten before; with days, one bad night would count all week. What was had
# while nobody else waited counts only as long as its user waits: who comes, or comes back, begins between the first and the last of those
# who wait. So newcomers are served at once, nobody waits until they have caught up, and nobody gains by leaving for a moment.


class Turns:
    """What users had of one Starter in one queue. users: by the tags of their blocks; counts: core-seconds; times: monotonic seconds."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  #: times 2 ** (half-lives since `_since_s`)
        self._since_s = 0.0
        self._owed: dict[str, Mapping[str, float]] = {}

    def charge(self, user: str, cores: int, seconds: float, tasks: int, now_s: float) -> None:
        """`tasks` tasks of `cores` cores each have ended after `seconds` in all. Cost: 1 us; O(users) for a new one now and then."""
        if user not in self._had and len(self._had) >= _REMEMBERED_USERS:
            for old in sorted(self._had, key=self._had.__getitem__)[: _REMEMBERED_USERS // 4]:
                del self._had[old]
        self._had[user] = self._had.get(user, 0.0) + cores * tasks * _faded(seconds / tasks) * self._scale(now_s)

    def owe(self, node: str, owed: Mapping[str, float]) -> None:
        """What users have claimed on one of the Starter's nodes and were not charged (`owed_of`); in place of what was said before."""
        self._owed[node] = owed

    def enter(self, users: Iterable[str], waiting: Iterable[str], now_s: float) -> None:
        """`users` wait from now on, beside those who have waited. Cost: O(users)."""
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


# -- users who have a cap --------------------------------------------------------------------------------------------------
# Users who have a cap: how many cores a Starter may claim for each of them now. The leader tells what each has in use in all (`/usage`,
# each second). A Starter adds what has changed here since: tasks that have ended make room at once, so who is at the cap keeps its cores,
# however short the tasks are. Figures that were told hold until others come, also while nobody leads. `coord/decisions/admitted.py` says
# how Starters share what is left.


class Caps:
    """Of all nodes of a Starter."""

    def __init__(self) -> None:
        self.limits = UserLimits()
        self._told: CappedUse | None = None
        self._here: dict[str, dict[str, int]] = {}  #: node -> user -> cores in use
        self._had: Counter[str] = Counter()  #: by user, on all of them, when the figures came
        self._chances: dict[str, float] = {}
        self._drawn_s = -inf

    @property
    def is_on(self) -> bool:
        """Somebody may not have as many cores as they like."""
        return bool(self.limits.max_cores_per_user or self.limits.cores_of)

    def told(self, use: CappedUse) -> None:
        """New figures came. What is here is counted already (`uses`)."""
        self._told, self._had, self._drawn_s = use, Counter(), -inf
        for each in self._here.values():
            self._had.update(each)

    def uses(self, node: str, wanted: Mapping[str, int], cores: int) -> None:
        """What users have claimed of a node of so many cores (or have placed there), in place of what was said before."""
        self._here[node] = {user: min(most, cores) for user, most in wanted.items()}

    def room(self, user: str, cores: int, now_s: float) -> int | None:
        """Cores that may be claimed now for a user whose task takes so many; 0 = at the cap, None = there is none. Cost: 1 us a node."""
        cap = self.limits.of(CORES, user)
        if not cap:
            return None
        told, more = self._told, self._more(user)
        if told is None:  # nobody has counted yet: something runs, and it is little
            return min(cap, cores) if more <= 0 else 0
        has = told.cores.get(user, 0)
        among = max(told.free if has < cap else told.nodes.get(user, 0), len(self._here))
        return admitted.room_below_cap(
            cap=cap, told=has, more=more, part=len(self._here) / max(1, among), cores=cores, chance=self._chance(user, now_s)
        )

    def may_ever(self, user: str, cores: int) -> bool:
        """The cap is as large as a task of so many cores: it can be claimed once little enough is in use."""
        cap = self.limits.of(CORES, user)
        return not cap or cores <= cap

    def is_within(self, user: str) -> bool:
        """The user has no more than the cap allows: what waits for cores that are in use may be claimed."""
        cap = self.limits.of(CORES, user)
        return not cap or self._in_all(user) + self._more(user) <= cap

    def why(self, user: str) -> str:
        """For who is refused work of the user."""
        return f"{user} has {self._in_all(user) + self._more(user)} of the {self.limits.of(CORES, user)} cores that {user} may have at once"

    def _in_all(self, user: str) -> int:
        return self._told.cores.get(user, 0) if self._told is not None else 0

    def _more(self, user: str) -> int:
        return sum(each.get(user, 0) for each in self._here.values()) - self._had[user]

    def _chance(self, user: str, now_s: float) -> float:
        """Drawn anew with new figures, and now and then: otherwise who has bad luck would wait until somebody else's work ends."""
        if now_s - self._drawn_s > AGAIN_S:
            self._drawn_s = now_s
            self._chances.clear()
        if user not in self._chances:
            self._chances[user] = machine.uniform(0.0, 1.0)
        return self._chances[user]
