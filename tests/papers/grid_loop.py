"""A plain loop over the grid of paper 001, written apart from the engine: what its schedules are compared with, job by job.

No drafts, no records, no pools: sets of nodes, a sorted list, and the pseudo code of papers.md 2.2 from top to bottom.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush

from rmgr.sim.engine.execution import Grid, unexecuted
from rmgr.sim.papers.paper001 import PLACES
from rmgr.sim.workload.jobs import Workload

TICK_US = 600_000_000


def stretches(
    workload: Workload,
    grid: Grid,
    order: str,
    *,
    search: bool = False,
    migration: bool = False,
    any_head: bool = False,
    every: bool = False,
) -> dict[int, list[tuple[int, int]]]:
    """(start, end) of each stretch of each job. any_head: followers=any. every: suspend=all."""
    jobs = {job.number: job for job in workload.jobs}
    place = {job.number: PLACES[order](job.number, job.submit_us, job.processors) for job in workload.jobs}
    left = {job.number: grid.work(job) for job in workload.jobs}
    idle = set(range(len(grid.specs)))
    queue: list[tuple[tuple[int, ...], int]] = []
    came: dict[int, int] = {}
    running: dict[int, tuple[int, int, list[int]]] = {}
    passed: dict[int, int] = {}  # follower -> the head it passed
    ends: list[tuple[int, int]] = []
    found: dict[int, list[tuple[int, int]]] = {job.number: [] for job in workload.jobs}
    arrivals = list(workload.jobs)

    def enqueue(number: int, at_us: int) -> None:
        insort(queue, (place[number], number))
        came[number] = at_us

    def start(number: int, now_us: int) -> None:
        queue.remove((place[number], number))
        nodes = sorted(idle)[: jobs[number].processors]
        idle.difference_update(nodes)
        length_us = grid.duration_us(jobs[number], left[number], tuple((node, node, 1) for node in nodes))
        running[number] = (now_us, length_us, nodes)
        heappush(ends, (now_us + length_us, number))

    def followers(head: int) -> list[int]:
        of_it = [
            number
            for number, its in passed.items()
            if any_head or (came[head] <= running[number][0] and (its == head or place[head] < place[number]))
        ]
        return sorted(of_it, key=lambda number: (running[number][0], number), reverse=True)

    while arrivals or running or queue:
        events = [job.submit_us for job in arrivals[:1]] + [end_us for end_us, _ in ends[:1]]
        now_us = -(-min(events) // TICK_US) * TICK_US
        while ends and ends[0][0] <= now_us:
            end_us, number = heappop(ends)
            if number in running and sum(running[number][:2]) == end_us:
                start_us, _, nodes = running.pop(number)
                passed.pop(number, None)
                idle.update(nodes)
                found[number].append((start_us, end_us))
        while arrivals and arrivals[0].submit_us <= now_us:
            job = arrivals.pop(0)
            enqueue(job.number, job.submit_us)
        while queue:
            while queue and jobs[queue[0][1]].processors <= len(idle):
                start(queue[0][1], now_us)
            if not queue or not migration:
                break
            head = queue[0][1]
            of_it = followers(head)
            if jobs[head].processors > len(idle) + sum(jobs[number].processors for number in of_it):
                break
            for number in of_it:
                if not every and jobs[head].processors <= len(idle):
                    break
                start_us, length_us, nodes = running.pop(number)
                del passed[number]
                idle.update(nodes)
                found[number].append((start_us, now_us))
                left[number] = grid.after_migration(jobs[number], unexecuted(left[number], now_us - start_us, length_us))
                enqueue(number, now_us)
            start(head, now_us)
        if search and queue:
            head = queue[0][1]
            for _, number in queue.copy():
                if jobs[number].processors <= len(idle):
                    start(number, now_us)
                    if migration:
                        passed[number] = head
    return found
