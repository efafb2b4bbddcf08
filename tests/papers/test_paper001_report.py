"""Paper 001's report on small workloads: what runs are asked, which orderings hold even there, golden values of one run."""

from __future__ import annotations

import pytest

from rmgr.sim.papers import paper001
from rmgr.sim.papers.paper001 import case as paper001_case
from rmgr.sim.papers.paper001.asked import Paper001Runs
from rmgr.sim.papers.paper001.checks import CHECKS
from rmgr.sim.papers.paper001.runs import ALGORITHMS, Paper001Run, measure
from rmgr.sim.papers.paper001.tables import figures, tables


def test_the_paper_s_seven_algorithms_and_ten_checks() -> None:
    assert list(ALGORITHMS) == ["FCFS", "SJF", "LJF", "FCFS/FF", "LJF/FF", "FCFS/FF+mig", "LJF/FF+mig"]
    assert tuple(f"C1.{n}" for n in range(1, 11)) == paper001.CHECKS


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
    again = Paper001Runs((1, 2, 3), dict.fromkeys(runs.asked, measure(Paper001Run(algorithm="FCFS", interval=500, seed=1, jobs=60))))
    known = tables(again), figures(again)
    assert [len(part) for part in asked] == [len(part) for part in known]
    assert len({table.file_name for table in known[0]}) == len(known[0])


def test_the_orderings_of_figure_2_hold_on_small_workloads_too() -> None:
    """1,000 jobs: the factors of C1.2 are large. The other orderings need the 10,000 jobs of the paper."""
    report = paper001.report((1,), ("C1.2",), jobs=1000)
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
    found = measure(Paper001Run(algorithm=algorithm, interval=500, seed=1, jobs=2000, suspend=suspend))
    assert (found.starved, found.starved_at_head, found.migrations, found.migrated) == exact
    assert (found.slowdown_ratio, found.mean_of_ratios, found.utilisation) == pytest.approx(ratios, rel=1e-9)


def test_the_case_by_hand_in_which_all_and_minimal_differ() -> None:
    demanded, happens = paper001_case.differing(penalty=2)
    assert happens == demanded
    assert (demanded["all: job 4"], demanded["minimal: job 4"]) == (128, 0)
