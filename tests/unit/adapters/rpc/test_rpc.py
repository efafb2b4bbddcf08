"""Views, and messages about servers for calls, pass gRPC unchanged, and errors arrive as the class they were."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from rmgr.adapters.rpc.convert import JSON_FIELDS, MESSAGES, from_message, to_message
from rmgr.adapters.rpc.metaserver import CARRIED, MetaserverClient, handler_of
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient, LogPiece, NodeClient, NodeStats, RunningTask, leader_handler, node_handler
from rmgr.adapters.rpc.thin import ThinFailed, ThinLeader
from rmgr.errors import NotFound, Unavailable
from rmgr.model.servers import (
    CallReport,
    Candidate,
    GatewayReport,
    LifeHeard,
    LinkView,
    Pick,
    PickRequest,
    ReportAnswer,
    ServerLoad,
    ServerReport,
    ServersView,
    ServerView,
    TermView,
)
from rmgr.model.states import State
from rmgr.model.views import (
    ClassView,
    ExplainView,
    FaultView,
    HeldView,
    JobView,
    LeaderView,
    NodeView,
    PolicyView,
    PromiseView,
    QueueView,
    ShareView,
    StatusView,
    WhatIfView,
    WhyView,
)
from tests.harness.waiting import stand_still

JOB = JobView(
    id=42, name="x", user="u", queue="default", state=State.RUNNING, exit_code=0, counts={"RUNNING": 3}, nodes=("a", "b"), tasks=3
)
NODE = NodeView(id="n1", state="up", cores=2, cores_used=1, memory_bytes=1 << 40, load=None, features=("gpu",))
QUEUE = QueueView(
    id="q", partition="p", dispatch="pull", policy="", state="open", pending=1, running=2, limits={"max_cores": 4, "state": "open"}
)
CLASS = msgspec.structs.replace(
    QUEUE,
    of_class=ClassView(limits="CPUs <= 8", threshold=20, max_reservations=1, fired=(1, 0, 2), promised=(PromiseView(job="7", cores=4),)),
)
LEADER = LeaderView(id="g", host="h", pid=1, epoch=7, since_us=8, endpoint="e")
STATUS = StatusView(
    healthy=False, leader=LEADER, zookeeper={"ok": True, "ms": 1.5}, store={}, counts={"INITIAL": 1}, nodes={"up": 1}, problems=("p",)
)
EXPLAIN = ExplainView(id="42", state=State.INITIAL, reason="RESOURCES", why=(WhyView(what="node", id="n1", detail="busy"),))
TRIAL = WhatIfView(start_us=5, nodes=(ShareView(node="n1", processes=2), ShareView(node="n2", processes=1)), at_once=True, route="ss8")
HELD = msgspec.structs.replace(QUEUE, held=(HeldView(queue="q", job="42_7", node="n1", cores=2, since_us=1, expected_start_us=2),))
PLACING = msgspec.structs.replace(
    STATUS, policies=(PolicyView(partition="p", policy="easy", faults=(FaultView(policy="x", count=2, error="e"),)),)
)


class Answers:
    def jobs(self, ids, *, ended, user, caller):
        return [msgspec.structs.replace(JOB, id=number) for number in ids or (42,)]

    def nodes(self):
        return [NODE, msgspec.structs.replace(NODE, id="n2", load=0.0)]

    def queues(self):
        return [QUEUE]

    def status(self, *, caller=None):
        return STATUS

    def explain(self, submission, index, *, caller):
        if submission == 1:
            raise NotFound("no submission 1", hint="rmgr jobs -a")
        return msgspec.structs.replace(EXPLAIN, id=f"{submission}_{index}")

    def what_if(self, record):
        return msgspec.structs.replace(TRIAL, reason=record.decode())

    def logs(self, submission, index, *, attempt, stream, follow, offsets, is_active, caller):
        assert is_active()
        yield LogPiece(stream="stdout", data=b"hello\n", offset=offsets[0], attempt=2)
        if submission == 1:
            raise NotFound("gone")
        yield LogPiece(stream="stdout", data=b"", offset=6, attempt=2, ended=True)

    def running(self, submission, *, caller):
        return [RunningTask(submission=submission, index=1, attempt=1, node="n1", started_us=5)]

    def stats(self):
        return [NodeStats(node="n1", cores_used=1, memory_used_bytes=2, running=1, load=0.5)]


@pytest.fixture
def server():
    server = RpcServer("127.0.0.1:0")
    answers = Answers()
    server.add_generic(leader_handler(answers))
    server.add_generic(node_handler(answers))
    server.start()
    yield server
    server.stop()


VIEWS = [JOB, NODE, QUEUE, CLASS, LEADER, STATUS, EXPLAIN, TRIAL, HELD, PLACING]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_a_view_survives_the_wire(view):
    kind = type(view)
    assert view == from_message(kind, MESSAGES[kind].FromString(to_message(view).SerializeToString()))


@pytest.mark.parametrize("kind", [kind for kind in MESSAGES if kind.__module__ == JobView.__module__])
def test_every_field_of_a_view_has_its_field_in_the_message(kind):
    fields = {f"{field.name}_json" if (kind, field.name) in JSON_FIELDS else field.name for field in msgspec.structs.fields(kind)}
    assert fields == {field.name for field in MESSAGES[kind].DESCRIPTOR.fields}


def test_questions_to_the_leader(server):
    with LeaderClient(server.endpoint) as client:
        assert client.is_serving()
        assert [job.id for job in client.jobs((7, 9))] == [7, 9]
        assert [node.load for node in client.nodes()] == [None, 0.0]
        assert client.queues() == [QUEUE]
        assert client.status() == STATUS
        assert client.explain(42, 0).id == "42_0"
        assert client.explain(42).id == "42_None"
        assert client.what_if(b"{}") == msgspec.structs.replace(TRIAL, reason="{}")


def test_without_the_library_the_leader_answers_the_same(server):
    thin = ThinLeader(server.endpoint, timeout_s=30.0, bundle=None)
    many = tuple(range(1, 2501))  # several frames, more than a window
    with LeaderClient(server.endpoint, timeout_s=30.0) as client:
        assert thin.jobs(many) == client.jobs(many)
        assert thin.nodes() == client.nodes()
    assert (thin.queues(), thin.status()) == ([QUEUE], STATUS)
    assert (thin.explain(42, 0).id, thin.explain(42).id) == ("42_0", "42_None")
    for ask in (lambda: thin.explain(1), lambda: thin.jobs(tuple(range(1 << 60, (1 << 60) + 3000)))):  # an error; too long a question
        with pytest.raises(ThinFailed):
            ask()
    assert thin.status() == STATUS  # over another connection
    thin.close()


def test_what_does_not_speak_its_protocol_is_left_to_the_library():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thin = ThinLeader("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=30.0, bundle=None)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(thin.status)
            link = listener.accept()[0]
            with link:
                assert link.recv(1 << 16).startswith(b"PRI * HTTP/2.0")
                link.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            with pytest.raises(ThinFailed):
                asked.result(60)
        silent = ThinLeader("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=0.2, bundle=None)
        with pytest.raises(Unavailable, match="in time"):
            silent.status()
    with pytest.raises(ThinFailed, match="refused"):
        thin.status()


def test_an_answer_that_came_while_the_client_stood_still_counts(server, tmp_path):
    many = tuple(range(1, 6001))  # more than a socket gives at once
    with LeaderClient(server.endpoint, timeout_s=30.0) as client:
        expected = client.jobs(many)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        thin = ThinLeader("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=30.0, bundle=None)
        host, _, port = server.endpoint.rpartition(":")
        asked = pool.submit(thin.jobs, many)
        link = listener.accept()[0]
        with link, socket.create_connection((host, int(port))) as beyond:
            beyond.sendall(link.recv(1 << 20))
            answer = b""
            while b"grpc-status" not in answer:
                answer += beyond.recv(1 << 20)
            link.sendall(answer)
            assert asked.result(60) == expected
        (tmp_path / "answer").write_bytes(answer)
        thin = ThinLeader("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=2.0, bundle=None)
        asked = pool.submit(thin.jobs, many)
        link = listener.accept()[0]
        with link, (tmp_path / "answer").open("rb") as content:
            assert link.recv(1 << 20)
            with subprocess.Popen(["/bin/sh", "-c", "sleep 0.2; exec cat"], stdin=content, stdout=link):
                stand_still(2.5)
            assert asked.result(60) == expected


def test_a_client_that_stood_still_does_not_call_the_leader_silent():
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        thin = ThinLeader("127.0.0.1:{1}".format(*listener.getsockname()), timeout_s=0.5, bundle=None)
        asked = pool.submit(thin.status)
        with listener.accept()[0] as link:
            assert link.recv(1 << 16)
            stand_still(2)
            with pytest.raises(ThinFailed, match="stood still"):
                asked.result(60)


def test_an_error_arrives_as_what_it_was(server):
    with LeaderClient(server.endpoint) as client, pytest.raises(NotFound, match="no submission 1") as caught:
        client.explain(1)
    assert caught.value.hint == "rmgr jobs -a"


def test_live_output_and_its_sudden_end(server):
    with NodeClient(server.endpoint) as client:
        assert [piece.data for piece in client.logs(42, 0, offsets=(3, 0))] == [b"hello\n", b""]
        pieces = client.logs(1, 0, follow=True)
        assert next(pieces).data == b"hello\n"
        with pytest.raises(NotFound, match="gone"):
            next(pieces)
        assert client.running(42)[0].submission == 42
        assert client.stats()[0].load == 0.5


def test_a_daemon_that_is_not_there_is_unavailable(server):
    endpoint = server.endpoint
    server.stop()
    with LeaderClient(endpoint, timeout_s=1.0) as client:
        assert not client.is_serving()
        with pytest.raises(Unavailable, match=r"cannot be reached|in time"):
            client.nodes()


def test_a_host_that_is_not_known_is_told_as_that() -> None:
    with (
        LeaderClient("no-such-host.invalid:7071", timeout_s=20.0) as client,
        pytest.raises(Unavailable, match="cannot be reached: no host of this name is known here"),
    ):
        client.nodes()


LIFE = 2**64 - 1
ASKED = PickRequest(
    gateway="g:1", site="here", function="f@1", operations=2**63, bytes=8, user="u",
    servers=(Candidate(name="s1", life=LIFE, bytes_per_s=1.5),),
)
REPORT = GatewayReport(
    gateway="g:1",
    site="here",
    refresh_us=5,
    servers=(
        ServerReport(
            name="s1", life=LIFE, functions=(b"{}",), load=ServerLoad(running=1, other=0.5),
            answered=(CallReport(function="f@1", operations=7),),
        ),
        ServerReport(name="s2", life=1, state="away"),
    ),
)
ANSWER = ReportAnswer(epoch=3, policy="rr", pipeline="{}", lives=(LifeHeard(name="s1", life=LIFE, heard_ago_us=9, over=True),))
LINK = LinkView(site="here", gateway="g:1", bytes_per_s=1.0, round_trip_s=0.5, age_s=2.0)
SHOWN = ServersView(servers=(ServerView(name="s1", state="open", life=LIFE, links=(LINK,), functions=("f@1",)),), policy="rr", epoch=3)
PICK = Pick(server="s1", life=LIFE, why="it", unknown=("s2",), terms=(TermView(server="s1", load=2.5, note="n"),), degraded=True, took_us=4)


class MetaserverAnswers:
    """Tells what it was asked. stands_s: for how long this process stands still at a pick."""

    def __init__(self) -> None:
        self.picks, self.stands_s = 0, 0.0

    def report(self, report: GatewayReport) -> ReportAnswer:
        assert report == REPORT
        return ANSWER

    def pick(self, asked: PickRequest) -> Pick:
        assert asked == ASKED
        self.picks += 1
        if self.stands_s:
            stand_still(self.stands_s)
        return PICK

    def servers(self, name: str) -> ServersView:
        if name:
            raise Unavailable("this WatchDog does not lead", hint="ask another")
        return SHOWN


@pytest.fixture
def metaserver() -> MetaserverAnswers:
    return MetaserverAnswers()


@pytest.fixture
def client(metaserver: MetaserverAnswers) -> Iterator[MetaserverClient]:
    server = RpcServer("127.0.0.1:0")
    server.add_generic(handler_of(metaserver))
    server.start()
    made = MetaserverClient(server.endpoint, credentials=None, timeout_s=60.0)
    yield made
    made.close()
    server.stop()


def test_questions_and_answers_arrive_whole(client: MetaserverClient) -> None:
    assert (client.report(REPORT), client.pick(ASKED), client.servers()) == (ANSWER, PICK, SHOWN)
    with pytest.raises(Unavailable, match="does not lead") as told:
        client.servers("s1")
    assert told.value.hint == "ask another"


def test_a_pick_is_not_asked_for_again_when_this_process_stood_still(client: MetaserverClient, metaserver: MetaserverAnswers) -> None:
    """The leader would count the call twice, and its caller would wait twice as long."""
    assert client.pick(ASKED) == PICK
    client.timeout_s, metaserver.stands_s = 1.0, 2.0
    with pytest.raises(Unavailable):
        client.pick(ASKED)
    assert metaserver.picks == 2


@pytest.mark.parametrize("kind", CARRIED)
def test_every_field_has_its_field_in_the_message(kind: type[Any]) -> None:
    fields = {field.name for field in CARRIED[kind].DESCRIPTOR.fields} - {"ask"}  # between gateway and server alone
    assert {field.name for field in msgspec.structs.fields(kind)} == fields


@pytest.mark.parametrize("noun", [REPORT, ANSWER, ASKED, PICK, SHOWN], ids=lambda noun: type(noun).__name__)
def test_a_noun_survives_the_wire(noun: Any) -> None:
    kind = type(noun)
    assert noun == from_message(kind, CARRIED[kind].FromString(to_message(noun).SerializeToString()))
