"""Profile of one node from now on: steps in time, each with free cores, memory and other resources."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from rmgr.sched.capacity.pool_node import room_beside, room_on
from rmgr.sched.job import PLAIN, Node, Resources, Shape

#: (since, until, processes): so many more than in the gaps around it.
Gap = tuple[int, int, int]
#: Later than any time.
NEVER = 1 << 100


class NodeProfile:
    """From `times[i]` until `times[i + 1]`, the last for ever, `cores[i]`, `memory[i]` and `others[name][i]` are free.

    Below 0: promised and not there.
    """

    __slots__ = ("cores", "memory", "others", "times")

    def __init__(self, now_us: int, cores: int, memory: int) -> None:
        self.times, self.cores, self.memory = [now_us], [cores], [memory]
        self.others: dict[str, list[int]] = {}

    def copy(self) -> NodeProfile:
        """Changes to one do not touch the other."""
        other = NodeProfile.__new__(NodeProfile)
        other.times, other.cores, other.memory = self.times.copy(), self.cores.copy(), self.memory.copy()
        other.others = {name: free.copy() for name, free in self.others.items()} if self.others else self.others
        return other

    def append(self, at_us: int, cores: int, memory: int, others: Mapping[str, int] | None = None) -> None:
        """So much is free from `at_us` on, no earlier than the last step."""
        if self.times[-1] == at_us:
            self.cores[-1], self.memory[-1] = cores, memory
            for name in others or ():
                self.others[name].pop()
        else:
            self.times.append(at_us)
            self.cores.append(cores)
            self.memory.append(memory)
        if others:
            for name, free in others.items():
                self.others[name].append(free)

    def add(self, start_us: int, end_us: int, cores: int, memory: int) -> None:
        """So much more (or, below 0, less) is free in between; what lies before the first step is left out."""
        low = self._cut(start_us)
        for i in range(low, self._cut(end_us)):
            self.cores[i] += cores
            self.memory[i] += memory

    def add_others(self, start_us: int, end_us: int, resources: Resources, times: int) -> None:
        """As `add`, so often these."""
        low = self._cut(start_us)
        high = self._cut(end_us)
        for name, count in resources:
            free = self.others.get(name)
            if free is not None:
                free[low:high] = [left + times * count for left in free[low:high]]

    def lowest_others(self, start_us: int, end_us: int) -> dict[str, tuple[int]]:
        """As `lowest`, of other resources: name -> (how many,)."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return {name: (min(free[low:high]),) for name, free in self.others.items()}

    def lowest(self, start_us: int, end_us: int) -> tuple[int, int]:
        """Cores and memory that are free from `start_us`, no earlier than the first step, until `end_us`."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return min(self.cores[low:high]), min(self.memory[low:high])

    def gaps(self, shape: Shape, node: Node) -> list[Gap]:
        """When processes of this shape fit, each for as long as possible: at any time as many as the gaps open then add up to.

        Gaps of a node lie within each other or apart, so during an interval as many fit as there are in gaps that hold all of it.
        """
        if node.closed:
            return []
        if shape is PLAIN:
            rooms = self.cores
        elif shape.special is not None:
            rooms = [room_on(shape, node, cores, memory) for cores, memory in zip(self.cores, self.memory, strict=True)]
            rooms = [room_beside(room, shape.resources, self.others, i) for i, room in enumerate(rooms)]
        else:
            rooms = [room_on(shape, node, cores, memory) for cores, memory in zip(self.cores, self.memory, strict=True)]
        found: list[Gap] = []
        if len(rooms) == 1:
            return [(self.times[0], NEVER, rooms[0])] if rooms[0] > 0 else found
        heights, starts = [0], [0]  # of gaps that are open, the lowest first
        for at, room in zip(self.times, rooms, strict=True):
            since = at
            while heights[-1] > room and len(heights) > 1:
                since, height = starts.pop(), heights.pop()
                found.append((since, at, height - max(room, heights[-1])))
            if room > heights[-1]:
                heights.append(room)
                starts.append(since)
        while len(heights) > 1:
            since, height = starts.pop(), heights.pop()
            found.append((since, NEVER, height - heights[-1]))
        return found

    def _cut(self, at_us: int) -> int:
        times = self.times
        i = bisect_left(times, at_us)
        if i == 0:
            return 0
        if i == len(times) or times[i] != at_us:
            times.insert(i, at_us)
            self.cores.insert(i, self.cores[i - 1])
            self.memory.insert(i, self.memory[i - 1])
            for free in self.others.values() if self.others else ():
                free.insert(i, free[i - 1])
        return i
