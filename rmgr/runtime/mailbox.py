"""The mailbox: facts from any thread, taken out by the one thread that owns the state; its timers, its loop, and signals as messages.

Timers are delivered from the wait itself, so timers need no threads. A *wake* is a level-triggered hint: however often it is raised before
it is taken out, it arrives once. The loop of a daemon or a client takes messages out of one mailbox, and their owner handles each
(`run_loop`). A simulation gives the same owners their turns itself, one after another, in one thread: only `Mailbox.get` ever waits.

SIGTERM and SIGINT go into the mailbox; the second one of a kind ends the process at once (`SignalMessages`). Python runs a handler in the
main thread between two byte codes, even while that thread holds the mailbox's lock. So the handler only writes a byte into a pipe, and a
small thread puts the message.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from rmgr.runtime import machine

M = TypeVar("M")
T = TypeVar("T")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Closed(Exception):
    """The mailbox was closed and is empty."""


class Mailbox(Generic[M]):
    """A queue with many senders and one owner. A message is never None, which `get` returns for no message.

    Args:
        clock: monotonic seconds; tests pass their own and call `get` with a timeout of 0.
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
        """Adds a message, unless the mailbox is closed; never blocks. Cost: O(1), about 1 us."""
        with self._arrived:
            if self._closed:
                return
            self._messages.append(message)
            if self._waiting:
                self._arrived.notify()

    post = put  # as stories call it

    def ask(self: Mailbox[Callable[[], object]], question: Callable[[], T]) -> Future[T]:
        """Returns the owner's answer, once it has called `question`."""
        answer: Future[T] = Future()
        self.put(lambda: fulfil(answer, question))
        return answer

    def wake(self, message: M, key: Hashable | None = None) -> None:
        """Adds `message` unless one with the same key (default: the message itself) is still inside."""
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
        """Accepts nothing more; the owner still gets the messages inside, then `Closed`. Drops timers."""
        with self._arrived:
            self._closed = True
            self._timers.clear()
            self._arrived.notify_all()

    def __len__(self) -> int:
        return len(self._messages)

    def due_s(self) -> float | None:
        """Returns when the next timer is due (on the mailbox's clock), None without one."""
        with self._arrived:
            return self._timers.next_s()

    # -- from the owner

    def get(self, timeout_s: float | None = None) -> M | None:
        """Returns the next message or due timer; None if none came within `timeout_s` (None: waits for ever).

        Messages come in the order of `put`; a due timer comes before waiting messages, so that a flood delays no deadline.
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
        """Yields the messages inside now, without waiting, at most `limit`."""
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


def fulfil(answer: Future[T], call: Callable[[], T]) -> None:
    """Gives `answer` what the call returns, or the exception that it raises."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - it belongs to who has asked, and waits for it
        answer.set_exception(error)
    else:
        answer.set_result(result)


class _Wake:
    """Stands in the queue for a raised hint."""

    __slots__ = ("token",)

    def __init__(self, token: Hashable) -> None:
        self.token = token


class Timer:
    """One message to be delivered once. due_s: monotonic seconds."""

    __slots__ = ("cancelled", "due_s")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.cancelled = False

    def cancel(self) -> None:
        """Prevents the delivery; harmless afterwards. From any thread."""
        self.cancelled = True


class Due(Timer, Generic[M]):
    """A timer with its message."""

    __slots__ = ("message",)

    def __init__(self, due_s: float, message: M) -> None:
        super().__init__(due_s)
        self.message = message


class Timers(Generic[M]):
    """Timers as data, on which another object waits: without thread or clock.

    In the order of their due times, equal ones in the order of their making. Not thread-safe.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due[M]]] = []
        self._made = 0

    def add(self, due_s: float, message: M) -> Due[M]:
        """Adds a timer. Cost: O(log n)."""
        timer = Due(due_s, message)
        self._made += 1
        heapq.heappush(self._heap, (due_s, self._made, timer))
        return timer

    def next_s(self) -> float | None:
        """Returns when the next timer is due, None without one."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Due[M] | None:
        """Takes the next timer that is due at `now_s`, None if there is none."""
        due = self.next_s()
        if due is None or due > now_s:
            return None
        timer = heapq.heappop(self._heap)[2]
        timer.cancelled = True
        return timer

    def clear(self) -> None:
        """Forgets all timers."""
        self._heap.clear()

    def __len__(self) -> int:
        return sum(not entry[2].cancelled for entry in self._heap)


class LoopOwner(Protocol[M]):
    """The owner of a state that only its messages change."""

    @property
    def mailbox(self) -> Mailbox[M]:
        """The mailbox for its messages."""
        ...

    def wait_s(self) -> float | None:
        """Returns the seconds that it may wait for the next message; None: for ever. Called before each wait."""
        ...

    def turn(self, message: M | None) -> bool:
        """Handles a message; None: none came within `wait_s`. Returns: False if the loop is over."""
        ...


def run_loop(owner: LoopOwner[M]) -> None:
    """Gives the owner turns until it ends the loop, or its mailbox is closed and empty. Cost: about 0.2 us a turn besides the mailbox."""
    mailbox, wait_s, turn = owner.mailbox, owner.wait_s, owner.turn
    try:
        while turn(mailbox.get(wait_s())):
            pass
    except Closed:
        return


class SignalMessages:
    """Catches signals and reports each to `deliver` (from its own thread).

    Args:
        deliver: gets the signal; puts a message into a mailbox.
        signals: those to catch.
        patience: how often the same stop signal is delivered before the next one ends the process with 128 + N.
    """

    def __init__(
        self, deliver: Callable[[signal.Signals], None], signals: Sequence[signal.Signals] = STOP_SIGNALS, *, patience: int = 1
    ) -> None:
        self._deliver = deliver
        self._signals = tuple(signals)
        self._patience = patience
        self._seen: dict[int, int] = {}
        self._previous: dict[signal.Signals, Any] = {}
        self._read, self._write = -1, -1

    def install(self) -> None:
        """Takes over the signals. Main thread only."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(target=self._pass_on, args=(self._read,), name="signals", daemon=True).start()

    def restore(self) -> None:
        """Gives the signals back. Main thread only. Idempotent."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous.clear()
        if self._write >= 0:
            os.close(self._write)  # the thread reads the end of the pipe, closes its side and ends
            self._write = -1

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._seen[number] = self._seen.get(number, 0) + 1
        if number in STOP_SIGNALS and self._seen[number] > self._patience:
            os._exit(128 + number)
        with contextlib.suppress(OSError):  # full or closed: the message is already there, or is not read any more
            os.write(self._write, bytes([number]))

    def _pass_on(self, source: int) -> None:
        while numbers := os.read(source, 64):
            for number in numbers:
                self._deliver(signal.Signals(number))
        os.close(source)
