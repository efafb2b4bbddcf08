"""The plainest timelines: what is free at every step, and every question asked of every step. What the fast ones must answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rmgr.sched.capacity.nodes import Ending, GiveBack, NodePool
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.job import Job, Placement


class PlainNodeTimeline:
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
        return self._pools[0].lowest(job, rooms, 0, exact=True) if isinstance(rooms, list) else None

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
                return self._times[i], self._pools[i].lowest(job, rooms, 0, exact=True)
            i = rooms
        return None

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        raise NotImplementedError

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


class PlainUnitTimeline:
    """Free nodes per step: `_frees[i]` from `_times[i]` until `_times[i + 1]`, the last step for ever. Promises are subtracted from it."""

    __slots__ = ("_frees", "_now", "_pool", "_times")

    def __init__(self, now_us: int, pool: UnitPool, endings: Iterable[Ending]) -> None:
        free = pool.free
        times, frees = [now_us], [free]
        for end_us, _, units in endings:
            at = end_us if end_us > now_us else now_us + 1
            free += units
            if at == times[-1]:
                frees[-1] = free
            else:
                times.append(at)
                frees.append(free)
        self._times, self._frees, self._now, self._pool = times, frees, now_us, pool

    def admits(self, job: Job) -> bool:
        end = self._now + job.planned_us
        wanted = job.processes
        for at, free in zip(self._times, self._frees, strict=True):
            if at >= end:
                return True
            if free < wanted:
                return False
        return True

    def place(self, job: Job) -> Placement | None:
        return self._pool.pick(job) if self.admits(job) else None

    def allows(self, job: Job, placement: Placement) -> bool:
        return self.admits(job)

    def started(self, job: Job, placement: Placement) -> None:
        self._occupy(self._now, job.planned_us, job.processes)

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """The first time from which enough nodes stay free for the job's limit. O(steps)."""
        wanted, length_us = job.processes, job.planned_us
        start = -1  # where the current run of sufficient steps began
        for at, free in zip(self._times, self._frees, strict=True):
            if start >= 0 and at - start >= length_us:
                break
            if free < wanted:
                start = -1
            elif start < 0:
                start = at
        return (start, ()) if start >= 0 else None

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        raise NotImplementedError

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        self._occupy(at_us, job.planned_us, job.processes)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        self._occupy(at_us, job.planned_us, -job.processes)

    @property
    def overdrawn(self) -> bool:
        return min(self._frees) < 0

    def _occupy(self, start_us: int, length_us: int, count: int) -> None:
        """Takes (or, with a negative count, gives back) nodes during an interval; what lies before now is left out."""
        frees = self._frees
        low = self._cut(max(start_us, self._now))
        high = self._cut(max(start_us + length_us, self._now))
        for i in range(low, high):
            frees[i] -= count
        for i in (high, low):  # steps that no longer differ are one step
            if 0 < i < len(frees) and frees[i] == frees[i - 1]:
                del frees[i], self._times[i]

    def _cut(self, at_us: int) -> int:
        times = self._times
        i = bisect_left(times, at_us)
        if i == len(times) or times[i] != at_us:
            times.insert(i, at_us)
            self._frees.insert(i, self._frees[i - 1])
        return i
