"""No client can take all places of a daemon or gateway: sessions, streams, lines, calls, connections. Each limit is reached on purpose.

Limits are made small for a test, and are what they were after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import open_channel, rebuild
from rmgr.adapters.gateway.store import GatewayStore
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.line import DirectLine, dial
from rmgr.adapters.rpc.server import HANDSHAKE_S
from rmgr.adapters.rpc.services import LeaderClient
from rmgr.errors import LimitReached, RmgrError, Throttled, Unavailable
from rmgr.model.identity import Role
from rmgr.model.queue import UserLimits
from rmgr.submitter import messages as m
from tests.harness.flooded import Flooded, upload
from tests.harness.waiting import eventually
from tests.places import ROOT

MANY = 1024


def _first(stream: Any, endpoint: str) -> Any:
    """What is said first, or why nothing is."""
    try:
        return next(stream).status
    except grpc.RpcError as error:
        return rebuild(error, endpoint)


def test_a_gateway_that_says_nothing_is_named_and_costs_one_test(gateways: Callable[[], Flooded], monkeypatch: pytest.MonkeyPatch) -> None:
    made = gateways()
    monkeypatch.setattr(made, "patience_s", 3.0)
    made.gateway.signal(signal.SIGSTOP)
    with pytest.raises(AssertionError, match=r"(?s)said last: Unavailable.*it was alive") as failed:
        made.set_limits(UserLimits(sessions=7))
    assert "submitter_listens" in str(failed.value)
    assert "most recent call first" in str(failed.value)
    assert gateways() is not made
    gateways().set_limits(UserLimits())
    gateways().works()


@pytest.mark.parametrize("where", ["leader", "Starter", "gateway"])
def test_watchers_of_health_take_no_threads(flooded: Flooded, where: str) -> None:
    endpoint, role = flooded.places[where]
    with open_channel(endpoint, flooded.people["moll"], role, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))) as channel:
        streams = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="")) for _ in range(200)]
        told = [_first(stream, endpoint) for stream in streams]
        # A call of his may be cancelled before it is counted: while four wait for their requests, they give way to others (`WaitingRoom`).
        counted = [one for one in told if not (isinstance(one, Unavailable) and "(cancelled)" in one.message)]
        assert [one for one in counted if not isinstance(one, Throttled)] == [health_pb2.HealthCheckResponse.SERVING] * 2
        with LeaderClient(flooded.leader, credentials=flooded.people["amy"]) as client:
            assert client.is_serving()
            assert client.status().healthy is not None
        flooded.works()
        for stream in streams:
            stream.cancel()


def test_nobody_takes_all_sessions_of_a_gateway(limited: Callable[..., Flooded]) -> None:
    world = limited(sessions=5)
    eventually(lambda: world.used("sessions") == 0, "those of tests before are given back")
    with contextlib.ExitStack() as mine:
        for _ in range(5):
            mine.enter_context(world.client("moll"))
        with pytest.raises(LimitReached, match="moll has reached the limit sessions = 5"):
            world.client("moll")
        assert world.used("sessions") == 5
        world.works()
    eventually(lambda: world.used("sessions") == 0, "they are given back")
    world.client("moll").close()


def test_a_hundred_streams_of_one_user_are_no_matter_to_others(limited: Callable[..., Flooded]) -> None:
    """All of them follow what he has submitted."""
    world = limited()
    eventually(lambda: world.used("sessions") == 0, "those of tests before are given back")
    with contextlib.ExitStack() as opened:
        mine = [opened.enter_context(world.client("moll")) for _ in range(100)]
        assert world.used("sessions") == 100
        number = int(world.rmgr("moll", "submit", "--parsable", "--array", "1-20", "--", "true").stdout)
        for client in mine:
            client.keep(number)
        world.works()
        for client in mine:
            eventually(lambda client=client: sum(len(one.fragments) for one in client.of(m.Fragments)), "each is told")
    eventually(lambda: world.used("sessions") == 0, "they are given back")


def test_logs_that_are_followed_and_ways_to_nodes_are_bounded(limited: Callable[..., Flooded]) -> None:
    from rmgr.adapters.rpc.channels import TARGET_KEY
    from rmgr.v1 import node_pb2, node_pb2_grpc, tunnel_pb2, tunnel_pb2_grpc

    world = limited(streams=2, tunnels=2)
    number = world.rmgr("moll", "submit", "--", "sleep", "600").stdout.split()[-1]
    eventually(lambda: "RUNNING" in world.rmgr("moll", "jobs", number).stdout, "it runs")
    metadata = ((TARGET_KEY, world.node.endpoint),)
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    with open_channel(world.gateway.endpoint, world.people["moll"], Role.SUBMITTER, options) as channel:
        request = node_pb2.LogsRequest(submission=int(number), index=0, follow=True)
        logs = [node_pb2_grpc.NodeStub(channel).Logs(request, metadata=metadata, timeout=60) for _ in range(4)]
        quiet = [iter(lambda: time.sleep(60) or tunnel_pb2.TunnelBytes(), None) for _ in range(4)]
        ways = [tunnel_pb2_grpc.TunnelStub(channel).Open(one, metadata=metadata, timeout=60) for one in quiet]
        refused = grpc.StatusCode.RESOURCE_EXHAUSTED
        eventually(lambda: [call.code() for call in logs + ways if call.done()] == [refused] * 4, "some are refused")
        told = [call.details() for call in logs + ways if call.done()]
        assert any("streams = 2" in words for words in told)
        assert any("tunnels = 2" in words for words in told)
        assert (world.used("streams"), world.used("tunnels")) == (2, 2)
        for call in logs + ways:
            call.cancel()
    eventually(lambda: (world.used("streams"), world.used("tunnels")) == (0, 0), "they are given back")
    world.rmgr("moll", "cancel", number)


def test_nobody_takes_all_direct_lines_of_a_starter(limited: Callable[..., Flooded]) -> None:
    world = limited(lines=2)
    loop = Loop("lines", on_crash=lambda error: pytest.fail(repr(error)))

    def call(user: str) -> DirectLine:
        ends = {"on_message": lambda _line, _message: None, "on_end": lambda _line: None}
        return dial(world.node.line, credentials=world.people[user], key_id=world.node.key_id, loop=loop, timeout_s=30, **ends)

    mine: list[DirectLine] = []
    try:
        # The Starter takes the limit up in its own time: lines that it gave before count.
        eventually(lambda: mine.append(call("moll")) or sum(line.is_open for line in mine) < len(mine), "he is refused")
        for line in mine[2:]:
            line.close()
        eventually(lambda: len([line for line in mine if line.is_open]) <= 2, "no more than two are his")
        refused = call("moll")
        eventually(lambda: not refused.is_open, "he gets no other")
        hers = call("amy")
        world.works()
        assert hers.is_open
        assert any(line.is_open for line in mine)
    finally:
        for line in mine:
            line.close()
        loop.close()


def test_nobody_takes_all_calls_of_a_gateway(limited: Callable[..., Flooded]) -> None:
    world = limited(calls=2)
    clients = [GatewayStore(world.gateway.endpoint, credentials=world.people["moll"]) for _ in range(3)]
    go_on, begun = threading.Event(), [threading.Event() for _ in range(2)]
    value = os.urandom(10_000_000)

    def slowly(begins: threading.Event) -> Iterator[bytes]:
        yield value[:9_000_000]
        begins.set()
        go_on.wait(60)
        yield value[9_000_000:]

    def put(at: int) -> None:
        with contextlib.suppress(RmgrError):
            clients[at].put(upload(value), slowly(begun[at]), timeout_s=60)

    def refused() -> bool:
        """Clients try again what is over in a moment, and say in the end what they were told last, or that nobody answered."""
        try:
            return clients[2].get(upload(b"none"), timeout_s=3.0) is not None
        except RmgrError as error:
            return "moll has reached the limit calls = 2" in error.message

    threads = [threading.Thread(target=put, args=(at,)) for at in range(2)]
    try:
        for thread in threads:
            thread.start()
        assert all(begins.wait(60) for begins in begun)
        eventually(refused, "he is refused")
        world.works()
        go_on.set()
        for thread in threads:
            thread.join(60)
        eventually(lambda: clients[2].get(upload(value)) is not None, "they are given back")
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)
        for client in clients:
            client.close()


def test_nobody_takes_all_calls_of_a_leader(limited: Callable[..., Flooded]) -> None:
    from rmgr.v1 import leader_pb2, leader_pb2_grpc

    world = limited(calls=1)
    with open_channel(world.leader, world.people["moll"], Role.WATCHDOG, OPTIONS) as channel:
        stub = leader_pb2_grpc.LeaderStub(channel)

        def refused() -> list[str]:
            asked = [stub.Jobs.future(leader_pb2.JobsRequest(), timeout=30) for _ in range(64)]
            return [call.details() for call in asked if call.exception(60) is not None]

        eventually(lambda: any("moll has reached the limit calls = 1" in words for words in refused()), "he is refused")
        world.works()


#: Methods of each daemon that a user may call, and that take one request.
ASKED = {
    "leader": ["/grpc.health.v1.Health/Check", "/rmgr.v1.Leader/Status", "/rmgr.v1.Leader/Jobs"],
    "Starter": ["/grpc.health.v1.Health/Check", "/rmgr.v1.Node/Stats", "/rmgr.v1.Node/Logs"],
    "gateway": ["/grpc.health.v1.Health/Check", "/rmgr.v1.Store/GetMany", "/rmgr.v1.Store/PutRows", "/rmgr.v1.Store/Usage"],
}


@pytest.mark.parametrize("where", ["leader", "Starter", "gateway"])
def test_calls_whose_request_never_comes_hold_no_thread_that_others_need(flooded: Flooded, where: str) -> None:
    endpoint, role = flooded.places[where]
    words = [endpoint, str(role), str(flooded.people["moll"].directory), "3", "256", *ASKED[where]]
    command = [sys.executable, "-m", "tests.harness.silent_calls", *words]
    attacker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "sent\n"
        with open_channel(endpoint, flooded.people["amy"], role, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for _ in range(20):  # the attacker goes on beside it
                assert check(health_pb2.HealthCheckRequest(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
        with LeaderClient(flooded.leader, credentials=flooded.people["amy"], timeout_s=20) as client:
            assert client.status().healthy is not None
        flooded.works()
        assert attacker.poll() is None
    finally:
        attacker.kill()
        attacker.communicate()


@pytest.mark.parametrize("where", ["leader", "Starter", "gateway", "line"])
def test_connections_that_say_nothing_hold_nothing_and_nobody_up(flooded: Flooded, where: str) -> None:
    endpoint = flooded.node.line if where == "line" else flooded.places[where][0]
    host, _, port = endpoint.rpartition(":")
    idle: list[socket.socket] = []
    try:
        for _ in range(MANY):
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection((host, int(port)), 10))
                if len(idle) % 2:
                    idle[-1].send(b"\x16\x03\x01\x02\x00")  # the beginning of a hello
        assert len(idle) > MANY * 0.9
        flooded.works()

        def are_gone() -> bool:
            return sum(map(_is_gone, idle)) > len(idle) * 0.98

        eventually(are_gone, "the daemon has ended them", within_s=12 * HANDSHAKE_S)
    finally:
        for sock in idle:
            sock.close()


def test_handshakes_that_fail_fill_no_log(flooded: Flooded) -> None:
    host, _, port = flooded.node.endpoint.rpartition(":")
    log = flooded.cluster.log_file("n1")
    before = log.stat().st_size
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 10) as junk:
            junk.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while junk.recv(1000):
                pass
    flooded.works()
    assert log.stat().st_size - before < 20_000


def _is_gone(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(100) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
