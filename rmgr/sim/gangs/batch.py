"""Batch comparison of paper 002: one queue, first come first served, binary buddies, the head blocks (section 5.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from rmgr.sched.policies.buddy_fcfs import Buddies
from rmgr.sim.gangs.workloads import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """utilisation: of blocks that run a task. longest_queue: tasks that waited at one instant, the most."""

    utilisation: float
    longest_queue: int


def run_batch(tasks: Sequence[Task], processors: int, slots: int, *, width: int = 2) -> BatchResult:
    """Ends come first at one instant, then arrivals, then starts. Cost: O(tasks x log)."""
    free = Buddies(width, processors)
    queue: deque[Task] = deque()
    running: list[tuple[int, int, int]] = []  # (end, first processor, size)
    used = longest = at = 0
    now = 0
    while now < slots:
        while running and running[0][0] <= now:
            _, first, size = heappop(running)
            free.give(first, size)
        while at < len(tasks) and tasks[at].arrival <= now:
            queue.append(tasks[at])
            at += 1
        while queue:
            found = free.take(queue[0].size)
            if found is None:
                break
            task = queue.popleft()
            heappush(running, (now + task.length, found, task.size))
            used += width ** free.order(task.size) * (min(now + task.length, slots) - now)
        longest = max(longest, len(queue))
        now = min(running[0][0] if running else slots, tasks[at].arrival if at < len(tasks) else slots, slots)
    return BatchResult(utilisation=used / (processors * slots), longest_queue=longest)
