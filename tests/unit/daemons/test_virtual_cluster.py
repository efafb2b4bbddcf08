"""Leader, Starters and client in one thread on a virtual clock: a lost lease, work that runs again, and returning daemons."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.client.specs import python_environment, user_name
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.decisions.changing import Change, Doer, amended
from rmgr.coord.ops.membership import set_settings
from rmgr.coord.ops.work import hand, update
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Outcome
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import CoordinationUnavailable, DeadlineExceeded, LimitReached
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import CappedUse, ClusterSettings, QueueSpec, UserLimits
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase, Tail, Terms
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
    return decode_record(cluster.admin.get(paths.node(node)).result(0).data, NodeRecord)


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
    assert (future.settled.node, future.settled.attempt) == ("n2", 2)
    assert first.agents["n1"].blocks != {}, "who is cut off runs on what is not exclusive"
    cluster.mend(link)
    world.run_until(lambda: record_of(cluster, "n1").incarnation == 2, "it comes back as another incarnation")
    world.run_until(lambda: not first.agents["n1"].blocks, "what it has is not its own any more")
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


def test_a_registration_whose_last_answer_is_missing_is_made_again(
    world: VirtualMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(world, tmp_path)
    starter = cluster.starter("n1", task_s=1.0)[0]
    ask, answers, told = starter.registry.registered_ms, [CoordinationUnavailable("ZooKeeper does not answer")], list[int]()

    def registered_ms(node: str) -> int:
        if answers:
            raise answers.pop()
        return ask(node)

    monkeypatch.setattr(starter.registry, "registered_ms", registered_ms)
    monkeypatch.setattr(starter.shared, "gate", SimpleNamespace(registered=told.append))
    world.run_until(lambda: cluster.events("acting", "n1"), "n1 acts")
    assert [line["incarnation"] for line in cluster.events("registered", "n1")] == [1, 2]
    assert len(told) == 1


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
    with pytest.raises(DeadlineExceeded, match="within 20s"):
        future.result(timeout=20.0)
    assert world.now_s - before_s == pytest.approx(20.0, abs=0.01)


@pytest.mark.parametrize(
    ("conditions", "runs"), [(("fail", "fail", "any"), (False, False, True)), (("any", "ok", "fail"), (True, True, False))]
)
def test_a_chain_of_four_whose_first_is_cancelled_while_held(
    world: VirtualMachine, tmp_path: Path, conditions: tuple[str, ...], runs: tuple[bool, ...]
) -> None:
    cluster = led(world, tmp_path, task_s=5.0)
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "data": data}
    chain = [submitter.submit(2, held=True, **what)]
    for condition in conditions:
        after = (Dependency(condition=Condition(condition), submission=chain[-1]),)
        chain.append(submitter.submit(2, phase=Phase.HELD, reason=Reason.DEPENDENCY, after=after, **what))
    submitter.change(chain[0], gate=None, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    world.run_until(lambda: all(len(look.outcomes(number)) == 2 for number in chain), "all four have ended")
    ended = [{outcome.state for outcome in look.outcomes(number).values()} for number in chain]
    assert ended == [{State.CANCELLED}, *({State.COMPLETED if ran else State.CANCELLED} for ran in runs)]


def submitting(cluster: VirtualCluster) -> tuple[Submitter, Tree, BlockData]:
    data = BlockData(function=cluster.client().functions.register(work, timeout_s=10.0))
    return Submitter(cluster.admin), Tree(cluster.admin), data


def amend(cluster: VirtualCluster, number: int, terms: Terms, doer: Doer = Doer(name="ann", now_us=1)) -> Future[Outcome]:  # noqa: B008
    change = amended(Tree(cluster.admin).sub(number), terms, doer)
    assert isinstance(change, Change)
    return cluster.admin.commit(update(change.record, version=0, gate=change.gate))


def pass_time(world: VirtualMachine, seconds: float) -> None:
    end_s = world.now_s + seconds
    world.run_until(lambda: world.now_s >= end_s, "time passes")


def one_leads(world: VirtualMachine, directory: Path) -> VirtualCluster:
    """Nothing but a leader."""
    cluster = VirtualCluster(world, directory)
    leader, _ = cluster.watchdog("w1")
    world.run_until(lambda: leader.leader is not None, "a leader leads")
    return cluster


def led(world: VirtualMachine, directory: Path, **starter: Any) -> VirtualCluster:
    """One of a leader and a Starter."""
    cluster = VirtualCluster(world, directory)
    cluster.watchdog("w1")
    cluster.starter("n1", **starter)
    world.run_until(lambda: cluster.events("acting", "n1"), "a Starter acts")
    return cluster


def shares(look: Tree, numbers: dict[str, int], before: dict[str, int] | None = None) -> dict[str, int]:
    """Tasks that have ended, by user."""
    return {user: len(look.outcomes(number)) - (before or {}).get(user, 0) for user, number in numbers.items()}


def test_ten_users_with_endless_arrays_share_a_fair_queue(world: VirtualMachine, tmp_path: Path) -> None:
    """A newcomer is served at once; a user whose work was all there before has no more than the others."""
    cluster = VirtualCluster(world, tmp_path)
    for node in range(4):
        cluster.starter(f"n{node}", task_s=0.2 + 0.25 * node, slots=2)
    world.run_until(lambda: len(cluster.events("acting")) == 4, "all Starters act")
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "data": data, "block": 100}
    numbers = {"first": submitter.submit(2000, user="first", **what)}
    cores_used = sum(2 / (0.2 + 0.25 * node) for node in range(4))
    pass_time(world, 20.0)
    assert shares(look, numbers)["first"] == pytest.approx(20.0 * cores_used, rel=0.1), "a lone user has all cores"
    numbers |= {f"u{at}": submitter.submit(1000, user=f"u{at}", priority=at, **what) for at in range(9)}
    came_s = world.now_s
    world.run_until(lambda: all(shares(look, numbers).values()), "each newcomer has had a task")
    assert world.now_s - came_s < 5.0
    before = shares(look, numbers)
    pass_time(world, 120.0)
    had = shares(look, numbers, before)
    equal = sum(had.values()) / len(had)
    assert sum(had.values()) == pytest.approx(120.0 * cores_used, rel=0.1), "no slot waits for somebody's turn"
    assert all(abs(count - equal) <= 0.1 * equal for count in had.values()), had


@pytest.mark.parametrize("tag", ["raised", "honest"])
def test_a_forged_tag_gives_nothing(world: VirtualMachine, tmp_path: Path, tag: str) -> None:
    """Neither who says that an operator raised his work, nor who says that it is somebody else's, has any of it run."""
    cluster = led(world, tmp_path, task_s=0.5, slots=2)
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "data": data, "block": 10}
    honest = submitter.submit(20, user="honest", **what)
    forged = submitter.submit(20, user="forger", tag=paths.RAISED if tag == "raised" else paths.user_tag("honest"), **what)
    began_s = world.now_s
    world.run_until(lambda: len(look.outcomes(honest)) == 20, "the honest user's work has ended")
    assert world.now_s - began_s < 20 * 0.5 / 2 + 2.0, "who forges holds up nobody"
    pass_time(world, 20.0)
    assert look.outcomes(forged) == {}
    whys = {line["why"] for line in cluster.events("block_not_admitted", "n1")}
    told = "that an operator has raised it, and none has" if tag == "raised" else "has the tag of another user than forger"
    assert [told in why for why in whys] == [True]


def test_what_an_operator_has_raised_goes_before_all_turns(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = led(world, tmp_path, task_s=0.5)
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "data": data, "block": 10}
    others = [submitter.submit(100, user=user, priority=100, **what) for user in ("ann", "bob")]
    world.run_until(lambda: all(look.outcomes(number) for number in others), "both have had a turn")
    raised = submitter.submit(10, user="cy", priority=3, **what)
    asked = amend(cluster, raised, Terms(priority=50), Doer(name="root", is_operator=True, now_us=1))
    world.run_until(lambda: asked.done() and paths.RAISED in {key.user for key in look.pending()}, "its blocks bear another name")
    before = [len(look.outcomes(number)) for number in others]
    world.run_until(lambda: len(look.outcomes(raised)) == 10, "all that was raised has run")
    after = [len(look.outcomes(number)) for number in others]
    assert sum(after) - sum(before) <= 3, "nothing of others began meanwhile but what was claimed already"


def test_what_has_left_a_queue_does_not_start_there_and_runs_once_somebody_leads(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = VirtualCluster(world, tmp_path)
    found = cluster.admin.get(paths.CONFIG).result(0)
    settings = decode_record(found.data, ClusterSettings, paths.CONFIG)
    settings = replace(settings, queues=(*settings.queues, QueueSpec(name="night")))
    assert isinstance(cluster.admin.commit(set_settings(settings, found.version)).result(0), Committed)
    submitter, look, data = submitting(cluster)
    number = submitter.submit(40, user="ann", python=python_environment(), data=data, block=10)
    assert isinstance(amend(cluster, number, Terms(queue="night")).result(0), Committed)
    cluster.starter("n1", task_s=0.5, slots=2)
    world.run_until(lambda: cluster.events("acting", "n1"), "a Starter acts")
    pass_time(world, 20.0)
    assert look.outcomes(number) == {}
    assert len(look.pending()) == 4
    assert cluster.events("block_not_admitted", "n1") == [], "nobody has done anything wrong"
    cluster.watchdog("w1")
    world.run_until(lambda: len(look.outcomes(number)) == 40, "it runs from its new queue")
    assert look.pending() == []


def in_use(cluster: VirtualCluster) -> dict[str, int]:
    """Tasks that run, by user, as the Starters have them; each has one core."""
    running: Counter[str] = Counter()
    for starter in cluster.starters:
        for agent in starter.agents.values():
            for block in agent.blocks.values():
                running[block.info.record.user] += block.live
    return dict(running)


def limited(cluster: VirtualCluster, limits: UserLimits) -> None:
    found = cluster.admin.get(paths.CONFIG).result(0)
    settings = replace(decode_record(found.data, ClusterSettings, paths.CONFIG), limits=limits)
    assert isinstance(cluster.admin.commit(set_settings(settings, found.version)).result(0), Committed)


def test_a_user_stops_at_a_cap_and_goes_on_while_nobody_leads(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = VirtualCluster(world, tmp_path)
    leader, link = cluster.watchdog("w1")
    for node in range(4):
        cluster.starter(f"n{node}", task_s=0.3 + 0.2 * node, slots=4)
    world.run_until(lambda: leader.leader is not None and len(cluster.events("acting")) == 4, "all act")
    limited(cluster, UserLimits(cores_of={"ann": 6}))
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "data": data, "block": 100}

    def most_and_mean(seconds: float, user: str) -> tuple[int, float]:
        seen, end_s = [], world.now_s + seconds
        while world.now_s < end_s:
            pass_time(world, 0.05)
            seen.append(in_use(cluster).get(user, 0))
        return max(seen), sum(seen) / len(seen)

    ann = submitter.submit(6000, user="ann", **what)
    most, _ = most_and_mean(3.0, "ann")
    assert most <= 6 + 4, "one claim of each Starter may be too much, until figures have come"
    most, mean = most_and_mean(20.0, "ann")
    assert most <= 6 + 3, "Starters that round up by chance at once: each of the others by a core"
    assert 5.4 < mean < 6.4, "who is at the cap keeps its cores, however short the tasks are"
    bob = submitter.submit(6000, user="bob", **what)
    most, mean = most_and_mean(20.0, "ann")
    assert most <= 6 + 3
    assert 4.0 < mean < 6.4
    assert in_use(cluster)["bob"] >= 9, "nobody else waits for her cap"
    cluster.cut(link)
    most, mean = most_and_mean(20.0, "ann")
    assert most <= 6 + 3, "the last figures hold"
    assert 3.0 < mean < 6.4
    assert set(shares(look, {"ann": ann, "bob": bob}).values()) != {0}
    cluster.mend(link)
    world.run_until(lambda: leader.leader is not None, "it leads again")
    limited(cluster, UserLimits())
    submitter.change(bob, gate=None, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    world.run_until(lambda: in_use(cluster).get("ann", 0) == 16, "without a cap all cores are hers")


def test_a_task_that_takes_more_cores_than_its_users_cap_holds_up_nobody(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = one_leads(world, tmp_path)
    limited(cluster, UserLimits(cores_of={"ann": 1}))
    submitter, look, data = submitting(cluster)
    large, small = (submitter.submit(4, user="ann", python=python_environment(), data=data) for _ in range(2))
    assert isinstance(amend(cluster, large, Terms(cores=2)).result(0), Committed)
    cluster.starter("n1", task_s=0.5, slots=4)
    world.run_until(lambda: len(look.outcomes(small)) == 4, "what the cap allows runs, although it came later")
    assert look.outcomes(large) == {}
    limited(cluster, UserLimits(cores_of={"ann": 2}))
    world.run_until(lambda: len(look.outcomes(large)) == 4, "the cap is large enough now")


def test_open_jobs_beyond_a_cap_are_refused(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = one_leads(world, tmp_path)
    client = cluster.client()
    with TaskQueue(work, connection=client) as first:
        me = client.submitter.user or user_name()
        future = first.submit_call(1)
        limited(cluster, UserLimits(jobs_of={me: 1}))

        def told() -> dict[str, int]:
            found = cluster.admin.get(paths.USAGE).result(0)
            return decode_record(found.data, CappedUse, paths.USAGE).jobs if found is not None else {}

        world.run_until(lambda: told() == {me: 1}, "the leader has counted it")
        pass_time(world, 6.0)  # the client looks at the settings again
        with pytest.raises(LimitReached, match=rf"{me} has 1 of the 1 open jobs that {me} may have at once") as caught:
            TaskQueue(work, connection=client).submit_call(2).result(timeout=10.0)
        assert "rmgr wait" in caught.value.hint
        assert "rmgr admin limit" in caught.value.hint
        future.cancel()


def test_what_is_handed_to_a_node_for_a_user_at_the_cap_goes_back_to_its_queue(world: VirtualMachine, tmp_path: Path) -> None:
    cluster = VirtualCluster(world, tmp_path)
    leader, _ = cluster.watchdog("w1")
    cluster.starter("n1", task_s=5.0, slots=2)
    world.run_until(lambda: leader.leader is not None and cluster.events("acting", "n1"), "all act")
    limited(cluster, UserLimits(cores_of={"ann": 1}))
    submitter, look, data = submitting(cluster)
    what: dict[str, Any] = {"python": python_environment(), "user": "ann"}
    first = submitter.submit(1, data=data, **what)
    second = submitter.submit(0, complete=False, **what)
    world.run_until(lambda: in_use(cluster).get("ann") == 1, "she has her core")
    world.run_until(lambda: cluster.admin.stat(paths.idle("n1")).result(0), "the node has another one")
    stats = [cluster.admin.stat(path).result(0) for path in (paths.tail(second), paths.node("n1"))]
    key = BlockKey(priority=0, seq=0, submission=second, first=0, count=1, attempt=1, cores=1, memory_mib=0, user=paths.user_tag("ann"))
    tail_version, node_version = (stat.version for stat in stats if stat is not None)
    handed = hand(
        second, tail=Tail(next=1, complete=True), tail_version=tail_version, key=key, data=data, node="n1", node_version=node_version
    )
    assert isinstance(cluster.admin.commit(handed).result(0), Committed)
    seen = []
    while not look.outcomes(second):
        pass_time(world, 0.1)
        seen.append(in_use(cluster).get("ann", 0))
    assert max(seen) == 1
    assert look.outcomes(first)
    [refused] = cluster.events("block_refused", "n1")
    assert refused["why"] == "ann has 1 of the 1 cores that ann may have at once"
    assert {outcome.state for outcome in look.outcomes(second).values()} == {State.COMPLETED}
