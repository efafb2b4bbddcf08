"""What stands for a submission's nonce: how it is named, what it says, and when it may go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord import nonces
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Set, Stamped, Stat
from rmgr.model.tasks.submission import Submission, Work

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
