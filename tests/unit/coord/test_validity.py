"""Valid records and names: every field has a rule; hostile values are refused typed and cheaply, honest ones accepted."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord import validity
from rmgr.coord.protocol import keys, paths, records
from rmgr.coord.protocol.multi import MAX_OPS, Stamped, Stat
from rmgr.coord.protocol.records import UNREADABLE, encode_block, encode_record
from rmgr.daemons.starter.core import fetch
from rmgr.errors import DataLost, InvalidRecord, RmgrError, UsageError, WrongCluster
from rmgr.model.base import MAX_NUMBER
from rmgr.model.block import MAX_TASKS, MOST_ATTEMPTS, MOST_TASKS, NO_SEQ, BlockData, BlockKey
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.submission import Command, Submission, Tail
from tests.harness import hostile
from tests.harness.records_of_0_1_0 import RECORDS

#: Where records are, and what there is none.
MODULES = ("base", "identity", "node", "queue", "block", "submission", "line")
NO_RECORDS = frozenset({"Array", "Bound", "Identity", "Placed"})

HONEST = {type(record): record for record in hostile.SAMPLES}


def _records() -> list[type]:
    found = []
    for name in MODULES:
        module = importlib.import_module(f"rmgr.model.{name}")
        mine = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
        found += [kind for kind in mine if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)]
    return found


def test_every_field_of_every_record_has_a_rule() -> None:
    """A new field, or a new record, needs a line in `coord/validity.py`."""
    known = validity.kinds()
    for kind in _records():
        if kind.__name__ in NO_RECORDS:
            continue
        assert kind in known, f"{kind.__name__} has no rules"
        names = set(hostile.fields_of(HONEST[kind]))
        assert names == known[kind], f"{kind.__name__}: {names ^ known[kind]}"


@pytest.mark.parametrize("record", hostile.SAMPLES, ids=lambda record: type(record).__name__)
def test_honest_records_pass(record: Any) -> None:
    validity.check(record, where="there")


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_records_of_the_first_release_pass(name: str) -> None:
    record = RECORDS[name]
    if isinstance(record, Submission) and record.python is not None:  # the hashes in it are made up
        record = dataclasses.replace(record, python=dataclasses.replace(record.python, modules=(hostile.SHA,), initializer=hostile.SHA))
    if type(record) in validity.kinds():
        validity.check(record, where=name)


@pytest.mark.parametrize("record", [item for item in hostile.SAMPLES if type(item) is not BlockKey], ids=lambda item: type(item).__name__)
def test_hostile_bytes_are_refused_typed_or_can_be_written_again(record: Any) -> None:
    """What is not refused, every process can read, compare, hash where it does, and write again."""
    kind = type(record)
    parts = isinstance(record, msgspec.Struct) and kind not in validity.PACKED  # of other records only: nothing decodes them alone
    passed = 0
    for field, label, data in hostile.hostile(record):
        told = [""]
        try:
            found = msgspec.msgpack.decode(data, type=kind) if parts else validity.decode(data, kind, "there")
            validity.check(found, where="there")
        except (InvalidRecord, WrongCluster) as error:
            told.append(error.message)
        except UNREADABLE:
            told.append("a part" if parts else "")
        else:
            passed += 1
            assert encode_record(found) if dataclasses.is_dataclass(found) else msgspec.msgpack.encode(found)
            continue
        assert 0 < len(told[-1]) < 700, (field, label)
    assert passed  # left out, a field with a default has it; of a part, what its record refuses as a whole


@pytest.mark.parametrize("record", hostile.SAMPLES, ids=lambda record: type(record).__name__)
def test_no_value_whatever_makes_a_rule_raise_otherwise(record: Any) -> None:
    for field in hostile.fields_of(record):
        for value in [*hostile.VALUES.values(), object(), None, (), ((1, 2, 3),), ("a",), {1: 2}]:
            spoilt = dataclasses.replace(record, **{field: value}) if dataclasses.is_dataclass(record) else _changed(record, field, value)
            told = "there"
            try:
                validity.check(spoilt, where="there")
            except InvalidRecord as error:
                told = error.message
            assert "there" in told
            assert len(told) < 700


def _changed(record: Any, field: str, value: Any) -> Any:
    return type(record)(**({name: getattr(record, name) for name in hostile.fields_of(record)} | {field: value}))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec_sha256": "../../x"}, "spec_sha256"),
        ({"spec_sha256": "٣" * 64}, "spec_sha256"),
        ({"id": 0}, "id"),
        ({"id": MAX_NUMBER + 1}, "id"),
        ({"user": "a/b"}, "user"),
        ({"user": ""}, "user"),
        ({"queue": "../x"}, "queue"),
        ({"command": None}, "command"),
        ({"array": "1-100000000000"}, "array"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"name": "a\0b"}, "name"),
        ({"submitted_us": 1 << 60}, "submitted_us"),
    ],
    ids=lambda item: str(item)[:40],
)
def test_a_fault_names_where_the_field_and_what_may_stand_there(changes: dict[str, Any], field: str) -> None:
    record = dataclasses.replace(HONEST[Submission], **changes)
    with pytest.raises(InvalidRecord, match=rf"/subs/0/1: {field} is .* where only .* may stand") as caught:
        validity.check(record, where="/subs/0/1")
    assert caught.value.hint


@pytest.mark.parametrize("name", ["n" * 256, "é" * 128, "d/" * 2048, "a\0b", "\ud800", 7])
def test_names_that_no_file_can_have_stand_in_no_command(name: Any) -> None:
    for changes in (
        {"out": name},
        {"err": name},
        {"cwd": name},
        {"input_files": (("k", name),)},
        {"output_files": (("k", name),)},
    ):
        with pytest.raises(InvalidRecord, match=rf"{next(iter(changes))}\S* is .* where only a file name"):
            validity.check(Command(argv=("true",), **changes), where="there")
    longest = "n" * 255 + "/" + "é" * 127
    validity.check(Command(argv=("true",), out=longest, output_files=(("k", longest),)), where="there")


def test_faults_inside_say_where_inside() -> None:
    record = HONEST[Submission]
    spoilt = dataclasses.replace(record, command=dataclasses.replace(record.command, argv=("a", "b\0")))
    with pytest.raises(InvalidRecord, match=r"x: command\.argv\[1\] is "):
        validity.check(spoilt, where="x")


def test_a_record_is_of_the_submission_whose_path_it_has() -> None:
    data = encode_record(HONEST[Submission])
    assert validity.submission(data, 1).id == 1
    with pytest.raises(InvalidRecord, match="id is 1, where only 2 may stand"):
        validity.submission(data, 2)


def test_a_record_that_was_refused_is_refused_again_and_one_that_was_read_is_still_of_its_own_number() -> None:
    record = HONEST[Submission]
    well, ill = encode_record(record), encode_record(dataclasses.replace(record, queue="../x"))
    for _ in range(3):
        assert validity.submission(well, 1) == record
        for data, number in ((well, 2), (ill, 1)):
            with pytest.raises(InvalidRecord):
                validity.submission(data, number)


def test_what_no_newer_release_wrote_costs_a_record_no_rule() -> None:
    from rmgr.coord.field_rules import BOOK

    assert BOOK.fault(Tail(next=1)) is None
    asked = BOOK.asked[Tail]
    assert asked.usual[asked.names.index("newer")] is msgspec.UNSET
    for odd in (object(), {"a": 1 << 70}):
        assert BOOK.fault(dataclasses.replace(Tail(next=1), newer=odd)) is not None


def test_a_tail_cannot_promise_more_than_a_submission_can_have() -> None:
    validity.check(Tail(next=2_000_000), where="t")
    validity.check(Tail(next=MOST_TASKS), where="t")
    for many in (MOST_TASKS + 1, 10**15):
        with pytest.raises(InvalidRecord, match="next"):
            validity.check(Tail(next=many), where="t")


def test_a_waiting_block_holds_the_arguments_of_all_its_tasks() -> None:
    key = BlockKey(priority=0, seq=1, submission=1, first=4, count=2, attempt=1, cores=1, memory_mib=0)
    validity.check_block(key, BlockData(), where="b")
    validity.check_block(key, BlockData(base=4, payloads=(b"", b"")), where="b")
    for base, count in ((4, 1), (5, 2), (0, 4)):
        with pytest.raises(InvalidRecord, match="payloads"):
            validity.check_block(key, BlockData(base=base, payloads=(b"",) * count), where="b")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[" * 100_000, b'{"next":1' + b"0" * 400 + b"}", b'{"enqueued":"\xff"}', b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"],
    ids=["nothing", "no JSON", "deep", "10^400", "no UTF-8", "deep in an unknown field"],
)
def test_whatever_stands_in_a_znode_ends_in_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        validity.decode(data, Tail, "/subs/0/1/tail")


def test_a_record_of_a_newer_release_is_not_called_invalid() -> None:
    data = encode_record(HONEST[Submission]).replace(b'"format":1', b'"format":2')
    with pytest.raises(WrongCluster, match="newer release"):
        validity.decode(data, Submission, "x")


def test_numbers_of_submissions_end_where_names_do() -> None:
    assert validity.decode(b"7", int, paths.IDS) == 7
    for data in (b"-1", b"10000000000", b"1" * 400, b"true", b'"7"'):
        with pytest.raises(InvalidRecord):
            validity.decode(data, int, paths.IDS)


# -- names ------------------------------------------------------------------------------------------------------------------------

_KEYS = st.builds(
    BlockKey, priority=st.integers(-1_000_000, 1_000_000), seq=st.integers(0, NO_SEQ), submission=st.integers(1, MAX_NUMBER),
    first=st.integers(0, MOST_TASKS - MAX_TASKS), count=st.integers(1, MAX_TASKS), attempt=st.integers(1, MOST_ATTEMPTS),
    cores=st.integers(1, 99_999), memory_mib=st.integers(0, 999_999_999), user=st.just("") | st.text(max_size=20).map(paths.user_tag),
)
_GOOD = "1000000.0000000001.0000000000.001.000001.00001.000000000-0000000001"


@given(_KEYS)
def test_names_of_blocks_and_their_keys_are_one_to_one(key: BlockKey) -> None:
    validity.check(key, where="k")
    name = paths.block_name(key)
    assert paths.parse_block(name) == key
    assert (paths.tag_in(name), paths.submission_in(name), len(name) in paths.BLOCK_NAMES) == (key.user, key.submission, True)


@given(
    st.text(st.sampled_from("0123456789.-+_ \n٣²"), min_size=60, max_size=70)
    | st.from_regex(r"\d{7}\.\d{10}\.\d{10}\.\d{3}\.\d{6}\.\d{5}\.\d{9}(\.[a-z2-8]{6})?-\d{10}\n?")
)
def test_what_is_parsed_is_what_its_builder_makes(name: str) -> None:
    for _, key in paths.blocks_in([name]):
        assert paths.block_name(key) == name
        validity.check(key, where=name)


@pytest.mark.parametrize(
    "name",
    [
        _GOOD.replace(".001.", ".000."),
        _GOOD.replace(".001.", ".257."),
        _GOOD.replace(".00001.", ".00000."),
        _GOOD.replace(".000001.", ".000000."),
        _GOOD.replace(".000001.", ".100000."),
        _GOOD.replace("0000000001.", "0000000000.", 1),
        _GOOD.replace(".0000000000.", ".9999999999."),
        _GOOD.replace("1000000.", "2000001."),
        _GOOD + "\n",
        _GOOD.replace("1", "\u0661"),
        _GOOD.replace("-", ".-"),
        _GOOD.replace("-", ".abcde-"),
        _GOOD.replace("-", ".ABCDEF-"),
        _GOOD.replace("-", ".abcdef.abcdef-"),
        "9" * 5000,
        "",
    ],
)
def test_names_that_no_block_has_are_passed_over(name: str) -> None:
    assert len(paths.blocks_in([_GOOD, name])) == 1
    with pytest.raises(ValueError, match="is not the name of a block"):
        paths.parse_block(name)
    assert paths.parse_start_order(f"g+{name}") is None


@pytest.mark.parametrize(
    "name",
    ["01.1.1", "0.0.1", "0.257.1", "0.1.0", "0.1.100000", "9999999999.1.1", "+1.1.1", "1_0.1.1", "0.1.\u0661", "0.1.1\n", "9" * 5000, ""],
)
def test_names_that_no_failed_range_has_are_passed_over(name: str) -> None:
    assert paths.failed_in([name, "0.1.1"]) == [("0.1.1", (0, 1, 1))]
    with pytest.raises(ValueError, match="is not"):
        paths.parse_failed_range(name)


@pytest.mark.parametrize("name", ["", "00", "01", "-1", "+1", "1_0", " 1", "1\n", "\u0663", "\u00b2", "9" * 11, "9" * 5000])
def test_names_that_are_no_number_of_a_submission(name: str) -> None:
    assert paths.parse_number(name) is None


@given(st.integers(0, MAX_NUMBER))
def test_numbers_are_read_back(number: int) -> None:
    assert paths.parse_number(str(number)) == number


@pytest.mark.parametrize("key", ["out/1/0/1/0", "out/0000000001/0000000000/00001/" + "9" * 5000, "events/1/1/1"])
def test_keys_of_the_store_are_read_only_as_they_are_written(key: str) -> None:
    parse = {"out": keys.parse_output, "eve": keys.parse_events}[key[:3]]
    with pytest.raises(UsageError):
        parse(key)


def test_an_order_says_which_block_in_few_characters() -> None:
    with pytest.raises(RmgrError, match="block"):
        validity.check(InboxOrder(order=OrderKind.SIGNAL, submission=1, extra={"block": "x" * 101}), where="o")


@pytest.mark.parametrize("grace_us", ["", "\u00b2", "\u0663", "-1", "1e6", "9" * 20, "9" * 900])
def test_an_order_says_how_long_it_may_take_as_a_span(grace_us: str) -> None:
    order = InboxOrder(order=OrderKind.CHECKPOINT, submission=1, extra={"grace_us": grace_us})
    with pytest.raises(RmgrError, match="grace_us"):
        validity.check(order, where="o")
    for good in ("0", "30000000"):
        validity.check(dataclasses.replace(order, extra={"grace_us": good}), where="o")


def test_checking_a_block_costs_little() -> None:
    """A bound for a loaded machine, far above what it costs (see `validity.check`)."""
    data = msgspec.structs.replace(HONEST[BlockData], payloads=(b"x" * 20,) * MAX_TASKS, allocation=None)
    assert encode_block(data)
    best_s = min(_seconds(data) for _ in range(5))
    assert best_s / 200 < 1e-3


def _seconds(data: BlockData) -> float:
    begun_s = time.perf_counter()
    for _ in range(200):
        validity.check(data, where="b")
    return time.perf_counter() - begun_s


def test_a_tail_claims_no_more_tasks_than_its_changes_can_have_brought() -> None:
    most = MAX_OPS * MAX_TASKS

    def read(total: int, version: int) -> Tail:
        return validity.tail(Stamped(encode_record(Tail(next=total)), Stat(version, 1, 0, 0, 0, 0)), 7)

    assert read(most, 0).next == most
    assert read(40 * most, 39).next == 40 * most
    for total, version in ((most + 1, 0), (1 << 26, 3), (40 * most, 38)):
        with pytest.raises(InvalidRecord, match="changes can bring"):
            read(total, version)


#: Just below what a row, and a page, may say that they have: it is their values that have to be counted.
_COUNT, _OF_PAGE = 990_000, 2_990_000
_MOST_BYTES = 16 * 2**20


def crowded(one: bytes, count: int = _COUNT) -> bytes:
    """A MessagePack array of as many."""
    return b"\xdd" + count.to_bytes(4, "big") + one * count


@pytest.mark.parametrize(
    ("decode", "one", "count"),
    [
        (records.decode_outcomes, b"\x91\x01", _COUNT),
        (records.decode_outcomes, b"\x91\x01", 2_000_000),  # says so itself
        (records.decode_page, b"\x91\x01", _OF_PAGE),
        (records.split_page, b"\x91\x01", _OF_PAGE),
        (records.decode_payloads, b"\xc4\x00", 2_000_000),
    ],
)
def test_rows_of_tiny_values_are_refused_before_they_are_built(decode: Callable[[bytes], object], one: bytes, count: int) -> None:
    row = crowded(one, count)
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError):
            decode(row)
        assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_starter_reads_arguments_of_as_many_tasks_as_a_block_has(tmp_path: Path) -> None:
    with pytest.raises(DataLost, match="a block has 256"):
        fetch.decode("args/1/0", crowded(b"\xc4\x00"), tmp_path)
    assert len(fetch.decode("args/1/0", records.encode_payloads((b"x",) * MAX_TASKS), tmp_path)) == MAX_TASKS
    assert not list(tmp_path.iterdir())
