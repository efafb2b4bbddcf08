"""What a client may do through a gateway: decided from the change itself, whatever it calls itself."""

from __future__ import annotations

import threading
from dataclasses import replace

import msgspec
import pytest

from rmgr.adapters.access.shares import Shares
from rmgr.adapters.identity.trust import identify
from rmgr.coord.decisions import election
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.ops import owner as owner_ops
from rmgr.coord.ops import request as request_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Check, Create, Delete, Exists, Multi, Op, Set
from rmgr.coord.protocol.records import encode_block, encode_record
from rmgr.coord.views import closing
from rmgr.daemons.gateway.rights import (
    OPERATIONS,
    ZnodeKind,
    check_answer,
    check_commit,
    check_create,
    check_new,
    check_read,
    is_of_clients,
    place_of,
)
from rmgr.daemons.gateway.rows import check_content, check_rows, visible
from rmgr.errors import PermissionDenied
from rmgr.model.base.resources import Capacity
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import Drain, EpochRecord, InboxOrder, NodeRecord, NodeState, OrderKind, StarterEntry
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.outcome import FailedRange
from rmgr.model.tasks.request import CancelRequest, StopKind, StopRequest
from rmgr.model.tasks.submission import Amendment, Command, Phase, Submission, Tail, Terms, Work
from rmgr.submitter.ownership import entry_of

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


AMENDED = replace(SUB, changes=(Amendment(number=1, by="ann", by_us=1, terms=Terms(priority=-1)),), was=Terms(priority=0), priority=-1)


def client_multis() -> list[Multi]:
    once = replace(SUB, id=1000)
    ended = msgspec.structs.replace(FAILED, reason=Reason.EXIT_CODE)
    return [
        ops.submit(SUB, ids_version=7, tail=TAIL, blocks=[(KEY, DATA)], make_bucket=True),
        ops.submit(replace(once, phase=Phase.HELD), ids_version=7, tail=TAIL, blocks=[(KEY, DATA)], make_bucket=False),
        ops.enqueue(42, "default", tail=TAIL, tail_version=0, blocks=[(KEY, DATA)], held=False),
        ops.enqueue(42, "default", tail=TAIL, tail_version=0, blocks=[(KEY, DATA)], held=True),
        ops.hand(42, tail=TAIL, tail_version=0, key=KEY, data=DATA, node="n1", node_version=3),
        ops.set_record(SUB, version=1, gate=True),
        ops.set_record(SUB, version=1, gate=False),
        ops.set_record(AMENDED, version=1, gate=True),
        ops.update(AMENDED, version=1, gate=None, waiting=[paths.pending_block("default", KEY)]),
        ops.update(replace(AMENDED, phase=Phase.HELD), version=1, gate=False, waiting=[paths.held_block("default", KEY)]),
        ops.take_out("default", KEY, DATA, 0, indices=[11], fragment=CANCELLED),
        ops.take_out("default", KEY, DATA, 0, indices=[11], fragment=CANCELLED, held=True),
        leader_ops.resubmit(SUB, 10, 6, 1, FAILED, 0, gate=True, max_losses=5)[0],
        leader_ops.resubmit(SUB, 10, 6, 1, FAILED, 0, gate=False, max_losses=5)[0],
        leader_ops.resubmit(SUB, 10, 6, 1, ended, 0, gate=True, max_losses=5)[0],
        leader_ops.cancel_failed(SUB, 10, 6, 1, FAILED, 0, reason=Reason.USER_CANCEL),
        leader_ops.order("n1", "guid", InboxOrder(order=OrderKind.CANCEL, submission=42, index=1)),
        request_ops.ask("guid", CancelRequest(submission=42, tasks=((1, 2),))),
        request_ops.ask("guid", StopRequest(kind=StopKind.MIGRATE, submission=42, to="n1")),
        owner_ops.take_ownership(SUB, 1, TAIL, 1),
        owner_ops.enter(entry_of("0123")),
        identify("0" * 32, b"pem"),
        operator_ops.drain(DRAIN, None),
        operator_ops.drain(DRAIN, 3),
        operator_ops.resume(DRAIN, 0),
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
        ops.mark_idle("n1", 0, idle=False),
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
    check_commit(ANYBODY, multi)


@pytest.mark.parametrize("multi", daemon_multis(), ids=lambda multi: multi.name)
def test_what_daemons_do_is_refused_under_every_name(multi: Multi) -> None:
    with pytest.raises(PermissionDenied, match=multi.name):
        check_commit(ANYBODY, multi)
    assert [name for name in OPERATIONS if is_of_clients(replace(multi, name=name))] == []


def test_only_the_leader_sets_blocks_aside_and_brings_them_back() -> None:
    for multi in (ops.set_aside("default", KEY, encode_block(DATA), 0), ops.bring_back("default", KEY, DATA, 0)):
        with pytest.raises(PermissionDenied, match=multi.name):
            check_commit(ANYBODY, multi)


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
    assert not is_of_clients(replace(multi, ops=(*multi.ops, more)))


def test_only_the_entry_of_a_submitter_is_ephemeral() -> None:
    entry = owner_ops.enter(entry_of("0123"))
    assert not is_of_clients(replace(entry, ops=(replace(entry.ops[0], ephemeral=False),)))  # it would never go
    drain = operator_ops.drain(DRAIN, None)
    assert not is_of_clients(replace(drain, ops=(replace(drain.ops[0], ephemeral=True),)))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (paths.sub(42), ZnodeKind.RECORD),
        (paths.sub(41999), ZnodeKind.RECORD),
        ("/subs/1/42", ZnodeKind.OTHER),  # not in its own thousand
        ("/subs/0/042", ZnodeKind.OTHER),
        ("/subs/0", ZnodeKind.BUCKET),
        ("/subs", ZnodeKind.OTHER),
        (f"/subs/0/{'9' * 5000}", ZnodeKind.OTHER),
        ("/subs/0/\u0664\u0662", ZnodeKind.OTHER),
        ("/subs/0/42/gate/x", ZnodeKind.OTHER),
        (paths.fragment(42, 7), ZnodeKind.FRAGMENT),
        (f"{paths.done(42)}/other", ZnodeKind.OTHER),
        (paths.failed_range(42, 0, 1, 1), ZnodeKind.FAILED_RANGE),
        (paths.pending_block("q", KEY), ZnodeKind.PENDING),
        (paths.held_block("q", KEY), ZnodeKind.HELD),
        (paths.pending("q"), ZnodeKind.QUEUE),
        (f"{paths.pending('q')}/a/b", ZnodeKind.OTHER),
        (paths.inbox("n1", "g"), ZnodeKind.ORDER),
        (paths.inbox_node("n1"), ZnodeKind.OTHER),
        (paths.running_node("n1"), ZnodeKind.OTHER),
        (paths.hold("n1"), ZnodeKind.OTHER),
        ("/", ZnodeKind.OTHER),
        ("", ZnodeKind.OTHER),
    ],
)
def test_a_path_is_known_by_what_its_builder_makes(path: str, place: ZnodeKind) -> None:
    assert place_of(path) is place


def test_only_directories_of_queues_are_made() -> None:
    for path in (paths.QUEUES, paths.queue("q"), paths.pending("q"), paths.held("q")):
        check_create(ANYBODY, path)
    for path in (paths.META, paths.node("n1"), paths.running_node("n1"), paths.pending_block("q", KEY), paths.SUBS):
        with pytest.raises(PermissionDenied):
            check_create(ANYBODY, path)


def test_the_clusters_own_rows_are_not_a_clients() -> None:
    check_rows(ANYBODY, "PUT", ["in/7", "fn/x", "metadata"])
    check_rows(ANYBODY, "DELETE", ["in/7"])
    for verb, rows in (("PUT", ["in/7", "meta/cluster_id"]), ("DELETE", ["meta/cluster_id"]), ("SWEEP", []), ("BIND", [])):
        with pytest.raises(PermissionDenied):
            check_rows(ANYBODY, verb, rows)


def test_an_unknown_operation_is_refused() -> None:
    assert not is_of_clients(Multi(name="NEW", ops=(Check(paths.gate(1)),), proof=Exists(paths.gate(1))))


# -- in a secured cluster: whose work it is -------------------------------------------------------------------------------------

ANNA, BEN, OLGA = Person(name="anna", role="user"), Person(name="ben", role="user"), Person(name="olga", role="operator", is_operator=True)
NOBODY = Person(role="submitter")  # a gateway that speaks for nobody


def owner_of(submission: int) -> str | None:
    return "anna" if submission == 42 else None


def of_anna() -> list[Multi]:
    """What clients do with anna's submission 42."""
    mine = replace(SUB, user="anna", token="t")
    made = []
    for multi in client_multis():
        if any(place_of(op.path) is ZnodeKind.RECORD for op in multi.ops):
            made.append(replace(multi, ops=tuple(_of(op, mine) for op in multi.ops)))
        elif multi.name != "SUBMIT":
            made.append(multi)
    return [multi for multi in made if multi.name != "SUBMIT"]


def _of(op: Op, record: Submission) -> Op:
    return replace(op, data=encode_record(record)) if isinstance(op, Set) and place_of(op.path) is ZnodeKind.RECORD else op


@pytest.mark.parametrize("multi", of_anna(), ids=lambda multi: multi.name)
def test_a_user_changes_his_own_work_and_operators_everybodys(multi: Multi) -> None:
    of_all = multi.name in {"DRAIN", "RESUME", "SETTINGS"}
    if of_all:
        with pytest.raises(PermissionDenied, match="for operators"):
            check_commit(ANNA, multi, owner_of)
    else:
        assert check_commit(ANNA, multi, owner_of) == frozenset()
    nobodys = multi.name in {"ENTER", "IDENTIFY"}
    if not nobodys:
        for stranger in (BEN, NOBODY):
            with pytest.raises(PermissionDenied, match="for operators" if of_all else "42 belongs to anna"):
                check_commit(stranger, multi, owner_of)
    assert check_commit(OLGA, multi, owner_of) == (frozenset() if of_all or nobodys else {"anna"})


def test_emptying_a_node_is_for_operators_whosever_job_is_named_with_it() -> None:
    multi = request_ops.ask("guid", StopRequest(kind=StopKind.VACATE, node="n1", submission=42))
    for person in (ANNA, BEN, NOBODY):
        with pytest.raises(PermissionDenied, match="for operators"):
            check_commit(person, multi, owner_of)
    assert check_commit(OLGA, multi, owner_of) == frozenset()


def test_everybody_submits_in_his_own_name() -> None:
    mine = replace(SUB, user="ben")
    for person in (BEN, ANYBODY):
        check_new(person, mine)
    for person in (ANNA, OLGA, NOBODY):
        with pytest.raises(PermissionDenied, match="cannot submit for ben"):
            check_new(person, mine)


def test_a_submission_is_not_given_away() -> None:
    given = ops.set_record(replace(SUB, user="ben"), version=1, gate=None)
    for person in (ANNA, OLGA):
        with pytest.raises(PermissionDenied, match="given away"):
            check_commit(person, given, owner_of)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("get", paths.sub(42)),
        ("stat", paths.gate(42)),
        ("get", paths.tail(42)),
        ("get", paths.done(42)),
        ("children", paths.failed(42)),
        ("get", paths.fragment(42, 0)),
        ("get", paths.pending_block("default", KEY)),
        ("get", paths.held_block("default", KEY)),
        ("get", paths.running_block("n1", KEY)),
    ],
)
def test_a_user_does_not_read_others_work(kind: str, path: str) -> None:
    check_read(ANNA, kind, path, owner_of)
    check_read(OLGA, kind, path, owner_of)
    for stranger in (BEN, NOBODY):
        with pytest.raises(PermissionDenied, match="42 belongs to anna"):
            check_read(stranger, kind, path, owner_of)
    check_read(BEN, kind, path.replace("42", "43"), owner_of)  # it is not there: he may look for it


def test_a_record_that_comes_into_being_while_it_is_asked_for_is_its_owners() -> None:
    data = encode_record(replace(SUB, user="anna"))
    check_read(BEN, "get", paths.sub(43), owner_of)
    for person in (ANNA, OLGA, ANYBODY):
        check_answer(person, paths.sub(42), data)
    with pytest.raises(PermissionDenied, match="42 belongs to anna"):
        check_answer(BEN, paths.sub(42), data)


def test_queues_are_made_by_operators() -> None:
    check_create(OLGA, paths.queue("q"))
    with pytest.raises(PermissionDenied, match="operators"):
        check_create(ANNA, paths.queue("q"))


def test_what_is_of_all_everybody_reads_and_secrets_nobody() -> None:
    for kind, path in (
        ("get", paths.META), ("get", paths.CONFIG), ("get", paths.EPOCH), ("get", paths.node("n1")), ("children", paths.NODES),
        ("children", paths.SUBS), ("children", paths.subs_bucket(42)), ("children", paths.pending("default")),
        ("get", paths.gangs("default")), ("children", paths.running_node("n1")),
        ("stat", paths.inbox("n1", "g")), ("get", paths.token("ab")), ("get", paths.nonce("u", "ab", 1)),
        ("children", "/"),
    ):  # fmt: skip
        check_read(BEN, kind, path, owner_of)
    for path in (paths.JOINS, paths.join("a"), paths.secret("starter"), paths.inbox("n1", "g")):
        with pytest.raises(PermissionDenied):
            check_read(BEN, "get", path, owner_of)


HIST, HISTU = keys.history(42), keys.history_of_user("anna", 42)
HASH = "a" * 64


@pytest.mark.parametrize(
    "row", [keys.arguments(42, 0, "g"), keys.output(42, 0, 1), keys.log(42, 0, 1, "stdout", 0), keys.page(42, 0), HIST, HISTU]
)
def test_rows_of_a_submission_are_its_users(row: str) -> None:
    check_rows(ANNA, "GET", [row], owner_of)
    for verb in ("GET", "PUT", "DELETE"):
        with pytest.raises(PermissionDenied, match=r"anna|leader"):
            check_rows(BEN, verb, [keys.named("x"), row], owner_of)
    if row in {HIST, HISTU}:
        for person, verb in ((ANNA, "PUT"), (ANNA, "DELETE"), (OLGA, "PUT")):
            with pytest.raises(PermissionDenied, match="leader"):
                check_rows(person, verb, [row], owner_of)
        check_rows(OLGA, "DELETE", [row], owner_of)  # rmgr history purge
    else:
        check_rows(ANNA, "PUT", [row], owner_of)


def test_values_by_name_are_everybodys_and_content_is_what_it_says() -> None:
    for verb in ("GET", "PUT", "DELETE"):
        check_rows(BEN, verb, [keys.named("of/anna")], owner_of)
    check_rows(BEN, "PUT", [keys.function(HASH), keys.upload(HASH), keys.arguments(43, 0, "g")], owner_of)
    check_rows(BEN, "GET", [keys.module(HASH), "meta/cluster_id"], owner_of)
    final = keys.final(keys.Pointer(sub=42, index=0))
    check_rows(BEN, "DELETE", [final], owner_of)  # goes with its name, which is everybody's
    for verb in ("GET", "PUT"):
        with pytest.raises(PermissionDenied, match="42 belongs to anna"):
            check_rows(BEN, verb, [final], owner_of)
    for verb, row in (("DELETE", keys.function(HASH)), ("PUT", "fn/short")):
        with pytest.raises(PermissionDenied):
            check_rows(BEN, verb, [row], owner_of)
    for row in ("metric/n1/1", "unknown/x", "out/x", f"out/{'9' * 5000}/0", "out/\u0664\u0662/0", keys.output(43, 0, 1)):
        with pytest.raises(PermissionDenied):
            check_rows(BEN, "PUT", [row], owner_of)
    with pytest.raises(PermissionDenied, match="another hash"):
        check_content(keys.function(HASH), "b" * 64)
    check_content(keys.function(HASH), HASH)


def test_lists_tell_of_ones_own_work_and_of_names() -> None:
    rows = [HIST, HISTU, keys.output(42, 0, 1), keys.output(43, 0, 1), keys.function(HASH), keys.named("x"), keys.history_of_user("ben", 1)]
    assert visible(ANNA, rows, owner_of) == [HIST, HISTU, rows[2], rows[5]]
    assert visible(BEN, rows, owner_of) == [rows[5], rows[6]]
    assert visible(OLGA, rows, owner_of) == visible(ANYBODY, rows, owner_of) == rows


def test_the_schedulers_log_is_for_operators() -> None:
    row = keys.events(1, 0, 0)
    check_rows(OLGA, "GET", [row], owner_of)
    assert visible(OLGA, [row], owner_of) == [row]
    assert visible(ANNA, [row], owner_of) == []
    for person, verb in ((ANNA, "GET"), (ANNA, "PUT"), (OLGA, "PUT"), (OLGA, "DELETE")):
        with pytest.raises(PermissionDenied):
            check_rows(person, verb, [row], owner_of)
    with pytest.raises(PermissionDenied, match="reading the scheduler's log is for operators"):
        check_rows(ANNA, "GET", [row], owner_of)


def test_nobody_takes_all_places_of_a_gateway() -> None:
    shares = Shares(8)
    assert [shares.take("anna") for _ in range(8)] == [True] * 6 + [False] * 2
    assert [shares.take("ben") for _ in range(3)] == [True, True, False]
    assert len(shares) == 8
    giver = threading.Timer(0.05, shares.give_back, ["anna"])
    giver.start()
    assert shares.take("ben", timeout_s=60)
    giver.join()
    for user in ("anna",) * 5 + ("ben",) * 3:
        shares.give_back(user)
    assert len(shares) == 0
    assert [Shares(most).of_one for most in (1, 2, 4)] == [1, 2, 3]
