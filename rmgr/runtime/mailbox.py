"""The mailbox: facts from any thread, taken out by the one thread that owns the state.

Timers are delivered from the wait itself (`timers.py`), so there is no thread per timer. A *wake* is a level-triggered
hint: however often it is raised before it is taken out, it arrives once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from rmgr.runtime import machine
from rmgr.runtime.timers import Timer, Timers

M = TypeVar("M")


class Closed(Exception):
    """The mailbox was closed and everything in it has been taken out."""


class Mailbox(Generic[M]):
    """A queue with many senders and one owner. A message is never None: that is what `get` says when there is none.

    Args:
        clock: monotonic seconds; tests pass their own and call `get` with a deadline of 0.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or machine.monotonic
        self._messages: deque[M] = deque()
        self._raised: dict[Hashable, M] = {}
        self._timers: Timers[M] = Timers()
        self._arrived = threading.Condition(threading.Lock())
        self._waiting = False
        self._closed = False

    # -- from any thread

    def put(self, message: M) -> None:
        """Adds a message; never blocks. Dropped when the mailbox is closed. Cost: O(1), about 1 us."""
        with self._arrived:
            if self._closed:
                return
            self._messages.append(message)
            if self._waiting:
                self._arrived.notify()

    def wake(self, message: M, key: Hashable | None = None) -> None:
        """Adds `message` unless one of the same key (default: the message itself) is still inside."""
        with self._arrived:
            if self._closed:
                return
            token: Hashable = message if key is None else key
            if token in self._raised:
                return
            self._raised[token] = message
            self._messages.append(_Wake(token))  # type: ignore[arg-type]
            if self._waiting:
                self._arrived.notify()

    def after(self, delay_s: float, message: M) -> Timer:
        """Delivers `message` in `delay_s` seconds; `Timer.cancel()` prevents it. Cost: O(log timers)."""
        with self._arrived:
            timer = self._timers.add(self._clock() + delay_s, message)
            if self._waiting and self._timers.next_s() == timer.due_s:
                self._arrived.notify()
            return timer

    def close(self) -> None:
        """Accepts nothing more; the owner still gets what is inside, then `Closed`. Timers are dropped."""
        with self._arrived:
            self._closed = True
            self._timers.clear()
            self._arrived.notify_all()

    def __len__(self) -> int:
        return len(self._messages)

    def due_s(self) -> float | None:
        """When the next timer is due (on the mailbox's clock), None without one."""
        with self._arrived:
            return self._timers.next_s()

    # -- from the owner

    def get(self, timeout_s: float | None = None) -> M | None:
        """The next message or due timer; None when none came within `timeout_s` (None: waits for ever).

        Messages come in the order of `put`; a due timer comes before messages that wait, so that a flood delays no deadline.
        Raises: Closed.
        """
        end = None if timeout_s is None else self._clock() + timeout_s
        with self._arrived:
            while True:
                now = self._clock()
                due = self._timers.pop_due(now)
                if due is not None:
                    return due.message
                if self._messages:
                    return self._open(self._messages.popleft())
                if self._closed:
                    raise Closed
                if end is not None and now >= end:
                    return None
                self._wait(end, now)

    def drain(self, limit: int = 1000) -> Iterator[M]:
        """What is inside now, without waiting, at most `limit` messages."""
        for _ in range(limit):
            try:
                message = self.get(0)
            except Closed:
                return
            if message is None:
                return
            yield message

    def _wait(self, end: float | None, now: float) -> None:
        due = self._timers.next_s()
        until = due if end is None else end if due is None else min(end, due)
        self._waiting = True
        try:
            self._arrived.wait(None if until is None else max(0.0, until - now))
        finally:
            self._waiting = False

    def _open(self, message: M) -> M:
        return self._raised.pop(message.token) if isinstance(message, _Wake) else message


class _Wake:
    """Stands in the queue for a raised hint."""

    __slots__ = ("token",)

    def __init__(self, token: Hashable) -> None:
        self.token = token
