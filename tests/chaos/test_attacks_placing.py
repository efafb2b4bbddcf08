"""Nobody but a leader places: a direct user writes blocks with allocations below a node, and orders to start them. Tried for real.

mallory has a user's own session in ZooKeeper. His job may begin next year, so no leader places it before: what runs now, he has placed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rmgr.adapters.identity.trust import publish
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Set
from rmgr.coord.protocol.records import decode_block, decode_record, encode_block, encode_record
from rmgr.coord.seal.placing import seal_placings
from rmgr.model.base.states import State
from rmgr.model.cluster.node import InboxOrder, NodeRecord, OrderKind
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.placing import Allocation, Rigid
from rmgr.model.tasks.submission import Command, Tail
from tests.harness.attacker import Scene, changed, unique
from tests.harness.waiting import eventually

pytestmark = pytest.mark.xdist_group("attacks_placing")
NEXT_YEAR_US = (time.time_ns() // 1000) + 365 * 86_400 * 1_000_000


@pytest.fixture(scope="module", autouse=True)
def mallory_is_known(attacked: Scene) -> None:
    publish(attacked.mallory.zk, attacked.mallory.credentials)


Forger = Callable[[Scene, str, Allocation, int], Allocation]


def unsealed(_scene: Scene, _name: str, allocation: Allocation, _incarnation: int) -> Allocation:
    return allocation


def own_seal(scene: Scene, name: str, allocation: Allocation, incarnation: int) -> Allocation:
    mine = scene.mallory.credentials
    told = {"cluster_id": scene.cluster_id, "key_id": mine.identity.key_id, "epoch": 1 << 40, "serial": 1}
    [sealed] = seal_placings([(name, allocation, incarnation)], sign=mine.sign, **told)  # type: ignore[arg-type]
    return sealed


def own_seal_in_a_leaders_name(scene: Scene, name: str, allocation: Allocation, incarnation: int) -> Allocation:
    _, _, placed = running_job(scene)
    sealed = own_seal(scene, name, allocation, incarnation)
    return changed(sealed, seal=changed(sealed.seal, key_id=placed.seal.key_id))


def seal_of_another_job(scene: Scene, _name: str, _allocation: Allocation, _incarnation: int) -> Allocation:
    return running_job(scene)[2]


def unknown_key(scene: Scene, name: str, allocation: Allocation, incarnation: int) -> Allocation:
    sealed = own_seal(scene, name, allocation, incarnation)
    return changed(sealed, seal=changed(sealed.seal, key_id="0" * 32))


def no_shares(_scene: Scene, _name: str, allocation: Allocation, _incarnation: int) -> Allocation:
    return changed(allocation, shares=())


def running_job(scene: Scene) -> tuple[BlockKey, BlockData, Allocation]:
    """A job that the leader has placed, which ends at once: what its block was. The allocation has the leader's seal."""
    go = scene.directory / f"go-{unique()}"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done"
    number = scene.submit(command=Command(argv=("/bin/sh", "-c", script)), queue="batch", rigid=Rigid())
    key, data = eventually(lambda: there(scene, number), "the leader has placed it")
    go.touch()
    assert data.allocation is not None
    assert data.allocation.seal is not None
    scene.outcomes(number)
    return key, data, data.allocation


def there(scene: Scene, number: int) -> Any:
    """Key and data of its block on the node, None: there is none."""
    names = scene.mallory.zk.children(paths.running_node("n1")).result(60)
    for _, key in paths.blocks_in(names):
        found = scene.mallory.zk.get(paths.running_block("n1", key)).result(60) if key.submission == number else None
        if found is not None:
            return key, decode_block(found.data)
    return None


def incarnation(scene: Scene) -> int:
    found = scene.mallory.zk.get(paths.node("n1")).result(60)
    assert found is not None
    return decode_record(found.data, NodeRecord, "n1").incarnation


def start(scene: Scene, key: BlockKey, data: BlockData, *, in_the_body: bool = False) -> None:
    """Puts a block on the node, with the order to start it."""
    guid = uuid.uuid4().hex[:12]
    ops = [Create(paths.running_block("n1", key), encode_block(data))]
    if in_the_body:
        order = InboxOrder(order=OrderKind.START, submission=key.submission, index=key.first, extra={"block": paths.block_name(key)})
        ops.append(Create(paths.inbox("n1", guid), encode_record(order)))
    else:
        ops.append(Create(paths.inbox("n1", paths.start_order(guid, key)), b"{}"))
    assert isinstance(scene.mallory.commit(*ops), Committed)


@pytest.mark.parametrize("in_the_body", [False, True], ids=["named", "told"])
@pytest.mark.parametrize("forge", [unsealed, own_seal, own_seal_in_a_leaders_name, seal_of_another_job, unknown_key])
def test_what_no_leader_has_placed_does_not_begin(scene: Scene, forge: Forger, in_the_body: bool) -> None:
    number, key, data = scene.intercepted(queue="batch", rigid=Rigid(begin_us=NEXT_YEAR_US))
    key, now = replace(key, seq=1), incarnation(scene)
    allocation = Allocation(shares=(("n1", 1),), threads=1, started_us=time.time_ns() // 1000)
    sealed = forge(scene, paths.block_name(key), allocation, now)
    start(scene, key, changed(data, incarnation=now, allocation=sealed, stamp="x"), in_the_body=in_the_body)
    eventually(lambda: there(scene, number) is None, "it is off the node")
    waiting = paths.pending_block("batch", key)
    eventually(lambda: scene.mallory.zk.stat(waiting).result(60), "it waits for the leader")
    assert scene.audited(f"{number}_0")
    running_job(scene)  # and the node goes on
    assert not scene.canary.exists()


def test_nor_does_what_stands_in_its_queue_already(scene: Scene) -> None:
    """It cannot go back there: his copy on the node is deleted, and the waiting one waits."""
    number, key, data = scene.intercepted(queue="batch", rigid=Rigid(begin_us=NEXT_YEAR_US))
    key = replace(key, seq=1)
    waiting = paths.pending_block("batch", key)
    assert isinstance(scene.mallory.commit(Create(waiting, encode_block(data))), Committed)
    allocation = Allocation(shares=(("n1", 1),), threads=1)
    start(scene, key, changed(data, incarnation=incarnation(scene), allocation=allocation, stamp="x"))
    eventually(lambda: there(scene, number) is None, "it is off the node")
    running_job(scene)
    assert scene.mallory.zk.stat(waiting).result(60) is not None
    assert not scene.canary.exists()


@pytest.mark.parametrize("garbage", [b"", b"\xc1" * 20, b"{}", bytes(10_000)])
def test_what_is_no_block_is_deleted_and_not_looked_at_again(scene: Scene, garbage: bytes) -> None:
    number, key, _ = scene.intercepted(queue="batch", rigid=Rigid(begin_us=NEXT_YEAR_US))
    key, guid = replace(key, seq=1), uuid.uuid4().hex[:12]
    there = paths.running_block("n1", key)
    made = scene.mallory.commit(Create(there, garbage), Create(paths.inbox("n1", paths.start_order(guid, key)), b"{}"))
    assert isinstance(made, Committed)
    eventually(lambda: scene.mallory.zk.stat(there).result(60) is None, "it is off the node")
    [why] = scene.audited(f"{number}_0")
    assert "no block" in why
    running_job(scene)


def test_an_allocation_without_nodes_stops_nobody(scene: Scene) -> None:
    number, key, data = scene.intercepted(queue="batch", rigid=Rigid(begin_us=NEXT_YEAR_US))
    allocation = no_shares(scene, "", Allocation(shares=(("n1", 1),), threads=1), 0)
    start(scene, replace(key, seq=1), changed(data, incarnation=incarnation(scene), allocation=allocation, stamp="x"))
    running_job(scene)
    [outcome] = scene.outcomes(scene.submit())
    assert outcome.state is State.COMPLETED
    assert there(scene, number) is not None
    assert scene.canary.read_text() == "ran\n"


def test_what_a_leader_has_placed_begins_once(scene: Scene) -> None:
    """He keeps what the leader has sealed while it runs, and writes it there again when it has ended; the submission stays open."""
    go = scene.directory / f"go-{unique()}"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done; echo ran >> {scene.canary}"
    number = scene.submit(command=Command(argv=("/bin/sh", "-c", script)), queue="batch", rigid=Rigid())
    key, data = eventually(lambda: there(scene, number), "the leader has placed it")
    assert isinstance(scene.mallory.commit(Set(paths.tail(number), encode_record(Tail(next=1, complete=False)), -1)), Committed)
    go.touch()
    scene.outcomes(number)
    eventually(lambda: there(scene, number) is None, "it has ended")
    start(scene, key, data)
    eventually(lambda: there(scene, number) is None, "it is off the node")
    assert any("begun here before" in why for why in scene.audited(f"{number}_0"))
    running_job(scene)
    assert scene.canary.read_text() == "ran\n"


def test_a_new_leader_counts_nothing_that_no_leader_has_placed(scene: Scene) -> None:
    """A block below the node says that a job has all of its cores, no order starts it, and another leader takes over."""
    number, key, data = scene.intercepted(queue="batch", rigid=Rigid(begin_us=NEXT_YEAR_US))
    allocation = Allocation(shares=(("n1", 2),), threads=1, started_us=time.time_ns() // 1000)
    told = encode_block(changed(data, incarnation=incarnation(scene), allocation=allocation, stamp="x"))
    assert isinstance(scene.mallory.commit(Create(paths.running_block("n1", replace(key, seq=1, cores=2)), told)), Committed)
    before = scene.cluster.snapshot().epoch
    assert before is not None
    scene.cluster.start_watchdog("w2")
    scene.cluster.kill("w1")
    eventually(lambda: (now := scene.cluster.snapshot().epoch) is not None and now.epoch > before.epoch, "another leads")
    running_job(scene)
    assert there(scene, number) is not None
