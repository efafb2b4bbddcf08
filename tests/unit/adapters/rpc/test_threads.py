"""A daemon answers again once a machine that had no thread left has some."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.rpc.server import RpcServer


def ask(endpoint: str, results: list[Any]) -> None:
    with grpc.insecure_channel(endpoint, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            results.append(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10).status)
        except grpc.RpcError as error:
            results.append(error)


def test_a_moment_without_threads_does_not_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RpcServer("127.0.0.1:0")
    server.start()
    held = threading.Event()
    started = threading.Thread.start
    refused: list[str] = []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("rpc"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        started(thread)

    try:
        for _ in range(8):  # every thread that there is has something to do
            server._pool.submit(held.wait, 60)
        monkeypatch.setattr(threading.Thread, "start", start)
        answers: list[Any] = []
        askers = [threading.Thread(target=ask, args=(server.endpoint, answers)) for _ in range(5)]
        for asker in askers:
            asker.start()
        end_s = time.monotonic() + 60
        while not refused and time.monotonic() < end_s:
            time.sleep(0.01)
        assert refused
        monkeypatch.undo()
        held.set()
        for asker in askers:
            asker.join(60)
        assert answers == [health_pb2.HealthCheckResponse.SERVING] * 5
    finally:
        held.set()
        monkeypatch.undo()
        server.stop()
