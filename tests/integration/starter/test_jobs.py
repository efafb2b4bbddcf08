"""Placed jobs on a real Starter: jobs assigned by the leader run before pulled work, and otherwise as pulled work does."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.model.base.resources import Request
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import Drain, InboxOrder, OrderKind
from rmgr.model.tasks.submission import Command
from tests.harness.hand_leader import put, waiting
from tests.harness.starter_rig import Rig, call
from tests.harness.waiting import eventually
from tests.integration.starter.test_starter_orders import crossed_off, order, waiter


def test_a_placed_job_runs_where_the_leader_put_it_with_its_environment(rig: Rig, tmp_path: Path) -> None:
    rig.start(cores=4)
    rig.wait_registered()
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
    rig.start()
    rig.wait_registered()

    def work(x: int) -> tuple[int, str]:
        import os

        return x + 1, os.environ["RMGR_HOSTFILE"][-6:]

    number = rig.submit(work, [call(41)], queue="batch")
    put(rig, number)
    outcome = rig.outcomes(number, 1)[0]
    assert pickle.loads(outcome.value) == (42, "/hosts")


def test_an_order_whose_block_is_gone_or_of_an_older_incarnation_is_crossed_off(rig: Rig) -> None:
    first = rig.start()
    rig.wait_registered()
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
    rig.start()
    rig.wait_registered()
    name = "0000001.0000000042.0000000000.001.000001.00001.000000000-0000000007"
    path = f"{paths.running_node('n1')}/{name}"
    outcome = rig.zk.commit(Multi(name="TEST", ops=(Create(path, garbage),), proof=Exists(path))).result(60)
    assert isinstance(outcome, Committed), outcome
    guid = paths.start_order("a" * 12, name)
    rig.write(paths.inbox("n1", guid), InboxOrder(order=OrderKind.START, submission=42, index=0, extra={"block": name}))
    eventually(lambda: rig.zk.stat(path).result(60) is None, "it is gone")
    crossed_off(rig, guid)


def test_nothing_is_pulled_while_an_assigned_job_waits_for_room(rig: Rig, tmp_path: Path) -> None:
    agent = rig.start(cores=2).agent()
    rig.wait_registered()
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
    rig.start(cores=3)
    rig.wait_registered()
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
    rig.start(cores=1)
    rig.wait_registered()
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
    rig.start(cores=2)
    rig.wait_registered()
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
    process = rig.start()
    rig.wait_registered()
    number = rig.submit(waiter(tmp_path / "never"), queue="batch", grace_us=100_000)
    job = put(rig, number)
    guid = order(rig, OrderKind.CANCEL, number, 0)
    assert rig.outcomes(number, 1)[0].state is State.CANCELLED
    crossed_off(rig, guid)
    crossed_off(rig, job.guid)
    eventually(lambda: process.agent().blocks == {}, "the answer to its last write taken in")
