"""Tasks by keys while Starters die with inputs and outputs under way: each key has one value, of a committed attempt."""

from __future__ import annotations

import signal

import pytest
from breakable import Chaos
from keyed import KeyedWork
from ledger import read_ledger

from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

#: Name of a Starter -> where it dies: its outputs are about to be written; are written, and nobody knows; are in a commit; are committed.
MOMENTS = {name.replace("_", "-"): name for name in ("outputs_leaving", "output_written", "before_complete", "after_complete")}


def test_starters_killed_with_outputs_on_the_way_leave_one_value_a_key(pair: Chaos):
    pair.cluster.kill("n2", signal.SIGTERM)  # the doomed have more to do
    for doomed, moment in MOMENTS.items():
        pair.add_node(doomed, cores=2, RMGR_FAILPOINT=f"starter.{moment}:3=kill")
    eventually(lambda: {"n1", *MOMENTS} <= pair.up(), "all are up")
    with KeyedWork(pair, 100, 0.2) as load:
        for doomed in MOMENTS:
            eventually(lambda: pair.cluster.process(doomed).state == "dead", f"{doomed} has killed its Starter")  # noqa: B023
        tasks = pair.finish()
        failed = load.check(tasks)
        eventually(lambda: not load.rows_of_lost(tasks), "lost attempts have left nothing in the store")
    assert failed < 50, "a Starter that dies loses what it has claimed, and no more"


def test_a_starter_that_sleeps_while_others_do_its_tasks_changes_no_value(pair: Chaos):
    with KeyedWork(pair, 40, 0.3) as load:
        eventually(lambda: {"n1", "n2"} <= {span.node for span in read_ledger(pair.ledger)}, "both work")
        pair.cluster.kill("n2", signal.SIGSTOP)
        eventually(pair.ended, "its tasks are done elsewhere")
        pair.cluster.kill("n2", signal.SIGCONT)
        load.check(pair.finish())
