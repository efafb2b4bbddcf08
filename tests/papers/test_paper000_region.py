"""Paper 000: ties decide nothing, and the region of a claim counts what decides (papers.md 1.9)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rmgr.sim.models.hpc2500 import hpc2500
from rmgr.sim.papers.paper000 import claims, region
from rmgr.sim.papers.paper000.claims import CLAIMS, Relation
from rmgr.sim.papers.paper000.runs import (
    ALL,
    CONVENTIONAL,
    PARTITIONED,
    PROPOSAL_1,
    PROPOSAL_2,
    QUEUES,
    Measured,
    Paper000Run,
    Waits,
    measured,
)
from rmgr.sim.papers.report import Boxes, Within

LOAD, SEEDS = Fraction("1.10"), (1, 2)


def bars(cell: Paper000Run, wait_s: float) -> Measured:
    """Everybody waits so long."""
    waits = {queue: Waits(jobs=1, median_s=wait_s, mean_s=wait_s, max_s=wait_s) for queue in (*QUEUES, ALL)}
    return Measured(cell=cell, waits=waits, utilisation=1, held={}, made={}, faults=0)


def runs(waits: dict[str, float]) -> dict[tuple[str, Fraction, int], Measured]:
    cells = [(Paper000Run(system=name, load=LOAD, seed=seed), wait) for name, wait in waits.items() for seed in SEEDS]
    return {(cell.system, cell.load, cell.seed): bars(cell, wait) for cell, wait in cells}


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
    nobody, _ = claims.judged(runs(dict.fromkeys((CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2), 0.0)), (LOAD,), SEEDS)
    assert all(check.ours == {} and not check.holds and check.verdict == "reported" for check in nobody)
    assert nobody[0].document()["ties"] == {f"{queue} at load 1.1": 2 for queue in ("d32", "d128", ALL)}
    assert set(nobody[0].document()["decided"].values()) == {0}
    some, verdicts = claims.judged(runs({CONVENTIONAL: 9, PARTITIONED: 9, PROPOSAL_1: 1, PROPOSAL_2: 2}), (LOAD,), SEEDS)
    assert (some[0].holds, some[0].document()["decided"]["d32 at load 1.1"]) == (True, 2)
    assert len(verdicts.columns) == 8 + len(SEEDS)
    assert not Within().holds({}, {})


def test_a_region_asks_every_seed_and_queue_and_a_queue_that_never_decides_is_told() -> None:
    lowest = CLAIMS[0]
    place = region.PLACES[0]
    waits = {CONVENTIONAL: 9.0, PROPOSAL_1: 1.0, PROPOSAL_2: 2.0}
    found = {place.run(name, seed): bars(place.run(name, seed), wait) for name, wait in waits.items() for seed in SEEDS}
    assert region.votes(found, lowest, place, SEEDS) == (6, 6, True)
    tied = found | {place.run(PROPOSAL_2, seed): bars(place.run(PROPOSAL_2, seed), 1.0) for seed in SEEDS}
    assert region.votes(tied, lowest, place, SEEDS) == (0, 0, False)
    assert region.interval(9, 9) == pytest.approx((0.701, 1.0), abs=0.001)
    assert region.interval(0, 0) == (0.0, 1.0)
    assert len(region.cells((1, 2, 3))) == 3 * 2 * 3 * (2 + 5)


def test_more_small_jobs_are_more_small_jobs_and_the_first_fit_of_the_baseline_is_kept_to_its_nodes() -> None:
    few, many = ([job.processors <= 8 for job in hpc2500(2000, seed=3, small=factor).jobs] for factor in (1, 30))
    assert sum(few) / len(few) == pytest.approx(0.72, abs=0.03)
    assert sum(many) / len(many) > 0.98
    cells = [Paper000Run(system=CONVENTIONAL, load=Fraction(2), seed=1, jobs=400, firstfit_nodes=nodes) for nodes in (0, 1)]
    free, kept = (measured(lambda: None, cell) for cell in cells)
    assert free.waits != kept.waits


def test_figures_2_and_3_are_boxes_by_queue() -> None:
    whose = {PROPOSAL_1: [run for (name, _, _), run in runs({PROPOSAL_1: 3.0}).items()]}
    median, longest = claims.boxes(whose, "load 1.1")
    assert isinstance(median, Boxes)
    assert (median.groups, longest.boxes) == ((*QUEUES, ALL), ((PROPOSAL_1, ((3.0, 3.0),) * 7),))
