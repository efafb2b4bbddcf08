"""How long rows are kept that are named by what they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord import contents
from rmgr.coord.contents import KEPT_S, RENEW_S, TRUSTED_S, Needs
from rmgr.coord.protocol import keys
from rmgr.model.tasks.submission import Command, PythonEnvironment, Submission, Upload, Work

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0
ONE, TWO, THREE, FOUR = (str(digit) * 64 for digit in range(1, 5))
PYTHON = Submission(id=1, name="n", user="u", queue="q", work=Work.PYTHON, submitted_us=round(NOW_S * 1e6))
COMMAND = replace(PYTHON, work=Work.COMMAND)


@pytest.mark.parametrize(("note", "is_fresh"), [(b"", False), (b"x", False), (b"9" * 40, False), ("٣".encode(), False)])
def test_what_is_no_mark_is_renewed(note: bytes, is_fresh: bool) -> None:
    assert contents.is_fresh(note, NOW_S) is is_fresh
    assert not contents.is_marked(note, NOW_S)
    assert not contents.is_old(note, NOW_S)


@pytest.mark.parametrize(
    ("age_s", "is_fresh", "is_marked", "is_old"),
    [
        (0, True, True, False),
        (RENEW_S - 10, True, True, False),
        (RENEW_S + 10, False, True, False),
        (KEPT_S + 10, False, True, True),
        (-TRUSTED_S / 2, True, True, False),  # a clock that is ahead
        (-1000 * DAY_S, False, False, False),  # a year that nobody would live to see the end of
    ],
)
def test_a_mark_is_renewed_long_before_its_row_goes(age_s: float, is_fresh: bool, is_marked: bool, is_old: bool) -> None:
    note = contents.mark(NOW_S - age_s)
    assert (contents.is_fresh(note, NOW_S), contents.is_marked(note, NOW_S), contents.is_old(note, NOW_S)) == (is_fresh, is_marked, is_old)


def test_a_record_names_all_that_its_tasks_need() -> None:
    environment = PythonEnvironment(modules=(TWO, THREE), initializer=FOUR)
    assert contents.named_by(replace(PYTHON, function=ONE, python=environment)) == {
        keys.function(ONE),
        keys.module(TWO),
        keys.module(THREE),
        keys.function(FOUR),
    }
    command = Command(script_sha256=ONE, stdin_sha256=TWO, uploads=(Upload(name="x", sha256=THREE),))
    found = contents.named_by(replace(COMMAND, command=command, entries=FOUR))
    assert found == {keys.upload(digest) for digest in (ONE, TWO, THREE, FOUR)}
    assert contents.named_by(COMMAND) == set()


def test_what_a_record_names_is_needed_however_old_its_mark_is() -> None:
    needs = Needs.of([replace(PYTHON, function=ONE)], NOW_S)
    assert needs.may_name(keys.function(ONE), contents.mark(0))
    assert not needs.may_name(keys.function(TWO), contents.mark(0))


def test_a_function_is_needed_that_a_block_of_a_python_submission_may_name() -> None:
    note = contents.mark(NOW_S - KEPT_S - 10)
    young = replace(PYTHON, submitted_us=round((NOW_S - DAY_S) * 1e6))
    old = replace(PYTHON, submitted_us=round((NOW_S - KEPT_S + RENEW_S) * 1e6))
    assert not Needs.of([young], NOW_S).may_name(keys.function(ONE), note)
    assert Needs.of([young, old], NOW_S).may_name(keys.function(ONE), note)
    assert not Needs.of([replace(old, work=Work.COMMAND)], NOW_S).may_name(keys.function(ONE), note)
    assert not Needs.of([old], NOW_S).may_name(keys.upload(ONE), note), "files are named by records alone"
