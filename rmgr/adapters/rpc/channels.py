"""The clients' end of gRPC: how channels are made and kept, a client of one daemon, and a cluster's gateways as one client knows them.

A daemon opens channels to others on first use, and drops those unused for some minutes: nodes come and go, and a daemon
lives for months. A dropped channel is not closed: a call under way still holds it (grpc keeps a channel as long
as it has calls), and its connection ends with the last one.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import USER_KEY, open_channel, rebuild
from rmgr.adapters.identity.credentials import Credentials
from rmgr.errors import UsageError
from rmgr.model.identity import Role

#: Longest message either side accepts: gRPC's own default, kept on purpose; larger things are streamed.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.enable_http_proxy", 0),  # else a proxy for the web is asked for daemons, even on loopback
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # longest attempt to connect: TLS from far away needs several round trips
    ("grpc.max_reconnect_backoff_ms", 1000),
)
#: Metadata of a call through a gateway: the endpoint of the daemon that shall answer it.
TARGET_KEY = "rmgr-endpoint"
#: Seconds by which the end of a call is later than its deadline only if this process stood still.
_STOOD_S = 0.3
#: Seconds after which an unused channel is dropped, and a connection without calls ended.
KEEP_S = 300.0
#: For channels kept here: grpc itself would hold an idle connection for half an hour.
IDLE_OPTIONS: Sequence[tuple[str, Any]] = (("grpc.client_idle_timeout_ms", round(KEEP_S * 1000)),)
#: A separate connection for each purpose, so that a large value does not delay a heartbeat.
_TO_GATEWAYS = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


def answered(method: Callable[..., Any], request: Any, timeout_s: float, metadata: Sequence[tuple[str, str]]) -> Any:
    """Returns the answer of a call that may be repeated. It is made once more if its deadline passed while this process stood still:
    that is no silence of the other end, and gRPC's deadlines do not know it. Raises: grpc.RpcError.
    """
    begun_s = time.monotonic()
    try:
        return method(request, timeout=timeout_s, metadata=metadata)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or time.monotonic() - begun_s < timeout_s + _STOOD_S:
            raise
    return method(request, timeout=timeout_s, metadata=metadata)


class Client:
    """A channel to one endpoint; every call has a deadline, and raises errors of `rmgr.errors`.

    via: endpoint of a gateway that forwards the calls, "" = none. credentials: this client's, None in an open cluster.
    """

    role = Role.WATCHDOG  #: the role that the other end must prove
    stub: Callable[[grpc.Channel], Any] = health_pb2_grpc.HealthStub  #: makes the stub of the service
    repeats = True  #: whether its calls only ask, so that one whose answer was not heard in time may be made again

    def __init__(self, endpoint: str, *, timeout_s: float = 5.0, via: str = "", credentials: Credentials | None = None) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._channel = open_channel(via or endpoint, credentials, Role.SUBMITTER if via else self.role, OPTIONS)
        self._stub = type(self).stub(self._channel)
        self._metadata: tuple[tuple[str, str], ...] = ((TARGET_KEY, endpoint),) if via else ()

    def close(self) -> None:
        """Ends the channel. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            if self.repeats:
                return answered(method, request, self.timeout_s, self._metadata)
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise rebuild(error, self.endpoint) from None

    def is_serving(self) -> bool:
        """Returns whether the daemon's own health service says SERVING within the deadline."""
        try:
            reply = answered(
                health_pb2_grpc.HealthStub(self._channel).Check, health_pb2.HealthCheckRequest(service=""), self.timeout_s, ()
            )
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


class OwnClient(Client):
    """Questions from a daemon's machine to the daemon itself, which must show a certificate of `role`; None = our own role."""

    def __init__(self, endpoint: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None, role: Role | None = None) -> None:
        if credentials is not None:
            self.role = role or credentials.identity.role
        super().__init__(endpoint, timeout_s=timeout_s, credentials=credentials)


class Channels:
    """Args:
    opened: makes a channel to an endpoint; does not block. clock: monotonic seconds.

    Thread-safe.
    """

    def __init__(self, opened: Callable[[str], grpc.Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._opened = opened
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, grpc.Channel]] = OrderedDict()  #: endpoint -> (last use, channel), the oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, endpoint: str) -> grpc.Channel:
        """Returns the channel to `endpoint`, for a call that begins now."""
        now = self._clock()
        with self._lock:
            while self._kept and next(iter(self._kept.values()))[0] < now - KEEP_S:
                self._kept.popitem(last=False)
            _, channel = self._kept.pop(endpoint, (now, None))
            if channel is None:
                channel = self._opened(endpoint)
            self._kept[endpoint] = now, channel
            return channel

    def forget(self, endpoint: str) -> None:
        """Drops the channel: the next call gets another; calls under way go on."""
        with self._lock:
            self._kept.pop(endpoint, None)

    def close(self) -> None:
        """Ends all channels and their calls. Idempotent."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for _, channel in kept:
            channel.close()


class Gateways:
    """Args:
    text: "HOST:PORT,HOST:PORT"; a client begins with any of them and moves to the next when one fails.
    credentials: this client's, None in an open cluster.

    Raises: UsageError. Thread-safe.
    """

    def __init__(self, text: str, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self.endpoints = tuple(parse(part) for part in text.split(",") if part.strip())
        if not self.endpoints:
            raise UsageError(f"{text!r} names no gateway", hint="--gateway HOST:PORT, or several: HOST:PORT,HOST:PORT")
        self._at = random.randrange(len(self.endpoints))
        self._channels: dict[str, grpc.Channel] = {}
        self._old: list[grpc.Channel] = []  #: calls on them may be under way
        self._lock = threading.Lock()
        self._closed = False

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    @property
    def current(self) -> str:
        """The gateway to ask."""
        return self.endpoints[self._at]

    def failed(self, endpoint: str) -> None:
        """Moves on to the next gateway, because `endpoint` does not answer. If the bundle was renewed, it is shown from now on."""
        with self._lock:
            if self.endpoints[self._at] == endpoint:
                self._at = (self._at + 1) % len(self.endpoints)
            if self._credentials is not None and (newest := self._credentials.newest()) is not self._credentials:
                self._credentials = newest
                self._old += self._channels.values()
                self._channels.clear()

    def channel(self, endpoint: str) -> grpc.Channel:
        """Returns the channel to one of them, opened on first use. Raises ValueError once closed (as a closed channel does)."""
        with self._lock:
            if self._closed:
                raise ValueError("closed")
            if endpoint not in self._channels:
                self._channels[endpoint] = open_channel(endpoint, self._credentials, Role.SUBMITTER, _TO_GATEWAYS)
            return self._channels[endpoint]

    def close(self) -> None:
        """Ends all channels. Idempotent."""
        with self._lock:
            self._closed = True
            channels = [*self._channels.values(), *self._old]
        for channel in channels:
            channel.close()


def parse(text: str) -> str:
    """Checks a `HOST:PORT` and returns it. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text.strip()!r} is not a gateway's address", hint="--gateway HOST:PORT")
    return f"{host}:{port}"


def user_metadata(user: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata that names the user; none for ""."""
    return ((USER_KEY, quote(user)),) if user else ()
