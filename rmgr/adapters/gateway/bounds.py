"""Counts what one stream of a gateway holds of its user's limits; a full gateway makes room for the user who holds less."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds, Shares
from rmgr.errors import Throttled

#: How long a stream that makes room for another user's may take for it.
_ROOM_S = 3.0
#: How long a stream stands still whose user asks for more than he may have, before it ends.
_REFUSED_S = 0.5
#: Messages that are smaller are bounded by their number alone.
SMALL_BYTES = 256


class Guest(Protocol):
    """A stream, as far as it makes room for others."""

    user: str

    def make_room(self) -> None: ...


def take_place(bounds: Bounds, places: Shares, caller: Caller, live: Callable[[], list[Guest]]) -> None:
    """Where all are taken, whoever has the most gives one up, if he has more than the caller then.

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
        """His user holds fewer bytes than he may."""
        return self._bounds.has_room("held_bytes", self.user)

    def book(self, size: int) -> None:
        """So many bytes are held for him."""
        if size >= SMALL_BYTES:
            with self._lock:
                if not self._closed:
                    self._bytes += size
                    self._bounds.hold("held_bytes", self.user, size)

    def release(self, size: int) -> None:
        """What was booked with one call, or the sum of several that were not small."""
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
        """Waits until the user may say so many words more, or `over`. Raises Throttled where that is too long."""
        try:
            wait_s = self._bounds.wait_s(self.user, size, cost=count)
        except Throttled:
            over.wait(_REFUSED_S)
            raise
        if wait_s > 0:
            over.wait(wait_s)
