"""Starved jobs as paper 001 counts them, rule (6), and as papers.md corrects it, rule (6'), from the outcomes of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate, groupby
from typing import TypeAlias

from rmgr.sim.engine.outcome import JobOutcome

#: The place of a job in the queue: smaller is nearer the head. Of (number, submit in us, processors).
Place: TypeAlias = Callable[[int, int, int], tuple[int, ...]]

FOLLOWING = 50

PLACES: dict[str, Place] = {
    "fcfs": lambda number, submit_us, _: (submit_us, number),
    "sjf": lambda number, submit_us, processors: (processors, submit_us, number),
    "ljf": lambda number, submit_us, processors: (-processors, submit_us, number),
}


def starved(waits: Sequence[int], following: int = FOLLOWING) -> list[int]:
    """Rule (6): positions i with wait_i >= the sum of the waits of the next `following` jobs, in order of arrival.

    The last jobs, with fewer behind them, are not judged. Cost: O(n).
    """
    sums = [0, *accumulate(waits)]
    return [i for i in range(len(waits) - following) if waits[i] >= sums[i + 1 + following] - sums[i + 1]]


def passed_at_the_head(outcomes: Sequence[JobOutcome], place: Place) -> set[int]:
    """Numbers of jobs that a later one passed while they waited at the head of the queue.

    Played again from the spells: at each time of starts, who had come (or come back) and not started; the head of those that
    still wait after it was passed when a job of a later number and a later place started then. Cost: O(spells x log).
    """
    came: list[tuple[int, tuple[int, ...], int, int]] = []  # (time, place, number, spell)
    starts: list[tuple[int, int, tuple[int, ...], int]] = []  # (time, number, place, spell)
    for outcome in outcomes:
        job = outcome.job
        its = place(job.number, job.submit_us, job.processors)
        came_us = job.submit_us
        for at, spell in enumerate(outcome.spells):
            came.append((came_us, its, job.number, at))
            starts.append((spell.start_us, job.number, its, at))
            came_us = spell.end_us
    came.sort()
    starts.sort()
    passed: set[int] = set()
    queue: list[tuple[tuple[int, ...], int, int]] = []
    begun: dict[int, int] = defaultdict(int)  # number -> spells that have begun
    arrived = 0
    for time_us, group in groupby(starts, key=_time):
        while arrived < len(came) and came[arrived][0] <= time_us:
            heappush(queue, came[arrived][1:])
            arrived += 1
        now = list(group)
        for _, number, _, at in now:
            begun[number] = at + 1
        while queue and begun[queue[0][1]] > queue[0][2]:
            heappop(queue)
        if queue:
            its, head, _ = queue[0]
            if any(number > head and other > its for _, number, other, _ in now):
                passed.add(head)
    return passed


def _time(start: tuple[int, int, tuple[int, ...], int]) -> int:
    return start[0]
