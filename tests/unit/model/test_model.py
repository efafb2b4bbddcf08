"""Nouns: the transition table, ids, units, blocks, array expressions, names of output files."""

from __future__ import annotations

import contextlib
import pickle
import signal
import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr import errors
from rmgr.errors import NotFound, UsageError
from rmgr.model.base import Capacity, Request, check_name, parse_submission, taskq_name
from rmgr.model.block import STORY_CHARS, BlockKey, pending_indices, runs, story_line
from rmgr.model.states import TRANSITIONS, State, diagram
from rmgr.model.submission import expand_output_name, has_own_name, parse_array, shown_index, unknown_placeholder
from rmgr.model.units import MAX_DURATION_US, format_duration, format_size, parse_duration_us, parse_size, signal_name
from tests.places import ROOT


def test_the_transition_table_is_small_and_complete():
    assert len(TRANSITIONS) <= 30
    assert all(why for why in TRANSITIONS.values())
    assert not [old for old, _ in TRANSITIONS if old.is_final], "nothing leaves a final state"
    reachable = {State.INITIAL, State.HELD}
    for _ in State:
        reachable |= {new for old, new in TRANSITIONS if old in reachable}
    assert reachable == set(State)


def test_the_diagram_has_every_edge():
    text = diagram()
    assert all(f"{old} --> {new}: " in text for old, new in TRANSITIONS)


def test_the_map_shows_the_diagram_of_the_table():
    map_of_the_house = ROOT / "rmgr" / "model" / "README.md"
    assert f"```mermaid\n{diagram()}\n```" in map_of_the_house.read_text()


def test_ids_read_what_they_write():
    assert taskq_name(42) == "taskq-0000000042"
    assert parse_submission("taskq-0000000042") == parse_submission("42") == 42


@pytest.mark.parametrize("text", ["", "x", "42_", "_7", "42_7_1", "-1", "42_7.2", "99999999999_1", "42 7", "../42"])
def test_a_malformed_id_says_how_ids_look(text):
    with pytest.raises(errors.UsageError) as caught:
        parse_submission(text)
    assert "42_7" in caught.value.hint


@pytest.mark.parametrize("name", ["..", "a/b", "", ".a", "a.", "a b", "x" * 65, "-n"])
def test_names_cannot_leave_their_directory(name):
    with pytest.raises(errors.UsageError):
        check_name("node", name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("01:02:03", 3723),
        ("5:30", 330),
        ("1-00:00:00", 86400),
        ("0.5", 0.5),
        ("2d", 172800),
        ("250ms", 0.25),
        ("10min", 600),
        ("1hour30minutes", 5400),
        ("2days", 172800),
        ("1w", 604800),
        ("1-12", 129600),
    ],
)
def test_durations(text, seconds):
    assert parse_duration_us(text) == seconds * 1e6


@pytest.mark.parametrize("text", ["", "x", "10x", "1h 30m", "h", "-5", "1:2:3:4", "1-2-3", "10M", "5mi", "1-120"])
def test_a_malformed_duration_says_how_durations_look(text):
    with pytest.raises(errors.UsageError, match="is not a duration") as caught:
        parse_duration_us(text)
    assert "1h30m" in caught.value.hint


def test_what_is_too_long_for_records_is_no_duration_and_no_size():
    assert parse_duration_us("36525d") == MAX_DURATION_US
    for read, text in (
        (parse_duration_us, "36526d"),
        (parse_duration_us, "9" * 5000),
        (parse_size, "9" * 30 + "G"),
        (parse_size, "9" * 5000),
    ):
        with pytest.raises(errors.UsageError):
            read(text)


def test_sizes():
    assert [parse_size(text) for text in ("512M", "2G", "1024", "1k", "1.5GiB")] == [512 << 20, 2 << 30, 1024, 1024, 3 << 29]
    with pytest.raises(errors.UsageError, match="is not a size"):
        parse_size("12 apples")
    assert [format_size(size) for size in (0, 1023, 1024, 512 << 20, 3 << 29)] == ["0", "1023", "1.0K", "512M", "1.5G"]


def test_durations_for_people():
    told = {0: "0s", 0.00042: "0.4ms", 0.044: "44ms", 0.44: "440ms", 0.9999: "1s", 1.44: "1.4s", 2: "2s", 12.9: "12s", 90: "1m30s"}
    told |= {3600: "1h", 3723: "1h2m3s"}
    assert {value: format_duration(value) for value in told} == told
    assert format_duration(183_845) == "2d3h4m5s"
    assert [parse_duration_us(format_duration(value)) for value in (2, 90, 3723, 183_845)] == [2e6, 90e6, 3723e6, 183_845e6]


def test_blocks_know_what_is_missing():
    key = BlockKey(priority=0, seq=3, submission=42, first=10, count=6, attempt=1, cores=1, memory_mib=0)
    assert pending_indices(key, 0b010010) == [10, 12, 13, 15]
    assert runs([10, 12, 13, 15]) == [(10, 1), (12, 2), (15, 1)]
    assert key.end == 16


def test_blocks_are_claimed_by_priority_then_arrival_then_index():
    def key(priority, seq, first):
        return BlockKey(priority=priority, seq=seq, submission=1, first=first, count=1, attempt=1, cores=1, memory_mib=0)

    expected = [key(5, 9, 0), key(0, 1, 0), key(0, 1, 7), key(0, 2, 3), key(-1, 0, 0)]
    assert sorted([expected[i] for i in (4, 2, 0, 3, 1)], key=BlockKey.sort_key) == expected


def test_capacity_fits_what_it_covers():
    node = Capacity(cores=4, memory_bytes=8 << 30, resources={"gpu": 1})
    assert node.fits(Request(cores=4, memory_bytes=8 << 30, resources={"gpu": 1}))
    assert not node.fits(Request(cores=5))
    assert not node.fits(Request(memory_bytes=(8 << 30) + 1))
    assert not node.fits(Request(resources={"gpu": 2}))
    assert not node.fits(Request(resources={"fpga": 1}))


def test_errors_survive_pickling_with_their_attributes():
    failed = errors.TaskFailed(
        "42_7 failed", task_id="42_7", reason="EXIT_CODE", attempts=2, node="n1", log_tail="boom", work_exit_code=3, hint="rmgr logs 42_7"
    )
    copy = pickle.loads(pickle.dumps(failed))
    assert (type(copy), str(copy), copy.__dict__) == (errors.TaskFailed, "42_7 failed", failed.__dict__)
    unknown = pickle.loads(pickle.dumps(errors.SubmitUnknown("lost", token="t")))
    assert unknown.token == "t"


def test_a_traceback_says_what_to_do_next() -> None:
    error = pickle.loads(pickle.dumps(NotFound("there is no queue 'x'", hint="rmgr queues")))
    assert str(error) == "there is no queue 'x'"
    assert traceback.format_exception_only(error)[-1] == "hint: rmgr queues\n"
    assert not hasattr(NotFound("nothing to add"), "__notes__")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1-5", [1, 2, 3, 4, 5]),
        ("1-10:3", [1, 4, 7, 10]),
        ("1,3,5-9", [1, 3, 5, 6, 7, 8, 9]),
        ("7", [7]),
        ("5-6,1-2", [5, 6, 1, 2]),
        ("0-6:2,1-6:2", [0, 2, 4, 6, 1, 3, 5]),
        (" 0-2%4 ", [0, 1, 2]),
    ],
)
def test_an_array_counts_positions_in_the_order_written(text: str, numbers: list[int]) -> None:
    array = parse_array(text)
    assert numbers == [array.index_at(position) for position in range(len(array))]
    assert list(range(len(numbers))) == [array.position_of(number) for number in numbers]


def test_the_cap_after_percent_is_kept_apart() -> None:
    assert parse_array("1-100:2%8").max_running == 8
    assert len(parse_array("1-100:2%8")) == 50
    assert parse_array("1-100").max_running == 0


def test_a_number_that_is_not_in_the_array_has_no_position() -> None:
    assert parse_array("1-9:2").position_of(4) is None
    with pytest.raises(IndexError):
        parse_array("1-9:2").index_at(5)


MALFORMED = "|a|1-|-5|5-1|1-5:0|1,,2|1-5%|1-5%0|1-5%x|1-3,2|0-10:2,4|1-99999999999|1-9999999999|١-٣"


@pytest.mark.parametrize("text", MALFORMED.split("|"))
def test_a_malformed_array_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_array(text)
    assert "arrays look like" in refused.value.hint or "submit it in parts" in refused.value.hint


def test_without_an_array_the_position_is_shown() -> None:
    assert shown_index("", 3) == 3
    assert shown_index("10-20:5", 1) == 15


@given(*[st.integers(0, 60)] * 4, st.integers(1, 12), st.integers(1, 12))
def test_a_number_that_stands_in_two_ranges_is_found(first: int, more: int, second: int, again: int, step: int, other: int) -> None:
    one, two = range(first, first + more + 1, step), range(second, second + again + 1, other)
    text = f"{first}-{first + more}:{step},{second}-{second + again}:{other}"
    if set(one) & set(two):
        with pytest.raises(UsageError, match="stands in it twice"):
            parse_array(text)
    else:
        assert len(parse_array(text)) == len(one) + len(two)


def test_ranges_without_end_that_lie_in_each_other_cost_little() -> None:
    begun_s = time.process_time()
    with contextlib.suppress(UsageError):
        parse_array(",".join(f"{first}-9000000:3000" for first in range(1, 3000)))
    with pytest.raises(UsageError, match="overlap"):
        parse_array(",".join(f"{first}-9999999999:99999999" for first in range(1, 20_000)))
    assert time.process_time() - begun_s < 10


def test_of_a_long_sentence_of_a_story_the_beginning_and_the_reason_at_its_end_stay() -> None:
    key = "ckpt/" + "0123456789abcdef" * 20
    told = story_line(f"checkpoint refused: cannot put {key!r} in the store: no space left on the disk")
    assert len(told) == STORY_CHARS
    assert (told.startswith("checkpoint refused: cannot put"), told.endswith("no space left on the disk")) == (True, True)
    assert story_line("x" * STORY_CHARS) == "x" * STORY_CHARS


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("o/%x.%j.%a.%t.%N.%%.%q", "o/a_b.42.5.2.n1.%.%q"),
        ("/d/%j-%a.%t.%x@%N%%%q", "/d/42-5.2.a_b@n1%%q"),
        ("plain", "plain"),
    ],
)
def test_placeholders_are_replaced_and_others_stay(pattern: str, name: str) -> None:
    assert expand_output_name(pattern, job=42, index=5, attempt=2, name="a/b", node="n1") == name


def test_the_array_index_gives_each_task_a_file_of_its_own() -> None:
    assert has_own_name("x-%a.txt")
    assert not has_own_name("x-%j.txt")
    assert not has_own_name("100%%a")


@pytest.mark.parametrize(("pattern", "found"), [("x-%A_%a", "%A"), ("%j-%4j", "%4j"), ("%j.%a.%t.%x.%N.%%A", ""), ("plain", "")])
def test_placeholders_of_other_systems_are_found(pattern: str, found: str) -> None:
    assert unknown_placeholder(pattern) == found


def test_signals_have_the_names_that_python_knows() -> None:
    assert {number: signal_name(number) for number in range(1, 32)} == {number: signal.Signals(number).name for number in range(1, 32)}
    assert [signal_name(number) for number in (0, 40, -1)] == ["signal 0", "signal 40", "signal -1"]
