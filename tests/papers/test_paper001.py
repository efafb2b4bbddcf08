"""Paper 001 (papers.md 2): equations (2)-(4), rules (6) and (6'), the model, and the engine against a plain loop, job by job."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest
from grid_loop import stretches

from rmgr.errors import UsageError
from rmgr.sched.catalogue import policy_named
from rmgr.sched.policy import Stage
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import MINUTE_US, UNIT, Grid, drawn, unexecuted
from rmgr.sim.engine.outcome import JobOutcome, Setting, Spell
from rmgr.sim.engine.validate import check
from rmgr.sim.models.feitelson96 import DEFAULT, Constants, feitelson96
from rmgr.sim.papers import paper001 as paper001_case
from rmgr.sim.papers.paper001 import ALGORITHMS, CALIBRATIONS, PLACES, TICK_US, passed_at_the_head, starved
from rmgr.sim.workload.events import FailOver
from rmgr.sim.workload.jobs import Workload, WorkloadJob

M = MINUTE_US
#: Jobs that are half as long again: fewer of them fill the grid.
LONGER = CALIBRATIONS["as before"].constants


def a_job(number: int = 1, *, submit: int = 0, nodes: int = 1, calculation: int = 1000, communication: int = 0) -> WorkloadJob:
    run_us = (calculation + communication) * M
    return WorkloadJob(
        number=number, submit_us=submit * M, run_us=run_us, estimate_us=run_us, processors=nodes, processes=nodes,
        communication_us=communication * M,
    )  # fmt: skip


# -- the grid, equations (2), (3), (4) ------------------------------------------------------------------------------------------


def test_the_slowest_node_and_every_further_site_make_a_job_longer() -> None:
    # nodes 0 1 | 2 3 of speeds 0.5 1.5 | 1.0 1.0: the average is 1
    grid = Grid(specs=(UNIT // 2, 3 * UNIT // 2, UNIT, UNIT), sites=(0, 0, 1, 1), delay_us=10 * M, penalty_us=2 * M)
    job = a_job(nodes=2, calculation=900, communication=60)
    assert grid.work(job) == (900 * M, 60 * M)
    lengths = {((0, 1, 1),): 1800 + 60, ((2, 3, 1),): 900 + 60, ((1, 2, 1),): 900 + 60 + 10, ((0, 0, 1), (3, 3, 1)): 1800 + 60 + 10}
    assert {placement: grid.duration_us(job, grid.work(job), placement) // M for placement in lengths} == lengths
    assert grid.duration_us(job, (900 * M, 0), ((1, 1, 1),)) == 600 * M
    assert grid.duration_us(job, (1, 0), ((1, 1, 1),)) == 1  # rounded up: nothing ends before it is done


def test_a_migration_leaves_what_was_not_executed_and_adds_the_penalty_of_each_node() -> None:
    grid = Grid(specs=(UNIT // 2, 3 * UNIT // 2), sites=(0, 1), penalty_us=2 * M)
    job = a_job(nodes=2, calculation=900, communication=60)
    whole = grid.duration_us(job, grid.work(job), ((0, 1, 1),))  # 1,800 + 60 + 10
    left = unexecuted(grid.work(job), whole // 3, whole)
    assert left == (600 * M, 40 * M)
    assert grid.after_migration(job, left) == (604 * M, 40 * M)


def test_a_drawn_grid_is_the_same_for_one_seed_and_has_ten_sites_of_a_thousand_nodes() -> None:
    grid = drawn(3)
    assert grid == drawn(3) == pickle.loads(pickle.dumps(grid))
    assert grid.specs != drawn(4).specs
    assert set(Counter(grid.sites).values()) == {102, 103}
    assert [site for site in grid.sites if site == 9] == [9] * 102
    assert min(grid.specs) >= UNIT // 2
    assert max(grid.specs) <= 3 * UNIT // 2
    assert abs(grid.total_spec / len(grid.specs) / UNIT - 1) < 0.03
    assert grid.sites_of(((0, 102, 1), (103, 103, 1))) == 2
    assert grid.sites_of(((100, 101, 1), (102, 102, 1), (1000, 1023, 1))) == 2
    assert {(node.site, node.cores) for node in grid.nodes()} == {(f"site{i}", 1) for i in range(10)}


@pytest.mark.parametrize(
    "wrong", [{"specs": ()}, {"specs": (0, 1)}, {"sites": (1, 0)}, {"sites": (0,)}, {"delay_us": -1}, {"penalty_us": -1}], ids=str
)
def test_a_grid_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Grid(**{"specs": (UNIT, UNIT), "sites": (0, 1), **wrong})  # type: ignore[arg-type]


# -- the model feitelson96 --------------------------------------------------------------------------------------------------------


def test_sizes_and_times_are_as_papers_md_calibrates_them() -> None:
    weight = DEFAULT.size_weight
    assert weight(4) == pytest.approx(4**-1.5)
    assert [round(weight(n) / n**-1.5, 9) for n in (8, 9, 10, 11, 16, 36, 64, 100, 1024)] == [8, 2, 2, 1, 8, 2, 8, 2, 8]
    total = math.fsum(map(weight, range(1, 1025)))
    assert math.fsum(n * weight(n) for n in range(1, 1025)) / total == pytest.approx(25, abs=0.5)
    assert DEFAULT.stages(1)[0] == (0.10, 5_700)
    assert DEFAULT.stages(1024)[:2] == ((pytest.approx(0.9), 5_700), (pytest.approx(1.0), 430))

    jobs = feitelson96(20_000, seed=11).jobs
    calculation = [job.run_us - job.communication_us for job in jobs]
    assert min(calculation) >= 10 * M
    assert max(calculation) <= 43_200 * M
    assert sum(calculation) / len(jobs) / M == pytest.approx(1730, rel=0.04)
    assert all(job.communication_us <= 0.2 * (job.run_us - job.communication_us) + 1 for job in jobs)
    assert jobs[-1].submit_us / (len(jobs) - 1) / M == pytest.approx(500, rel=0.02)
    assert sum(job.processors for job in jobs) / len(jobs) == pytest.approx(25, rel=0.05)


def test_one_seed_draws_the_same_jobs_for_every_gap_and_the_gaps_in_proportion() -> None:
    near, far = (feitelson96(300, seed=5, constants=replace(LONGER, interarrival_min=gap)).jobs for gap in (500, 2000))
    assert [(job.processors, job.run_us, job.communication_us) for job in near] == [
        (job.processors, job.run_us, job.communication_us) for job in far
    ]
    assert all(abs(4 * a.submit_us - b.submit_us) <= 4 for a, b in zip(near, far, strict=True))
    told = repr([(job.number, job.submit_us, job.run_us, job.communication_us, job.processors) for job in near])
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "252b73a05d71cfba"


def test_repeated_jobs_keep_size_and_calculation_time() -> None:
    jobs = feitelson96(20_000, seed=2, constants=Constants(repeat_exponent=2.5)).jobs
    times = [len(list(group)) for _, group in groupby((job.processors, job.run_us - job.communication_us) for job in jobs)]
    for r in (1, 2, 3):
        assert times.count(r) / len(times) == pytest.approx(r**-2.5 / 1.3415, abs=0.015)  # 1.3415 = zeta(2.5)
    assert len({job.communication_us for job in jobs}) > 0.99 * len(jobs)


@pytest.mark.parametrize("wrong", [{"interarrival_min": 0}, {"repeat_exponent": 1.0}, {"longest_min": 5}, {"long_mean_min": math.inf}])
def test_constants_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="feitelson96"):
        Constants(**wrong)


# -- starvation -------------------------------------------------------------------------------------------------------------------


def an_outcome(number: int, nodes: int, submit: int, *spells: tuple[int, int]) -> JobOutcome:
    job = a_job(number, submit=submit, nodes=nodes)
    return JobOutcome(job=job, spells=tuple(Spell(start * M, end * M, ((0, nodes - 1),)) for start, end in spells))


def test_rule_6_compares_a_wait_with_those_of_the_next_fifty() -> None:
    waits = [0] * 120
    waits[10], waits[11], waits[40] = 100, 60, 40
    assert 10 in starved(waits)  # 100 >= 60 + 40
    waits[60] = 1
    assert 10 not in starved(waits)
    waits[60], waits[61] = 0, 1
    assert 10 in starved(waits)  # the 51st behind it does not count
    assert max(starved([0] * 120)) == 69  # the last fifty are not judged
    assert starved([5] * 30) == []


def test_rule_6_prime_sees_who_was_passed_at_the_head() -> None:
    # 2 waits at the head while 3 passes it; 4 waits behind 2 while 5 passes both: 4 was never passed at the head.
    outcomes = [
        an_outcome(1, 8, 0, (0, 100)),
        an_outcome(2, 8, 10, (100, 200)),
        an_outcome(3, 1, 20, (20, 30)),
        an_outcome(4, 8, 30, (200, 300)),
        an_outcome(5, 1, 40, (40, 50)),
    ]
    assert passed_at_the_head(outcomes, PLACES["fcfs"]) == {2}
    # With the largest first, 4 (larger) overtakes 2 in the queue: 5 passes 4 at the head.
    outcomes[3] = an_outcome(4, 16, 30, (200, 300))
    assert passed_at_the_head(outcomes, PLACES["ljf"]) == {2, 4}
    # A job that was migrated and waits again stands at the head again.
    outcomes = [an_outcome(1, 8, 0, (0, 50), (100, 150)), an_outcome(2, 16, 10, (50, 100)), an_outcome(3, 1, 20, (60, 70))]
    assert passed_at_the_head(outcomes, PLACES["fcfs"]) == {1}


# -- the policies -----------------------------------------------------------------------------------------------------------------


def test_c1_9_by_hand_the_head_starts_at_the_next_tick_and_followers_pay_exactly_the_penalty() -> None:
    for penalty in (1, 60):
        demanded, happens = paper001_case.found(penalty)
        assert happens == demanded
    jobs = paper001_case.outcomes()
    assert [len(outcome.spells) for outcome in jobs] == [1, 1, 1, 2, 2, 2]
    assert [outcome.spells[0][:2] for outcome in jobs[3:]] == [(10 * M, 20 * M)] * 3
    assert [outcome.spells[1].start_us for outcome in jobs[3:]] == [320 * M] * 3  # the head's 300 minutes later
    without = paper001_case.outcomes("first_fit")
    assert without[2].start_us == 1010 * M  # it waits for the longest of those that passed it


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_engine_makes_the_schedule_of_a_plain_loop_job_by_job(name: str, seed: int) -> None:
    algorithm = ALGORITHMS[name]
    workload = feitelson96(700, seed=seed, constants=replace(LONGER, interarrival_min=380))
    grid = drawn(seed, penalty_us=5 * M)
    readings = [{}]
    if algorithm.migrates:
        readings = [{"followers": followers, "suspend": suspend} for followers in ("head", "any") for suspend in ("minimal", "all")]
    for reading in readings:
        policy = policy_named(algorithm.policy, reading)
        setting = Setting(nodes=grid.nodes(), pipeline=(Stage(policy),), policy=name, tick_us=TICK_US, execution=grid)
        result = simulate(workload, setting)
        check(result, workload, execution=grid)
        assert not result.faults
        expected = stretches(
            workload, grid, algorithm.order, search="FF" in name, migration=algorithm.migrates, any_head=reading.get("followers") == "any",
            every=reading.get("suspend") == "all",
        )
        assert {outcome.job.number: [spell[:2] for spell in outcome.spells] for outcome in result.outcomes} == expected
        if algorithm.migrates:
            assert sum(len(spells) > 1 for spells in expected.values()) >= 10, "the workload must move jobs"


@pytest.mark.parametrize("name", ["FCFS/FF+mig", "LJF/FF+mig"])
def test_a_leader_that_dies_between_any_two_passes_changes_nothing(name: str) -> None:
    """State and policy come back from the records alone; the passes of the new leader decide as those of the old one."""
    algorithm, grid = ALGORITHMS[name], drawn(3, nodes=40, sites=4)
    workload = feitelson96(250, processors=40, seed=3, constants=Constants(interarrival_min=400))
    deaths = tuple(FailOver(tick * TICK_US + 1, 1) for tick in range(0, workload.span_us // TICK_US, 7))
    plain, torn = (
        simulate(
            workload,
            Setting(
                nodes=grid.nodes(), pipeline=(Stage(policy_named(algorithm.policy)),), policy=name, tick_us=TICK_US, execution=grid,
                events=events,
            ),
        )
        for events in ((), deaths)
    )
    assert sum(len(outcome.spells) > 1 for outcome in plain.outcomes) >= 5
    assert plain.outcomes == torn.outcomes


def test_ageing_over_arrival_order_changes_nothing_and_over_another_order_it_does() -> None:
    grid, workload = drawn(3, nodes=40, sites=4), feitelson96(400, processors=40, seed=3, constants=Constants(interarrival_min=300))
    found = {}
    for order in ("fcfs", "ljf"):
        for ageing in ({}, {"max_wait": "3d"}):
            policy = policy_named("migration", {"order": order, **ageing})
            setting = Setting(nodes=grid.nodes(), pipeline=(Stage(policy),), policy=order, tick_us=TICK_US, execution=grid)
            outcomes = simulate(workload, setting).outcomes
            assert sum(len(outcome.spells) > 1 for outcome in outcomes) >= 5
            found[order, bool(ageing)] = [outcome.spells for outcome in outcomes]
    assert found["fcfs", True] == found["fcfs", False]
    assert found["ljf", True] != found["ljf", False]


def test_whose_jobs_a_head_may_suspend() -> None:
    """10 nodes. 1 runs on 6; 2 (5 nodes) waits; 3 and 4 pass it; 5 (7 nodes) comes, and 6 passes both."""
    jobs = {1: (0, 6, 100), 2: (5, 5, 50), 3: (6, 1, 400), 4: (7, 2, 400), 5: (15, 7, 50), 6: (16, 1, 400)}
    workload = Workload(name="w", processors=10, jobs=tuple(a_job(n, submit=at, nodes=p, calculation=c) for n, (at, p, c) in jobs.items()))
    grid = Grid(specs=(UNIT,) * 10, sites=(0,) * 10, penalty_us=0)

    def moved(**parameters: str) -> dict[int, list[int]]:
        setting = Setting(
            nodes=grid.nodes(), pipeline=(Stage(policy_named("migration", parameters)),), policy="migration", tick_us=TICK_US,
            execution=grid,
        )
        outcomes = simulate(workload, setting).outcomes
        check(simulate(workload, setting), workload, execution=grid)
        return {o.job.number: [s.start_us // M for s in o.spells] for o in outcomes}

    # At 100 job 2 starts as head. At 150 job 5 (7 nodes) finds 6 free: 6 passed it and gives way. 3 and 4 came before 5: they stay.
    assert moved(suspend="minimal") == moved() == {1: [0], 2: [100], 3: [10], 4: [10], 5: [150], 6: [20, 200]}
    # 2 was the head that 6 passed: 5, the head later, has to wait until 3 ends at 410.
    assert moved(followers="strict") == {1: [0], 2: [100], 3: [10], 4: [10], 5: [410], 6: [20]}
    # Past any head: 6 gives way to 5, is the head itself, and takes the node of 4; 4 takes that of 3.
    assert moved(followers="any", suspend="minimal") == {1: [0], 2: [100], 3: [10, 200], 4: [10, 150], 5: [150], 6: [20, 150]}
    # All of them give way to 5; what is left over goes to the first of the queue again.
    assert moved(followers="any", suspend="all") == {1: [0], 2: [100], 3: [10, 150], 4: [10, 150], 5: [150], 6: [20, 200]}
