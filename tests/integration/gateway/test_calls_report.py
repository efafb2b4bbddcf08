"""A gateway reports all its servers to the leader over real gRPC, each once, with interfaces of any size."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import structlog

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.calls.links import ServerLink
from rmgr.adapters.rpc.channels import MAX_MESSAGE_BYTES
from rmgr.adapters.rpc.metaserver import MetaserverClient, handler_of
from rmgr.adapters.rpc.server import RpcServer
from rmgr.daemons.gateway.calls import LEADER_S, Calls, GatewayMetrics
from rmgr.daemons.service.metaserver import Metaserver
from rmgr.errors import UsageError
from rmgr.model.interface import ALL_BYTES, LENGTHS, encode_interface, interface_of
from rmgr.model.servers import GatewayReport, Pick, PickRequest, ReportAnswer, ServersView
from rmgr.v1 import calls_pb2 as pb
from tests.harness.played_server import PlayedServer
from tests.harness.waiting import eventually

SERVERS = 17
_ARGUMENTS = [f"in {'a' * 55}{number:03} float64[n]" for number in range(60)]


def _function(number: int) -> str:
    table = {"name": f"f{number:04}", "version": 1, "arguments": _ARGUMENTS, "operations": "n"}
    return encode_interface(interface_of(table, "the test"))


@cache
def functions() -> tuple[str, ...]:
    """As many as a server may offer."""
    return tuple(map(_function, range(ALL_BYTES // len(_function(0)))))


@dataclass
class Leader:
    """A metaserver where gateways find it. reports: bytes of functions in each."""

    epoch: int
    reports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meta = Metaserver(lambda: time.monotonic_ns() // 1000, epoch=self.epoch)
        self.server = RpcServer("127.0.0.1:0", threads=8)
        self.server.add_generic(handler_of(self))
        self.server.start()

    def report(self, report: GatewayReport) -> ReportAnswer:
        self.reports.append(sum(len(text) for server in report.servers for text in server.functions))
        return self.meta.report(report)

    def pick(self, asked: PickRequest) -> Pick:
        return self.meta.pick(asked)

    def servers(self, name: str) -> ServersView:
        return self.meta.servers(name)

    def known(self) -> int:
        """Servers that it can send calls to."""
        return sum(len(server.functions) == len(functions()) for server in self.meta.servers().servers)


class Routes:
    """To whoever leads."""

    def __init__(self, leader: Leader) -> None:
        self.now = leader

    def leader(self, _wanted: str) -> str:
        return self.now.server.endpoint

    def lost(self, endpoint: str) -> None: ...
    def count(self, what: str, kind: str, amount: float = 1) -> None: ...


@pytest.fixture
def leaders() -> Iterator[list[Leader]]:
    made = [Leader(1), Leader(2)]
    yield made
    for leader in made:
        leader.server.stop()


def test_servers_with_the_largest_interfaces_are_all_reported_and_each_interface_once_to_a_leader(leaders: list[Leader]) -> None:
    assert SERVERS * sum(map(len, functions())) > MAX_MESSAGE_BYTES
    routes: Any = Routes(leaders[0])
    calls = Calls(
        routes,
        GatewayMetrics(),
        structlog.get_logger(),
        site="here",
        refresh_s=1.0,
        ask=lambda endpoint: MetaserverClient(endpoint, credentials=None, timeout_s=30 * LEADER_S),
    )
    door = RpcServer("127.0.0.1:0", threads=96)
    door.add_generic(calls.relay.handler)
    door.start()
    calls.start(door.endpoint)
    servers = [PlayedServer(door.endpoint, f"s{number}", functions=functions()) for number in range(SERVERS)]
    try:
        for leader in leaders:
            routes.now = leader
            eventually(lambda leader=leader: leader.known() == SERVERS, lambda leader=leader: f"{leader.known()} known")  # type: ignore[misc]
            told = len(leader.reports)
            eventually(lambda leader=leader, told=told: len(leader.reports) > told + 1, "it reports on")  # type: ignore[misc]
            assert leader.reports[-1] == 0
            assert max(leader.reports) < MAX_MESSAGE_BYTES / 2
            assert sum(leader.reports) == SERVERS * sum(map(len, functions()))
        assert not calls.is_degraded
    finally:
        for server in servers:
            server.close()
        calls.close()
        door.stop()


@pytest.mark.parametrize("size", ["9" * 400, "-" + "9" * 400, "1e999", "-1e999", "NaN", "0.5"])
@pytest.mark.parametrize("name", ["n", LENGTHS])
def test_sizes_that_are_no_numbers_of_bytes_are_refused_or_ignored_and_surprise_nobody(name: str, size: str) -> None:
    routes: Any = None
    calls = Calls(routes, GatewayMetrics(), structlog.get_logger(), site="", refresh_s=1.0, ask=lambda _: routes)
    interface = interface_of({"name": "f", "arguments": ["in n int", "in a float64[n]"], "operations": "n"}, "the test")
    link = ServerLink("s1", "", 7, 1, 1.0, True, (encode_interface(interface),), 1)
    calls.relay.links.all = lambda: [link]  # type: ignore[method-assign]
    asked = pb.CallAsk(function="f", sizes=f'{{"n": 3, "{name}": {size}}}', left_ms=(1 << 64) - 1, bytes=(1 << 64) - 1)
    with suppress(UsageError):
        wanted = calls.understood(Caller(), asked)
        assert 0 <= wanted.bytes <= 10**18
