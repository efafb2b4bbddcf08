"""Writes that no thread waits for, on each data store that has them: their effects, and the winner of a contested key."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.coord.protocol.keys import output
from rmgr.coord.protocol.ports import Encoding, Store
from rmgr.errors import KeyExists, RmgrError, StoreUnavailable
from tests.harness.store_adapters import Adapter, open_adapter, ready, run_threads

ROUNDS = 20
WRITERS = 4


@pytest.fixture(params=["cassandra", "sqlite"])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ready(request)


@pytest.fixture
def store(adapter: Adapter, tmp_path: Path) -> Iterator[Store]:
    opened = open_adapter(adapter, tmp_path)
    opened.put(output(1, 0, 1), b"")  # its scope is registered once an hour
    opened.put("name/first", b"")
    yield opened
    opened.close()


class Ends:
    """How writes ended."""

    def __init__(self) -> None:
        self._heard: queue.Queue[RmgrError | None] = queue.Queue()

    def put(self, store: Store, row: str, value: bytes) -> RmgrError | None:
        assert store.put_soon([(row, value)], encoding=Encoding.RAW, notes=[b"note"], done=self._heard.put)
        return self._heard.get(timeout=60)

    def create(self, store: Store, row: str, value: bytes) -> RmgrError | None:
        assert store.put_soon([(row, value)], encoding=Encoding.POINTER, notes=(), done=self._heard.put, overwrite=False)
        return self._heard.get(timeout=60)


@pytest.mark.parametrize("size", [0, 100, 10_000, 60_000])
def test_what_has_ended_is_there_with_its_note_and_listed(store: Store, size: int) -> None:
    row, value = output(1, 1, 1), bytes(size)
    assert store.puts_soon
    assert Ends().put(store, row, value) is None
    data, about = store.get_noted(row) or (None, None)
    assert data == value
    assert about is not None
    assert (about.note, about.size) == (b"note", size)
    assert row in store.keys("out/")


def test_a_new_key_is_created_once_and_again_after_its_deletion(store: Store) -> None:
    ends = Ends()
    assert ends.create(store, "name/k", b"1") is None
    assert isinstance(ends.create(store, "name/k", b"2"), KeyExists)
    assert store.get("name/k") == (b"1", Encoding.POINTER)
    assert store.delete_many(["name/k"]) == ["name/k"]
    end = ends.create(store, "name/k", b"3")
    assert end is None or isinstance(end, StoreUnavailable), "the last claim, withdrawn a moment ago, may still be seen"
    store.put_many([("name/k", b"4")], overwrite=end is None)
    assert store.get("name/k") == (b"4", Encoding.RAW)


def test_of_several_who_want_a_key_at_most_one_has_it_whichever_way_they_take(store: Store) -> None:
    """Half of them take the way without a thread, half the usual one."""
    lock, winners = threading.Lock(), dict[str, list[bytes]]()
    begin = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        ends, mine = Ends(), b"%d" % number
        for at in range(ROUNDS):
            row = f"name/wanted/{at}"
            begin.wait(60)
            if number % 2:
                won = ends.create(store, row, mine) is None
            else:
                try:
                    store.put_many([(row, mine)], encoding=Encoding.POINTER, overwrite=False)
                    won = True
                except (KeyExists, StoreUnavailable):
                    won = False
            if won:
                with lock:
                    winners.setdefault(row, []).append(mine)

    run_threads(write, WRITERS)
    assert {row: len(won) for row, won in winners.items()} == dict.fromkeys(winners, 1)
    found = store.get_many([f"name/wanted/{at}" for at in range(ROUNDS)])
    assert {row: [value] for row, (value, _) in found.items()} == winners
    assert len(winners) > ROUNDS // 2, "claims that cross end in an error on the one way, in a second try on the other"
