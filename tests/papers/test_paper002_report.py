"""Paper 002's report on few slots: requested runs, golden values of one run, exact statements; skipping equals stepping (C2.12)."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from rmgr.sched.tree.rotation import Newcomers
from rmgr.sched.tree.shape import AllocationRule, Tree
from rmgr.sim.gangs import Sharing, Spec, Task, drawn, run, run_batch, stepped, turns
from rmgr.sim.papers.paper002 import CHECKS, EXACT, STUDY, Paper002Run, Paper002Runs, figures, measure, random_tasks, tables


@pytest.mark.parametrize("newcomers", list(Newcomers))
@pytest.mark.parametrize("allocation", list(AllocationRule))
def test_the_slot_simulator_equals_stepping(allocation: AllocationRule, newcomers: Newcomers) -> None:
    """C2.12, shorter: ends of all tasks and processor-slots."""
    chance = Random(f"{allocation} {newcomers}")
    for height in (3, 5):
        tree, sharing = Tree(2, 1 << height), Sharing(allocation=allocation, newcomers=newcomers)
        tasks = random_tasks(chance, tree, 1500)
        out = run(tasks, tree, 1500, sharing, count_messages=height == 3)
        assert (out.ends, out.used) == stepped(tasks, tree, 1500, sharing)


@pytest.mark.parametrize("kind", ["schedule", "guarantees", "skipping"])
def test_nothing_breaks_what_holds_exactly(kind: str) -> None:
    """C2.1, C2.10, C2.12."""
    assert EXACT[kind](1, 300) == (0, ())


def test_quanta_of_one_queue_are_in_proportion_to_weights() -> None:
    """C2.13."""
    _, ratios = EXACT["weights"](1, 0)
    assert dict(ratios) == pytest.approx({1: 1, 2: 2, 4: 4}, rel=0.05)


def test_a_workload_is_the_same_for_every_policy_and_has_its_load() -> None:
    """Papers.md 3.4: constant intervals, the realised ratio within 0.0005."""
    spec = Spec(processors=128, load=0.793, largest=64, seed=3)
    tasks = drawn(spec)
    assert tasks == drawn(spec)
    assert sum(task.size * task.length for task in tasks) / 128e6 == pytest.approx(0.793, abs=0.0005)
    assert {task.size for task in tasks} == {1, 2, 4, 8, 16, 32, 64}
    assert {later.arrival - earlier.arrival for earlier, later in itertools.pairwise(tasks)} == {356, 357}
    assert min(task.length for task in tasks) >= 500
    assert max(task.length for task in tasks) <= 19_999


def test_golden_values_of_one_run_at_the_paper_s_low_load() -> None:
    found = {
        policy: (round(one.utilisation, 4), one.most_tqlb, one.breaches)
        for policy in AllocationRule
        if (one := measure(Paper002Run(load=0.368, allocation=policy, slots=200_000)))
    }
    assert found == GOLDEN
    batch = measure(Paper002Run(kind="batch", load=0.368, slots=200_000))
    assert (round(batch.utilisation, 4), batch.longest_queue) == GOLDEN_BATCH


#: Utilisation, max TQLB, breaches of the bound of RETR; seed 1.
GOLDEN = {
    AllocationRule.RR: (0.3576, 5, 0),
    AllocationRule.MAX: (0.3557, 4, 0),
    AllocationRule.MIN: (0.3539, 5, 0),
    AllocationRule.APA: (0.359, 3, 0),
    AllocationRule.BF: (0.3165, 7, 0),
    AllocationRule.BF_APA: (0.359, 3, 0),
}
GOLDEN_BATCH = (0.3596, 3)


def test_a_batch_head_that_does_not_fit_blocks_those_behind_it() -> None:
    """Section 5.3, by hand: 4 processors; 2 wait for 4 to fit, though one processor is free."""
    tasks = [Task(0, 1, 10), Task(0, 4, 10), Task(0, 1, 10)]
    found = run_batch(tasks, 4, 30)
    assert (found.utilisation, found.longest_queue) == ((10 + 40 + 10) / 120, 2)


def test_turns_by_hand() -> None:
    """Two slots a round: the root's own, then both children; two messages for each of them a round."""
    assert turns(Tree(2, 2), {0: 1, 1: 1, 2: 1}) == 4 / 2
    assert turns(Tree(2, 2), {0: 3}) == 0


def test_a_check_asks_for_its_own_runs_and_tall_trees_get_two_seeds() -> None:
    runs = Paper002Runs((1, 2, 3), heights=(7, 10))
    list(CHECKS["C2.8"](runs))
    assert [(cell.leaves, cell.seed) for cell in runs.asked] == [(128, 1), (128, 2), (128, 3), (1024, 1), (1024, 2)]


def test_tables_and_figures_can_be_asked_before_they_are_known() -> None:
    runs = Paper002Runs((1,), heights=(7,))
    asked = tables(runs), figures(runs)
    runs.found = dict.fromkeys(runs.asked, measure(Paper002Run(load=0.4, slots=20_000, weights=(1, 2, 4))))
    known = tables(runs), figures(runs)
    assert [len(part) for part in asked] == [len(part) for part in known]
    assert len({table.file_name for table in known[0]}) == len(known[0])


def test_a_report_of_exact_statements_passes_and_says_that_it_was_short() -> None:
    found = STUDY.report(Paper002Runs((1,), slots=1000), ("C2.1", "C2.13"))
    assert found.passes
    assert [check.verdict for check in found.checks] == ["pass", "pass"]
    assert found.notes == ("1,000 slots were run, not 1,000,000: a look, not a result.",)
