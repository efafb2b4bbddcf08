"""Paper 000: ties decide nothing, and the region of a claim counts only deciding cases (papers.md 1.9)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rmgr.sim.models.hpc2500 import hpc2500
from rmgr.sim.papers import paper000
from rmgr.sim.papers.paper000 import (
    ALL,
    CHECKS,
    CLAIMS,
    CONVENTIONAL,
    LOADS,
    PARTITIONED,
    PROPOSAL_1,
    PROPOSAL_2,
    QUEUES,
    Measured,
    Paper000Run,
    Paper000Runs,
    Relation,
    Waits,
    measure,
)
from rmgr.sim.papers.report import Boxes, Within

SEEDS = (1, 2)


def bars(wait_s: float) -> Measured:
    """Everybody waits so long."""
    waits = {queue: Waits(jobs=1, median_s=wait_s, mean_s=wait_s, max_s=wait_s) for queue in (*QUEUES, ALL)}
    return Measured(waits=waits, utilisation=1, held={}, made={}, faults=0)


def runs(waits: dict[str, float]) -> Paper000Runs:
    """Of the higher load."""
    known = Paper000Runs(SEEDS, quick=True)
    known.found = {Paper000Run(system=name, load=LOADS[-1], seed=seed): bars(wait) for name, wait in waits.items() for seed in SEEDS}
    return known


@pytest.mark.parametrize(
    ("relation", "pair", "tie"),
    [
        (Relation.LOWEST, (0, 0), True),
        (Relation.LOWEST, (5, 5), True),
        (Relation.BELOW, (0, 0), True),
        (Relation.EQUAL, (0, 0), True),
        (Relation.EQUAL, (5, 5), False),
        (Relation.ABOVE, (5, 0), False),
    ],
)
def test_equal_bars_decide_nothing(relation: Relation, pair: tuple[float, float], tie: bool) -> None:
    assert relation.is_tie(*pair) is tie


def test_a_check_counts_ties_and_says_nothing_when_nobody_waits() -> None:
    nobody = runs(dict.fromkeys((CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2), 0.0))
    found = [check for name in ("C0.8", "C0.9", "C0.10", "C0.11") for check in CHECKS[name](nobody)]
    assert all(check.ours == {} and not check.holds and check.verdict == "reported" for check in found)
    assert found[0].document()["ties"] == {f"{queue} at load 1.1": 2 for queue in ("d32", "d128", ALL)}
    assert set(found[0].document()["decided"].values()) == {0}
    some = runs({CONVENTIONAL: 9, PARTITIONED: 9, PROPOSAL_1: 1, PROPOSAL_2: 2})
    first = next(CHECKS["C0.8"](some))
    assert (first.id, first.holds, first.document()["decided"]["d32 at load 1.1"]) == ("C0.8a", True, 2)
    verdicts = list(paper000.tables(some))[-1]
    assert len(verdicts.columns) == 8 + len(SEEDS)
    assert not Within().holds({}, {})


def test_a_region_asks_every_seed_and_queue_and_a_queue_that_never_decides_is_told() -> None:
    lowest = CLAIMS[0]
    place = paper000.PLACES[0]
    asking = Paper000Runs((1, 2, 3))
    for anywhere in paper000.PLACES:
        paper000.votes(asking, lowest, anywhere)
    assert len(asking.asked) == 3 * 2 * 3 * (2 + 5)

    def votes(waits: dict[str, float]) -> tuple[int, int, bool]:
        of_two = Paper000Runs(SEEDS)
        for name in waits:
            place.of(of_two, name)
        of_two.found = {run: bars(waits[run.system]) for run in of_two.asked}
        return paper000.votes(of_two, lowest, place)

    assert votes({CONVENTIONAL: 9.0, PROPOSAL_1: 1.0, PROPOSAL_2: 2.0}) == (6, 6, True)
    assert votes({CONVENTIONAL: 9.0, PROPOSAL_1: 1.0, PROPOSAL_2: 1.0}) == (0, 0, False)
    assert paper000.interval(9, 9) == pytest.approx((0.701, 1.0), abs=0.001)
    assert paper000.interval(0, 0) == (0.0, 1.0)


def test_more_small_jobs_are_more_small_jobs_and_the_first_fit_of_the_baseline_is_kept_to_its_nodes() -> None:
    few, many = ([job.processors <= 8 for job in hpc2500(2000, seed=3, small=factor).jobs] for factor in (1, 30))
    assert sum(few) / len(few) == pytest.approx(0.72, abs=0.03)
    assert sum(many) / len(many) > 0.98
    cells = [Paper000Run(system=CONVENTIONAL, load=Fraction(2), seed=1, jobs=400, firstfit_nodes=nodes) for nodes in (0, 1)]
    free, kept = map(measure, cells)
    assert free.waits != kept.waits


def test_figures_2_and_3_are_boxes_by_queue() -> None:
    median, longest = paper000.boxes({PROPOSAL_1: runs({PROPOSAL_1: 3.0}).of(PROPOSAL_1, LOADS[-1])}, "load 1.1")
    assert isinstance(median, Boxes)
    assert (median.groups, longest.boxes) == ((*QUEUES, ALL), ((PROPOSAL_1, ((3.0, 3.0),) * 7),))
