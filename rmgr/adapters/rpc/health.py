"""The health service of a daemon (grpc.health.v1). Watching holds a thread, so few watch at once, and asking never waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import caller_of
from rmgr.adapters.access.errors import fail
from rmgr.errors import QueueFull, Throttled

#: Streams of `Watch` at once, of all peers and of one: health is asked for, or read as `/healthz`.
MAX_WATCHERS, OF_ONE = 8, 2
_LOOK_S = 1.0


class Health(health_pb2_grpc.HealthServicer):
    """Health of the whole daemon (service ""). Thread-safe."""

    def __init__(self) -> None:
        self._status = health_pb2.HealthCheckResponse.NOT_SERVING
        self._changed = threading.Condition()
        self._watchers: list[str] = []
        self._ended = False

    def set(self, healthy: bool) -> None:
        """Never waits for who watches."""
        with self._changed:
            if not self._ended:
                self._status = health_pb2.HealthCheckResponse.SERVING if healthy else health_pb2.HealthCheckResponse.NOT_SERVING
                self._changed.notify_all()

    def end(self) -> None:
        """NOT_SERVING from now on; streams end."""
        self.set(False)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - generated name
        if request.service:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=self._status)

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        peer = self._enter(context)
        try:
            told: int | None = None
            while context.is_active() and not (self._ended and told is not None):
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN if request.service else self._status
                if status != told:
                    told = status
                    yield health_pb2.HealthCheckResponse(status=status)
                with self._changed:
                    if not self._ended and (request.service or self._status == told):
                        self._changed.wait(_LOOK_S)
        finally:
            with self._changed:
                self._watchers.remove(peer)

    def _enter(self, context: grpc.ServicerContext) -> str:
        """Who watches, once he is counted; else the call ends, by an exception."""
        identity = caller_of(context).identity
        peer = f"{identity.role} {identity.name}" if identity is not None else context.peer().rpartition(":")[0]
        error: QueueFull | None = None
        with self._changed:
            if self._watchers.count(peer) >= OF_ONE:
                error = Throttled(f"{peer} watches the health of this daemon {OF_ONE} times already", hint="ask (Check), or read /healthz")
            elif len(self._watchers) >= MAX_WATCHERS:
                error = QueueFull(f"{MAX_WATCHERS} clients watch the health of this daemon already", hint="ask (Check), or read /healthz")
            else:
                self._watchers.append(peer)
        if error is not None:
            fail(context, error)
        return peer
