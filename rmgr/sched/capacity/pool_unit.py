"""Free nodes of a partition whose nodes are identical with one core each: a count and a sorted list of free ranges.

The fast representation behind the same vetting as `pool_node.py`: one process fills one node, so memory, features and exclusive use are
questions of feasibility only, and what is free is a number. Space O(ranges), whatever the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from rmgr.sched.capacity.horizon import Horizon
from rmgr.sched.job import PLAIN, Job, Node, Placement, Span
from rmgr.sched.records import Cores

_NOBODY = Job(id=0, submit_us=0)


class UnitPool:
    """Free nodes as ranges `_firsts[i].._lasts[i]`, ascending and never adjacent: `take` then `give` restores it exactly."""

    __slots__ = ("_closed", "_firsts", "_lasts", "_node", "free", "total")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._closed: set[int] = set()
        self._node: Node | None = None
        self.free = 0  #: nodes on which something can start now
        self.total = 0  #: nodes, closed ones too
        for node in sorted(nodes, key=_id):
            self.total += 1
            self._node = node
            if node.closed:
                self._closed.add(node.id)
            else:
                self._give(node.id, node.id)

    @staticmethod
    def serves(nodes: Iterable[Node]) -> bool:
        """These nodes are identical, have one core each, and nothing else is counted: a suspended job keeps its memory and the like."""
        kinds = {(node.cores, node.memory_bytes, node.features, node.resources) for node in nodes}
        return len(kinds) == 1 and all(cores == 1 and not memory and not resources for cores, memory, _, resources in kinds)

    def feasible(self, job: Job) -> bool:
        """It could run if the partition were empty and open."""
        node = self._node
        if node is None or job.processes > self.total:
            return False
        return job.shape is PLAIN or (job.threads == 1 and not job.resources and set(node.features).issuperset(job.features))

    def fits(self, job: Job) -> bool:
        """It could start now. The job must be feasible. O(1)."""
        return job.processes <= self.free

    def startable(self, jobs: Iterable[Job], horizon: Horizon | None) -> Iterator[Job]:
        """Those of `jobs` that fit now and keep every promise, each judged when it is reached. O(1) for one that does not fit."""
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
        """The free nodes of lowest id. O(spans taken)."""
        wanted = job.processes
        if wanted > self.free:
            return None
        first = self._firsts[0]
        if self._lasts[0] - first >= wanted - 1:
            return ((first, first + wanted - 1, 1),)
        spans: list[Span] = []
        for first, last in zip(self._firsts, self._lasts, strict=True):
            count = last - first + 1
            if count >= wanted:
                spans.append((first, first + wanted - 1, 1))
                break
            spans.append((first, last, 1))
            wanted -= count
        return tuple(spans)

    def claim(self, job: Job) -> Placement | None:
        """`pick` and `take` in one."""
        wanted = job.processes
        if wanted > self.free:
            return None
        firsts, lasts = self._firsts, self._lasts
        first, last = firsts[0], lasts[0]
        if last - first >= wanted:  # most: the first range is not used up
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
        """These nodes exist, are free and are as many as the job needs: the check of a placement that somebody else chose."""
        count, after = 0, -1
        for first, last, processes in placement:
            i = bisect_right(self._firsts, first) - 1
            if processes != 1 or first <= after or last < first or i < 0 or last > self._lasts[i]:
                return False
            count, after = count + last - first + 1, last
        return count == job.processes

    def take(self, _job: Job, placement: Placement) -> None:
        """The nodes are no longer free. They must be (`pick` or `holds` said so); closed ones, on which a run goes on, are not anyway."""
        firsts, lasts = self._firsts, self._lasts
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
        """The nodes are free again, closed ones aside."""
        if self._closed:
            placement = self._open_spans(placement)
        for first, last, _ in placement:
            self._give(first, last)

    def returns(self, _job: Job, placement: Placement) -> int:
        """How many nodes can be used again once this placement ends."""
        count = 0
        for first, last, _ in placement:
            count += last - first + 1
        if self._closed:
            count -= sum(first <= node <= last for first, last, _ in placement for node in self._closed)
        return count

    def set_closed(self, node: Node, *, taken: bool) -> None:
        """The node closes or opens; `taken`: a run stands on it. O(log ranges)."""
        if node.closed:
            if not taken:
                self.take(_NOBODY, ((node.id, node.id, 1),))
            self._closed.add(node.id)
        else:
            self._closed.remove(node.id)
            if not taken:
                self._give(node.id, node.id)

    def take_share(self, job: Job, cores: Cores) -> None:
        """These nodes are held for the job."""
        self.take(job, cores)

    def give_share(self, job: Job, cores: Cores) -> None:
        """They are free again."""
        self.give(job, cores)

    def park(self, job: Job, placement: Placement) -> None:
        """A stopped job's memory there is taken: not counted here."""

    def unpark(self, job: Job, placement: Placement) -> None:
        """It is free again."""

    def can_resume(self, job: Job, placement: Placement) -> bool:
        """The nodes of the suspended job are free and open."""
        return self.holds(job, placement)

    @property
    def idle_nodes(self) -> int:
        """Open nodes on which nothing runs."""
        return self.free

    def _open_spans(self, placement: Placement) -> Placement:
        """The same without closed nodes."""
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
        firsts, lasts = self._firsts, self._lasts
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


def _id(node: Node) -> int:
    return node.id
