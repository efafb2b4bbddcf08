"""Users who have a cap: how many cores a Starter may claim for each of them now.

The leader tells what each has in use in all (`/usage`, each second). A Starter adds what has changed here since: tasks that have ended make
room at once, so who is at the cap keeps its cores, however short the tasks are. Figures that were told hold until others come, also while
nobody leads. `coord/decisions/admitted.py` says how Starters share what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from rmgr.coord.decisions import admitted
from rmgr.model.cluster.queue import CORES, CappedUse, UserLimits
from rmgr.runtime import machine

#: Who is at the cap is looked at again after this, if nothing was told meanwhile.
AGAIN_S = 2.0


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
