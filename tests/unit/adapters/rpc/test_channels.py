"""Channels to other daemons: kept while they are used, let go when their nodes are no more, never under a call."""

from __future__ import annotations

import gc
import weakref

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.rpc.channels import IDLE_OPTIONS, KEEP_S, OPTIONS, Channels
from rmgr.adapters.rpc.server import RpcServer

ASKED = health_pb2.HealthCheckRequest(service="")


def test_what_is_not_used_is_let_go_and_calls_under_way_go_on() -> None:
    server = RpcServer("127.0.0.1:0")
    server.start()
    now = [1000.0]
    channels = Channels(lambda endpoint: grpc.insecure_channel(endpoint, options=(*OPTIONS, *IDLE_OPTIONS)), clock=lambda: now[0])
    try:
        first = channels.get(server.endpoint)
        followed = health_pb2_grpc.HealthStub(first).Watch(ASKED, timeout=60)
        assert next(followed).status == 1
        for number in range(1, 50):  # nodes that are gone
            channels.get(f"127.0.0.1:{number}")
        assert len(channels) == 50
        now[0] += KEEP_S - 1
        assert channels.get("127.0.0.1:49") is channels.get("127.0.0.1:49")
        now[0] += 2
        channels.get("127.0.0.1:49")
        assert len(channels) == 1
        gone = weakref.ref(first)
        del first
        gc.collect()
        assert gone() is None
        server.set_healthy(False)
        assert next(followed).status == 2  # its channel was let go, and it goes on
        followed.cancel()
        again = channels.get(server.endpoint)
        assert health_pb2_grpc.HealthStub(again).Check(ASKED, timeout=60).status == 2
        channels.forget(server.endpoint)
        assert channels.get(server.endpoint) is not again
    finally:
        channels.close()
        server.stop(0)
    assert len(channels) == 0
