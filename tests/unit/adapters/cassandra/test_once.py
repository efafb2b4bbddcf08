"""Keys that must be new: how many round trips one takes, and what writers see of each other when their requests cross."""

from __future__ import annotations

import time

import pytest

from rmgr.adapters import store_rules
from rmgr.adapters.cassandra import rows as cassandra_once
from rmgr.adapters.cassandra import schema
from rmgr.adapters.cassandra.schema import StatementRequest
from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.coord.protocol.keys import output
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import KeyExists, StoreUnavailable
from tests.harness.cassandra_tables import StillClock, Tables


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
