"""Starved jobs from the outcomes of a run: rule (6) of paper 001, rule (6') of papers.md, and heads for which condition (1) held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from rmgr.sim.engine.outcome import JobOutcome, Parting

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


# -- condition (1), read from a schedule ------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """held: numbers of jobs that stood at the head after a pass although (1) held. needless: migrations that no head's start explains."""

    held: set[int]
    needless: int


class _Stretch(NamedTuple):
    """A stretch of running. place: in the queue from which it started. came_us: to that queue. moved: it ends in a migration."""

    start_us: int
    end_us: int
    place: tuple[int, ...]
    number: int
    nodes: int
    came_us: int
    moved: bool


def judged_by_condition_1(
    outcomes: Sequence[JobOutcome], place: Place, nodes: int, tick_us: int, *, followers: str = "head", returns: str = "own"
) -> Judged:
    """Judges a schedule of passes every `tick_us` by (1), N_head <= N_followers + N_idle; it knows the stretches alone, and no policy.

    After every pass: the queue is who has come and does not run; its head is held when its followers and the idle nodes have the nodes
    that it needs. A migration is needless when no job started in that pass which the migrated one had passed. followers, returns: as in
    papers.md 2.2. Without migration `held` counts the jobs that starve. Cost: O(stretches x running jobs), 0.3 s for 10,000 jobs.
    """
    stretches: list[_Stretch] = []
    for outcome in outcomes:
        job = outcome.job
        came_us = job.submit_us
        for spell in outcome.spells:
            its = place(job.number, came_us if returns == "tail" else job.submit_us, job.processors)
            moved = spell.parting is Parting.MIGRATED
            stretches.append(_Stretch(spell.start_us, spell.end_us, its, job.number, job.processors, came_us, moved))
            came_us = spell.end_us
    coming, starting = (sorted(stretches, key=key, reverse=True) for key in (attrgetter("came_us"), attrgetter("start_us")))
    moments = {at for s in stretches for at in (s.came_us, s.start_us, s.end_us)}
    waiting: list[tuple[tuple[int, ...], int, _Stretch]] = []
    running: list[tuple[_Stretch, int | None]] = []  # and the head that it passed
    idle, held, needless = nodes, set[int](), 0

    def passed(run: _Stretch, its_head: int | None, head: _Stretch) -> bool:
        match followers:
            case "any":
                return its_head is not None
            case "strict":
                return its_head == head.number and head.came_us <= run.start_us
            case _:
                return head.came_us <= run.start_us and head.place < run.place

    for now_us in sorted({-(-at // tick_us) * tick_us for at in moments}):
        ended = [(run, head) for run, head in running if run.end_us <= now_us]
        running = [(run, head) for run, head in running if run.end_us > now_us]
        idle += sum(run.nodes for run, _ in ended)
        while coming and coming[-1].came_us <= now_us:
            new = coming.pop()
            heappush(waiting, (new.place, new.number, new))
        begun: list[_Stretch] = []
        while starting and starting[-1].start_us <= now_us:
            begun.append(starting.pop())
        idle -= sum(run.nodes for run in begun)
        needless += sum(run.moved and not any(passed(run, its_head, head) for head in begun) for run, its_head in ended)
        while waiting and waiting[0][2].start_us <= now_us:
            heappop(waiting)
        head = waiting[0][2] if waiting else None
        # with followers=any the migrated may stand ahead of the head that they made room for: it did not pass them
        in_front = head if head and not (followers == "any" and head.came_us == now_us) else None
        running += [(run, in_front.number if in_front and in_front.place < run.place else None) for run in begun]
        if head and head.nodes <= idle + sum(run.nodes for run, its_head in running if passed(run, its_head, head)):
            held.add(head.number)
    return Judged(held, needless)
