"""Words and numbers that people use (`last`, `42_7`, the array index), and the dense positions that the protocol knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmgr.errors import NotFound
from rmgr.model.base.units import counted
from rmgr.model.tasks.array import parse_array

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session
    from rmgr.cli.words.selectors import Target


def find_one(session: Session, word: str) -> Target:
    """The one submission or task that `word` means. Raises NotFound, UsageError."""
    from rmgr.cli.words.selectors import parse_one, resolve

    selection = parse_one(word)
    if not selection.needs_list:
        number = selection.named[0]
        return resolve(selection, [session.query().job(number)], me=session.me)[0]
    return resolve(selection, session.query().jobs(ended=True, user=session.me), me=session.me)[0]


def positions_of(session: Session, number: int, shown: Sequence[int], *, total: int | None = None) -> list[int]:
    """Positions of the tasks with these numbers. Raises NotFound naming the first that is not there."""
    from rmgr.submitter.questions import ReadRecord

    submission = session.ask(ReadRecord(number=number)).record
    array = parse_array(submission.array) if submission.array else None
    positions = []
    for index in shown:
        position = array.position_of(index) if array else index
        if position is None or (total is not None and position >= total):
            has = f"it has {counted(total, 'task')}, counted from 0" if total is not None else ""
            why = f"its array is {submission.array}" if array else has
            raise NotFound(f"there is no task {number}_{index}" + (f": {why}" if why else ""), hint=f"rmgr tasks {number}")
        positions.append(position)
    return positions
