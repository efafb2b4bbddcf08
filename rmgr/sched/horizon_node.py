"""What promises leave free in a partition of any nodes: free capacity per node, at one shadow time or at every step of a timeline."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rmgr.sched.horizon import Ending, GiveBack
from rmgr.sched.job import Job, Placement
from rmgr.sched.pool_node import NodePool


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


class NodeTimeline:
    """Free capacity per node and step: `_pools[i]` from `_times[i]` until `_times[i + 1]`, the last for ever. O(steps x nodes) space."""

    __slots__ = ("_now", "_pools", "_times")

    def __init__(self, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> None:
        self._now = now_us
        self._times, self._pools = [now_us], [pool.clone()]
        for end_us, job_id, _ in endings:
            at = max(end_us, now_us + 1)
            if at != self._times[-1]:
                self._times.append(at)
                self._pools.append(self._pools[-1].clone())
            give_back(self._pools[-1], job_id)

    def admits(self, job: Job) -> bool:
        return self.place(job) is not None

    def place(self, job: Job) -> Placement | None:
        rooms = self._window(0, job)
        return self._pools[0].pick_of(job, rooms) if isinstance(rooms, list) else None

    def allows(self, job: Job, placement: Placement) -> bool:
        rooms = self._window(0, job)
        return isinstance(rooms, list) and self._pools[0].holds(job, placement, rooms)

    def started(self, job: Job, placement: Placement) -> None:
        self.promise(job, self._now, placement)

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """O(steps x nodes) for each step at which the job fits."""
        i = 0
        while i < len(self._times):
            rooms = self._window(i, job)
            if isinstance(rooms, list):
                return self._times[i], self._pools[i].pick_of(job, rooms)
            i = rooms
        return None

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        for pool in self._between(at_us, job):
            pool.take(job, placement)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        for pool in self._between(at_us, job):
            pool.give(job, placement)

    @property
    def overdrawn(self) -> bool:
        return any(pool.overdrawn for pool in self._pools)

    def _window(self, i: int, job: Job) -> list[int] | int:
        """How many of its processes fit on each node from step `i` on for its whole limit; or, when too few do, the next step to look at.

        What fits on a node all the time is the least of what fits there at each step: no pool has to be made for it (3 times faster).
        """
        pools = self._pools[i : bisect_left(self._times, self._times[i] + job.planned_us)]
        for j in reversed(range(len(pools))):
            if not pools[j].fits(job):
                return i + j + 1  # every window that begins before has this step in it
        rooms = pools[0].rooms(job)
        for pool in pools[1:]:
            rooms = list(map(min, rooms, pool.rooms(job)))
            if sum(rooms) < job.processes:
                return i + 1
        return rooms

    def _between(self, at_us: int, job: Job) -> list[NodePool]:
        low = self._cut(max(at_us, self._now))
        high = self._cut(max(at_us + job.planned_us, self._now))
        return self._pools[low:high]

    def _cut(self, at_us: int) -> int:
        i = bisect_left(self._times, at_us)
        if i == len(self._times) or self._times[i] != at_us:
            self._times.insert(i, at_us)
            self._pools.insert(i, self._pools[i - 1].clone())
        return i
