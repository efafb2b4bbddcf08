"""Computes what promises leave free in a partition of any nodes: per node, at one shadow time or at every step of a timeline."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

from rmgr.sched.capacity.gap_index import GapIndex, pick
from rmgr.sched.capacity.horizon import Closing, Ending
from rmgr.sched.capacity.node_profile import NodeProfile
from rmgr.sched.capacity.pool_node import NodePool, room_beside, room_on, rough
from rmgr.sched.job import Job, Placement, Shape

#: Gives what comes back at the end of this job to a pool of nodes: all that it has, but for what is promised out of it.
GiveBack: TypeAlias = Callable[[NodePool, int], None]
#: Shapes that have an index of their own; further ones share that of a shape which needs a little less memory, and look at nodes.
EXACT = 8


class NodeShadow:
    """One promise, of certain nodes at `at_us`. What outlives that time must fit into what is free now and left over then."""

    __slots__ = ("_lasting", "_later", "_now", "_pool", "at_us", "placement")

    def __init__(self, pool: NodePool, later: NodePool, now_us: int, at_us: int, placement: Placement) -> None:
        self._pool, self._later, self._now = pool, later, now_us
        self.at_us, self.placement = at_us, placement
        self._lasting = later.clone()
        self._lasting.lower(pool)

    @classmethod
    def of(cls, job: Job, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> NodeShadow | None:
        """The earliest time at which `job` fits if every run uses its limit; None when it never does. An overdue run ends "soon"."""
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
    """Windows of maintenance and no promise: what starts now must leave nodes before they close."""

    __slots__ = ("_lasting", "_now", "_pool", "_starts")

    def __init__(self, pool: NodePool, now_us: int, windows: Iterable[Closing]) -> None:
        """Args: windows: (start, job of whole nodes that stands there meanwhile, on which). Cost: O(nodes) for each time of a start."""
        self._pool, self._now = pool, now_us
        self._starts: list[int] = []
        self._lasting: list[NodePool] = []  #: what is left for a job that ends after that start
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
    """Free capacity of each node as steps in time, and an index of gaps for each shape that has asked. O(steps of all nodes) space."""

    __slots__ = ("_indexes", "_log", "_now", "_pool", "_profiles")

    def __init__(self, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> None:
        self._now, self._pool = now_us, pool
        self._indexes: dict[Shape, GapIndex] = {}
        self._log: list[int] = []  #: positions of nodes changed, oldest first
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
        """O(nodes of the placement)."""
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
        """O(gaps as long as its limit that begin before it)."""
        return self._earliest(job, {})

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """As `earliest` when the old promise does not count. Where nothing better is found nothing is changed."""
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
        """How many processes fit on which node from now on for its limit, if it is enough."""
        index, wanted = self._index(job.shape), job.processes
        room = index.open_at(self._now, job.planned_us)
        if index.shape != job.shape and sum(room.values()) >= wanted:  # so many of a rougher shape
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
