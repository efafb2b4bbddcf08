"""Times the pings of one connection to ZooKeeper, the wait for their answers, and its thread's sleep until then.

A ping costs server and client 0.6 ms of processor together, and nothing else happens in an idle cluster: so it goes out
after a sixth of the session timeout to the millisecond (kazoo: up to 0.4 s earlier), and as long is waited for its answer.
"""

from __future__ import annotations

import math
import select
import time
from collections import deque
from typing import Any


class Pings:
    """Keeps one link alive; used by the link's thread alone."""

    def __init__(self) -> None:
        self.awaited_s: deque[float] = deque()  #: when the pings went out whose answers are still to come
        self._every_s = 0.0
        self._due_s = -math.inf

    def begin(self, every_s: float) -> None:
        """Another connection. every_s: between what was sent last and a ping, and from there to the look whether it was answered."""
        self.awaited_s.clear()
        self._every_s = every_s
        self.postpone()

    def postpone(self) -> None:
        """Something else has been sent."""
        self._due_s = time.monotonic() + self._every_s

    def sent(self) -> None:
        """One goes out now."""
        self.awaited_s.append(time.monotonic())
        self.postpone()

    def select(self, reads: list[Any], writes: list[Any], timeout_s: float | None) -> tuple[list[Any], list[Any], list[Any]]:
        """As select(2) with poll(2): kazoo builds an epoll object for each call.

        reads: two of them (the socket and the wake-up pipe) are what kazoo's loop sleeps on, until a ping is due and no shorter.
        """
        if len(reads) == 2:
            timeout_s = max(0.0, self._due_s - time.monotonic())
        poll = select.poll()
        for group, mask in ((reads, select.POLLIN), (writes, select.POLLOUT)):
            for item in group:
                poll.register(item, mask)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else max(0, round(timeout_s * 1000)))}
        return [r for r in reads if r.fileno() in ready], [w for w in writes if w.fileno() in ready], []
