"""Sends frames on one connection to ZooKeeper, in order, from the caller's own thread while little is on the way.

A caller that wakes the connection's thread pays for two switches of threads before its request leaves (0.05 to 0.15 ms,
more where the interpreter is busy). So it sends itself, as long as it need not wait: nobody else is writing, nothing
stands in the queue, the socket takes bytes. In bulk the queue is used, and many requests share a write.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from typing import Any

#: As many awaited answers and the queue is used.
_DIRECT = 4
_FRAME = struct.Struct("!iii")  # length, xid, type


class Outbox:
    """Numbers, frames and direct sending for one link; `lock` is held by whoever writes to the socket."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent_s: deque[float] = deque()  #: when the requests that are awaited went out
        self._queue: deque[tuple[Any, Any]] = deque()
        self._pending: deque[tuple[Any, Any, int]] = deque()
        self._unsent = b""  # what the socket did not take of a caller's request: goes before anything else
        self._xid = 0

    def reset(self, queue: deque[tuple[Any, Any]], pending: deque[tuple[Any, Any, int]]) -> None:
        """Another connection, on which nothing was sent.

        Args:
            queue: requests with their replies that wait for the link's thread.
            pending: those that were sent, with their numbers.
        """
        self.sent_s.clear()
        self._queue, self._pending = queue, pending
        self._unsent = b""

    def send(self, sock: socket.socket | None, request: Any, reply: Any) -> bool | None:
        """Sends a request on the caller's thread, never waiting. False: the queue is its place; None: the link's thread must send its rest.

        Called only while the session is connected, by one caller at a time. An error of the socket is the link's to find.
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
        """The bytes of a request that goes out now; its answer is awaited from here. Under `lock`."""
        self._xid = self._xid % 0x7FFFFFFF + 1
        body: bytes = request.serialize()
        self._pending.append((request, reply, self._xid))
        self.sent_s.append(now_s)
        return _FRAME.pack(len(body) + 8, self._xid, request.type) + body

    def take_unsent(self) -> bytes:
        """What must be written first. Under `lock`."""
        unsent, self._unsent = self._unsent, b""
        return unsent

    def take_queued(self, most_bytes: int, now_s: float) -> bytearray:
        """Frames of what is queued, about `most_bytes` of them. Under `lock`."""
        out = bytearray()
        while self._queue and len(out) < most_bytes:
            out += self.frame(*self._queue.popleft(), now_s)
        return out
