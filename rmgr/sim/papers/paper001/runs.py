"""Paper 001, one run: an algorithm of its table 1 on the grid, and the measures of its section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from typing import NamedTuple

from rmgr.errors import RmgrError
from rmgr.sched.pipeline.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.grid import MINUTE_US, drawn
from rmgr.sim.engine.outcome import JobOutcome, Parting
from rmgr.sim.engine.setting import Setting
from rmgr.sim.models.feitelson96 import Constants, feitelson96
from rmgr.sim.papers.starvation import PLACES, passed_at_the_head, starved
from rmgr.sim.workload.jobs import Workload

TICK_US = 10 * MINUTE_US
JOBS = 10_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper001Run:
    """Settings of one run. interval, penalty, max_wait (0 = no ageing): minutes. repeat: jobs are submitted again (papers.md 2.3)."""

    algorithm: str
    interval: int
    seed: int
    penalty: int = 1
    followers: str = "head"
    suspend: str = "all"
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
    utilisation: share of the nodes that run a job, from the first submit to the last end. starved: rule (6); starved_at_head: (6').
    migrations: how many; migrated: of how many jobs; given_way: the largest number of times that one job was migrated.
    """

    slowdown_ratio: float
    mean_of_ratios: float
    utilisation: float
    mean_run: float
    mean_wait: float
    longest_wait: float
    starved: int
    starved_at_head: int
    migrations: int
    migrated: int
    most_of_one: int


def measure(cell: Paper001Run) -> Paper001Measures:
    """Runs it. Cost: 1 to 3 s for 10,000 jobs."""
    algorithm = ALGORITHMS[cell.algorithm]
    workload = workload_of(cell.seed, cell.interval, cell.jobs, cell.repeat)
    grid = drawn(cell.seed, penalty_us=cell.penalty * MINUTE_US)
    setting = Setting(
        nodes=grid.nodes(),
        pipeline=(Stage(policy_named(algorithm.policy, cell.parameters)),),
        policy=algorithm.policy,
        seed=cell.seed,
        tick_us=TICK_US,
        execution=grid,
    )
    result = simulate(workload, setting)
    if result.faults:
        raise RmgrError(f"{cell}: the policy failed {sum(times for _, times in result.faults)} times: {result.faults[0][0]}")
    return measures_of(tuple(result.outcomes), algorithm.order, len(grid.specs))


@lru_cache(maxsize=2)
def workload_of(seed: int, interval: int, jobs: int = JOBS, repeat: bool = False) -> Workload:
    """The same jobs, and gaps in the same proportions, for every interval: common random numbers."""
    constants = Constants(interarrival_min=interval, repeat_exponent=2.5 if repeat else None)
    return feitelson96(jobs, seed=seed, constants=constants)


def measures_of(outcomes: Sequence[JobOutcome], order: str, nodes: int) -> Paper001Measures:
    """The measures of section 4. Sums are exact."""
    count = len(outcomes)
    runs = [outcome.ran_us for outcome in outcomes]
    responses = [outcome.turnaround_us for outcome in outcomes]
    waits = [response - run for response, run in zip(responses, runs, strict=True)]
    makespan = max(outcome.end_us for outcome in outcomes) - min(outcome.job.submit_us for outcome in outcomes)
    work = sum(run * outcome.job.processors for run, outcome in zip(runs, outcomes, strict=True))
    moved = [sum(spell.parting is Parting.MIGRATED for spell in outcome.spells) for outcome in outcomes]
    literally = starved(waits)
    passed = passed_at_the_head(outcomes, PLACES[order])
    return Paper001Measures(
        slowdown_ratio=sum(responses) / sum(runs),
        mean_of_ratios=fsum(response / run for response, run in zip(responses, runs, strict=True)) / count,
        utilisation=work / (nodes * makespan),
        mean_run=sum(runs) / count / MINUTE_US,
        mean_wait=sum(waits) / count / MINUTE_US,
        longest_wait=max(waits) / MINUTE_US,
        starved=len(literally),
        starved_at_head=sum(outcomes[i].job.number in passed for i in literally),
        migrations=sum(moved),
        migrated=sum(map(bool, moved)),
        most_of_one=max(moved),
    )
