"""What promises leave free in a partition of identical one-core nodes: a shadow for one promise, a timeline of counts for many."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rmgr.sched.horizon import Ending
from rmgr.sched.job import Job, Placement
from rmgr.sched.pool_unit import UnitPool


class UnitShadow:
    """One promise: from `at_us` on, all but `extra` of the free nodes belong to it."""

    __slots__ = ("_now", "_pool", "at_us", "extra", "placement")

    def __init__(self, pool: UnitPool, now_us: int, at_us: int, extra: int) -> None:
        self._pool, self._now, self.at_us, self.extra = pool, now_us, at_us, extra
        self.placement: Placement = ()

    @classmethod
    def of(cls, job: Job, now_us: int, pool: UnitPool, endings: Sequence[Ending]) -> UnitShadow | None:
        """The earliest time at which `job` fits if every run uses its limit; None when it never does. An overdue run ends "soon".

        Args: endings: (end, job id, nodes that come back), sorted. Cost: O(runs that end before it).
        """
        soon = now_us + 1
        at_us, free, wanted = now_us, pool.free, job.processes
        for end_us, _, units in endings:
            if free >= wanted and end_us > at_us:
                break
            at_us = max(soon, end_us)
            free += units
        return cls(pool, now_us, at_us, free - wanted) if free >= wanted else None

    def admits(self, job: Job) -> bool:
        return job.processes <= self.extra or self._now + job.planned_us <= self.at_us

    def place(self, job: Job) -> Placement | None:
        return self._pool.pick(job) if self.admits(job) else None

    def allows(self, job: Job, placement: Placement) -> bool:  # noqa: ARG002 - nodes are alike
        return self.admits(job)

    def started(self, job: Job, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
        if self._now + job.planned_us > self.at_us:
            self.extra -= job.processes


class UnitTimeline:
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

    def allows(self, job: Job, placement: Placement) -> bool:  # noqa: ARG002 - nodes are alike
        return self.admits(job)

    def started(self, job: Job, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
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
        if old is not None:
            self.withdraw(job, *old)
        found = self.earliest(job)
        if found is not None:
            self.promise(job, *found)
        return found

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
        self._occupy(at_us, job.planned_us, job.processes)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
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
