"""A Starter and the leader die in the middle of 200,000 tasks at full rate: rows 1 and 9 of the fault matrix."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest
from breakable import Chaos

from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.model.states import State
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos

TASKS = 200_000
#: Bytes in the ledger when both are killed: a task writes about 100.
EARLY = 2_000_000


def note(ledger: str, _index: int) -> str:
    """As little as a task can do that still writes itself down: start and end in one write to a file that stays open."""
    handle = note.__dict__.get(ledger)
    if handle is None:
        handle = note.__dict__[ledger] = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    task, attempt = os.environ["RMGR_TASK_ID"], os.environ["RMGR_ATTEMPT"]
    story = f"{task} {attempt} {os.environ.get('RMGR_NODELIST', '?')} {os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME):.6f}\n"
    os.write(handle, f"start {story}end {story}".encode())
    return f"{task}.{attempt}"


def kill_early(chaos: Chaos, leader: str) -> None:
    """In a thread: the client may be far behind what has run."""
    eventually(lambda: chaos.ledger.exists() and chaos.ledger.stat().st_size > EARLY, "work runs", within_s=120)
    eventually(lambda: holds_tasks(chaos, "n1"), "n1 stands still with tasks that it has claimed")
    chaos.cluster.kill("n1")
    chaos.cluster.kill(leader)


def holds_tasks(chaos: Chaos, node: str) -> bool:
    """Stops a Starter; it stays stopped if it has claimed tasks, of which nobody else can take any now."""
    chaos.cluster.kill(node, signal.SIGSTOP)
    coordinator = chaos.cluster.coordinator
    before = coordinator.children(paths.running_node(node)).result(60)
    time.sleep(0.05)  # what it had sent is committed
    if before and coordinator.children(paths.running_node(node)).result(60):
        return True
    chaos.cluster.kill(node, signal.SIGCONT)
    return False


@pytest.mark.long
def test_a_starter_and_the_leader_killed_at_full_rate_lose_and_repeat_nothing(chaos: Chaos):
    # n1 --- claims, runs, commits ---x kill -9                     n2, n3 run the rest and what n1 had claimed
    # w1 --- leads -------------------x kill -9   w2 leads after T: fences n1, marks its blocks FAILED
    chaos.start(nodes=3, cores=1)
    leader = chaos.leader()
    connection = chaos.connection()
    try:
        with TaskQueue(partial(note, str(chaos.ledger)), connection=connection) as queue:
            killing = threading.Thread(target=kill_early, args=(chaos, leader))
            killing.start()
            futures = queue.map(None, range(TASKS))
            chaos.acknowledged += TASKS
            results: dict[str, str] = {}
            for future in queue.as_completed(futures, timeout=300):
                results[future.task_id] = future.result()
            chaos.submissions.append(queue.id)
        killing.join(60)
        assert len(results) == TASKS
        chaos.ended = lambda: True  # type: ignore[method-assign]  # every future has its result: 200,000 views are read once, by the checker
        tasks = chaos.finish(results=results)
        assert {view.state for view in tasks.values()} == {State.COMPLETED}
        again = sum(view.attempt > 1 for view in tasks.values())
        assert 0 < again < TASKS // 10, f"{again} tasks were claimed by the dead Starter, and ran elsewhere"
        assert chaos.leader() not in {"", leader}
    finally:
        connection.close()
