"""Submitters die between any two of their commits: a successor with the same token gets the same results.

The application is the one that a user would write to survive its own death:

    queue = TaskQueue(work, token="app")
    for n in range(queue.own(), 24): queue.submit_call(...)      # goes on where the commits ended
    queue.wait_all(); print results

on `three_nodes`, with 1 WatchDog; each test has a ledger of its own, and its token is the ledger's name
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from breakable import Chaos

from rmgr.client.taskqueue import TaskQueue
from tests.harness import forked
from tests.harness.waiting import eventually
from tests.places import CHAOS

pytestmark = pytest.mark.chaos

TASKS = 24
APPLICATION = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ledger import work
from rmgr import TaskQueue
ledger, seconds = sys.argv[2], float(sys.argv[3])
queue = TaskQueue(work, token=ledger.rpartition("/")[2], retries=2, backoff=0.1)
print(queue.name, flush=True)
for n in range(queue.own(), int(sys.argv[4])):
    queue.submit_call(ledger, seconds)
    if n % 5 == 0:
        queue.flush(60)
queue.close()
queue.wait_all(timeout=120)
print(json.dumps({future.task_id: future.result(60) for future in queue.futures()}), flush=True)
"""


@pytest.fixture
def chaos(three_nodes: Chaos) -> Chaos:
    return three_nodes


def application(chaos: Chaos, *, seconds: float, failpoint: str = "", what: str = APPLICATION) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
    environment |= chaos.cluster.environment()
    if failpoint:
        environment["RMGR_FAILPOINT"] = failpoint
    return forked.application(what, str(CHAOS), str(chaos.ledger), str(seconds), str(TASKS), env=environment)


def finish(chaos: Chaos, process: subprocess.Popen[str]) -> dict[str, str]:
    """The results that the application printed, checked against the ledger."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    name, results = out.splitlines()
    chaos.submissions, chaos.acknowledged = [int(name.removeprefix("taskq-"))], TASKS
    found: dict[str, str] = json.loads(results)
    assert len(found) == TASKS
    tasks = chaos.finish(results=found)
    assert {view.attempt for view in tasks.values()} <= {1, 2, 3}
    return found


@pytest.mark.parametrize(
    "moment",
    ["submitter.before_submit", "submitter.after_submit", "submitter.before_enqueue:1", "submitter.after_enqueue:1",
     "submitter.before_enqueue:3", "submitter.after_enqueue:3", "submitter.after_enqueue:5"],
)  # fmt: skip
def test_a_submitter_killed_between_two_commits_is_followed_by_another(chaos: Chaos, moment: str) -> None:
    first = application(chaos, seconds=0.05, failpoint=f"{moment}=kill")
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    finish(chaos, application(chaos, seconds=0.05))
    same = [record.id for record, _ in chaos.cluster.snapshot().submissions.values() if record.token == chaos.ledger.name]
    assert len(same) == 1, "the same token gives the same submission"


AT_ONCE = """
import sys
sys.path.insert(0, sys.argv[1])
from ledger import work
from rmgr import TaskQueue
from rmgr.client import tasks
tasks.MAP_S = 600.0  # one batch, however slow the machine is
TaskQueue(work, retries=2, backoff=0.1).map(None, [sys.argv[2]] * int(sys.argv[4]), [float(sys.argv[3])] * int(sys.argv[4]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_submitter_killed_at_its_first_commit_leaves_all_first_tasks_or_none(chaos: Chaos, moment: str) -> None:
    known = set(chaos.cluster.snapshot().submissions)
    first = application(chaos, seconds=0.05, failpoint=f"submitter.{moment}_submit=kill", what=AT_ONCE)
    _, err = first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL, err
    chaos.submissions = sorted(set(chaos.cluster.snapshot().submissions) - known)
    assert len(chaos.submissions) == (1 if moment == "after" else 0)
    if moment == "after":
        chaos.acknowledged = TASKS
        assert {view.attempt for view in chaos.finish().values()} == {1}


def test_the_one_that_takes_over_may_die_of_it_too(chaos: Chaos) -> None:
    for failpoint in ("submitter.after_enqueue:2=kill", "submitter.before_take_over=kill", "submitter.after_take_over=kill"):
        process = application(chaos, seconds=0.05, failpoint=failpoint)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    finish(chaos, application(chaos, seconds=0.05))


@pytest.mark.parametrize("moment", ["submitter.before_resubmit", "submitter.after_resubmit"])
def test_a_submitter_killed_while_it_mends_a_loss_leaves_the_rest_to_the_leader(chaos: Chaos, moment: str) -> None:
    first = application(chaos, seconds=600, failpoint=f"{moment}=kill")
    eventually(lambda: chaos.started() > 4, "work runs")
    chaos.cluster.kill("n1")
    first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    chaos.let_end()
    chaos.add_node("n1")
    finish(chaos, application(chaos, seconds=0.05))


def test_while_no_submitter_lives_the_leader_carries_out_the_rule(chaos: Chaos) -> None:
    first = application(chaos, seconds=600)
    assert first.stdout is not None
    name = first.stdout.readline().strip()
    eventually(lambda: chaos.started() > 4, "everything is submitted and runs")
    first.kill()
    first.communicate()
    chaos.cluster.kill("n2")
    chaos.let_end()
    chaos.submissions, chaos.acknowledged = [int(name.removeprefix("taskq-"))], len(chaos.tasks(int(name.removeprefix("taskq-"))))
    tasks = chaos.finish()
    assert any(view.attempt > 1 for view in tasks.values())
    with chaos.connection() as connection:
        assert TaskQueue.attach(name, connection=connection).wait_all(timeout=60).counts["COMPLETED"] == chaos.acknowledged


def test_a_submitter_that_sleeps_through_its_session_is_told_that_another_went_on(chaos: Chaos) -> None:
    first = application(chaos, seconds=0.05, failpoint="submitter.after_enqueue:2=stop")
    assert first.stdout is not None
    first.stdout.readline()
    eventually(lambda: chaos.cluster.coordinator is not None and _is_stopped(first.pid), "it sleeps")
    try:
        found = finish(chaos, application(chaos, seconds=0.05))
        first.send_signal(signal.SIGCONT)
        _, err = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode != 0
    assert "was taken over by another Submitter" in err or "is complete; no task can be added" in err
    assert {view.id for view in chaos.tasks(chaos.submissions[0])} == set(found), "it added nothing after its fence"


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
