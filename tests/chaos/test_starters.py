"""Starters die, stop, restart and leave: rows 8, 9, 10, 15 and 24 of the fault matrix."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from breakable import RECOVERY_S, Chaos, T
from ledger import read_ledger, work

from rmgr.client.taskqueue import TaskQueue
from rmgr.model.states import State
from tests.harness.ended_sessions import expire, sessions
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


#: name of a Starter -> where it dies
MOMENTS = {name.replace("_", "-"): name for name in ("before_claim", "after_claim", "running", "output_written", "after_complete")}


def test_a_starter_killed_at_any_moment_loses_nothing(pair: Chaos):
    # One Starter for each moment, all in one cluster: each dies when it comes there for the second time.
    pair.cluster.kill("n2", signal.SIGTERM)  # the doomed have more to do
    for doomed, moment in MOMENTS.items():
        pair.add_node(doomed, cores=2, RMGR_FAILPOINT=f"starter.{moment}:2=kill")
    eventually(lambda: {"n1", *MOMENTS} <= pair.up(), "all are up")
    pair.submit(160, 0.4, "--env", "PAD=20000")  # more output than rides inside a commit: it goes to the store
    for doomed in MOMENTS:
        eventually(lambda: pair.cluster.process(doomed).state == "dead", f"{doomed} has killed its Starter")  # noqa: B023
    pair.let_end()  # the rest need not last
    pair.finish()


def test_a_starter_killed_when_it_is_handed_a_block_loses_nothing(pair: Chaos):
    # calls one after another: each goes straight to the idle node (HAND), until that dies with one in its hands
    pair.add_node("doomed", cores=2, RMGR_FAILPOINT="starter.handed:2=kill")  # a slot is free: it shows its mark
    eventually(lambda: "doomed" in pair.up(), "it is up")
    for other in ("n1", "n2"):
        pair.cluster.kill(other)
    with pair.connection() as connection, TaskQueue(work, connection=connection, retries=2) as queue, ThreadPoolExecutor(1) as caller:

        def call() -> int:
            """Until it is dead, and a few more."""
            count = left = 0
            while left < 4 and count < 1000:
                left += pair.cluster.process("doomed").state == "dead"
                queue.submit_call(str(pair.ledger), 0.05).result(90)
                count += 1
            return count

        calls = caller.submit(call)
        eventually(lambda: pair.cluster.process("doomed").state == "dead", "the failpoint has killed the Starter")
        pair.add_node("heir", cores=1)
        pair.acknowledged = calls.result(120)
        pair.submissions = [queue.id]
    pair.finish()


def test_work_of_a_killed_starter_runs_elsewhere_in_time(brief: Chaos):
    number = brief.submit(4, 600.0)
    eventually(lambda: brief.started() >= 4, "all run")
    lost = {span.task for span in read_ledger(brief.ledger) if span.node == "n1"}
    brief.add_node("n3", cores=2)
    eventually(lambda: "n3" in brief.up(), "it is up")
    lives = {node: brief.snapshot().nodes[node].incarnation for node in ("n2", "n3")}
    brief.cluster.kill("n1")
    eventually(lambda: lost <= {span.task for span in brief.spans(number, 2)}, "its work runs elsewhere", within_s=RECOVERY_S)
    brief.let_end()
    tasks = brief.finish()
    if lives == {node: brief.snapshot().nodes[node].incarnation for node in lives}:  # else the machine has stood still for T, too
        assert {tasks[task].attempt for task in lost} == {2}
    assert {view.attempts[0].reason for view in brief.tasks(number) if view.id in lost} == {"NODE_LOST"}


def test_a_frozen_starter_that_wakes_commits_nothing(pair: Chaos):
    pair.submit(4, 600.0)
    eventually(lambda: pair.started() == 4, "all run")
    pair.cluster.kill("n1", signal.SIGSTOP)
    pair.let_end()
    eventually(lambda: pair.started() >= 6, "its work runs elsewhere")
    pair.cluster.kill("n1", signal.SIGCONT)
    pair.finish()
    eventually(lambda: pair.snapshot().nodes["n1"].state == "up", "it serves again under a new incarnation")


def test_exclusive_work_never_overlaps_itself(brief: Chaos):
    # Its Starter trusts its session for T: nobody may end it sooner than ZooKeeper does.
    brief.submit(4, 8.0, "--on-disconnect", "exclusive")
    eventually(lambda: brief.started() >= 4, "all run")
    brief.cluster.kill("n1", signal.SIGSTOP)
    # More than these two if the machine stands still for longer than T: then every session ends.
    eventually(lambda: brief.started() >= 6, "its tasks run elsewhere", within_s=RECOVERY_S + 12.0)
    brief.cluster.kill("n1", signal.SIGCONT)
    brief.finish(exclusive=True)


def test_a_starter_restarted_within_the_timeout_is_one_node(pair: Chaos):
    pair.submit(12, 0.5)
    eventually(lambda: any(span.node == "n1" for span in read_ledger(pair.ledger)), "it works")
    known, before = set(pair.snapshot().nodes), pair.snapshot().nodes["n1"].incarnation
    pair.cluster.kill("n1")
    pair.add_node("n1", cores=2)
    eventually(lambda: pair.snapshot().nodes["n1"].incarnation > before, "a new incarnation is up")
    pair.finish()
    assert set(pair.snapshot().nodes) == known


def test_two_starters_of_one_name_are_refused(pair: Chaos):
    pid = pair.cluster.process("n1").pid
    mine = pair.cluster.daemon_environment("starter", "n1")
    done = pair.rmgr("starter", "--node", "n1", "--cores", "1", "--work-dir", str(pair.directory / "second"), timeout=T + 30, **mine)
    assert done.returncode != 0
    assert "n1" in done.stderr
    assert str(pid) in done.stderr
    pair.submit(2, 0.0)
    pair.finish()


def test_a_starter_that_is_asked_to_go_fails_no_attempt(pair: Chaos):
    number = pair.submit(30, 0.4)
    eventually(lambda: {span.node for span in read_ledger(pair.ledger)} >= {"n1", "n2"}, "both work")
    pair.cluster.kill("n1", signal.SIGTERM)
    eventually(lambda: pair.cluster.process("n1").state == "dead", "it has gone")
    pair.finish()
    assert {view.attempt for view in pair.tasks(number)} == {1}


def test_forced_expiry_of_a_session_costs_no_task(led: Chaos):
    eventually(lambda: len(sessions(led.cluster.coordinator)) == 4, "two Starters and two WatchDogs hold sessions")
    led.submit(30, 0.4)
    eventually(lambda: {span.node for span in read_ledger(led.ledger)} >= {"n1", "n2"}, "both work")
    before = sessions(led.cluster.coordinator)
    assert len(before) == 4
    for owner in before.values():
        expire(led.cluster.zookeeper.hosts, owner)
    eventually(lambda: len(sessions(led.cluster.coordinator).keys() - before.keys()) == 4, "all have new sessions")
    led.finish()
    eventually(lambda: {"n1", "n2"} <= led.up() and led.leader(), "both nodes are up, and somebody leads")


def test_results_are_those_of_the_committed_attempt(pair: Chaos):
    pair.add_node("n3", cores=2)
    eventually(lambda: len(pair.up()) == 3, "three nodes")
    connection = pair.connection()
    try:
        with TaskQueue(work, connection=connection) as queue:
            futures = [queue.submit_call(str(pair.ledger), 0.3) for _ in range(40)]
            queue.flush(timeout=60)
            pair.submissions.append(queue.id)
            pair.acknowledged += 40
            eventually(lambda: pair.started() > 8, "work runs")
            pair.cluster.kill("n1")
            pair.cluster.kill("n2", signal.SIGSTOP)
            results = {future.task_id: future.result(timeout=90) for future in futures}
            pair.cluster.kill("n2", signal.SIGCONT)
        tasks = pair.finish(results=results)
        assert {view.state for view in tasks.values()} == {State.COMPLETED}
    finally:
        connection.close()


def test_resubmit_false_runs_at_most_once(pair: Chaos):
    number = pair.submit(8, 600.0, "--no-resubmit")
    eventually(lambda: {span.node for span in read_ledger(pair.ledger)} >= {"n1", "n2"}, "both work")
    pair.cluster.kill("n1")
    pair.let_end()
    tasks = pair.finish()
    runs = [span.task for span in read_ledger(pair.ledger)]
    assert len(runs) == len(set(runs)), "no task started twice"
    lost = [view for view in tasks.values() if view.state is State.FAILED]
    assert lost
    assert {view.reason for view in lost} == {"NODE_LOST"}
    assert {view.attempt for view in pair.tasks(number)} == {1}
