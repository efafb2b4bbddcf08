"""Writes to Cassandra that no thread waits for: their round trips, and everything that ends them with an error instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rmgr.adapters.cassandra import store as cassandra_soon
from rmgr.adapters.cassandra.rows import INLINE_BYTES
from rmgr.adapters.cassandra.schema import StatementRequest
from rmgr.adapters.cassandra.store import CassandraStore
from rmgr.adapters.cassandra.url import parse_url
from rmgr.coord.protocol.keys import output
from rmgr.coord.protocol.ports import Encoding
from rmgr.errors import KeyExists, RmgrError, StoreUnavailable
from tests.harness.cassandra_tables import StillClock, Tables


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
