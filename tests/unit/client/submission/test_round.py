"""A Submitter reads from the tail what became of an ENQUEUE that was refused or not answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.client.submission.round import Round, RoundFate, fate_of
from rmgr.coord.protocol.multi import Conflict, ConflictKind, Gone, Multi, Unknown
from rmgr.model.tasks.submission import Tail

BEFORE = Tail(next=4, reigns=((0, "me"),), enqueued="me-1")
SENT = replace(BEFORE, next=9, enqueued="me-2")
REFUSED = Conflict(index=0, path="/subs/1/tail", kind=ConflictKind.BAD_VERSION)
#: Answer to a commit that the connection lost
LOST = Unknown(cause="connection lost")


@pytest.mark.parametrize(
    ("now", "version", "answer", "name", "fate"),
    [
        (SENT, 6, LOST, "ENQUEUE", RoundFate.COMMITTED),
        (SENT, 6, REFUSED, "ENQUEUE", RoundFate.COMMITTED),
        (replace(BEFORE, complete=True), 6, REFUSED, "ENQUEUE", RoundFate.COMPLETED),
        (replace(BEFORE, complete=True, reigns=((0, "me"), (4, "you"))), 6, REFUSED, "ENQUEUE", RoundFate.TAKEN_OVER),
        (replace(BEFORE, reigns=((0, "me"), (4, "you"))), 6, LOST, "ENQUEUE", RoundFate.TAKEN_OVER),
        (BEFORE, 5, LOST, "ENQUEUE", RoundFate.OPEN),
        (BEFORE, 5, LOST, "HAND", RoundFate.OPEN),
        (BEFORE, 5, REFUSED, "HAND", RoundFate.NOT_TAKEN),
        (BEFORE, 5, REFUSED, "ENQUEUE", RoundFate.REFUSED),
    ],
)
def test_the_tail_says_what_became_of_a_round(now: Tail, version: int, answer: Conflict | Unknown, name: str, fate: RoundFate) -> None:
    current = Round(packed=[], dropped=[], tail=SENT, rows={}, multi=Multi(name=name, ops=(), proof=Gone("/x")))
    assert fate_of(current, before=(BEFORE, 5), now=(now, version), answer=answer) is fate
