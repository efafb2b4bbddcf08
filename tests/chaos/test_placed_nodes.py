"""Jobs of several nodes under kills: rows 2, 9 and 15 of the fault matrix where ranks run elsewhere; nodes that change."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from breakable import RANK_BEAT_S, Chaos, T

from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos


@pytest.fixture
def jobs(three_nodes: Chaos) -> Chaos:
    return three_nodes


def started(jobs: Chaos, number: int, ranks: int, attempt: int = 1) -> tuple[str, ...]:
    """Waits until all ranks of an attempt run; returns the job's nodes."""
    what = f"{ranks} ranks of attempt {attempt} of job {number} run"
    eventually(lambda: len(jobs.spans(number, attempt)) == ranks, what)
    return eventually(lambda: jobs.nodes_of(number), "its nodes are known")


def is_free(jobs: Chaos, number: int) -> bool:
    """Nothing of a job stands on any node: no block, no cores held."""
    children = jobs.cluster.coordinator.children
    held = [name for node in jobs.cores for name in children(paths.hold(node)).result(60) or ()]
    return not jobs.nodes_of(number) and not any(name.startswith(f"{number}.") for name in held)


def beats(jobs: Chaos, number: int, attempt: int) -> bool:
    """A rank of that attempt wrote something in the last five beats."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return any(now_s - span.last < 5 * RANK_BEAT_S and not span.ended for span in jobs.spans(number, attempt))


def test_a_node_dies_under_jobs_of_several_nodes(jobs: Chaos) -> None:
    # Both on the same two of three nodes; one may run again, the other may not.
    again = jobs.submit_job(2, 600.0, "--env", "LATER=2", "-N", "2")
    nodes = started(jobs, again, 2)
    never = jobs.submit_job(2, 600.0, "-N", "2", "--no-requeue", "--nodelist", ",".join(nodes))
    assert set(started(jobs, never, 2)) == set(nodes)
    others = {name: record.incarnation for name, record in jobs.snapshot().nodes.items() if name != nodes[1]}
    with FairTimer() as timer:
        jobs.cluster.kill(nodes[1])
        eventually(lambda: not beats(jobs, never, 1), "no rank of it lives anywhere")
        killed_s = timer.elapsed_s
        eventually(lambda: is_free(jobs, never), "the nodes are free again")
        free_s = timer.elapsed_s
        eventually(lambda: any(len(jobs.spans(again, later)) == 2 for later in (2, 3, 4)), "it runs again")
        print(f"T = {T} s: ranks elsewhere dead after {killed_s:.1f} s, nodes free {free_s:.1f} s, run again {timer.elapsed_s:.1f} s")
    tasks = jobs.finish()
    lost, rerun = tasks[f"{never}_0"], tasks[f"{again}_0"]
    assert (lost.state, lost.reason, lost.attempt) == ("FAILED", "NODE_LOST", 1)
    assert (rerun.state, {view.reason for view in rerun.attempts[:-1]}) == ("COMPLETED", {"NODE_LOST"})
    now = jobs.snapshot().nodes
    also_lost = sum(now[name].incarnation - incarnation for name, incarnation in others.items())  # a stall has ended their sessions, too
    assert 2 <= rerun.attempt <= 2 + also_lost


def test_the_node_of_the_script_dies_and_its_ranks_elsewhere_with_it(jobs: Chaos) -> None:
    number = jobs.submit_job(3, 600.0, "--env", "LATER=2", "-N", "3")
    nodes = started(jobs, number, 3)
    jobs.cluster.kill(nodes[0])
    eventually(lambda: not beats(jobs, number, 1), "no rank of it lives")
    eventually(lambda: is_free(jobs, number), "it waits for three nodes")
    jobs.add_node(nodes[0])
    tasks = jobs.finish()
    assert [view.reason for view in tasks[f"{number}_0"].attempts] == ["NODE_LOST", ""]


def test_a_helper_that_is_back_before_it_was_missed_has_lost_its_ranks(jobs: Chaos) -> None:
    # The script does not look at its ranks, and no leader fences the node: nobody but the head's Starter can notice.
    with jobs.settings(lambda usual: replace(usual, grace_us=600_000_000)):  # how long the leader waits for a Starter that is gone
        number = jobs.submit(1, 600.0, "--env", "LATER=2", "-N", "2", "-n", "2")
        nodes = started(jobs, number, 1)
        before = jobs.snapshot().nodes[nodes[1]]
        jobs.restart(nodes[1])
        tasks = jobs.finish()
    after = jobs.snapshot().nodes[nodes[1]]
    assert (after.incarnation, after.life != before.life) == (before.incarnation + 1, True), "it was never fenced"
    assert [view.reason for view in tasks[f"{number}_0"].attempts] == ["NODE_LOST", ""]


def test_a_start_that_loses_a_node_goes_back_and_starts_elsewhere(jobs: Chaos) -> None:
    # Pulled work is everywhere when the job comes: its start waits for cores on two nodes, and one of them dies.
    pulled = jobs.submit(6, 100.0, "--no-resubmit", "--env", f"BEAT={RANK_BEAT_S}")
    eventually(lambda: len(jobs.spans(pulled)) == 6, "all cores are busy")
    number = jobs.submit_job(4, 0.5, "-N", "2")
    _, helper = eventually(lambda: jobs.nodes_of(number), "it has its nodes")
    jobs.cluster.kill(helper)
    eventually(lambda: helper not in jobs.nodes_of(number) and jobs.nodes_of(number), "it has other nodes")
    jobs.let_end()
    tasks = jobs.finish()
    assert len({span.node for span in jobs.spans(number)} - {helper}) == 2
    view = tasks[f"{number}_0"]
    assert (view.state, view.attempt) == ("COMPLETED", 1), "nothing of it had started"
    assert [view.reason for view in jobs.tasks(pulled)].count("NODE_LOST") == 2


def test_a_head_that_dies_before_its_job_has_started_costs_an_attempt_and_nothing_else(jobs: Chaos) -> None:
    tried = jobs.rmgr("submit", "--dry-run", "--json", "-N", "2", "--", "true")
    head = json.loads(tried.stdout)["would"]["nodes"][0]["id"]
    jobs.restart(head, RMGR_FAILPOINT="starter.before_prepare=kill")
    number = jobs.submit_job(3, 0.2, "-N", "3")
    eventually(lambda: jobs.cluster.process(head).state == "dead", "the failpoint has killed its head")
    eventually(lambda: is_free(jobs, number), "nothing is held")
    assert jobs.spans(number) == []
    jobs.add_node(head)
    tasks = jobs.finish()
    assert [view.reason for view in tasks[f"{number}_0"].attempts] == ["NODE_LOST", ""]


def test_a_node_that_comes_back_smaller_is_not_given_more_than_it_has(jobs: Chaos) -> None:
    wide = jobs.submit(1, 600.0, "--env", "LATER=2", "-q", "batch", "-c", "2", "--nodelist", "n3")
    eventually(lambda: jobs.spans(wide), "the first one runs")
    jobs.restart("n3", cores=1)
    narrow = jobs.submit(3, 0.3, "-q", "batch", "--nodelist", "n3")
    eventually(lambda: len([span for span in jobs.spans(narrow) if span.ended]) == 3, "what fits runs")
    assert len(jobs.spans(wide)) == 1

    def explained() -> str:
        """A task has said that it ends before its node has."""
        told = jobs.rmgr("explain", str(wide)).stdout
        return told if "n3 is up, 1 of its 1 core free" in told else ""

    assert "more than partition default has" in eventually(explained, "its core is free again")
    refused = jobs.rmgr("submit", "-q", "batch", "-c", "2", "--nodelist", "n3", "--", "true")
    assert (refused.returncode, "n3, has 1 core " in refused.stderr) == (2, True), refused.stderr
    jobs.restart("n3", cores=2)
    jobs.finish()


@pytest.mark.parametrize("wide_pair", [6], indirect=True, ids=["six cores"])
def test_four_calls_of_four_processes_on_two_starters_are_right_though_one_is_killed(wide_pair: Chaos, tmp_path: Path) -> None:
    # Six cores each: the first call has four of one, the next two of each, the third four of the other, which dies; the last one waits.
    chaos, up = wide_pair, tmp_path

    def squared(number: int) -> tuple[int, int]:
        attempt, rank = int(os.environ["RMGR_ATTEMPT"]), os.environ["RMGR_RANK"]
        (up / f"up-{number}.{attempt}-{rank}").write_text(os.environ["RMGR_NODE"])
        while not (up / "go").exists():
            time.sleep(0.02)
        return number * number, attempt

    def nodes_of(call: str) -> set[str]:
        return {path.read_text() for path in up.glob(f"up-{call}-*")}

    def all_run(calls: list[str]) -> bool:
        return all(len(list(up.glob(f"up-{call}-*"))) == 4 for call in calls) and "" not in set().union(*map(nodes_of, calls))

    with chaos.connection() as connection, TaskQueue(squared, processes=4, connection=connection) as queue:
        calls = []
        for number in range(4):
            connection.store.put(f"in/{number}", number)
            calls.append(queue.submit(inputs=[f"in/{number}"], outputs=[f"out/{number}"], resubmit=True))
        eventually(lambda: all_run(["0.1", "1.1", "2.1"]), "twelve ranks run")
        (one,), (other,) = nodes_of("0.1"), nodes_of("2.1")
        assert nodes_of("1.1") == {one, other} == {"n1", "n2"}
        chaos.cluster.kill(other)  # for good: SIGKILL, and nobody starts it again
        (up / "go").touch()
        waited = queue.wait_all(timeout=120)
        assert (waited.counts["COMPLETED"], waited.failed) == (4, [])
        assert [call.exception(60) for call in calls] == [None] * 4
        tasks = chaos.tasks(queue.id)
        assert [[old.reason for old in task.attempts] for task in tasks] == [[""], ["NODE_LOST", ""], ["NODE_LOST", ""], [""]]
        assert sorted(connection.store.keys("out/")) == [f"out/{number}" for number in range(4)]
        assert [connection.store.get(f"out/{number}") for number in range(4)] == [(0, 1), (1, 2), (4, 2), (9, 1)]
