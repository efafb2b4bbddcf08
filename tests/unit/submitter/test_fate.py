"""A Submitter reads from the tail what became of an ENQUEUE that was refused or not answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord.protocol.multi import Conflict, ConflictKind, Unknown
from rmgr.model.tasks.submission import Tail
from rmgr.submitter.upkeep import Fate, fate_of

BEFORE = Tail(next=4, reigns=((0, "me"),), enqueued="me-1")
SENT = replace(BEFORE, next=9, enqueued="me-2")
REFUSED = Conflict(index=0, path="/subs/1/tail", kind=ConflictKind.BAD_VERSION)
#: Answer to a commit that the connection lost
LOST = Unknown(cause="connection lost")


@pytest.mark.parametrize(
    ("now", "version", "answer", "fate"),
    [
        (SENT, 6, LOST, Fate.COMMITTED),
        (SENT, 6, REFUSED, Fate.COMMITTED),
        (replace(BEFORE, complete=True), 6, REFUSED, Fate.COMPLETED),
        (replace(BEFORE, complete=True, reigns=((0, "me"), (4, "you"))), 6, REFUSED, Fate.TAKEN_OVER),
        (replace(BEFORE, reigns=((0, "me"), (4, "you"))), 6, LOST, Fate.TAKEN_OVER),
        (BEFORE, 5, LOST, Fate.OPEN),
        (BEFORE, 5, REFUSED, Fate.REFUSED),
    ],
)
def test_the_tail_says_what_became_of_a_growth(now: Tail, version: int, answer: Conflict | Unknown, fate: Fate) -> None:
    assert fate_of(SENT, before=(BEFORE, 5), now=(now, version), answer=answer) is fate
