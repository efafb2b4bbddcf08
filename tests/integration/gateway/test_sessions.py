"""What a session through a gateway lives through: gateways that die, clients that hang, crowds, crooked requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.gateway import server as rpc_gateway_server
from rmgr.adapters.gateway.answers import RequestedCommit
from rmgr.adapters.gateway.convert import multi_to
from rmgr.adapters.gateway.coordinator import GatewayCoordinator
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Set, Unknown
from rmgr.coord.protocol.ports import SessionState
from rmgr.errors import CoordinationUnavailable, NotConnected, PermissionDenied, QueueFull, RmgrError, UsageError
from rmgr.v1 import gateway_pb2 as pb
from rmgr.v1 import gateway_pb2_grpc
from tests.harness.coordinators import States
from tests.harness.fair_time import FairTimer
from tests.harness.gateways import GatewayServer, OpenGate
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree
from tests.harness.waiting import eventually

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class Town:
    """One tree in memory, gateways to it, clients of those; all ended by `close`."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.servers: list[GatewayServer] = []
        self.clients: list[GatewayCoordinator] = []
        self.own = MemoryCoordinator(self.tree)
        self.own.ensure(["/a", "/queue"])

    def gateway(self, gate: OpenGate | None = None, **options: Any) -> GatewayServer:
        made = gate or OpenGate(lambda timeout_s: MemoryCoordinator(self.tree, session_timeout_s=timeout_s))
        self.servers.append(GatewayServer(made, **options))
        return self.servers[-1]

    def client(self, *servers: GatewayServer, session_timeout_s: float = 4.0) -> GatewayCoordinator:
        endpoints = ",".join(server.endpoint for server in servers)
        self.clients.append(GatewayCoordinator.connect(endpoints, session_timeout_s=session_timeout_s))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close(timeout_s=1.0)
        for server in self.servers:
            server.stop(0.2)
        self.own.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


def make(path: str, *, ephemeral: bool = False) -> Multi:
    return Multi(name="TEST", ops=(Create(path, b"1", ephemeral=ephemeral),), proof=Exists(path))


def server_of(client: GatewayCoordinator, *servers: GatewayServer) -> GatewayServer:
    return next(server for server in servers if server.endpoint == client.endpoint)


# -- gateways that die ----------------------------------------------------------------------------------------------------


def test_the_next_gateway_takes_over_with_a_new_session(town: Town) -> None:
    first, second = town.gateway(), town.gateway()
    client = town.client(first, second)
    states, session = States(client), client.session_id
    fired = threading.Event()
    client.get("/a", watch=fired.set).result(60)
    assert isinstance(client.commit(make("/a/mine", ephemeral=True)).result(60), Committed)
    mine = server_of(client, first, second)
    mine.kill()
    states.wait(CONNECTED, SUSPENDED, LOST, CONNECTED)
    assert client.session_id not in {0, session}
    assert client.endpoint != mine.endpoint
    assert fired.is_set()  # watches are told of a lost connection
    eventually(lambda: client.stat("/a/mine").result(60) is None)
    assert isinstance(client.commit(make("/a/mine", ephemeral=True)).result(60), Committed)


def test_a_gateway_that_is_started_again_at_its_place_is_found(town: Town) -> None:
    first = town.gateway()
    client = town.client(first)
    states = States(client)
    first.kill()
    states.wait(CONNECTED, SUSPENDED)
    waiting = client.get("/a", timeout_s=60)
    town.gateway(listen=first.endpoint)
    states.wait(LOST, CONNECTED)
    with pytest.raises(CoordinationUnavailable):  # asked in a session that never came back
        waiting.result(60)
    assert client.get("/a").result(60) is not None


def test_a_commit_whose_gateway_died_before_it_could_tell_is_found_committed(town: Town) -> None:
    slow = OpenGate(lambda timeout_s: MemoryCoordinator(town.tree, auto=False, session_timeout_s=timeout_s))
    first, second = town.gateway(slow), town.gateway()
    client = GatewayCoordinator(first.endpoint, session_timeout_s=4.0)
    town.clients.append(client)
    client.wait_ready(60)
    client._gateways.endpoints = (first.endpoint, second.endpoint)  # from now on there is another one
    commit, read = client.commit(make("/a/x"), timeout_s=60), client.get("/a", timeout_s=60)
    inner = slow.opened[0]
    assert isinstance(inner, MemoryCoordinator)
    eventually(inner.server_step)  # carried out; its answer never leaves the gateway
    first.kill()
    answer = commit.result(60)
    assert isinstance(answer, Committed)
    assert answer.resolved
    with pytest.raises(CoordinationUnavailable):
        read.result(60)


def test_a_commit_that_died_with_its_gateway_is_unknown_and_not_repeated(town: Town) -> None:
    stuck = OpenGate(lambda timeout_s: MemoryCoordinator(town.tree, auto=False, session_timeout_s=timeout_s))
    first, second = town.gateway(stuck), town.gateway()
    client = GatewayCoordinator(first.endpoint, session_timeout_s=4.0)
    town.clients.append(client)
    client.wait_ready(60)
    client._gateways.endpoints = (first.endpoint, second.endpoint)
    commit = client.commit(make("/a/x"), timeout_s=60)
    eventually(lambda: stuck.counts.get(("asked", "commit")))
    first.kill()
    assert isinstance(commit.result(60), Unknown)
    assert town.own.stat("/a/x").result(60) is None


def test_a_gateway_that_is_asked_to_stop_finishes_what_is_under_way(town: Town) -> None:
    first, second = town.gateway(), town.gateway()
    client = town.client(first, second)
    states = States(client)
    commits = [client.commit(make(f"/a/{n}"), timeout_s=60) for n in range(50)]
    server_of(client, first, second).stop()
    states.wait(LOST, CONNECTED)
    answers = [commit.result(60) for commit in commits]
    made = set(town.own.children("/a").result(60) or [])
    for n, answer in enumerate(answers):
        assert isinstance(answer, Committed | Unknown)
        assert isinstance(answer, Committed) == (str(n) in made)


def test_the_end_of_a_client_ends_its_session_at_once(town: Town) -> None:
    client = town.client(town.gateway())
    client.commit(make("/a/e", ephemeral=True)).result(60)
    gone = threading.Event()
    assert town.own.stat("/a/e", watch=gone.set).result(60) is not None
    client.close()
    assert gone.wait(60)
    assert isinstance(client.commit(make("/a/late")).result(60), Unknown)


# -- nobody there ---------------------------------------------------------------------------------------------------------


def test_no_gateway_is_said_so(town: Town) -> None:
    gone = town.gateway()
    gone.kill()
    with pytest.raises(NotConnected, match="no gateway answers at"):
        GatewayCoordinator.connect(gone.endpoint, connect_timeout_s=0.5)


def test_a_gateway_without_zookeeper_is_said_so(town: Town) -> None:
    class Never(MemoryCoordinator):
        def listen(self, listener: Callable[[SessionState], None]) -> None:
            listener(LOST)

    lonely = town.gateway(OpenGate(lambda _: Never(town.tree)))
    with pytest.raises(CoordinationUnavailable, match="gave it no session"):
        GatewayCoordinator.connect(lonely.endpoint, connect_timeout_s=0.5)


def test_a_client_is_sent_on_when_its_gateway_has_lost_zookeeper(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(MemoryCoordinator):
        def listen(self, listener: Callable[[SessionState], None]) -> None:
            listener(LOST)

    monkeypatch.setattr(rpc_gateway_server, "LONELY_S", 0.5)
    lonely, good = town.gateway(OpenGate(lambda _: Never(town.tree))), town.gateway()
    client = GatewayCoordinator(lonely.endpoint, session_timeout_s=0.5)
    town.clients.append(client)
    client._gateways.endpoints = (lonely.endpoint, good.endpoint)
    client.wait_ready(60)
    assert client.endpoint == good.endpoint


# -- rights, limits, crooked requests -------------------------------------------------------------------------------------


class Strict(OpenGate):
    def permit_commit(self, caller: Caller, multi: Multi) -> RequestedCommit:
        raise PermissionDenied(f"{multi.name}: not for {caller.user or 'nobody'}", hint="ask")

    def permit_create(self, caller: Caller, path: str) -> None:
        raise PermissionDenied(f"{path}: no")


def test_a_refusal_arrives_as_what_it_is_and_costs_no_session(town: Town) -> None:
    client = town.client(town.gateway(Strict(lambda _: MemoryCoordinator(town.tree))))
    states = States(client)
    with pytest.raises(PermissionDenied, match=r"TEST: not for \w") as caught:
        client.commit(make("/a/x")).result(60)
    assert caught.value.hint == "ask"
    with pytest.raises(PermissionDenied):
        client.ensure(["/z"])
    assert client.get("/a").result(60) is not None
    assert states.seen == [CONNECTED]


@pytest.mark.parametrize("path", ["a", "a/b", "//a", "/a/", "/a//b", "/a/../b", "/.", "/a\0b"])
def test_a_crooked_path_is_refused(town: Town, path: str) -> None:
    client = town.client(town.gateway())
    for future in (client.get(path), client.children(path), client.stat(path)):
        with pytest.raises(UsageError, match="not the path"):
            future.result(60)
    for multi in (make(path), Multi(name="T", ops=(Create("/a/x"),), proof=Exists(path))):
        with pytest.raises(UsageError, match="not the path"):
            client.commit(multi).result(60)
    assert town.own.children("/a").result(60) == []


def test_one_client_too_many_is_turned_away_and_let_in_when_there_is_room(town: Town) -> None:
    server = town.gateway(most=2)
    first, _second = town.client(server), town.client(server)
    with pytest.raises(QueueFull, match="2 clients already"):
        GatewayCoordinator.connect(server.endpoint, connect_timeout_s=5)
    first.close()
    eventually(lambda: len(server.sessions) == 1)
    assert town.client(server).get("/a").result(60) is not None


def test_a_long_directory_and_a_large_znode_pass(town: Town) -> None:
    names = [f"{n:06d}-{'x' * 150}" for n in range(40_000)]  # 6 MiB, more than a message
    for name in names:  # behind the coordinator's back: so many commits would take their time
        town.tree.create(town.own.session_id, f"/queue/{name}")
    client = town.client(town.gateway())
    found = client.children("/queue", timeout_s=20).result(60)
    assert found is not None
    assert sorted(found) == names
    assert isinstance(client.commit(Multi(name="T", ops=(Set("/a", b"x" * 16384, -1),), proof=Exists("/a"))).result(60), Committed)
    large = client.get("/a").result(60)
    assert large is not None
    assert len(large.data) == 16384


# -- raw clients ----------------------------------------------------------------------------------------------------------


class Raw:
    """A client that sends what it likes and reads when it likes."""

    def __init__(self, server: GatewayServer, timeout_ms: int) -> None:
        self._channel = grpc.insecure_channel(server.endpoint)
        self._go = threading.Event()
        self._more: list[Any] = [pb.Asks(hello=pb.Hello(version=1, session_timeout_ms=timeout_ms, user="raw"))]
        self._news = threading.Condition()
        self._over = False
        self._session: int | None = None
        self._answers: dict[int, Any] = {}
        self.call = gateway_pb2_grpc.GatewayStub(self._channel).Session(self._messages())

    def _messages(self) -> Iterator[Any]:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._more or self._over, 30)
                if not self._more:
                    return
                message = self._more.pop(0)
            yield message

    def send(self, *messages: Any) -> None:
        with self._news:
            self._more += messages
            self._news.notify()

    def session(self) -> int:
        while self._session is None:
            self._hear()
        return self._session

    def answer(self, number: int) -> Any:
        while number not in self._answers:
            self._hear()
        return self._answers.pop(number)

    def _hear(self) -> None:
        for tell in next(self.call).tells:
            if tell.WhichOneof("what") == "session":
                self._session = int(tell.session.session)
            elif tell.WhichOneof("what") == "answer":
                self._answers[tell.answer.id] = tell.answer

    def close(self) -> None:
        with self._news:
            self._over = True
            self._news.notify()
        self.call.cancel()
        self._channel.close()


def test_a_silent_client_loses_its_session_after_its_timeout(town: Town) -> None:
    server = town.gateway()
    raw = Raw(server, timeout_ms=500)
    session = raw.session()
    ask = pb.Ask(id=1, session=session, timeout_ms=5000)
    multi_to(make("/a/e", ephemeral=True), ask.commit)
    raw.send(pb.Asks(asks=[ask]))
    raw.answer(1)
    assert town.own.stat("/a/e").result(60) is not None
    eventually(lambda: town.own.stat("/a/e").result(60) is None)  # it pings nobody, as if it were stopped
    eventually(lambda: len(server.sessions) == 0)
    assert server.gate.counts["cut", "silent"] == 1
    raw.close()


def test_a_request_of_another_session_is_refused(town: Town) -> None:
    raw = Raw(town.gateway(), timeout_ms=4000)
    session = raw.session()
    wrong = pb.Ask(id=1, session=session + 1, timeout_ms=5000)
    multi_to(make("/a/x"), wrong.commit)
    raw.send(pb.Asks(asks=[wrong, pb.Ask(id=2, session=session + 1, timeout_ms=5000, get="/a"), pb.Ask(id=3, session=session)]))
    assert "session" in raw.answer(1).outcome.unknown
    assert raw.answer(2).error.type == "CoordinationUnavailable"
    assert raw.answer(3).error.type == "UsageError"  # asks for nothing
    assert town.own.stat("/a/x").result(60) is None
    raw.close()


def test_a_first_message_that_is_no_hello_ends_the_stream(town: Town) -> None:
    channel = grpc.insecure_channel(town.gateway().endpoint)
    with pytest.raises(grpc.RpcError) as caught:
        next(gateway_pb2_grpc.GatewayStub(channel).Session(iter([pb.Asks(ping=1)])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    channel.close()


def test_a_client_that_reads_nothing_is_not_read_either_and_hurts_nobody(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    # 60,000 reads of 16 KiB are 1 GB of answers; the client takes none of them, and goes on asking.
    monkeypatch.setattr(rpc_gateway_server, "STALLED_S", 2.0)
    town.own.commit(Multi(name="T", ops=(Set("/a", b"x" * 16384, -1),), proof=Exists("/a"))).result(60)
    server = town.gateway()
    raw = Raw(server, timeout_ms=60_000)
    session = raw.session()
    batch = 100
    raw.send(
        *(
            pb.Asks(asks=[pb.Ask(id=1 + number * batch + k, session=session, timeout_ms=60_000, get="/a") for k in range(batch)])
            for number in range(600)
        )
    )
    other = town.client(server)
    slowest = 0.0
    end = time.monotonic() + 60
    with FairTimer() as timer:
        while ("cut", "stalled") not in server.gate.counts:
            assert time.monotonic() < end
            began = timer.elapsed_s
            assert other.get("/a").result(60) is not None
            slowest = max(slowest, timer.elapsed_s - began)
    assert slowest < 1.5
    asked = server.gate.counts["asked", "get"]
    limit = rpc_gateway_server.MAX_UNSENT_BYTES / 16384 + rpc_gateway_server.MAX_ASKS + 10_000  # the other one's reads
    assert asked < limit
    eventually(lambda: len(server.sessions) == 1)
    raw.close()


def test_every_kind_of_error_of_the_tree_arrives_as_its_class(town: Town) -> None:
    class Failing(OpenGate):
        def permit_commit(self, caller: Caller, multi: Multi) -> RequestedCommit:
            raise kinds[int(multi.name)]("told", hint="do this")

    kinds: list[Any] = [PermissionDenied, UsageError, QueueFull, CoordinationUnavailable, RmgrError]
    client = town.client(town.gateway(Failing(lambda _: MemoryCoordinator(town.tree))))
    for number, kind in enumerate(kinds):
        with pytest.raises(RmgrError) as caught:
            client.commit(Multi(name=str(number), ops=(Create("/a/x"),), proof=Exists("/a/x"))).result(60)
        assert (type(caught.value), caught.value.message, caught.value.hint) == (kind, "told", "do this")
