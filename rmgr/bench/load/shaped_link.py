"""A link with a rate: a TCP forwarder that passes so many bytes a second, both ways and over all connections together.

Connections that have something to send take turns of one chunk each, so they share the rate. Buffers are small, so a faster sender is held
up at once, as on a slow line.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from typing import Self

_CHUNK_BYTES, _BUFFER_BYTES = 8 * 1024, 64 * 1024
#: How much lateness a thread may catch up on (s); more would be a burst.
_LATE_S = 0.002
_CONNECT_S = 5.0


class ShapedLink:
    """A running link. Context manager: it has a thread for each connection and direction, all gone afterwards.

    Args:
        target: HOST:PORT where it leads. bytes_per_s: may be changed at any time; inf: as fast as this machine copies.
    Attributes:
        endpoint: HOST:PORT on loopback, to connect to in place of `target`. passed_bytes: both ways, until now.
    """

    def __init__(self, target: str, bytes_per_s: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self.passed_bytes = 0
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = _small(socket.socket())
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._free_s = 0.0
        self._open: set[socket.socket] = set()
        self._is_closed = False
        threading.Thread(target=self._accept, name="shaped-link", daemon=True).start()

    def close(self) -> None:
        """Ends the link and its connections. Idempotent."""
        with self._lock:
            self._is_closed = True
            mine = [self._listener, *self._open]
        for one in mine:
            _end(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = _small(socket.socket())
            far.settimeout(_CONNECT_S)
            with self._lock:
                self._open |= {near, far}
                is_closed = self._is_closed
            try:
                if is_closed:
                    raise OSError
                far.connect(self._target)
            except OSError:
                self._drop(near, far)
                continue
            far.settimeout(None)
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._copy, args=(one, other), name="shaped-link", daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_CHUNK_BYTES):
                self._wait(len(data))
                other.sendall(data)
        self._drop(one, other)

    def _wait(self, count: int) -> None:
        """Waits until `count` bytes have had their time on the line."""
        with self._lock:
            self.passed_bytes += count
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s - _LATE_S) + count / self.bytes_per_s
            wait_s = self._free_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)

    def _drop(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)
        for one in sockets:
            _end(one)


def _small(one: socket.socket) -> socket.socket:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return one


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
