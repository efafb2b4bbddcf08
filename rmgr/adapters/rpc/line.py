"""A direct line: one socket between a client and a Starter, over which each tells the other early what ZooKeeper will show it.

A client announces the block that it hands over while its HAND is on the way, so that the Starter asks for the block at once and has
verified it by then. A Starter announces its commit, and then that it succeeded and under which number, so that the client need
not read it. Announcements are compared with the tree, or come from the Starter that signs the fragment anyway;
lost ones are read from the tree as usual. Only for the claim of output keys does a client's word count, since they are the keys of
its own tasks; if that word is lost, the Starter claims them (protocol.md 5). In a secured cluster both ends show their certificates
(TLS), and the client expects the very Starter that registered the node.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from rmgr.adapters.access.limits import Rates
from rmgr.adapters.host.channel import Loop
from rmgr.adapters.identity.credentials import Credentials, ServerContext, context_of, peer_of
from rmgr.errors import ConfigError, PermissionDenied
from rmgr.model.identity import Identity, Role
from rmgr.model.line import MAX_BYTES, Message
from rmgr.model.stream import FrameError, FrameReader, encode

_READ = 64 * 1024
#: Longest handshake (s); most lines of one Starter, and most handshakes under way.
_HANDSHAKE_S = 5.0
MAX_LINES, MAX_GREETING = 256, 32
#: Age (s) below which a handshake is not ended in favour of a new one: an honest one takes less. Beyond it the oldest goes first.
_YOUNG_S = 0.5
#: Handshakes per second for one address, and at once; twice as many for all together. A client refused here works without a line.
HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE = 25.0, float(MAX_LINES)
#: Messages that one user may send per second, and at once: far more than a node can be handed. A user beyond that loses the line.
MESSAGES_PER_S, MESSAGES_AT_ONCE = 10_000.0, 20_000.0
#: Seconds between two checks for revoked keys, while there are lines.
_LOOK_S = 0.5
_WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
#: Errors after which the caller has gone; and the pause (s) in accepting when descriptors have run out.
_GONE = (BlockingIOError, InterruptedError, ConnectionError)
_NO_ROOM_S = 1.0
_AT_ONCE = 64
#: A machine that is gone does not say so: idle time before the first probe, pause between probes (s), probes without an answer.
_IDLE_S, _PROBE_S, _PROBES = 60, 15, 4


class DirectLine:
    """One end of a line. Made with a connected socket (after its handshake); thread-safe.

    Args:
        peer: identity of the other end, None in an open cluster.
        on_message, on_end: called on the loop's thread; `on_end` once, unless `close` was called.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        peer: Identity | None,
        on_message: Callable[[DirectLine, Message], None],
        on_end: Callable[[DirectLine], None],
    ) -> None:
        sock.setblocking(False)
        self.peer = peer
        self.serial = 0  #: number of the sender's last `Ahead`
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._reader: FrameReader[Message] = FrameReader(Message)
        self._on_message = on_message
        self._on_end = on_end
        self._lock = threading.Lock()  # two threads must not share an SSL object
        self._closed = False
        if not loop.call(self._register):
            self._drop()

    @property
    def is_open(self) -> bool:
        """Neither closed nor known to be broken."""
        return not self._closed

    def send(self, message: Message) -> bool:
        """Sends if the socket takes the whole message now; else ends the line: a slow reader has no use for early news. Never waits."""
        data = encode(message)
        try:
            with self._lock:
                if self._closed:
                    return False
                if len(data) <= MAX_BYTES and self._sock.send(data) == len(data):
                    return True
        except OSError:  # ssl.SSLError is an OSError
            pass
        if not self._loop.call(self._end):
            self._drop()
        return False

    def close(self) -> None:
        """Ends the line without `on_end`. From any thread."""
        if not self._loop.call(self._drop):
            self._drop()

    # -- the loop's thread

    def _register(self) -> None:
        if not self._closed:
            self._loop.register(self._fd, selectors.EVENT_READ, self._ready)
            self._ready(0)  # TLS may have read ahead

    def _ready(self, _events: int) -> None:
        while not self._closed:
            try:
                with self._lock:
                    chunk = self._sock.recv(_READ)
            except _WAITS:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._end()
                return
            try:
                messages = self._reader.feed(chunk)
            except FrameError:
                self._end()
                return
            for message in messages:
                self._on_message(self, message)
            if self._reader.pending > MAX_BYTES:
                self._end()
            elif not isinstance(self._sock, ssl.SSLSocket) and len(chunk) < _READ:
                return

    def _end(self) -> None:
        if not self._closed:
            self._drop()
            self._on_end(self)

    def _drop(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(KeyError, ValueError, RuntimeError):
            self._loop.unregister(self._fd)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends the line for the other end, even if a forked child still holds the socket
        self._sock.close()


def dial(
    address: str, *, credentials: Credentials | None, key_id: str, loop: Loop, timeout_s: float = 2.0, **callbacks: Callable[..., None]
) -> DirectLine:
    """Returns a line to the Starter that listens at `address`. Waits up to `timeout_s` a step.

    Args: key_id: of the Starter's signing key (secured clusters). callbacks: as for `DirectLine`.
    Raises: OSError (ssl.SSLError, TimeoutError); PermissionDenied if another process answers there; ConfigError.
    """
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    try:
        _tune(made)
        peer = None
        if credentials is not None:
            context = context_of(credentials, ssl.PROTOCOL_TLS_CLIENT)
            made = context.wrap_socket(made, server_hostname=f"{Role.STARTER}.rmgr")
            peer = peer_of(made)
            if peer.cluster != credentials.identity.cluster or peer.key_id != key_id:
                raise PermissionDenied(f"{address} is answered by {peer.role} {peer.name}, not by the Starter that registered it")
        return DirectLine(loop, made, peer=peer, **callbacks)
    except BaseException:
        made.close()
        raise


class LineServer:
    """Accepts lines to a Starter. Handshakes and messages are handled on the loop's thread.

    Args:
        address: host and port to listen on; port 0: any free one.
        credentials: None in an open cluster, where anybody who reaches the port may have a line.
        is_revoked: called with a key id. on_message: as for `DirectLine`. of_one: most lines of one user, 0 = three quarters of all.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        loop: Loop,
        credentials: Credentials | None,
        is_revoked: Callable[[str], bool],
        on_message: Callable[[DirectLine, Message], None],
        of_one: Callable[[], int] = lambda: 0,
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._of_one = of_one
        self._is_revoked = is_revoked
        self._on_message = on_message
        self._lines: set[DirectLine] = set()
        self._looks = False
        self._greeting: dict[socket.socket, float] = {}  #: socket -> start of its handshake, the oldest first
        self._context = ServerContext(credentials) if credentials is not None else None
        self._handshakes = Rates(HANDSHAKES_PER_S, HANDSHAKES_AT_ONCE)
        self._messages = Rates(MESSAGES_PER_S, MESSAGES_AT_ONCE, all_=float(MAX_LINES))  # by user
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._sock = socket.create_server(address, family=family, backlog=512)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        loop.call(self._listen)

    def close(self) -> None:
        """Ends all lines soon; the owner may end the loop after this."""
        self._loop.call(self._close)

    def _close(self) -> None:
        with contextlib.suppress(KeyError, ValueError, RuntimeError):
            self._loop.unregister(self._sock.fileno())
        self._sock.close()
        for line in self._lines:
            line.close()
        for sock in list(self._greeting):
            self._turn_away(sock)

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.register(self._sock.fileno(), selectors.EVENT_READ, self._accept)

    def _accept(self, _events: int) -> None:
        """Accepts several connections at once: a flood fills the kernel's queue, and further callers would wait for a second."""
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except _GONE:
                return
            except OSError:  # no descriptor is left: callers wait, instead of waking this thread all the time
                self._loop.unregister(self._sock.fileno())
                self._loop.later(_NO_ROOM_S, self._listen)
                return
            self._take(sock, address[0])

    def _take(self, sock: socket.socket, address: str) -> None:
        is_too_often = self._context is not None and not self._handshakes.may(address)
        if is_too_often or len(self._lines) >= MAX_LINES or not self._has_room():
            sock.close()
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            _tune(sock)
        if self._context is None:
            self._welcome(sock, None)
            return
        try:
            sock = self._context.current().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ConfigError):
            sock.close()
            return
        self._greeting[sock] = time.monotonic()
        self._loop.register(sock.fileno(), selectors.EVENT_READ, lambda _: self._greet(sock))
        self._loop.later(_HANDSHAKE_S, lambda: self._turn_away(sock))

    def _has_room(self) -> bool:
        """Returns whether there is room for one more handshake, ending the oldest if necessary."""
        if len(self._greeting) >= MAX_GREETING:
            oldest, since_s = next(iter(self._greeting.items()))
            if time.monotonic() - since_s < _YOUNG_S:
                return False
            self._turn_away(oldest)
        return True

    def _has_too_many(self, peer: Identity) -> bool:
        most = MAX_LINES - MAX_LINES // 4
        return sum(line.peer is not None and line.peer.name == peer.name for line in self._lines) >= min(self._of_one() or most, most)

    def _greet(self, sock: Any) -> None:
        try:
            sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
            events = selectors.EVENT_READ if isinstance(wants, ssl.SSLWantReadError) else selectors.EVENT_WRITE
            self._loop.modify(sock.fileno(), events, lambda _: self._greet(sock))
            return
        except OSError:
            self._turn_away(sock)
            return
        assert self._credentials is not None
        try:
            peer = peer_of(sock)
        except PermissionDenied:
            self._turn_away(sock)
            return
        is_known = peer.cluster == self._credentials.identity.cluster and (peer.is_person or peer.role is Role.SUBMITTER)
        if not is_known or self._is_revoked(peer.key_id) or self._has_too_many(peer):
            self._turn_away(sock)
            return
        del self._greeting[sock]
        self._loop.unregister(sock.fileno())
        self._welcome(sock, peer)

    def _turn_away(self, sock: socket.socket) -> None:
        if sock in self._greeting:
            del self._greeting[sock]
            with contextlib.suppress(KeyError, ValueError, RuntimeError):
                self._loop.unregister(sock.fileno())
            sock.close()

    def _welcome(self, sock: socket.socket, peer: Identity | None) -> None:
        self._lines.add(DirectLine(self._loop, sock, peer=peer, on_message=self._heard, on_end=self._lines.discard))
        if peer is not None and not self._looks:
            self._looks = True
            self._loop.later(_LOOK_S, self._look)

    def _look(self) -> None:
        """Ends the lines of users whose key was revoked."""
        for line in [line for line in self._lines if line.peer is not None and self._is_revoked(line.peer.key_id)]:
            self._lines.discard(line)
            line.close()
        self._looks = bool(self._lines)
        if self._looks:
            self._loop.later(_LOOK_S, self._look)

    def _heard(self, line: DirectLine, message: Message) -> None:
        if line.peer is not None and (self._is_revoked(line.peer.key_id) or not self._messages.may(line.peer.name)):
            self._lines.discard(line)
            line.close()
        else:
            self._on_message(line, message)


def _tune(sock: socket.socket) -> None:
    """Makes messages leave at once, and ends a line to a machine that is gone within two minutes."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # the second: macOS
    for option, value in (
        (idle, _IDLE_S),
        (getattr(socket, "TCP_KEEPINTVL", None), _PROBE_S),
        (getattr(socket, "TCP_KEEPCNT", None), _PROBES),
    ):
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
