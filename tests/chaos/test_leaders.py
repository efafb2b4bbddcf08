"""WatchDogs die, stop and leave: rows 1, 3 and 8 of the fault matrix."""

from __future__ import annotations

import os
import signal

import pytest
from breakable import RECOVERY_S, TICK, Chaos, T

from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


def living(led: Chaos) -> list[str]:
    """WatchDogs that run."""
    return [process.id for process in led.cluster.state.processes if process.role == "watchdog" and process.state != "dead"]


def test_a_killed_leader_is_replaced_within_the_session_timeout(brief: Chaos):
    brief.submit(200, 0.0)
    old, epoch = brief.leader(), brief.epoch()
    with FairTimer() as timer:
        brief.cluster.kill(old)
        eventually(lambda: brief.leader() not in {"", old}, "another WatchDog leads", within_s=T + TICK + 2.0)
        assert brief.epoch() == epoch + 1 or timer.stood_still
    brief.finish()


def test_without_any_leader_pulled_work_goes_on(led: Chaos):
    for name in living(led):
        led.cluster.kill(name)
    number = led.submit(20, 0.1)
    eventually(led.ended, "all have run without a leader")
    assert {view.attempt for view in led.tasks(number)} == {1}
    led.cluster.start_watchdog("alone")
    led.finish()


def test_a_stopped_leader_that_wakes_writes_nothing(led: Chaos):
    led.add_node("n3")
    eventually(lambda: len(led.up()) == 3, "three nodes")
    led.submit(60, 0.3)
    old = led.leader()
    eventually(lambda: led.started() > 3, "work runs")
    led.cluster.kill(old, signal.SIGSTOP)
    led.cluster.kill("n1")  # a death that the new leader has to handle, and the old one would too
    eventually(lambda: led.leader() not in {"", old}, "another WatchDog leads")
    epoch = led.epoch()
    eventually(lambda: any(view.attempt > 1 for view in led.tasks(led.submissions[0])), "the dead node's work runs again")
    led.cluster.kill(old, signal.SIGCONT)
    led.finish()
    assert (led.epoch(), led.leader() != old) == (epoch, True), "the old leader took nothing back"
    assert led.cluster.process(old).state == "running", "it lives on as a candidate"


def test_a_leader_that_is_asked_to_go_hands_over_in_a_second(led: Chaos):
    old = led.leader()
    led.cluster.kill(old, signal.SIGTERM)
    eventually(lambda: led.leader() not in {"", old}, "another WatchDog leads", within_s=1.0)
    led.submit(5, 0.0)
    led.finish()


def test_a_leader_killed_between_two_multis_leaves_nothing_half_done(led: Chaos):
    # One death of a node, and six leaders, one after another: each begins with what the one before has left, does one multi more than
    # it or none, and dies. The last one finds everything done but the end.
    names = ("before-fence", "after-fence", "before-fail", "after-fail", "before-resubmit", "after-resubmit")
    led.succeed(**{name: {"RMGR_FAILPOINT": f"leader.{name.replace('-', '_')}=kill"} for name in names}, heir={})
    epoch = led.epoch()
    led.submit(8, 600.0)
    eventually(lambda: led.started() >= 4, "both nodes work")
    led.cluster.kill("n1")
    for name in names:
        eventually(lambda: led.cluster.process(name).state == "dead", f"{name} has killed its leader")  # noqa: B023
    eventually(lambda: led.leader() == "heir", "the heir leads")
    led.let_end()
    tasks = led.finish()
    assert any(view.attempt > 1 for view in tasks.values())
    assert led.epoch() == epoch + len(names), "each of them has led"


def test_matrix_row_1_has_its_full_backlog(led: Chaos):
    led.rmgr("drain", "n1", "n2", "--reason", "backlog")
    led.submit(1000, 0.0)
    old = led.leader()
    os.kill(led.cluster.process(old).pid, signal.SIGKILL)
    eventually(lambda: led.leader() not in {"", old}, "another WatchDog leads", within_s=2 * RECOVERY_S)
    assert led.rmgr("resume", "n1", "n2").returncode == 0
    led.finish()
