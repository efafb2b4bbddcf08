"""The names that wait in a place queue, where they may be thousands and mostly change by what the leader itself takes out of them.

A list of 10,000 names costs the leader 20 ms and ZooKeeper 10, and every PLACE fires its watch. So a long list is not read again while its
znode's stat says that nothing has come (its counter of creations) and nothing has gone but what we took (its number of children). Answers
come in the order of the questions: what our answered commits have taken by the time at which a list or a stat arrives, is what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rmgr.coord.protocol.multi import Stat
from rmgr.daemons.leader.core.doors import LeaderReads, Thunk
from rmgr.daemons.leader.core.watched_cache import WatchedCache

#: Names below which a list is simply read.
LONG = 200
#: Nothing was taken for so long: the list is read once more, and watched.
QUIET_S = 2.0
_LEAST_S = 0.02


class LongList(WatchedCache[list[str]]):
    """A cache of names, `took` of which (counted since ever) were taken out by answered commits of ours; `value` still has those."""

    __slots__ = ("_count", "_creates", "_moved_s", "_noted", "_took", "_took_before", "_took_then")

    def __init__(self, tree: LeaderReads, path: str, changed: Thunk, took: Callable[[], int]) -> None:
        super().__init__(tree, tree.children, path, changed)
        self._took = took
        self._noted: int | None = None  # creations when the list that is on its way was asked for
        self._creates: int | None = None  # when `value` was, None: it is short, or nobody looked
        self._count = self._took_then = self._took_before = 0
        self._moved_s = -math.inf

    def refresh(self) -> None:
        """See `WatchedCache.refresh`."""
        if self._changed is not None and not self._reading and len(self.value or ()) >= LONG:
            self._tree.stat(self.path, self._note)  # it is answered before the list
        super().refresh()

    def _note(self, stat: Stat | None) -> None:
        self._noted = None if stat is None else stat.creates

    def _arrived(self, value: list[str] | None) -> None:
        self._creates, self._noted = self._noted if value is not None and len(value) >= LONG else None, None
        self._count, self._took_then = len(value or ()), self._took()
        self._took_before, self._moved_s = self._took_then, self._tree.clock()
        super()._arrived(value)

    def _failed(self) -> None:
        self._creates = self._noted = None
        super()._failed()

    def _fired(self) -> None:
        if self._creates is None or self._reading or self._changed is None:
            super()._fired()
            return
        self._armed = False
        if self._timer is None:
            self._timer = self._tree.after(max(0.0, self._read_s + self.pace_s - self._tree.clock()), self._due)

    def _due(self) -> None:
        self._timer = None
        if self._creates is None:
            self.refresh()
        elif self._changed is not None and not self._reading:
            self._read_s = self._tree.clock()
            self._tree.stat(self.path, self._looked, failed=self.refresh)

    def _looked(self, stat: Stat | None) -> None:
        if self._changed is None or self._reading:
            return  # the list itself is on its way
        took, now_s = self._took(), self._tree.clock()
        if took != self._took_before:
            self._took_before, self._moved_s = took, now_s
        left = self._count - (took - self._took_then)
        if stat is None or stat.creates != self._creates or stat.children != left or left < LONG or now_s - self._moved_s > QUIET_S:
            self.refresh()
        elif self._timer is None:
            self._timer = self._tree.after(max(_LEAST_S, self.pace_s), self._due)
