"""Computes what promises leave free among identical one-core nodes: a shadow for one promise, a timeline of counts for many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from rmgr.sched.capacity.horizon import Ending
from rmgr.sched.capacity.pool_unit import UnitPool
from rmgr.sched.job import Job, Placement

#: Intervals in which promises were given up are looked at again one by one, or if there are more as one.
MOST_OPENED = 8
#: Later than any time.
NEVER = 1 << 100


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
    """Free nodes per step: `_frees[i]` from `_times[i]` until `_times[i + 1]`, the last step for ever. Promises are subtracted from it.

    What has been searched in vain is remembered: `_before[count, length]` is a time before which so many nodes are never free for so
    long, nor are more nodes, nor for longer, as of entry n of `_opened`, the intervals in which promises were given up. New promises do not
    change that, so jobs of a long queue need not all be searched for from now on.
    """

    __slots__ = ("_before", "_frees", "_now", "_opened", "_pool", "_times")

    def __init__(self, now_us: int, pool: UnitPool, endings: Iterable[Ending], promises: Iterable[tuple[Job, int]] = ()) -> None:
        """Args: promises: jobs with their starts, as if `promise` was called for each. Cost: O(n log n) for n endings and promises."""
        changes = [(end_us if end_us > now_us else now_us + 1, units) for end_us, _, units in endings]
        free = pool.free
        for job, start_us in promises:
            end_us = start_us + job.planned_us
            if end_us <= now_us:
                continue
            changes.append((end_us, job.processes))
            if start_us > now_us:
                changes.append((start_us, -job.processes))
            else:
                free -= job.processes
        changes.sort()
        times, frees = [now_us], [free]
        for at, units in changes:
            free += units
            if at == times[-1]:
                frees[-1] = free
            else:
                times.append(at)
                frees.append(free)
        self._times, self._frees, self._now, self._pool = times, frees, now_us, pool
        self._before: dict[tuple[int, int], tuple[int, int]] = {}
        self._opened: list[tuple[int, int]] = []

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
        """The first time from which enough nodes stay free for the job's limit. O(steps from where smaller jobs fit)."""
        found = self._search(job.processes, job.planned_us, self._nowhere_before(job))
        return None if found is None else (found, ())

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """As `earliest` when the old promise does not count. Where nothing better is found nothing is changed."""
        if old is not None:
            if self._is_best(job, old[0]):
                return old[0], ()
            self.withdraw(job, *old)
        found = self.earliest(job)
        if found is not None:
            self.promise(job, *found)
        return found

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
        self._occupy(at_us, job.planned_us, job.processes)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:  # noqa: ARG002 - nodes are alike
        self._occupy(at_us, job.planned_us, -job.processes)
        self._opened.append((at_us, at_us + job.planned_us))

    @property
    def overdrawn(self) -> bool:
        return min(self._frees) < 0

    def _is_best(self, job: Job, at_us: int) -> bool:
        """No start is earlier than this promise of the job, even without it."""
        times, frees, wanted = self._times, self._frees, job.processes
        low = bisect_left(times, at_us)
        if at_us <= self._now or low == len(times) or times[low] != at_us:
            return False
        end_us = at_us + job.planned_us
        if frees[low - 1] >= wanted or min(frees[low : bisect_left(times, end_us)]) < 0:
            return False  # it could begin in the step before; or too much is promised, so not even this promise can be kept
        last_us = at_us - job.planned_us  # what begins later must go on at the end of that step, where too little is free
        if last_us < self._now:
            return True
        before = self._nowhere_before(job)
        if before > last_us:
            return True
        found = self._search(wanted, job.planned_us, before, last_us)
        return found is None or found > last_us

    def _nowhere_before(self, job: Job) -> int:
        """A time before which the job fits nowhere: that of the largest job of few different ones that is no larger than it."""
        count, length_us = _rounded(job.processes), _rounded(job.planned_us)
        before, opened = self._before, len(self._opened)
        known, seen = before.get((count, length_us), (self._now, opened))
        if seen < opened:
            known = self._again(count, length_us, known, self._opened[seen:])
        for smaller in ((_rounded(count - 1), length_us), (count, _rounded(length_us - 1))):
            at_us, seen = before.get(smaller, (0, opened))
            if at_us > known and seen == opened:
                known = at_us
        found = self._search(count, length_us, known)
        known = self._times[-1] if found is None else found
        before[count, length_us] = known, opened
        return known

    def _again(self, count: int, length_us: int, known_us: int, opened: list[tuple[int, int]]) -> int:
        """What a time before which nothing was found has become, since nodes were given back during these intervals."""
        if len(opened) > MOST_OPENED:
            opened = [(min(since for since, _ in opened), max(until for _, until in opened))]
        for since, until in opened:
            first_us, last_us = max(since - length_us, self._now), min(until, known_us - 1)
            if first_us <= last_us:
                found = self._search(count, length_us, first_us, last_us)
                if found is not None and found <= last_us:
                    known_us = found
        return known_us

    def _search(self, wanted: int, length_us: int, known_us: int, last_us: int = NEVER) -> int | None:
        """The first time from which so many nodes stay free for so long, given that it is no earlier than `known_us`; or one > last_us."""
        times, frees = self._times, self._frees
        first = bisect_right(times, known_us) - 1
        start = -1  # where the current run of sufficient steps began
        for i in range(first, len(times)):
            if frees[i] < wanted:
                if start >= 0:
                    if times[i] - start >= length_us:
                        return start
                    start = -1
            elif start < 0:
                start = times[i]
                if start > last_us:
                    return start
        return start if start >= 0 else None

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


def _rounded(number: int) -> int:
    """Down to its two leading bits."""
    below = max(number.bit_length() - 2, 0)
    return number >> below << below
