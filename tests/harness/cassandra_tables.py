"""A Cassandra node in memory, for tests of the store's requests and the number of their round trips."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rmgr.adapters.cassandra.link import Lost
from rmgr.adapters.cassandra.schema import StatementRequest

Rows = list[Any]


class Answer(Future[Rows]):
    """An answer that comes when the store waits for it: all requests sent so far are then executed, as one round trip."""

    def __init__(self, table: Tables) -> None:
        super().__init__()
        self._table = table

    def result(self, timeout: float | None = None) -> Rows:
        if not self.done():
            self._table.carry_out()
        return super().result(timeout)


class Tables:
    """A node in memory. between: called after each executed request. fails: names of requests that get no answer."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.cells: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self.round_trips = self.requests = 0
        self.between: Callable[[StatementRequest], None] = lambda _: None
        self._sent: list[tuple[StatementRequest, Answer]] = []

    def send(self, request: StatementRequest, timeout_s: float) -> Future[Rows]:
        del timeout_s
        answer = Answer(self)
        self._sent.append((request, answer))
        return answer

    def carry_out(self) -> None:
        self.round_trips += 1
        sent, self._sent = self._sent, []
        for request, answer in reversed(sent):  # in the least favourable order
            self.requests += 1
            if request.beside is not None:
                self._carry_out(request.beside)
            if request.name in self.fails:
                answer.set_exception(Lost("no answer", is_outage=False))
                continue
            answer.set_result(self._carry_out(request))
            self.between(request)

    def _carry_out(self, request: StatementRequest) -> Rows:
        rows: Rows = []
        for values in request.rows:
            match request.name, values:
                case "set_value", (key, manifest, stamp, _):
                    self._set(("value", key), manifest, stamp)
                case "set_index", (scope, bucket, key, entry, stamp, _):
                    self._set(("index", scope, bucket, key), entry, stamp)
                case "set_claim", (key, claimant, held, stamp, _):
                    self._set(("claim", key, claimant), held, stamp)
                case "claims", (key,):
                    rows += [(place[2], held, stamp) for place, (held, stamp) in self.cells.items() if place[:2] == ("claim", key)]
                case ("value", (key,)) if ("value", key) in self.cells:
                    rows.append((self.cells["value", key][0],))
                case ("value_seen", (key,)) if ("value", key) in self.cells:
                    rows.append(self.cells["value", key])
        return rows

    def _set(self, place: tuple[Any, ...], cell: Any, stamp: int) -> None:
        if place not in self.cells or self.cells[place][1] <= stamp:
            self.cells[place] = cell, stamp

    def rows_of(self, table: str) -> dict[tuple[Any, ...], Any]:
        """Returns the rows of one table: primary key -> cell."""
        return {place[1:]: cell for place, (cell, _) in self.cells.items() if place[0] == table}

    def nodes_up(self) -> int:
        return 1

    def send_to_others(self, request: StatementRequest, timeout_s: float) -> list[Future[Rows]]:
        return [self.send(request, timeout_s)]

    def probe(self, timeout_s: float, *, write: bool) -> None:
        """Always succeeds."""

    def close(self) -> None:
        """Does nothing: the node holds no resources."""


class StillClock:
    """Replaces the module `time`; the test moves the clock. now_s: a list whose one item is the time."""

    def __init__(self, now_s: list[float]) -> None:
        self._now_s = now_s

    def monotonic(self) -> float:
        return self._now_s[0]
