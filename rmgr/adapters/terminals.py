"""Terminals: carry a person's keystrokes to a command on a node and its output back, directly or through a gateway.

The way through a gateway leads to the gRPC port of the node, because a gateway must not see the keystrokes:

    gRPC here --socket--> Tunnel --gRPC Open--> gateway (Tunnels) --TCP--> gRPC of the Starter

The connection has its own TLS from end to end: the Starter sees the certificate of the person, not of the gateway, and a
compromised gateway can neither read nor type. Nothing is stored on the way: each stage reads only as fast as the next one takes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from rmgr.adapters.access.auth import Caller, caller_of, open_channel, rebuild, service
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.channels import OPTIONS, TARGET_KEY
from rmgr.adapters.rpc.ranks import RanksLink, carried
from rmgr.errors import RmgrError, Unavailable, VersionMismatch
from rmgr.model.identity import Role
from rmgr.v1 import terminal_pb2, terminal_pb2_grpc, tunnel_pb2, tunnel_pb2_grpc

if TYPE_CHECKING:
    from rmgr.adapters.gateway.forward import Forwarder

#: Connections at once through one gateway: each holds two threads.
MAX_TUNNELS = 50
_CHUNK = 64 * 1024
_DIAL_S = 5.0
_LOOK_S = 0.2
#: Paths of sockets may have at most about 100 bytes.
_LONGEST_PLACE = 70


class Tunnels:
    """The servicer of `rmgr.v1.Tunnel` in a gateway. Connects only to endpoints that `forwarder` knows as nodes of the cluster."""

    def __init__(self, forwarder: Forwarder, *, most: int = MAX_TUNNELS, bounds: Bounds | None = None) -> None:
        self._forwarder = forwarder
        self._bounds = bounds or Bounds()
        self._room = self._bounds.places("tunnels", most)

    @property
    def handler(self) -> Any:
        """Handler for `RpcServer.add_generic`."""
        return service(tunnel_pb2, "Tunnel", Open=self._open)

    def _open(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        caller, message = caller_of(context), f"{len(self._room)} terminals are open through this gateway already"
        with self._bounds.place("tunnels", caller.user, self._room, is_operator=caller.is_certified_operator, told=message):
            endpoint = self._forwarder.starter(context)
            link = _dial(endpoint)
            if not context.add_callback(link.end):
                link.end()
            threading.Thread(target=_feed, args=(requests, link), name="tunnel-in", daemon=True).start()
            try:
                for data in link.pieces():
                    yield tunnel_pb2.TunnelBytes(data=data)
            finally:
                link.end()
                link.let_go()


def _dial(endpoint: str) -> _Link:
    host, _, port = endpoint.rpartition(":")
    try:
        return _Link(socket.create_connection((host.strip("[]"), int(port)), _DIAL_S))
    except OSError as error:
        raise Unavailable(f"{endpoint} cannot be reached ({error.strerror or error})", hint="rmgr doctor") from None


def _feed(requests: Iterator[Any], link: _Link) -> None:
    """Passes on what the caller sends, until it ends or the call is over."""
    try:
        for request in requests:
            link.send(request.data)
        link.say_no_more()
    except (grpc.RpcError, OSError):  # the caller has gone, or sends what cannot be read
        link.end()
    finally:
        link.let_go()


class _Link:
    """A socket shared by two threads: one reads, one writes, and it is closed when both have let go of it."""

    def __init__(self, link: socket.socket) -> None:
        link.settimeout(None)
        if link.family != socket.AF_UNIX:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = link
        self._lock = threading.Lock()
        self._users = 2

    def send(self, data: bytes) -> None:
        """Waits until the data are taken. Raises: OSError."""
        self._link.sendall(data)

    def pieces(self) -> Iterator[bytes]:
        """Yields data that arrive, until the other end is gone."""
        with contextlib.suppress(OSError):
            while data := self._link.recv(_CHUNK):
                yield data

    def say_no_more(self) -> None:
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Wakes both threads. Idempotent, from any thread."""
        with self._lock, contextlib.suppress(OSError):
            if self._users:
                self._link.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Releases the socket; to be called once by each of the two threads."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._link.close()


class Tunnel:
    """The caller's end: one connection to `target` comes out at `endpoint`.

    Args:
        via: the gateway. credentials: this client's, None in an open cluster.
    Attributes:
        target: for gRPC; a socket in a private directory, removed after its first connection.
        refusal: why the gateway ended the tunnel, else None.
    """

    def __init__(self, via: str, endpoint: str, *, credentials: Credentials | None = None) -> None:
        self.refusal: RmgrError | None = None
        self._via = via
        self._endpoint = endpoint
        self._link: _Link | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = tempfile.gettempdir()
        self._directory = tempfile.mkdtemp(prefix="rmgr-", dir=place if len(os.fsencode(place)) < _LONGEST_PLACE else "/tmp")  # noqa: S108 - private
        try:
            self._door.bind(os.path.join(self._directory, "t"))
            self._door.listen(1)
        except BaseException:
            self._shut_door()
            raise
        self.target = f"unix:{self._directory}/t"
        self._channel = open_channel(via, credentials, Role.SUBMITTER, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))
        threading.Thread(target=self._run, name="tunnel", daemon=True).start()

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                self._link.end()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._channel.close()

    def _run(self) -> None:
        accepted = self._accept()
        if accepted is None:
            return
        link = _Link(accepted)
        with self._lock:
            self._link = link
            if self._closed:
                link.end()
        call = None
        try:
            call = tunnel_pb2_grpc.TunnelStub(self._channel).Open(_sent(link), metadata=((TARGET_KEY, self._endpoint),))
            for piece in call:
                link.send(piece.data)
        except grpc.RpcError as error:
            self.refusal = self._told(error)
        except (OSError, ValueError):
            pass  # the caller is gone
        finally:
            link.end()
            if call is not None:
                call.cancel()
            link.let_go()

    def _accept(self) -> socket.socket | None:
        self._door.settimeout(_LOOK_S)  # on some systems a waiting thread does not notice that the socket was closed
        try:
            while not self._closed:
                with contextlib.suppress(TimeoutError):
                    return self._door.accept()[0]
        except OSError:
            pass
        finally:
            self._shut_door()
        return None

    def _told(self, error: Any) -> RmgrError:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return VersionMismatch(f"the gateway at {self._via} is of an older release, and passes no terminals on", hint="rmgr version")
        return rebuild(error, self._via)

    def _shut_door(self) -> None:
        self._door.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _sent(link: _Link) -> Iterable[Any]:
    """Yields messages with the data written here; on a thread of gRPC, which may never start."""
    try:
        for data in link.pieces():
            yield tunnel_pb2.TunnelBytes(data=data)
    finally:
        link.let_go()


# -- the service ---------------------------------------------------------------------------------------------------------------


class TerminalAnswers(Protocol):
    """Implemented by the Starter; called on threads of the server."""

    def attach(self, submission: int, index: int, *, caller: Caller) -> RanksLink:
        """Returns the terminal of a command that runs here. Raises: NotFound, PermissionDenied, Unavailable while it does not exist yet."""


def handler_of(answers: TerminalAnswers) -> grpc.GenericRpcHandler:
    """Returns the service `rmgr.v1.Terminal`."""

    def attach(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        first = next(requests, None)
        if first is None:
            return
        link = answers.attach(first.submission, first.index, caller=caller_of(context))
        for piece in carried(link, requests, first.data, context, "terminal-in"):
            yield terminal_pb2.TerminalChunk(data=piece)

    return service(terminal_pb2, "Terminal", Attach=attach)


class TerminalClient:
    """A channel to the Starter of one node. via: a gateway that forwards its bytes, "" = none."""

    def __init__(self, endpoint: str, *, via: str = "", credentials: Credentials | None = None) -> None:
        self._endpoint = endpoint
        self._tunnel = Tunnel(via, endpoint, credentials=credentials) if via else None
        target = self._tunnel.target if self._tunnel is not None else endpoint
        self._channel = open_channel(target, credentials, Role.STARTER, OPTIONS)

    def attach(self, submission: int, index: int, sent: Iterator[bytes]) -> Iterator[bytes]:
        """Yields the command's output, until it has ended or `close`.

        Iterating raises: NotFound, PermissionDenied, Unavailable; with a gateway also QueueFull, VersionMismatch.
        """

        def chunks() -> Iterator[Any]:
            yield terminal_pb2.TerminalChunk(submission=submission, index=index)
            for data in sent:
                yield terminal_pb2.TerminalChunk(data=data)

        try:
            for chunk in terminal_pb2_grpc.TerminalStub(self._channel).Attach(chunks()):
                yield chunk.data
        except grpc.RpcError as error:
            refusal = self._tunnel.refusal if self._tunnel is not None else None
            raise refusal or rebuild(error, self._endpoint) from None

    def close(self) -> None:
        """Closes the channel and the tunnel. Idempotent."""
        self._channel.close()
        if self._tunnel is not None:
            self._tunnel.close()
