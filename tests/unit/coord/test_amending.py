"""Who may change, hold, release and cancel a submission, what its record says then, and what is refused of one that others have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.coord import validity
from rmgr.coord.decisions import changing
from rmgr.coord.decisions.changing import Change, Doer, Standing, amended, held, limit_of_running, released, signed
from rmgr.coord.decisions.keeping import BringBack, EndBlock, RenameBlock, SetBlockAside, moves
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import end_block, resubmit
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Delete, Set
from rmgr.coord.protocol.records import encode_block, encode_record
from rmgr.coord.seal import NotSealed, amendment_statement, check_shape, spec_digest
from rmgr.errors import InvalidRecord
from rmgr.model.base import MIB, Request
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, FailedRange
from rmgr.model.states import Reason
from rmgr.model.submission import (
    MOST_CHANGES,
    Amendment,
    Command,
    Condition,
    Dependency,
    Phase,
    Rigid,
    Submission,
    Terms,
    Work,
    as_signed,
    fault_of,
    key_now,
    terms_of,
)

HOUR = 3_600_000_000
RECORD = Submission(
    id=42, name="x", user="ann", queue="q", work=Work.COMMAND, command=Command(argv=("a",)), priority=3, request=Request(time_limit_us=HOUR)
)
ANN, ROOT, BOB = Doer(name="ann", now_us=5), Doer(name="root", is_operator=True, now_us=6), Doer(name="bob")
RUNS = Standing(waits=False, runs=True)
AFTER = Terms(after=(Dependency(condition=Condition.OK, submission=7),))


def done(record: Submission, terms: Terms, doer: Doer = ANN, standing: Standing = Standing()) -> Submission:  # noqa: B008
    change = amended(record, terms, doer, standing)
    assert isinstance(change, Change), change
    assert fault_of(change.record) == ""
    assert validity.submission(encode_record(change.record), 42) == change.record
    return change.record


def why(record: Submission, terms: Terms, doer: Doer = ANN, standing: Standing = Standing()) -> str:  # noqa: B008
    told = amended(record, terms, doer, standing)
    assert isinstance(told, str), told
    return told


def test_what_was_signed_stays_beside_what_was_changed() -> None:
    first = done(RECORD, Terms(priority=1, memory_bytes=MIB, name="x"))
    second = done(first, Terms(priority=-1, time_limit_us=2 * HOUR, name="y"))
    assert (second.priority, second.request.memory_bytes, second.request.time_limit_us, second.name) == (-1, MIB, 2 * HOUR, "y")
    assert [change.number for change in second.changes] == [1, 2]
    assert second.changes[0].terms == Terms(priority=1, memory_bytes=MIB), "what was so already is no change"
    assert as_signed(second) == RECORD
    assert spec_digest(second) == spec_digest(RECORD)
    assert terms_of(second) != terms_of(RECORD)


def test_a_user_lowers_a_priority_and_an_operator_raises_it() -> None:
    assert "may lower its priority (3 now)" in why(RECORD, Terms(priority=4))
    lower = done(RECORD, Terms(priority=1))
    assert not lower.is_raised
    raised = done(lower, Terms(priority=9), ROOT)
    assert raised.is_raised
    assert raised.changes[-1].is_operators
    assert not done(raised, Terms(priority=2)).is_raised
    assert not done(lower, Terms(priority=2), ROOT).is_raised, "still below what its user has asked for"
    mine = done(replace(RECORD, user="root"), Terms(priority=4), ROOT)
    assert mine.is_raised


def test_an_operator_changes_priority_and_time_limit_of_others_work_and_nothing_that_makes_it_other_work() -> None:
    done(RECORD, Terms(priority=9, time_limit_us=9 * HOUR), ROOT)
    for terms in (Terms(memory_bytes=MIB), Terms(name="y"), AFTER, Terms(features=("gpu",))):
        assert "an operator may change its priority and its time limit" in why(RECORD, terms, ROOT)
    assert "belongs to ann" in why(RECORD, Terms(priority=1), BOB)


def test_what_runs_keeps_all_but_its_time_limit_which_its_user_shortens_and_an_operator_lengthens() -> None:
    assert "its memory and name cannot be changed" in why(RECORD, Terms(memory_bytes=MIB, name="y"), ANN, RUNS)
    done(RECORD, Terms(time_limit_us=HOUR // 2), ANN, RUNS)
    assert "an operator may lengthen it" in why(RECORD, Terms(time_limit_us=2 * HOUR), ANN, RUNS)
    done(RECORD, Terms(time_limit_us=0), ROOT, RUNS)
    assert "its user may shorten" in why(RECORD, Terms(time_limit_us=HOUR // 2), ROOT, RUNS)
    for terms in (Terms(time_limit_us=1), Terms(name="y"), Terms(queue="p"), Terms(name=RECORD.name)):
        assert why(RECORD, terms, ANN, Standing(waits=False, is_still=False)) == "it has ended", "whether or not the leader has closed it"


def test_a_running_task_gets_what_each_change_since_it_began_may_do_to_it() -> None:
    longer = done(RECORD, Terms(time_limit_us=3 * HOUR))  # while it waited, by its user
    assert limit_of_running(longer, HOUR, 0) == HOUR, "what ran already is not lengthened by its user"
    assert limit_of_running(longer, 3 * HOUR, 1) == 3 * HOUR
    shorter = done(longer, Terms(time_limit_us=HOUR // 2))
    assert limit_of_running(shorter, HOUR, 0) == limit_of_running(shorter, 3 * HOUR, 1) == HOUR // 2
    given = done(shorter, Terms(time_limit_us=2 * HOUR), ROOT)
    assert limit_of_running(given, HOUR, 0) == 2 * HOUR


def test_waits_for_others_begin_end_and_cannot_close_a_circle() -> None:
    change = amended(RECORD, AFTER, ANN)
    assert isinstance(change, Change)
    assert (change.record.phase, change.record.reason, change.gate) == (Phase.HELD, Reason.DEPENDENCY, False)
    free = amended(change.record, Terms(after=()), ANN)
    assert isinstance(free, Change)
    assert (free.record.phase, free.record.reason, free.gate) == (Phase.OPEN, "", True)
    for number in (42, 43):
        late = Terms(after=(Dependency(condition=Condition.ANY, submission=number),))
        assert why(RECORD, late) == f"it can wait for what was submitted before it, not for {number}"
    stopped = held(RECORD, "", ROOT)
    assert isinstance(stopped, Change)
    still = amended(stopped.record, AFTER, ANN)
    assert isinstance(still, Change)
    assert (still.record.reason, still.gate) == (Reason.OPERATOR_HOLD, None)


def test_only_placed_jobs_wait_for_a_time() -> None:
    assert "only jobs that the leader places" in why(RECORD, Terms(begin_us=9))
    placed = done(replace(RECORD, rigid=Rigid(processes=2)), Terms(begin_us=9))
    assert placed.rigid == Rigid(processes=2, begin_us=9)


def test_its_queue_changes_while_nothing_of_it_runs_or_comes() -> None:
    assert done(RECORD, Terms(queue="p")).queue == "p"
    assert "while nothing of it runs" in why(RECORD, Terms(queue="p"), ANN, Standing(is_still=False))
    assert "only ann changes its queue" in why(RECORD, Terms(queue="p"), ROOT)
    assert done(RECORD, Terms(cores=4)).request.cores == 4
    assert "its queue and cores can be changed while nothing" in why(RECORD, Terms(queue="p", cores=4), ANN, Standing(is_still=False))


def test_so_many_changes_are_kept_and_no_more() -> None:
    record = RECORD
    for priority in range(2, 2 - MOST_CHANGES + 4, -1):
        record = done(record, Terms(priority=priority))
    assert f"changed {MOST_CHANGES - 4} times, and no more is kept: submit it again" in why(record, Terms(priority=-99))
    for priority in range(96, 100):  # the last ones are left to operators
        record = done(record, Terms(priority=priority), ROOT)
    assert f"changed {MOST_CHANGES} times, and no more is kept: rmgr cancel" in why(record, Terms(priority=-99), ROOT)
    assert len(ops.update(record, version=1, gate=None, waiting=["/w"]).ops) < 30


# -- the gate ----------------------------------------------------------------------------------------------------------------


def test_the_gate_is_at_the_number_of_amendments_whoever_makes_it() -> None:
    record = done(done(RECORD, Terms(priority=1)), Terms(priority=0))
    gate = paths.gate(42)
    made = (Create(gate), Set(gate, b"", 0), Set(gate, b"", 1))
    assert ops.update(record, version=5, gate=None, waiting=["/w"]).ops[1:] == (Delete(gate), *made, Check("/w"))
    change = held(record, "", ANN)
    assert isinstance(change, Change)
    assert ops.update(change.record, version=5, gate=None).ops[1:] == ()
    back = released(change.record, ANN)
    assert isinstance(back, Change)
    assert ops.set_record(back.record, version=6, gate=True).ops[1:] == made


# -- names -------------------------------------------------------------------------------------------------------------------

KEY = BlockKey(priority=3, seq=1, submission=42, first=0, count=1, attempt=1, cores=1, memory_mib=0, user=paths.user_tag("ann"))


def test_blocks_are_renamed_before_they_are_moved_and_only_once() -> None:
    record = done(RECORD, Terms(priority=1, memory_bytes=64 * MIB))
    now = replace(KEY, priority=1, memory_mib=64)
    assert key_now(KEY, RECORD) is KEY
    assert moves(record, pending=[KEY], held=[], room=None) == [RenameBlock(KEY, now, False)]
    assert moves(record, pending=[now], held=[], room=None) == []
    assert moves(record, pending=[], held=[KEY], room=None) == [RenameBlock(KEY, now, True)]
    assert moves(record, pending=[], held=[now], room=None) == [BringBack(now)]
    aside = replace(record, phase=Phase.HELD, reason=Reason.USER_HOLD)
    assert moves(aside, pending=[now], held=[], room=None) == [SetBlockAside(now)]


def test_blocks_follow_their_submission_to_another_queue_or_end_where_they_are() -> None:
    record = done(RECORD, Terms(queue="p", cores=2))
    now, second = replace(KEY, cores=2), replace(KEY, first=1, cores=2)
    assert record.queues == ("p", "q")
    strays = [("q", second, True), ("q", KEY, False)]
    found = moves(record, pending=[replace(now, first=2)], held=[], room=None, strays=strays)
    assert found == [RenameBlock(KEY, now, False, "q"), RenameBlock(second, second, True, "q")]
    multi = ops.rename(record, "q", KEY, now, b"data", 3, held=False)
    assert multi.ops == (
        Delete(paths.pending_block("q", KEY), 3),
        Create(f"{paths.pending('p')}/{paths.block_prefix(now)}", b"data", sequence=True),
    )
    held = replace(record, phase=Phase.HELD, reason=Reason.USER_HOLD)
    assert ops.rename(held, "q", KEY, now, b"", 3, held=False).ops[1] == Create(paths.held_block("p", replace(now, seq=NO_SEQ)))
    gone = replace(record, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL)
    assert moves(gone, pending=[], held=[], room=None, strays=strays[1:]) == [EndBlock(KEY, held=False, queue="q")]
    assert end_block(gone, KEY, held=False, queue="q").ops[0] == Delete(paths.pending_block("q", KEY))
    assert done(done(record, Terms(queue="r")), Terms(queue="q")).queues == ("q", "p", "r")


def test_the_names_of_what_an_operator_has_raised_say_so_until_it_is_lowered() -> None:
    raised = done(RECORD, Terms(priority=9), ROOT)
    first = replace(KEY, priority=9, user=paths.RAISED)
    assert moves(raised, pending=[KEY], held=[], room=None) == [RenameBlock(KEY, first, False)]
    assert moves(raised, pending=[first], held=[], room=None) == []
    block = encode_block(BlockData())
    failed = FailedRange(queue="q", seq=1, priority=9, cores=1, memory_mib=0, reason=Reason.NODE_LOST, block=block)
    again, _ = resubmit(raised, 0, 1, 1, failed, 0, gate=True, max_losses=5)
    assert [f".{paths.RAISED}-" in op.path for op in again.ops if isinstance(op, Create)] == [True]
    lowered = done(raised, Terms(priority=2))
    assert moves(lowered, pending=[first], held=[], room=None) == [RenameBlock(first, replace(KEY, priority=2), False)]


def test_a_block_may_bear_what_its_submission_asked_for_before_and_nothing_else() -> None:
    record = done(done(RECORD, Terms(memory_bytes=64 * MIB)), Terms(memory_bytes=32 * MIB))
    for memory_mib in (0, 64, 32):
        check_shape(replace(KEY, memory_mib=memory_mib), record)
    with pytest.raises(NotSealed, match="its submission for 1 and 32"):
        check_shape(replace(KEY, memory_mib=128), record)


# -- what others have written --------------------------------------------------------------------------------------------------


def test_a_record_whose_terms_are_not_what_its_amendments_make_is_none() -> None:
    good = done(done(RECORD, Terms(priority=1)), Terms(time_limit_us=9))
    own = good.changes[0]
    for bad in (
        replace(good, priority=9),
        replace(good, was=None),
        replace(good, was=Terms(priority=3, time_limit_us=HOUR, name="x")),
        replace(good, changes=good.changes[:1]),
        replace(good, changes=good.changes[1:]),
        replace(good, changes=(own, own)),
        replace(good, changes=()),
        replace(RECORD, changes=(replace(own, terms=Terms()),), was=Terms()),
        replace(good, changes=(replace(own, by="bob"), good.changes[1])),
        replace(good, changes=(own, replace(good.changes[1], by="root", is_operators=True, terms=Terms(name="y")))),
    ):
        assert fault_of(bad)
        with pytest.raises(InvalidRecord):
            validity.submission(encode_record(bad), 42)


def test_every_field_of_an_amendment_is_signed_and_it_is_of_one_submission_and_one_place() -> None:
    change = done(RECORD, Terms(priority=1)).changes[0]
    known = amendment_statement(42, change, "c")
    assert known == amendment_statement(42, replace(change, signature="s"), "c")
    others: list[Amendment] = [
        replace(change, number=2),
        replace(change, by="bob"),
        replace(change, by_us=9),
        replace(change, is_operators=True),
        *(replace(change, terms=terms) for terms in (Terms(priority=2), Terms(priority=1, name="y"), Terms(priority=1, after=()))),
    ]
    told = {known, amendment_statement(43, change, "c"), amendment_statement(42, change, "d")}
    assert len(told | {amendment_statement(42, other, "c") for other in others}) == 3 + len(others)
    assert signed(done(RECORD, Terms(priority=1)), "s").changes[-1] == replace(change, signature="s")


WAITING = Submission(id=7, name="w", user="ann", queue="default", work=Work.COMMAND, command=Command(argv=("true",)))
OPERATOR = Doer(name="root", is_operator=True, now_us=1_700_000_000_000_000)
OWNER = Doer(name="ann", now_us=1_700_000_000_000_000)
BEHIND = (Dependency(condition=Condition.OK, submission=3),)


def changed(change: Change | str) -> Submission:
    assert isinstance(change, Change), change
    return change.record


def test_an_operators_hold_names_him_and_its_user_does_not_release_it() -> None:
    held = changed(changing.held(WAITING, "disk is full", OPERATOR))
    assert (held.phase, held.reason, held.by, held.by_us) == (Phase.HELD, Reason.OPERATOR_HOLD, "root", OPERATOR.now_us)
    refusal = changing.released(held, OWNER)
    assert refusal == (
        "held by root, an operator, since 2023-11-14T22:13:20Z (disk is full): operators alone release it; ask root, or another operator"
    )
    assert changing.released(held) == refusal  # a program that says nothing of itself is its user's
    assert changed(changing.released(held, Doer(name="eve", is_operator=True))) == WAITING


def test_its_users_own_hold_and_cancel_leave_the_record_as_before() -> None:
    for change in (changing.held, changing.cancelled):
        assert change(WAITING, "mine", OWNER) == change(WAITING, "mine")
        assert not changed(change(WAITING, "mine", OWNER)).by


@pytest.mark.parametrize("before", [Reason.USER_HOLD, Reason.DEPENDENCY])
def test_an_operators_hold_takes_the_place_of_another_wait_and_gives_it_back(before: Reason) -> None:
    waits = replace(WAITING, phase=Phase.HELD, reason=before, after=BEHIND if before is Reason.DEPENDENCY else ())
    change = changing.held(waits, "", OPERATOR)
    assert isinstance(change, Change)
    assert change.gate is None  # it has none
    assert change.record.reason == Reason.OPERATOR_HOLD
    back = changed(changing.released(change.record, OPERATOR))
    assert back.reason == (Reason.DEPENDENCY if before is Reason.DEPENDENCY else "")
    assert (back.by, back.by_us) == ("", 0)


def test_an_operators_hold_stays_when_its_user_or_another_operator_holds_it_again() -> None:
    held = changed(changing.held(WAITING, "", OPERATOR))
    for doer in (OWNER, Doer(name="eve", is_operator=True)):
        assert changing.held(held, "", doer) == "it is held already"


def test_a_cancel_names_the_operator_and_its_user_may_cancel_what_is_held() -> None:
    gone = changed(changing.cancelled(WAITING, "too large", OPERATOR))
    assert (gone.reason, gone.by) == (Reason.OPERATOR_CANCEL, "root")
    assert changing.told_by(gone) == "cancelled by root, an operator, 2023-11-14T22:13:20Z (too large)"
    assert changing.cancel_words(gone) == "by root: too large"
    mine = changed(changing.cancelled(changed(changing.held(WAITING, "", OPERATOR)), "", OWNER))
    assert (mine.reason, mine.by, mine.by_us) == (Reason.USER_CANCEL, "", 0)
