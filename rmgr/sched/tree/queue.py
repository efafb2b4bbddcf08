"""A run queue: entries in a ring, each task with as many adjacent entries as its weight; time passes in quanta of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Newcomers(StrEnum):
    """Time of the first service of a task that comes to an empty queue. `next_round`: once the root begins its next round."""

    THIS_ROUND = "this_round"
    NEXT_ROUND = "next_round"


class RunQueue:
    """Entries in the order of service. `turns` quanta have been handed out; nothing is moved until somebody looks.

    Cost: of handing out any number of quanta O(1); of a change or a look at the order O(entries).
    """

    __slots__ = ("_at", "_rest", "entries", "first_end", "turns")

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.turns = 0  #: quanta handed out so far
        self.first_end = -1  #: `turns` at which the first task has all it needs; -1: the queue is empty
        self._at = 0  # `turns` for which `entries` and `_rest` hold
        self._rest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, task: int) -> bool:
        return task in self._rest

    def add(self, task: int, quanta: int, weight: int) -> None:
        """To the tail."""
        self.look()
        self._rest[task] = quanta
        self.entries.extend([task] * weight)
        self._find_end()

    def append(self, task: int, quanta: int, weight: int) -> None:
        """More entries to the tail, also of a task that is in it already (its entries then stand apart)."""
        self.look()
        self._rest[task] = quanta
        self.entries.extend([task] * weight)

    def need(self, task: int, quanta: int) -> None:
        """The task needs so many quanta from now on. Raises: KeyError for a task that is not in it."""
        self.look()
        if task not in self._rest:
            raise KeyError(task)
        self._rest[task] = quanta
        self._find_end()

    def copy(self) -> RunQueue:
        """An equal one."""
        new = RunQueue()
        new.entries, new._rest = self.entries[:], dict(self._rest)
        new.turns, new.first_end, new._at = self.turns, self.first_end, self._at
        return new

    def close(self) -> RunQueue:
        """Ends a series of `append`."""
        self._find_end()
        return self

    def remove(self, task: int, within: int = 0) -> int:
        """The task leaves; answers how many of the first `within` entries are left. Raises: KeyError for a task that is not in it."""
        self.look()
        del self._rest[task]
        left = sum(entry != task for entry in self.entries[:within])
        self.entries = [entry for entry in self.entries if entry != task]
        self._find_end()
        return left

    def finished(self) -> list[int]:
        """Tasks that have all they need, in the order of service."""
        if not self.entries or self.first_end > self.turns:
            return []
        self.look()
        return [task for task in dict.fromkeys(self.entries) if self._rest[task] <= 0]

    def look(self) -> Sequence[int]:
        """Entries as they stand now."""
        passed, self._at = self.turns - self._at, self.turns
        if passed and self.entries:
            rounds, ahead = divmod(passed, len(self.entries))
            rest = self._rest
            if rounds:
                for task in self.entries:
                    rest[task] -= rounds
            for task in self.entries[:ahead]:
                rest[task] -= 1
            if ahead:
                self.entries = self.entries[ahead:] + self.entries[:ahead]
        return self.entries

    def rest(self) -> dict[int, int]:
        """Task -> quanta that it still needs."""
        self.look()
        return self._rest

    def _find_end(self) -> None:
        """When the first task ends if nothing changes: its last quantum is that of its entry (rest - 1) mod weight, rounds later."""
        length, first = len(self.entries), -1
        if len(self._rest) == length:
            for at, task in enumerate(self.entries):
                end = (self._rest[task] - 1) * length + at + 1
                if first < 0 or end < first:
                    first = end
        else:
            places: dict[int, list[int]] = {}
            for at, task in enumerate(self.entries):
                places.setdefault(task, []).append(at)
            for task, found in places.items():
                rounds, last = divmod(self._rest[task] - 1, len(found))
                end = rounds * length + found[last] + 1
                if first < 0 or end < first:
                    first = end
        self.first_end = first if first < 0 else self.turns + max(first, 0)
