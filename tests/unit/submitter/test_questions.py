"""Questions of users: each has a right and an answer, reads back as written, and changes no other user's work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.coord.decisions.rights import ANYBODY, Person
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.coord.protocol.records import encode_block, encode_record
from rmgr.daemons.gateway.talking import MOST, Asking
from rmgr.daemons.gateway.values import GatewayContext
from rmgr.errors import LimitReached, NotFound, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.base import Capacity
from rmgr.model.block import BlockData, BlockKey
from rmgr.model.identity import Identity, Role
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import ClusterSettings
from rmgr.model.submission import Command, Phase, Submission, Tail, Terms, Work
from rmgr.procedures.bootstrap import bootstrap
from rmgr.submitter import questions as q
from rmgr.submitter.answers import ANSWERS, Answers
from rmgr.submitter.questions import (
    ORDERS,
    RIGHTS,
    Question,
    Right,
    answer_type,
    check_asker,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree
from tests.places import ROOT

ANN, BEN = Person(name="ann", role="user"), Person(name="ben", role="user")
OLGA = Person(name="olga", role="operator", is_operator=True)
ANNS, BENS = 7, 8
GUID = "0123456789abcdef" * 2
KINDS = sorted(RIGHTS, key=lambda kind: kind.__name__)


class Scene:
    """A cluster in memory: submission 7 is ann's, 8 is ben's, each with a block that waits and one that runs on n1."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.store = MemoryStore()
        bootstrap(self.coordinator)
        node = NodeRecord(node="n1", incarnation=1, state=NodeState.UP, guid="g1", capacity=Capacity(cores=4, memory_bytes=0))
        self.commit(Create(paths.node("n1"), encode_record(node)))
        self.coordinator.ensure([paths.running_node("n1"), paths.inbox_node("n1"), paths.subs_bucket(ANNS)])
        for number, user in ((ANNS, "ann"), (BENS, "ben")):
            self.submit(number, user)

    def submit(self, number: int, user: str) -> None:
        record = Submission(id=number, name=f"of {user}", user=user, queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
        data = BlockData(base=0, payloads=(b"", b""))
        keys = [BlockKey(priority=0, seq=number, submission=number, first=at, count=2, attempt=1, cores=1, memory_mib=0) for at in (0, 2)]
        self.commit(
            Create(paths.sub(number), encode_record(record)),
            Create(paths.tail(number), encode_record(Tail(next=4, complete=True))),
            Create(paths.done(number)),
            Create(paths.failed(number)),
            Create(paths.gate(number)),
            Create(f"{paths.pending('default')}/{paths.block_name(keys[0])}", encode_block(data)),
            Create(paths.running_block("n1", keys[1]), encode_block(replace_base(data))),
        )

    def commit(self, *made: Create) -> None:
        multi = Multi(name="TEST", ops=made, proof=Exists(made[0].path))
        assert isinstance(self.coordinator.commit(multi).result(60), Committed)

    def as_(self, who: Person, *, is_direct: bool = False) -> Answers:
        return Answers(self.coordinator, lambda: self.store, who, is_direct=is_direct)

    def ask(self, who: Person, question: Question[Any]) -> Any:
        return self.as_(who).ask(question, timeout_s=10)

    def record(self, number: int) -> Submission:
        return self.ask(OLGA, q.ReadRecord(number=number)).record

    def of(self, number: int) -> list[tuple[str, bytes | None]]:
        """All that stands there of a submission, and the orders to its node."""
        found: list[tuple[str, bytes | None]] = []
        for parent in (paths.subs_bucket(number), paths.sub(number), paths.done(number), paths.failed(number)):
            for name in sorted(self.coordinator.children(parent).result(60) or []):
                if parent != paths.subs_bucket(number) or name == str(number):
                    stamped = self.coordinator.get(f"{parent}/{name}").result(60)
                    found.append((f"{parent}/{name}", stamped.data if stamped is not None else None))
        for parent in (paths.pending("default"), paths.held("default"), paths.running_node("n1")):
            blocks = paths.blocks_in(self.coordinator.children(parent).result(60))
            found += [(name, None) for name, key in blocks if key.submission == number]
        return found


def replace_base(data: BlockData) -> BlockData:
    return msgspec.structs.replace(data, base=2)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def every(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from every(one)


def test_every_question_has_a_right_an_answer_a_kind_of_answer_and_a_strategy() -> None:
    kinds = set(every(Question))
    assert kinds == set(RIGHTS) == set(ANSWERS)
    assert set(ORDERS) < kinds
    for kind in kinds:
        answer_type(kind)
        st.from_type(kind)
    assert {kind for kind in kinds if not kind.repeats} == {q.ApplySettings}


def test_the_protocol_tells_of_every_question_and_whom_it_is_for() -> None:
    text = (ROOT / "rmgr/docs/protocol.md").read_text(encoding="utf-8").partition("## 7. Questions of users")[2]
    rows = re.findall(r"^\| ([A-Z][A-Za-z, ]+) \| (\w+) \|", text, re.MULTILINE)
    told = {name.strip(): right for names, right in rows for name in names.split(",")}
    assert told == {kind.__name__: right.name.lower() for kind, right in RIGHTS.items()}


def test_a_name_leads_nowhere_else() -> None:
    for bad in ("../config", "a/b", "", "..", ".", "a" * 65, "n1\n"):
        with pytest.raises(UsageError):
            decode_question(encode_question(q.ReadDrain(node=bad)))
        with pytest.raises(UsageError):
            decode_question(encode_question(q.ReadMoved(number=1, guid=bad)))
    assert decode_question(encode_question(q.ReadDrain(node="n1"))) == q.ReadDrain(node="n1")


def test_answers_come_back_as_they_were(scene: Scene) -> None:
    questions: list[Question[Any]] = [
        q.ReadMeta(),
        q.ReadSettings(),
        q.ReadNodes(),
        q.ReadDrain(node="n1"),
        q.WhoLeads(),
        q.ReadRecord(number=ANNS),
        q.WhichExist(numbers=(ANNS, 99)),
        q.CountWaiting(queue="default"),
        q.ReadUse(user="ann"),
        q.ReadClaims(number=ANNS),
        q.ReadTasks(number=ANNS),
        q.ReadFragments(number=ANNS),
        q.CountFragments(number=ANNS),
        q.ReadGangs(),
        q.ReadFates(pointers=(Pointer(sub=ANNS, index=0), Pointer(sub=BENS, index=0))),
        q.ReadCertificate(key_id="0" * 32),
        q.ReadRevoked(),
        q.DeriveJobs(),
        q.DeriveNodes(),
        q.DeriveQueues(),
        q.DeriveStatus(zookeeper={"ok": True}, store={"ok": True}),
        q.DeriveExplain(number=ANNS),
    ]
    for question in questions:
        assert decode_question(encode_question(question)) == question
        answer = scene.ask(ANN, question)
        assert decode_answer(question, encode_answer(answer)) == answer, question
    assert scene.ask(ANN, q.WhichExist(numbers=(ANNS, 99))) == (ANNS,)
    assert scene.ask(ANN, q.CountWaiting(queue="default")) == 2
    assert [claims.node for claims in scene.ask(ANN, q.ReadClaims(number=ANNS))] == ["n1"]
    assert len(scene.ask(ANN, q.ReadTasks(number=ANNS)).tasks) == 4
    pointers = (Pointer(sub=ANNS, index=0), Pointer(sub=BENS, index=0), Pointer(sub=99, index=0))
    assert [one.fate for one in scene.ask(ANN, q.ReadFates(pointers=pointers))] == ["open", "denied", "gone"]


def test_a_user_reads_and_orders_his_own_and_an_operator_everything(scene: Scene) -> None:
    orders: list[Callable[[int], Question[Any]]] = [
        lambda number: q.ReadRecord(number=number),
        lambda number: q.ReadTasks(number=number),
        lambda number: q.ReadFragments(number=number),
        lambda number: q.CountFragments(number=number),
        lambda number: q.WhichExist(numbers=(number,)),
        lambda number: q.HoldSubmission(number=number),
        lambda number: q.ReleaseSubmission(number=number),
        lambda number: q.UpdateSubmission(number=number, terms=Terms(name="x")),
        lambda number: q.MoveTask(number=number, guid=GUID),
        lambda number: q.CancelTasks(number=number, ranges=((0, 1),)),
        lambda number: q.CancelSubmission(number=number),
        lambda number: q.KillRunning(number=number),
    ]
    before = scene.of(BENS)
    for order in orders:
        with pytest.raises(PermissionDenied, match="belongs to ben"):
            scene.ask(ANN, order(BENS))
        assert scene.of(BENS) == before
        scene.ask(ANN, order(ANNS))
    for order in orders:
        if order(99).__class__ is not q.WhichExist:
            with pytest.raises(NotFound):
                scene.ask(ANN, order(99))
    scene.ask(OLGA, q.HoldSubmission(number=BENS, detail="wait"))
    held = scene.record(BENS)
    assert (held.phase, held.reason, held.by) == (Phase.HELD, "OPERATOR_HOLD", "olga")
    assert "operators alone release it" in scene.ask(BEN, q.ReleaseSubmission(number=BENS)).unchanged
    assert not scene.ask(OLGA, q.ReleaseSubmission(number=BENS)).unchanged


def test_what_concerns_all_is_for_operators(scene: Scene) -> None:
    for question in (
        q.DrainNode(node="n1"),
        q.ResumeNode(node="n1"),
        q.ForgetNode(node="n1"),
        q.VacateNode(node="n1", guid=GUID),
        q.ReadVacated(node="n1", guid=GUID),
        q.ApplySettings(settings=ClusterSettings(), version=0),
    ):
        with pytest.raises(PermissionDenied, match="is for operators"):
            scene.ask(ANN, question)
    scene.ask(OLGA, q.DrainNode(node="n1", reason="fan"))
    drain = scene.ask(ANN, q.ReadDrain(node="n1"))
    assert (drain.user, drain.reason) == ("olga", "fan")
    assert scene.ask(OLGA, q.ResumeNode(node="n1"))
    assert not scene.ask(OLGA, q.ResumeNode(node="n1"))
    read = scene.ask(ANN, q.ReadSettings())
    scene.ask(OLGA, q.ApplySettings(settings=replace(read.settings, retention_us=5, changed_by="ann"), version=read.version))
    assert scene.ask(ANN, q.ReadSettings()).settings.changed_by == "olga"
    with pytest.raises(StateConflict, match="somebody else has changed"):
        scene.ask(OLGA, q.ApplySettings(settings=read.settings, version=read.version))


def test_a_user_sees_his_own_of_what_is_made_of_znodes_and_who_reaches_zookeeper_all(scene: Scene) -> None:
    assert [job.id for job in scene.ask(ANN, q.DeriveJobs())] == [ANNS]
    assert [job.id for job in scene.ask(ANN, q.DeriveJobs(ids=(ANNS, BENS)))] == [ANNS]
    assert [job.id for job in scene.ask(OLGA, q.DeriveJobs())] == [ANNS, BENS]
    assert [job.id for job in scene.as_(ANN, is_direct=True).ask(q.DeriveJobs(), timeout_s=10)] == [ANNS, BENS]
    with pytest.raises(NotFound):
        scene.ask(ANN, q.DeriveExplain(number=BENS))
    assert set(scene.ask(ANN, q.DeriveStatus(zookeeper={}, store={})).users) <= {"ann"}


def test_tasks_are_cancelled_and_it_is_said_which_had_ended(scene: Scene) -> None:
    told = scene.ask(ANN, q.CancelTasks(number=ANNS, ranges=((0, 1), (3, 9)), detail="no"))
    assert (told.ended, told.before) == (((0, 1), (3, 1)), ())
    again = scene.ask(ANN, q.CancelTasks(number=ANNS, ranges=((0, 1),)))
    assert again.ended == ()
    assert again.before == ((0, 1, "CANCELLED"),)
    assert len(scene.coordinator.children(paths.inbox_node("n1")).result(60) or []) == 1


def test_an_amendment_is_signed_by_who_makes_it_and_only_what_was_shown(scene: Scene) -> None:
    first = scene.ask(ANN, q.UpdateSubmission(number=ANNS, terms=Terms(name="new")))
    assert first.to_sign is not None
    assert scene.record(ANNS).name == "of ann"
    signature = f"{'0' * 32}:{'1' * 128}"
    forged = replace(first.to_sign, terms=Terms(name="other"), signature=signature)
    assert scene.ask(ANN, q.UpdateSubmission(number=ANNS, terms=Terms(name="new"), amendment=forged)).to_sign is not None
    done = scene.ask(ANN, q.UpdateSubmission(number=ANNS, terms=Terms(name="new"), amendment=replace(first.to_sign, signature=signature)))
    assert done.to_sign is None
    record = scene.record(ANNS)
    assert (record.name, record.changes[0].by, record.changes[0].signature) == ("new", "ann", signature)
    assert not scene.ask(ANYBODY, q.UpdateSubmission(number=BENS, terms=Terms(name="open"))).unchanged


def test_an_open_cluster_keeps_named_users_from_others_work_as_a_courtesy(scene: Scene) -> None:
    me = Person(name="ann", is_open=True)
    with pytest.raises(PermissionDenied, match="belongs to ben"):
        scene.ask(me, q.CancelSubmission(number=BENS))
    scene.ask(me, q.ReadRecord(number=BENS))
    scene.ask(Person(name="root", is_open=True), q.HoldSubmission(number=BENS))
    scene.ask(ANYBODY, q.CancelSubmission(number=BENS))


def test_a_right_asks_for_no_owner_where_it_does_not_matter() -> None:
    def never(number: int) -> str:
        raise AssertionError(number)

    for kind, right in RIGHTS.items():
        if right is Right.ANYBODY and kind is not q.PublishCertificate:
            check_asker(ANN, st_example(kind), never)


def st_example(kind: type[Question[Any]]) -> Question[Any]:
    given_fields = {"node": "n1", "queue": "default", "number": 1, "zookeeper": {}, "store": {}, "pointers": (), "key_id": "0" * 32}
    return kind(**{name: given_fields[name] for name in kind.__struct_fields__ if name in given_fields})


# -- hostile ones ---------------------------------------------------------------------------------------------------------------


TEXTS = st.sampled_from(["", "n1", "default", "ann", "ben", "../config", "a/b", "\0", "x" * 300, GUID, "7", "/subs/0/8"])
TEXTS |= st.text(max_size=40)
NUMBERS = st.sampled_from([ANNS, BENS, 0, -1, 99, 1 << 40, 1 << 63]) | st.integers(-(1 << 63), 1 << 63)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS | st.binary(max_size=40)
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=12)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A message that names a question, and holds in each field what a schema allows, or something else."""
    kind = draw(st.sampled_from(KINDS))
    message: dict[str, Any] = {"ask": draw(st.sampled_from([kind.__name__, kind.__name__, kind.__name__, "Question", 7]))}
    for name in kind.__struct_fields__:
        usual = {
            "number": st.sampled_from([ANNS, BENS, 99]),
            "numbers": st.lists(NUMBERS, max_size=5),
            "ids": st.lists(st.sampled_from([ANNS, BENS]), max_size=3),
            "ranges": st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=4),
            "guid": st.just(GUID),
            "node": st.just("n1"),
            "pointer": st.fixed_dictionaries({"sub": st.sampled_from([ANNS, BENS]), "index": st.integers(0, 5)}),
            "terms": st.fixed_dictionaries({"name": TEXTS, "priority": NUMBERS}),
            "settings": st.just(msgspec.to_builtins(ClusterSettings())),
            "zookeeper": st.just({}),
            "store": st.just({}),
        }.get(name, ANYTHING)
        if draw(st.integers(0, 9)) or name in {"number", "terms"}:
            message[name] = draw(usual if draw(st.integers(0, 5)) else ANYTHING)
    try:
        data = msgspec.msgpack.encode(message)
    except (OverflowError, TypeError, ValueError):
        data = b"\xc1"
    return data if draw(st.integers(0, 9)) else data[: draw(st.integers(0, len(data)))]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=hostile())
def test_whatever_a_user_sends_others_work_stays_as_it_is(data: bytes) -> None:
    scene = SHARED
    asking, caller = gateway(scene), CALLER
    before, version = scene.of(BENS), scene.ask(OLGA, q.ReadSettings()).version
    with suppress(RmgrError):
        asking.answer(data, caller, 10.0)
    assert scene.of(BENS) == before
    assert scene.ask(OLGA, q.ReadSettings()).version == version
    assert scene.coordinator.children(paths.DRAINS).result(60) == []
    if scene.record(ANNS).phase is not Phase.OPEN:
        scene.ask(OLGA, q.ReleaseSubmission(number=ANNS))


def gateway(scene: Scene) -> Asking:
    context = GatewayContext(
        coordinator=scene.coordinator, store=scene.store, log=structlog.get_logger(), bounds=Bounds(), owner_of=owner_of(scene)
    )
    return Asking(context)


CALLER = Caller(identity=Identity(name="ann", role=Role.USER, cluster="c", key_id="0" * 32))
SHARED = Scene()


def owner_of(scene: Scene) -> Callable[[int], str | None]:
    return {ANNS: "ann", BENS: "ben"}.get


def test_what_a_user_leaves_beside_his_submissions_is_bounded(scene: Scene) -> None:
    asking = gateway(scene)
    most = MOST[paths.REQUESTS][0]
    for at in range(most):
        asking.answer(encode_question(q.MoveTask(number=ANNS, guid=f"{at:032x}")), CALLER, 10.0)
    with pytest.raises(LimitReached, match="requests to the leader"):
        asking.answer(encode_question(q.MoveTask(number=ANNS, guid="f" * 32)), CALLER, 10.0)
    assert len(scene.coordinator.children(paths.REQUESTS).result(60) or []) == most
