"""The reference semantics of papers.md section 6 as a bare loop: processor counts, no nodes, no engine. Oracle and yardstick."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

#: Policies of `starts`; all others are refused.
POLICIES = ("fcfs", "first_fit", "easy")
#: (submit, run, size, estimate) of a job.
Plain = tuple[int, int, int, int]


def starts(jobs: Sequence[Plain], processors: int, policy: str) -> list[int]:
    """Returns each job's start under `fcfs`, `first_fit` or `easy`: completions, arrivals, then one pass at each instant that has either.

    Args:
        jobs: in order of submit time, none larger than the machine. Times in any unit.
    Raises: ValueError for another policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"the bare loop has no policy {policy!r}")
    ends: list[tuple[int, int]] = []
    running: dict[int, tuple[int, int]] = {}  # job -> (estimated end, size)
    queue: list[int] = []
    started = [-1] * len(jobs)
    free, arrived = processors, 0
    while arrived < len(jobs) or ends:
        now = min(jobs[arrived][0] if arrived < len(jobs) else ends[0][0], ends[0][0] if ends else jobs[arrived][0])
        while ends and ends[0][0] == now:
            free += running.pop(heapq.heappop(ends)[1])[1]
        while arrived < len(jobs) and jobs[arrived][0] == now:
            queue.append(arrived)
            arrived += 1
        chosen = _chosen(jobs, queue, running, free, now, policy)
        for job in chosen:
            _, run, size, estimate = jobs[job]
            started[job] = now
            free -= size
            running[job] = (now + estimate, size)
            heapq.heappush(ends, (now + run, job))
        if chosen:
            gone = set(chosen)
            queue = [job for job in queue if job not in gone]
    return started


def _chosen(jobs: Sequence[Plain], queue: list[int], running: dict[int, tuple[int, int]], free: int, now: int, policy: str) -> list[int]:
    chosen: list[int] = []
    at = 0
    while at < len(queue) and jobs[queue[at]][2] <= free:
        free -= jobs[queue[at]][2]
        chosen.append(queue[at])
        at += 1
    if policy == "fcfs" or at == len(queue) or not free:
        return chosen
    shadow, extra = 0, 0
    if policy == "easy":
        head = jobs[queue[at]][2]
        planned = sorted([*running.values(), *((now + jobs[job][3], jobs[job][2]) for job in chosen)])
        available = free
        for end, size in planned:
            if available >= head and end > shadow:
                break
            available += size
            shadow = end
        extra = available - head
    for job in queue[at + 1 :]:
        _, _, size, estimate = jobs[job]
        if size > free:
            continue
        if policy == "easy" and now + estimate > shadow:
            if size > extra:
                continue
            extra -= size
        free -= size
        chosen.append(job)
    return chosen
