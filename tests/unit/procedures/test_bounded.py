"""Rows that a user may have written: what is too large or nonsense is neither held nor believed, and nobody goes round in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rmgr.coord.decisions.progress import MOST_STATED
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import decode_fragment, encode_fragment, encode_outcomes, join_page
from rmgr.daemons.leader.submissions import actions, collect, follow
from rmgr.errors import DataLost
from rmgr.model.base.states import State
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.submission import Tail
from rmgr.procedures import bounded, output_keys, snapshot
from rmgr.submitter import follower
from tests.harness.sparing_store import SparingStore

#: An outcome with a field of a newer release, nested deeper than anybody decodes.
NEWER = msgspec.msgpack.encode([*msgspec.msgpack.decode(msgspec.msgpack.encode(Outcome(index=0))), 0])
DEEP = b"\x91" + NEWER[:-1] + b"\x91" * 100_000 + b"\xc0"
OUTCOMES = (Outcome(index=0, value=b"result", log=(b"out", b""), cpu_us=7), Outcome(index=1, state=State.FAILED, error="E: no", cpu_us=9))


class Sparing(SparingStore):
    """Its large values are above every bound."""

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
    for nonsense in (b"\xc1", DEEP):
        store.put(keys.fragment(7, "nonsense"), nonsense)
        with pytest.raises(DataLost, match="does not hold outcomes"):
            bounded.outcomes_in(store, keys.fragment(7, "nonsense"))
    store.grow(fragment.row, monkeypatch)
    with pytest.raises(DataLost, match="1,001 bytes, more than rmgr ever writes there"):
        bounded.outcomes_in(store, fragment.row)


def test_of_many_rows_those_that_are_none_are_left_out(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(store, (Outcome(index=number),), f"{number}").row for number in range(20)]
    store.grow(rows[3], monkeypatch)
    store.delete(rows[4])
    store.put(rows[5], DEEP)
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
    "clients": lambda store: [decode_fragment(data) for _, pages in follower.read_pages(store, 7, 0, 1) for data in pages],
    "leader": lambda store: follow.read_pages(store, number=7, start=0, base=1),
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


def test_ranges_state_no_more_than_one_commit_could_have_brought(store: Sparing) -> None:
    forged = Fragment(attempt=1, row=keys.fragment(7, "x"), ranges=((State.COMPLETED, 5, 2**26),) * 100)
    assert [one.index for one in snapshot.outcomes_of(forged, None)] == list(range(5, 5 + MOST_STATED))
    assert [one.index for one in snapshot.outcomes_of(forged, None, end=7)] == [5, 6] * 3 + [5]


def test_a_value_under_an_output_key_is_not_read_to_see_that_it_is_no_pointer(store: Sparing) -> None:
    store.put(keys.named("out"), bytes(10_000))
    store.large.add(keys.named("out"))
    store.put(keys.named("mine"), keys.encode_pointer(Pointer(sub=7, index=1)), encoding=Encoding.POINTER)
    output_keys.delete_pointers(store, 7, 1, ("out", "mine", "absent"))
    assert store.keys("name/") == [keys.named("out")]
