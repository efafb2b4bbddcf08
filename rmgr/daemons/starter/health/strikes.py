"""Failures that are the node's own: enough of them in a row and it takes no work for a while (no black hole eats the queue). Pure.

What fails in slots of one user alone may be that user's doing (processes, disk quota, memory are used up): only his work stays out then.
"""

from __future__ import annotations

import math
from collections import deque

#: Failures of slots, files, spool within the window that put the node out.
OWN = 5
#: Of these, as many at most count of one user.
OF_ONE_USER = 2
#: Work that could not be started, of this many different submissions: one bad submission puts no node out.
SUBMISSIONS = 4
WINDOW_S = 60.0
#: How long the node stays out.
OUT_S = 60.0


class Strikes:
    """Recent failures of the node."""

    def __init__(self) -> None:
        self.last = ""
        self._own: deque[float] = deque(maxlen=OWN)
        self._users: dict[str, deque[float]] = {}
        self._starts: dict[str, float] = {}
        self.out_until_s = -math.inf  #: the node takes no work before this (monotonic)

    def add(self, what: str, detail: str, now_s: float, *, user: str = "") -> bool:
        """The node failed at `what`; for `start_failed` the detail begins with the submission and a colon.

        user: whose slot it was in, "" = it was the Starter's own doing. Returns: no more work of this user should run here for a while.
        """
        self.last = f"{what}: {detail}"
        if what == "start_failed":
            self._starts[detail.partition(":")[0]] = now_s
            self._starts = {one: at for one, at in self._starts.items() if now_s - at < WINDOW_S}
            if len(self._starts) >= SUBMISSIONS:
                self._out(now_s)
            return False
        his = self._of(user, now_s) if user else 0
        if his <= OF_ONE_USER:
            self._own.append(now_s)
            if len(self._own) == OWN and now_s - self._own[0] < WINDOW_S:
                self._out(now_s)
        if his < OWN:
            return False
        del self._users[user]
        return True

    def _of(self, user: str, now_s: float) -> int:
        """How many there are of this user with this one."""
        self._users = {one: seen for one, seen in self._users.items() if now_s - seen[-1] < WINDOW_S}
        mine = self._users.setdefault(user, deque())
        mine.append(now_s)
        while now_s - mine[0] >= WINDOW_S:
            mine.popleft()
        return len(mine)

    def success(self) -> None:
        """Work ran well here."""
        self._starts.clear()

    def is_out(self, now_s: float) -> bool:
        """The node takes no work at present."""
        return now_s < self.out_until_s

    def _out(self, now_s: float) -> None:
        self.out_until_s = now_s + OUT_S
        self._own.clear()
        self._users.clear()
        self._starts.clear()
