"""Virtual time: a heap of events in exact integer microseconds, handed out one instant at a time in a fixed order.

At one instant (papers.md, common rules): completions, what happens to nodes, arrivals, timers; then the caller's one pass.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Generic, TypeAlias, TypeVar

What = TypeVar("What")


class Rank(IntEnum):
    """Order of events at one instant: what frees resources, before what asks for them."""

    END = 0
    NODE = 1
    ARRIVAL = 2
    TIMER = 3


#: (time in us, rank, serial, what happens): compared by the first three. A bare tuple: two are made for every job.
Event: TypeAlias = tuple[int, int, int, What]


class Kernel(Generic[What]):
    """The events to come and the time it is.

    Events of one time and rank come in the order of `serial`: the caller's own (a job number), so that the order in which
    they were put in changes nothing. Two events never share time, rank and serial.
    """

    __slots__ = ("_heap", "now_us")

    def __init__(self) -> None:
        self._heap: list[Event[What]] = []
        self.now_us = 0

    def put(self, time_us: int, rank: int, serial: int, what: What) -> None:
        """Adds an event. Raises ValueError for the past. Cost: O(log n)."""
        if time_us < self.now_us:
            raise ValueError(f"an event at {time_us} us lies before now, {self.now_us} us")
        heappush(self._heap, (time_us, rank, serial, what))

    def advance(self) -> bool:
        """Moves to the time of the next event; False when there is none. Cost: O(1)."""
        if not self._heap:
            return False
        self.now_us = self._heap[0][0]
        return True

    def next(self) -> Event[What] | None:
        """The next event of the instant it is, in order; those put in meanwhile for now come, too. None: it is over."""
        heap = self._heap
        return heappop(heap) if heap and heap[0][0] == self.now_us else None

    def __len__(self) -> int:
        return len(self._heap)
