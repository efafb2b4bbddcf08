"""Bounds one user's share of ZooKeeper's room below a subtree: as long as some is free, some of it is for everybody else.

ZooKeeper's quotas (`protocol/quotas.py`) end what is too much, and who has filled one keeps all others from submitting. So a gateway reads
what is used of them, and gives the last quarter of each only to those who have little there: a 64th of it at most, so that sixteen come
to theirs after others have filled the rest. A sixteenth is never given to users: outcomes and claims of daemons lie below the same roots.
One user alone comes to 70 % of a quota, which are two million waiting tasks on servers with the usual heap of 1000 MiB. Where there are
no quotas nobody is refused.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

from rmgr.coord.protocol.quotas import Quota
from rmgr.errors import RmgrError
from rmgr.runtime import machine

#: One part in `_OF_DAEMONS` is for daemons only; of the rest one part in `_KEPT` is for users who have no more than one in `_LITTLE`.
_OF_DAEMONS, _KEPT, _LITTLE = 16, 4, 64
#: How old the numbers may be.
_OLD_S = 2.0
#: Subtree -> (what is there, what may be).
Look = Callable[[], Mapping[str, tuple[Quota, Quota]]]
NOTHING = Quota(0, 0)


class QuotaRoom:
    """Args: look: asks ZooKeeper; raises RmgrError. clock: monotonic seconds. Thread-safe."""

    def __init__(self, look: Look, *, clock: Callable[[], float] | None = None) -> None:
        self._look = look
        self._clock = clock or machine.monotonic
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._used: Mapping[str, tuple[Quota, Quota]] = {}
        self._since: dict[str, Quota] = {}  #: what was added through this gateway since they were read
        self._looked_s = -math.inf

    def lacks(self, place: str, mine: Quota, new: Quota) -> str:
        """Why whoever has `mine` there may not add `new`, "" when he may. Cost: 2 us."""
        with self._lock:
            known, since = self._used.get(place), self._since.get(place, NOTHING)
        if known is None:
            return ""
        there, limit = known
        for what, has, more, taken, most in (
            ("znodes", mine.znodes, new.znodes, there.znodes + since.znodes, limit.znodes),
            ("bytes", mine.data_bytes, new.data_bytes, there.data_bytes + since.data_bytes, limit.data_bytes),
        ):
            usable = most - most // _OF_DAEMONS
            is_little = has + more <= usable // _LITTLE
            if more > 0 and most > 0 and taken + more > (usable if is_little else usable - usable // _KEPT):
                return f"of {most} {what} below {place} {taken} are used, this user has {has} and wants {more} more"
        return ""

    def add(self, place: str, new: Quota) -> None:
        """It is about to be committed."""
        with self._lock:
            before = self._since.get(place, NOTHING)
            self._since[place] = Quota(before.znodes + new.znodes, before.data_bytes + new.data_bytes)

    def refresh(self, age_s: float = _OLD_S) -> None:
        """Reads what is used, unless that was done a moment ago; when it cannot be read, what was known stays."""
        with self._looking:
            if self._clock() - self._looked_s <= age_s:
                return
            with self._lock:
                before = dict(self._since)
            try:
                used = self._look()
            except RmgrError:
                used = None
            with self._lock:
                self._looked_s = self._clock()
                if used is None:
                    return
                self._used = used
                self._since = {
                    place: Quota(now.znodes - was.znodes, now.data_bytes - was.data_bytes)
                    for place, now in self._since.items()
                    if (was := before.get(place, NOTHING)) != now
                }
