"""Jobs of several nodes on real Starters: held cores, the start when all nodes are ready, revoked starts, lost nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Delete, Holds, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.base.states import Reason
from rmgr.model.cluster.node import Drain, OrderKind
from rmgr.model.tasks.block import NodeHold
from rmgr.model.tasks.submission import Command
from tests.harness.hand_leader import put, unhold, waiting
from tests.harness.starter_rig import Rig, own_rig
from tests.harness.waiting import eventually
from tests.integration.starter.test_starter_faults import expire
from tests.integration.starter.test_starter_orders import crossed_off, delete, order, waiter


def test_a_hold_takes_its_cores_when_they_are_free_and_gives_them_back_when_it_goes(rig: Rig, tmp_path: Path) -> None:
    agent = rig.start(cores=3).agent()
    rig.wait_registered()
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
    agent = rig.start(cores=3).agent()
    rig.wait_registered()
    job = rig.submit(Command(argv=("true",)), queue="batch")
    rig.zk.ensure([paths.hold("n1")])
    path = paths.hold_of("n1", job, 0, 1)
    rig.write(path, NodeHold(head="n2", key="k", cores=1))
    before = eventually(lambda: agent.jobs.holds.get(f"{job}.0.1"), "the hold to have its core")
    data = encode_record(NodeHold(head="n3", key="k", cores=2))
    outcome = rig.zk.commit(Multi(name="TEST", ops=(Delete(path), Create(path, data)), proof=Holds(path, data))).result(60)
    assert isinstance(outcome, Committed)
    ready = rig.starters[0].parts.starter.ask(lambda: agent.jobs.holds.when_ready(f"{job}.0.1", head="n3", cores=2))
    assert ready.result(30) is not before
    eventually(lambda: agent.lanes.free_cores == 1, "the old one's core free")
    delete(rig, path)
    eventually(lambda: agent.lanes.free_cores == 3, "all cores free")


def test_what_is_no_hold_and_no_order_is_told_once_and_stops_nothing(rig: Rig) -> None:
    with capture_logs() as told:
        agent = rig.start(cores=3).agent()
        rig.wait_registered()
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


def test_a_job_that_loses_a_node_ends_as_a_loss_and_one_that_has_not_started_goes_back(rig: Rig, tmp_path: Path) -> None:
    rig.start("n1", cores=2, serves=True)
    rig.wait_registered("n1")
    runs = rig.submit(waiter(tmp_path / "never", tmp_path / "s"), queue="batch")
    put(rig, runs)  # as far as the head can tell: it has started
    eventually((tmp_path / "s-0").exists, "it to run")
    rig.start("n2", cores=1)
    rig.wait_registered("n2")
    starts = rig.submit(Command(argv=("true",)), queue="batch")
    job = put(rig, starts, (("n1", 1), ("n2", 1)))
    crossed_off(rig, order(rig, OrderKind.LOST, runs, 0, reason="n2 is gone"))
    crossed_off(rig, order(rig, OrderKind.LOST, starts, 0, reason="n2 is gone"))
    assert waiting(rig, starts).attempt == 1
    eventually(lambda: rig.failed(runs), "its attempt failed")
    assert [record.reason for record in rig.failed(runs).values()] == [Reason.NODE_LOST]
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
    holds = rig.starters[1].parts.starter.ask(lambda: list(helper.agent("n2").jobs.holds))
    assert ([hold.is_ready for hold in holds], rig.failed(number)) == ([True], {})
    # What a Starter writes that has died in between; this one takes it for a fence.
    found = rig.zk.get(paths.node("n2")).result(60)
    assert found is not None
    data = encode_record(replace(again, incarnation=again.incarnation + 1, life="another"))
    multi = Multi(name="TEST", ops=(Set(paths.node("n2"), data, found.version),), proof=Holds(paths.node("n2"), data))
    assert isinstance(rig.zk.commit(multi).result(60), Committed)
    eventually(lambda: rig.failed(number), "its attempt failed")
    assert [(record.reason, record.error) for record in rig.failed(number).values()] == [(Reason.NODE_LOST, "node n2 was lost")]
    assert rig.wait_registered("n2", incarnation=again.incarnation + 2).life not in {first.life, "another"}
    unhold(rig, job)
