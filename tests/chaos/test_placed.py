"""Placed jobs under kills: the leader between its commits, nodes with their jobs, pulled work beside them."""

from __future__ import annotations

import pytest
from breakable import RECOVERY_S, Chaos, T, eventually

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("name", ["before_place", "after_place:3"])
def test_a_leader_killed_around_a_placement_loses_and_doubles_nothing(chaos: Chaos, name: str):
    chaos.start(nodes=2, first={"RMGR_FAILPOINT": f"leader.{name}=kill"})
    chaos.submit(10, 0.2, "-q", "batch")
    eventually("the failpoint has killed the leader", lambda: chaos.cluster.process("w1").state == "dead", within=RECOVERY_S + T)
    tasks = chaos.finish(within=90)
    assert {view.attempt for view in tasks.values()} == {1}


def test_jobs_of_a_killed_node_run_elsewhere_beside_pulled_work(chaos: Chaos):
    chaos.start(nodes=2)
    jobs = chaos.submit(8, 1.0, "-q", "batch", "-c", "2")
    chaos.submit(30, 0.2)
    eventually("both kinds run", lambda: chaos.started() >= 4, within=60)
    busy = eventually("a job runs", lambda: next((view.node for view in chaos.tasks(jobs) if view.state == "RUNNING"), ""), within=60)
    chaos.cluster.kill(str(busy))
    chaos.finish(within=120)
    assert any(view.attempt > 1 for view in chaos.tasks(jobs))
