"""Computes what promises leave free in a partition: what a horizon answers, and how for any nodes (for counted ones: `units.py`).

Free capacity is computed per node, at one shadow time or at every step of a timeline. A timeline keeps a profile of each node and, for each
shape of process asked about, an index of gaps: over all nodes, sorted by start, classed by length. For a job it walks the gaps at least as
long as the job's limit, in order of time, until as many processes fit at once as the job has. Few of these gaps begin before the answer,
because free intervals between promises are short. A question costs O(gaps of that length before the answer).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush, merge
from operator import itemgetter
from typing import Protocol, TypeAlias

from rmgr.sched.capacity.pool_node import NodePool, room_beside, room_on, rough
from rmgr.sched.job import PLAIN, Job, Node, Placement, Resources, Shape

#: (time at which the run's limit ends it, job id, units of the pool that come back then)
Ending: TypeAlias = tuple[int, int, int]
#: A window of maintenance: (start, a job of whole nodes that occupies the window, its placement).
Closing: TypeAlias = tuple[int, Job, Placement]


class Horizon(Protocol):
    """Answers whether a job may start now and run for its whole limit without breaking a promise; records starts."""

    def admits(self, job: Job) -> bool:
        """Whether the job may start on the nodes that `place` would choose. The job must fit now, promises aside."""
        ...

    def place(self, job: Job) -> Placement | None:
        """Returns the free nodes of lowest id on which the job may start, or None."""
        ...

    def allows(self, job: Job, placement: Placement) -> bool:
        """Whether the job may start on these nodes, which are free now."""
        ...

    def started(self, job: Job, placement: Placement) -> None:
        """Records that the job has started; the pool has already taken its nodes."""
        ...


class Timeline(Horizon, Protocol):
    """A horizon of many promises."""

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """Returns when and where the job can be promised a start, or None if unknown. Where nodes are counted, the placement is `()`."""
        ...

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Promises the earliest start, not counting the job's old promise. None: the old promise is withdrawn and no start is known."""
        ...

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        """Promises the job these nodes from `at_us` on, for its limit."""
        ...

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        """Takes the promise back."""
        ...

    @property
    def overdrawn(self) -> bool:
        """Whether more is promised than exists."""
        ...


# -- any nodes -----------------------------------------------------------------------------------------------------------------

#: Gives a pool of nodes what comes back at the end of this job: all that it has, less what is promised out of it.
GiveBack: TypeAlias = Callable[[NodePool, int], None]
#: Number of shapes with an index of their own; more shapes share the index of one that needs a little less memory, and look at nodes.
EXACT = 8
#: (start, position of the node, end, processes)
_Entry = tuple[int, int, int, int]
#: In a class the longest gap is 4 times the shortest. The first class holds all gaps up to two minutes, the last all from half a year on.
_SHORTEST, _CLASSES = 13, 11
#: (start, end, processes): how many more processes fit than in the gaps around it.
Gap = tuple[int, int, int]
#: Later than any time.
_NEVER = 1 << 100


class NodeShadow:
    """One promise of certain nodes at `at_us`. A job that outlives that time must fit into what is free both now and then."""

    __slots__ = ("_lasting", "_later", "_now", "_pool", "at_us", "placement")

    def __init__(self, pool: NodePool, later: NodePool, now_us: int, at_us: int, placement: Placement) -> None:
        self._pool, self._later, self._now = pool, later, now_us
        self.at_us, self.placement = at_us, placement
        self._lasting = later.clone()
        self._lasting.lower(pool)

    @classmethod
    def of(cls, job: Job, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> NodeShadow | None:
        """Promises the earliest time at which `job` fits if every run uses its limit; None if it never does. An overdue run ends "soon"."""
        later, at_us = pool.clone(), now_us
        for end_us, job_id, _ in endings:
            end = max(end_us, now_us + 1)
            if end > at_us:
                if later.fits(job):
                    break
                at_us = end
            give_back(later, job_id)
        placement = later.pick_sparing(job, pool)
        if placement is None:
            return None
        later.take(job, placement)
        return cls(pool, later, now_us, at_us, placement)

    def admits(self, job: Job) -> bool:
        return self._ends_before(job) or self._lasting.fits(job)

    def place(self, job: Job) -> Placement | None:
        return self._pool.pick_sparing(job, self._lasting) if self._ends_before(job) else self._lasting.pick(job)

    def allows(self, job: Job, placement: Placement) -> bool:
        return self._ends_before(job) or self._lasting.holds(job, placement)

    def started(self, job: Job, placement: Placement) -> None:
        positions = self._pool.positions(placement)
        if not self._ends_before(job):
            self._later.take(job, placement)
            self._lasting.lower(self._later, positions)
        self._lasting.lower(self._pool, positions)

    def _ends_before(self, job: Job) -> bool:
        return self._now + job.planned_us <= self.at_us


class NodeWindows:
    """Windows of maintenance without promises: a job that starts now must leave its nodes before they close."""

    __slots__ = ("_lasting", "_now", "_pool", "_starts")

    def __init__(self, pool: NodePool, now_us: int, windows: Iterable[Closing]) -> None:
        """windows: (start, job of whole nodes that occupies the window, its placement). Cost: O(nodes) for each distinct start."""
        self._pool, self._now = pool, now_us
        self._starts: list[int] = []
        self._lasting: list[NodePool] = []  #: capacity for a job that ends after the start at this index
        for start_us, job, nodes in sorted(windows, key=itemgetter(0)):
            if not self._starts or start_us > self._starts[-1]:
                self._starts.append(start_us)
                self._lasting.append((self._lasting[-1] if self._lasting else pool).clone())
            self._lasting[-1].take(job, nodes)

    def admits(self, job: Job) -> bool:
        return self._left_for(job).fits(job)

    def place(self, job: Job) -> Placement | None:
        return self._left_for(job).pick(job)

    def allows(self, job: Job, placement: Placement) -> bool:
        return self._left_for(job).holds(job, placement)

    def started(self, job: Job, placement: Placement) -> None:
        for pool in self._lasting:
            pool.take(job, placement)

    def _left_for(self, job: Job) -> NodePool:
        i = bisect_left(self._starts, self._now + job.planned_us)
        return self._lasting[i - 1] if i else self._pool


class NodeTimeline:
    """Free capacity of each node as steps in time, with an index of gaps for each shape asked about. Space: O(steps of all nodes)."""

    __slots__ = ("_indexes", "_log", "_now", "_pool", "_profiles")

    def __init__(self, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> None:
        self._now, self._pool = now_us, pool
        self._indexes: dict[Shape, GapIndex] = {}
        self._log: list[int] = []  #: positions of changed nodes, oldest first
        later = pool.clone()
        self._profiles = [NodeProfile(now_us, cores, memory) for cores, memory in zip(later.cores, later.memory, strict=True)]
        if later.others:
            for i, profile in enumerate(self._profiles):
                profile.others = {name: [free[i]] for name, free in later.others.items()}
        for end_us, job_id, _ in endings:
            give_back(later, job_id)
            at = max(end_us, now_us + 1)
            for i in later.changed():
                others = {name: free[i] for name, free in later.others.items()} if later.others else None
                self._profiles[i].append(at, later.cores[i], later.memory[i], others)

    def admits(self, job: Job) -> bool:
        return self._now_open(job) is not None

    def place(self, job: Job) -> Placement | None:
        room = self._now_open(job)
        return None if room is None else self._pool.spans(pick(room, job))

    def allows(self, job: Job, placement: Placement) -> bool:
        """Cost: O(nodes of the placement)."""
        if not self._pool.holds(job, placement):
            return False
        end_us = self._now + job.planned_us
        for first, last, processes in placement:
            for i in self._pool.positions(((first, last, processes),)):
                if self._room(i, self._profiles[i], job, self._now, end_us) < processes:
                    return False
        return True

    def started(self, job: Job, placement: Placement) -> None:
        self.promise(job, self._now, placement)

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """Cost: O(gaps as long as the job's limit that begin before the answer)."""
        return self._earliest(job, {})

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Cost: as `earliest`, which is asked without the old promise. Changes nothing if there is no better start."""
        if old is None:
            found = self.earliest(job)
        else:
            other = {i: self._profiles[i].copy() for i in self._pool.positions(old[1])}
            self._add(job, *old, 1, other)
            found = self._earliest(job, other)
            if found == old:
                return found
            self.withdraw(job, *old)
        if found is not None:
            self.promise(job, *found)
        return found

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        self._add(job, at_us, placement, -1, self._profiles)
        self._log += self._pool.positions(placement)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        self._add(job, at_us, placement, 1, self._profiles)
        self._log += self._pool.positions(placement)

    @property
    def overdrawn(self) -> bool:
        for profile, node in zip(self._profiles, self._pool.nodes, strict=True):
            if min(profile.cores) < 0 or (node.memory_bytes and min(profile.memory) < 0):
                return True
            if profile.others and any(min(free) < 0 for free in profile.others.values()):
                return True
        return False

    def _add(self, job: Job, at_us: int, placement: Placement, sign: int, profiles: Sequence[NodeProfile] | dict[int, NodeProfile]) -> None:
        start_us, end_us = max(at_us, self._now), max(at_us + job.planned_us, self._now)
        threads, memory_bytes, special, exclusive, _ = job.shape
        for first, last, processes in placement:
            cores, memory = sign * threads * processes, sign * memory_bytes * processes
            for i in self._pool.positions(((first, last, processes),)):
                if exclusive:
                    node = self._pool.nodes[i]
                    cores, memory = sign * node.cores, sign * node.memory_bytes
                profiles[i].add(start_us, end_us, cores, memory)
                if special is not None:
                    profiles[i].add_others(start_us, end_us, special.resources, sign * processes)

    def _earliest(self, job: Job, other: dict[int, NodeProfile]) -> tuple[int, Placement] | None:
        found = self._index(job.shape).opening(job, self._profiles, other)
        return None if found is None else (found[0], self._pool.spans(pick(found[1], job)))

    def _now_open(self, job: Job) -> Mapping[int, int] | None:
        """Returns node position -> processes that fit from now on for the job's limit, or None if they do not suffice."""
        index, wanted = self._index(job.shape), job.processes
        room = index.open_at(self._now, job.planned_us)
        if index.shape != job.shape and sum(room.values()) >= wanted:  # enough room for a rougher shape
            end_us = self._now + job.planned_us
            room = {i: self._room(i, self._profiles[i], job, self._now, end_us) for i in room}
        return room if sum(room.values()) >= wanted else None

    def _room(self, i: int, profile: NodeProfile, job: Job, at_us: int, end_us: int) -> int:
        node = self._pool.nodes[i]
        if node.closed:
            return 0
        room = room_on(job.shape, node, *profile.lowest(at_us, end_us))
        return room_beside(room, job.resources, profile.lowest_others(at_us, end_us)) if job.resources and room else room

    def _index(self, shape: Shape) -> GapIndex:
        index = self._indexes.get(shape)
        if index is None:
            if len(self._indexes) >= EXACT and shape.memory_bytes:
                shape = rough(shape)
                index = self._indexes.get(shape)
            if index is None:
                index = self._indexes[shape] = GapIndex(shape, self._pool.nodes, self._profiles, len(self._log))
                return index
        if index.at < len(self._log):
            index.update(dict.fromkeys(self._log[index.at :]), self._profiles)
            index.at = len(self._log)
        return index


class GapIndex:
    """The gaps of one shape on every node of a partition."""

    __slots__ = ("_classes", "_gaps", "_nodes", "at", "shape")

    def __init__(self, shape: Shape, nodes: Sequence[Node], profiles: Sequence[NodeProfile], at: int) -> None:
        self.shape, self._nodes = shape, nodes
        self.at = at  #: number of log entries it takes into account
        self._classes: list[list[_Entry]] = [[] for _ in range(_CLASSES)]
        self._gaps: list[list[Gap]] = []  #: by position
        for i, profile in enumerate(profiles):
            gaps = profile.gaps(shape, nodes[i])
            self._gaps.append(gaps)
            for since, until, processes in gaps:
                self._classes[_class_of(until - since)].append((since, i, until, processes))
        for entries in self._classes:
            entries.sort()

    def update(self, positions: Iterable[int], profiles: Sequence[NodeProfile]) -> None:
        """Computes the gaps of these changed nodes again."""
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
        """Returns the first time from which enough processes fit for the job's limit, with node position -> processes; None if there is
        none.

        Args: profiles: what was indexed; the job's shape needs no less than the indexed one. other: profiles that replace some nodes', by
        position.
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
        """Returns position -> processes that fit from the first step on for `length_us`. Cost: O(gaps open then)."""
        room: dict[int, int] = {}
        for entries in self._classes[_class_of(length_us) :]:
            for since, i, until, processes in entries:
                if since != first_us:
                    break
                if until - since >= length_us:
                    room[i] = room.get(i, 0) + processes
        return room

    def _from(self, job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]) -> Iterator[_Entry]:
        """Yields gaps of the job's shape, sorted by start; some may be too short for it."""
        classes = [entries for entries in self._classes[_class_of(job.planned_us) :] if entries]
        found = iter(classes[0]) if len(classes) == 1 else merge(*classes)
        if other:
            mine = [(since, i, until, n) for i, profile in other.items() for since, until, n in profile.gaps(self.shape, self._nodes[i])]
            mine.sort()
            found = merge((entry for entry in found if entry[1] not in other), mine)
        return found if job.shape == self.shape else self._finer(found, job, profiles, other)

    def _finer(
        self, rough: Iterator[_Entry], job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]
    ) -> Iterator[_Entry]:
        """Replaces rougher gaps by the job's own. Those lie within the rougher ones, so a node is looked at when its first one comes."""
        seen: set[int] = set()
        finer: list[_Entry] = []  # a heap
        for begin, i, end, _ in rough:
            while finer and finer[0][0] < begin:
                yield heappop(finer)
            if i not in seen and end - begin >= job.planned_us:
                seen.add(i)
                for since, until, processes in (other.get(i) or profiles[i]).gaps(job.shape, self._nodes[i]):
                    heappush(finer, (since, i, until, processes))
        yield from sorted(finer)


def pick(room: Mapping[int, int], job: Job) -> list[tuple[int, int]]:
    """Chooses from position -> processes that fit: the lowest positions, as many processes on each as fit."""
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


class NodeProfile:
    """From `times[i]` until `times[i + 1]` (the last for ever), `cores[i]`, `memory[i]` and `others[name][i]` are free.

    A negative number is promised but does not exist.
    """

    __slots__ = ("cores", "memory", "others", "times")

    def __init__(self, now_us: int, cores: int, memory: int) -> None:
        self.times, self.cores, self.memory = [now_us], [cores], [memory]
        self.others: dict[str, list[int]] = {}

    def copy(self) -> NodeProfile:
        """Returns an independent copy."""
        other = NodeProfile.__new__(NodeProfile)
        other.times, other.cores, other.memory = self.times.copy(), self.cores.copy(), self.memory.copy()
        other.others = {name: free.copy() for name, free in self.others.items()} if self.others else self.others
        return other

    def append(self, at_us: int, cores: int, memory: int, others: Mapping[str, int] | None = None) -> None:
        """Sets what is free from `at_us` on, which is no earlier than the last step."""
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
        """Adds to what is free in the interval (negative numbers: less); times before the first step are ignored."""
        low = self._cut(start_us)
        for i in range(low, self._cut(end_us)):
            self.cores[i] += cores
            self.memory[i] += memory

    def add_others(self, start_us: int, end_us: int, resources: Resources, times: int) -> None:
        """As `add`, for `times` times these resources."""
        low = self._cut(start_us)
        high = self._cut(end_us)
        for name, count in resources:
            free = self.others.get(name)
            if free is not None:
                free[low:high] = [left + times * count for left in free[low:high]]

    def lowest_others(self, start_us: int, end_us: int) -> dict[str, tuple[int]]:
        """As `lowest`, for other resources: name -> (count,)."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return {name: (min(free[low:high]),) for name, free in self.others.items()}

    def lowest(self, start_us: int, end_us: int) -> tuple[int, int]:
        """Returns the least free cores and memory from `start_us`, which is no earlier than the first step, until `end_us`."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return min(self.cores[low:high]), min(self.memory[low:high])

    def gaps(self, shape: Shape, node: Node) -> list[Gap]:
        """Returns when processes of this shape fit, each for as long as possible; at any time the gaps open then add up to all that fit.

        Gaps of a node are nested or disjoint, so during an interval as many processes fit as the gaps that contain it have.
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
            return [(self.times[0], _NEVER, rooms[0])] if rooms[0] > 0 else found
        heights, starts = [0], [0]  # of open gaps, the lowest first
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
            found.append((since, _NEVER, height - heights[-1]))
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
