"""Repeats paper 001, migration against starvation on a grid (Iwakiri, Yamamori, Yoshihara, Aikawa; papers.md section 2).

The file has three parts. Runs: an algorithm of table 1 on the grid, with the measures of section 4 of the paper, and how checks and tables
ask for runs. Checks C1.1 to C1.10 (papers.md 2.5), each with the runs that it asks for. Tables and figures. It uses modules below
`papers`, and no other paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate, groupby, pairwise, product
from math import fsum
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

from rmgr.errors import RmgrError
from rmgr.sched.catalogue import policy_named
from rmgr.sched.job import Job, Placement
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policy import KeyedOrder, Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import FASTEST, MINUTE_US, NODES, SLOWEST, UNIT, Grid, drawn
from rmgr.sim.engine.outcome import JobOutcome, Parting, Setting
from rmgr.sim.models.feitelson96 import Constants, feitelson96
from rmgr.sim.papers.report import Cell, Figure, Line, PaperCheck, Point, Runs, Study, Table, Within, WithinBounds, mean, over_seeds, spread
from rmgr.sim.workload.jobs import Workload, WorkloadJob

TICK_US = 10 * MINUTE_US
JOBS = 10_000
#: Fields of a run that apply to migrating algorithms only.
READINGS = ("followers", "suspend", "returns")
#: Name of the default calibration. The paper equates penalty 60 to 20 mean run times, so its mean run time is 1,024 x 60 / 20 = 3,072 min.
ANCHORED = "3,072 min"
#: Fewer seeds say nothing (papers.md 2.5).
LEAST_SEEDS = 3
#: Mean gaps between arrivals in minutes, from the paper's lowest to its highest.
INTERVALS = (500, 600, 800, 1000, 1250, 1500, 2000)
QUICK_INTERVALS = (500, 600, 2000)
#: Penalties of figure 4, in minutes per node.
PENALTIES = (1, 10, 20, 30, 40, 50, 60)
#: (number, submit in us, processors) of a job -> its place in the queue; smaller is nearer the head.
Place: TypeAlias = Callable[[int, int, int], tuple[int, ...]]
FOLLOWING = 50
PLACES: dict[str, Place] = {
    "fcfs": lambda number, submit_us, _: (submit_us, number),
    "sjf": lambda number, submit_us, processors: (processors, submit_us, number),
    "ljf": lambda number, submit_us, processors: (-processors, submit_us, number),
}


class Algorithm(NamedTuple):
    """A row of table 1: its policy in the catalogue, the order of its queue, and whether it migrates jobs."""

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
    """Values for constants that the paper does not print: those of the model, and the speeds of the slowest and the fastest node."""

    constants: Constants = Constants()
    speeds: tuple[int, int] = (SLOWEST, FASTEST)


CALIBRATIONS: dict[str, Calibration] = {
    ANCHORED: Calibration(),  # CalcTime x 0.475, so that the mean run time with (2) and (3) is 3,072 min
    "3,072 min, equal nodes": Calibration(Constants(long_mean_min=9_700.0, middle_mean_min=730.0, short_mean_min=48.5), (UNIT, UNIT)),
    "as before": Calibration(Constants(long_mean_min=12_000.0, middle_mean_min=900.0, short_mean_min=60.0)),  # CalcTime without (2)
}


@dataclass(frozen=True, slots=True)
class AsNew(KeyedOrder):
    """Order in which a suspended job comes back as a new one: behind all jobs (FCFS) or behind those of its own size (LJF)."""

    name: ClassVar[str] = "as_new"
    largest: bool = False

    def key(self, job: Job) -> tuple[int, ...]:
        return (-job.cpus * self.largest, job.queued_us, job.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper001Run:
    """Settings of one run. interval, max_wait (0 = no ageing): minutes; penalty: minutes per node. repeat: jobs repeat (papers.md 2.3).

    returns: place to which a suspended job returns in the queue: its `own`, or the `tail`. calibration: a name of `CALIBRATIONS`.
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
        """Returns the parameters of the policy."""
        found = {"followers": self.followers, "suspend": self.suspend} if ALGORITHMS[self.algorithm].migrates else {}
        return found | ({"max_wait": f"{self.max_wait}m"} if self.max_wait else {})


class Paper001Measures(NamedTuple):
    """Measures of one run over all jobs, without warm-up; times in minutes.

    slowdown_ratio: (5), mean response / mean run. mean_of_ratios: mean over jobs of response / run, which differs from (5).
    charged: how much (4) adds to the mean run time for each minute of penalty.
    utilisation: share of the nodes that run a job, from the first submit to the last end. starved: rule (6); starved_at_head: (6').
    held: number of jobs that stayed at the head while (1) held. migrations, needless: their number, and how many were needless (`Judged`).
    migrated: number of jobs that were migrated; most_of_one: the largest number of migrations of one job.
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
    """Runs the cell and measures it. Cost: 1 to 3 s for 10,000 jobs."""
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
    """Returns the workload. Every interval has the same jobs and gaps in the same proportions (common random numbers)."""
    constants = replace(CALIBRATIONS[calibration].constants, interarrival_min=interval, repeat_exponent=2.5 if repeat else None)
    return feitelson96(jobs, seed=seed, constants=constants)


def measures_of(outcomes: Sequence[JobOutcome], order: str, grid: Grid, followers: str = "head", returns: str = "own") -> Paper001Measures:
    """Returns the measures of section 4 of the paper. Sums are exact."""
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
    """Returns Spec_ave / Spec_min (2) for the job's last stretch of running."""
    placement: Placement = tuple((first, last, 1) for first, last in outcome.spells[-1].cores)
    return grid.total_spec / len(grid.specs) / grid.slowest(placement)


class Paper001Runs(Runs[Paper001Run, Paper001Measures]):
    """Measures by algorithm and inter-arrival time, one value per seed.

    seeds: filled up with the next ones to three (papers.md 2.5), for C1.4 to six. jobs: fewer give an impression, not a result.
    quick: only three inter-arrival times, two penalties and our own reading.
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
        """Returns the same runs with these fields of `Paper001Run`; those in `READINGS` apply to migrating algorithms only."""
        other = copy(self)
        other.fields = self.fields | fields
        return other

    def with_least_seeds(self) -> Paper001Runs:
        """Returns the same runs with the first three seeds only, for tables and figures that are not judged."""
        other = copy(self)
        other.seeds = self.seeds[:LEAST_SEEDS]
        return other

    def of(self, measure: str, algorithm: str, interval: int, *, least_seeds: int = LEAST_SEEDS, **other: Any) -> list[float]:
        """Returns one value per seed. least_seeds: fewer seeds are filled up with the next ones. other: fields of `Paper001Run`."""
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


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Returns the ratio of the means over the seeds."""
    return mean(above) / mean(below)


def ratios(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Any]:
    """Returns `ours` and `spread` of a check: the ratio of the means of each pair, and the standard deviation of those of single seeds."""
    spreads = {row: spread([a / b for a, b in zip(above, below, strict=True)]) for row, (above, below) in pairs.items()}
    return {"ours": {row: ratio(*pair) for row, pair in pairs.items()}, "spread": spreads}


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Returns left - right for each seed, since both sides have the same workload."""
    return [a - b for a, b in zip(left, right, strict=True)]


# -- starved jobs: rule (6) of the paper, rule (6') of papers.md, and heads for which condition (1) held -----------------------


def starved(waits: Sequence[int], following: int = FOLLOWING) -> list[int]:
    """Applies rule (6): returns positions i with wait_i >= the sum of the waits of the next `following` jobs, in order of arrival.

    The last `following` jobs are not judged, since fewer come after them. Cost: O(n).
    """
    sums = [0, *accumulate(waits)]
    return [i for i in range(len(waits) - following) if waits[i] >= sums[i + 1 + following] - sums[i + 1]]


def passed_at_the_head(outcomes: Sequence[JobOutcome], place: Place) -> set[int]:
    """Returns the numbers of jobs that a later job passed while they waited at the head of the queue.

    The queue is replayed from the spells: it holds the jobs that have come (or come back) and not started. After the starts of
    each instant, its head was passed if a job with a higher number and a later place started then. Cost: O(spells x log).
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
    begun: dict[int, int] = defaultdict(int)  # number -> number of spells that have begun
    arrived = 0
    for time_us, group in groupby(starts, key=itemgetter(0)):
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


# -- condition (1), read from a schedule ---------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """held: numbers of jobs that stayed at the head after a pass although (1) held. needless: number of migrations that no head needed."""

    held: set[int]
    needless: int


class _Stretch(NamedTuple):
    """A stretch of running. place: in the queue before it started. came_us: when the job came to the queue. moved: ends in a migration."""

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
    """Judges a schedule of passes every `tick_us` by (1), N_head <= N_followers + N_idle, from the stretches alone, whatever the policy.

    After every pass, the queue consists of the jobs that have come and do not run. Its head is held if its followers and the idle nodes
    have the nodes that it needs. A migration is needless if no job started in that pass that the migrated job had passed. followers,
    returns: as in papers.md 2.2. Without migration `held` counts starving jobs. Cost: O(stretches x running jobs), 0.3 s for 10,000 jobs.
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
    running: list[tuple[_Stretch, int | None]] = []  # with the head that the job passed
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
        # with followers=any, migrated jobs may stand ahead of the head for which they made room; that head did not pass them
        in_front = head if head and not (followers == "any" and head.came_us == now_us) else None
        running += [(run, in_front.number if in_front and in_front.place < run.place else None) for run in begun]
        if head and head.nodes <= idle + sum(run.nodes for run, its_head in running if passed(run, its_head, head)):
            held.add(head.number)
    return Judged(held, needless)


# -- checks ------------------------------------------------------------------------------------------------------------------

BUSY, LESS_BUSY = 500, 600
SR, RUN = "slowdown_ratio", "mean_run"
#: Seeds of C1.4, which three seeds do not decide.
SEEDS_OF_C1_4 = 6
PAIRS = (("FCFS", "FCFS/FF"), ("LJF", "LJF/FF"))
MIGRATING = (("FCFS/FF", "FCFS/FF+mig"), ("LJF/FF", "LJF/FF+mig"))
#: Numbers that the paper's text prints.
PAPER_STARVED = {"FCFS/FF": 93, "LJF/FF": 78, "FCFS/FF+mig": 0, "LJF/FF+mig": 0}
PAPER_MIGRATIONS = {"FCFS/FF+mig": 1300, "LJF/FF+mig": 361}
PAPER_RATIO = PAPER_MIGRATIONS["FCFS/FF+mig"] / PAPER_MIGRATIONS["LJF/FF+mig"]
#: Jobs of figure 1, by number: (submit minute, nodes, minutes to run).
_JOBS = ((0, 512, 5000), (0, 100, 20), (5, 512, 300), (6, 128, 1000), (7, 128, 700), (8, 156, 400))
_ROOMY = ((0, 512, 5000), (0, 300, 20), (5, 412, 300), (6, 64, 1000), (7, 64, 700), (8, 84, 400))
HEAD, FOLLOWERS = 3, (4, 5, 6)
#: Tick at which the head can start, since job 2 has ended.
TICK_MIN = 20


class Reading(NamedTuple):
    """A reading of papers.md 2.2 at one inter-arrival time, measured with three seeds."""

    interval: int
    followers: str = "head"
    suspend: str = "all"
    returns: str = "own"

    def __str__(self) -> str:
        return f"{self.interval} {self.followers} {self.suspend} {self.returns}"

    def of(self, runs: Paper001Runs, measure: str) -> dict[str, float]:
        """Returns means by algorithm, for First-Fit without and with migration."""
        its = runs.with_least_seeds().having(followers=self.followers, suspend=self.suspend, returns=self.returns)
        return {name: its.mean(measure, name, self.interval) for pair in MIGRATING for name in pair}

    def ratio(self, runs: Paper001Runs) -> float:
        """Returns migrations of FCFS / migrations of LJF."""
        found = self.of(runs, "migrations")
        return found["FCFS/FF+mig"] / max(found["LJF/FF+mig"], 1)

    def distance(self, runs: Paper001Runs) -> float:
        """Returns the mean relative difference between our numbers of migrations and the paper's two numbers."""
        found = self.of(runs, "migrations")
        return mean(abs(found[name] / printed - 1) for name, printed in PAPER_MIGRATIONS.items())


def readings(runs: Paper001Runs) -> list[Reading]:
    """Returns the readings that the paper leaves open; in a quick report only our own."""
    if runs.quick:
        return [Reading(BUSY)]
    return [Reading(*each) for each in product((400, 500, 600), ("strict", "head", "any"), ("minimal", "all"), ("own", "tail"))]


def c1_1(runs: Paper001Runs) -> Iterator[PaperCheck]:
    ours = {}
    for name in ALGORITHMS:
        means = [runs.mean(SR, name, interval) for interval in runs.intervals]
        ours[name] = max(later / earlier for earlier, later in pairwise(means))
    yield PaperCheck(
        "C1.1", f"SR falls with every step of the inter-arrival time, {INTERVALS[0]} to {INTERVALS[-1]} min: its largest step, as a factor",
        ours=ours, rule=WithinBounds(below=1),
    )


def c1_2(runs: Paper001Runs) -> Iterator[PaperCheck]:
    low = ("SJF", "FCFS/FF", "LJF/FF")
    by_name = {name: runs.of(SR, name, BUSY) for name in ("LJF", "FCFS", *low)}
    largest = max(low, key=lambda name: mean(by_name[name]))
    pairs = {
        "LJF / FCFS": (by_name["LJF"], by_name["FCFS"]),
        "FCFS / the largest of SJF, FCFS/FF, LJF/FF": (by_name["FCFS"], by_name[largest]),
    }
    yield PaperCheck(
        "C1.2", f"at {BUSY} min: SR(LJF) > SR(FCFS) > SR of SJF, FCFS/FF and LJF/FF",
        **ratios(pairs), rule=WithinBounds(above=1),
    )


def c1_3(runs: Paper001Runs) -> Iterator[PaperCheck]:
    pairs = {
        f"{with_search} / {without} at {interval}": (runs.of(SR, with_search, interval), runs.of(SR, without, interval))
        for without, with_search in PAIRS
        for interval in runs.intervals
    }
    yield PaperCheck(id="C1.3", what="First-Fit lowers SR at every inter-arrival time", **ratios(pairs), rule=WithinBounds(below=1))


def c1_4(runs: Paper001Runs) -> Iterator[PaperCheck]:
    for (without, migrating), part in zip(MIGRATING, ("", "b"), strict=True):
        pairs = {}
        for interval in (BUSY, LESS_BUSY):
            above, below = (runs.of(SR, name, interval, least_seeds=SEEDS_OF_C1_4) for name in (migrating, without))
            pairs[f"at {interval}"] = (above, below)
        yield PaperCheck(
            f"C1.4{part}", f"SR({migrating}) / SR({without}), at least {SEEDS_OF_C1_4} seeds",
            **ratios(pairs), rule=WithinBounds(at_most=1), required=not part,
        )


def c1_5(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {
        migrating: differences(runs.of("utilisation", migrating, BUSY), runs.of("utilisation", without, BUSY))
        for without, migrating in MIGRATING
    }
    yield PaperCheck(
        "C1.5", f"at {BUSY} min migration does not lower the utilisation: with - without",
        **over_seeds(found), rule=WithinBounds(at_least=0),
    )


def c1_6(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = differences(runs.of("utilisation", "LJF", BUSY), runs.of("utilisation", "SJF", BUSY))
    yield PaperCheck("C1.6", f"at {BUSY} min: utilisation(LJF) - utilisation(SJF)", **over_seeds(found), rule=WithinBounds(at_least=0))


def growth(runs: Paper001Runs, algorithm: str, penalty: int = PENALTIES[-1]) -> list[float]:
    """Returns for each seed by which share the mean run time grows from the lowest penalty to `penalty`."""
    low = runs.of(RUN, algorithm, BUSY, penalty=PENALTIES[0])
    high = runs.of(RUN, algorithm, BUSY, penalty=penalty)
    return [b / a - 1 for a, b in zip(low, high, strict=True)]


def _charged(runs: Paper001Runs, algorithm: str) -> list[float]:
    """Returns for each seed the growth of the mean run time / the growth of the cost of all counted migrations."""
    low, high = ({m: runs.of(m, algorithm, BUSY, penalty=p) for m in (RUN, "charged")} for p in (PENALTIES[0], PENALTIES[-1]))
    costs = [PENALTIES[-1] * b - PENALTIES[0] * a for a, b in zip(low["charged"], high["charged"], strict=True)]
    return [(b - a) / max(cost, 1) for a, b, cost in zip(low[RUN], high[RUN], costs, strict=True)]


def c1_7(runs: Paper001Runs) -> Iterator[PaperCheck]:
    both = [migrating for _, migrating in MIGRATING]
    grown = {name: growth(runs, name) for name in both}
    yield PaperCheck(
        "C1.7", f"at {BUSY} min the mean run time grows with the penalty, {PENALTIES[0]} to {PENALTIES[-1]} min a node: share",
        **over_seeds(grown), rule=WithinBounds(above=0),
    )
    charged = {name: _charged(runs, name) for name in both}
    yield PaperCheck(
        "C1.7c", "it grows by what (4) charges, N x penalty for each migration at the speed of (2): growth / charge",
        paper=dict.fromkeys(both, 1), **over_seeds(charged), rule=Within(relative=0.25),
    )
    more = differences(*grown.values())
    yield PaperCheck(
        "C1.7b", f"it grows at least as much for {both[0]} as for {both[1]}: difference of the shares",
        **over_seeds(more), rule=WithinBounds(at_least=0),
    )


def c1_8(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {name: runs.of("migrations", name, BUSY) for _, name in MIGRATING}
    first, second = found.values()
    yield PaperCheck(
        "C1.8", f"at {BUSY} min there are 10^2 to 10^3 migrations",
        paper=PAPER_MIGRATIONS, **over_seeds(found), rule=WithinBounds(at_least=100, at_most=max(PAPER_MIGRATIONS.values())),
    )
    needless = {name: mean(runs.of("needless", name, BUSY)) for _, name in MIGRATING}
    yield PaperCheck(
        "C1.8d", "migrations that no head explains which the migrated job had passed, by the schedule alone",
        paper=dict.fromkeys(needless, 0), ours=needless, rule=Within(),
    )
    yield PaperCheck(
        "C1.8b", "more of them with FCFS/FF than with LJF/FF: ratio",
        paper=PAPER_RATIO, ours=ratio(first, second), spread=spread([a / b for a, b in zip(first, second, strict=True)]),
        rule=WithinBounds(above=1),
    )


def c1_8_readings(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {str(reading): reading.ratio(runs) for reading in readings(runs)}
    nearest = min(found, key=lambda name: abs(found[name] - PAPER_RATIO))
    yield PaperCheck(
        "C1.8c", f"that ratio as the paper has it; nearest of {len(found)} readings: {nearest}",
        paper=PAPER_RATIO, ours=found[nearest], rule=Within(relative=0.5),
    )


def c1_9(runs: Paper001Runs) -> Iterator[PaperCheck]:
    counts = {name: runs.of("starved", name, BUSY) for pair in MIGRATING for name in pair}
    fallen = {after: [1 - b / max(a, 1) for a, b in zip(counts[before], counts[after], strict=True)] for before, after in MIGRATING}
    yield PaperCheck(
        "C1.9", f"at {BUSY} min migration lowers the number of starved jobs, rule (6), by 30 % and more: share",
        paper=dict.fromkeys(fallen, 1), ours={after: 1 - ratio(counts[after], counts[before]) for before, after in MIGRATING},
        spread={name: spread(values) for name, values in fallen.items()}, rule=WithinBounds(at_least=0.3),
    )
    held = {migrating: mean(runs.of("held", migrating, BUSY)) for _, migrating in MIGRATING}
    yield PaperCheck(
        "C1.9e", "jobs that stood at the head while (1) held, by the schedule alone",
        paper=dict.fromkeys(held, 0), ours=held, rule=Within(),
    )


def c1_9_readings(runs: Paper001Runs) -> Iterator[PaperCheck]:
    found = {str(reading): reading.of(runs, "starved") for reading in readings(runs)}
    nearest = min(found, key=lambda name: sum(abs(found[name][row] - printed) for row, printed in PAPER_STARVED.items()))
    yield PaperCheck(
        "C1.9b", f"starved jobs, rule (6), within a half of the paper's; nearest of {len(found)} readings: {nearest}",
        paper=PAPER_STARVED, ours=found[nearest], rule=Within(relative=0.5),
    )


def c1_9_by_hand(_runs: Paper001Runs) -> Iterator[PaperCheck]:
    demanded, happens = found()
    what = "figure 1 by hand: the head starts at the next tick, its followers run exactly N x penalty longer"
    yield PaperCheck(id="C1.9c", what=what, paper=demanded, ours=happens, rule=Within())
    demanded, happens = differing()
    what = "a case by hand in which suspend=all and suspend=minimal differ: what each follower runs longer"
    yield PaperCheck(id="C1.9d", what=what, paper=demanded, ours=happens, rule=Within())


def c1_10(runs: Paper001Runs) -> Iterator[PaperCheck]:
    kinds = (
        (
            "",
            "mean_of_ratios",
            "the mean of the jobs' own ratios ranks otherwise than (5): migration makes it worse",
            WithinBounds(above=1),
        ),
        ("b", SR, "(5), the ratio of means, as the other checks take it: with / without migration", WithinBounds(at_most=1)),
    )
    for part, measure, what, rule in kinds:
        found = {f"{b} / {a}": (runs.of(measure, b, BUSY), runs.of(measure, a, BUSY)) for a, b in MIGRATING}
        yield PaperCheck(id=f"C1.10{part}", what=f"at {BUSY} min {what}", **ratios(found), rule=rule, required=not part)


def at_both(check: Callable[[Paper001Runs], Iterator[PaperCheck]]) -> Callable[[Paper001Runs], Iterator[PaperCheck]]:
    """Returns the check with all followers suspended, and as a reported check (id with an `m`) with as few as the head needs."""

    def checks(runs: Paper001Runs) -> Iterator[PaperCheck]:
        yield from check(runs)
        for fewest in () if runs.quick else check(runs.having(suspend="minimal")):
            yield replace(fewest, id=f"{fewest.id}m", what=f"suspend=minimal: {fewest.what}", required=False)

    return checks


def joined(*checks: Callable[[Paper001Runs], Iterator[PaperCheck]]) -> Callable[[Paper001Runs], Iterator[PaperCheck]]:
    """Returns all the checks as one."""
    return lambda runs: (found for check in checks for found in check(runs))


CHECKS: Mapping[str, Callable[[Paper001Runs], Iterator[PaperCheck]]] = {
    "C1.1": at_both(c1_1),
    "C1.2": c1_2,
    "C1.3": c1_3,
    "C1.4": at_both(c1_4),
    "C1.5": at_both(c1_5),
    "C1.6": c1_6,
    "C1.7": at_both(c1_7),
    "C1.8": joined(at_both(c1_8), c1_8_readings),
    "C1.9": joined(at_both(c1_9), c1_9_readings, c1_9_by_hand),
    "C1.10": at_both(c1_10),
}


# -- figure 1 by hand ----------------------------------------------------------------------------------------------------------

# Paper 001, figure 1 by hand: a head of 512 nodes, three followers, and 512 nodes that are idle or that the followers use.
#
# minute      0         5        10                 20
# job 1       512 nodes until minute 5,000
# job 2       100 nodes until minute 20
# job 3                 asks for 512, 412 are idle  starts: 100 idle + 412 of its followers
# jobs 4,5,6            ask      start past job 3   suspended; go on when job 3 has ended
#
# If the head needs fewer nodes than are idle or used by followers (`_ROOMY`), `suspend` decides which followers are suspended:
#
# minute      0         5        10                 20
# job 2       300 nodes until minute 20
# job 3                 asks for 412, 212 are idle  starts; 300 are idle: it needs 112 of the 212 that its followers use
# jobs 4,5,6            64 + 64 + 84 start past it  minimal: 6 and 5 are suspended; all: 4 too, which starts again at once


def workload(rows: Sequence[tuple[int, int, int]] = _JOBS) -> Workload:
    jobs = tuple(
        WorkloadJob(
            number=number,
            submit_us=submit * MINUTE_US,
            run_us=run * MINUTE_US,
            estimate_us=run * MINUTE_US,
            processors=nodes,
            processes=nodes,
        )
        for number, (submit, nodes, run) in enumerate(rows, 1)
    )
    return Workload(name="figure 1", jobs=jobs, processors=NODES)


def outcomes(
    policy: str = "migration",
    *,
    penalty: int = 1,
    parameters: Mapping[str, str] | None = None,
    rows: Sequence[tuple[int, int, int]] = _JOBS,
) -> tuple[JobOutcome, ...]:
    """Returns the outcome of each job on 1,024 equal nodes of one site. penalty: minutes per node."""
    grid = Grid(specs=(UNIT,) * NODES, sites=(0,) * NODES, penalty_us=penalty * MINUTE_US)
    setting = Setting(
        nodes=grid.nodes(),
        pipeline=(Stage(policy_named(policy, parameters or {})),),
        policy=policy,
        tick_us=TICK_US,
        execution=grid,
    )
    return tuple(simulate(workload(rows), setting).outcomes)


def found(penalty: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """Returns (values by the paper's text, measured values): minutes from the tick to the head's start, and by which each follower's run
    grows.
    """
    jobs = outcomes(penalty=penalty)
    demanded: dict[str, float] = {"head starts after the tick [min]": 0}
    happens: dict[str, float] = {"head starts after the tick [min]": jobs[HEAD - 1].start_us / MINUTE_US - TICK_MIN}
    for number in FOLLOWERS:
        outcome = jobs[number - 1]
        name = f"job {number}, {outcome.job.processors} nodes, runs longer [min]"
        demanded[name] = outcome.job.processors * penalty
        happens[name] = (outcome.ran_us - outcome.job.run_us) / MINUTE_US
    return demanded, happens


def differing(penalty: int = 1) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the same for each setting of `suspend`, in the case `_ROOMY`."""
    demanded: dict[str, float] = {}
    happens: dict[str, float] = {}
    for suspend, spared in (("all", ()), ("minimal", (4,))):
        jobs = outcomes(penalty=penalty, parameters={"suspend": suspend}, rows=_ROOMY)
        happens[f"{suspend}: head starts after the tick"] = jobs[HEAD - 1].start_us / MINUTE_US - TICK_MIN
        demanded[f"{suspend}: head starts after the tick"] = 0
        for number in FOLLOWERS:
            outcome = jobs[number - 1]
            demanded[f"{suspend}: job {number}"] = 0 if number in spared else outcome.job.processors * penalty
            happens[f"{suspend}: job {number}"] = (outcome.ran_us - outcome.job.run_us) / MINUTE_US
    return demanded, happens


# -- tables and figures ------------------------------------------------------------------------------------------------------

#: Required check that is known not to hold -> the experiment that shows why (papers.md 7).
EXPECTED: Mapping[str, str] = {
    "C1.8c": "table Readings: of 36 none comes near; followers that are counted and those that are moved do not explain it",
    "C1.9": "tables Figure 5 and Calibrations: at load .42 (6) counts who waits for jobs that were there before, which nobody may move",
    "C1.9b": "table Readings: 93 and 78 without migration are met, 0 with it by no reading: see C1.9; by (1) itself it is 0 (C1.9e)",
}

#: Our readings where the paper contradicts itself or is silent.
NOTES = (
    "(1) is printed N_top >= N_follow + N_idle, so the head could start only when it need not wait; its text says <=, which we use.",
    "4.2 says N_top is never below the nodes of the suspended followers; with <= it can be, for whole jobs go. Utilisation rises anyway.",
    "(5) is a ratio of means; the mean of the jobs' own ratios ranks the algorithms otherwise (C1.10): short jobs that are suspended pay.",
    "(6) also counts a job that waits for its own size while the next 50 find free nodes, even under plain FCFS: no algorithm reaches 0.",
    "(6') counts it only if a later job started before it while it waited at the head: 0 for FCFS, SJF, LJF by construction.",
    "With migration the head changes more often, so more of the starved jobs were passed as head: (6') may rise where (6) falls.",
    "Followers are the jobs that passed this head; with followers=any, that passed any head, there are more migrations; with strict, that",
    "passed it while it was the head, fewer. All of them are suspended (2.3, figure 1); 4.2 speaks for the fewest: rows with an m.",
    "The paper gives neither speeds, sites' sizes, delay nor the model's constants: Spec uniform [0.5, 1.5], delay 10 min, papers.md 2.3.",
    "What is left of CommTime after a migration is not said: the same share as of CalcTime; the delay of (3) is paid at each start.",
    "Penalty 60 is called 20 times the mean run time: 1,024 x 60 / 20 = 3,072 min; CalcTime is calibrated to that, (2) and (3) included.",
    "A suspended job goes back to its own place in the queue, and all its waiting counts; the last 50 jobs are not judged by (6).",
)
_CALLED = {SR: "SR", "utilisation": "utilisation", RUN: "mean run [min]", "starved": "starved (6)", "migrations": "migrations"}
_PRINTED = {"starved": PAPER_STARVED, "migrations": PAPER_MIGRATIONS}
_BEFORE = "as before"
#: Minutes that a job waits before ageing puts it first -> the name in the table.
WAITS = {0: "none", 10_080: "7 days", 43_200: "30 days"}
FIGURES = ("Figure 2: slowdown ratio", "Figure 3: utilisation", "Figure 4: cost of migration", "Figure 5: starved jobs")
#: The paper's mean run time (min); penalty 60 costs a job of 1,024 nodes 20 times as much.
PAPER_RUN = 3072


# -- tables and figures: calibrations side by side, figures 2 to 5 of two of them, readings, ageing ----------------------------


def tables(runs: Paper001Runs) -> tuple[Table, ...]:
    shown = (*_of_figures(runs), _starved(runs), _mean_of_ratios(runs))
    if runs.quick:
        return shown
    three = runs.with_least_seeds()
    before = three.having(calibration=_BEFORE)
    return (
        _calibrations(three, BUSY),
        _calibrations(three, LESS_BUSY),
        *shown,
        *_of_figures(before, _BEFORE),
        _starved(before, _BEFORE),
        _readings(three),
        _ageing(three),
    )


def figures(runs: Paper001Runs) -> tuple[Figure, ...]:
    shown = tuple(_figures(runs))
    return shown if runs.quick else (*shown, *_figures(runs.with_least_seeds().having(calibration=_BEFORE), _BEFORE))


def _figures(runs: Paper001Runs, calibration: str = "") -> Iterator[Figure]:
    migrating = [name for _, name in MIGRATING]
    searching = [name for pair in MIGRATING for name in pair]
    slowdown, use, cost, starving = (_titled(title, calibration) for title in FIGURES)
    yield _lines(runs, slowdown, "mean response time / mean run time", SR, list(ALGORITHMS), logarithmic=True)
    yield _lines(runs, use, "share of nodes that run a job", "utilisation", list(ALGORITHMS))
    yield Figure(
        title=cost,
        x_label="penalty [min a node]",
        y_label=f"growth of the mean run time over penalty {PENALTIES[0]} [%]",
        lines=tuple(Line(name, tuple(Point.of(p, [100 * g for g in growth(runs, name, p)]) for p in runs.penalties)) for name in migrating),
    )
    yield _lines(runs, starving, "jobs that starve by rule (6)", "starved", searching)


def _titled(title: str, calibration: str) -> str:
    """Returns the title with the name of a calibration other than the default: `Figure 2, as before: slowdown ratio`."""
    number, what = title.split(": ")
    return f"{number}, {calibration}: {what}" if calibration else title


def _lines(runs: Paper001Runs, title: str, label: str, measure: str, names: Sequence[str], *, logarithmic: bool = False) -> Figure:
    lines = tuple(Line(name, tuple(Point.of(interval, runs.of(measure, name, interval)) for interval in runs.intervals)) for name in names)
    return Figure(title=title, x_label="mean inter-arrival time [min]", y_label=label, lines=lines, logarithmic=logarithmic)


def _calibrations(runs: Paper001Runs, interval: int) -> Table:
    """Returns the paper's printed numbers beside ours, a column for each calibration."""
    rows: list[tuple[Cell, ...]] = []
    for what, called in _CALLED.items():
        for name, algorithm in ALGORITHMS.items():
            if what != "migrations" or algorithm.migrates:
                values = [runs.having(calibration=its).mean(what, name, interval) for its in CALIBRATIONS]
                printed = _PRINTED.get(what, {}).get(name, PAPER_RUN if what == RUN else None)
                rows.append((f"{called}, {name}", printed, *values))
    return Table(title=f"Calibrations at {interval} min", columns=("measure", "paper", *CALIBRATIONS), rows=tuple(rows))


def _of_figures(runs: Paper001Runs, calibration: str = "") -> Iterator[Table]:
    slowdown, use, cost, _ = (_titled(title, calibration) for title in FIGURES)
    yield _over_intervals(runs, slowdown, SR)
    yield _over_intervals(runs, use, "utilisation")
    yield _penalties(runs, cost)


def _over_intervals(runs: Paper001Runs, title: str, measure: str) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (interval, *(runs.mean(measure, name, interval) for name in ALGORITHMS)) for interval in runs.intervals
    )
    return Table(title=title, columns=("min", *ALGORITHMS), rows=rows)


def _penalties(runs: Paper001Runs, title: str) -> Table:
    names = [name for _, name in MIGRATING]
    least = {name: runs.mean(RUN, name, BUSY, penalty=PENALTIES[0]) for name in names}
    rows: list[tuple[Cell, ...]] = []
    for penalty in runs.penalties:
        row: list[Cell] = [penalty]
        for name in names:
            value = runs.mean(RUN, name, BUSY, penalty=penalty)
            row += [value, 100 * (value / least[name] - 1), runs.mean("migrations", name, BUSY, penalty=penalty)]
        rows.append(tuple(row))
    columns = ["min a node"]
    for name in names:
        columns += [f"{name}: min", "growth [%]", "moved"]
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def _starved(runs: Paper001Runs, calibration: str = "") -> Table:
    """Returns the jobs that starve at each interval: by rule (6), by (6'), and those that stayed at the head while (1) held."""
    intervals = (BUSY, LESS_BUSY)
    rows = []
    for name in ALGORITHMS:
        row: list[Cell] = [name, PAPER_STARVED.get(name)]
        for interval in intervals:
            row += [runs.mean(measure, name, interval) for measure in ("starved", "starved_at_head", "held")]
        rows.append(tuple(row))
    columns = ("algorithm", "paper", *(f"{head}{kind}" for head in intervals for kind in (": (6)", " (6')", " held")))
    return Table(title=_titled(FIGURES[-1], calibration), columns=columns, rows=tuple(rows))


def _readings(runs: Paper001Runs) -> Table:
    """Returns migrations and starved jobs for every reading of papers.md 2.2, beside the paper's numbers."""
    rows: list[tuple[Cell, ...]] = []
    for reading in readings(runs):
        moved, starved, held = (reading.of(runs, measure) for measure in ("migrations", "starved", "held"))
        cells: list[Cell] = [str(reading)]
        cells += [round(moved[name]) for name in PAPER_MIGRATIONS]
        cells += [reading.ratio(runs), round(100 * reading.distance(runs))]
        cells += [round(starved[name]) for name in PAPER_STARVED]
        rows.append((*cells, round(held["FCFS/FF+mig"] + held["LJF/FF+mig"])))
    columns = ("reading", "moved F", "L", "F / L", "off %", "F", "L", "F+mig", "L+mig", "held")
    paper: tuple[Cell, ...] = ("the paper", *PAPER_MIGRATIONS.values(), PAPER_RATIO, 0, *PAPER_STARVED.values(), 0)
    return Table(title="Readings: migrations of FCFS and LJF, starved (6), held", columns=columns, rows=(paper, *rows))


def _mean_of_ratios(runs: Paper001Runs) -> Table:
    columns = ("algorithm", "500: (5)", "500: mean of ratios", "600: (5)", "600: mean of ratios")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(runs.mean(measure, name, interval) for interval in (BUSY, LESS_BUSY) for measure in (SR, "mean_of_ratios")))
        for name in ALGORITHMS
    )
    return Table(title="Ratio of means and mean of ratios", columns=columns, rows=rows)


def _ageing(runs: Paper001Runs) -> Table:
    """Returns the effect of ageing on starvation by sorting, the paper's future work (papers.md 2.6)."""
    rows: list[tuple[Cell, ...]] = []
    for name in ("SJF", "LJF", "LJF/FF", "LJF/FF+mig"):
        for interval in (BUSY, LESS_BUSY):
            for wait, told in WAITS.items():
                measures = [runs.mean(m, name, interval, max_wait=wait) for m in ("starved", SR, "mean_wait", "longest_wait")]
                rows.append((f"{name} at {interval}", told, *measures))
    columns = ("queue", "max_wait", "starved (6)", "SR", "mean wait [min]", "longest wait [min]")
    return Table(title="Future work: ageing against starvation by sorting", columns=columns, rows=tuple(rows))


STUDY = Study(
    paper="001",
    runs=Paper001Runs,
    seeds=6,
    quick_seeds=3,
    checks=CHECKS,
    tables=tables,
    figures=figures,
    notes=NOTES,
    expected=EXPECTED,
)
