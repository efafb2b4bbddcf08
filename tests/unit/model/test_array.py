"""Array expressions: numbers as people write them, dense positions inside."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.errors import UsageError
from rmgr.model.tasks.array import parse_array, shown_index


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
