"""First come, first served over binary buddies: the batch comparison of paper 002.

Algorithm: 1. the cores of the partition are blocks of width^k cores that are split and merged as buddies; 2. jobs start in order of
arrival; a job takes the smallest free block that holds it, split leftmost; 3. the first that finds none holds up those behind it.
Parameters: width. Source: papers.md 3.4; section 5.3 of the paper. Differs from it in: other numbers of cores than powers of the width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from rmgr.sched.capacity.gangs import leaves_of, placed_in
from rmgr.sched.draft import Draft
from rmgr.sched.job import PLAIN, Job, Running
from rmgr.sched.parameters import about
from rmgr.sched.plan import Accepted, Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Cores
from rmgr.sched.tree.buddy import Buddies

FITS = Why("buddy_fcfs", "starts on the first cores of a free block of its size")
BLOCKED = Why("buddy_fcfs", "no free block is large enough")
BEHIND = Why("buddy_fcfs", "waits behind a job that came earlier")
NEVER = Why("buddy_fcfs", "no block can hold its processes")


@dataclass(frozen=True, slots=True)
class BuddyFcfs:
    name: ClassVar[str] = "buddy_fcfs"
    width: int = field(default=2, metadata=about("blocks into which one is split", least=2, most=64))

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - what is there decides
        head = next(draft.by_arrival(), None)
        if head is None:
            return
        leaves = leaves_of(draft.nodes)
        total = sum((last - first + 1) * cores for first, last, cores in leaves)
        free = Buddies(self.width, total)
        starts = _starts(leaves)
        blocks = draft.notes("block")
        for run in draft.running():
            _occupy(free, run, blocks.get(run.job.id), starts)
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
        """Starts it on the first free block where its processes fit; else why not."""
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
        """Cores of the smallest kind of block of which one could hold the job: more than it needs where threads or features want it."""
        size = job.cpus
        while job.shape is not PLAIN and size < total:
            wide = 1
            while wide < size:
                wide *= self.width
            if any(placed_in(job, leaves, (at, min(at + wide, total)), draft.nodes) is not None for at in range(0, total, wide)):
                break
            size = min(wide + 1, total)
        return size


def _starts(leaves: Cores) -> dict[int, int]:
    """Node -> its first leaf."""
    found, at = {}, 0
    for first, last, cores in leaves:
        for node in range(first, last + 1):
            found[node] = at
            at += cores
    return found


def _occupy(free: Buddies, run: Running, block: tuple[int, ...] | None, starts: dict[int, int]) -> None:
    """The run's block is not free; one that this policy did not start takes every core of its nodes' used part, one by one."""
    if block is not None and free.take_at(*block):
        return
    for first, last, count in run.placement:
        for node in range(first, last + 1):
            for at in range(count * run.job.threads):
                if node in starts:
                    free.take_at(starts[node] + at, 1)
