"""Nonces, and rows named by their content: their names, their meaning, and when they may be removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord import contents, nonces
from rmgr.coord.contents import KEPT_S, RENEW_S, TRUSTED_S, Needs
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Set, Stamped, Stat
from rmgr.model.submission import Command, PythonEnvironment, Submission, Upload, Work

RECORD = Submission(id=42, name="x", user="ann", queue="default", work=Work.COMMAND, nonce="a" * 32, signed_s=1_800_000_000, host="laptop")


def found(data: bytes = b"42", *, version: int = 0, czxid: int = 7) -> Stamped:
    stat = Stat(version=version, mzxid=9, children=0, creates=0, ephemeral_owner=0, mtime_ms=0, czxid=czxid)
    return Stamped(data, stat)


def test_each_user_nonce_and_time_has_a_name_of_its_own_which_tells_the_time() -> None:
    others = [replace(RECORD, user="bob"), replace(RECORD, nonce="b" * 32), replace(RECORD, signed_s=1), replace(RECORD, id=43)]
    names = [nonces.place_of(record) for record in (RECORD, *others)]
    assert len(set(names)) == 4
    assert names[-1] == names[0], "a number is given later"
    signed_s = RECORD.signed_s
    assert [paths.signed_at(name.removeprefix(f"{paths.NONCES}/")) for name in names[:4]] == [signed_s, signed_s, signed_s, 1]
    for name in ("", "x", f"-1.{'a' * 64}", f"01.{'a' * 64}", f"1.{'a' * 63}", f"1.{'A' * 64}", f"{'9' * 30}.{'a' * 64}"):
        assert paths.signed_at(name) is None


def test_what_goes_on_is_what_was_made_with_its_nonce_and_has_not_ended() -> None:
    assert nonces.fault(RECORD, 7, found()) == ""
    for czxid, there in ((7, None), (7, found(b"43")), (7, found(b"")), (7, found(version=1)), (8, found())):
        assert nonces.fault(RECORD, czxid, there)
    assert nonces.fault(replace(RECORD, nonce=""), 7, found())


def test_an_end_is_said_once_and_changes_no_byte() -> None:
    """So what SUBMIT is proved by, and leads to its number, stays as it was."""
    assert nonces.end_of(RECORD) == Set(nonces.place_of(RECORD), b"42", 0)


@pytest.mark.parametrize("late_s", [3601, -3601, 10**15])
def test_a_refusal_names_both_clocks(late_s: int) -> None:
    told = nonces.untimely(RECORD, RECORD.signed_s + late_s, "ZooKeeper's clock")
    for words in ("2027-01-15T08:00:00Z by the clock of laptop", "by ZooKeeper's clock", "1h apart"):
        assert words in told
    assert nonces.untimely(RECORD, RECORD.signed_s + (3600 if late_s > 0 else -3600), "ZooKeeper's clock") == ""


def test_a_name_is_kept_longer_than_anything_can_be_submitted_under_it() -> None:
    name, signed_s = nonces.place_of(RECORD).rpartition("/")[2], RECORD.signed_s
    assert nonces.KEPT_S > nonces.WINDOW_S
    assert not nonces.is_over(name, signed_s)
    assert not nonces.is_over(name, signed_s + nonces.WINDOW_S + 1)
    assert not nonces.is_over(name, signed_s - nonces.WINDOW_S - 1)
    assert nonces.is_over(name, signed_s + nonces.KEPT_S + 1)
    assert nonces.is_over(name, signed_s - nonces.KEPT_S - 1), "that name is nobody's"
    assert nonces.is_over("nonsense", signed_s)


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
