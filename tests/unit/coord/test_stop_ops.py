"""STOP as data: what it deletes and creates, what it carries on, what proves it."""

from __future__ import annotations

import pytest

from rmgr.coord.ops import place as place_ops
from rmgr.coord.ops.leader import MAX_PAST
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Delete, Gone
from rmgr.coord.protocol.records import decode_block
from rmgr.model.base.states import Reason
from rmgr.model.tasks.block import Allocation, BlockData, BlockKey, PastAttempt

KEY = BlockKey(priority=5, seq=7, submission=42, first=3, count=1, attempt=2, cores=4, memory_mib=0)
PAST = PastAttempt(attempt=2, node="n1", reason=Reason.MIGRATED, error="drained")


def test_a_given_up_attempt_waits_again_in_its_place_as_the_next_one_and_nothing_is_counted() -> None:
    data = BlockData(
        function="f", retries=2, failures=1, losses=1, incarnation=9, started=1, claimed_us=5, stamp="old",
        past=(PastAttempt(1, "n9", Reason.NODE_LOST),), allocation=Allocation(shares=(("n1", 4),), threads=1),
    )  # fmt: skip
    multi, waiting = place_ops.stop("n1", 3, "batch", KEY, data, 6, past=PAST, stamp="new", orders=("g1",))
    fence, gone, made, order = multi.ops
    assert fence == Check(paths.node("n1"), 3) == multi.guard
    assert gone == Delete(paths.running_block("n1", KEY), 6)
    assert multi.proof == Gone(paths.running_block("n1", KEY))
    assert isinstance(made, Create)
    assert made.path == paths.pending_block("batch", waiting)
    assert (waiting.attempt, waiting.seq, waiting.priority, waiting.first) == (3, 7, 5, 3)
    again = decode_block(made.data)
    assert again == BlockData(function="f", retries=2, failures=1, losses=1, stamp="new", past=(*data.past, PAST))
    assert order == Delete(paths.inbox("n1", "g1"))


def test_the_past_stays_short_and_a_held_submission_is_set_aside() -> None:
    data = BlockData(past=tuple(PastAttempt(n, "n1", Reason.MIGRATED) for n in range(1, MAX_PAST + 1)))
    multi, waiting = place_ops.stop("n1", 3, "batch", KEY, data, 6, past=PAST, stamp="s", held=True)
    made = multi.ops[2]
    assert isinstance(made, Create)
    assert made.path == paths.held_block("batch", waiting)
    assert len(decode_block(made.data).past) == MAX_PAST
    assert decode_block(made.data).past[-1] == PAST


def test_what_is_done_is_not_given_up() -> None:
    with pytest.raises(ValueError, match="done"):
        place_ops.stop("n1", 3, "batch", KEY, BlockData(done=1), 6, past=PAST, stamp="s")
