"""Summaries, parts of logs, results, pointers, shares and checkpoints of others: read within bounds, however large they are."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from rmgr.client import output
from rmgr.client.futures import Settled, value_of
from rmgr.client.logs import read_ended, read_flushed
from rmgr.client.queries import list_past, read_past
from rmgr.client.values import Values
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
    encode_record,
)
from rmgr.daemons.leader.placement.requests import _newest
from rmgr.errors import DataLost, WrongCluster
from rmgr.model.base.states import State
from rmgr.model.tasks.block import BlockData, Outcome
from rmgr.model.tasks.submission import Tail
from rmgr.model.views import JobView
from rmgr.procedures.bounded import MOST_LOG_PART_BYTES, MOST_SUMMARY_BYTES
from rmgr.procedures.history import decode_summary, history_rows
from tests.harness.sparing_store import SparingStore

#: A block with one element that only a newer release knows.
NEWER = bytes([0xDC, 0, len(BlockData.__struct_fields__) + 1]) + msgspec.msgpack.encode(list(msgspec.structs.astuple(BlockData())))[3:]
DEEP = b"[" * 100_000 + b"]" * 100_000


@dataclass
class Host:
    """Who asks for the history."""

    store: SparingStore
    notes: list[str] = field(default_factory=list)
    store_url: str = ""

    def data_store(self) -> SparingStore:
        return self.store

    def left_s(self, most: float | None = None) -> float | None:
        return most

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def store() -> SparingStore:
    return SparingStore()


def grow(store: SparingStore, key: str, most: int) -> None:
    """Somebody has written more there than rmgr does."""
    store.put(key, bytes(most + 1))
    store.large.add(key)


def test_a_history_with_a_huge_and_a_nested_row_shows_all_others(store: SparingStore) -> None:
    for number in range(1, 131):
        store.put_many(history_rows(JobView(id=number, name="j", user="ann", queue="q", state=State.COMPLETED, ended_us=number)))
    grow(store, keys.history(7), MOST_SUMMARY_BYTES)
    store.put(keys.history(9), b'{"asked":{"x":' + DEEP + b"}}")
    host = Host(store)
    assert [view.id for view in list_past(host, user=None)] == [number for number in range(130, 0, -1) if number not in (7, 9)]
    assert len(host.notes) == 2
    assert all("(left out)" in note for note in host.notes)
    with pytest.raises(DataLost, match="more than rmgr ever writes there"):
        read_past(host, 7)
    assert read_past(host, 131) is None
    view = read_past(host, 8)
    assert view.id == 8


def test_parts_of_a_log_that_are_none_are_left_out_and_nobody_goes_through_as_many_as_are_claimed(
    store: SparingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(3):
        store.put(keys.log(7, 0, 1, "stdout", part), b"part %d\n" % part)
    grow(store, keys.log(7, 0, 1, "stdout", 1), MOST_LOG_PART_BYTES)
    assert list(read_flushed(store, 7, 0, 1, "stdout")) == [b"part 0\n", b"part 2\n"]
    assert list(read_ended(store, 7, 0, 1, "stdout", parts=3, rest=b"rest")) == [b"part 0\n", b"part 2\n", b"rest"]
    for part in (100, 1_000_000):
        store.put(keys.log(7, 0, 1, "stdout", part), b"part %d\n" % part)
    store.put(keys.logs_of(7, 0, 1, "stdout") + "0000000017x", b"no part")
    found = list(read_ended(store, 7, 0, 1, "stdout", parts=9_999_999_999, rest=b"rest"))
    assert found == [b"part 0\n", b"part 2\n", b"part 100\n", b"part 1000000\n", b"rest"]
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    output.write(store, 7, Outcome(index=0, log_parts=(3, 0), log=(b"rest\n", b"")), 1)
    assert shown.getvalue() == "part 0\npart 2\nrest\n"


def test_a_result_that_is_larger_than_its_outcome_says_is_lost_unread(store: SparingStore) -> None:
    settled = Settled(Outcome(index=0, value_size=4), "n1", 1)
    store.put(keys.output(7, 0, 1), b"four")
    assert value_of(settled, 7, store, None) == b"four"
    grow(store, keys.output(7, 0, 1), 4)
    with pytest.raises(DataLost, match="is not what its node has stored"):
        value_of(settled, 7, store, None)


def test_a_pointer_as_large_as_no_pointer_is_leads_nowhere(store: SparingStore) -> None:
    values = Values(store, None)
    values.put("value", b"x")
    store.put(keys.named("pointer"), bytes(keys.POINTER_BYTES + 1), encoding=Encoding.POINTER)
    store.large.add(keys.named("pointer"))
    assert values.keys() == ["value"]
    with pytest.raises(DataLost, match="cannot be read"):
        keys.decode_pointer(b'{"x":' + DEEP + b"}")


def test_the_newest_checkpoint_is_found_among_thousands_of_keys_that_are_none(store: SparingStore) -> None:
    prefix = keys.checkpoints_of(7, 0)
    assert _newest(store, prefix=prefix) is None
    store.put_many([(f"{prefix}0{number}.x", b"") for number in range(1500)])
    made = [keys.Checkpoint(sub=7, index=0, attempt=attempt, n=n) for attempt, n in ((1, 2), (2, 1), (1, 3))]
    store.put_many([(one.key, b"") for one in made])
    assert _newest(store, prefix=prefix) == made[1]


@pytest.mark.parametrize(
    ("decode", "data", "error"),
    [
        (decode_summary, b'{"asked":{"x":' + DEEP + b"}}", DataLost),
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
        (decode_block, NEWER + b"\x81\x80\x01"),  # a map as the key of a map
        (decode_block, NEWER + b"\x91" * 200 + b"\x01"),  # what can be decoded here, and not encoded again deeper in the stack
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
