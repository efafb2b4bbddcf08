"""Placed jobs on real Starters: before pulled work, otherwise as it; on several nodes, with held cores, revoked starts and lost nodes."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base import Request
from rmgr.model.block import NodeHold
from rmgr.model.node import Drain, InboxOrder, NodeState, OrderKind
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command
from tests.harness.hand_leader import put, unhold, waiting
from tests.harness.starter_rig import Rig, call, own_rig
from tests.harness.waiting import eventually
from tests.integration.starter.test_starter_faults import expire
from tests.integration.starter.test_starter_orders import crossed_off, delete, order, waiter


def test_a_placed_job_runs_where_the_leader_put_it_with_its_environment(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=4)
    names = "NODELIST HOSTFILE NPROCS THREADS NODE JOB_ID TASK_ID"
    script = f'for n in {names}; do eval echo "$n=\\$RMGR_$n"; done; cat "$RMGR_HOSTFILE"; echo OMP=$OMP_NUM_THREADS'
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch", cores=2, request=Request(cores=2))
    pulled = rig.submit(Command(argv=("true",)))
    rig.outcomes(pulled, 1)
    assert waiting(rig, number).submission == number  # nobody pulls from a queue whose work is placed
    job = put(rig, number, (("n1", 2),), threads=2)
    assert job.running.cores == 4
    outcome = rig.outcomes(number, 1)[0]
    told = dict(line.split("=", 1) for line in outcome.log[0].decode().splitlines() if "slots" not in line)
    assert {name: told[name] for name in ("NODELIST", "NPROCS", "THREADS", "NODE", "OMP")} == {
        "NODELIST": "n1", "NPROCS": "2", "THREADS": "2", "NODE": "n1", "OMP": "2"
    }  # fmt: skip
    assert "n1 slots=2" in outcome.log[0].decode()
    assert (told["JOB_ID"], told["TASK_ID"]) == (str(number), f"{number}_0")
    crossed_off(rig, job.guid)
    assert rig.running() == []
    eventually(lambda: not Path(told["HOSTFILE"]).parent.exists(), "its private directory gone")


def test_a_placed_call_returns_its_result(rig: Rig) -> None:
    rig.ready()

    def work(x: int) -> tuple[int, str]:
        import os

        return x + 1, os.environ["RMGR_HOSTFILE"][-6:]

    number = rig.submit(work, [call(41)], queue="batch")
    put(rig, number)
    outcome = rig.outcomes(number, 1)[0]
    assert pickle.loads(outcome.value) == (42, "/hosts")


def test_an_order_whose_block_is_gone_or_of_an_older_incarnation_is_crossed_off(rig: Rig) -> None:
    first = rig.ready()
    number = rig.submit(Command(argv=("true",)), queue="batch")
    first.stop()
    job = put(rig, number)  # by a leader that has not heard of the end yet: the record still stands
    rig.start()
    rig.wait_registered(incarnation=2)
    crossed_off(rig, job.guid)
    eventually(lambda: rig.failed(number), "failed as a loss")
    assert [record.reason for record in rig.failed(number).values()] == [Reason.NODE_LOST]
    stale = InboxOrder(order=OrderKind.START, submission=number, index=0, extra={"block": paths.block_name(job.running)})
    nonsense = InboxOrder(order=OrderKind.START, submission=number, index=0, extra={"block": "nonsense"})
    for guid, written in (("a" * 32, stale), ("b" * 32, nonsense)):
        rig.write(paths.inbox("n1", guid), written)
        crossed_off(rig, guid)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"{}"], ids=["nothing", "no-message", "json"])
def test_what_is_no_block_is_deleted_and_not_looked_at_again(rig: Rig, garbage: bytes) -> None:
    rig.ready()
    name = "0000001.0000000042.0000000000.001.000001.00001.000000000-0000000007"
    path = f"{paths.running_node('n1')}/{name}"
    outcome = rig.zk.commit(Multi(name="TEST", ops=(Create(path, garbage),), proof=Exists(path))).result(60)
    assert isinstance(outcome, Committed), outcome
    guid = paths.start_order("a" * 12, name)
    rig.write(paths.inbox("n1", guid), InboxOrder(order=OrderKind.START, submission=42, index=0, extra={"block": name}))
    eventually(lambda: rig.zk.stat(path).result(60) is None, "it is gone")
    crossed_off(rig, guid)


def test_nothing_is_pulled_while_an_assigned_job_waits_for_room(rig: Rig, tmp_path: Path) -> None:
    agent = rig.ready(cores=2).agent()
    go = tmp_path / "go"
    first = rig.submit(waiter(go, tmp_path / "s"))
    eventually((tmp_path / "s-0").exists, "one core in use")
    script = f"date +%s%N > {tmp_path}/job; while [ ! -e {tmp_path}/end ]; do sleep 0.02; done"
    number = rig.submit(Command(argv=("sh", "-c", script)), queue="batch")
    job = put(rig, number, (("n1", 2),))
    eventually(lambda: any(key.submission == number for key in list(agent.blocks)), "the job to be known to its Starter")
    later = rig.submit(Command(argv=("sh", "-c", f"date +%s%N > {tmp_path}/later")), [b""] * 4)
    end_s = time.monotonic() + 1.2
    while time.monotonic() < end_s:  # one core is free all the time
        assert rig.zk.stat(paths.inbox("n1", job.guid)).result(60) is not None, "it stands until the job begins"
        assert not (tmp_path / "job").exists()
        assert not (tmp_path / "later").exists()
        assert [key.submission for key in rig.running()] in ([first, number], [number, first])
        time.sleep(0.02)
    go.touch()
    eventually((tmp_path / "job").exists, "the job to run")
    crossed_off(rig, job.guid)
    assert [key.submission for key in rig.running()].count(later) == 0
    (tmp_path / "end").touch()
    for one in (first, number):
        rig.outcomes(one, 1)
    rig.outcomes(later, 4)
    assert int((tmp_path / "job").read_text()) < int((tmp_path / "later").read_text())


def test_jobs_that_were_planned_together_do_not_wait_for_each_other(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=3)
    go = tmp_path / "go"
    pulled = rig.submit(waiter(go, tmp_path / "s"))
    eventually((tmp_path / "s-0").exists, "one core in use")
    tight = rig.submit(Command(argv=("true",)), queue="batch")
    put(rig, tight, (("n1", 3),))  # waits for the pulled one
    loose = rig.submit(Command(argv=("true",)), queue="batch")
    put(rig, loose)
    rig.outcomes(loose, 1)
    assert [key.submission for key in rig.pending("batch")] == []
    go.touch()
    rig.outcomes(tight, 1)
    rig.outcomes(pulled, 1)


def test_a_job_that_has_not_started_goes_back_to_its_queue_when_the_node_is_drained(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=1)
    go = tmp_path / "go"
    pulled = rig.submit(waiter(go, tmp_path / "s"))
    eventually((tmp_path / "s-0").exists, "the core in use")
    number = rig.submit(Command(argv=("true",)), queue="batch")
    place = waiting(rig, number).seq
    job = put(rig, number)
    rig.write(paths.drain("n1"), Drain(node="n1", reason="repair", user="op", since_us=1))
    assert (waiting(rig, number).seq, waiting(rig, number).attempt) == (place, 1)
    crossed_off(rig, job.guid)
    job = put(rig, number)  # and again when it is put there all the same
    crossed_off(rig, job.guid)
    assert waiting(rig, number).seq == place
    go.touch()
    rig.outcomes(pulled, 1)


def test_a_placed_job_is_cancelled_and_limited_as_any_other(rig: Rig, tmp_path: Path) -> None:
    rig.ready(cores=2)
    slow = waiter(tmp_path / "never", tmp_path / "s")
    number = rig.submit(slow, queue="batch", grace_us=100_000)
    limited = rig.submit(Command(argv=("sleep", "60")), queue="batch", grace_us=100_000, request=Request(time_limit_us=300_000))
    put(rig, number)
    put(rig, limited)
    eventually((tmp_path / "s-0").exists, "it to run")
    guid = order(rig, OrderKind.CANCEL, number, 0, detail="enough")
    outcome = rig.outcomes(number, 1)[0]
    assert (outcome.state, outcome.error) == (State.CANCELLED, "enough")
    crossed_off(rig, guid)
    assert rig.outcomes(limited, 1)[0].reason is Reason.TIME_LIMIT


def test_a_cancel_that_comes_with_the_start_order_is_not_lost(rig: Rig, tmp_path: Path) -> None:
    process = rig.ready()
    number = rig.submit(waiter(tmp_path / "never"), queue="batch", grace_us=100_000)
    job = put(rig, number)
    guid = order(rig, OrderKind.CANCEL, number, 0)
    assert rig.outcomes(number, 1)[0].state is State.CANCELLED
    crossed_off(rig, guid)
    crossed_off(rig, job.guid)
    eventually(lambda: process.agent().blocks == {}, "the answer to its last write taken in")


def test_a_hold_takes_its_cores_when_they_are_free_and_gives_them_back_when_it_goes(rig: Rig, tmp_path: Path) -> None:
    agent = rig.ready(cores=3).agent()
    job = rig.submit(Command(argv=("true",)), queue="batch")
    go = tmp_path / "go"
    first = rig.submit(waiter(go, tmp_path / "s"), [b""] * 2)
    eventually(lambda: (tmp_path / "s-0").exists() and (tmp_path / "s-1").exists(), "two cores in use")
    rig.zk.ensure([paths.hold("n1")])  # by the leader, with the first hold: the node has run for long then
    path = paths.hold_of("n1", job, 0, 1)
    rig.write(path, NodeHold(head="elsewhere", key="its block there", cores=2, memory_mib=64, processes=2))
    eventually(lambda: agent.lanes.is_owed, "the hold to wait for room")
    later = rig.submit(Command(argv=("true",)), [b""] * 3)
    with pytest.raises(AssertionError):
        rig.outcomes(later, 1, 0.3)  # though a core is free
    go.touch()
    rig.outcomes(first, 2)
    eventually(lambda: agent.jobs.holds.get(f"{job}.0.1"), "the hold to have its cores")
    rig.outcomes(later, 3)  # on the third core
    lanes = agent.lanes
    eventually(lambda: (lanes.free_cores, lanes.memory_mib - lanes.free_memory_mib) == (1, 64), "what the hold has, and no more, in use")
    wide = rig.submit(Command(argv=("true",)), cores=3)
    delete(rig, path)
    rig.outcomes(wide, 1)
    eventually(lambda: agent.lanes.free_cores == 3 and not agent.jobs.holds, "all cores free")


def test_a_hold_that_was_replaced_between_two_looks_is_taken_anew(rig: Rig) -> None:
    agent = rig.ready(cores=3).agent()
    job = rig.submit(Command(argv=("true",)), queue="batch")
    rig.zk.ensure([paths.hold("n1")])
    path = paths.hold_of("n1", job, 0, 1)
    rig.write(path, NodeHold(head="n2", key="k", cores=1))
    before = eventually(lambda: agent.jobs.holds.get(f"{job}.0.1"), "the hold to have its core")
    data = encode_record(NodeHold(head="n3", key="k", cores=2))
    outcome = rig.zk.commit(Multi(name="TEST", ops=(Delete(path), Create(path, data)), proof=Holds(path, data))).result(60)
    assert isinstance(outcome, Committed)
    ready = rig.starters[0].starter.ask(lambda: agent.jobs.holds.when_ready(f"{job}.0.1", head="n3", cores=2))
    assert ready.result(60) is not before
    eventually(lambda: agent.lanes.free_cores == 1, "the old one's core free")
    delete(rig, path)
    eventually(lambda: agent.lanes.free_cores == 3, "all cores free")


def test_what_is_no_hold_and_no_order_is_told_once_and_stops_nothing(rig: Rig) -> None:
    with capture_logs() as told:
        agent = rig.ready(cores=3).agent()
        job = rig.submit(Command(argv=("true",)), queue="batch")
        rig.zk.ensure([paths.hold("n1")])
        spoilt = [paths.hold_of("n1", job, 0, 1), paths.inbox("n1", "zz")]
        for path in spoilt:
            create = Multi(name="TEST", ops=(Create(path, b"{]"),), proof=Holds(path, b"{]"))
            assert isinstance(rig.zk.commit(create).result(60), Committed)

        def events() -> list[str]:
            return [line["event"] for line in list(told)]

        eventually(lambda: {"hold_not_readable", "order_not_readable"} <= set(events()), "both are told")
        rig.outcomes(rig.submit(Command(argv=("sleep", "1.5"))), 1)  # several rounds of the loop
        assert (events().count("hold_not_readable"), events().count("order_not_readable")) == (1, 1)
        delete(rig, spoilt[0])
        eventually(lambda: not list(agent.jobs.holds), "it to be forgotten")
        rig.write(spoilt[0], NodeHold(head="n2", key="k", cores=1))
        eventually(lambda: agent.jobs.holds.get(f"{job}.0.1"), "the good one of the same name to be taken")
        delete(rig, spoilt[0])  # else its Starter would wait for it when it ends


def test_a_job_starts_when_all_its_nodes_are_ready(rig: Rig, tmp_path: Path) -> None:
    head = rig.start("n1", cores=2, serves=True).agent("n1")
    helper = rig.start("n2", cores=1, serves=True).agent("n2")
    rig.wait_registered("n1")
    rig.wait_registered("n2")
    rig.write(paths.drain("n1"), Drain(node="n1", reason="let n2 have it", user="op", since_us=1))
    go = tmp_path / "go"
    pulled = rig.submit(waiter(go, tmp_path / "s"))
    eventually((tmp_path / "s-0").exists, "the helper's core in use")
    delete(rig, paths.drain("n1"))
    number = rig.submit(Command(argv=("sh", "-c", 'echo "$RMGR_NODELIST $RMGR_NPROCS"; cat "$RMGR_HOSTFILE"')), queue="batch")
    job = put(rig, number, (("n1", 1), ("n2", 1)))
    eventually(lambda: any(block.seat is not None for block in head.blocks.values()), "the head's core taken")
    other = rig.submit(Command(argv=("true",)))  # on the head's other core
    rig.outcomes(other, 1)
    assert [key.submission for key in rig.running("n1")] == [number]
    go.touch()
    assert rig.outcomes(number, 1)[0].log[0] == b"n1,n2 2\nn1 slots=1\nn2 slots=1\n"
    rig.outcomes(pulled, 1)
    assert helper.lanes.free_cores == 0  # until the leader says so
    unhold(rig, job)
    eventually(lambda: (head.lanes.free_cores, helper.lanes.free_cores) == (2, 1), "all cores free")


def test_a_start_that_is_not_complete_in_time_is_revoked(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with own_rig(zookeeper, tmp_path, barrier_us=500_000) as rig:
        head = rig.start("n1", cores=1, serves=True).agent("n1")
        rig.start("n2", cores=1)  # cannot be asked
        rig.wait_registered("n1")
        rig.wait_registered("n2")
        number = rig.submit(Command(argv=("true",)), queue="batch")
        place = waiting(rig, number).seq
        job = put(rig, number, (("n1", 1), ("n2", 1)))
        back = waiting(rig, number)
        assert (back.seq, back.attempt) == (place, 1)
        eventually(lambda: not rig.running("n1") and head.lanes.free_cores == 1, "nothing left of it")
        unhold(rig, job)
        put(rig, number)
        rig.outcomes(number, 1)


def test_a_job_whose_node_is_fenced_ends_as_a_loss_and_one_that_has_not_started_goes_back(rig: Rig, tmp_path: Path) -> None:
    rig.start("n1", cores=2, serves=True)
    rig.start("n2", cores=1, serves=True)
    third = rig.start("n3", cores=1)  # cannot be asked
    records = {node: rig.wait_registered(node) for node in ("n1", "n2", "n3")}
    runs = rig.submit(waiter(tmp_path / "never", tmp_path / "s"), queue="batch")
    jobs = [put(rig, runs, (("n1", 1), ("n2", 1)))]
    eventually((tmp_path / "s-0").exists, "it to run")
    starts = rig.submit(Command(argv=("true",)), queue="batch")
    jobs.append(put(rig, starts, (("n1", 1), ("n3", 1))))
    third.stop()
    for node in ("n2", "n3"):
        data, found = encode_record(replace(records[node], state=NodeState.FENCED)), rig.zk.get(paths.node(node)).result(60)
        multi = Multi(name="TEST", ops=(Set(paths.node(node), data, found.version),), proof=Holds(paths.node(node), data))
        assert isinstance(rig.zk.commit(multi).result(60), Committed)
    assert waiting(rig, starts).attempt == 1
    eventually(lambda: rig.failed(runs), "its attempt failed")
    assert [(record.reason, record.error) for record in rig.failed(runs).values()] == [(Reason.NODE_LOST, "node n2 was lost")]
    for job in jobs:
        unhold(rig, job)


def test_a_helper_that_only_registers_again_keeps_its_part_and_one_that_begins_another_life_has_lost_it(rig: Rig, tmp_path: Path) -> None:
    rig.start("n1", cores=1, serves=True)
    helper = rig.start("n2", cores=1, serves=True)
    rig.wait_registered("n1")
    first = rig.wait_registered("n2")
    go = tmp_path / "go"
    number = rig.submit(waiter(go, tmp_path / "s"), queue="batch")
    job = put(rig, number, (("n1", 1), ("n2", 1)))
    eventually((tmp_path / "s-0").exists, "it to run")
    expire(rig, helper)
    again = rig.wait_registered("n2", incarnation=first.incarnation + 1)
    assert again.life == first.life
    holds = rig.starters[1].starter.ask(lambda: list(helper.agent("n2").jobs.holds))
    assert ([hold.is_ready for hold in holds], rig.failed(number)) == ([True], {})
    # What a Starter writes that has died in between; this one takes it for a fence.
    found = rig.zk.get(paths.node("n2")).result(60)
    data = encode_record(replace(again, incarnation=again.incarnation + 1, life="another"))
    multi = Multi(name="TEST", ops=(Set(paths.node("n2"), data, found.version),), proof=Holds(paths.node("n2"), data))
    assert isinstance(rig.zk.commit(multi).result(60), Committed)
    eventually(lambda: rig.failed(number), "its attempt failed")
    assert [(record.reason, record.error) for record in rig.failed(number).values()] == [(Reason.NODE_LOST, "node n2 was lost")]
    assert rig.wait_registered("n2", incarnation=again.incarnation + 2).life not in {first.life, "another"}
    unhold(rig, job)
