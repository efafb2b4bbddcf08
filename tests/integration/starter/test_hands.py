"""A real Starter that is handed blocks notices when its mark vanishes, runs what it finds, and gives back what it must not run."""

from __future__ import annotations

from pathlib import Path

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Outcome
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.queue import QueueSpec
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Tail
from tests.harness.starter_rig import Rig, own_rig
from tests.harness.waiting import eventually


def hand(rig: Rig, number: int, *, cores: int = 1) -> Outcome:
    """The next task of a submission, straight to node n1."""
    found = rig.zk.get(paths.tail(number)).result(60)
    tail = decode_record(found.data, Tail)
    key = BlockKey(priority=0, seq=0, submission=number, first=tail.next, count=1, attempt=1, cores=cores, memory_mib=0)
    fence = rig.zk.stat(paths.node("n1")).result(60).version
    grown = Tail(next=tail.next + 1, complete=True, enqueued=str(found.version))
    multi = ops.hand(number, tail=grown, tail_version=found.version, key=key, data=BlockData(base=key.first), node="n1", node_version=fence)
    return rig.zk.commit(multi).result(60)


def has_mark(rig: Rig) -> bool:
    return rig.zk.stat(paths.idle("n1")).result(60) is not None


def test_a_hungry_node_runs_what_it_is_handed_one_after_another(rig: Rig) -> None:
    rig.start()
    number = rig.submit(Command(argv=("true",)))
    for count in range(1, 6):
        assert rig.outcomes(number, count)[count - 1].state is State.COMPLETED
        eventually(lambda: has_mark(rig), "the mark")
        assert isinstance(hand(rig, number), Committed)
    rig.outcomes(number, 6)
    eventually(lambda: not rig.running(), "nothing left over")


def test_two_submitters_cannot_hand_over_to_the_same_mark(rig: Rig, tmp_path: Path) -> None:
    rig.start(cores=1)
    number = rig.submit(Command(argv=("sh", "-c", f'while [ ! -e "{tmp_path / "go"}" ]; do sleep 0.02; done')))
    eventually(rig.running, "the first one to run")
    eventually(lambda: not has_mark(rig), "no mark on a full node")
    assert not isinstance(hand(rig, number), Committed)
    (tmp_path / "go").touch()
    rig.outcomes(number, 1)


def test_what_does_not_fit_is_given_back_to_the_queue(rig: Rig) -> None:
    rig.start(cores=2)
    number = rig.submit(Command(argv=("true",)))
    rig.outcomes(number, 1)
    eventually(lambda: has_mark(rig), "the mark")
    assert isinstance(hand(rig, number, cores=16), Committed)
    eventually(rig.pending, "it waits in the queue")
    assert [(key.first, key.cores, key.seq) for key in rig.pending()] == [(1, 16, ops.HANDED_SEQ)]
    eventually(lambda: not rig.running(), "nothing left on the node")


def test_what_its_queue_does_not_admit_never_begins_though_its_way_back_is_barred(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    """Who writes to ZooKeeper himself can put something into the queue under the very name under which a block goes back."""
    with own_rig(zookeeper, tmp_path, queues=(QueueSpec(name="default"), QueueSpec(name="shut", users=("nobody",)))) as rig:
        rig.start()
        number = rig.submit(Command(argv=("touch", str(tmp_path / "began"))), queue="shut")
        eventually(lambda: has_mark(rig), "the mark")
        key = BlockKey(priority=0, seq=ops.HANDED_SEQ, submission=number, first=1, count=1, attempt=1, cores=1, memory_mib=0)
        barrier = Multi(name="BAR", ops=(Create(paths.pending_block("shut", key), b""),), proof=Exists(paths.pending_block("shut", key)))
        assert isinstance(rig.zk.commit(barrier).result(60), Committed)
        assert isinstance(hand(rig, number), Committed)
        outcome = rig.outcomes(number, 1)[1]
        assert (outcome.state, outcome.reason) == (State.FAILED, Reason.UNTRUSTED)
        assert "user tester may not use queue shut" in outcome.error
        assert not (tmp_path / "began").exists()
        eventually(lambda: not rig.running(), "nothing left on the node")


def test_a_cancel_right_behind_it_is_not_lost(rig: Rig) -> None:
    rig.start()
    number = rig.submit(Command(argv=("sh", "-c", "[ $RMGR_ARRAY_INDEX = 0 ] || sleep 60")), grace_us=100_000)
    rig.outcomes(number, 1)
    eventually(lambda: has_mark(rig), "the mark")
    assert isinstance(hand(rig, number), Committed)
    rig.write(paths.inbox("n1", "guid"), InboxOrder(order=OrderKind.CANCEL, submission=number))
    assert rig.outcomes(number, 2)[1].state is State.CANCELLED
    eventually(lambda: rig.zk.stat(paths.inbox("n1", "guid")).result(60) is None, "the order crossed off")


def test_what_an_older_incarnation_was_handed_fails_and_may_run_again(rig: Rig) -> None:
    first = rig.start()
    number = rig.submit(Command(argv=("true",)))
    rig.outcomes(number, 1)
    eventually(lambda: has_mark(rig), "the mark")
    first.stop()
    if not has_mark(rig):
        fence = rig.zk.stat(paths.node("n1")).result(60).version
        assert isinstance(rig.zk.commit(ops.mark_idle("n1", fence, idle=True)).result(60), Committed)
    assert isinstance(hand(rig, number), Committed)
    rig.start()
    eventually(lambda: rig.failed(number), "a failed attempt")
    ((where, record),) = rig.failed(number).items()
    assert where == (1, 1, 1)
    assert str(record.reason) == "NODE_LOST"
