"""WatchDogs die, stop and leave: rows 1, 3 and 8 of the fault matrix."""

from __future__ import annotations

import os
import signal

import pytest
from breakable import RECOVERY_S, TICK, Chaos, T, eventually

pytestmark = pytest.mark.chaos


def test_a_killed_leader_is_replaced_within_the_session_timeout(chaos: Chaos):
    chaos.start(nodes=2)
    chaos.submit(200, 0.0)
    old, epoch = chaos.leader(), chaos.epoch()
    chaos.cluster.kill(old)
    eventually("another WatchDog leads", lambda: chaos.leader() not in {"", old}, within=T + TICK + 2.0)
    assert chaos.epoch() == epoch + 1
    chaos.finish(within=60)


def test_without_any_leader_pulled_work_goes_on(chaos: Chaos):
    chaos.start(nodes=2)
    for name in ("w1", "w2"):
        chaos.cluster.kill(name)
    number = chaos.submit(20, 0.1)
    eventually("all have run without a leader", chaos.ended, within=60)
    assert {view.attempt for view in chaos.tasks(number)} == {1}
    chaos.cluster.start_watchdog("w3")
    chaos.finish(within=60)


def test_a_stopped_leader_that_wakes_writes_nothing(chaos: Chaos):
    chaos.start(nodes=3)
    chaos.submit(60, 0.3)
    old = chaos.leader()
    eventually("work runs", lambda: chaos.started() > 3, within=60)
    chaos.cluster.kill(old, signal.SIGSTOP)
    chaos.cluster.kill("n1")  # a death that the new leader has to handle, and the old one would too
    eventually("another WatchDog leads", lambda: chaos.leader() not in {"", old}, within=T + TICK + 3.0)
    epoch = chaos.epoch()
    eventually(
        "the dead node's work runs elsewhere", lambda: any(view.attempt > 1 for view in chaos.tasks(chaos.submissions[0])), within=3 * T
    )
    chaos.cluster.kill(old, signal.SIGCONT)
    chaos.finish(within=90)
    assert (chaos.epoch(), chaos.leader() != old) == (epoch, True), "the old leader took nothing back"
    assert chaos.cluster.process(old).state == "running", "it lives on as a candidate"


def test_a_leader_that_is_asked_to_go_hands_over_in_a_second(chaos: Chaos):
    chaos.start(nodes=1)
    old = chaos.leader()
    chaos.cluster.kill(old, signal.SIGTERM)
    eventually("another WatchDog leads", lambda: chaos.leader() not in {"", old}, within=1.0)
    chaos.submit(5, 0.0)
    chaos.finish(within=60)


def test_a_leader_killed_between_two_multis_leaves_nothing_half_done(chaos: Chaos):
    # One death of a node, and six leaders, one after another: each begins with what the one before has left, does one multi more than
    # it or none, and dies. The last one finds everything done but the end.
    chaos.start(nodes=2, watchdogs=1)
    names = ("before-fence", "after-fence", "before-fail", "after-fail", "before-resubmit", "after-resubmit")
    chaos.succeed(**{name: {"RMGR_FAILPOINT": f"leader.{name.replace('-', '_')}=kill"} for name in names}, heir={})
    epoch = chaos.epoch()
    chaos.submit(8, 1.0)
    eventually("both nodes work", lambda: chaos.started() >= 4, within=60)
    chaos.cluster.kill("n1")
    for name in names:
        eventually(f"{name} has killed its leader", lambda: chaos.cluster.process(name).state == "dead", within=RECOVERY_S + T)  # noqa: B023
    eventually("the heir leads", lambda: chaos.leader() == "heir", within=T + TICK + 2.0)
    tasks = chaos.finish(within=60)
    assert any(view.attempt > 1 for view in tasks.values())
    assert chaos.epoch() == epoch + len(names), "each of them has led"


def test_matrix_row_1_has_its_full_backlog(chaos: Chaos):
    chaos.start(nodes=1, cores=2)
    chaos.rmgr("drain", "n1", "--reason", "backlog")
    chaos.submit(1000, 0.0)
    old = chaos.leader()
    os.kill(chaos.cluster.process(old).pid, signal.SIGKILL)
    eventually("another WatchDog leads", lambda: chaos.leader() not in {"", old}, within=T + TICK + 2.0)
    assert chaos.rmgr("resume", "n1").returncode == 0
    chaos.finish(within=120)
