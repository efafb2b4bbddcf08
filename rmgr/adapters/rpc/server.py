"""gRPC: one server a daemon (views of the leader, live logs of a Starter, health), and thin clients with deadlines.

The only place that knows the generated stubs. Handlers get and give nouns of `rmgr.model`; errors travel as status
codes with `code` and `hint` in the trailing metadata, and arrive as the same class of `rmgr.errors`.

A server's parts: its health service (watching holds a thread, so few watch at once, and asking never waits for them); a pool of threads
that outlives a moment in which the machine has no thread left; and a voice of its own, which tells when it answers nothing at all. gRPC
takes calls on one thread, and where that ends or is held the daemon is mute, while its port listens, its process lives, and its main loop
and its session are well. So a daemon asks its own server.

Channels to other daemons are opened on first use, and let go when they were not used for some minutes: nodes come and go, and a daemon
lives for months. A channel that is let go is not closed: a call that is still under way on it holds it (grpc keeps a channel for as long
as it has calls), and its connection ends with the last one.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr import errors
from rmgr.adapters.access.auth import METHODS, Caller, Doorkeeper, Refused, ServerIdentity, caller_of, open_channel
from rmgr.adapters.access.errors import ERROR_KEY, fail, named_error, rebuild
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Requests, Turnstile
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.convert import from_message, to_message
from rmgr.adapters.rpc.port_guard import PortGuard
from rmgr.errors import ConfigError, QueueFull, Throttled, Unavailable
from rmgr.model.cluster.identity import Role
from rmgr.model.views import ExplainView, JobView, NodeView, QueueView, StatusView, WhatIfView
from rmgr.v1 import leader_pb2, leader_pb2_grpc, node_pb2, node_pb2_grpc

__all__ = [
    "ERROR_KEY",
    "LeaderAnswers",
    "LeaderClient",
    "LogPiece",
    "NodeAnswers",
    "NodeClient",
    "NodeStats",
    "OwnClient",
    "RpcServer",
    "RunningTask",
    "fail",
    "named_error",
    "rebuild",
]

#: Longest message either side accepts: gRPC's own default, kept on purpose; larger things are streamed.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.enable_http_proxy", 0),  # else a proxy for the web is asked for daemons, even on loopback
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # how long one attempt to connect may take: TLS from far away needs several round trips
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: Of servers: a connection whose handshake takes longer, or that asks nothing for so long, is ended; calls of one connection at once.
HANDSHAKE_S, IDLE_S, MAX_CALLS_OF_ONE = 5.0, 600.0, 256
#: Descriptors that connections leave to everything else; and the fewest connections.
_FILES_KEPT, _FEWEST = 512, 128
#: Calls that wait for a thread: each is answered or refused in some tenths of a millisecond.
_MOST_WAITING = 1024
#: Metadata of a call through a gateway: the endpoint of the daemon that is to answer it.
TARGET_KEY = "rmgr-endpoint"
#: A reply of `Jobs` stays below the message limit at about 1 KiB a job.
MAX_JOBS_PER_REPLY = 3000

# -- what a daemon answers ------------------------------------------------------------------------------------------------


class LeaderAnswers(Protocol):
    """Implemented by the WatchDog; called on threads of the server, must not block for long."""

    def jobs(self, ids: tuple[int, ...], *, ended: bool, user: str, caller: Caller | None = None) -> list[JobView]:
        """Submissions that the caller may see, oldest first. Raises PermissionDenied for one of `ids` that he may not."""

    def nodes(self) -> list[NodeView]:
        """All nodes, by name."""

    def queues(self) -> list[QueueView]:
        """All queues, by name."""

    def status(self, *, caller: Caller | None = None) -> StatusView:
        """Health and counts; users by name as far as the caller may see their work."""

    def explain(self, submission: int, index: int | None, *, caller: Caller | None = None) -> ExplainView:
        """Why it is in its state. Raises NotFound, PermissionDenied."""

    def what_if(self, record: bytes) -> WhatIfView:
        """Where and when the submission of this record would run. Raises NotFound (its queue), Unavailable, UsageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A piece of output of an attempt; `ended` with empty data: nothing follows."""

    stream: str
    data: bytes
    offset: int
    attempt: int
    ended: bool = False
    time_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task that runs on a node just now."""

    submission: int
    index: int
    attempt: int
    node: str
    started_us: int
    cores: int = 1
    memory_bytes: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """Measurements of a node."""

    node: str
    cores_used: int
    memory_used_bytes: int
    running: int
    load: float
    disk_free_bytes: int = 0
    spooled_bytes: int = 0
    reason: str = ""
    resources_used: dict[str, int] = field(default_factory=dict)
    freezer: str = ""  #: how work stands still between its slots
    clock_error_us: int | None = None  #: of the clock by which slots are counted, while jobs take turns there
    switches: int = 0
    late_switches: int = 0


class NodeAnswers(Protocol):
    """Implemented by the Starter; called on threads of the server."""

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int,
        stream: str,
        follow: bool,
        offsets: tuple[int, int],
        is_active: Callable[[], bool],
        caller: Caller | None = None,
    ) -> Iterator[LogPiece]:
        """Output of an attempt from (stdout, stderr) offsets on. Raises NotFound when the node does not know it, PermissionDenied."""

    def running(self, submission: int, *, caller: Caller | None = None) -> list[RunningTask]:
        """Tasks that run here and that the caller may see, of one submission or of all (0)."""

    def incarnation_of(self, node: str) -> int:
        """Which registration of the node stands. Raises: NotFound for a node that is not served here."""

    def stats(self) -> list[NodeStats]:
        """One entry a virtual node."""


# -- server ------------------------------------------------------------------------------------------------------------------


class RpcServer:
    """The gRPC server of a daemon: health, and the services that were added.

    Args:
        listen: HOST:PORT, port 0 = any free one. threads: handlers at once (a followed log holds one).
        credentials: callers must show a certificate of the same cluster (`rpc_auth`); None: an open cluster.
        is_revoked, refused: see `rpc_auth.Doorkeeper`. bounds: threads are rationed by them; None: the services do it themselves.
    """

    def __init__(
        self,
        listen: str,
        *,
        threads: int = 32,
        credentials: Credentials | None = None,
        is_revoked: Callable[[str], bool] = lambda _: False,
        refused: Refused | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._identity = ServerIdentity(credentials) if credentials is not None else None
        doors = [Doorkeeper(credentials.identity.cluster, is_revoked=is_revoked, refused=refused)] if credentials is not None else []
        self._pool = SteadyThreads(threads, "rpc")
        inner = [Requests(threads), *([Turnstile(bounds, threads)] if bounds is not None else [])]
        most = max(threads * 4, _MOST_WAITING)
        options = (*OPTIONS, *_server_options())
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=most, interceptors=[*doors, *inner])
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        host = listen.rpartition(":")[0]
        check_place(listen)
        try:
            if self._identity is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, self._identity.credentials)
        except RuntimeError as error:
            raise errors.Unavailable(f"cannot listen on {listen}: {error}", hint="is the port taken? use port 0 for a free one") from error
        self.endpoint = f"{host}:{port}"
        self._guard = PortGuard(port) if credentials is not None else None
        self._voice = OwnVoice(self.endpoint, credentials, OPTIONS)

    def add_leader(self, answers: LeaderAnswers) -> None:
        """Serves `rmgr.v1.Leader`."""
        leader_pb2_grpc.add_LeaderServicer_to_server(_LeaderServicer(answers), self._server)

    def add_node(self, answers: NodeAnswers) -> None:
        """Serves `rmgr.v1.Node`."""
        node_pb2_grpc.add_NodeServicer_to_server(_NodeServicer(answers), self._server)

    def add_generic(self, handler: grpc.GenericRpcHandler) -> None:
        """Serves another service (the gateway's).

        gRPC takes in calls one at a time; those of a method that it was told of have a line of their own: no flood of others holds them.
        """
        self._server.add_generic_rpc_handlers((handler,))
        for method in METHODS:
            if (found := handler.service(_Named(method))) is not None:
                service, _, name = method[1:].partition("/")
                self._server.add_registered_method_handlers(service, {name: found})

    def start(self) -> None:
        """Begins to answer; health says SERVING."""
        self._server.start()
        if self._guard is not None:
            self._guard.start()
        self.set_healthy(True)

    def set_healthy(self, healthy: bool) -> None:
        """What the health service says of the whole daemon."""
        self._health.set(healthy)

    def is_mute(self, timeout_s: float) -> bool:
        """It has answered nothing for `timeout_s`, though it was asked. Blocks as long."""
        return self._voice.is_mute(timeout_s)

    @property
    def refused_connections(self) -> int:
        """As `PortGuard.refused`."""
        return self._guard.refused if self._guard is not None else 0

    def greet(self, timeout_s: float) -> None:
        """Makes a call to itself, as `OwnVoice.greet` says."""
        self._voice.greet(timeout_s)

    def stop(self, grace_s: float = 0.5) -> None:
        """Ends after at most `grace_s`; followed logs are cut. Idempotent."""
        self._voice.close()
        if self._guard is not None:
            self._guard.stop()
        self._health.end()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Named(NamedTuple):
    """A `grpc.HandlerCallDetails` of no call: which handler has the method?"""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


def _server_options() -> tuple[tuple[str, int], ...]:
    """Connections that only stand there end soon, and leave descriptors to what the daemon has to do besides."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", round(IDLE_S * 1000)),
        ("grpc.max_concurrent_streams", MAX_CALLS_OF_ONE),
        *((("grpc.max_allowed_incoming_connections", max(_FEWEST, files - _FILES_KEPT)),) if files < 1 << 20 else ()),
    )


def unary(answer: Callable[[Any, grpc.ServicerContext], Any], request: Any, reply: Any) -> grpc.RpcMethodHandler:
    """A method with one question and one answer, of these messages. What `answer` raises ends the call."""

    def call(message: Any, context: grpc.ServicerContext) -> Any:
        return _answer(context, lambda: answer(message, context))

    return grpc.unary_unary_rpc_method_handler(call, request_deserializer=request.FromString, response_serializer=reply.SerializeToString)


def _answer(context: grpc.ServicerContext, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except errors.RmgrError as error:
        return fail(context, error)


class _LeaderServicer(leader_pb2_grpc.LeaderServicer):
    def __init__(self, answers: LeaderAnswers) -> None:
        self._answers = answers

    def Jobs(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - generated name
        jobs = _answer(
            context,
            lambda: self._answers.jobs(tuple(request.ids), ended=request.ended, user=request.user, caller=caller_of(context)),
        )
        return leader_pb2.JobsReply(jobs=[to_message(job) for job in jobs[-MAX_JOBS_PER_REPLY:]])

    def Nodes(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG002, N802
        return leader_pb2.NodesReply(nodes=[to_message(node) for node in _answer(context, self._answers.nodes)])

    def Queues(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG002, N802
        return leader_pb2.QueuesReply(queues=[to_message(queue) for queue in _answer(context, self._answers.queues)])

    def Status(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG002, N802
        return to_message(_answer(context, lambda: self._answers.status(caller=caller_of(context))))

    def Explain(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        index = request.index if request.HasField("index") else None
        return to_message(_answer(context, lambda: self._answers.explain(request.submission, index, caller=caller_of(context))))

    def WhatIf(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return to_message(_answer(context, lambda: self._answers.what_if(request.submission)))


class _NodeServicer(node_pb2_grpc.NodeServicer):
    def __init__(self, answers: NodeAnswers) -> None:
        self._answers = answers

    def Logs(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        try:
            pieces = self._answers.logs(
                request.submission,
                request.index,
                attempt=request.attempt,
                stream=request.stream,
                follow=request.follow,
                offsets=(request.stdout_offset, request.stderr_offset),
                is_active=context.is_active,
                caller=caller_of(context),
            )
            for piece in pieces:
                yield node_pb2.LogChunk(
                    stream=piece.stream,
                    data=piece.data,
                    offset=piece.offset,
                    attempt=piece.attempt,
                    ended=piece.ended,
                    time_us=piece.time_us,
                )
        except errors.RmgrError as error:
            fail(context, error)

    def Running(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        tasks = _answer(context, lambda: self._answers.running(request.submission, caller=caller_of(context)))
        return node_pb2.RunningReply(
            tasks=[node_pb2.RunningTask(**{name: getattr(task, name) for name in RunningTask.__slots__}) for task in tasks]
        )

    def Stats(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG002, N802
        stats = _answer(context, self._answers.stats)
        return node_pb2.StatsReply(
            nodes=[node_pb2.NodeStats(**{name: getattr(node, name) for name in NodeStats.__slots__}) for node in stats],
            time_us=time.time_ns() // 1000,
        )

    def Clock(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        incarnation = _answer(context, lambda: self._answers.incarnation_of(request.node))
        boot_us = time.clock_gettime_ns(_BOOTTIME) // 1000  # last of all: it is true when it leaves
        return node_pb2.ClockReply(boot_us=boot_us, incarnation=incarnation)


# -- clients -------------------------------------------------------------------------------------------------------------------


class Client:
    """A channel to one endpoint; every call has a deadline and raises errors of `rmgr.errors`.

    via: endpoint of a gateway that passes the calls on, "" = none. credentials: who we are, None in an open cluster.
    """

    role = Role.WATCHDOG  #: what the other end must prove to be
    stub: Callable[[grpc.Channel], Any] = health_pb2_grpc.HealthStub  #: of the service that is asked

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
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise rebuild(error, self.endpoint) from None

    def is_serving(self) -> bool:
        """The daemon's own health service says so, within the deadline."""
        try:
            reply = health_pb2_grpc.HealthStub(self._channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=self.timeout_s)
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


class LeaderClient(Client):
    """Questions to the leading WatchDog."""

    stub = leader_pb2_grpc.LeaderStub

    def jobs(self, ids: tuple[int, ...] = (), *, ended: bool = False, user: str = "") -> list[JobView]:
        """Submissions, oldest first."""
        reply = self._call(self._stub.Jobs, leader_pb2.JobsRequest(ids=ids, ended=ended, user=user))
        return [from_message(JobView, job) for job in reply.jobs]

    def nodes(self) -> list[NodeView]:
        """All nodes, by name."""
        return [from_message(NodeView, node) for node in self._call(self._stub.Nodes, leader_pb2.NodesRequest()).nodes]

    def queues(self) -> list[QueueView]:
        """All queues, by name."""
        reply = self._call(self._stub.Queues, leader_pb2.QueuesRequest())
        return [from_message(QueueView, queue) for queue in reply.queues]

    def status(self) -> StatusView:
        """Health and counts."""
        return from_message(StatusView, self._call(self._stub.Status, leader_pb2.StatusRequest()))

    def explain(self, submission: int, index: int | None = None) -> ExplainView:
        """Why it is in its state. Raises NotFound."""
        request = leader_pb2.ExplainRequest(submission=submission, index=index)
        return from_message(ExplainView, self._call(self._stub.Explain, request))

    def what_if(self, record: bytes) -> WhatIfView:
        """Where and when the submission of this record would run."""
        request = leader_pb2.WhatIfRequest(submission=record)
        return from_message(WhatIfView, self._call(self._stub.WhatIf, request))


class OwnClient(Client):
    """Questions of a daemon's machine to the daemon itself: it must show a certificate of `role`, None = of the same as ours."""

    def __init__(self, endpoint: str, *, timeout_s: float = 5.0, credentials: Credentials | None = None, role: Role | None = None) -> None:
        if credentials is not None:
            self.role = role or credentials.identity.role
        super().__init__(endpoint, timeout_s=timeout_s, credentials=credentials)


class NodeClient(Client):
    """Questions to a Starter."""

    role = Role.STARTER
    stub = node_pb2_grpc.NodeStub

    def logs(
        self,
        submission: int,
        index: int,
        *,
        attempt: int = 0,
        stream: str = "",
        follow: bool = False,
        offsets: tuple[int, int] = (0, 0),
        timeout_s: float | None = None,
    ) -> Iterator[LogPiece]:
        """Output of an attempt as it comes; with `follow` until it has ended or `timeout_s` (None: no end) is over.

        Raises: NotFound when the node does not know the attempt (any more); Unavailable when it cannot be reached.
        """
        request = node_pb2.LogsRequest(
            submission=submission,
            index=index,
            attempt=attempt,
            stream=stream,
            follow=follow,
            stdout_offset=offsets[0],
            stderr_offset=offsets[1],
        )
        deadline = timeout_s if follow or timeout_s is not None else self.timeout_s
        try:
            for chunk in self._stub.Logs(request, timeout=deadline, metadata=self._metadata):
                yield LogPiece(
                    stream=chunk.stream,
                    data=chunk.data,
                    offset=chunk.offset,
                    attempt=chunk.attempt,
                    ended=chunk.ended,
                    time_us=chunk.time_us,
                )
        except grpc.RpcError as error:
            raise rebuild(error, self.endpoint) from None

    def running(self, submission: int = 0) -> list[RunningTask]:
        """Tasks that run there."""
        reply = self._call(self._stub.Running, node_pb2.RunningRequest(submission=submission))
        return [RunningTask(**{name: getattr(task, name) for name in RunningTask.__slots__}) for task in reply.tasks]

    def stats(self) -> list[NodeStats]:
        """One entry a virtual node."""
        reply = self._call(self._stub.Stats, node_pb2.StatsRequest())
        return [_stats_of(node) for node in reply.nodes]

    def clock(self, node: str) -> tuple[int, int]:
        """(microseconds since its machine was started, incarnation of the node). Raises: NotFound for a node that is not served there."""
        reply = self._call(self._stub.Clock, node_pb2.ClockRequest(node=node))
        return reply.boot_us, reply.incarnation

    def time_us(self) -> int:
        """What time it is there: microseconds since the epoch."""
        return int(self._call(self._stub.Stats, node_pb2.StatsRequest()).time_us)


def _stats_of(message: Any) -> NodeStats:
    found = NodeStats(**{name: getattr(message, name) for name in NodeStats.__slots__})
    return found if message.HasField("clock_error_us") else replace(found, clock_error_us=None)


# -- health (grpc.health.v1) ---------------------------------------------------------------------------------------------------


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


# -- parts of a server ---------------------------------------------------------------------------------------------------------


#: No server has this method: the thread that takes calls refuses it by itself, whatever the threads of the pool do.
_NOBODYS = "/rmgr.v1.Nobody/Ask"
_CHECK = "/grpc.health.v1.Health/Check"
#: How long one attempt to connect may take, ms: on its own machine a connection that takes longer has failed, and is no call unanswered.
_ATTEMPT = "grpc.min_reconnect_backoff_ms"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared, not listened at


class OwnVoice:
    """Asks a server from inside its own process, on one connection that is kept.

    Args: endpoint: where it listens. credentials: its own, None in an open cluster. options: of channels.
    """

    def __init__(self, endpoint: str, credentials: Credentials | None, options: tuple[tuple[str, int], ...]) -> None:
        host, _, port = endpoint.rpartition(":")
        self._endpoint = f"{_ANYWHERE.get(host, host)}:{port}"
        self._credentials = credentials
        near = (option for option in options if option[0] != _ATTEMPT)
        self._options = (*near, (_ATTEMPT, 100), ("grpc.use_local_subchannel_pool", 1))
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def is_mute(self, timeout_s: float) -> bool:
        """A call was not answered within `timeout_s`, not even by a refusal. A connection that fails says nothing of that."""
        try:
            self._method(_NOBODYS)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
        except ValueError:
            return False  # closed meanwhile
        return False

    def greet(self, timeout_s: float) -> None:
        """One call as any other daemon of this role would make it.

        Raises: TimeoutError; Unavailable when no connection comes about; PermissionDenied, and whatever else the server says.
        """
        try:
            self._method(_CHECK)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError from None
            raise rebuild(error, self._endpoint) from None

    def _method(self, name: str) -> Any:
        with self._lock:
            if self._channel is None:
                role = self._credentials.identity.role if self._credentials is not None else Role.SUBMITTER
                self._channel = open_channel(self._endpoint, self._credentials, role, self._options)
            return self._channel.unary_unary(name)

    def close(self) -> None:
        """Idempotent."""
        with self._lock, contextlib.suppress(Exception):
            if self._channel is not None:
                self._channel.close()


_HINTS = {
    errno.EADDRINUSE: ("another process listens there", "is the daemon running already? port 0 is any free one"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "name one of its own (ip address), or 0.0.0.0 for all of them"),
    errno.EACCES: ("this user may not", "take a port above 1023"),
}


def check_place(listen: str, what: str = "") -> None:
    """HOST:PORT can be listened on now. Raises: ConfigError when it is no place; Unavailable with the reason. Cost: 0.1 ms.

    what: for whom ("metrics: "), before the message.

    Somebody else may take the port in the moment after: gRPC's own error is the net below.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{what}{listen!r} is not a place to listen on", hint="HOST:PORT, as in 127.0.0.1:7071; port 0 is any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        why = f"{what}cannot listen on {listen}: the name {host} does not resolve"
        raise Unavailable(why, hint="name an address of this machine") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            if int(port):
                probe.listen(1)
        except OSError as error:
            why, hint = _HINTS.get(error.errno or 0, (error.strerror or str(error), "rmgr doctor"))
            raise Unavailable(f"{what}cannot listen on {listen}: {why}", hint=hint) from None


#: Started with the pool: whatever happens on the machine later, somebody works.
_FIRST = 4


class SteadyThreads(ThreadPoolExecutor):
    """Runs calls; one for which no thread can be started waits for one of those that there are.

    gRPC's Python server takes calls on one thread and ends that thread when `submit` raises: from then on a daemon is mute
    for good while its process lives on and looks well. A daemon's own loop would lose what it was about to do.
    Raises: RuntimeError from the constructor when there is no thread at all.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        for _ in range(min(_FIRST, most)):
            super()._adjust_thread_count()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:  # "can't start new thread": the call is in the queue already, and the next one tries again
            if not self._threads:
                raise


# -- channels of a daemon to others --------------------------------------------------------------------------------------------


#: Channels that were not asked for in so long are let go, and connections without calls are ended.
KEEP_S = 300.0
#: For channels that are kept here: grpc itself would hold an idle connection for half an hour.
IDLE_OPTIONS: Sequence[tuple[str, Any]] = (("grpc.client_idle_timeout_ms", round(KEEP_S * 1000)),)


class Channels:
    """Args:
    opened: makes a channel to an endpoint; does not block. clock: monotonic seconds.

    Thread-safe.
    """

    def __init__(self, opened: Callable[[str], grpc.Channel], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._opened = opened
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, grpc.Channel]] = OrderedDict()  #: when it was used last, the oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, endpoint: str) -> grpc.Channel:
        """The channel to `endpoint`, for a call that begins now."""
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
        """The next call gets another channel; those under way go on."""
        with self._lock:
            self._kept.pop(endpoint, None)

    def close(self) -> None:
        """Ends all channels with their calls. Idempotent."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), OrderedDict()
        for _, channel in kept:
            channel.close()
