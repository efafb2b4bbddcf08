"""Identical one-core nodes of a partition: free nodes as a count and sorted ranges, and what promises leave free as counts in time.

A faster representation for the same vetting as `nodes.py`: one process fills one node, so memory, features and
exclusive use only decide feasibility, and free capacity is a number. Space: O(ranges), whatever the number of nodes. A shadow answers
for one promise, a timeline for many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from rmgr.sched.capacity.nodes import Ending, Horizon
from rmgr.sched.job import PLAIN, Job, Node, Placement, Span
from rmgr.sched.records import Cores

_NOBODY = Job(id=0, submit_us=0)
#: Number of intervals, freed by withdrawn promises, that are searched again one by one; if there are more, they are merged into one.
MOST_OPENED = 8
#: Later than any time.
_NEVER = 1 << 100


class UnitPool:
    """Free nodes as ranges `firsts[i]..lasts[i]`, ascending and never adjacent: `take` then `give` restores it exactly."""

    __slots__ = ("_closed", "_node", "firsts", "free", "lasts", "total")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        self._closed: set[int] = set()
        self._node: Node | None = None
        self.free = 0  #: open nodes that are free now
        self.total = 0  #: all nodes, including closed ones
        for node in sorted(nodes, key=attrgetter("id")):
            self.total += 1
            self._node = node
            if node.closed:
                self._closed.add(node.id)
            else:
                self._give(node.id, node.id)

    @staticmethod
    def serves(nodes: Iterable[Node]) -> bool:
        """Whether these nodes are identical, with one core each and nothing else counted: suspended jobs would keep memory and the like."""
        kinds = {(node.cores, node.memory_bytes, node.features, node.resources) for node in nodes}
        return len(kinds) == 1 and all(cores == 1 and not memory and not resources for cores, memory, _, resources in kinds)

    def feasible(self, job: Job) -> bool:
        """Whether the job could run if the partition were empty and open."""
        node = self._node
        if node is None or job.processes > self.total:
            return False
        return job.shape is PLAIN or (job.threads == 1 and not job.resources and set(node.features).issuperset(job.features))

    def fits(self, job: Job) -> bool:
        """Whether the job, which must be feasible, could start now. Cost: O(1)."""
        return job.processes <= self.free

    def startable(self, jobs: Iterable[Job], horizon: Horizon | None) -> Iterator[Job]:
        """Yields the `jobs` that fit now and keep every promise, each judged when it is reached. Cost: O(1) for one that does not fit."""
        free = self.free
        if not free:
            return
        for job in jobs:
            if job.processes <= free and (horizon is None or horizon.admits(job)):
                yield job
                free = self.free
                if not free:
                    return

    def pick(self, job: Job) -> Placement | None:
        """Returns the free nodes of lowest id, or None. Cost: O(spans taken)."""
        wanted = job.processes
        if wanted > self.free:
            return None
        first = self.firsts[0]
        if self.lasts[0] - first >= wanted - 1:
            return ((first, first + wanted - 1, 1),)
        spans: list[Span] = []
        for first, last in zip(self.firsts, self.lasts, strict=True):
            count = last - first + 1
            if count >= wanted:
                spans.append((first, first + wanted - 1, 1))
                break
            spans.append((first, last, 1))
            wanted -= count
        return tuple(spans)

    def claim(self, job: Job) -> Placement | None:
        """Picks and takes in one step."""
        wanted = job.processes
        if wanted > self.free:
            return None
        firsts, lasts = self.firsts, self.lasts
        first, last = firsts[0], lasts[0]
        if last - first >= wanted:  # usually: the first range is not used up
            firsts[0] = first + wanted
            self.free -= wanted
            return ((first, first + wanted - 1, 1),)
        placement = self.pick(job)
        assert placement is not None
        used = len(placement)
        if placement[-1][1] != lasts[used - 1]:
            used -= 1
            firsts[used] = placement[-1][1] + 1
        del firsts[:used], lasts[:used]
        self.free -= wanted
        return placement

    def holds(self, job: Job, placement: Placement) -> bool:
        """Whether these nodes exist, are free and are as many as the job needs: checks a placement made elsewhere."""
        count, after = 0, -1
        for first, last, processes in placement:
            i = bisect_right(self.firsts, first) - 1
            if processes != 1 or first <= after or last < first or i < 0 or last > self.lasts[i]:
                return False
            count, after = count + last - first + 1, last
        return count == job.processes

    def take(self, _job: Job, placement: Placement) -> None:
        """Takes free nodes (`pick` or `holds` must have said so). Skips closed nodes, which are not free even where a run continues."""
        firsts, lasts = self.firsts, self.lasts
        if self._closed:
            placement = self._open_spans(placement)
        for first, last, _ in placement:
            i = bisect_right(firsts, first) - 1
            low, high = firsts[i], lasts[i]
            if low == first:
                if high == last:
                    del firsts[i], lasts[i]
                else:
                    firsts[i] = last + 1
            else:
                lasts[i] = first - 1
                if high != last:
                    firsts.insert(i + 1, last + 1)
                    lasts.insert(i + 1, high)
            self.free -= last - first + 1

    def give(self, _job: Job, placement: Placement) -> None:
        """Gives the nodes back, except closed ones."""
        if self._closed:
            placement = self._open_spans(placement)
        for first, last, _ in placement:
            self._give(first, last)

    def returns(self, _job: Job, placement: Placement) -> int:
        """Returns how many nodes can be used again once this placement ends."""
        count = 0
        for first, last, _ in placement:
            count += last - first + 1
        if self._closed:
            count -= sum(first <= node <= last for first, last, _ in placement for node in self._closed)
        return count

    def set_closed(self, node: Node, *, taken: bool) -> None:
        """Closes or opens the node; `taken`: a run occupies it. Cost: O(log ranges)."""
        if node.closed:
            if not taken:
                self.take(_NOBODY, ((node.id, node.id, 1),))
            self._closed.add(node.id)
        else:
            self._closed.remove(node.id)
            if not taken:
                self._give(node.id, node.id)

    def take_share(self, job: Job, cores: Cores) -> None:
        """Holds these nodes for the job."""
        self.take(job, cores)

    def give_share(self, job: Job, cores: Cores) -> None:
        """Gives a held share back."""
        self.give(job, cores)

    def park(self, job: Job, placement: Placement) -> None:
        """Does nothing: a stopped job's memory is not counted here."""

    def unpark(self, job: Job, placement: Placement) -> None:
        """Does nothing, as `park`."""

    def can_resume(self, job: Job, placement: Placement) -> bool:
        """Whether the suspended job's nodes are free and open."""
        return self.holds(job, placement)

    @property
    def idle_nodes(self) -> int:
        """Number of open nodes on which nothing runs."""
        return self.free

    def _open_spans(self, placement: Placement) -> Placement:
        """Returns the placement without closed nodes."""
        spans: list[Span] = []
        for first, last, processes in placement:
            low = first
            for node in sorted(node for node in self._closed if first <= node <= last):
                if low < node:
                    spans.append((low, node - 1, processes))
                low = node + 1
            if low <= last:
                spans.append((low, last, processes))
        return tuple(spans)

    def _give(self, first: int, last: int) -> None:
        firsts, lasts = self.firsts, self.lasts
        self.free += last - first + 1
        i = bisect_right(firsts, first)
        joins_right = i < len(firsts) and firsts[i] == last + 1
        if i and lasts[i - 1] == first - 1:
            if joins_right:
                lasts[i - 1] = lasts[i]
                del firsts[i], lasts[i]
            else:
                lasts[i - 1] = last
        elif joins_right:
            firsts[i] = first
        else:
            firsts.insert(i, first)
            lasts.insert(i, last)


class UnitShadow:
    """One promise: from `at_us` on, it owns all but `extra` of the free nodes."""

    __slots__ = ("_now", "_pool", "at_us", "extra", "placement")

    def __init__(self, pool: UnitPool, now_us: int, at_us: int, extra: int) -> None:
        self._pool, self._now, self.at_us, self.extra = pool, now_us, at_us, extra
        self.placement: Placement = ()

    @classmethod
    def of(cls, job: Job, now_us: int, pool: UnitPool, endings: Sequence[Ending]) -> UnitShadow | None:
        """Promises the earliest time at which `job` fits if every run uses its limit; None if it never does. An overdue run ends "soon".

        Args: endings: (end, job id, nodes that come back), sorted. Cost: O(runs that end before that time).
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
    """Free nodes per step: `_frees[i]` from `_times[i]` until `_times[i + 1]` (the last step for ever), with promises subtracted.

    Failed searches are remembered: `_before[count, length]` is (a time, n). Before that time `count` nodes are never free for `length`, nor
    are more nodes or for longer, taking into account the first n entries of `_opened`, the intervals freed by withdrawn promises. New
    promises do not change that, so the jobs of a long queue need not each be searched for from now on.
    """

    __slots__ = ("_before", "_frees", "_now", "_opened", "_pool", "_times")

    def __init__(self, now_us: int, pool: UnitPool, endings: Iterable[Ending], promises: Iterable[tuple[Job, int]] = ()) -> None:
        """promises: jobs with their starts, as if `promise` were called for each. Cost: O(n log n) for n endings and promises."""
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
        """Returns the first time from which enough nodes stay free for the job's limit. Cost: O(steps from where smaller jobs fit)."""
        found = self._search(job.processes, job.planned_us, self._nowhere_before(job))
        return None if found is None else (found, ())

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Cost: as `earliest`, which is asked without the old promise. Changes nothing if there is no better start."""
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
        """Whether no start is earlier than this promise of the job, even if the promise is taken back."""
        times, frees, wanted = self._times, self._frees, job.processes
        low = bisect_left(times, at_us)
        if at_us <= self._now or low == len(times) or times[low] != at_us:
            return False
        end_us = at_us + job.planned_us
        if frees[low - 1] >= wanted or min(frees[low : bisect_left(times, end_us)]) < 0:
            return False  # it could begin in the step before, or so much is promised that not even this promise can be kept
        last_us = at_us - job.planned_us  # a job that begins later still runs in the step before `at_us`, where too little is free
        if last_us < self._now:
            return True
        before = self._nowhere_before(job)
        if before > last_us:
            return True
        found = self._search(wanted, job.planned_us, before, last_us)
        return found is None or found > last_us

    def _nowhere_before(self, job: Job) -> int:
        """Returns a time before which the job fits nowhere: that of the largest job no larger than it among a few rounded sizes."""
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
        """Lowers a time before which nothing was found, now that nodes were given back during these intervals."""
        if len(opened) > MOST_OPENED:
            opened = [(min(since for since, _ in opened), max(until for _, until in opened))]
        for since, until in opened:
            first_us, last_us = max(since - length_us, self._now), min(until, known_us - 1)
            if first_us <= last_us:
                found = self._search(count, length_us, first_us, last_us)
                if found is not None and found <= last_us:
                    known_us = found
        return known_us

    def _search(self, wanted: int, length_us: int, known_us: int, last_us: int = _NEVER) -> int | None:
        """Returns the first time >= `known_us` from which so many nodes stay free for so long, or, once past `last_us`, a candidate."""
        times, frees = self._times, self._frees
        first = bisect_right(times, known_us) - 1
        start = -1  # start of the current run of sufficient steps
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
        """Takes nodes during an interval, or gives them back if `count` is negative; times before now are ignored."""
        frees = self._frees
        low = self._cut(max(start_us, self._now))
        high = self._cut(max(start_us + length_us, self._now))
        for i in range(low, high):
            frees[i] -= count
        for i in (high, low):  # merge steps that no longer differ
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
    """Rounds down to the two leading bits."""
    below = max(number.bit_length() - 2, 0)
    return number >> below << below
