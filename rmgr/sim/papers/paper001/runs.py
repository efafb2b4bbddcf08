"""Paper 001, its runs: one algorithm of its table 1 on the grid, with the measures of its section 4; how checks and tables ask for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, groupby
from math import fsum
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

from rmgr.errors import RmgrError
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Placement
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import FASTEST, MINUTE_US, SLOWEST, UNIT, Grid, drawn
from rmgr.sim.engine.outcome import JobOutcome, Parting, Setting
from rmgr.sim.models.feitelson96 import Constants, feitelson96
from rmgr.sim.papers.report import Runs, mean, spread
from rmgr.sim.workload.jobs import Workload

TICK_US = 10 * MINUTE_US
JOBS = 10_000
#: Fields of a run that only the migrating algorithms have.
READINGS = ("followers", "suspend", "returns")
#: By name. Penalty 60 is called 20 mean run times of the paper, so its mean run time is 1,024 x 60 / 20 = 3,072 min.
ANCHORED = "3,072 min"
#: Fewer say nothing (papers.md 2.5).
LEAST_SEEDS = 3
#: Mean gaps between arrivals in minutes, from the paper's lowest to its highest.
INTERVALS = (500, 600, 800, 1000, 1250, 1500, 2000)
QUICK_INTERVALS = (500, 600, 2000)
#: Minutes a node, figure 4.
PENALTIES = (1, 10, 20, 30, 40, 50, 60)
#: The place of a job in the queue: smaller is nearer the head. Of (number, submit in us, processors).
Place: TypeAlias = Callable[[int, int, int], tuple[int, ...]]
FOLLOWING = 50
PLACES: dict[str, Place] = {
    "fcfs": lambda number, submit_us, _: (submit_us, number),
    "sjf": lambda number, submit_us, processors: (processors, submit_us, number),
    "ljf": lambda number, submit_us, processors: (-processors, submit_us, number),
}


class Algorithm(NamedTuple):
    """A row of table 1: its policy in the catalogue, the order of its queue."""

    policy: str
    order: str
    migrates: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "FCFS": Algorithm("fcfs", "fcfs"),
    "SJF": Algorithm("sjf", "sjf"),
    "LJF": Algorithm("ljf", "ljf"),
    "FCFS/FF": Algorithm("first_fit", "fcfs"),
    "LJF/FF": Algorithm("ljf_first_fit", "ljf"),
    "FCFS/FF+mig": Algorithm("migration", "fcfs", migrates=True),
    "LJF/FF+mig": Algorithm("ljf_migration", "ljf", migrates=True),
}


class Calibration(NamedTuple):
    """What stands for the constants that the paper does not print: of the model, and the speeds of the slowest and the fastest node."""

    constants: Constants = Constants()
    speeds: tuple[int, int] = (SLOWEST, FASTEST)


CALIBRATIONS: dict[str, Calibration] = {
    ANCHORED: Calibration(),  # one factor on CalcTime, 0.475, so that (2) and (3) included it is 3,072 min
    "3,072 min, equal nodes": Calibration(Constants(long_mean_min=9_700.0, middle_mean_min=730.0, short_mean_min=48.5), (UNIT, UNIT)),
    "as before": Calibration(Constants(long_mean_min=12_000.0, middle_mean_min=900.0, short_mean_min=60.0)),  # CalcTime without (2)
}


@dataclass(frozen=True, slots=True)
class AsNew:
    """Order in which a suspended job comes back as a new one: behind all (FCFS), behind those of its own size (LJF)."""

    name: ClassVar[str] = "as_new"
    largest: bool = False

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.cpus * self.largest, job.queued_us, job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper001Run:
    """Settings of one run. interval, penalty, max_wait (0 = no ageing): minutes. repeat: jobs are submitted again (papers.md 2.3).

    returns: the place of a suspended job in the queue: its `own`, or the `tail`. calibration: a name of `CALIBRATIONS`.
    """

    algorithm: str
    interval: int
    seed: int
    penalty: int = 1
    followers: str = "head"
    suspend: str = "all"
    returns: str = "own"
    calibration: str = ANCHORED
    max_wait: int = 0
    repeat: bool = False
    jobs: int = JOBS

    def __str__(self) -> str:
        return f"{self.algorithm} at {self.interval} min, seed {self.seed}"

    @property
    def parameters(self) -> dict[str, str]:
        """Of the policy."""
        found = {"followers": self.followers, "suspend": self.suspend} if ALGORITHMS[self.algorithm].migrates else {}
        return found | ({"max_wait": f"{self.max_wait}m"} if self.max_wait else {})


class Paper001Measures(NamedTuple):
    """Measures of one run, all jobs, no warm-up; times in minutes.

    slowdown_ratio: (5), mean response / mean run; mean_of_ratios: mean over jobs of response / run, which (5) is not.
    charged: of the mean run time, what (4) adds for each minute of penalty.
    utilisation: share of the nodes that run a job, from the first submit to the last end. starved: rule (6); starved_at_head: (6').
    held: jobs that stood at the head while (1) held. migrations: how many; needless: of them, by the schedule (`Judged`).
    migrated: of how many jobs; most_of_one: the largest number of times that one job was migrated.
    """

    slowdown_ratio: float
    mean_of_ratios: float
    utilisation: float
    mean_run: float
    charged: float
    mean_wait: float
    longest_wait: float
    starved: int
    starved_at_head: int
    held: int
    migrations: int
    needless: int
    migrated: int
    most_of_one: int


def measure(cell: Paper001Run) -> Paper001Measures:
    """Runs it. Cost: 1 to 3 s for 10,000 jobs."""
    algorithm = ALGORITHMS[cell.algorithm]
    workload = workload_of(cell.calibration, cell.seed, cell.interval, cell.jobs, cell.repeat)
    grid = drawn(cell.seed, penalty_us=cell.penalty * MINUTE_US, speeds=CALIBRATIONS[cell.calibration].speeds)
    policy = policy_named(algorithm.policy, cell.parameters)
    if cell.returns == "tail" and isinstance(policy, Migration):
        policy = replace(policy, order=AsNew(largest=algorithm.order == "ljf"))
    setting = Setting(
        nodes=grid.nodes(),
        pipeline=(Stage(policy),),
        policy=algorithm.policy,
        seed=cell.seed,
        tick_us=TICK_US,
        execution=grid,
    )
    result = simulate(workload, setting)
    if result.faults:
        raise RmgrError(f"{cell}: the policy failed {sum(times for _, times in result.faults)} times: {result.faults[0][0]}")
    return measures_of(tuple(result.outcomes), algorithm.order, grid, cell.followers, cell.returns)


@lru_cache(maxsize=2)
def workload_of(calibration: str, seed: int, interval: int, jobs: int = JOBS, repeat: bool = False) -> Workload:
    """The same jobs, and gaps in the same proportions, for every interval: common random numbers."""
    constants = replace(CALIBRATIONS[calibration].constants, interarrival_min=interval, repeat_exponent=2.5 if repeat else None)
    return feitelson96(jobs, seed=seed, constants=constants)


def measures_of(
    outcomes: Sequence[JobOutcome], order: str, grid: Grid, followers: str = "head", returns: str = "own"
) -> Paper001Measures:
    """The measures of section 4. Sums are exact."""
    count = len(outcomes)
    runs = [outcome.ran_us for outcome in outcomes]
    responses = [outcome.turnaround_us for outcome in outcomes]
    waits = [response - run for response, run in zip(responses, runs, strict=True)]
    makespan = max(outcome.end_us for outcome in outcomes) - min(outcome.job.submit_us for outcome in outcomes)
    work = sum(run * outcome.job.processors for run, outcome in zip(runs, outcomes, strict=True))
    nodes = len(grid.specs)
    moved = [sum(spell.parting is Parting.MIGRATED for spell in outcome.spells) for outcome in outcomes]
    literally = starved(waits)
    passed = passed_at_the_head(outcomes, PLACES[order])
    judged = judged_by_condition_1(outcomes, PLACES[order], nodes, TICK_US, followers=followers, returns=returns)
    return Paper001Measures(
        slowdown_ratio=sum(responses) / sum(runs),
        mean_of_ratios=fsum(response / run for response, run in zip(responses, runs, strict=True)) / count,
        utilisation=work / (nodes * makespan),
        mean_run=sum(runs) / count / MINUTE_US,
        charged=fsum(times * o.job.processors * _stretched(grid, o) for times, o in zip(moved, outcomes, strict=True) if times) / count,
        mean_wait=sum(waits) / count / MINUTE_US,
        longest_wait=max(waits) / MINUTE_US,
        starved=len(literally),
        starved_at_head=sum(outcomes[i].job.number in passed for i in literally),
        held=len(judged.held),
        migrations=sum(moved),
        needless=judged.needless,
        migrated=sum(map(bool, moved)),
        most_of_one=max(moved),
    )


def _stretched(grid: Grid, outcome: JobOutcome) -> float:
    """Spec_ave / Spec_min of its last stretch, (2)."""
    placement: Placement = tuple((first, last, 1) for first, last in outcome.spells[-1].cores)
    return grid.total_spec / len(grid.specs) / grid.slowest(placement)


class Paper001Runs(Runs[Paper001Run, Paper001Measures]):
    """Measures by algorithm and inter-arrival time, a value a seed.

    seeds: to fewer than three (papers.md 2.5) the next ones are added, for C1.4 to fewer than six. jobs: fewer give a look, not a result.
    quick: three inter-arrival times and two penalties, our reading alone.
    """

    def __init__(self, seeds: Sequence[int], *, jobs: int = JOBS, quick: bool = False) -> None:
        super().__init__(seeds, Paper001Measures(*[1] * len(Paper001Measures._fields)), measure, quick=quick)
        if len(seeds) < LEAST_SEEDS:
            self.remarks = (f"{LEAST_SEEDS} seeds were run, not {len(seeds)}: fewer say nothing (papers.md 2.5).",)
        self.intervals = QUICK_INTERVALS if quick else INTERVALS
        self.penalties = (PENALTIES[0], PENALTIES[-1]) if quick else PENALTIES
        self.fields: dict[str, Any] = {}
        self._jobs = jobs

    def having(self, **fields: Any) -> Paper001Runs:
        """The same runs with these fields of `Paper001Run`; how to migrate is said to the migrating algorithms only."""
        other = copy(self)
        other.fields = self.fields | fields
        return other

    def with_least_seeds(self) -> Paper001Runs:
        """The same runs of the first three seeds, for what is shown and not judged."""
        other = copy(self)
        other.seeds = self.seeds[:LEAST_SEEDS]
        return other

    def of(self, measure: str, algorithm: str, interval: int, *, least_seeds: int = LEAST_SEEDS, **other: Any) -> list[float]:
        """One value a seed. least_seeds: if fewer are run, the next ones are added. other: fields of `Paper001Run`."""
        seeds = list(self.seeds)
        while len(seeds) < least_seeds:
            seeds.append(max(seeds) + 1)
        fields = self.fields | other
        if not ALGORITHMS[algorithm].migrates:
            fields = {name: value for name, value in fields.items() if name not in READINGS}
        cells = [Paper001Run(algorithm=algorithm, interval=interval, seed=seed, jobs=self._jobs, **fields) for seed in seeds]
        return [float(getattr(self[cell], measure)) for cell in cells]

    def mean(self, measure: str, algorithm: str, interval: int, **other: Any) -> float:
        return mean(self.of(measure, algorithm, interval, **other))

    def spread(self, measure: str, algorithm: str, interval: int, **other: Any) -> float:
        return spread(self.of(measure, algorithm, interval, **other))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Of the means over the seeds."""
    return mean(above) / mean(below)


def ratio_spread(above: Sequence[float], below: Sequence[float]) -> float:
    """Standard deviation of the seeds' own ratios."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """left - right, seed by seed: the seeds share their workload."""
    return [a - b for a, b in zip(left, right, strict=True)]


# -- starved jobs: rule (6) of the paper, rule (6') of papers.md, and heads for which condition (1) held -----------------------


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


# -- condition (1), read from a schedule ---------------------------------------------------------------------------------------


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
