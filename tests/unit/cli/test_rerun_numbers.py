"""`rmgr rerun --failed` of an array whose failed tasks stand apart: what fits a record is submitted, the rest is told in parts."""

from __future__ import annotations

import re

import pytest

from rmgr.cli.submit.rerun import _check_numbers
from rmgr.errors import RequestTooLarge
from rmgr.model.tasks.submission import Command, Submission, Work


def record(array: str, word: str = "true") -> Submission:
    return Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=(word,)), array=array)


SCATTERED = [at for at in range(9000) if at * at % 11 in {3, 4, 5}]


def test_scattered_tasks_are_refused_with_a_first_part_that_fits() -> None:
    work = record("1000001-1009000")
    with pytest.raises(RequestTooLarge, match="the numbers of these 4,908 tasks are too scattered") as told:
        _check_numbers(work, SCATTERED, " --failed")
    first, last = map(int, re.findall(r"rmgr rerun 42 --failed --tasks (\d+)-(\d+); then those behind", told.value.hint)[0])
    part = [at for at in SCATTERED if first <= at + 1_000_001 <= last]
    assert len(part) > 500
    _check_numbers(work, part, " --failed")
    with pytest.raises(RequestTooLarge):
        _check_numbers(work, SCATTERED[: len(part) + 3], " --failed")


@pytest.mark.parametrize(
    ("array", "positions"),
    [("1-9000", list(range(9000))), ("1-9000", list(range(0, 9000, 7))), ("1-9000", SCATTERED[:100]), ("", [0]), ("1-3", [1])],
)
def test_what_can_be_said_in_few_numbers_is_not_refused(array: str, positions: list[int]) -> None:
    _check_numbers(record(array), positions, "")


def test_of_a_long_command_it_is_not_the_numbers_that_are_refused() -> None:
    _check_numbers(record("1-9000", "x" * 20_000), SCATTERED, " --failed")
