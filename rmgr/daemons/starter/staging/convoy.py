"""Small things that go to the data store together: a job on an IO thread takes along what has gathered by the time it begins.

So one alone goes at once, and the busier the store is, the more of them share a round trip. A job that meets a store that is
away keeps what it has, for when it is tried again, and gives its place to the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.errors import StoreUnavailable

T = TypeVar("T")


class _Load(Generic[T]):
    """What one job carries, from its first try on."""

    __slots__ = ("has_place", "items", "size")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.size = 0
        self.has_place = True


#: Jobs at once.
_ABREAST = 2


class Convoy(Generic[T]):
    """Items on their way to the store or from it. `add` from any thread.

    Args:
        carry: does it for some items, on an IO thread; tried again with the same ones while it raises StoreUnavailable.
        arrived: gets these items and what `carry` has returned or raised, on the owner's thread. False: no node has to settle.
        weight: of an item. most: weight that one job takes, if not a single item has more.
        is_read: work cannot start before it.
    """

    def __init__(
        self,
        io: StoreIO,
        carry: Callable[[Store, list[T]], Any],
        arrived: Callable[[list[T], Any], bool],
        *,
        weight: Callable[[T], int],
        most: int,
        is_read: bool = False,
    ) -> None:
        self._io = io
        self._carry = carry
        self._arrived = arrived
        self._weight = weight
        self._most = most
        self._is_read = is_read
        self._lock = threading.Lock()
        self._waiting: deque[tuple[T, int]] = deque()
        self._under_way = 0

    def add(self, item: T, *, size: int = 0) -> None:
        """It goes with the next job. size: bytes that wait for the store with it."""
        if size:
            self._io.count(size)
        with self._lock:
            self._waiting.append((item, size))
            if self._under_way >= _ABREAST:
                return
            self._under_way += 1
        self._send()

    def _send(self) -> None:
        load: _Load[T] = _Load()
        self._io.run(partial(self._try, load), partial(self._over, load), is_read=self._is_read, tells=True)

    def _try(self, load: _Load[T], store: Store) -> Any:
        if not load.items:
            self._take(load)
        try:
            return self._carry(store, load.items) if load.items else None
        except StoreUnavailable:
            if self._gave_up_place(load):
                self._send()  # each is tried once, so that it can move what it holds to disk
            raise

    def _take(self, load: _Load[T]) -> None:
        weight = 0
        with self._lock:
            while self._waiting:
                weight += self._weight(self._waiting[0][0])
                if load.items and weight > self._most:
                    return
                item, size = self._waiting.popleft()
                load.items.append(item)
                load.size += size

    def _gave_up_place(self, load: _Load[T]) -> bool:
        """Its place is given up, or passed on. True: to another job, which is to be sent now."""
        with self._lock:
            if not load.has_place:
                return False
            load.has_place = False
            if not self._waiting:
                self._under_way -= 1
            return bool(self._waiting)

    def _over(self, load: _Load[T], result: Any) -> bool:
        if load.size:
            self._io.count(-load.size)
        if self._gave_up_place(load):
            self._send()
        return bool(load.items) and self._arrived(load.items, result)
