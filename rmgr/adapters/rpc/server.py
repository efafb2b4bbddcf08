"""gRPC: the one server of a daemon, to which services are added.

Its parts: a health service (each watcher holds a thread, so few may watch at once, and checks never wait for them); a pool of threads that
survives moments in which the machine has no thread left; and a self-check that notices when the server answers nothing at all. gRPC takes
calls on one thread; if that thread ends or is held up, the daemon is mute, although its port listens, its process lives, and its main loop
and its session are well. So a daemon asks its own server.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rmgr.adapters.access.auth import METHODS, Doorkeeper, Refused, ServerIdentity, caller_of, fail, open_channel, rebuild
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.access.server_threads import Requests, Turnstile
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.port_guard import PortGuard
from rmgr.errors import ConfigError, QueueFull, Throttled, Unavailable
from rmgr.model.identity import Role

#: Seconds after which an unfinished handshake is ended, and a connection without questions; most calls at once on one connection.
HANDSHAKE_S, IDLE_S, MAX_CALLS_OF_ONE = 5.0, 600.0, 256
#: Descriptors that connections leave for everything else; and the fewest connections.
_FILES_KEPT, _FEWEST = 512, 128
#: Most calls that wait for a thread: each is answered or refused within some tenths of a millisecond.
_MOST_WAITING = 1024


class RpcServer:
    """The gRPC server of a daemon: health, and the services that were added.

    Args:
        listen: HOST:PORT, port 0 = any free one. threads: handlers at once (a followed log holds one).
        credentials: callers must show a certificate of the same cluster; None: an open cluster.
        is_revoked: see `Doorkeeper`. refused: called for every rejected call, and every request that cannot be read.
        bounds: ration the threads; None: the services do that themselves.
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
        self.pool = SteadyThreads(threads, "rpc")
        inner = [Requests(threads, refused=refused), *([Turnstile(bounds, threads)] if bounds is not None else [])]
        most = max(threads * 4, _MOST_WAITING)
        options = (*OPTIONS, *_server_options())
        self._server = grpc.server(self.pool, options=options, maximum_concurrent_rpcs=most, interceptors=[*doors, *inner])
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
            raise Unavailable(f"cannot listen on {listen}: {error}", hint="is the port taken? use port 0 for a free one") from error
        self.endpoint = f"{host}:{port}"
        self._guard = PortGuard(port) if credentials is not None else None
        self._voice = OwnVoice(self.endpoint, credentials, OPTIONS)

    def add_generic(self, handler: grpc.GenericRpcHandler) -> None:
        """Adds a service.

        gRPC queues calls, but calls of registered methods have a queue of their own: no flood of other calls delays them.
        """
        self._server.add_generic_rpc_handlers((handler,))
        for method in METHODS:
            if (found := handler.service(_Named(method))) is not None:
                service, _, name = method[1:].partition("/")
                self._server.add_registered_method_handlers(service, {name: found})

    def start(self) -> None:
        """Begins to answer; health turns to SERVING."""
        self._server.start()
        if self._guard is not None:
            self._guard.start()
        self.set_healthy(True)

    def set_healthy(self, healthy: bool) -> None:
        """Sets the health of the whole daemon."""
        self._health.set(healthy)

    def is_mute(self, timeout_s: float) -> bool:
        """Returns whether the server has left a call unanswered for `timeout_s`. Blocks that long."""
        return self._voice.is_mute(timeout_s)

    @property
    def refused_connections(self) -> int:
        """As `PortGuard.refused`."""
        return self._guard.refused if self._guard is not None else 0

    def greet(self, timeout_s: float) -> None:
        """Calls the server itself, see `OwnVoice.greet`."""
        self._voice.greet(timeout_s)

    def stop(self, grace_s: float = 0.5) -> None:
        """Ends after at most `grace_s`; cuts followed logs. Idempotent."""
        self._voice.close()
        if self._guard is not None:
            self._guard.stop()
        self._health.end()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self.pool.shutdown(wait=False, cancel_futures=True)


class _Named(NamedTuple):
    """A `grpc.HandlerCallDetails` without a call, to ask a handler whether it has the method."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


def _server_options() -> tuple[tuple[str, int], ...]:
    """Returns options that end idle connections soon, and leave descriptors for the daemon's other work."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", round(IDLE_S * 1000)),
        ("grpc.max_concurrent_streams", MAX_CALLS_OF_ONE),
        *((("grpc.max_allowed_incoming_connections", max(_FEWEST, files - _FILES_KEPT)),) if files < 1 << 20 else ()),
    )


# -- health (grpc.health.v1) ---------------------------------------------------------------------------------------------------


#: Streams of `Watch` at once, for all peers and for one: further clients can check, or read `/healthz`.
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
        """Sets the health without waiting for any watcher."""
        with self._changed:
            if not self._ended:
                self._status = health_pb2.HealthCheckResponse.SERVING if healthy else health_pb2.HealthCheckResponse.NOT_SERVING
                self._changed.notify_all()

    def end(self) -> None:
        """Sets NOT_SERVING for the rest of this server's life; streams end."""
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
        """Counts the watcher and returns its name; ends the call by an exception if too many watch."""
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


#: A method that no server has: the thread that takes calls refuses it by itself, whatever the pool's threads do.
_NOBODYS = "/rmgr.v1.Nobody/Ask"
_CHECK = "/grpc.health.v1.Health/Check"
#: Option: longest attempt to connect (ms). On the own machine a slower connection has failed, and does not count as an unanswered call.
_ATTEMPT = "grpc.min_reconnect_backoff_ms"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared, not listened at


class OwnVoice:
    """Calls a server from inside its own process, on one kept connection.

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
        """Returns whether a call was not answered within `timeout_s`, not even by a refusal. A failed connection counts as no evidence.

        Also whether a new caller would get no answer, since no file descriptor is left for its connection: an error is logged.
        """
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                import structlog  # late: commands that ask a daemon import this module, and have no log

                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                structlog.get_logger().error("no_descriptors", error=error.strerror, limit=most, hint="raise it: ulimit -n")
                return True
        try:
            self._method(_NOBODYS)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
        except ValueError:
            return False  # closed in the meantime
        return False

    def greet(self, timeout_s: float) -> None:
        """Makes one call as any other daemon of this role would.

        Raises: TimeoutError; Unavailable if no connection comes about; PermissionDenied, and any other error of the server.
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
        """Closes the channel. Idempotent."""
        with self._lock, contextlib.suppress(Exception):
            if self._channel is not None:
                self._channel.close()


_HINTS = {
    errno.EADDRINUSE: ("another process listens there", "is the daemon running already? port 0 is any free one"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "name one of its own (ip address), or 0.0.0.0 for all of them"),
    errno.EACCES: ("this user may not", "take a port above 1023"),
}


def check_place(listen: str, what: str = "") -> None:
    """Checks that the daemon can listen on HOST:PORT now. Raises: ConfigError if malformed; Unavailable with the reason. Cost: 0.1 ms.

    what: prefix of the message ("metrics: ").

    Another process may take the port a moment later; then gRPC's own error reports it.
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


#: Threads started with the pool: they can work whatever happens on the machine later.
_FIRST = 4


class SteadyThreads(ThreadPoolExecutor):
    """Runs calls; if no thread can be started for a call, it waits for an existing one.

    gRPC's Python server takes calls on one thread and ends that thread when `submit` raises: from then on the daemon is mute,
    while its process lives on and looks well. A daemon's own loop would lose the task at hand.
    Raises: RuntimeError from the constructor if not even one thread can be started.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        for _ in range(min(_FIRST, most)):
            super()._adjust_thread_count()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:  # "can't start new thread": the call is already queued, and the next one tries again
            if not self._threads:
                raise
