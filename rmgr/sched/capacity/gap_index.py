"""Finds times and nodes at which processes of one shape fit: gaps of all nodes, sorted by when they begin, classed by how long they last.

A job asks for gaps that last as long as its limit, in order of time, until as many are open at once as it has processes. Before the time
it gets there are few of these: what is free between promises is short. Hence a question costs O(gaps of that length before the answer).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge

from rmgr.sched.capacity.node_profile import Gap, NodeProfile
from rmgr.sched.job import Job, Node, Shape

#: (since, position of the node, until, processes)
Entry = tuple[int, int, int, int]
#: In a class the longest gap is 4 times the shortest. The first class has all up to two minutes, the last one all from half a year on.
_SHORTEST, _CLASSES = 13, 11


class GapIndex:
    """Gaps of one shape, of every node of a partition."""

    __slots__ = ("_classes", "_gaps", "_nodes", "at", "shape")

    def __init__(self, shape: Shape, nodes: Sequence[Node], profiles: Sequence[NodeProfile], at: int) -> None:
        self.shape, self._nodes = shape, nodes
        self.at = at  #: as of this entry of the log of changes
        self._classes: list[list[Entry]] = [[] for _ in range(_CLASSES)]
        self._gaps: list[list[Gap]] = []  #: by position
        for i, profile in enumerate(profiles):
            gaps = profile.gaps(shape, nodes[i])
            self._gaps.append(gaps)
            for since, until, processes in gaps:
                self._classes[_class_of(until - since)].append((since, i, until, processes))
        for entries in self._classes:
            entries.sort()

    def update(self, positions: Iterable[int], profiles: Sequence[NodeProfile]) -> None:
        """These nodes have changed."""
        for i in positions:
            old, new = self._gaps[i], profiles[i].gaps(self.shape, self._nodes[i])
            self._gaps[i] = new
            for gap in old:
                if gap not in new:
                    since, until, processes = gap
                    entries = self._classes[_class_of(until - since)]
                    del entries[bisect_left(entries, (since, i, until, processes))]
            for gap in new:
                if gap not in old:
                    since, until, processes = gap
                    insort(self._classes[_class_of(until - since)], (since, i, until, processes))

    def opening(self, job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]) -> tuple[int, Mapping[int, int]] | None:
        """The first time from which enough processes fit for the job's limit, with how many on which node.

        Args: profiles: what was indexed, of which the job's shape needs no less. other: of nodes, by position, that count in place of it.
        """
        length_us, wanted = job.planned_us, job.processes
        now_us, count = -1, 0
        room: dict[int, int] = {}
        closing: list[tuple[int, int, int]] = []  # (last start, position, processes), a heap
        for since, i, until, processes in self._from(job, profiles, other):
            last = until - length_us
            if last < since:
                continue
            if since > now_us:
                if count >= wanted:
                    break
                now_us = since
                while closing and closing[0][0] < since:
                    _, gone, less = heappop(closing)
                    count -= less
                    room[gone] -= less
            heappush(closing, (last, i, processes))
            count += processes
            room[i] = room.get(i, 0) + processes
        return (now_us, room) if count >= wanted else None

    def open_at(self, first_us: int, length_us: int) -> dict[int, int]:
        """How many processes fit on which node from the first step on for so long. O(gaps that are open then)."""
        room: dict[int, int] = {}
        for entries in self._classes[_class_of(length_us) :]:
            for since, i, until, processes in entries:
                if since != first_us:
                    break
                if until - since >= length_us:
                    room[i] = room.get(i, 0) + processes
        return room

    def _from(self, job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]) -> Iterator[Entry]:
        """Gaps of the job's shape, sorted; there may be more of them that are too short for it."""
        classes = [entries for entries in self._classes[_class_of(job.planned_us) :] if entries]
        found = iter(classes[0]) if len(classes) == 1 else merge(*classes)
        if other:
            mine = [(since, i, until, n) for i, profile in other.items() for since, until, n in profile.gaps(self.shape, self._nodes[i])]
            mine.sort()
            found = merge((entry for entry in found if entry[1] not in other), mine)
        return found if job.shape == self.shape else self._finer(found, job, profiles, other)

    def _finer(
        self, rough: Iterator[Entry], job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]
    ) -> Iterator[Entry]:
        """Gaps of the job's shape in place of rougher ones: they lie within those, so a node is looked at when its first one comes."""
        seen: set[int] = set()
        finer: list[Entry] = []  # a heap
        for begin, i, end, _ in rough:
            while finer and finer[0][0] < begin:
                yield heappop(finer)
            if i not in seen and end - begin >= job.planned_us:
                seen.add(i)
                for since, until, processes in (other.get(i) or profiles[i]).gaps(job.shape, self._nodes[i]):
                    heappush(finer, (since, i, until, processes))
        yield from sorted(finer)


def pick(room: Mapping[int, int], job: Job) -> list[tuple[int, int]]:
    """Of (position -> processes that fit): positions of lowest number, as many processes on each as fit."""
    chosen: list[tuple[int, int]] = []
    wanted = job.processes
    for i in sorted(room):
        count = min(room[i], wanted)
        if count:
            chosen.append((i, count))
            wanted -= count
            if not wanted:
                break
    return chosen


def _class_of(length_us: int) -> int:
    return min(max(length_us.bit_length() // 2 - _SHORTEST, 0), _CLASSES - 1)
