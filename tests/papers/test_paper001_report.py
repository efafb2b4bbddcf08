"""Paper 001's report on small workloads: requested runs, orderings that hold even there, golden values, and mutants that it finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Running
from rmgr.sched.policies.migration import PASSED, Migration
from rmgr.sim.engine.execution import Grid
from rmgr.sim.papers import paper001 as paper001_case
from rmgr.sim.papers.paper001 import ALGORITHMS, CHECKS, STUDY, Paper001Measures, Paper001Run, Paper001Runs, figures, measure, tables
from rmgr.sim.papers.report import mean
from rmgr.sim.workload.jobs import WorkloadJob


def test_the_paper_s_seven_algorithms_and_ten_checks() -> None:
    assert list(ALGORITHMS) == ["FCFS", "SJF", "LJF", "FCFS/FF", "LJF/FF", "FCFS/FF+mig", "LJF/FF+mig"]
    assert tuple(f"C1.{n}" for n in range(1, 11)) == tuple(CHECKS)


def test_a_check_asks_for_its_own_runs_only_and_all_algorithms_share_the_workload() -> None:
    runs = Paper001Runs((4, 5))
    list(CHECKS["C1.6"](runs))
    assert list(runs.asked) == [
        Paper001Run(algorithm=name, interval=500, seed=seed) for name in ("LJF", "SJF") for seed in (4, 5, 6)
    ]  # three at least
    runs = Paper001Runs((4, 5))
    list(CHECKS["C1.4"](runs))
    assert {cell.seed for cell in runs.asked} == {4, 5, 6, 7, 8, 9}  # six at least
    assert len(runs.asked) == (4 + 2) * 2 * 6  # the migrating ones at both settings of suspend


def test_tables_and_figures_can_be_asked_before_they_are_known() -> None:
    runs = Paper001Runs((1,))
    asked = tables(runs), figures(runs)
    runs.found = dict.fromkeys(runs.asked, measure(Paper001Run(algorithm="FCFS", interval=500, seed=1, jobs=60)))
    known = tables(runs), figures(runs)
    assert [len(part) for part in asked] == [len(part) for part in known]
    assert len({table.file_name for table in known[0]}) == len(known[0])


def test_the_orderings_of_figure_2_hold_on_small_workloads_too() -> None:
    """1,000 jobs: the factors of C1.2 are large. The other orderings need the 10,000 jobs of the paper."""
    report = STUDY.report(Paper001Runs((1,), jobs=1000), ("C1.2",))
    assert [(check.id, check.verdict) for check in report.checks] == [("C1.2", "pass")]
    assert (report.tables, report.figures) == ((), ())
    assert report.notes == ("3 seeds were run, not 1: fewer say nothing (papers.md 2.5).",)


@pytest.mark.parametrize(
    ("algorithm", "suspend", "exact", "ratios"),
    [
        ("FCFS/FF", "all", (21, 7, 0, 0), (1.2213809768720605, 2.1612217383812475, 0.7149472729434798)),
        ("LJF/FF+mig", "minimal", (19, 8, 130, 102), (1.3266951022622562, 5.003369543500722, 0.7344659129391402)),
        ("LJF/FF+mig", "all", (15, 5, 181, 128), (1.3631789821080484, 6.404536251961092, 0.7168126607945435)),
    ],
)
def test_golden_values(algorithm: str, suspend: str, exact: tuple[int, ...], ratios: tuple[float, ...]) -> None:
    found = measure(Paper001Run(algorithm=algorithm, interval=500, seed=1, jobs=2000, suspend=suspend, calibration="as before"))
    assert (found.starved, found.starved_at_head, found.migrations, found.migrated) == exact
    assert (found.slowdown_ratio, found.mean_of_ratios, found.utilisation) == pytest.approx(ratios, rel=1e-9)


def test_the_case_by_hand_in_which_all_and_minimal_differ() -> None:
    demanded, happens = paper001_case.differing(penalty=2)
    assert happens == demanded
    assert (demanded["all: job 4"], demanded["minimal: job 4"]) == (128, 0)


def test_the_mean_run_time_is_the_paper_s() -> None:
    """Section 4.3: penalty 60 costs a job of 1,024 nodes 20 mean run times, so one is 3,072 min. All migrations are explained."""
    found = [measure(Paper001Run(algorithm="FCFS/FF+mig", interval=500, seed=seed)) for seed in (1, 2, 4)]
    assert mean(run.mean_run for run in found) == pytest.approx(3072, rel=0.03)
    assert [(run.held, run.needless) for run in found] == [(0, 0)] * 3
    before = measure(Paper001Run(algorithm="FCFS/FF", interval=500, seed=1))
    assert before.held >= 20  # who starves without migration
    assert before.migrations == 0


def busy(seed: int = 1, **fields: object) -> Paper001Measures:
    return measure(Paper001Run(**{"algorithm": "FCFS/FF+mig", "interval": 450, "seed": seed, "jobs": 3000, **fields}))  # type: ignore[arg-type]


@cache
def as_it_is(**fields: str) -> Paper001Measures:
    """Of the policy that no mutant has changed."""
    return busy(**fields)


@pytest.mark.parametrize("algorithm", ["FCFS/FF+mig", "LJF/FF+mig"])
@pytest.mark.parametrize(
    "reading", [{}, {"followers": "strict"}, {"followers": "any"}, {"returns": "tail"}, {"suspend": "minimal"}], ids=str
)
def test_no_reading_holds_a_head_while_condition_1_holds(algorithm: str, reading: dict[str, str]) -> None:
    found = as_it_is(algorithm=algorithm, **reading)
    assert found.held == 0
    assert found.migrations >= 20
    if reading.get("followers") != "any":  # whom an earlier head's followers passed, the schedule alone does not say
        assert found.needless == 0


# -- mutants: what each check is there to find ------------------------------------------------------------------------------------


def test_c1_9e_finds_a_condition_1_that_asks_for_more_than_the_head_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """N_head < N_followers + N_idle in place of <=."""

    def stricter(self: Migration, draft: Draft, head: Job) -> bool:
        nodes = sum(run.job.cpus for run in self.followers_of(draft, head)) + draft.free_cores
        return nodes != head.cpus and right(self, draft, head)

    right = Migration.make_room
    monkeypatch.setattr(Migration, "make_room", stricter)
    assert busy().held > 0


def test_c1_8_finds_a_condition_1_without_idle_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """N_head <= N_followers: too few migrations."""

    def poorer(self: Migration, draft: Draft, head: Job) -> bool:
        return head.cpus <= sum(run.job.cpus for run in self.followers_of(draft, head)) and right(self, draft, head)

    right = Migration.make_room
    migrations = as_it_is(algorithm="FCFS/FF+mig").migrations
    monkeypatch.setattr(Migration, "make_room", poorer)
    assert busy().migrations < 0.5 * migrations


def test_c1_8d_finds_followers_that_did_not_pass_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job that passed somebody gives way, whenever it came."""
    monkeypatch.setattr(Migration, "followers_of", _all_that_passed)
    assert busy(algorithm="LJF/FF+mig").needless > 0


def _all_that_passed(_self: Migration, draft: Draft, _head: Job) -> list[Running]:
    return [run for job_id in draft.notes(PASSED) if (run := draft.run(job_id)) is not None]


@pytest.mark.parametrize(
    ("charge", "verdict"),
    [
        (lambda job, penalty: job.processors * penalty, "pass"),
        (lambda job, penalty: penalty, "fail"),
        (lambda job, penalty: 2 * job.processors * penalty, "fail"),
    ],
    ids=["of each node", "of each migration", "twice"],
)
def test_c1_7c_finds_another_charge(monkeypatch: pytest.MonkeyPatch, charge: Callable[[WorkloadJob, int], int], verdict: str) -> None:
    monkeypatch.setattr(Grid, "after_migration", lambda self, job, left: (left[0] + charge(job, self.penalty_us), left[1]))
    found = STUDY.report(Paper001Runs((1, 2, 3), jobs=800, quick=True), ("C1.7",))
    assert {check.id: check.verdict for check in found.checks}["C1.7c"] == verdict


def test_what_is_listed_as_not_holding_are_checks() -> None:
    runs = Paper001Runs((1, 2, 3), jobs=60, quick=True)
    ids = {check.id for check in CHECKS["C1.8"](runs)} | {check.id for check in CHECKS["C1.9"](runs)}
    assert set(STUDY.expected) <= ids
