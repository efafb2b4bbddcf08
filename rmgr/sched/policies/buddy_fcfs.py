"""First come, first served over binary buddies: the batch comparison of paper 002.

Algorithm: 1. the cores of the partition form blocks of width^k cores, which are split on demand and merged with their buddies when all of
them are free; 2. jobs start in order of arrival, each in the smallest free block that holds it, split leftmost; 3. the first job without
a block holds up the jobs behind it.
Parameters: width. Source: papers.md 3.4; section 5.3 of the paper. Differs from it in: other numbers of cores than powers of the width.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.capacity.gangs import leaves_of, placed_in
from rmgr.sched.draft import Draft
from rmgr.sched.job import PLAIN, Job, Running, count_of, each_node
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Cores, cores_of
from rmgr.sched.tree.shape import height_of

FITS = Why("buddy_fcfs", "starts on the first cores of a free block of its size")
BLOCKED = Why("buddy_fcfs", "no free block is large enough")
BEHIND = Why("buddy_fcfs", "waits behind a job that came earlier")
NEVER = Why("buddy_fcfs", "no block can hold its processes")


@dataclass(frozen=True, slots=True)
class BuddyFcfs:
    name: ClassVar[str] = "buddy_fcfs"
    width: int = field(default=2, metadata=about("blocks into which one is split", least=2, most=64))

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - only the current state decides
        head = next(draft.by_arrival(), None)
        if head is None:
            return
        leaves = leaves_of(draft.nodes)
        total = count_of(leaves)
        free = Buddies(self.width, total)
        starts = _first_leaves(leaves)
        blocks = draft.notes("block")
        for run in draft.running():
            _occupy_block(free, run, blocks.get(run.job.id), starts)
        for job in draft.by_arrival():
            why = self._start(draft, job, free, leaves, total)
            if why is not None:
                if why is NEVER:
                    draft.reject(job.id, why)
                    continue
                draft.leave_pending(job.id, why)
                draft.leave_rest(BEHIND)
                return

    def _start(self, draft: Draft, job: Job, free: Buddies, leaves: Cores, total: int) -> Why | None:
        """Starts the job on the first free block where its processes fit; otherwise returns why not."""
        size, tried = self._size(draft, job, leaves, total), list[int]()
        found = None
        while (first := free.take(size)) is not None:
            span = first, min(first + self.width ** free.order(size), total)
            placement = placed_in(job, leaves, span, draft.nodes)
            if placement is not None and isinstance(draft.start(job.id, FITS, placement), Accepted):
                found = first
                break
            tried.append(first)
        for first in tried:
            free.give(first, size)
        if found is None:
            is_open = not any(node.closed for node in draft.nodes.values())
            return NEVER if is_open and placed_in(job, leaves, (0, total), draft.nodes) is None else BLOCKED
        draft.note("block", job.id, (found, size))
        return None

    def _size(self, draft: Draft, job: Job, leaves: Cores, total: int) -> int:
        """Returns the cores of the smallest kind of block that could hold the job; threads or features may require more than it needs."""
        size = job.cpus
        while job.shape is not PLAIN and size < total:
            wide = self.width ** height_of(self.width, size)
            if any(placed_in(job, leaves, (at, min(at + wide, total)), draft.nodes) is not None for at in range(0, total, wide)):
                break
            size = min(wide + 1, total)
        return size


def _first_leaves(leaves: Cores) -> dict[int, int]:
    """Returns node -> its first leaf."""
    found, at = {}, 0
    for node, cores in each_node(leaves):
        found[node] = at
        at += cores
    return found


def _occupy_block(free: Buddies, run: Running, block: tuple[int, ...] | None, starts: dict[int, int]) -> None:
    """Takes the run's block. For a run that another policy started, takes each used core of its nodes one by one."""
    if block is not None and free.take_at(*block):
        return
    for node, cores in cores_of(run).items():
        for at in range(cores if node in starts else 0):
            free.take_at(starts[node] + at, 1)


class Buddies:
    """Free blocks of a machine of `width ** height` processors, of which the first `leaves` are real. Cost: O(height x width + blocks)."""

    __slots__ = ("_free", "height", "leaves", "width")

    def __init__(self, width: int, leaves: int) -> None:
        self.width, self.leaves, self.height = width, leaves, height_of(width, leaves)
        self._free: list[list[int]] = [[] for _ in range(self.height + 1)]  # by k: first processors of free blocks, ascending
        self._free[self.height].append(0)

    def order(self, size: int) -> int:
        """Returns k of the smallest block for this size."""
        return height_of(self.width, size)

    def take(self, size: int) -> int | None:
        """Returns the first processor of a block for this size; None if no free block has that many real processors."""
        k = self.order(size)
        for found in range(k, self.height + 1):
            first = next((block for block in self._free[found] if min(self.width**k, self.leaves - block) >= size), None)
            if first is not None:
                self._free[found].remove(first)
                for j in range(found - 1, k - 1, -1):
                    for at in range(1, self.width):
                        insort(self._free[j], first + at * self.width**j)
                return first
        return None

    def take_at(self, first: int, size: int) -> bool:
        """Takes exactly this block, split out of the free block around it; False if it is not free."""
        k = self.order(size)
        if first % self.width**k:
            return False
        for j in range(k, self.height + 1):
            start = first - first % self.width**j
            at = bisect_left(self._free[j], start)
            if at < len(self._free[j]) and self._free[j][at] == start:
                del self._free[j][at]
                for i in range(j - 1, k - 1, -1):
                    mine = first - first % self.width**i
                    for other in range(start, start + self.width ** (i + 1), self.width**i):
                        if other != mine:
                            insort(self._free[i], other)
                    start = mine
                return True
        return False

    def give(self, first: int, size: int) -> None:
        """Frees the block and merges it with its buddies."""
        k = self.order(size)
        while k < self.height:
            step = self.width**k
            start = first - first % (step * self.width)
            buddies = [start + at * step for at in range(self.width) if start + at * step != first]
            free = self._free[k]
            places = [bisect_left(free, buddy) for buddy in buddies]
            if not all(at < len(free) and free[at] == buddy for at, buddy in zip(places, buddies, strict=True)):
                break
            for at in reversed(places):
                del free[at]
            first, k = start, k + 1
        insort(self._free[k], first)

    def free(self) -> list[tuple[int, int]]:
        """Returns (first processor, size) of every free block, ascending."""
        return sorted((first, self.width**k) for k, blocks in enumerate(self._free) for first in blocks)
