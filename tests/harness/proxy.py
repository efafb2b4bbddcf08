"""A TCP proxy between clients and one server, ZooKeeper or another, that loses, delays, cuts and refuses on demand.

It reads the frames of ZooKeeper's protocol (4 bytes length, then xid and opcode of a request; xid of an answer), so it can
drop exactly the answer to the n-th multi: the server has committed, but the client gets no answer.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Self

OP_MULTI = 14
_INT = struct.Struct("!i")
_TWO = struct.Struct("!ii")


class _Pair:
    """A client's connection and its connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.from_client = b""
        self.from_server = b""
        self.connected = False  # the first frame in each direction belongs to the connect request, which has no xid
        self.answered = False
        self.lost_xid: int | None = None  # the link is cut when this answer comes
        self.delayed: deque[tuple[float, bytes]] = deque()  # answers to send later

    def close(self) -> None:
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Proxy:
    """Args:
    target: "host:port" of the server; may be changed while it runs.
    framed: False for a server that does not speak ZooKeeper's protocol; single answers cannot be lost then.
    """

    def __init__(self, target: str, *, framed: bool = True) -> None:
        self.target = target
        self.sent_bytes = 0  #: bytes that have reached the server
        self._framed = framed
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[_Pair] = []
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._multis = 0
        self._lose_reply = 0
        self._lose_request = 0
        self._refusing = False
        self._silent_to_client = False
        self._silent_to_server = False
        self._swallows_from = math.inf  #: value of `sent_bytes` from which on bytes vanish
        self._delay_s = 0.0
        self.cuts = 0  #: number of links cut by a fault
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # -- faults

    def lose_reply(self, nth: int = 1) -> None:
        """Lets the n-th multi from now reach the server, but drops its answer and everything after it."""
        with self._lock:
            self._multis, self._lose_reply = 0, nth

    def lose_request(self, nth: int = 1) -> None:
        """Cuts the link instead of sending the n-th multi from now."""
        with self._lock:
            self._multis, self._lose_request = 0, nth

    def cut(self) -> None:
        """Breaks every link now; accepts new ones."""
        with self._lock:
            for pair in list(self._pairs):
                self._drop(pair)

    def refuse(self, refusing: bool = True) -> None:
        """Cuts all links, and closes new ones as soon as they open; `refuse(False)` ends this."""
        with self._lock:
            self._refusing = refusing
            if refusing:
                self.cut()

    def black_hole(self, *, to_client: bool = True, to_server: bool = True) -> None:
        """Drops all bytes in the given directions, but leaves links open. Both False: bytes flow again on new links."""
        with self._lock:
            if (self._silent_to_client or self._silent_to_server) and not (to_client or to_server):
                self.cut()  # a stream with missing bytes cannot go on
            self._silent_to_client, self._silent_to_server = to_client, to_server
            self._swallows_from = math.inf

    def swallow_after(self, count: int) -> None:
        """Drops bytes towards the server after the next `count` bytes."""
        with self._lock:
            self._swallows_from = self.sent_bytes + count

    def delay(self, seconds: float) -> None:
        """Delays answers by this time."""
        with self._lock:
            self._delay_s = seconds

    def close(self) -> None:
        """Ends the proxy and its links."""
        self._stop.set()
        self._wake_write.send(b"\0")
        self._thread.join(60)
        self.cut()
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                sockets = {sock: pair for pair in self._pairs for sock in (pair.client, pair.server)}
            try:
                ready, _, _ = select.select([self._listener, self._wake_read, *sockets], [], [], self._until_due())
            except (OSError, ValueError):
                continue  # another thread has closed a socket
            with self._lock:
                self._flush_delayed()
                for sock in ready:
                    if sock is self._listener:
                        self._accept()
                    elif sock in sockets and sockets[sock] in self._pairs:
                        self._move(sockets[sock], sock)

    def _until_due(self) -> float:
        with self._lock:
            due = [pair.delayed[0][0] for pair in self._pairs if pair.delayed]
        return min(0.05, max(0.0, min(due) - time.monotonic())) if due else 0.05

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refusing:
            client.close()
            return
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), timeout=2.0)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(_Pair(client, server))

    def _move(self, pair: _Pair, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._drop(pair, fault=False)
            return
        try:
            if sock is pair.client:
                if not self._silent_to_server:
                    self._to_server(pair, data)
            elif not self._silent_to_client:
                self._to_client(pair, data)
        except OSError:
            self._drop(pair, fault=False)

    def _to_server(self, pair: _Pair, data: bytes) -> None:
        if self.sent_bytes >= self._swallows_from:
            self._silent_to_server = True
            return
        self.sent_bytes += len(data)
        if not self._framed:
            pair.server.sendall(data)
            return
        pair.from_client += data
        while (frame := _frame(pair.from_client)) is not None:
            pair.from_client = pair.from_client[len(frame) :]
            if pair.connected and len(frame) >= 12:
                xid, opcode = _TWO.unpack_from(frame, 4)
                if opcode == OP_MULTI:
                    self._multis += 1
                    if self._multis == self._lose_request:
                        self._lose_request = 0
                        self._drop(pair)
                        return
                    if self._multis == self._lose_reply:
                        self._lose_reply = 0
                        pair.lost_xid = xid
            pair.connected = True
            pair.server.sendall(frame)

    def _to_client(self, pair: _Pair, data: bytes) -> None:
        if not self._framed:
            if self._delay_s or pair.delayed:
                pair.delayed.append((time.monotonic() + self._delay_s, data))
            else:
                pair.client.sendall(data)
            return
        pair.from_server += data
        while (frame := _frame(pair.from_server)) is not None:
            pair.from_server = pair.from_server[len(frame) :]
            if pair.answered and pair.lost_xid is not None and _INT.unpack_from(frame, 4)[0] == pair.lost_xid:
                self._drop(pair)
                return
            pair.answered = True
            if self._delay_s or pair.delayed:
                pair.delayed.append((time.monotonic() + self._delay_s, frame))
            else:
                pair.client.sendall(frame)

    def _flush_delayed(self) -> None:
        now = time.monotonic()
        for pair in list(self._pairs):
            try:
                while pair.delayed and pair.delayed[0][0] <= now:
                    pair.client.sendall(pair.delayed.popleft()[1])
            except OSError:
                self._drop(pair, fault=False)

    def _drop(self, pair: _Pair, *, fault: bool = True) -> None:
        if pair in self._pairs:
            self._pairs.remove(pair)
            self.cuts += fault
        pair.close()


def _frame(buffer: bytes) -> bytes | None:
    if len(buffer) < 4:
        return None
    end = 4 + _INT.unpack_from(buffer)[0]
    return buffer[:end] if len(buffer) >= end else None
