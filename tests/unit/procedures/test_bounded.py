"""Rows that a user may have written: what is too large or nonsense is neither held nor believed, and nobody goes round in it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import encode_fragment, encode_outcomes, join_page
from rmgr.daemons.leader.submissions import actions, collect, fragments
from rmgr.errors import DataLost
from rmgr.model.base.states import State
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Tail
from rmgr.procedures import bounded, removal, snapshot
from tests.harness.memory_store import MemoryStore

OUTCOMES = (Outcome(index=0, value=b"result", log=(b"out", b""), cpu_us=7), Outcome(index=1, state=State.FAILED, error="E: no", cpu_us=9))


class Sparing(MemoryStore):
    """Fails who would read a large value whole."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.large: set[str] = set()

    def get_noted_many(self, keys: Sequence[str], *, largest: int = 2**62, **options: Any) -> Any:
        assert largest < 2**40 or not self.large.intersection(keys), f"{keys} are read whatever their size"
        return super().get_noted_many(keys, largest=largest, **options)

    def get_noted(self, key: str, **options: Any) -> Any:
        assert key not in self.large, f"{key} is read whatever its size"
        return super().get_noted(key, **options)

    def grow(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its value is above every bound, which are small here."""
        for name in ("MOST_OUTCOMES_BYTES", "MOST_PAGE_BYTES"):
            monkeypatch.setattr(bounded, name, 1000)
        self.put(key, bytes(1001))
        self.large.add(key)


@pytest.fixture
def store() -> Sparing:
    return Sparing()


def row(store: Sparing, outcomes: tuple[Outcome, ...] = OUTCOMES, name: str = "x") -> Fragment:
    store.put(keys.fragment(7, name), encode_outcomes(outcomes))
    return Fragment(attempt=1, row=keys.fragment(7, name), ranges=((State.COMPLETED, 0, 1), (State.FAILED, 1, 1)))


def test_outcomes_come_back_and_what_is_none_is_lost(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    fragment = row(store)
    assert bounded.outcomes_in(store, fragment.row) == OUTCOMES
    assert tuple(snapshot.outcomes_of(fragment, store)) == OUTCOMES
    with pytest.raises(DataLost, match="missing"):
        bounded.outcomes_in(store, keys.fragment(7, "gone"))
    store.put(keys.fragment(7, "nonsense"), b"\xc1")
    with pytest.raises(DataLost, match="does not hold outcomes"):
        bounded.outcomes_in(store, keys.fragment(7, "nonsense"))
    store.grow(fragment.row, monkeypatch)
    with pytest.raises(DataLost, match="1,001 bytes, more than rmgr ever writes there"):
        bounded.outcomes_in(store, fragment.row)


def test_of_many_rows_those_that_are_none_are_left_out(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(store, (Outcome(index=number),), f"{number}").row for number in range(20)]
    store.grow(rows[3], monkeypatch)
    store.delete(rows[4])
    store.put(rows[5], b"\xc1")
    found = dict(bounded.outcomes_of_rows(store, rows))
    assert list(found) == [*rows[:3], *rows[6:]]
    assert found[rows[19]] == (Outcome(index=19),)


def test_a_leader_accounts_rows_without_their_results(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, huge = row(store), row(store, name="huge")
    store.grow(huge.row, monkeypatch)
    [(fragment, outcomes)] = actions._read_rows(store, rows=[huge, whole])
    assert fragment is whole
    assert [(one.state, one.cpu_us) for one in outcomes] == [(State.COMPLETED, 7), (State.FAILED, 9)]
    assert not any(one.value or one.error or any(one.log) for one in outcomes)


def test_outputs_are_kept_although_another_row_of_outcomes_is_none(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    good, huge = row(store, (Outcome(index=0, outputs=1),)), row(store, name="huge")
    store.put(keys.output(7, 0, 1), b"value")
    huge = msgspec.structs.replace(huge, outcomes=(Outcome(index=1, outputs=1),))  # what it says beside its row does not count
    store.put(keys.output(7, 1, 1), b"of no task")
    store.grow(huge.row, monkeypatch)
    assert collect.keep_outputs(store, number=7, tail=Tail(next=2, complete=True), base=0, fragments=[huge, good]) == 1
    assert store.get(keys.final(Pointer(sub=7, index=0))) == (b"value", Encoding.RAW)


Read = Callable[[Sparing], Any]
READERS: dict[str, Read] = {
    "bounded": lambda store: bounded.page_at(store, 7, 0),
    "leader": lambda store: fragments.read_pages(store, number=7, start=0, base=1),
    "commands": lambda store: snapshot.read_pages(store, 7, snapshot.Paged(base=1)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_page_has_a_fragment_at_least_and_an_end(store: Sparing, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = READERS[reader]
    with pytest.raises(DataLost, match="missing"):
        read(store)
    store.put(keys.page(7, 0), join_page([]))
    with pytest.raises(DataLost, match="is empty"):
        read(store)
    store.put(keys.page(7, 0), b"\xc1")
    with pytest.raises(DataLost, match="no page of fragments"):
        read(store)
    fragment = Fragment(attempt=1, outcomes=OUTCOMES[:1])
    store.put(keys.page(7, 0), join_page([encode_fragment(fragment)]))
    assert fragment in [one[1] if isinstance(one, tuple) else one for one in read(store)]
    store.grow(keys.page(7, 0), monkeypatch)
    with pytest.raises(DataLost, match="more than rmgr ever writes"):
        read(store)
    assert collect._paged(store, 7, 1) == []


def test_a_value_under_an_output_key_is_not_read_to_see_that_it_is_no_pointer(store: Sparing) -> None:
    store.put(keys.named("out"), bytes(10_000))
    store.large.add(keys.named("out"))
    store.put(keys.named("mine"), keys.encode_pointer(Pointer(sub=7, index=1)), encoding=Encoding.POINTER)
    removal.delete_pointers(store, 7, 1, ("out", "mine", "absent"))
    assert store.keys("name/") == [keys.named("out")]
