"""Exit codes of work: cli.md section 6, row by row."""

from __future__ import annotations

import pytest

from rmgr.cli.words.params import exit_code_of, highest
from rmgr.model.base.states import Reason, State


@pytest.mark.parametrize(
    ("state", "reason", "exit_code", "expected"),
    [
        (State.COMPLETED, Reason.NONE, 0, 0),
        (State.COMPLETED, Reason.NONE, None, 0),
        (State.FAILED, Reason.EXIT_CODE, 3, 3),
        (State.FAILED, Reason.EXIT_CODE, 255, 255),
        (State.FAILED, Reason.SIGNAL, 11, 139),
        (State.FAILED, Reason.SIGNAL, -11, 139),
        (State.FAILED, Reason.SIGNAL, 139, 139),
        (State.FAILED, Reason.SIGNAL, None, 137),
        (State.FAILED, Reason.TIME_LIMIT, 143, 124),
        (State.FAILED, Reason.OUT_OF_MEMORY, None, 137),
        (State.FAILED, Reason.NODE_LOST, None, 125),
        (State.FAILED, Reason.DATA_LOST, None, 125),
        (State.FAILED, Reason.LEASE_LOST, None, 125),
        (State.FAILED, Reason.POISON, None, 125),
        (State.FAILED, Reason.EXCEPTION, None, 1),
        (State.FAILED, Reason.START_FAILED, 127, 127),
        (State.FAILED, Reason.START_FAILED, 126, 126),
        (State.FAILED, Reason.START_FAILED, None, 1),
        (State.FAILED, Reason.BAD_OUTPUT, None, 1),
        (State.CANCELLED, Reason.USER_CANCEL, None, 130),
        (State.CANCELLED, Reason.DEPENDENCY_FAILED, None, 130),
    ],
)
def test_the_end_of_work_has_its_exit_code(state: State, reason: Reason, exit_code: int | None, expected: int) -> None:
    assert exit_code_of(state, reason, exit_code) == expected


def test_of_several_the_highest_counts() -> None:
    assert highest([0, 3, 1]) == 3
    assert highest([]) == 0
