"""Leader, Starters and client in one thread on a virtual clock: the loss of a lease, what is run again, and who comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmgr.client.specs import python_environment
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import DeadlineExceeded
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.tasks.block import BlockData
from rmgr.model.tasks.submission import Condition, Dependency, Phase
from tests.harness.leader_bench import Submitter, Tree
from tests.harness.virtual import SESSION_S, VirtualCluster, VirtualMachine

#: What this thread, which never waits, may need while the cluster lives through minutes: its own time, whoever else is busy here.
MOST_REAL_S = 1.0


@pytest.fixture
def world() -> Iterator[VirtualMachine]:
    made = VirtualMachine(seed=1)
    with made.installed():
        yield made


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, start = threading.get_ident(), threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if threading.get_ident() == mine:
            raise AssertionError(f"thread {self.name} was started")
        start(self)  # what tests before have left

    monkeypatch.setattr(threading.Thread, "start", refuse)


def work(number: int) -> int:
    raise NotImplementedError("a virtual worker calls nothing")


def record_of(cluster: VirtualCluster, node: str) -> NodeRecord:
    found = cluster.admin.get(paths.node(node)).result(0)
    assert found is not None
    return decode_record(found.data, NodeRecord)


def lose_a_lease(world: VirtualMachine, directory: Path) -> tuple[VirtualCluster, Any]:
    """n1 runs a task and loses ZooKeeper; n2 comes. Returns when the task is final."""
    cluster = VirtualCluster(world, directory)
    leader, _ = cluster.watchdog("w1")
    first, link = cluster.starter("n1", task_s=60.0)
    world.run_until(lambda: leader.leader is not None and cluster.events("acting", "n1"), "a leader leads, a Starter acts")
    queue = TaskQueue(work, name="lost", connection=cluster.client())
    future = queue.submit_call(7)
    world.run_until(lambda: cluster.admin.children(paths.running_node("n1")).result(0), "n1 has claimed the task")
    cluster.starter("n2", task_s=60.0)
    world.run_until(lambda: cluster.events("acting", "n2"), "another Starter acts")
    cluster.cut(link)
    cut_s = world.now_s
    world.run_until(future.done, "the task is final")
    stopped, = [line["at_s"] for line in cluster.events("acting_stopped", "n1")]
    assert cut_s + SESSION_S / 2 < stopped < cut_s + SESSION_S, "it stops acting by itself, before anybody may take what it has"
    assert world.now_s > cut_s + SESSION_S + 60.0, "the other one ran all of it, after the first was fenced"
    assert future.settled is not None
    assert (future.settled.node, future.settled.attempt) == ("n2", 2)
    assert first.starter.agents["n1"].blocks != {}, "who is cut off runs on what is not exclusive"
    cluster.mend(link)
    world.run_until(lambda: record_of(cluster, "n1").incarnation == 2, "it comes back as another incarnation")
    world.run_until(lambda: not first.starter.agents["n1"].blocks, "what it has is not its own any more")
    assert record_of(cluster, "n1").state is NodeState.UP
    return cluster, future


def test_a_lease_is_lost_and_the_work_runs_again(world: VirtualMachine, tmp_path: Path) -> None:
    started_s = time.thread_time()
    cluster, _ = lose_a_lease(world, tmp_path)
    took_s = time.thread_time() - started_s
    assert world.now_s > 1_060.0
    assert took_s < MOST_REAL_S
    assert cluster.events("set_aside") == []


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    logs = []
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        made = VirtualMachine(seed=7)
        with made.installed():
            cluster, _ = lose_a_lease(made, directory)
        logs.append([[(key, repr(value)) for key, value in line.items()] for line in cluster.log])
    assert logs[0] == logs[1] != []


def test_a_leader_is_cut_off_and_another_one_requeues(world: VirtualMachine, tmp_path: Path) -> None:
    started_s = time.thread_time()
    cluster = VirtualCluster(world, tmp_path)
    old, old_link = cluster.watchdog("w1")
    world.run_until(lambda: old.leader is not None, "the first one leads")
    new, _ = cluster.watchdog("w2")
    _, link = cluster.starter("n1", task_s=60.0)
    queue = TaskQueue(work, name="orphan", connection=cluster.client())
    future = queue.submit_call(7)
    world.run_until(lambda: cluster.admin.children(paths.running_node("n1")).result(0), "n1 has claimed the task")
    cluster.starter("n2", task_s=60.0)
    cluster.cut(old_link)
    cluster.cut(link)
    world.run_until(lambda: new.leader is not None, "the other one leads")
    future.wait(timeout=300.0)
    assert future.settled is not None
    assert (future.settled.node, future.settled.attempt) == ("n2", 2)
    assert [line["who"] for line in cluster.events("node_fenced")] == ["w2"]
    cluster.mend(old_link)
    world.run_until(lambda: old.unable() == "", "who was cut off stands again")
    assert old.leader is None
    assert new.leader is not None
    assert time.thread_time() - started_s < MOST_REAL_S


def test_who_waits_is_told_when_the_time_is_over(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = VirtualCluster(world, tmp_path)
    future = TaskQueue(work, name="nobody", connection=cluster.client()).submit_call(7)
    before_s = world.now_s
    with pytest.raises(DeadlineExceeded, match="within 20 s"):
        future.result(timeout=20.0)
    assert world.now_s - before_s == pytest.approx(20.0, abs=0.01)


@pytest.mark.parametrize(
    ("conditions", "runs"), [(("fail", "fail", "any"), (False, False, True)), (("any", "ok", "fail"), (True, True, False))]
)
def test_a_chain_of_four_whose_first_is_cancelled_while_held(
    world: VirtualMachine, tmp_path: Path, conditions: tuple[str, ...], runs: tuple[bool, ...]
) -> None:
    cluster = VirtualCluster(world, tmp_path)
    cluster.watchdog("w1")
    cluster.starter("n1", task_s=5.0)
    world.run_until(lambda: cluster.events("acting", "n1"), "a Starter acts")
    submitter, look = Submitter(cluster.admin), Tree(cluster.admin)
    data = BlockData(function=cluster.client().functions.register(work, timeout_s=10.0))
    what: dict[str, Any] = {"python": python_environment(), "data": data}
    chain = [submitter.submit(2, held=True, **what)]
    for condition in conditions:
        after = (Dependency(condition=Condition(condition), submission=chain[-1]),)
        chain.append(submitter.submit(2, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=after, **what))
    submitter.change(chain[0], gate=None, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    world.run_until(lambda: all(len(look.outcomes(number)) == 2 for number in chain), "all four have ended")
    ended = [{outcome.state for outcome in look.outcomes(number).values()} for number in chain]
    assert ended == [{State.CANCELLED}, *({State.COMPLETED if ran else State.CANCELLED} for ran in runs)]


def shares(look: Tree, numbers: dict[str, int], before: dict[str, int] | None = None) -> dict[str, int]:
    """Tasks that have ended, by user."""
    return {user: len(look.outcomes(number)) - (before or {}).get(user, 0) for user, number in numbers.items()}


def test_ten_users_with_endless_arrays_share_a_fair_queue(world: VirtualMachine, tmp_path: Path) -> None:
    """A newcomer is served at once; a user whose work was all there before has no more than the others."""
    cluster = VirtualCluster(world, tmp_path)
    for node in range(4):
        cluster.starter(f"n{node}", task_s=0.2 + 0.25 * node, slots=2)
    world.run_until(lambda: len(cluster.events("acting")) == 4, "all Starters act")
    submitter, look = Submitter(cluster.admin), Tree(cluster.admin)
    data = BlockData(function=cluster.client().functions.register(work, timeout_s=10.0))
    what: dict[str, Any] = {"python": python_environment(), "data": data, "block": 100}
    numbers = {"first": submitter.submit(2000, user="first", **what)}
    lone_s, cores_used = world.now_s, sum(2 / (0.2 + 0.25 * node) for node in range(4))
    world.run_until(lambda: world.now_s > lone_s + 20.0, "time passes")
    assert shares(look, numbers)["first"] == pytest.approx(20.0 * cores_used, rel=0.1), "a lone user has all cores"
    numbers |= {f"u{at}": submitter.submit(1000, user=f"u{at}", priority=at, **what) for at in range(9)}
    came_s = world.now_s
    world.run_until(lambda: all(shares(look, numbers).values()), "each newcomer has had a task")
    assert world.now_s - came_s < 5.0
    before, begin_s = shares(look, numbers), world.now_s
    world.run_until(lambda: world.now_s > begin_s + 120.0, "time passes")
    had = shares(look, numbers, before)
    equal = sum(had.values()) / len(had)
    assert sum(had.values()) == pytest.approx(120.0 * cores_used, rel=0.1), "no slot waits for somebody's turn"
    assert all(abs(count - equal) <= 0.1 * equal for count in had.values()), had
