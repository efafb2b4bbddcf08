"""Requests to Cassandra under a caller's deadline: bounded concurrency, jittered repetition, and refusal while it is away.

Two deadlines lie around each other. A request has a short one (2 s), after which it is sent again, to another node: all
requests are idempotent. A call of the store has the caller's; it ends earlier when the cluster is known not to serve.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from typing import Any

from rmgr.adapters.cassandra.link import CassandraLink, CassandraSession, Lost
from rmgr.adapters.cassandra.statements import StatementRequest
from rmgr.adapters.store_rules import CallDeadline
from rmgr.errors import StoreUnavailable
from rmgr.model.base.units import format_duration

Rows = list[Any]

#: Requests of one call in flight: so many at first, and then between these, as quickly as answers come.
WINDOW = 64
SMALLEST_WINDOW, LARGEST_WINDOW = 16, 192
#: Answers below the first let the window grow, above the second it shrinks (s): more in flight would only wait in the cluster.
_QUICK_S, _SLOW_S = 0.03, 0.2
#: How long an outage is waited out before the call fails and the link is told (s); a coordinator that was wrong about its peers is not one.
PATIENCE_S = 1.5
_FIRST_PAUSE_S = 0.03
_LONGEST_PAUSE_S = 0.5
_GRACE_S = 1.0  # the driver ends a request by itself; this is for a driver that does not


class RequestWindow:
    """Requests that a call has in flight: as many as the cluster answers quickly. Threads share it; a lost step matters little."""

    def __init__(self) -> None:
        self._size = float(WINDOW)
        self._shrunk_s = -math.inf

    @property
    def size(self) -> int:
        """Whole requests."""
        return int(self._size)

    def answered(self, after_s: float) -> None:
        """An answer that was waited for came after so long."""
        if after_s < _QUICK_S:
            self._size = min(LARGEST_WINDOW, self._size + 8 / self._size)
        elif after_s > _SLOW_S:
            self.shrink()

    def shrink(self) -> None:
        """The cluster has too much to do, or is away. Counts once for all that waits at the time."""
        now_s = time.monotonic()
        if now_s - self._shrunk_s > _SLOW_S:
            self._shrunk_s = now_s
            self._size = max(SMALLEST_WINDOW, self._size * 0.7)


class Calls:
    """Sends requests through whatever connection the link has."""

    def __init__(self, link: CassandraLink, *, request_timeout_s: float) -> None:
        self.window = RequestWindow()
        self._link = link
        self._request_timeout_s = request_timeout_s
        self._forgotten: set[Future[Rows]] = set()

    @property
    def ready(self) -> CassandraSession | None:
        """See `CassandraLink.ready`."""
        return self._link.ready

    def one(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> Rows:
        """The rows of one request. Raises: `StoreUnavailable`, or what the link found wrong."""
        return next(self.each((request,), deadline, doing))

    def all(self, requests: Iterable[StatementRequest], deadline: CallDeadline, doing: str, *, window: int = 0) -> list[Rows]:
        """The rows of every request, in their order."""
        return list(self.each(requests, deadline, doing, window=window))

    def each(self, requests: Iterable[StatementRequest], deadline: CallDeadline, doing: str, *, window: int = 0) -> Iterator[Rows]:
        """As `all`, one after the other while later ones are in flight; takes no more than `window` ahead from `requests`.

        window: 0 = as many as the cluster takes; for large ones a number.
        """
        flying: deque[tuple[StatementRequest, Future[Rows], float]] = deque()
        for request in requests:
            flying.append(self._send(request, deadline, doing))
            while len(flying) >= (window or self.window.size):
                yield self._settle(*flying.popleft(), deadline, doing)
        while flying:
            yield self._settle(*flying.popleft(), deadline, doing)

    def elsewhere(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> list[Rows]:
        """The rows of a read as other coordinators see them; those that do not answer are left out."""
        connection = self._connection(deadline, doing, is_write=False)
        answers = []
        for future in connection.send_to_others(request, self._timeout_s(deadline)):
            try:
                answers.append(future.result(self._timeout_s(deadline) + _GRACE_S))
            except (Lost, TimeoutError):
                continue
        return answers

    def forget(self, request: StatementRequest) -> None:
        """Sends a write whose outcome nobody needs to know: what it would have said also follows from time passing."""
        connection = self._link.serving
        if connection is not None:
            future = connection.send(request, self._request_timeout_s)
            self._forgotten.add(future)
            future.add_done_callback(self._forgotten.discard)

    def settle_forgotten(self, timeout_s: float) -> None:
        """Lets writes that nobody waits for go out before the connection is closed."""
        wait([*self._forgotten], timeout_s)

    def _send(self, request: StatementRequest, deadline: CallDeadline, doing: str) -> tuple[StatementRequest, Future[Rows], float]:
        connection = self._connection(deadline, doing, is_write=request.is_write)
        return request, connection.send(request, self._timeout_s(deadline)), time.monotonic()

    def _connection(self, deadline: CallDeadline, doing: str, *, is_write: bool) -> CassandraSession:
        deadline.check(doing)
        return self._link.connection(deadline, doing, is_write=is_write)

    def _timeout_s(self, deadline: CallDeadline) -> float:
        return max(0.05, min(self._request_timeout_s, deadline.left_s()))

    def _settle(self, request: StatementRequest, future: Future[Rows], sent_s: float, deadline: CallDeadline, doing: str) -> Rows:
        """Waits for one request and sends it again, to another node, as long as that may help."""
        first_s, tries, pause_s = sent_s, 0, _FIRST_PAUSE_S
        while True:
            is_waited_for = not future.done()
            try:
                rows = future.result(self._request_timeout_s + _GRACE_S)
                if is_waited_for:
                    self.window.answered(time.monotonic() - sent_s)
                return rows
            except Lost as error:
                lost = error
            except TimeoutError:
                lost = Lost("no answer, not even of the driver", is_outage=False)
            self.window.shrink()
            tries += 1
            spent_s = time.monotonic() - first_s
            if spent_s > PATIENCE_S and (lost.is_outage or tries >= 2):
                self._link.report(lost, is_write=request.is_write)
                raise StoreUnavailable(f"cannot {doing}: {lost}", hint="it is asked again in the background; rmgr doctor looks closer")
            if deadline.left_s() <= pause_s:
                raise StoreUnavailable(
                    f"cannot {doing} within {format_duration(deadline.timeout_s)}: {lost}", hint="try again; rmgr doctor looks closer"
                )
            threading.Event().wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            _, future, sent_s = self._send(request, deadline, doing)
