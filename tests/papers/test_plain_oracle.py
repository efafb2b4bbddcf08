"""Start times equal, job by job, those of schedulers written only from the specification (papers.md section 6), with equal arrivals."""

from __future__ import annotations

from random import Random

import pytest
from plain_oracle import Asked, Plain

from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

WORLDS = 60
#: Ties wherever there can be: many jobs of one submit time, equal lengths, limits that are the run time to the second.
GAPS = ([0], [0, 0, 1], [0, 1, 2, 5], [0, 0, 0, 10], [7])
RUNS = ([1], [1, 2, 3], [5, 10], [10], list(range(1, 30)))


def world(seed: int) -> tuple[list[Asked], int]:
    rng = Random(seed)
    processors, gaps, runs = rng.choice([1, 2, 3, 4, 8, 16, 100]), rng.choice(GAPS), rng.choice(RUNS)
    slack = rng.choice([[0], [0, 0, 1, 5], [1, 10, 30]])
    jobs, now = [], 0
    for _ in range(rng.randint(1, 40)):
        run = rng.choice(runs)
        size = rng.randint(1, processors) if rng.random() < 0.7 else rng.choice([1, processors])
        jobs.append(Asked(now, run, size, run + rng.choice(slack)))
        now += rng.choice(gaps)
    return jobs, processors


def started(jobs: list[Asked], processors: int, policy: str) -> list[int]:
    workload = Workload(
        name="ties",
        processors=processors,
        jobs=tuple(
            WorkloadJob(
                number=number, submit_us=job.submit * SECOND, run_us=job.run * SECOND, estimate_us=job.estimate * SECOND,
                processors=job.size, processes=job.size,
            )
            for number, job in enumerate(jobs, 1)
        ),
    )
    found = policy_named("easy", {"backfill": "shortest"}) if policy == "shortest" else policy_named(policy)
    setting = Setting(nodes=processors, cores=1, pipeline=(Stage(found),), policy=policy, seed=0)
    return [outcome.start_us // SECOND for outcome in simulate(workload, setting).outcomes]


@pytest.mark.parametrize("policy", ["fcfs", "first_fit", "easy", "shortest", "conservative"])
def test_every_start_is_the_one_that_the_specification_gives(policy: str) -> None:
    for seed in range(WORLDS):
        jobs, processors = world(seed)
        assert started(jobs, processors, policy) == Plain(jobs, processors, policy).starts(), f"world {seed}"
