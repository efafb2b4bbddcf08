"""Random workloads under dqt with failures, cancels and fail-overs: every schedule is sound, with and without its stretches the same."""

from __future__ import annotations

from random import Random

import pytest

from rmgr.model.base.states import State
from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sched.tree.shape import AllocationRule
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.engine.validate import violations
from rmgr.sim.workload.events import Cancel, Event, FailOver, NodesFail, NodesRepaired
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob


@pytest.mark.parametrize("upsets", [False, True])
def test_no_core_is_given_twice_in_a_slot_and_every_job_runs_as_long_as_it_needs(upsets: bool) -> None:
    for seed in range(60):
        chance = Random(f"gangs {seed}")
        nodes, cores = chance.randint(1, 7), chance.choice([1, 1, 2, 4])
        workload = Workload(name="drawn", jobs=jobs_of(chance, nodes * cores), processors=nodes * cores)
        params = {
            "quantum": chance.choice(["1s", "2s", "7s"]),
            "newcomers": chance.choice(["this_round", "next_round"]),
            "width": chance.choice("23"),
            "most_jobs": chance.choice("0128"),
            "allocation": chance.choice(list(AllocationRule)),
        }
        events = events_of(chance, nodes, len(workload.jobs)) if upsets else ()
        ends = []
        for spells in (True, False):
            stages = (Stage(policy_named("dqt", params)),)
            setting = Setting(nodes=nodes, cores=cores, pipeline=stages, policy="dqt", spells=spells, events=events)
            result = simulate(workload, setting)
            assert result.faults == ()
            assert violations(result, workload, setting) == []
            done = [outcome for outcome in result.outcomes if outcome.state is State.COMPLETED]
            ends.append([(outcome.job.number, outcome.end_us, 0 if upsets else outcome.ran_us, outcome.turns) for outcome in done])
        assert ends[0] == ends[1]


def jobs_of(chance: Random, processors: int) -> tuple[WorkloadJob, ...]:
    """Some of them whole seconds long, so that they end where slots do."""
    jobs = []
    for number, submit in enumerate(sorted(chance.randint(0, 100) for _ in range(chance.randint(1, 20))), 1):
        size = chance.randint(1, processors)
        run_us = chance.randint(1, 30) * SECOND if chance.random() < 0.5 else chance.randint(1, 30 * SECOND)
        times = {"submit_us": submit * SECOND, "run_us": run_us, "estimate_us": 40 * SECOND}
        jobs.append(WorkloadJob(number=number, processors=size, processes=size, **times))
    return tuple(jobs)


def events_of(chance: Random, nodes: int, jobs: int) -> tuple[Event, ...]:
    found: list[Event] = []
    for _ in range(chance.randint(1, 4)):
        at, node = chance.randint(1, 150) * SECOND // chance.choice([1, 3]), chance.randrange(nodes)
        match chance.randrange(3):
            case 0:
                found += [NodesFail(at, ((node, node),)), NodesRepaired(at + chance.randint(1, 20) * SECOND, ((node, node),))]
            case 1:
                found.append(FailOver(at, chance.choice([0, 5 * SECOND])))
            case _:
                found.append(Cancel(at, chance.randint(1, jobs)))
    return tuple(sorted(found, key=lambda event: event.at_us))
