"""Questions on a stream: answers and errors arrive unchanged, long ones in pieces, and clients leave a dead gateway for the next."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
import structlog

from rmgr.adapters.access.auth import Caller, rebuild
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway.talk import Talks
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.zookeeper.session import LateAnswer
from rmgr.client.submission.engine import engine_through
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.talking import Asking, Desk
from rmgr.daemons.gateway.values import GatewayContext, Owners
from rmgr.errors import CoordinationUnavailable, NotConnected, NotFound, RequestTooLarge, StateConflict, Throttled, Unavailable, UsageError
from rmgr.model.base import Capacity
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.queue import ClusterSettings, UserLimits
from rmgr.model.submission import Command, Submission, Work
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime import machine
from rmgr.submitter import messages as m
from rmgr.submitter import questions as q
from rmgr.submitter.direct import DirectWork, Submitter
from rmgr.submitter.port import Order, Submitted, prepared
from rmgr.submitter.questions import MAX_QUESTION_BYTES, encode_question
from rmgr.submitter.remote import RemoteAnswers
from rmgr.submitter.thread import SubmitterThread
from rmgr.v1 import work_pb2, work_pb2_grpc
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_store import MemoryStore
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually, stand_still


class Place:
    """A cluster in memory, and gateways of it in this process."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator(MemoryTree())
        self.store = MemoryStore()
        bootstrap(self.coordinator)
        self.bounds = Bounds()
        self.context = GatewayContext(
            coordinator=self.coordinator, store=self.store, log=structlog.get_logger(), bounds=self.bounds,
            owner_of=Owners(self.coordinator, self.store),
        )  # fmt: skip
        self.asking = Asking(self.context)
        self.thread = SubmitterThread()
        self.submitter = Submitter(self.thread, self.coordinator, self.store)
        self.thread.start()
        self.desks: list[Desk] = []
        self.servers: list[RpcServer] = []
        self.clients: list[RemoteAnswers] = []

    def gateway(self, answer: Callable[[bytes, Caller, float], bytes] | None = None) -> RpcServer:
        server = RpcServer("127.0.0.1:0")
        count = lambda *_: None  # noqa: E731
        desk = Desk(self.context, self.submitter, answer or self.asking.answer, None)
        server.add_generic(Talks(desk.talker, most=100, is_revoked=lambda _: False, bounds=self.bounds, count=count).handler)
        server.start()
        self.desks.append(desk)
        self.servers.append(server)
        return server

    def client(self, *endpoints: str) -> RemoteAnswers:
        made = RemoteAnswers(",".join(endpoints), credentials=None, user="ann")
        self.clients.append(made)
        return made

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop(0)
        for desk in self.desks:
            desk.close()
        self.thread.stop(10.0)


def said(endpoint: str, data: bytes, times: int = 1) -> Exception | None:
    """What is told to whoever asks this, so many times at once."""
    over = threading.Event()

    def words() -> Iterator[work_pb2.Words]:
        yield work_pb2.Words(words=[m.encode(m.Ask(7, data, 60_000))] * times)
        over.wait(60)

    with grpc.insecure_channel(endpoint) as channel:
        answer = m.read_gateway(next(work_pb2_grpc.WorkStub(channel).Talk(words())).words[0])
        over.set()
    assert isinstance(answer, m.Answer)
    assert answer.id == 7
    return answer.fault.error() if answer.fault is not None else None


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_answers_and_errors_arrive_as_they_were(place: Place) -> None:
    client = place.client(place.gateway().endpoint)
    meta = client.ask(q.ReadMeta(), timeout_s=60)
    assert meta.cluster_id
    read = client.ask(q.ReadSettings(), timeout_s=60)
    assert read.settings == ClusterSettings()
    with pytest.raises(NotFound, match="there is no submission 42") as told:
        client.ask(q.ReadRecord(number=42), timeout_s=60)
    assert told.value.hint.startswith("rmgr jobs -a")
    client.ask(q.ApplySettings(settings=read.settings, version=read.version), timeout_s=60)
    with pytest.raises(StateConflict, match="somebody else has changed"):
        client.ask(q.ApplySettings(settings=read.settings, version=read.version), timeout_s=60)


def test_expected_questions_travel_together_and_their_answers_serve_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def answer(data: bytes, caller: Caller, timeout_s: float) -> bytes:
        asked.append(data)
        return place.asking.answer(data, caller, timeout_s)

    client = place.client(place.gateway(answer).endpoint)
    client.expect(q.ReadSettings(), q.ReadMeta(), q.ReadRecord(number=42))
    eventually(lambda: len(asked) == 3)
    assert client.ask(q.ReadMeta(), timeout_s=60).cluster_id
    assert client.ask(q.ReadSettings(), timeout_s=60).settings == ClusterSettings()
    with pytest.raises(NotFound, match="there is no submission 42"):
        client.ask(q.ReadRecord(number=42), timeout_s=60)
    assert len(asked) == 3
    client.ask(q.ReadMeta(), timeout_s=60)
    client.expect(q.ReadMeta())
    eventually(lambda: len(asked) == 5)
    now_s = time.monotonic()
    monkeypatch.setattr(machine, "monotonic", lambda: now_s + 5.1)  # too old
    client.ask(q.ReadMeta(), timeout_s=60)
    assert len(asked) == 6


def test_a_client_that_stood_still_hears_what_was_said_meanwhile(place: Place) -> None:
    def answer(data: bytes, caller: Caller, timeout_s: float) -> bytes:
        stand_still(4)
        return place.asking.answer(data, caller, timeout_s)

    assert place.client(place.gateway(answer).endpoint).ask(q.ReadMeta(), timeout_s=3.0).cluster_id


def test_a_gateway_whose_zookeeper_answered_too_late_is_asked_again(place: Place) -> None:
    """Clients know errors by the classes of rmgr.errors alone, and this is derived from one."""
    errors = [LateAnswer("ZooKeeper has not answered within 1s")]

    def answer(data: bytes, caller: Caller, timeout_s: float) -> bytes:
        if errors:
            raise errors.pop()
        return place.asking.answer(data, caller, timeout_s)

    assert place.client(place.gateway(answer).endpoint).ask(q.ReadMeta(), timeout_s=60).cluster_id
    assert not errors


def test_a_submission_whose_client_stood_still_meanwhile_is_not_called_unknown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = DirectWork.submit

    def slow(work: DirectWork, order: Order, *, timeout_s: float, is_repeat: bool = False) -> Submitted:
        stand_still(4)
        return submit(work, order, timeout_s=timeout_s, is_repeat=is_repeat)

    monkeypatch.setattr(DirectWork, "submit", slow)
    engine = engine_through(place.client(place.gateway().endpoint), place.store)
    try:
        engine.work.wait_ready(60)
        draft = Submission(id=0, name="n", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
        made = engine.work.submit(prepared(Order(draft=draft, is_owned=True)), timeout_s=3.0)
        assert engine.work.read(made.submission.id, timeout_s=60).submission == made.submission
    finally:
        engine.close(timeout_s=10.0)


def test_a_long_answer_comes_in_pieces(place: Place) -> None:
    for at in range(6000):
        name, has = f"n{at}", Capacity(cores=4, memory_bytes=0)
        node = NodeRecord(node=name, incarnation=1, state=NodeState.UP, guid="g" * 32, capacity=has, reason="x" * 700)
        multi = Multi(name="TEST", ops=(Create(paths.node(name), encode_record(node)),), proof=Exists(paths.node(name)))
        assert isinstance(place.coordinator.commit(multi).result(60), Committed)
    nodes = place.client(place.gateway().endpoint).ask(q.ReadNodes(), timeout_s=60)
    assert len(nodes) == 6000  # 5 MiB, above what one message of gRPC holds
    assert {node.reason for node in nodes} == {"x" * 700}


def test_what_is_no_question_is_refused_with_words(place: Place) -> None:
    endpoint = place.gateway().endpoint
    for data in (b"", b"\xc1", b"\x80", b"\x81\xa3ask\xa4What", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000):
        error = said(endpoint, data)
        assert isinstance(error, UsageError)
        assert "a question" in error.message
    assert isinstance(said(endpoint, b"x" * (MAX_QUESTION_BYTES + 1)), RequestTooLarge)


def test_who_asks_too_much_is_slowed_down_and_then_refused(place: Place) -> None:
    place.bounds.limits = UserLimits(requests_per_s=25)
    client = place.client(place.gateway().endpoint)
    began = time.monotonic()
    for _ in range(75):
        client.ask(q.WhoLeads(), timeout_s=60)
    assert time.monotonic() - began > 1.0, "he may ask fifty times at once"
    with pytest.raises(grpc.RpcError) as failed:
        for _ in range(100):
            said(client.endpoint, encode_question(q.WhoLeads()), times=100)
    assert isinstance(error := rebuild(failed.value, ""), Throttled)
    assert "requests_per_s" in error.message
    client.ask(q.WhoLeads(), timeout_s=60)  # it is tried again until it is his turn


def test_a_gateway_that_dies_is_left_for_the_next_one(place: Place) -> None:
    first, second = place.gateway(), place.gateway()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        deaf = f"127.0.0.1:{nobody.getsockname()[1]}"
    client = place.client(deaf, first.endpoint, second.endpoint)
    for server in (first, None):
        for _ in range(5):
            assert client.ask(q.WhoLeads(), timeout_s=60) == q.Leadership()
        if server is not None:
            server.stop(0)
    second.stop(0)
    with pytest.raises(Unavailable):
        client.ask(q.WhoLeads(), timeout_s=0.5)


def test_what_was_closed_says_so_at_once(place: Place) -> None:
    client = place.client(place.gateway().endpoint)
    client.ask(q.WhoLeads(), timeout_s=60)
    client.close()
    began = time.monotonic()
    with pytest.raises(NotConnected, match="closed"):
        client.ask(q.WhoLeads(), timeout_s=600)
    assert time.monotonic() - began < 60


class Breaking:
    """Ends the call after it has carried out what was asked, as a gateway that dies does."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.server: RpcServer | None = None
        self.asked = threading.Event()

    def answer(self, data: bytes, caller: object, timeout_s: float) -> bytes:
        self.place.asking.answer(data, caller, timeout_s)  # type: ignore[arg-type]
        self.asked.set()
        assert self.server is not None
        self.server.stop(0)
        raise grpc.RpcError


def test_an_order_whose_answer_was_lost_is_given_again_but_for_new_settings(place: Place) -> None:
    for question in (q.DrainNode(node="n1", reason="fan"), q.ApplySettings(settings=ClusterSettings(), version=0)):
        breaking = Breaking(place)
        breaking.server = place.gateway(breaking.answer)
        client = place.client(breaking.server.endpoint)
        client._gateways._at = 0
        client._gateways.endpoints = (breaking.server.endpoint, place.gateway().endpoint)
        if question.repeats:
            client.ask(question, timeout_s=60)
        else:
            with pytest.raises(CoordinationUnavailable, match="it is not known whether ApplySettings was carried out"):
                client.ask(question, timeout_s=60)
        assert breaking.asked.is_set()
    drain = place.client(place.gateway().endpoint).ask(q.ReadDrain(node="n1"), timeout_s=60)
    assert (drain.reason, drain.user) == ("fan", "ann")
