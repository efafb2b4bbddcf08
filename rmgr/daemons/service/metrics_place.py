"""Serves a daemon's measurements (`/metrics`, Prometheus' text) and whether it can work (`/healthz`).

Plain HTTP on loopback. Elsewhere, in a secured cluster, TLS: both ends show certificates of the cluster's authority. No client can
block it: every connection ends within `CONNECTION_S`, and when `MOST` are open, the oldest makes room for the next.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import ipaddress
import itertools
import platform
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics import Gauge
from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.access.limits import Rates
from rmgr.adapters.rpc.server import check_place
from rmgr.errors import ConfigError, PermissionDenied, Unavailable
from rmgr.model.identity import Role
from rmgr.model.version import PROTOCOL, VERSION
from rmgr.runtime import machine
from rmgr.runtime.secured import is_loopback

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials, ServerContext
    from rmgr.adapters.identity.trust import Trust


#: First port of a role if the place names none; the next ones are for more daemons of the role on the same machine.
PORTS = {Role.WATCHDOG: 9710, Role.STARTER: 9720, Role.SUBMITTER: 9730, Role.SERVER: 9740}
_DAEMONS_HERE = 10
#: Longest duration of a connection (s), handshake included; most connections at once, one thread each.
CONNECTION_S, MOST = 5.0, 16
#: A younger connection does not make room for the next one.
YOUNG_S = 0.5
#: Handshakes allowed to one address per second, and at once; all addresses together may have twice as many.
HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE = 5.0, 30.0
_PAUSE_S = 0.1
_BACKLOG = 16


class MetricsPlace:
    """A port, taken early, so that a daemon can register the address before it is complete; `serve` begins to answer there.

    Args: place: HOST:PORT (port 0: any free one), or only an address: then the role's own port, the next free of ten, or any.
    Raises: ConfigError for an invalid place, Unavailable if it cannot be listened on.
    """

    def __init__(self, place: str, role: Role) -> None:
        self._host, self._listener = _listen(place, role)
        self.address = f"{self._host}:{self._listener.getsockname()[1]}"  #: with the real port

    def serve(
        self,
        registry: CollectorRegistry,
        health: Callable[[], str] = str,
        *,
        credentials: Credentials | None = None,
        trust: Trust | None = None,
    ) -> Callable[[], None]:
        """Serves `registry`, and what every daemon measures (`CommonMetrics`). Returns a function that ends it.

        Args:
            health: returns why the daemon cannot work, "" while it can; called by threads of the server.
            credentials: enable TLS except on loopback. trust: decides which keys count, None in an open cluster.
        """
        CommonMetrics(registry, credentials)
        guarded = credentials if not is_loopback(self._host) else None
        return _Server(self._listener, registry, health, guarded, trust).end


def _listen(place: str, role: Role) -> tuple[str, socket.socket]:
    """Returns the host as given, and a listening socket there."""
    host, colon, port = place.rpartition(":")
    if colon and port.isdigit() and (":" not in host or host.startswith("[")):
        check_place(place, "metrics: ")
        return host, _bind(host, int(port))
    if place != "localhost" and not _is_address(place):
        raise ConfigError(f"metrics: {place!r} is not a place to listen on", hint="ADDRESS or HOST:PORT, as in 127.0.0.1 or 0.0.0.0:9720")
    check_place(f"{place}:0", "metrics: ")
    first = PORTS[role]
    for number in range(first, first + _DAEMONS_HERE):
        with contextlib.suppress(Unavailable):
            return place, _bind(place, number)
    return place, _bind(place, 0)


def _is_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).version == (6 if host.startswith("[") else 4)
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"metrics: cannot listen on {host}:{port}: {error.strerror}", hint="name another: --metrics HOST:PORT") from None
    return listener


class _Server:
    """The HTTP server: one thread accepts, and each connection has a thread of its own."""

    def __init__(
        self,
        listener: socket.socket,
        registry: CollectorRegistry,
        health: Callable[[], str],
        credentials: Credentials | None,
        trust: Trust | None,
    ) -> None:
        self._registry = registry
        self._health = health
        self._credentials = credentials
        self._trust = trust
        self._context: ServerContext | None = None
        self._handshakes = Rates(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE)
        if credentials is not None:
            from rmgr.adapters.identity.credentials import ServerContext

            self._context = ServerContext(credentials)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, tuple[float, socket.socket]] = {}  # by number: when it was accepted; oldest first
        self._listener = listener
        self._thread = machine.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Frees the port. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(OSError):  # wakes the thread in accept
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(1.0)
            with self._lock:
                for _, sock in self._open.values():
                    _cut(sock)

    def _serve(self) -> None:
        with self._listener:
            while not self._ended.is_set():
                try:
                    caller, address = self._listener.accept()
                except OSError as error:
                    if error.errno == errno.EINVAL:  # ended
                        return
                    self._ended.wait(_PAUSE_S)  # no file descriptor is left
                    continue
                is_too_often = self._context is not None and not self._handshakes.may(address[0])
                if is_too_often or not self._take(caller):
                    caller.close()

    def _take(self, caller: socket.socket) -> bool:
        """Whether the connection is served: there is room, or the oldest connection makes room."""
        now_s, number = machine.monotonic(), next(self._numbers)
        with self._lock:
            if len(self._open) >= MOST:
                oldest = next(iter(self._open))
                since_s, sock = self._open[oldest]
                if now_s - since_s < YOUNG_S:
                    return False
                del self._open[oldest]
                _cut(sock)
            self._open[number] = now_s, caller
        try:
            machine.Thread(target=self._answer, args=(number, caller, now_s), name="metrics-answer", daemon=True).start()
        except RuntimeError:  # no thread is left
            with self._lock:
                self._open.pop(number, None)
            return False
        return True

    def _answer(self, number: int, sock: socket.socket, since_s: float) -> None:
        end_s = since_s + CONNECTION_S
        try:
            sock.settimeout(max(0.1, end_s - machine.monotonic()))
            if self._context is not None:
                with self._lock:
                    sock = self._context.current().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                    if number in self._open:
                        self._open[number] = since_s, sock
                self._greet(sock)
            http = importlib.import_module("rmgr.daemons.service.metrics_http")
            http.answer(sock, self._registry, self._health, end_s)
        except (OSError, ConfigError, PermissionDenied):  # ssl.SSLError is an OSError
            pass  # a client that is too slow, gone, or not allowed gets no answer
        finally:
            with self._lock:
                self._open.pop(number, None)
            _cut(sock)
            sock.close()

    def _greet(self, sock: Any) -> None:
        """Does the handshake. Raises OSError; PermissionDenied if the peer is not of the cluster, or no longer."""
        from rmgr.adapters.identity.credentials import peer_of

        assert self._credentials is not None
        sock.do_handshake()
        peer = peer_of(sock)
        is_revoked = self._trust is not None and self._trust.is_revoked(peer.key_id)
        if peer.cluster != self._credentials.identity.cluster or peer.role is Role.JOIN or is_revoked:
            raise PermissionDenied(f"{peer.name} may not read measurements")


def _cut(sock: socket.socket) -> None:
    """Ends a connection that another thread may be using, which must not touch an SSL object."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class ClusterDaemonMetrics:
    """Metrics that each daemon with a data store and a gRPC server of its own adds to its registry."""

    def __init__(self, registry: CollectorRegistry, is_up: Callable[[], bool], refused: Callable[[], int]) -> None:
        Gauge("rmgr_store_up", "1 while the data store serves this daemon", registry=registry).set_function(is_up)
        what = "connections refused to callers with too many"
        Gauge("rmgr_refused_connections", what, registry=registry).set_function(refused)


_RELEASE = ["version", "protocol", "python"]


class CommonMetrics:
    """Metrics that every daemon adds to its registry. credentials: None in an open cluster, which has no certificates."""

    def __init__(self, registry: CollectorRegistry, credentials: Credentials | None) -> None:
        build = Gauge("rmgr_build_info", "1; what this daemon runs", _RELEASE, registry=registry)
        build.labels(VERSION, str(PROTOCOL), platform.python_version()).set(1)
        if credentials is not None:
            days = Gauge("rmgr_certificate_days_left", "days until the first certificate of this daemon ends", registry=registry)
            days.set_function(credentials.days_left)
