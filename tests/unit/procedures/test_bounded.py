"""Rows that a user may have written: large or nonsensical ones are neither held nor believed, and cannot cause endless loops."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from rmgr.client import output
from rmgr.client.futures import Settled, value_of
from rmgr.client.logs import read_ended, read_flushed
from rmgr.client.queries import list_past, read_past
from rmgr.client.values import Values
from rmgr.coord.decisions.progress import MOST_STATED
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.ports import Encoding
from rmgr.coord.protocol.records import (
    decode_block,
    decode_failed,
    decode_fragment,
    decode_keyed,
    decode_payloads,
    decode_record,
    encode_fragment,
    encode_outcomes,
    encode_record,
    join_page,
)
from rmgr.daemons.leader.placement.requests import newest_checkpoint
from rmgr.daemons.leader.submissions import actions, follow
from rmgr.errors import DataLost, WrongCluster
from rmgr.model.block import BlockData, Fragment, Outcome
from rmgr.model.states import State
from rmgr.model.submission import Tail
from rmgr.model.views import JobView
from rmgr.procedures import bounded, output_keys, snapshot
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, MOST_SUMMARY_BYTES
from rmgr.procedures.history import decode_summary, history_rows
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
    [(fragment, outcomes)] = actions.read_rows(store, rows=[huge, whole])
    assert fragment is whole
    assert [(one.state, one.cpu_us) for one in outcomes] == [(State.COMPLETED, 7), (State.FAILED, 9)]
    assert not any(one.value or one.error or any(one.log) for one in outcomes)


def test_outputs_are_kept_although_another_row_of_outcomes_is_none(store: Sparing, monkeypatch: pytest.MonkeyPatch) -> None:
    good, huge = row(store, (Outcome(index=0, outputs=1),)), row(store, name="huge")
    store.put(keys.output(7, 0, 1), b"value")
    huge = msgspec.structs.replace(huge, outcomes=(Outcome(index=1, outputs=1),))  # what it says beside its row does not count
    store.put(keys.output(7, 1, 1), b"of no task")
    store.grow(huge.row, monkeypatch)
    assert actions.keep_outputs(store, number=7, tail=Tail(next=2, complete=True), base=0, fragments=[huge, good]) == 1
    assert store.get(keys.final(Pointer(sub=7, index=0))) == (b"value", Encoding.RAW)


Read = Callable[[Sparing], Any]
READERS: dict[str, Read] = {
    "bounded": lambda store: bounded.page_at(store, 7, 0),
    "clients": lambda store: [decode_fragment(data) for _, page in bounded.pages(store, 7, 0, 1, bounded.raw_page_at) for data in page],
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
    assert actions.paged(store, 7, 1) == []


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


#: A block with one element that only a newer release knows.
LATER = bytes([0xDC, 0, len(BlockData.__struct_fields__) + 1]) + msgspec.msgpack.encode(list(msgspec.structs.astuple(BlockData())))[3:]
NESTED = b"[" * 100_000 + b"]" * 100_000


@dataclass
class Host:
    """Who asks for the history."""

    store: SparingStore
    notes: list[str] = field(default_factory=list)
    store_url: str = ""

    def data_store(self) -> SparingStore:
        return self.store

    def left_s(self, most: float) -> float:
        return most

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def sparing() -> SparingStore:
    return SparingStore()


def grow(sparing: SparingStore, key: str, most: int) -> None:
    """Somebody has written more there than rmgr does."""
    sparing.put(key, bytes(most + 1))
    sparing.large.add(key)


def test_a_history_with_a_huge_and_a_nested_row_shows_all_others(sparing: SparingStore) -> None:
    for number in range(1, 131):
        sparing.put_many(history_rows(JobView(id=number, name="j", user="ann", queue="q", state=State.COMPLETED, ended_us=number)))
    grow(sparing, keys.history(7), MOST_SUMMARY_BYTES)
    sparing.put(keys.history(9), b'{"asked":{"x":' + NESTED + b"}}")
    host = Host(sparing)
    assert [view.id for view in list_past(host, user=None)] == [number for number in range(130, 0, -1) if number not in (7, 9)]
    assert len(host.notes) == 2
    assert all("(left out)" in note for note in host.notes)
    with pytest.raises(DataLost, match="more than rmgr ever writes there"):
        read_past(host, 7)
    assert read_past(host, 131) is None
    view = read_past(host, 8)
    assert view.id == 8


def test_parts_of_a_log_that_are_none_are_left_out_and_nobody_goes_through_as_many_as_are_claimed(
    sparing: SparingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(3):
        sparing.put(keys.log(7, 0, 1, "stdout", part), b"part %d\n" % part)
    grow(sparing, keys.log(7, 0, 1, "stdout", 1), MOST_LOG_PART_BYTES)
    assert list(read_flushed(sparing, 7, 0, 1, "stdout")) == [b"part 0\n", b"part 2\n"]
    assert list(read_ended(sparing, 7, 0, 1, "stdout", parts=3, rest=b"rest")) == [b"part 0\n", b"part 2\n", b"rest"]
    for part in (100, 1_000_000):
        sparing.put(keys.log(7, 0, 1, "stdout", part), b"part %d\n" % part)
    sparing.put(keys.logs_of(7, 0, 1, "stdout") + "0000000017x", b"no part")
    found = list(read_ended(sparing, 7, 0, 1, "stdout", parts=9_999_999_999, rest=b"rest"))
    assert found == [b"part 0\n", b"part 2\n", b"part 100\n", b"part 1000000\n", b"rest"]
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    output.write(sparing, 7, Outcome(index=0, log_parts=(3, 0), log=(b"rest\n", b"")), 1)
    assert shown.getvalue() == "part 0\npart 2\nrest\n"


def test_a_result_that_is_larger_than_its_outcome_says_is_lost_unread(sparing: SparingStore) -> None:
    settled = Settled(Outcome(index=0, value_size=4), "n1", 1)
    sparing.put(keys.output(7, 0, 1), b"four")
    assert value_of(settled, 7, sparing, None) == b"four"
    grow(sparing, keys.output(7, 0, 1), 4)
    with pytest.raises(DataLost, match="is not what its node has stored"):
        value_of(settled, 7, sparing, None)


def test_a_pointer_as_large_as_no_pointer_is_leads_nowhere(sparing: SparingStore) -> None:
    values = Values(sparing, None)
    values.put("value", b"x")
    sparing.put(keys.named("pointer"), bytes(keys.POINTER_BYTES + 1), encoding=Encoding.POINTER)
    sparing.large.add(keys.named("pointer"))
    assert values.keys() == ["value"]
    with pytest.raises(DataLost, match="cannot be read"):
        keys.decode_pointer(b'{"x":' + NESTED + b"}")


def test_the_newest_checkpoint_is_found_among_thousands_of_keys_that_are_none(sparing: SparingStore) -> None:
    prefix = keys.checkpoints_of(7, 0)
    assert newest_checkpoint(sparing, prefix=prefix) is None
    sparing.put_many([(f"{prefix}0{number}.x", b"") for number in range(1500)])
    made = [keys.Checkpoint(sub=7, index=0, attempt=attempt, n=n) for attempt, n in ((1, 2), (2, 1), (1, 3))]
    sparing.put_many([(one.key, b"") for one in made])
    assert newest_checkpoint(sparing, prefix=prefix) == made[1]


@pytest.mark.parametrize(
    ("decode", "data", "error"),
    [
        (decode_summary, b'{"asked":{"x":' + NESTED + b"}}", DataLost),
        (decode_block, b"\xdc\x01\x00" + b"\x91" * 100_000, msgspec.DecodeError),
    ],
    ids=["summary", "block"],
)
def test_what_is_nested_too_deep_is_unreadable(decode: Any, data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(data)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_block, b"\x91\xa2\xff\xfe"),  # a text that is no UTF-8
        (decode_block, LATER + b"\x81\x80\x01"),  # a map as the key of a map
        (decode_block, LATER + b"\x91" * 200 + b"\x01"),  # what can be decoded here, and not encoded again deeper in the stack
        (decode_keyed, b"\x91\x91\xa2\xff\xfe"),
        (decode_keyed, b"\x97\x90\x90\xc2\x90\xa0\x90" + b"\x91" * 50_000 + b"\x01"),
        (decode_failed, b"\x91\xa2\xff\xfe"),
        (decode_fragment, b"\x91\xa2\xff\xfe"),
        (decode_payloads, b"\x91\xa2\xff\xfe"),
    ],
)
def test_whatever_stands_there_a_decoder_says_that_it_does_not_decode(decode: Any, data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_what_a_newer_release_writes_into_a_record_has_few_levels() -> None:
    def record(levels: int) -> bytes:
        return b'{"newer_field":' + b"[" * levels + b"]" * levels + b',"next":17}'

    few = decode_record(record(20), Tail)
    assert decode_record(encode_record(few), Tail).newer == few.newer
    with pytest.raises(WrongCluster, match="nested too deep"):
        decode_record(record(150), Tail)


def test_a_pointer_survives_its_codec() -> None:
    pointer = Pointer(sub=7, index=3, n=1, by="guid")
    assert keys.decode_pointer(keys.encode_pointer(pointer)) == pointer
