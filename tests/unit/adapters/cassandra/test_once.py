"""Keys that must be new: how many round trips one takes, and what writers see of each other when their requests cross."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters.cassandra import once as cassandra_once
from rmgr.adapters.cassandra.statements import StatementRequest
from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.coord.protocol.keys import output
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import KeyExists

Rows = list[Any]


class _Answer(Future[Rows]):
    """Comes when somebody waits for it: then all that was sent by then is carried out, which is one round trip."""

    def __init__(self, table: _Tables) -> None:
        super().__init__()
        self._table = table

    def result(self, timeout: float | None = None) -> Rows:
        if not self.done():
            self._table.carry_out()
        return super().result(timeout)


class _Tables:
    """One node in memory. between: called after each request that was carried out."""

    def __init__(self) -> None:
        self.cells: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self.round_trips = self.requests = 0
        self.between: Callable[[StatementRequest], None] = lambda _: None
        self._sent: list[tuple[StatementRequest, _Answer]] = []

    def send(self, request: StatementRequest, timeout_s: float) -> Future[Rows]:
        del timeout_s
        answer = _Answer(self)
        self._sent.append((request, answer))
        return answer

    def carry_out(self) -> None:
        self.round_trips += 1
        sent, self._sent = self._sent, []
        for request, answer in reversed(sent):  # in the order that helps least
            self.requests += 1
            if request.beside is not None:
                self._carry_out(request.beside)
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
                    rows += [(place[2], held) for place, (held, _) in self.cells.items() if place[:2] == ("claim", key)]
                case ("value", (key,)) if ("value", key) in self.cells:
                    rows.append((self.cells["value", key][0],))
                case ("value_seen", (key,)) if ("value", key) in self.cells:
                    rows.append(self.cells["value", key])
        return rows

    def _set(self, place: tuple[Any, ...], cell: Any, stamp: int) -> None:
        if place not in self.cells or self.cells[place][1] <= stamp:
            self.cells[place] = cell, stamp

    def nodes_up(self) -> int:
        return 1

    def send_to_others(self, request: StatementRequest, timeout_s: float) -> list[Future[Rows]]:
        return [self.send(request, timeout_s)]

    def probe(self, timeout_s: float, *, write: bool) -> None:
        """It answers."""

    def close(self) -> None:
        """Nothing is held."""


def _store(tables: _Tables) -> CassandraStore:
    return CassandraStore(parse_url("cassandra://somewhere/ks"), dial=lambda _: tables)


def _create(store: CassandraStore, key: str, value: bytes) -> None:
    store.put_many([(key, value)], encoding=Encoding.POINTER, overwrite=False)


@pytest.fixture
def tables() -> _Tables:
    return _Tables()


def test_a_pointer_under_a_new_key_takes_three_round_trips(tables: _Tables) -> None:
    with _store(tables) as store:
        _create(store, "name/first", b"1")  # the scope is registered once an hour
        tables.round_trips = tables.requests = 0
        _create(store, "name/second", b"2")
        assert (tables.round_trips, tables.requests) == (3, 5), "its claim, and the last one withdrawn; claims and value; index and value"
        assert store.get("name/second") == (b"2", Encoding.POINTER)
        assert _listed(tables) == {"name/first", "name/second"}


@pytest.mark.parametrize(("count", "size", "requests"), [(1, 100, 1), (1, 10_000, 2), (2, 100, 4)])
def test_outputs_of_tasks_take_one_round_trip(tables: _Tables, count: int, size: int, requests: int) -> None:
    """Small ones, one at a time, one request: a batch of more, or of larger ones, is what Cassandra warns of."""
    rows = [(output(1, number, 1), bytes([number]) * size) for number in range(count)]
    with _store(tables) as store:
        store.put_many([(output(1, 7, 1), b"x")])  # the scope is registered once an hour
        tables.round_trips = tables.requests = 0
        store.put_many(rows)
        assert (tables.round_trips, tables.requests) == (1, requests)
        assert [store.get(row) for row, _ in rows] == [(data, Encoding.RAW) for _, data in rows]
    assert _listed(tables) == {output(1, 7, 1), *(row for row, _ in rows)}


def _listed(tables: _Tables) -> set[str]:
    return {place[3] for place in tables.cells if place[0] == "index"}


def test_a_value_is_in_the_index_before_it_is_there(tables: _Tables) -> None:
    done: list[str] = []
    with _store(tables) as store:
        store.put("name/first", b"1")
        tables.between = lambda request: done.append(f"{tables.round_trips} {request.name}")
        store.put("name/second", b"2")
    trips = {name: int(trip) for trip, name in (one.split() for one in done)}
    assert trips["set_index"] < trips["set_value"]


@pytest.mark.parametrize("after", ["set_claim", "value_seen"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_who_is_overtaken_between_two_answers_sees_it(tables: _Tables, after: str, *, is_there: bool) -> None:
    """Another writer has looked before our claim was there; it writes and withdraws its own just after one of our requests."""
    with _store(tables) as ours, _store(tables) as theirs:
        if is_there:
            _create(ours, "name/k", b"old")
        replaces = {"name/k": tables.cells["value", "name/k"][0][1]} if is_there else {}

        def overtake(request: StatementRequest) -> None:
            if request.name != after:
                return
            tables.between = lambda _: None
            hidden = {place: cell for place, cell in tables.cells.items() if place[0] == "claim"}
            tables.cells = {place: cell for place, cell in tables.cells.items() if place not in hidden}
            theirs.put_many([("name/k", b"theirs")], encoding=Encoding.POINTER, overwrite=False, replaces=replaces)
            tables.carry_out()  # its claim is withdrawn
            tables.cells |= hidden

        tables.between = overtake
        with pytest.raises(KeyExists):
            ours.put_many([("name/k", b"ours")], encoding=Encoding.POINTER, overwrite=False, replaces=replaces)
        assert ours.get("name/k") == (b"theirs", Encoding.POINTER)


def test_what_was_read_too_slowly_is_read_again(tables: _Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was withdrawn, and has expired, between the answers leaves no trace of itself."""
    now_s = [0.0]
    asked: list[str] = []

    def pass_time(request: StatementRequest) -> None:
        asked.append(request.name)
        now_s[0] += 0.6

    with _store(tables) as store:
        _create(store, "name/first", b"1")
        monkeypatch.setattr(cassandra_once, "time", _Clock(now_s))
        tables.between = pass_time
        _create(store, "name/k", b"2")
    assert asked.count("value_seen") == 2


class _Clock:
    def __init__(self, now_s: list[float]) -> None:
        self._now_s = now_s

    def monotonic(self) -> float:
        return self._now_s[0]
