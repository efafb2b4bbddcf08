"""Counts what one stream of a gateway holds of its user's limits; a full gateway makes room for the user who holds less."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds, Shares
from rmgr.errors import Throttled

#: Seconds that a stream may take to make room for another user's.
_ROOM_S = 3.0
#: Seconds that the stream of a user who asks for more than allowed stands still before it ends.
_REFUSED_S = 0.5
#: Smaller messages are bounded by their number alone.
SMALL_BYTES = 256


class Guest(Protocol):
    """A stream that can make room for others."""

    user: str

    def make_room(self) -> None: ...


def take_place(bounds: Bounds, places: Shares, caller: Caller, live: Callable[[], list[Guest]]) -> None:
    """Takes a place for the caller. If all are taken, the user with the most gives one up, if that is more than the caller would have.

    live: streams, in any order. Raises: QueueFull, LimitReached. May wait.
    """
    user = caller.user
    if places.take(user, is_operator=caller.is_certified_operator):
        return
    greediest = places.greediest(user)
    his = [session for session in live() if session.user == greediest] if greediest is not None else []
    if his:
        his[-1].make_room()
        if places.take(user, _ROOM_S, is_operator=caller.is_certified_operator):
            return
    raise bounds.no_place("sessions", user, places, f"this gateway serves {places.most} clients already")


class Booking:
    """Bytes of one stream. Thread-safe; nothing is held after `close`."""

    def __init__(self, bounds: Bounds, user: str) -> None:
        self.user = user
        self._bounds = bounds
        self._lock = threading.RLock()
        self._bytes = 0
        self._closed = False

    def has_room(self) -> bool:
        """Returns whether the user holds fewer bytes than allowed."""
        return self._bounds.has_room("held_bytes", self.user)

    def book(self, size: int) -> None:
        """Counts `size` bytes as held for the user."""
        if size >= SMALL_BYTES:
            with self._lock:
                if not self._closed:
                    self._bytes += size
                    self._bounds.hold("held_bytes", self.user, size)

    def release(self, size: int) -> None:
        """Releases bytes booked by one call, or by several calls that were each at least `SMALL_BYTES`."""
        if size >= SMALL_BYTES:
            with self._lock:
                if not self._closed:
                    self._bytes -= size
                    self._bounds.give_back("held_bytes", self.user, size)

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        with self._lock:
            self._closed = True
            if self._bytes:
                self._bounds.give_back("held_bytes", self.user, self._bytes)
            self._bytes = 0

    def wait_turn(self, size: int, count: int, over: threading.Event) -> None:
        """Waits until the user may say `count` more words, or `over`. Raises Throttled if that would take too long."""
        try:
            wait_s = self._bounds.wait_s(self.user, size, cost=count)
        except Throttled:
            over.wait(_REFUSED_S)
            raise
        if wait_s > 0:
            over.wait(wait_s)
