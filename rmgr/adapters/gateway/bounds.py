"""Counts what one stream of a gateway holds of its user's limits; a full gateway makes room for the user who holds less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds, Shares
from rmgr.errors import Throttled

T = TypeVar("T")

#: How long a stream or question that makes room for another user's may take for it.
_ROOM_S = 3.0
#: A request that is refused because there are too many of them takes so long, at least; and at most, where the process is strained.
_REFUSED_S, _REFUSED_MOST_S = 0.5, 2.0
#: How long a stream that is refused for its number waits, and how many do at once.
_SLOW_S, _MOST_SLOW = 1.0, 32
#: What a word costs, in reads: it is decoded and, mostly, a change; and a message without one, by which a client lives.
WORD_COST, PING_COST = 3.0, 0.1
#: Messages that are smaller are bounded by their number alone.
SMALL_BYTES = 256


class Guest(Protocol):
    """A stream or a question, as far as it makes room for others."""

    user: str

    def make_room(self) -> None: ...


def take_place(bounds: Bounds, name: str, places: Shares, caller: Caller, live: Callable[[], Sequence[Guest]], told: str = "") -> None:
    """Where all are taken, whoever has the most gives one up, if he has more than the caller then.

    Args: name: of the bound. live: who may make room, in any order. told: as in `Bounds.no_place`.
    Raises: QueueFull, LimitReached. May wait.
    """
    user = caller.user
    is_operator = not caller.is_open and caller.is_operator()
    if places.take(user, is_operator=is_operator):
        return
    greediest = places.greediest(user)
    his = [guest for guest in live() if guest.user == greediest] if greediest is not None else []
    if his:
        his[-1].make_room()
        if places.take(user, _ROOM_S, is_operator=is_operator):
            return
    raise bounds.no_place(name, user, places, told)


class Tarpit:
    """Delays the refusal of a client that opens streams too often, some at once: each try costs a handshake."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(_MOST_SLOW)

    def hold(self, error: Exception, over: threading.Event) -> None:
        """Waits a second, or until `over`, before a refusal of that kind is told."""
        if isinstance(error, Throttled) and self._places.acquire(blocking=False):
            over.wait(_SLOW_S)
            self._places.release()


class Booking:
    """Bytes of one stream, and words under way. Thread-safe; nothing is held after `close`."""

    def __init__(self, bounds: Bounds, user: str) -> None:
        self.user = user
        self._bounds = bounds
        self._lock = threading.RLock()
        self._bytes = 0
        self._under_way = 0
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

    def begin(self, asks: Sequence[T]) -> Sequence[T]:
        """He has said so many things, which are returned."""
        with self._lock:
            if asks and not self._closed:
                self._under_way += len(asks)
                self._bounds.begin(self.user, len(asks))
        return asks

    def end(self) -> None:
        """One of them is done."""
        with self._lock:
            if not self._closed:
                self._under_way -= 1
                self._bounds.end(self.user, 1)

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        with self._lock:
            self._closed = True
            if self._bytes:
                self._bounds.give_back("held_bytes", self.user, self._bytes)
            self._bounds.end(self.user, self._under_way)
            self._bytes = self._under_way = 0

    def wait_turn(self, size: int, over: threading.Event, pause: Callable[[bool], None], *, cost: float = WORD_COST) -> Throttled | None:
        """Waits until the user may say more, or `over`; why he may not, when that is too long. pause: told True before, False after."""
        late = None
        try:
            wait_s = self._bounds.wait_s(self.user, size, cost=cost)
        except Throttled as error:
            late, wait_s = error, min(_REFUSED_MOST_S, _REFUSED_S / self._bounds.ease)
        if wait_s > 0:
            pause(True)
            over.wait(wait_s)
            pause(False)
        return late
