"""Writes to Cassandra, of new keys and without a waiting thread: round trips, crossing writes, failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from rmgr.adapters import store_rules
from rmgr.adapters.cassandra import rows as cassandra_once
from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra import store as cassandra_soon
from rmgr.adapters.cassandra.link import Lost
from rmgr.adapters.cassandra.rows import INLINE_BYTES
from rmgr.adapters.cassandra.schema import StatementRequest
from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.coord.protocol.keys import output
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import KeyExists, RmgrError, StoreUnavailable

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


def _store(tables: Tables) -> CassandraStore:
    return CassandraStore(parse_url("cassandra://somewhere/ks"), dial=lambda _: tables)


def _create(store: CassandraStore, key: str, value: bytes) -> None:
    store.put_many([(key, value)], encoding=Encoding.POINTER, overwrite=False)


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_a_pointer_under_a_new_key_takes_three_round_trips(tables: Tables) -> None:
    with _store(tables) as store:
        _create(store, "name/first", b"1")  # the scope is registered once an hour
        tables.round_trips = tables.requests = 0
        _create(store, "name/second", b"2")
        assert (tables.round_trips, tables.requests) == (3, 5), "its claim, and the last one withdrawn; claims and value; index and value"
        assert store.get("name/second") == (b"2", Encoding.POINTER)
        assert _listed(tables) == {"name/first", "name/second"}


@pytest.mark.parametrize(("count", "size", "requests"), [(1, 100, 1), (1, 10_000, 2), (2, 100, 4)])
def test_outputs_of_tasks_take_one_round_trip(tables: Tables, count: int, size: int, requests: int) -> None:
    """Small ones, one at a time, one request: a batch of more, or of larger ones, is what Cassandra warns of."""
    rows = [(output(1, number, 1), bytes([number]) * size) for number in range(count)]
    with _store(tables) as store:
        store.put_many([(output(1, 7, 1), b"x")])  # the scope is registered once an hour
        tables.round_trips = tables.requests = 0
        store.put_many(rows)
        assert (tables.round_trips, tables.requests) == (1, requests)
        assert [store.get(row) for row, _ in rows] == [(data, Encoding.RAW) for _, data in rows]
    assert _listed(tables) == {output(1, 7, 1), *(row for row, _ in rows)}


def _listed(tables: Tables) -> set[str]:
    return {place[3] for place in tables.cells if place[0] == "index"}


def test_a_value_is_in_the_index_before_it_is_there(tables: Tables) -> None:
    done: list[str] = []
    with _store(tables) as store:
        store.put("name/first", b"1")
        tables.between = lambda request: done.append(f"{tables.round_trips} {request.name}")
        store.put("name/second", b"2")
    trips = {name: int(trip) for trip, name in (one.split() for one in done)}
    assert trips["set_index"] < trips["set_value"]


@pytest.mark.parametrize("after", ["set_claim", "value_seen"])
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "replaced"])
def test_who_is_overtaken_between_two_answers_sees_it(tables: Tables, after: str, *, is_there: bool) -> None:
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


def test_what_was_read_too_slowly_is_read_again(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that was withdrawn, and has expired, between the answers leaves no trace of itself."""
    now_s = [0.0]
    asked: list[str] = []

    def pass_time(request: StatementRequest) -> None:
        asked.append(request.name)
        now_s[0] += 0.6

    with _store(tables) as store:
        _create(store, "name/first", b"1")
        monkeypatch.setattr(cassandra_once, "time", StillClock(now_s))
        tables.between = pass_time
        _create(store, "name/k", b"2")
    assert asked.count("value_seen") == 2


def _many(count: int) -> list[tuple[str, bytes]]:
    return [(f"name/{number:04d}", b"%d" % number) for number in range(count)]


def test_a_claim_is_renewed_while_each_step_of_many_keys_takes_its_time(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,200 keys at 4 ms a request: each of five steps takes 5 s, a claim holds for 12."""
    now_s, raised_s = [0.0], {}
    late: list[str] = []

    def pass_time(request: StatementRequest) -> None:
        now_s[0] += 0.004 * len(request.rows)
        key = request.rows[0][0]
        if request.name == "set_claim" and request.rows[0][2]:
            raised_s[key] = now_s[0]
        elif request.name == "set_value" and now_s[0] - raised_s[key] > cassandra_once.HOLD_S:
            late.append(key)

    with _store(tables) as store:
        _create(store, "name/first", b"1")
        monkeypatch.setattr(cassandra_once, "time", StillClock(now_s))
        monkeypatch.setattr(store_rules, "time", StillClock(now_s))
        tables.between = pass_time
        store.put_many(_many(1200), overwrite=False, timeout_s=1000)
        tables.between = lambda _: None
        assert len(store.get_many([key for key, _ in _many(1200)], timeout_s=1000)) == 1200
    assert late == []
    assert now_s[0] > 2 * cassandra_once.HOLD_S


def test_a_claim_that_could_not_be_renewed_in_time_writes_nothing(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def pass_time(request: StatementRequest) -> None:
        now_s[0] += 13.0 * (request.name == "claims")

    with _store(tables) as store:
        _create(store, "name/first", b"1")
        monkeypatch.setattr(cassandra_once, "time", StillClock(now_s))
        monkeypatch.setattr(store_rules, "time", StillClock(now_s))
        tables.between = pass_time
        with pytest.raises(StoreUnavailable, match="within 12s"):
            store.put_many(_many(3), overwrite=False, timeout_s=1000)
        assert store.get_many([key for key, _ in _many(3)], timeout_s=1000) == {}


class Ahead:
    """Stands in for the module `time`: a clock that is three seconds ahead of the others'."""

    def time_ns(self) -> int:
        return time.time_ns() + 3 * 10**9


def test_a_write_that_lands_late_is_below_that_of_who_created_the_key_meanwhile(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[StatementRequest] = []
    sent = tables.send
    monkeypatch.setattr(tables, "send", lambda request, timeout_s: late.append(request) or sent(request, timeout_s))
    with _store(tables) as ours, _store(tables) as theirs:
        with monkeypatch.context() as ahead:
            ahead.setattr(schema, "time", Ahead())
            tables.fails = {"set_value"}
            with pytest.raises(StoreUnavailable):
                ours.put("name/k", b"ours", overwrite=False, timeout_s=0.3)
            tables.fails = set()
            tables.carry_out()  # its claim is withdrawn
        theirs.put("name/k", b"theirs", overwrite=False)
        for request in late:
            if request.name == "set_value" and request.rows[0][1][6] == b"ours":
                sent(request, 1.0).result()
        assert theirs.get("name/k") == (b"theirs", Encoding.RAW)


class Desk:
    """A store, its node, and what was heard of a write: "decided", and how it ended."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.store = CassandraStore(parse_url("cassandra://somewhere/ks"), dial=lambda _: self.tables)
        self.heard: list[str | RmgrError | None] = []
        self.store.put_many([("name/first", b"1")])  # scopes are registered once an hour
        self.store.put_many([(output(1, 7, 1), b"x")])
        self.tables.round_trips = self.tables.requests = 0

    def put(self, *rows: tuple[str, bytes], **options: Any) -> bool:
        return self.store.put_soon(rows, encoding=Encoding.RAW, notes=(), done=self.heard.append, **options)

    def create(self, *keys: str, encoding: Encoding = Encoding.POINTER) -> bool:
        decided = lambda: self.heard.append("decided")  # noqa: E731
        rows = [(key, b"mine") for key in keys]
        return self.store.put_soon(rows, encoding=encoding, notes=(), done=self.heard.append, overwrite=False, decided=decided)

    def is_withdrawn(self, key: str) -> bool:
        self.tables.carry_out()
        return not any(held for (claimed, _), held in self.tables.rows_of("claim").items() if claimed == key)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.store.close()


@pytest.mark.parametrize(("count", "size", "requests"), [(1, 100, 1), (1, 10_000, 2), (2, 100, 4)])
def test_outputs_take_one_round_trip(desk: Desk, count: int, size: int, requests: int) -> None:
    rows = [(output(1, number, 1), bytes([number]) * size) for number in range(count)]
    assert desk.store.puts_soon
    assert desk.put(*rows)
    assert desk.heard == []
    desk.tables.carry_out()
    assert (desk.heard, desk.tables.round_trips, desk.tables.requests) == ([None], 1, requests)
    assert desk.store.get_many([row for row, _ in rows]) == {row: (data, Encoding.RAW) for row, data in rows}
    assert {place[2] for place in desk.tables.rows_of("index")} >= {row for row, _ in rows}


def test_pointers_under_new_keys_take_three_and_are_decided_after_two(desk: Desk) -> None:
    assert desk.create("name/a", "name/b")
    desk.tables.carry_out()
    assert desk.heard == []
    desk.tables.carry_out()
    assert desk.heard == ["decided"]
    assert ("name/a",) not in desk.tables.rows_of("value")
    desk.tables.carry_out()
    assert desk.heard == ["decided", None]
    assert desk.store.get_many(["name/a", "name/b"]) == dict.fromkeys(("name/a", "name/b"), (b"mine", Encoding.POINTER))
    assert desk.is_withdrawn("name/a")
    assert desk.is_withdrawn("name/b")


def test_a_key_whose_value_is_gone_is_created_above_it(desk: Desk) -> None:
    desk.store.put("name/a", b"old")
    desk.store.delete_many(["name/a"])
    desk.tables.cells["value", "name/a"] = (desk.tables.cells["value", "name/a"][0], 2**60)  # by a machine whose clock is ahead
    assert desk.create("name/a")
    for _ in range(3):
        desk.tables.carry_out()
    assert desk.heard == ["decided", None]
    assert desk.store.get("name/a") == (b"mine", Encoding.POINTER)


def test_a_key_that_is_there_is_refused_and_nothing_is_written(desk: Desk) -> None:
    desk.store.put("name/a", b"theirs")
    assert desk.create("name/b", "name/a")
    for _ in range(3):
        desk.tables.carry_out()
    [error] = desk.heard
    assert isinstance(error, KeyExists)
    assert "name/a" in error.message
    assert desk.store.get("name/b") is None
    assert desk.is_withdrawn("name/b")


@pytest.mark.parametrize("held", [True, False], ids=["held", "withdrawn"])
@pytest.mark.parametrize("when", ["before", "set_claim", "claims"])
def test_a_claim_of_another_writer_ends_it_even_one_that_was_withdrawn(desk: Desk, when: str, *, held: bool) -> None:
    """Its value may have been written between the two answers. Only a claim raised after ours was seen by nobody is the other's to see."""

    def claimed(request: StatementRequest | None) -> None:
        if request is None or request.name == when:
            desk.tables.cells["claim", "name/a", "other"] = held, 1

    if when == "before":
        claimed(None)
    else:
        desk.tables.between = claimed
    assert desk.create("name/a")
    for _ in range(3):
        desk.tables.carry_out()
    if when == "claims":
        assert desk.heard == ["decided", None]
        return
    [error] = desk.heard
    assert isinstance(error, StoreUnavailable)
    assert desk.store.get("name/a") is None
    del desk.tables.cells["claim", "name/a", "other"]
    assert desk.is_withdrawn("name/a")


@pytest.mark.parametrize("lost", ["set_claim", "claims", "value_seen", "set_value"])
def test_a_lost_answer_ends_it_once_and_the_claim_is_withdrawn(desk: Desk, lost: str) -> None:
    desk.tables.fails = {lost}
    assert desk.create("name/a")
    for _ in range(3):
        desk.tables.carry_out()
    desk.tables.fails = set()
    *before, error = desk.heard
    assert before == ["decided"] * (lost == "set_value")
    assert isinstance(error, StoreUnavailable)
    assert "no answer" in error.message
    assert desk.is_withdrawn("name/a")


def test_an_output_whose_answer_is_lost_is_said_to_be_lost(desk: Desk) -> None:
    desk.tables.fails = {"set_value"}
    assert desk.put((output(1, 1, 1), b"y"))
    desk.tables.carry_out()
    [error] = desk.heard
    assert isinstance(error, StoreUnavailable)


def test_what_was_read_too_slowly_does_not_count(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(cassandra_soon, "time", StillClock(now_s))
    assert desk.create("name/a")
    desk.tables.carry_out()
    now_s[0] = 1.1
    desk.tables.carry_out()
    [error] = desk.heard
    assert isinstance(error, StoreUnavailable)
    assert desk.store.get("name/a") is None


def test_what_is_unusual_is_not_begun(desk: Desk) -> None:
    assert not desk.put()
    assert not desk.put(("name/a", b"1")), "what stood there may have to be gone above"
    assert not desk.put((output(2, 1, 1), b"1")), "its scope is to be registered"
    assert not desk.put((output(1, 1, 1), bytes(INLINE_BYTES + 1)))
    assert not desk.create("name/a", encoding=Encoding.RAW), "it would have to be in the index first"
    assert not desk.create(*(f"name/{number}" for number in range(33)))
    desk.store.close()
    assert not desk.store.puts_soon
    assert not desk.put((output(1, 1, 1), b"1"))
    assert (desk.heard, desk.tables.requests) == ([], 0)


def test_while_the_cluster_is_in_trouble_nothing_is_begun(desk: Desk) -> None:
    desk.tables.fails = {"value", "info"}
    with pytest.raises(StoreUnavailable):
        desk.store.get("name/a")
    assert not desk.store.puts_soon
    assert not desk.create("name/a")


def test_a_listener_that_raises_is_told_no_second_time(desk: Desk) -> None:
    def listen(error: RmgrError | None) -> None:
        desk.heard.append(error)
        raise RuntimeError("its loop has ended")

    assert desk.store.put_soon([(output(1, 1, 1), b"1")], encoding=Encoding.RAW, notes=(), done=listen)
    desk.tables.carry_out()
    assert desk.heard == [None]
