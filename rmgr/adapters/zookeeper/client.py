"""ZooKeeper through kazoo: a connection that fails early, recovers early, and knows when it was last answered.

The only file that imports kazoo. What it changes in kazoo, and why (numbers refer to the facts and rules of reliability.md):
- It reconnects within about a second and never gives up (fact 1). It notices a dead server after T/3 instead of 2/3 T (rule 4), even
  while requests keep flowing: kazoo counts each request as a ping and then never checks for the answer.
- It queues no requests in kazoo while disconnected (fact 3): `coord.readback.Pipeline` holds them, with deadlines.
- It sends one wake-up byte for many requests and never blocks on it: the socket pair fills up in an outage (kazoo#577).
- It writes many requests and reads many answers at once. Answers, watches and states arrive on the connection's own thread
  instead of two more threads and two queues.
- It records when the last answered request or ping was sent: the lease counts from that moment (rule 5).

The caller's thread sends a request itself while few answers are awaited (`Outbox`): waking the connection's thread costs two thread
switches before the request leaves (0.05 to 0.15 ms, more in a busy interpreter). In bulk, requests go through the queue and share
writes. A ping costs server and client 0.6 ms of processor together, and an idle cluster does nothing else. So a ping goes out exactly
a sixth of the session timeout after the last request (kazoo: up to 0.4 s earlier), and its answer may take as long again (`Pings`).

A client shows the server the number of the last change it has seen, and a server that knows less closes the connection, for ever
(kazoo#42). That is right for a follower that lags; but after ZooKeeper's data were wiped or restored, no client could ever connect
again. Only the answer of a leading server tells the two cases apart (`SeenHistory`).
"""
# ruff: noqa: SLF001 - kazoo has no public way to any of this; tests/unit/house/test_source.py lists it and fails when its insides move

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionDropped,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import Create, Exists, GetACL, GetChildren, GetData, ReplyHeader, SetACL, Sync
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id

from rmgr.adapters.zookeeper.acl import AccessLists, PublishedLists, RoleLists
from rmgr.adapters.zookeeper.server import ZkSecurity, explain, look, look_at_all, open_socket, tls_sentence
from rmgr.adapters.zookeeper.session import LinkState, LinkTrouble, SessionCoordinator, parts_of_wait
from rmgr.adapters.zookeeper.wire import OPEN_ACL, Acl
from rmgr.errors import ConfigError, PermissionDenied
from rmgr.model.units import format_duration

_LOG = logging.getLogger("rmgr.zookeeper")
_LOG.addHandler(logging.NullHandler())  # kazoo warns at each reconnection: an application that configured no logging should not see that
_LOG.addFilter(lambda record: record.levelno >= logging.WARNING or _LOG.level > 0)  # INFO: setLevel of this logger

_INT = struct.Struct("!i")
_READ_BYTES = 1 << 18
_TLS_RECORD_BYTES = 1 << 14  # one recv returns one record, and pays for the whole buffer it asked for
_TLS_RECORDS = 64

#: QUOTAEXCEEDED of KeeperException.java. kazoo does not know the code and would close the connection over it.
_QuotaExceeded = EXCEPTIONS[-125] = type("QuotaExceededError", (ZookeeperError,), {"code": -125})
_TROUBLES = {
    NoNodeError: LinkTrouble.ABSENT,
    NodeExistsError: LinkTrouble.EXISTS,
    NoAuthError: LinkTrouble.DENIED,
    _QuotaExceeded: LinkTrouble.FULL,
}
_LOSSES = (ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError)
_STATES = {
    KeeperState.CONNECTED: LinkState.CONNECTED,
    KeeperState.CONNECTING: LinkState.CONNECTING,
    KeeperState.EXPIRED_SESSION: LinkState.EXPIRED,
}


class _Handler(SequentialThreadingHandler):
    """kazoo's threading handler without its worker threads: callbacks run on the thread where they arise, since they only enqueue."""

    def __init__(self, connect_timeout_s: float, security: ZkSecurity) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self.security = security
        self.last_error = ""
        self.slow_servers = 0  # in a row; each server gets twice the time of the one before
        self.pings = Pings()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        try:
            callback.func(*callback.args)
        except Exception:  # noqa: BLE001 - a raising watch must not end the connection thread
            _LOG.exception("watch_raised")

    def create_connection(self, *_args: Any, **kwargs: Any) -> Any:
        """Connects to `address`. kazoo's own method would trust the operating system's authorities beside the cluster's."""
        timeout_s = self._connect_timeout_s * 2 ** min(self.slow_servers, 3)
        address = kwargs["address"]
        try:
            return open_socket(address, kwargs["hostname"], timeout_s, self.security)
        except TimeoutError:
            self.slow_servers += 1
            self.last_error = f"{address[0]}:{address[1]} does not answer within {format_duration(timeout_s)}"
            raise
        except ssl.SSLError as error:
            self.last_error = f"{address[0]}:{address[1]}: {tls_sentence(error)}"
            raise
        except OSError as error:
            self.last_error = str(error)
            raise
        except ConfigError as error:  # the file may come back: renewed certificates are moved into place
            self.last_error = error.message
            raise OSError(error.message) from error

    def select(
        self, reads: list[Any], writes: list[Any], _errors: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        return self.pings.select(reads, writes, timeout)


class _Connection(ConnectionHandler):
    """kazoo's connection with batched reads and writes, short timeouts, and the time from which the lease counts."""

    last_answer_s = -math.inf

    def __init__(self, client: _Client, retry: KazooRetry) -> None:
        super().__init__(client, retry, logger=_LOG)
        self._silence_s = client.session_timeout_s / 3
        self._rest = b""
        self._last_read_s = -math.inf
        self._woken = False
        self._outbox = Outbox()
        self._history = SeenHistory(client)
        self._is_tls = client.security.tls

    def start(self) -> None:
        super().start()
        self._write_sock.setblocking(False)
        self._woken = False

    def wake(self) -> None:
        """Makes the connection's thread look at its queue; one byte serves any number of requests."""
        if not self._woken:
            self._woken = True
            try:
                self._write_sock.send(b"\0")
            except BlockingIOError:
                pass  # full of wake-ups already
            except (OSError, AttributeError):
                self._woken = False  # closed

    def _expand_client_hosts(self) -> list[Any]:
        found: list[Any] = super()._expand_client_hosts()
        if not found:
            self.handler.last_error = "no host name resolves"
        return found

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._rest = b""
        self._outbox.reset(self.client._queue, self.client._pending)
        started = time.monotonic()
        self.client.is_introducing = True
        try:
            read_timeout_ms, _ = super()._connect(host, hostip, port)
        except ConnectionDropped:
            self._history.refused(host, port)
            raise
        finally:
            self.client.is_introducing = False
        self._history.taken()
        self.handler.last_error = ""
        self._last_read_s = time.monotonic()
        self.last_answer_s = max(self.last_answer_s, started)
        self.client.session_timeout_s = negotiated_s = read_timeout_ms * 1.5 / 1000
        self._silence_s = negotiated_s / 3
        self.handler.slow_servers = 0
        self.handler.pings.begin(self._silence_s / 2)
        self.client.introduced()
        # kazoo's loop sleeps for half of this minus up to 0.4 s (`Pings.select` sleeps longer) and pings; it drops the link if the ping is
        # unanswered the next time.
        return self._silence_s * 1000, self._silence_s * 1000

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        # A server that accepts and then stays silent is abandoned for the next one: soon if there are several servers, later each time
        # (its disk may be slow).
        first_s = self._silence_s if len(self.client.hosts) == 1 else max(0.3, self._silence_s * 0.3)
        timeout = min(self._silence_s * 3, first_s * 2**self.handler.slow_servers)
        try:
            return super()._invoke(timeout, request, xid)
        except self.handler.timeout_exception:
            self.handler.slow_servers += 1
            self.handler.last_error = f"a server accepts connections and says nothing for {format_duration(timeout)}"
            raise

    def _send_ping(self, connect_timeout: float) -> None:
        with self._outbox.lock:
            self._write(self._outbox.take_unsent(), connect_timeout)
            self.handler.pings.sent()
            super()._send_ping(connect_timeout)

    def send_now(self, request: Any, reply: Any) -> bool:
        """Sends a request on the caller's thread, see `Outbox.send`. Returns False if the request has to be queued."""
        sent = False if self._is_tls else self._outbox.send(self._socket, request, reply)  # two threads must not share an SSL object
        if sent is None:
            self.wake()
        return sent is not False

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        self._read_sock.recv(4096)
        self._woken = False  # cleared before the queue is read: a thread that appends after this line wakes us again
        self.handler.pings.postpone()
        now, sent_s = time.monotonic(), self._outbox.sent_s
        if sent_s and now - max(self._last_read_s, sent_s[0]) > self._silence_s:
            msg = "requests go out and no answer comes"
            raise ConnectionDropped(msg)
        with self._outbox.lock:
            self._write(self._outbox.take_unsent(), connect_timeout)
            out = self._outbox.take_queued(_READ_BYTES, now)
            if self.client._queue:
                self.wake()
            self._write(out, connect_timeout)

    def _write(self, msg: bytes | bytearray, timeout: float) -> None:
        view = memoryview(msg)
        with self._socket_error_handling():
            while view:
                try:
                    view = view[self._socket.send(view) :]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    if not self.handler.select([], [self._socket], [], timeout)[1]:
                        msg_ = "the server takes no more bytes"
                        raise self.handler.timeout_exception(msg_) from None

    def _read_socket(self, _read_timeout: float) -> Any:
        for _ in range(_TLS_RECORDS if self._is_tls else 1):  # each answer comes in its own record
            with self._socket_error_handling():
                try:
                    chunk = self._socket.recv(_TLS_RECORD_BYTES if self._is_tls else _READ_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return None
            if not chunk:
                msg = "socket connection broken"
                raise ConnectionDropped(msg)
            self._last_read_s = time.monotonic()
            if self._read_frames(self._rest + chunk if self._rest else chunk) is CLOSE_RESPONSE:
                return CLOSE_RESPONSE
        while self._is_tls and self._socket.pending() > 0:  # decrypted already, so select() would not report it
            if self._read_frames(self._rest + self._socket.recv(_TLS_RECORD_BYTES)) is CLOSE_RESPONSE:
                return CLOSE_RESPONSE
        return None

    def _read_frames(self, buffer: bytes) -> Any:
        at, end = 0, len(buffer)
        while end - at >= 4:
            (length,) = _INT.unpack_from(buffer, at)
            if end - at - 4 < length:
                break
            header, body = ReplyHeader.deserialize(buffer, at + 4)
            at += 4 + length
            if header.xid == PING_XID:
                self.ping_outstanding.clear()
                self._answered(self.handler.pings.awaited_s.popleft())
            elif header.xid == WATCH_XID:
                self._read_watch_event(buffer, body)
            else:
                self._answered(self._outbox.sent_s.popleft())
                if self._read_response(header, buffer, body) == CLOSE_RESPONSE:
                    return CLOSE_RESPONSE
        self._rest = buffer[at:]
        return None

    def _answered(self, sent_s: float) -> None:
        self.last_answer_s = max(self.last_answer_s, sent_s)


class _Client(KazooClient):
    """One kazoo client for one session, new or continued; implements `ZookeeperLink`."""

    def __init__(
        self, hosts: str, *, owner: ZkCoordinator, session_timeout_s: float, security: ZkSecurity, session: tuple[int, bytes] | None
    ) -> None:
        self._owner = owner
        self.security = security
        self.session_timeout_s = session_timeout_s
        self.is_introducing = False
        handler = _Handler(max(0.3, session_timeout_s / 10), security)
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_s,
            client_id=session,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0, ignore_expire=False, sleep_func=handler.sleep_func),
            command_retry=KazooRetry(max_tries=0, ignore_expire=False, sleep_func=handler.sleep_func),
            logger=_LOG,
            read_only=False,
            randomize_hosts=True,
            auth_data=_auth_data(security),
            use_ssl=security.tls,  # for kazoo's log; the handler connects
        )
        self._connection = _Connection(self, self._conn_retry.copy())

    def _session_callback(self, state: str) -> None:
        if state == self._state:
            return
        if state == KeeperState.AUTH_FAILED:
            self._owner.identity_refused = True
        link_state = _STATES.get(state, LinkState.DEAD)
        if link_state is LinkState.CONNECTED and self.is_introducing:
            super()._session_callback(state)  # no listener hears of it until the server has accepted our identity: it may refuse
            return
        self._owner.link_changing(self, link_state)  # before kazoo fails what is pending
        super()._session_callback(state)
        self._owner.link_changed(self, link_state)

    def introduced(self) -> None:
        """Notes that the session exists and the server has accepted the identity: only now is the link connected."""
        self._owner.identity_refused = False
        self._owner.link_changed(self, LinkState.CONNECTED)

    def adopt(self, security: ZkSecurity) -> None:
        """Sets the security that the next connection uses."""
        self.security = self.handler.security = security
        self.auth_data = _auth_data(security)

    def push(self, request: Any, reply: Any) -> None:
        if not self._connection.send_now(request, reply):
            self._queue.append((request, reply))
            self._connection.wake()

    @property
    def session(self) -> tuple[int, bytes]:
        return self._session_id or 0, self._session_passwd

    @property
    def last_answer_s(self) -> float:
        return self._connection.last_answer_s

    @property
    def last_error(self) -> str:
        return str(self.handler.last_error)

    def drop_link(self) -> None:
        sock = self._connection._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def end(self, timeout_s: float) -> None:
        thread = threading.Thread(target=self._end, name="zookeeper-close", daemon=True)
        thread.start()
        thread.join(timeout_s)  # a thread that hangs longer is left behind (kazoo#688)

    def _end(self) -> None:
        try:
            self.stop()
            self.close()
        except Exception as error:  # noqa: BLE001 - kazoo raises bare Exception here, and nobody is left to tell
            _LOG.debug("close_failed", exc_info=error)

    def get_request(self, path: str, watch: Callable[[object], None] | None) -> GetData:
        return GetData(path, watch)

    def stat_request(self, path: str, watch: Callable[[object], None] | None) -> Exists:
        return Exists(path, watch)

    def children_request(self, path: str, watch: Callable[[object], None] | None) -> GetChildren:
        return GetChildren(path, watch)

    def sync_request(self, path: str) -> Sync:
        return Sync(path)

    def create_request(self, path: str, acl: tuple[Acl, ...]) -> Create:
        return Create(path, b"", _to_kazoo(acl), 0)

    def trouble(self, error: Exception) -> LinkTrouble:
        return LinkTrouble.LOST if isinstance(error, _LOSSES) else _TROUBLES.get(type(error), LinkTrouble.OTHER)


class _Access(GetACL):
    """kazoo's GetACL request with the bare list as its answer, as `Acl` entries."""

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> tuple[Acl, ...]:
        entries, _ = GetACL.deserialize(buffer, offset)
        return tuple(Acl(perms=entry.perms, scheme=entry.id.scheme, id=entry.id.id) for entry in entries)


def _auth_data(security: ZkSecurity) -> set[tuple[str, str]]:
    return {(security.auth_scheme, security.auth_credential)} if security.auth_scheme else set()


def _to_kazoo(acl: tuple[Acl, ...]) -> list[ACL]:
    return [ACL(entry.perms, Id(entry.scheme, entry.id)) for entry in acl]


class ZkCoordinator(SessionCoordinator):
    """`coord.ports.Coordinator` on a ZooKeeper ensemble. Connects in the background; `connect` waits for it.

    Args:
        hosts: "host:port,host:port"; a "/chroot" at its end goes before `chroot`.
        chroot: path of the cluster, created by `ensure`.
        session_timeout_s: the requested timeout; the server clamps it to 2 to 20 ticks (the property `session_timeout_s` has the result).
        security: TLS and identity.
        acl: access list of every created znode, or one list for each place.
    """

    def __init__(
        self,
        hosts: str,
        chroot: str = "",
        *,
        session_timeout_s: float = 10.0,
        security: ZkSecurity | None = None,
        acl: tuple[Acl, ...] | AccessLists = OPEN_ACL,
        window: int = 256,
    ) -> None:
        self.hosts, _, prefix = hosts.partition("/")
        self._wanted_timeout_s = session_timeout_s
        self._security = security or ZkSecurity()
        self.identity_refused = False  #: whether the server has rejected our identity; the link retries, with pauses
        super().__init__(f"{prefix}/{chroot.strip('/')}", acl=acl, window=window)
        if isinstance(acl, RoleLists):
            PublishedLists(self, acl)

    @property
    def credential(self) -> str:
        """Returns the role whose digest this connection presents (`starter`, ...), or "" for none."""
        return self._security.auth_credential.partition(":")[0]

    @classmethod
    def connect(cls, hosts: str, chroot: str = "", *, connect_timeout_s: float = 5.0, **options: Any) -> ZkCoordinator:
        """Returns a connected coordinator; `options` as for the constructor.

        Raises: as `require_connected`.
        """
        coordinator = cls(hosts, chroot, **options)
        try:
            coordinator.require_connected(connect_timeout_s)
        except BaseException:
            coordinator.close(timeout_s=1.0)
            raise
        return coordinator

    def require_connected(self, timeout_s: float) -> None:
        """Waits for the session.

        Raises: NotConnected if no server answers; CoordinationUnavailable if some answer but give no session (no quorum);
            PermissionDenied if the identity is refused. Each error names every server and its state.
        """
        for look_s in parts_of_wait(timeout_s, 0.2):
            if self.wait_connected(look_s):
                return
            if self.identity_refused:  # a retry would be refused as well
                msg = f"ZooKeeper at {self.hosts} refuses the identity of this process (authentication failed)"
                raise PermissionDenied(msg, hint="do [security] dir and zookeeper_tls fit this cluster? rmgr doctor looks closer")
        raise explain(self.hosts, look_at_all(self.hosts, self._security), timeout_s)

    def access(self, path: str, *, timeout_s: float = 10.0) -> Future[tuple[Acl, ...] | None]:
        """Returns the access list of a znode, or None if the znode is absent. Reading it needs some right on the znode."""
        full = self._absolute(path)
        return self._read(_Access(full), lambda entries: entries, timeout_s, full)

    def set_access(self, path: str, entries: tuple[Acl, ...], *, timeout_s: float = 10.0) -> Future[None]:
        """Replaces the access list of a znode, if the znode exists. Never part of a multi: ZooKeeper has no such operation."""
        full = self._absolute(path)
        return self._read(SetACL(full, _to_kazoo(entries), -1), lambda _stat: None, timeout_s, full)

    def renew(self, security: ZkSecurity) -> None:
        """Switches to another identity or other certificates: the session goes on over a new connection that presents them."""
        self._security = security
        link = self.link
        assert isinstance(link, _Client)
        link.adopt(security)
        link.drop_link()

    def _open(self, session: tuple[int, bytes] | None) -> _Client:
        client = _Client(self.hosts, owner=self, session_timeout_s=self._wanted_timeout_s, security=self._security, session=session)
        self.link = client
        client.start_async()
        return client


# -- parts of a connection -----------------------------------------------------------------------------------------------------


#: Number of awaited answers from which on requests go through the queue.
_DIRECT = 4
_FRAME = struct.Struct("!iii")  # length, xid, type


class Outbox:
    """Numbers, frames and sends the requests of one link; any thread that writes to the socket holds `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent_s: deque[float] = deque()  #: when each of the awaited requests went out
        self._queue: deque[tuple[Any, Any]] = deque()
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self._unsent = b""  # the part of a caller's request that the socket did not take: goes out before anything else
        self._xid = 0

    def reset(self, queue: deque[tuple[Any, Any]], pending: deque[tuple[Any, Any, int]]) -> None:
        """Starts over for a new connection, on which nothing was sent yet.

        Args:
            queue: requests, with their replies, that wait for the link's thread.
            pending: requests that were sent, with their replies and numbers.
        """
        self.sent_s.clear()
        self._queue, self._pending = queue, pending
        self._unsent = b""

    def send(self, sock: socket.socket | None, request: Any, reply: Any) -> bool | None:
        """Sends a request on the caller's thread without waiting. Returns True if sent, False if it must be queued, None if the link's
        thread must send the rest.

        Called only while the session is connected, by one caller at a time. Errors of the socket are left for the link's thread to find.
        """
        if sock is None or not self.lock.acquire(blocking=False):
            return False
        try:
            if self._queue or self._unsent or len(self._pending) >= _DIRECT:
                return False
            data = self.frame(request, reply, time.monotonic())
            try:
                sent = sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return True
            self._unsent = data[sent:]
            return None if self._unsent else True
        finally:
            self.lock.release()

    def frame(self, request: Any, reply: Any, now_s: float) -> bytes:
        """Returns the bytes of a request that goes out at `now_s` and registers it as awaited. Called under `lock`."""
        self._xid = self._xid % 0x7FFFFFFF + 1
        body: bytes = request.serialize()
        self._pending.append((request, reply, self._xid))
        self.sent_s.append(now_s)
        return _FRAME.pack(len(body) + 8, self._xid, request.type) + body

    def take_unsent(self) -> bytes:
        """Returns the bytes that must be written before anything else. Called under `lock`."""
        unsent, self._unsent = self._unsent, b""
        return unsent

    def take_queued(self, most_bytes: int, now_s: float) -> bytearray:
        """Returns frames of queued requests, about `most_bytes` in all. Called under `lock`."""
        out = bytearray()
        while self._queue and len(out) < most_bytes:
            out += self.frame(*self._queue.popleft(), now_s)
        return out


class Pings:
    """Pings that keep one link alive; used by the link's thread alone."""

    def __init__(self) -> None:
        self.awaited_s: deque[float] = deque()  #: when each of the unanswered pings went out
        self._every_s = 0.0
        self._due_s = -math.inf

    def begin(self, every_s: float) -> None:
        """Starts over for a new connection. every_s: time from the last request to a ping, and from the ping to the check of its answer."""
        self.awaited_s.clear()
        self._every_s = every_s
        self.postpone()

    def postpone(self) -> None:
        """Notes that a request went out, so no ping is due for a while."""
        self._due_s = time.monotonic() + self._every_s

    def sent(self) -> None:
        """Notes that a ping goes out now."""
        self.awaited_s.append(time.monotonic())
        self.postpone()

    def select(self, reads: list[Any], writes: list[Any], timeout_s: float | None) -> tuple[list[Any], list[Any], list[Any]]:
        """Works as select(2), by means of poll(2): kazoo would build an epoll object for each call.

        With two `reads` (the socket and the wake-up pipe) this is the sleep of kazoo's loop, which lasts exactly until a ping is due.
        """
        if len(reads) == 2:
            timeout_s = max(0.0, self._due_s - time.monotonic())
        poll = select.poll()
        for group, mask in ((reads, select.POLLIN), (writes, select.POLLOUT)):
            for item in group:
                poll.register(item, mask)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else max(0, round(timeout_s * 1000)))}
        return [r for r in reads if r.fileno() in ready], [w for w in writes if w.fileno() in ready], []


_PAUSE_S = 1.0
_LOOK_S = 0.5


class SeenHistory:
    """Watches one client's history of changes. When two looks agree that a leading server is behind, it forgets what the client
    has seen: then the client connects, learns that its session is gone, and its daemon finds another cluster, or none, in the tree.
    """

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._suspected = False
        self._looked_s = -math.inf

    def refused(self, host: str, port: int) -> None:
        """Looks at a server that has ended the handshake, at most once a second. Cost: up to 0.5 s of the link's thread."""
        now, seen = time.monotonic(), self._client.last_zxid  # the number of the last change: the client shows it when it connects
        if not seen or now - self._looked_s < _PAUSE_S:
            return
        self._looked_s = now
        found = look(f"{host}:{port}", self._client.security, timeout_s=_LOOK_S)
        if found.mode not in {"leader", "standalone"}:
            return
        is_behind = found.zxid < seen
        if is_behind and self._suspected:
            _LOG.error("zookeeper_history_lost: %s:%d is at zxid 0x%x, it was at 0x%x", host, port, found.zxid, seen)
            self._client.last_zxid = 0
        self._suspected = is_behind

    def taken(self) -> None:
        """Notes that a server has accepted the client."""
        self._suspected = False
