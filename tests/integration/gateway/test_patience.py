"""A client of a gateway that is full of work waits longer each time, and comes in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rmgr.adapters.gateway import link as rpc_gateway_link
from rmgr.adapters.gateway.dial import VERSION
from rmgr.adapters.gateway.link import GatewayLink
from rmgr.adapters.rpc.gateways import Gateways
from rmgr.adapters.rpc.server import RpcServer
from rmgr.v1 import gateway_pb2 as pb

_WELCOME_S = 0.5


class Slow:
    """Says nothing to anybody for longer than a client waits at first."""

    def __init__(self) -> None:
        self.asked = 0
        method = grpc.stream_stream_rpc_method_handler(
            self._serve, request_deserializer=pb.Asks.FromString, response_serializer=pb.Tells.SerializeToString
        )
        self.server = RpcServer("127.0.0.1:0")
        self.server.add_generic(grpc.method_handlers_generic_handler("rmgr.v1.Gateway", {"Session": method}))
        self.server.start()

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.asked += 1
        over = threading.Event()
        context.add_callback(over.set)
        next(requests)
        over.wait(_WELCOME_S * 1.5)
        yield pb.Tells(tells=[pb.Tell(welcome=pb.Welcome(version=VERSION, gateway=self.server.endpoint))])
        over.wait(60)


class Nobody:
    def link_changing(self, *_: object) -> None: ...

    def link_changed(self, *_: object) -> None: ...


def test_who_is_not_welcomed_at_once_waits_longer_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_gateway_link, "_WELCOME_S", _WELCOME_S)
    slow = Slow()
    gateways = Gateways(slow.server.endpoint)
    link = GatewayLink(Nobody(), gateways, session_timeout_s=6.0)  # type: ignore[arg-type]
    link.start()
    try:
        end_s = time.monotonic() + 30
        while not link.is_welcome:
            assert time.monotonic() < end_s, (slow.asked, link.last_error)
            link.check()
            time.sleep(0.02)
        assert slow.asked >= 2
    finally:
        link.end(5.0)
        gateways.close()
        slow.server.stop()
