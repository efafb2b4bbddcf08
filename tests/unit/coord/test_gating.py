"""Holds, releases and cancels: who has done them is in the record, and what an operator holds operators alone release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import Change, Doer
from rmgr.model.base.states import Reason
from rmgr.model.tasks.submission import Command, Condition, Dependency, Phase, Submission, Work

RECORD = Submission(id=7, name="w", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
ROOT = Doer(name="root", is_operator=True, now_us=1_700_000_000_000_000)
ANN = Doer(name="ann", now_us=1_700_000_000_000_000)
AFTER = (Dependency(condition=Condition.OK, submission=3),)


def changed(change: Change | str) -> Submission:
    assert isinstance(change, Change), change
    return change.record


def test_an_operators_hold_names_him_and_its_user_does_not_release_it() -> None:
    held = changed(changing.held(RECORD, "disk is full", ROOT))
    assert (held.phase, held.reason, held.by, held.by_us) == (Phase.HELD, Reason.OPERATOR_HOLD, "root", ROOT.now_us)
    refusal = changing.released(held, ANN)
    assert refusal == (
        "held by root, an operator, since 2023-11-14T22:13:20Z (disk is full): operators alone release it; ask root, or another operator"
    )
    assert changing.released(held) == refusal  # a program that says nothing of itself is its user's
    assert changed(changing.released(held, Doer(name="eve", is_operator=True))) == RECORD


def test_its_users_own_hold_and_cancel_leave_the_record_as_before() -> None:
    for change in (changing.held, changing.cancelled):
        assert change(RECORD, "mine", ANN) == change(RECORD, "mine")
        assert not changed(change(RECORD, "mine", ANN)).by


@pytest.mark.parametrize("before", [Reason.USER_HOLD, Reason.DEPENDENCY])
def test_an_operators_hold_takes_the_place_of_another_wait_and_gives_it_back(before: Reason) -> None:
    waits = replace(RECORD, phase=Phase.HELD, reason=before, after=AFTER if before is Reason.DEPENDENCY else ())
    change = changing.held(waits, "", ROOT)
    assert isinstance(change, Change)
    assert change.gate is None  # it has none
    assert change.record.reason == Reason.OPERATOR_HOLD
    back = changed(changing.released(change.record, ROOT))
    assert back.reason == (Reason.DEPENDENCY if before is Reason.DEPENDENCY else "")
    assert (back.by, back.by_us) == ("", 0)


def test_an_operators_hold_stays_when_its_user_or_another_operator_holds_it_again() -> None:
    held = changed(changing.held(RECORD, "", ROOT))
    for doer in (ANN, Doer(name="eve", is_operator=True)):
        assert changing.held(held, "", doer) == "it is held already"


def test_a_cancel_names_the_operator_and_its_user_may_cancel_what_is_held() -> None:
    gone = changed(changing.cancelled(RECORD, "too large", ROOT))
    assert (gone.reason, gone.by) == (Reason.OPERATOR_CANCEL, "root")
    assert changing.told_by(gone) == "cancelled by root, an operator, 2023-11-14T22:13:20Z (too large)"
    assert changing.cancel_words(gone) == "by root: too large"
    mine = changed(changing.cancelled(changed(changing.held(RECORD, "", ROOT)), "", ANN))
    assert (mine.reason, mine.by, mine.by_us) == (Reason.USER_CANCEL, "", 0)
