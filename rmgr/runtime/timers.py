"""Timers as data: a heap of due times that somebody else waits on. No thread, no clock of its own."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

M = TypeVar("M")


class Timer:
    """One message to be delivered once. `due_s`: monotonic seconds."""

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
    """Timers in the order of their due times, equal ones in the order of their making. Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Due[M]]] = []
        self._made = 0

    def add(self, due_s: float, message: M) -> Due[M]:
        """Cost: O(log n)."""
        timer = Due(due_s, message)
        self._made += 1
        heapq.heappush(self._heap, (due_s, self._made, timer))
        return timer

    def next_s(self) -> float | None:
        """When the next timer is due, None without one."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Due[M] | None:
        """The next timer that is due at `now_s`."""
        due = self.next_s()
        if due is None or due > now_s:
            return None
        timer = heapq.heappop(self._heap)[2]
        timer.cancelled = True
        return timer

    def clear(self) -> None:
        """Forgets all."""
        self._heap.clear()

    def __len__(self) -> int:
        return sum(not entry[2].cancelled for entry in self._heap)
