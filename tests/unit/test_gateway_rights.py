"""What a client may do through a gateway: decided from the change itself, whatever it calls itself."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from rmgr.client.entry import entry_multi
from rmgr.coord import closing, election, leader_ops, operator_ops, ops, owner_ops, paths
from rmgr.coord.leader_ops import no_outcome
from rmgr.coord.multi import Check, Create, Delete, Exists, Multi, Set
from rmgr.coord.records import encode_block
from rmgr.daemons.submitter_rights import OPERATIONS, Place, check_commit, check_create, check_store, permitted, place_of
from rmgr.errors import PermissionDenied
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.node import Drain, EpochRecord, InboxOrder, NodeRecord, NodeState, Order, StarterEntry
from rmgr.model.outcome import FailedRange
from rmgr.model.queue import ClusterSettings
from rmgr.model.resources import Capacity
from rmgr.model.states import Reason, State
from rmgr.model.submission import Command, Phase, Submission, Tail, Work

KEY = BlockKey(priority=5, seq=3, submission=42, first=10, count=6, attempt=1, cores=2, memory_mib=512)
DATA = BlockData(function="f" * 64, base=10, payloads=tuple(bytes([i]) for i in range(6)), stamp="s")
SUB = Submission(id=42, name="x", user="u", queue="default", work=Work.COMMAND, command=Command(argv=("true",)), submitted_us=1)
TAIL = Tail(next=6)
FAILED = FailedRange(
    queue="default", seq=3, priority=5, cores=1, memory_mib=0, reason=Reason.NODE_LOST, block=encode_block(DATA), node="n1", alone=True
)
NODE = NodeRecord(node="n1", guid="g", incarnation=1, state=NodeState.UP, capacity=Capacity(cores=2, memory_bytes=1))
DRAIN = Drain(node="n1", reason="r", user="u", since_us=1)
EPOCH = EpochRecord(leader="g", endpoint="127.0.0.1:1", host="h", pid=1)
CANCELLED = no_outcome(State.CANCELLED, Reason.USER_CANCEL, [11])


def client_multis() -> list[Multi]:
    once = replace(SUB, id=1000)
    ended = msgspec.structs.replace(FAILED, reason=Reason.EXIT_CODE)
    return [
        ops.submit(SUB, ids_version=7, token_digest="ab", tail=TAIL, blocks=[(KEY, DATA)], make_bucket=True),
        ops.submit(replace(once, phase=Phase.HELD), ids_version=7, token_digest="ab", tail=TAIL, blocks=[(KEY, DATA)], make_bucket=False),
        ops.enqueue(42, "default", tail=TAIL, tail_version=0, blocks=[(KEY, DATA)], held=False),
        ops.enqueue(42, "default", tail=TAIL, tail_version=0, blocks=[(KEY, DATA)], held=True),
        ops.set_record(SUB, version=1, gate=True),
        ops.set_record(SUB, version=1, gate=False),
        ops.set_aside("default", KEY, encode_block(DATA), 0),
        ops.bring_back("default", KEY, DATA, 0),
        ops.bring_back("default", KEY, DATA, 0, take=2),
        ops.take_out("default", KEY, DATA, 0, indices=[11], fragment=CANCELLED),
        ops.take_out("default", KEY, DATA, 0, indices=[11], fragment=CANCELLED, held=True),
        leader_ops.resubmit(SUB, 10, 6, 1, FAILED, 0, gate=True, max_losses=5)[0],
        leader_ops.resubmit(SUB, 10, 6, 1, FAILED, 0, gate=False, max_losses=5)[0],
        leader_ops.resubmit(SUB, 10, 6, 1, ended, 0, gate=True, max_losses=5)[0],
        leader_ops.cancel_failed(SUB, 10, 6, 1, FAILED, 0, reason=Reason.USER_CANCEL),
        leader_ops.order("n1", "guid", InboxOrder(order=Order.CANCEL, submission=42, index=1)),
        owner_ops.take_ownership(SUB, 1, TAIL, 1),
        owner_ops.release(SUB, 1),
        entry_multi("0123"),
        operator_ops.drain(DRAIN, None),
        operator_ops.drain(DRAIN, 3),
        operator_ops.resume("n1", 0),
        operator_ops.set_settings(ClusterSettings(), 0),
    ]


def daemon_multis() -> list[Multi]:
    guard = Check(paths.EPOCH, 3)
    return [
        ops.register([(NODE, None)], StarterEntry(guid="g", nodes=("n1",), endpoint="127.0.0.1:1", host="h", pid=1)),
        ops.claim("n1", 0, "default", KEY, DATA, 0, take=3)[0],
        ops.complete("n1", 0, KEY, DATA, 0, fragment=CANCELLED),
        ops.give_back("n1", 0, "default", KEY, DATA, 0, first=12)[0],
        ops.adopt("n1", 0, KEY, DATA, 0),
        ops.mark_idle("n1", 0, idle=True),
        ops.obey("n1", 0, "guid"),
        leader_ops.take_over("n-g-0000000001", EPOCH, 1),
        leader_ops.take_over("n-g-0000000001", EPOCH, None),
        leader_ops.fence(3, NODE, 0, "lost"),
        leader_ops.fail(guard, "n1", "default", KEY, encode_block(DATA), 0, reason=Reason.NODE_LOST, now_us=1),
        election.stand("g", EPOCH),
        election.withdraw("n-g-0000000001"),
        *closing.removal(SUB, "ab", {paths.done(42): ["r-0000000000"]}, has_gate=True, has_token=True),
    ]


@pytest.mark.parametrize("multi", client_multis(), ids=lambda multi: multi.name)
def test_whatever_a_client_does_is_permitted(multi: Multi) -> None:
    check_commit("anna", multi)


@pytest.mark.parametrize("multi", daemon_multis(), ids=lambda multi: multi.name)
def test_what_daemons_do_is_refused_under_every_name(multi: Multi) -> None:
    with pytest.raises(PermissionDenied, match=multi.name):
        check_commit("anna", multi)
    assert [name for name in OPERATIONS if permitted("anna", replace(multi, name=name))] == []


def test_every_operation_of_the_table_is_one_that_a_client_does() -> None:
    assert {multi.name for multi in client_multis()} == set(OPERATIONS)


@pytest.mark.parametrize("multi", client_multis(), ids=lambda multi: multi.name)
@pytest.mark.parametrize(
    "more",
    [
        Set(paths.node("n1"), b"", -1),
        Set(paths.EPOCH, b"", -1),
        Delete(paths.running_block("n1", KEY)),
        Create(paths.running_block("n1", KEY)),
        Create(paths.watchdog("g"), b"", ephemeral=True, sequence=True),
        Create(paths.starter("g"), b"", ephemeral=True, sequence=True),
        Delete(paths.META),
        Set("/zookeeper/config", b"", -1),
    ],
    ids=lambda op: f"{type(op).__name__}{op.path}",
)
def test_nothing_can_be_smuggled_into_a_permitted_change(multi: Multi, more: object) -> None:
    assert not permitted("anna", replace(multi, ops=(*multi.ops, more)))


def test_only_the_entry_of_a_submitter_is_ephemeral() -> None:
    entry = entry_multi("0123")
    assert not permitted("anna", replace(entry, ops=(replace(entry.ops[0], ephemeral=False),)))  # it would never go
    drain = operator_ops.drain(DRAIN, None)
    assert not permitted("anna", replace(drain, ops=(replace(drain.ops[0], ephemeral=True),)))


def test_a_drain_is_not_resumed_under_another_name() -> None:
    assert not permitted("anna", replace(operator_ops.resume("n1", 0), name="DRAIN"))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (paths.sub(42), Place.RECORD),
        (paths.sub(41999), Place.RECORD),
        ("/subs/1/42", Place.OTHER),  # not in its own thousand
        ("/subs/0/042", Place.OTHER),
        ("/subs/0", Place.BUCKET),
        ("/subs", Place.OTHER),
        ("/subs/0/42/gate/x", Place.OTHER),
        (paths.fragment(42, 7), Place.FRAGMENT),
        (f"{paths.done(42)}/other", Place.OTHER),
        (paths.failed_range(42, 0, 1, 1), Place.FAILED_RANGE),
        (paths.pending_block("q", KEY), Place.PENDING),
        (paths.held_block("q", KEY), Place.HELD),
        (paths.pending("q"), Place.QUEUE),
        (f"{paths.pending('q')}/a/b", Place.OTHER),
        (paths.inbox("n1", "g"), Place.ORDER),
        (paths.inbox_node("n1"), Place.OTHER),
        (paths.running_node("n1"), Place.OTHER),
        (paths.hold("n1"), Place.OTHER),
        ("/", Place.OTHER),
        ("", Place.OTHER),
    ],
)
def test_a_path_is_known_by_what_its_builder_makes(path: str, place: Place) -> None:
    assert place_of(path) is place


def test_only_directories_of_queues_are_made() -> None:
    for path in (paths.QUEUES, paths.queue("q"), paths.pending("q"), paths.held("q")):
        check_create("anna", path)
    for path in (paths.META, paths.node("n1"), paths.running_node("n1"), paths.pending_block("q", KEY), paths.SUBS):
        with pytest.raises(PermissionDenied):
            check_create("anna", path)


def test_the_clusters_own_rows_are_not_a_clients() -> None:
    check_store("anna", "PUT", ["in/7", "fn/x", "metadata"])
    check_store("anna", "DELETE", ["in/7"])
    for verb, keys in (("PUT", ["in/7", "meta/cluster_id"]), ("DELETE", ["meta/cluster_id"]), ("SWEEP", []), ("BIND", [])):
        with pytest.raises(PermissionDenied):
            check_store("anna", verb, keys)


def test_an_unknown_operation_is_refused() -> None:
    assert not permitted("anna", Multi(name="NEW", ops=(Check(paths.gate(1)),), proof=Exists(paths.gate(1))))
