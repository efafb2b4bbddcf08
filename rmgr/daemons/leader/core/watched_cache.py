"""One znode, or one list of children, kept in memory: read, watched, read again when the watch fires.

A watch is a hint: it is one-shot, changes in between are not seen, and none arrives while the link is down (then all
fire at once). So a cache always reads the present state, at most once per `pace_s`, and never counts events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rmgr.coord.protocol.multi import Stamped
from rmgr.daemons.leader.core.doors import LeaderReads, Thunk
from rmgr.runtime import machine
from rmgr.runtime.mailbox import Timer

T = TypeVar("T", Stamped, list[str])

_RETRY_S = 1.0


class WatchedCache(Generic[T]):
    """Cached content of `path`: `value` (None: nothing there), once `is_known`.

    Args:
        ask: `tree.get` or `tree.children` (see `data_of`, `names_below`).
        changed: called after each read whose value differs from the one before, and after the first.
    Attributes: pace_s: least time between two reads. is_watched: False: no more watches are set.
    asked_s: when the read of `value` was sent.
    is_chatty: `changed` is called after every read: what came and went between two reads leaves no difference.
    """

    __slots__ = (
        "_armed",
        "_ask",
        "_changed",
        "_read_s",
        "_reading",
        "_stale",
        "_timer",
        "_tree",
        "asked_s",
        "is_chatty",
        "is_known",
        "is_watched",
        "pace_s",
        "path",
        "value",
    )

    def __init__(self, tree: LeaderReads, ask: Callable[..., None], path: str, changed: Thunk) -> None:
        self.path = path
        self.value: T | None = None
        self.is_known = False
        self._tree = tree
        self._ask = ask
        self._changed: Thunk | None = changed
        self.is_chatty = False
        self.is_watched = True
        self.pace_s = 0.0
        self._read_s = self.asked_s = float("-inf")
        self._reading = False
        self._stale = False  # asked for again while a read was on its way
        self._armed = False  # a watch of ours is set on the server
        self._timer: Timer | None = None

    def refresh(self) -> None:
        """Reads now (a read that is on its way is followed by another)."""
        if self._changed is None:
            return
        if self._reading:
            self._stale = True
            return
        self._cancel_timer()
        self._reading = True
        self._read_s = self._tree.clock()
        watch = self._fired if self.is_watched and not self._armed else None
        self._armed = self._armed or watch is not None
        self._ask(self.path, self._arrived, watch=watch, failed=self._failed)

    def hurry(self) -> bool:
        """What the pace has put off is read now. Returns: a read is on its way."""
        if self._timer is not None:
            self.refresh()
        return self._reading

    def stop(self) -> None:
        """Forgets everything; no callback follows."""
        self._changed = None
        self._cancel_timer()

    def _fired(self) -> None:
        self._armed = False
        if self._changed is None:
            return
        wait_s = self._read_s + self.pace_s - self._tree.clock()
        if wait_s <= 0 or self._reading:
            self.refresh()
        elif self._timer is None:
            self._timer = self._tree.after(wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self.refresh()

    def _arrived(self, value: T | None) -> None:
        self._reading = False
        if self._changed is None:
            return
        differs = self.is_chatty or not self.is_known or not _same(self.value, value)
        self.value, self.is_known, self.asked_s = value, True, self._read_s
        if self._stale:
            self._stale = False
            self.refresh()
        if differs:
            self._changed()

    def _failed(self) -> None:
        self._reading = False
        self._stale = False
        self._armed = False  # perhaps it was set: then a second one costs nothing
        if self._changed is not None and self._timer is None:
            self._timer = self._tree.after(_RETRY_S * machine.uniform(0.5, 1.5), self._due)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def data_of(tree: LeaderReads, path: str, changed: Thunk) -> WatchedCache[Stamped]:
    """A cache of the data and stat of a znode."""
    return WatchedCache(tree, tree.get, path, changed)


def names_below(tree: LeaderReads, path: str, changed: Thunk) -> WatchedCache[list[str]]:
    """A cache of the names of the children of a znode."""
    return WatchedCache(tree, tree.children, path, changed)


def _same(old: T | None, new: T | None) -> bool:
    if isinstance(old, Stamped) and isinstance(new, Stamped):
        return old.stat == new.stat
    return old is new or (isinstance(old, list) and isinstance(new, list) and sorted(old) == sorted(new))
