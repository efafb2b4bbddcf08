"""A gateway commits only what it has built itself: what honest clients send passes, and whatever differs in anything is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from random import Random
from typing import Any

import msgspec
import pytest

from rmgr.coord.decisions import amending, gating
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.ops import operator as operator_ops
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS, Check, ConflictKind, Create, Delete, Exists, Gone, Multi, Op, Set
from rmgr.coord.protocol.records import encode_block, encode_fragment, encode_record
from rmgr.coord.rebuild.changes import NAMED
from rmgr.coord.rebuild.multis import CHANGES, GROWS, rebuild
from rmgr.coord.rebuild.parts import Moved, SubmissionFacts
from rmgr.coord.validity import records as validity
from rmgr.daemons.gateway.rights import OPERATIONS
from rmgr.errors import InvalidRecord, PermissionDenied, RmgrError, WrongCluster
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.node import Drain, InboxOrder, OrderKind
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.placing import Allocation
from rmgr.model.tasks.submission import Command, Phase, Submission, Tail, Terms
from tests.harness.client_multis import ANN, GUID, TAIL, WAITS, Tree, block, everything, grown, stamped, submits

EVERYTHING = everything()
REFUSED = (PermissionDenied, InvalidRecord, WrongCluster, Moved)


def named(value: object) -> str:
    return value.name if isinstance(value, Multi) else ""


def refused(multi: Multi, tree: Tree) -> str:
    """Why."""
    with pytest.raises(REFUSED) as caught:
        rebuild(multi, tree)
    return str(caught.value)


def with_op(multi: Multi, at: int, op: Op) -> Multi:
    return replace(multi, ops=(*multi.ops[:at], op, *multi.ops[at + 1 :]))


def test_every_operation_of_a_client_is_built_anew() -> None:
    assert {"SUBMIT", *GROWS, *CHANGES} == set(OPERATIONS) == {multi.name for multi, _ in EVERYTHING}


@pytest.mark.parametrize(("multi", "tree"), EVERYTHING, ids=named)
def test_what_honest_clients_send_passes_and_is_the_gateways_own(multi: Multi, tree: Tree) -> None:
    built = rebuild(replace(multi, most_ops=MAX_OPS), tree).multi  # no message says how many operations it may have
    assert built == multi
    assert built is not multi
    assert all(mine is not his for mine, his in zip(built.ops, multi.ops, strict=True))


# -- whatever differs ------------------------------------------------------------------------------------------------------------


def mutations(multi: Multi) -> Iterator[tuple[str, Multi]]:
    """The same with one thing otherwise that its builder never does."""
    for at, op in enumerate(multi.ops):
        for what, other in of_op(op):
            yield f"{at} {what}", with_op(multi, at, other)
        # It may be there already; a drain that replaces none.
        if op.path != paths.subs_bucket(42) and not (multi.name == "DRAIN" and isinstance(op, Delete)):
            yield f"{at} left out", replace(multi, ops=(*multi.ops[:at], *multi.ops[at + 1 :]))
        yield f"{at} twice", replace(multi, ops=(*multi.ops[:at], op, *multi.ops[at:]))
        if at and multi.ops[at - 1] != op and not ("/r-" in op.path and "/r-" in multi.ops[at - 1].path):
            yield f"{at} earlier", replace(multi, ops=(*multi.ops[: at - 1], op, multi.ops[at - 1], *multi.ops[at + 1 :]))
    for more in (Set(paths.EPOCH, b"", -1), Create("/x"), Delete(paths.gate(42)), Check(paths.gate(42)), *multi.ops):
        yield f"and {more.path}", replace(multi, ops=(*multi.ops, more))
        yield f"first {more.path}", replace(multi, ops=(more, *multi.ops))
    for item in fields(multi.proof):
        value = getattr(multi.proof, item.name)
        other_value = f"{value}x" if isinstance(value, str) else b"x" if value is None else value + b"x"
        yield f"proof.{item.name}", replace(multi, proof=replace(multi.proof, **{item.name: other_value}))
    yield "another proof", replace(multi, proof=Exists("/") if isinstance(multi.proof, Gone) else Gone(multi.proof.path))
    yield "a guard", replace(multi, guard=Check(paths.gate(42)))
    yield "nothing", replace(multi, ops=())
    for name in OPERATIONS:
        if name != multi.name:
            yield f"as {name}", replace(multi, name=name)
    yield "as CLAIM", replace(multi, name="CLAIM")


def of_op(op: Op) -> Iterator[tuple[str, Op]]:
    for path in (f"{op.path}x", f"{op.path}/x", op.path[:-1], op.path.replace("42", "43"), op.path.replace("default", "batch")):
        if path != op.path:
            yield f"path {path}", replace(op, path=path)
    if isinstance(op, Set | Delete | Check):
        if not op.path.startswith((paths.DRAINS, paths.NODES, paths.CONFIG)):  # these say themselves which they have read
            yield "another version", replace(op, version=op.version + 1)
        if op.version != -1:
            yield "any version", replace(op, version=-1)
    if isinstance(op, Create):
        yield "ephemeral", replace(op, ephemeral=not op.ephemeral)
        yield "sequence", replace(op, sequence=not op.sequence)
        yield "a set", Set(op.path, op.data, -1)
    elif not isinstance(op, Set):
        yield "a create", Create(op.path)
    if isinstance(op, Create | Set):
        for data in (b"", op.data + b"\0", op.data + b" ", b" " + op.data, op.data[:-1], b"\xc1", b"{}", b"[]", b"null", b"9" * 400):
            if data != op.data:
                yield f"data {data[:20]!r}..{data[-5:]!r}", replace(op, data=data)


@pytest.mark.parametrize(("multi", "tree"), EVERYTHING, ids=named)
def test_whatever_its_builder_never_makes_is_refused(multi: Multi, tree: Tree) -> None:
    passed = []
    for what, other in mutations(multi):
        try:
            rebuild(other, tree)
        except REFUSED:
            continue
        passed.append(what)
    assert passed == []


@pytest.mark.parametrize(("multi", "tree"), EVERYTHING, ids=named)
def test_whatever_bytes_he_sends_he_is_refused_or_has_sent_what_is_built(multi: Multi, tree: Tree) -> None:
    """Nothing else is ever committed, and nothing is raised that is no refusal."""
    dice = Random(7)
    deep = b"[" * 5000 + b"]" * 5000
    for at, op in enumerate(multi.ops):
        if not isinstance(op, Create | Set) or not op.data:
            continue
        flipped = [bytearray(op.data) for _ in range(60)]
        for data in flipped:
            for _ in range(dice.randint(1, 3)):
                data[dice.randrange(len(data))] = dice.randrange(256)
        nested = op.data[:-1] + b',"x":' + deep + b"}"
        for other in (
            *map(bytes, flipped),
            deep,
            nested,
            b"\x91" * 5000 + b"\xc0",
            b"\xdd\xff\xff\xff\xff",
            b'"\xed\xa0\x80"',
            b"\xff" * 99,
        ):
            sent = with_op(multi, at, replace(op, data=other))
            try:
                built = rebuild(sent, tree).multi
            except REFUSED:
                continue
            assert built == sent


# -- fields ----------------------------------------------------------------------------------------------------------------------

#: What a client may decide in a record of its own; everything else follows from something, and is compared with it.
FREE_SUBMISSION = {
    *("name", "request", "queue", "priority", "resubmit", "retries", "backoff_us", "on_disconnect", "after", "phase", "reason"),
    *(
        "owner",
        "submitted_us",
        "array",
        "max_running",
        "max_fails",
        "command",
        "python",
        "function",
        "account",
        "host",
        "grace_us",
        "rigid",
        "spec_sha256",
        "ends_with_owner",
        "umask",
    ),
    "work",
}
#: Fields of a new block that its user signs, or says to people only.
FREE_BLOCK = {"function", "resubmit", "retries", "payloads", "row", "keyed", "serial", "seal", "base"}
_OTHERS: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, -1, 2, 1 << 40),
    str: ("", "x", GUID),
    bytes: (b"x",),
}


def others(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [(*value, "x"), (*value, 1)]
    if value is None:
        return ["x", 1, (1,)]
    return [other for other in _OTHERS.get(type(value), ()) if other != value]


def changed_fields(record: Any) -> Iterator[tuple[str, Any]]:
    names = record.__struct_fields__ if isinstance(record, msgspec.Struct) else [item.name for item in fields(record)]
    change = msgspec.structs.replace if isinstance(record, msgspec.Struct) else replace
    for name in names:
        for other in others(getattr(record, name)):
            yield name, change(record, **{name: other})


@pytest.mark.parametrize("name", [item.name for item in fields(ANN) if item.name not in {*FREE_SUBMISSION, "newer"}])
def test_of_a_new_submission_only_what_its_user_decides_may_be_otherwise(name: str) -> None:
    multi, tree = submits()[2]
    for field_name, record in changed_fields(ANN):
        if field_name == name:
            assert refused(with_op(multi, 2, Create(paths.sub(42), encode_record(record))), tree)


def test_a_new_block_says_nothing_but_what_its_user_signs() -> None:
    _, data = block()
    multi, tree = grown()[0]
    seen = set()
    for name, other in changed_fields(data):
        seen.add(name)
        if name not in FREE_BLOCK:
            first = multi.ops[1]
            assert isinstance(first, Create)
            assert refused(with_op(multi, 1, replace(first, data=encode_block(other))), tree), name
    assert seen == set(data.__struct_fields__)
    assert seen >= FREE_BLOCK


@pytest.mark.parametrize(
    "changes", [{"cores": 2}, {"cores": 0}, {"count": 0}, {"count": 5}, {"first": 1}, {"attempt": 2}, {"attempt": 0}, {"memory_mib": 1},
                {"priority": 1}, {"submission": 43}, {"user": paths.user_tag("bob")}]
)  # fmt: skip
def test_a_new_block_asks_for_what_its_submission_asks_for(changes: dict[str, Any]) -> None:
    key, data = block()
    asks = replace(key, **changes)
    for multi, tree, at in ((*grown()[0], 1), (*submits()[0], 7)):
        assert refused(with_op(multi, at, ops.enter("default", asks, data, held=False)), tree)


@pytest.mark.parametrize("tail", [
    Tail(next=9, reigns=TAIL.reigns), Tail(next=7, reigns=TAIL.reigns), Tail(next=10**15, reigns=TAIL.reigns), Tail(next=8), Tail(next=-1),
    Tail(next=8, reigns=((0, "f" * 32),)), Tail(next=8, reigns=TAIL.reigns, enqueued="x" * 65),
], ids=str)  # fmt: skip
def test_a_tail_counts_what_was_enqueued(tail: Tail) -> None:
    multi, tree = grown()[0]
    grows = ops.enqueue(42, "default", tail=tail, tail_version=3, blocks=[block(), block(4)], held=False)
    assert multi != grows
    assert refused(grows, tree)


def test_tasks_follow_one_another() -> None:
    told = replace(TAIL, next=8, enqueued="s")
    for blocks in ([block(), block(5, 3)], [block(4), block()], [block(), block(2, 6)], [block(), block()]):
        assert "the next" in refused(ops.enqueue(42, "default", tail=told, tail_version=3, blocks=blocks, held=False), Tree())
    complete = Tree(tails={42: (3, replace(TAIL, complete=True))})
    assert "complete" in refused(ops.enqueue(42, "default", tail=told, tail_version=3, blocks=[block(), block(4)], held=False), complete)


@pytest.mark.parametrize("number", [1, 41, 43, 9_999_999_999, 10**20])
def test_only_the_number_that_is_due_is_taken(number: int) -> None:
    record = replace(ANN, id=number)
    multi = ops.submit(record, ids_version=7, tail=TAIL, blocks=[], make_bucket=False)
    assert refused(multi, Tree())


def test_a_number_that_somebody_else_took_is_a_conflict() -> None:
    multi, _ = submits()[0]
    with pytest.raises(Moved) as moved:
        rebuild(multi, Tree(ids=(43, 8)))
    assert (moved.value.path, moved.value.kind, moved.value.conflict(multi).index) == (paths.IDS, ConflictKind.BAD_VERSION, 0)


@pytest.mark.parametrize("order", [item for item in OrderKind if item is not OrderKind.CANCEL])
def test_only_the_leader_orders_anything_but_an_end(order: OrderKind) -> None:
    what = InboxOrder(order=order, submission=42, index=1, reason=Reason.USER_CANCEL)
    assert "by the leader alone" in refused(leader_ops.order("n1", GUID, what), Tree())


def test_an_order_is_named_as_nothing_but_itself() -> None:
    what = InboxOrder(order=OrderKind.CANCEL, submission=42, index=1, reason=Reason.USER_CANCEL)
    key, _ = block()
    for guid in (paths.start_order(GUID, key), paths.start_order("x", key), "x", GUID.upper(), f"{GUID}+", ""):
        assert refused(leader_ops.order("n1", guid, what), Tree())


def test_what_is_handed_over_was_placed_by_nobody() -> None:
    multi, tree = grown()[4]
    made = multi.ops[4]
    assert isinstance(made, Create)
    _, data = block(0, 1)
    placed = msgspec.structs.replace(data, allocation=Allocation(shares=(("n1", 1),), threads=1))
    assert "allocation" in refused(with_op(multi, 4, replace(made, data=encode_block(placed))), tree)
    for facts in ({"is_placed": True}, {"has_resources": True}, {"is_capped": True}, {"queue": "batch"}):
        assert refused(multi, Tree(of={42: replace(SubmissionFacts.of(ANN), **facts)}))
    assert "stopped" in refused(multi, Tree(config=ClusterSettings(queues=(QueueSpec(name="default", state="stopped"),))))


@pytest.mark.parametrize("outcome", [
    Outcome(index=0), Outcome(index=0, state=State.FAILED, reason=Reason.EXIT_CODE), Outcome(index=0, state=State.CANCELLED, value=b"x"),
    Outcome(index=0, state=State.CANCELLED, reason=Reason.USER_CANCEL, error="x" * 201),
    Outcome(index=1, state=State.CANCELLED, reason=Reason.USER_CANCEL),
    Outcome(index=1 << 26, state=State.CANCELLED, reason=Reason.USER_CANCEL),
], ids=str)  # fmt: skip
def test_a_client_tells_of_no_task_that_ran_nor_of_one_that_is_not_there(outcome: Outcome) -> None:
    multi, tree = grown()[3]
    at = next(at for at, op in enumerate(multi.ops) if "/r-" in op.path)
    told = Create(paths.fragment_prefix(42), encode_fragment(Fragment(attempt=0, outcomes=(outcome,))), sequence=True)
    assert refused(with_op(multi, at, told), tree)


def test_a_record_changes_by_a_hold_a_release_or_a_cancel_only() -> None:
    _, tree = next((multi, tree) for multi, tree in EVERYTHING if multi.name == "GATE")
    for record in (ANN, replace(ANN, phase=Phase.CLOSED), replace(ANN, queue="batch"), replace(ANN, user="bob")):
        for gate in (True, False, None):
            assert refused(ops.set_record(record, version=1, gate=gate), tree)


def test_what_has_changed_meanwhile_is_a_conflict() -> None:
    for multi, _ in EVERYTHING:
        if multi.name in {"GATE", "TAKE_OWNERSHIP", "TAKE_OUT", "RESUBMIT", "GIVE_UP", "CANCEL_FAILED"}:
            with pytest.raises(Moved) as moved:
                rebuild(multi, Tree(tails={}))
            assert moved.value.conflict(multi).path == moved.value.path == multi.ops[0].path


# -- releases side by side -------------------------------------------------------------------------------------------------------


def _shorter(data: bytes) -> bytes:
    """As a release writes it that does not know the last field."""
    if data[:1] == b"{":
        record = msgspec.json.decode(data)
        for name in ("spec_sha256", "reigns") if not record.get("reigns") else ("spec_sha256",):
            record.pop(name, None)
        return msgspec.json.encode(record, order="sorted")
    return msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:-1])


def test_a_client_of_the_release_before_leaves_out_what_it_does_not_know() -> None:
    for multi, tree in (submits()[0], grown()[0], grown()[4]):
        older, swapped = multi, {}
        for at, op in enumerate(multi.ops):
            if isinstance(op, Create | Set) and op.data and not op.data.isdigit() and "tail" not in op.path:
                swapped[op.data] = _shorter(op.data)
                older = with_op(older, at, replace(op, data=swapped[op.data]))
        assert older != multi
        assert rebuild(older, tree).multi == older


def test_a_field_that_is_left_out_is_at_its_default() -> None:
    record = replace(ANN, spec_sha256="c" * 64)
    multi = ops.submit(record, ids_version=7, tail=TAIL, blocks=[], make_bucket=False)
    assert rebuild(multi, Tree()).record == record
    shorter = with_op(multi, 2, Create(paths.sub(42), _shorter(encode_record(record))))
    assert rebuild(shorter, Tree()).record == ANN  # it never said so


def test_what_a_newer_release_says_in_a_record_goes_with_it() -> None:
    multi, tree = submits()[2]
    told = msgspec.json.decode(encode_record(ANN)) | {"zeal": 7}
    newer = with_op(multi, 2, Create(paths.sub(42), msgspec.json.encode(told, order="sorted")))
    assert rebuild(newer, tree).multi == newer


def test_refusals_name_the_operation_and_what_is_wrong() -> None:
    multi, tree = grown()[0]
    other = with_op(multi, 2, replace(multi.ops[2], path=multi.ops[2].path.replace("default", "batch")))
    assert "ENQUEUE: operation 2 (Create /queues/batch/" in refused(other, tree)
    with pytest.raises(RmgrError, match="its proof is not that of this operation"):
        rebuild(replace(multi, proof=Exists("/")), tree)
    assert "operator" not in refused(Multi(name="CLAIM", ops=multi.ops, proof=multi.proof), tree)
    settings = operator_ops.set_settings(ClusterSettings(), -1)
    assert "which settings" in refused(settings, tree)


def test_what_an_operator_ends_or_holds_bears_his_name_whatever_his_client_says() -> None:
    seen = set()
    for multi, tree in EVERYTHING:
        if multi.name not in NAMED:
            continue
        ends = any(isinstance(op, Create | Set) and (b"USER_CANCEL" in op.data or b"USER_HOLD" in op.data) for op in multi.ops)
        for user, is_operator in (("olga", True), ("ann", False)):
            made = rebuild(multi, replace(tree, user=user, is_operator=is_operator)).multi
            bears = any(isinstance(op, Create | Set) and b"OPERATOR_" in op.data for op in made.ops)
            assert bears is (is_operator and ends), multi
            assert bears or made == multi
        seen.add(multi.name)
    assert seen == set(NAMED)


def test_an_amendment_is_in_the_name_and_in_the_right_of_its_sender() -> None:
    tree = Tree(user="ann", znodes={paths.sub(42): stamped(encode_record(ANN), 1)})

    def update(terms: Terms, doer: gating.Doer, *waiting: str) -> Multi:
        change = amending.amended(ANN, terms, doer)
        assert isinstance(change, gating.Change)
        return ops.update(change.record, version=1, gate=change.gate, waiting=waiting)

    ann, olga = gating.Doer(name="ann", now_us=5), gating.Doer(name="olga", is_operator=True, now_us=5)
    lower, higher = Terms(priority=-1), Terms(priority=1)
    own = update(lower, ann)
    assert rebuild(own, tree).amended == amended_record(own)
    assert "who has made it" in refused(own, replace(tree, user="olga", is_operator=True))
    assert "only an operator" in refused(update(higher, replace(ann, is_operator=True)), tree)
    assert "who has made it" in refused(update(higher, olga), tree)
    rebuild(update(higher, olga), replace(tree, user="olga", is_operator=True))
    rebuild(update(lower, ann, paths.held_block("default", WAITS)), tree)
    rebuild(update(Terms(queue="batch", cores=2), ann, paths.pending_block("default", WAITS), paths.held_block("default", WAITS)), tree)
    for other in (paths.held_block("batch", WAITS), paths.held_block("default", replace(WAITS, submission=43))):
        assert "it is a waiting block of that submission" in refused(update(lower, ann, other), tree)


def test_amendments_are_added_one_by_one_and_none_is_taken_away_or_put_anywhere_else() -> None:
    ann = gating.Doer(name="ann", now_us=5)
    first = amending.amended(ANN, Terms(priority=-1), ann)
    assert isinstance(first, gating.Change)
    second = amending.amended(first.record, Terms(priority=-2), ann)
    assert isinstance(second, gating.Change)
    tree = Tree(user="ann", znodes={paths.sub(42): stamped(encode_record(first.record), 1)})
    rebuild(ops.update(second.record, version=1, gate=None), tree)
    again = ops.update(first.record, version=1, gate=None)
    assert "it adds one amendment" in refused(again, tree), "an older record is put back"
    assert refused(ops.update(second.record, version=1, gate=None), replace(tree, znodes={paths.sub(42): stamped(encode_record(ANN), 1)}))
    forged = replace(second.record, command=Command(argv=("evil",)))
    assert refused(ops.update(forged, version=1, gate=None), tree)
    other = replace(second.record, changes=(replace(first.record.changes[0], by_us=7), second.record.changes[1]))
    assert refused(ops.update(other, version=1, gate=None), tree)
    hold = gating.held(ANN, "")
    assert isinstance(hold, gating.Change)
    gone = ops.set_record(hold.record, version=1, gate=hold.gate)
    assert refused(gone, tree), "a hold does not take amendments away"


def amended_record(multi: Multi) -> Submission:
    first = multi.ops[0]
    assert isinstance(first, Set)
    return validity.submission(first.data, 42)


def test_drains_and_settings_bear_the_name_of_their_operator() -> None:
    tree = Tree(user="olga", is_operator=True)
    for multi in (
        operator_ops.drain(Drain(node="n1", reason="", user="anna", since_us=1), None),
        operator_ops.resume(Drain(node="n1", reason="", user="anna", since_us=1), 0),
        operator_ops.set_settings(ClusterSettings(changed_by="anna", changed_us=1), 3),
    ):
        assert "who has" in refused(multi, tree)
    rebuild(operator_ops.drain(Drain(node="n1", reason="", user="olga", since_us=1), None), tree)
    again = operator_ops.resume(Drain(node="n1", reason="", user="olga", since_us=1), 0)
    rebuild(again, tree)
    assert "is a RESUME" in refused(replace(again, name="DRAIN"), tree)
    rebuild(operator_ops.set_settings(ClusterSettings(changed_by="olga", changed_us=1), 3), tree)
    rebuild(operator_ops.set_settings(ClusterSettings(), 3), tree)  # of the release before
