"""Binary buddies: blocks of w^k processors, split on demand, merged with their buddies when all of them are free.

Source: section 5.3 of the paper (batch comparison). The smallest free block that is large enough is split, the leftmost of equals.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Buddies:
    """Free blocks of a machine of `width ** height` processors, of which the first `leaves` are real. Cost: O(height x width + blocks)."""

    __slots__ = ("_free", "height", "leaves", "width")

    def __init__(self, width: int, leaves: int) -> None:
        self.width, self.leaves, self.height = width, leaves, 0
        while width**self.height < leaves:
            self.height += 1
        self._free: list[list[int]] = [[] for _ in range(self.height + 1)]  # by k: first processors of free blocks, ascending
        self._free[self.height].append(0)

    def order(self, size: int) -> int:
        """k of the smallest block for this size."""
        k = 0
        while self.width**k < size:
            k += 1
        return k

    def take(self, size: int) -> int | None:
        """First processor of a block for this size; None where no free block has so many real processors."""
        k = self.order(size)
        for found in range(k, self.height + 1):
            first = next((block for block in self._free[found] if min(self.width**k, self.leaves - block) >= size), None)
            if first is not None:
                self._free[found].remove(first)
                for j in range(found - 1, k - 1, -1):
                    for at in range(1, self.width):
                        insort(self._free[j], first + at * self.width**j)
                return first
        return None

    def take_at(self, first: int, size: int) -> bool:
        """Takes exactly this block, split out of the free block around it; False where it is not free."""
        k = self.order(size)
        if first % self.width**k:
            return False
        for j in range(k, self.height + 1):
            start = first - first % self.width**j
            at = bisect_left(self._free[j], start)
            if at < len(self._free[j]) and self._free[j][at] == start:
                del self._free[j][at]
                for i in range(j - 1, k - 1, -1):
                    mine = first - first % self.width**i
                    for other in range(start, start + self.width ** (i + 1), self.width**i):
                        if other != mine:
                            insort(self._free[i], other)
                    start = mine
                return True
        return False

    def give(self, first: int, size: int) -> None:
        """The block is free again, and merges."""
        k = self.order(size)
        while k < self.height:
            step = self.width**k
            start = first - first % (step * self.width)
            buddies = [start + at * step for at in range(self.width) if start + at * step != first]
            free = self._free[k]
            places = [bisect_left(free, buddy) for buddy in buddies]
            if not all(at < len(free) and free[at] == buddy for at, buddy in zip(places, buddies, strict=True)):
                break
            for at in reversed(places):
                del free[at]
            first, k = start, k + 1
        insort(self._free[k], first)

    def free(self) -> list[tuple[int, int]]:
        """(first processor, size) of every free block, ascending."""
        return sorted((first, self.width**k) for k, blocks in enumerate(self._free) for first in blocks)
