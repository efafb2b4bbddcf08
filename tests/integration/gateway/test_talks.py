"""Streams between clients and gateways survive gateways that die or fall silent, clients that hang, and crowds; a gateway's own session."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import structlog

from rmgr.adapters.access.auth import USER_KEY
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.gateway import talk
from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import NodeClient
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi, Set
from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.gateway.calls import GatewayMetrics
from rmgr.daemons.gateway.main import SessionWatch
from rmgr.errors import (
    CoordinationUnavailable,
    InvalidRecord,
    LimitReached,
    PermissionDenied,
    QueueFull,
    RmgrError,
    Throttled,
    VersionMismatch,
    WrongCluster,
)
from rmgr.model.node import Meta
from rmgr.model.queue import UserLimits
from rmgr.procedures.bootstrap import bootstrap
from rmgr.v1 import work_pb2 as pb
from rmgr.v1 import work_pb2_grpc
from tests.harness.fair_time import FairTimer
from tests.harness.memory import MemoryCoordinator
from tests.harness.talks import TalkClient, TalkServer, refusing
from tests.harness.waiting import eventually


class Town:
    """Gateways, and clients of them; all ended by `close`."""

    def __init__(self) -> None:
        self.servers: list[TalkServer] = []
        self.clients: list[TalkClient | Raw] = []

    def gateway(self, *args: Any, **options: Any) -> TalkServer:
        self.servers.append(TalkServer(*args, **options))
        return self.servers[-1]

    def client(self, *servers: TalkServer) -> TalkClient:
        made = TalkClient(*(server.endpoint for server in servers))
        self.clients.append(made)
        return made

    def raw(self, server: TalkServer, user: str = "raw") -> Raw:
        made = Raw(server, user)
        self.clients.append(made)
        return made

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop(0.2)


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


class Raw:
    """A client that says what it likes, when it likes, and reads when it likes."""

    def __init__(self, server: TalkServer, user: str) -> None:
        self._channel = grpc.insecure_channel(server.endpoint, options=(("grpc.use_local_subchannel_pool", 1),))
        self._more: list[Any] = []
        self._news = threading.Condition()
        self._over = False
        self.call = work_pb2_grpc.WorkStub(self._channel).Talk(self._messages(), metadata=((USER_KEY, user),))

    def _messages(self) -> Iterator[Any]:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._more or self._over, 30)
                if not self._more:
                    return
                message = self._more.pop(0)
            yield message

    def say(self, *words: bytes) -> None:
        with self._news:
            self._more.append(pb.Words(words=words))
            self._news.notify()

    def heard(self) -> list[bytes]:
        """The words of the next message."""
        return list(next(self.call).words)

    def is_served(self) -> bool:
        self.say(b"hello")
        try:
            return self.heard() == [b"hello"]
        except grpc.RpcError:
            return False

    def close(self) -> None:
        with self._news:
            self._over = True
            self._news.notify()
        self.call.cancel()
        self._channel.close()


def server_of(client: TalkClient, *servers: TalkServer) -> TalkServer:
    return next(server for server in servers if server.endpoint == client.link.endpoint)


# -- gateways that die, or stop, or say nothing ------------------------------------------------------------------------------------


def test_words_come_back_in_their_order_however_many_and_large(town: Town) -> None:
    client = town.client(town.gateway())
    client.reaches(b"hello")
    words = [b"%d" % at for at in range(2000)] + [os.urandom(1 << 20) for _ in range(8)] + [b"last"]
    before = len(client.heard)
    for word in words:
        client.outbox.say(word)
    eventually(lambda: b"last" in client.heard)
    assert client.heard[before:] == words


def test_the_next_gateway_takes_over(town: Town) -> None:
    first, second = town.gateway(), town.gateway()
    client = town.client(first, second)
    client.reaches(b"one")
    mine = server_of(client, first, second)
    mine.kill()
    client.reaches(b"two")
    assert client.link.endpoint != mine.endpoint
    assert client.downs == client.ups - 1
    eventually(lambda: mine.talkers[0].is_over)


def test_a_gateway_that_is_started_again_at_its_place_is_found(town: Town) -> None:
    first = town.gateway()
    client = town.client(first)
    client.reaches(b"one")
    first.kill()
    town.gateway(listen=first.endpoint)
    client.reaches(b"two")


def test_a_gateway_that_is_asked_to_stop_sends_its_clients_on(town: Town) -> None:
    first, second = town.gateway(), town.gateway()
    client = town.client(first, second)
    client.reaches(b"one")
    mine = server_of(client, first, second)
    mine.talks.stop(30.0)
    assert len(mine.talks) == 0
    client.reaches(b"two")
    assert client.link.endpoint != mine.endpoint


def test_the_end_of_a_client_ends_its_stream_after_its_last_words(town: Town) -> None:
    server = town.gateway()
    client = town.client(server)
    client.reaches(b"one")
    client.outbox.say(b"bye")
    client.close()
    eventually(lambda: server.talkers[0].is_over and not len(server.talks))
    assert client.heard[-1] == b"bye"
    assert client.downs == client.ups


class Mute:
    """Takes streams, and never says a word on them."""

    def __init__(self) -> None:
        self.asked = 0
        method = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=pb.Words.FromString, response_serializer=pb.Words.SerializeToString
        )
        self.rpc = RpcServer("127.0.0.1:0", threads=16)
        self.endpoint = self.rpc.endpoint
        self.rpc.add_generic(grpc.method_handlers_generic_handler("rmgr.v1.Work", {"Talk": method}))
        self.rpc.start()

    def _serve(self, _requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.asked += 1
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait(60)
        yield from ()


def test_a_gateway_that_says_nothing_is_left_for_another_one(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "SILENCE_S", 0.5)
    mute, good = Mute(), town.gateway()
    client = TalkClient(mute.endpoint, good.endpoint)
    town.clients.append(client)
    client.reaches(b"one")
    assert client.link.endpoint == good.endpoint
    mute.rpc.stop(0)


def test_the_only_gateway_is_tried_again_when_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "ALONE_S", 0.5)
    mute = Mute()
    client = TalkClient(mute.endpoint)
    eventually(lambda: mute.asked > 2)
    assert "says nothing" in client.link.last_error
    client.close()
    mute.rpc.stop(0)


def test_no_gateway_is_said_so(town: Town) -> None:
    gone = town.gateway()
    gone.kill()
    client = town.client(gone)
    eventually(lambda: client.link.last_error)
    assert client.link.refusal is None
    assert client.heard == []


# -- refusals ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PermissionDenied, InvalidRecord, LimitReached, VersionMismatch, QueueFull, CoordinationUnavailable])
def test_a_refusal_arrives_as_what_it_is(town: Town, kind: type[RmgrError]) -> None:
    server = town.gateway(refusing(kind("not so", hint="ask")))
    client = town.client(server)

    def is_told() -> bool:
        if client.outbox is not None:
            client.outbox.say(b"word")
        return client.link.last_error == "not so"

    eventually(is_told)
    if kind is not CoordinationUnavailable:  # that one passes
        assert type(client.link.refusal) is kind
        assert client.link.refusal.hint == "ask"
    eventually(lambda: server.counts["refused", kind.__name__])


def test_one_client_too_many_is_turned_away_and_let_in_when_there_is_room(town: Town) -> None:
    server = town.gateway(most=2)
    first, second = town.raw(server, "ann"), town.raw(server, "ben")
    assert first.is_served()
    assert second.is_served()
    third = town.client(server)
    eventually(lambda: isinstance(third.link.refusal, QueueFull))
    assert "2 clients already" in third.link.last_error
    first.close()
    third.reaches(b"one")


def test_a_user_has_so_many_streams(town: Town) -> None:
    server = town.gateway(bounds=Bounds(UserLimits(sessions=2)))
    mine = [town.raw(server, "ann") for _ in range(2)]
    assert all(one.is_served() for one in mine)
    assert not town.raw(server, "ann").is_served()
    assert town.raw(server, "ben").is_served()


def test_a_full_gateway_makes_room_for_who_has_fewer(town: Town) -> None:
    server = town.gateway(most=4)
    his = [town.raw(server, "mallory") for _ in range(3)]
    assert all(one.is_served() for one in his)
    assert town.raw(server, "ann").is_served()
    assert town.raw(server, "ben").is_served()
    assert server.counts["cut", "made room"] == 1
    assert sum(one.is_served() for one in his) == 2


def test_who_opens_streams_too_often_is_refused_slowly(town: Town) -> None:
    server = town.gateway(bounds=Bounds(UserLimits(requests_per_s=20)))
    refused = 0
    began_s = time.monotonic()
    while refused < 3:
        one = town.raw(server, "mallory")
        refused += not one.is_served()
        one.close()
        assert time.monotonic() - began_s < 60
    assert server.counts["refused", Throttled.__name__] >= 3
    assert town.raw(server, "ann").is_served()


def test_who_opens_and_closes_streams_in_a_loop_gets_so_many_a_second_and_nobody_else_fewer(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "OPENED_AT_ONCE", 5.0)
    monkeypatch.setattr(talk, "OPENED_PER_S", 0.5)
    server = town.gateway()
    served = 0
    while not server.counts["refused", Throttled.__name__]:
        one = town.raw(server, "mallory")
        served += one.is_served()
        one.close()
    assert 5 <= served <= 10
    assert town.raw(server, "ann").is_served()
    assert town.client(server).reaches(b"one"), "who was not refused"
    eventually(lambda: town.raw(server, "mallory").is_served(), "he waits, and is let in again")


# -- clients that hang ---------------------------------------------------------------------------------------------------------------


def test_a_silent_client_is_cut_off(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "GONE_S", 3.0)
    server = town.gateway()
    assert town.raw(server).is_served()
    lives = town.client(server)
    lives.reaches(b"one")
    eventually(lambda: server.talkers[0].is_over)  # it pings nobody, as if it were stopped
    assert server.counts["cut", "silent"] == 1
    eventually(lambda: len(server.talks) == 1)
    assert lives.downs == 0


def test_a_gateway_that_stood_still_cuts_nobody_off_for_it(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "GONE_S", 1.7)  # less than it stands still, and more than three pings
    server = town.gateway()
    lives = town.client(server)
    lives.reaches(b"one")
    for _ in range(3):
        with subprocess.Popen(["/bin/sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(2 * talk.LOOK_S)  # it looks at its clients
    lives.reaches(b"two")
    assert lives.downs == 0


def test_a_client_that_reads_nothing_is_not_read_either_and_hurts_nobody(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte is said again to it, of which it takes nothing, and it goes on."""
    monkeypatch.setattr(talk, "STALLED_S", 3.0)
    server = town.gateway()
    stuck = town.raw(server, "mallory")
    word = bytes(64 * 1024)
    for _ in range(2000):
        stuck.say(*[word] * 8)
    other = town.client(server)
    other.reaches(b"one")
    slowest, number = 0.0, 0
    end_s = time.monotonic() + 60
    most = 0
    with FairTimer() as timer:
        while not server.counts["cut", "stalled"]:
            assert time.monotonic() < end_s
            most = max(most, server.bounds.used("mallory").get("held_bytes", 0))
            began_s, number = timer.elapsed_s, number + 1
            other.outbox.say(b"%d" % number)
            eventually(lambda number=number: b"%d" % number in other.heard)
            slowest = max(slowest, timer.elapsed_s - began_s)
    assert slowest < 1.5
    assert most < talk.MOST_UNSENT + (2 << 20)
    eventually(lambda: len(server.talks) == 1)
    assert server.bounds.used("mallory").get("held_bytes", 0) == 0


def test_a_client_that_reads_late_gets_everything(town: Town) -> None:
    server = town.gateway()
    late = town.raw(server)
    words = [b"%6d" % at * 10_000 for at in range(400)]  # 24 MB
    for word in words:
        late.say(word)
    time.sleep(1.0)  # nobody takes what is said
    heard: list[bytes] = []
    while len(heard) < len(words):
        heard += late.heard()
    assert heard == words
    eventually(lambda: server.talkers[0].taken_again > 0)


@pytest.fixture
def server() -> Iterator[RpcServer]:
    made = RpcServer("127.0.0.1:0")
    made.start()
    yield made
    made.stop(0)


@pytest.fixture
def coordinator() -> Iterator[MemoryCoordinator]:
    with MemoryCoordinator() as made:
        yield made


def watch(coordinator: MemoryCoordinator, server: RpcServer) -> SessionWatch:
    log: Any = structlog.get_logger()
    return SessionWatch(coordinator, bootstrap(coordinator), server, GatewayMetrics(), log)


def test_without_zookeeper_it_is_not_healthy(coordinator: MemoryCoordinator, server: RpcServer) -> None:
    watch(coordinator, server)
    with NodeClient(server.endpoint) as client:
        assert client.is_serving()
        coordinator.auto = False
        coordinator.cut()
        assert not client.is_serving()
        coordinator.auto = True
        coordinator.reconnect()
        assert client.is_serving()


def test_a_new_session_with_the_same_cluster_is_fine(coordinator: MemoryCoordinator, server: RpcServer) -> None:
    own = watch(coordinator, server)
    coordinator.expire()
    own.look()
    own.look()


@pytest.mark.parametrize("wiped", [True, False])
def test_another_cluster_ends_the_gateway(coordinator: MemoryCoordinator, server: RpcServer, wiped: bool) -> None:
    own = watch(coordinator, server)
    op = Delete(paths.META) if wiped else Set(paths.META, encode_record(Meta(cluster_id="other", created_us=1)), -1)
    coordinator.commit(Multi(name="T", ops=(op,), proof=Gone("/x"))).result(60)
    own.look()  # the same session: nothing has happened to the ensemble
    coordinator.expire()
    with pytest.raises(WrongCluster, match="was wiped" if wiped else "cluster other"):
        own.look()
