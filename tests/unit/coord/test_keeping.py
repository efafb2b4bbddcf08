"""The leader's reconcile actions for a submission: one table of facts and consequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmgr.coord import nonces
from rmgr.coord.decisions import keeping
from rmgr.coord.decisions.keeping import (
    GONE_S,
    PATIENCE_S,
    Abandon,
    BringBack,
    Close,
    Collect,
    DropFailed,
    EndBlock,
    EndTail,
    Facts,
    FailedSeen,
    Met,
    Open,
    Page,
    ReconcilePlan,
    Resubmit,
    SetBlockAside,
    SubmissionEnd,
    SweepPending,
    Unmet,
    Weigh,
    weigh,
)
from rmgr.coord.decisions.progress import Progress, overall_state
from rmgr.coord.ops import leader as leader_ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_ZNODE_BYTES, Create, Delete, Set
from rmgr.coord.protocol.records import decode_fragment, encode_record
from rmgr.model.block import MAX_TASKS, NO_SEQ, BlockKey
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import Reason, State
from rmgr.model.submission import Condition, Dependency, Phase, Submission, Tail, Work

SETTINGS = ClusterSettings(retention_us=60_000_000, max_fragments=200)


def a_submission(**fields: object) -> Submission:
    return replace(Submission(id=7, name="t", user="u", queue="default", work=Work.PYTHON, submitted_us=1), **fields)  # type: ignore[arg-type]


def a_key(first: int = 0, count: int = 4, **fields: int) -> BlockKey:
    return replace(BlockKey(priority=0, seq=3, submission=7, first=first, count=count, attempt=1, cores=1, memory_mib=0), **fields)


def facts(**fields: object) -> Facts:
    return replace(Facts(submission=a_submission(), tail=Tail(next=4), final=0), **fields)  # type: ignore[arg-type]


def failed(backoff_s: float) -> tuple[FailedSeen, ...]:
    return (FailedSeen(0, 2, 1, seen_s=100.0, backoff_s=backoff_s),)


def plan(known: Facts, now_s: float = 100.0, now_us: int = 0) -> ReconcilePlan:
    return keeping.plan(known, SETTINGS, now_s=now_s, now_us=now_us)


RESUBMITS, OPEN = (Resubmit(0, 2, 1),), a_submission()
CANCELLED, HELD = a_submission(phase=Phase.CANCELLED), a_submission(phase=Phase.HELD)
EXECUTOR = facts(submission=a_submission(ends_with_owner=True), active_s=99.0, gone_s=100.0)
ENDED = facts(tail=Tail(next=4, complete=True), final=4, ended_s=100.0)
ENDING = facts(submission=CANCELLED, active_s=100.0)
CLOSED = facts(submission=a_submission(phase=Phase.CLOSED, closed_us=55_000_000), tail=Tail(next=4, complete=True), final=4)
UNSWEPT = facts(owner_alive=True, swept=False, sweep_s=101.0)
FEW = facts(owner_alive=True, base=10, applied=10 + 201)
MANY = facts(owner_alive=True, base=10, applied=10 + 401)
LARGE = facts(owner_alive=True, applied=181, fragment_bytes=(8 << 20) + 1)
LARGE_ENDED = replace(LARGE, submission=a_submission(phase=Phase.CLOSED, closed_us=10**15))
WAITS = facts(submission=a_submission(phase=Phase.HELD, reason=Reason.DEPENDENCY), owner_alive=True)

#: What holds -> (facts, now in s, actions, when to ask again).
PLANS: dict[str, tuple[Facts, float, tuple[object, ...], float | None]] = {
    "a dead owner's ranges are resubmitted at once": (facts(active_s=100.0, failed=failed(0.0)), 100.0, RESUBMITS, 160.0),
    "back-off counts from when the failure was seen": (facts(active_s=100.0, failed=failed(4.0)), 103.9, (), 104.0),
    "after its back-off": (facts(active_s=100.0, failed=failed(4.0)), 104.0, RESUBMITS, 160.0),
    "a living owner is given time": (facts(owner_alive=True, failed=failed(1.0)), 101.0, (), 101.0 + PATIENCE_S),
    "and then helped": (facts(owner_alive=True, failed=failed(1.0)), 101.0 + PATIENCE_S, RESUBMITS, None),
    "ranges of cancelled work end at once": (replace(ENDING, owner_alive=True, failed=failed(50.0)), 100.0, (DropFailed(0, 2, 1),), 130.0),
    "ended work without owner is closed at once": (ENDED, 100.0, (Close(),), None),
    "the end waits for no owner": (replace(ENDED, owner_alive=True), 100.0, (Close(),), None),
    "an ownerless queue stays open for retention": (facts(active_s=100.0), 101.0, (), 160.0),
    "and is ended then": (facts(active_s=100.0), 160.0, (EndTail(),), None),
    "so does one that is held": (facts(submission=HELD, active_s=100.0), 101.0, (), 160.0),
    "held and over": (facts(submission=HELD, active_s=100.0), 160.0, (EndTail(),), None),
    "an executor's program is gone for a moment": (EXECUTOR, 101.0, (), 100.0 + GONE_S),
    "and for a while": (EXECUTOR, 100.0 + GONE_S, (EndTail(),), None),
    "also when all its work was done": (replace(EXECUTOR, final=4), 100.0 + GONE_S, (EndTail(),), None),
    "it is back": (replace(EXECUTOR, gone_s=None, owner_alive=True), 100.0 + GONE_S, (), None),
    "somebody may attach to a TaskQueue": (replace(EXECUTOR, submission=OPEN), 100.0 + GONE_S, (), 159.0),
    "a queue whose owner lives is never ended": (facts(owner_alive=True, active_s=0.0), 10_000.0, (), None),
    "a cancelled queue takes nothing more": (ENDING, 100.0, (EndTail(),), None),
    "its owner does it": (replace(ENDING, owner_alive=True), 100.0, (), 100.0 + PATIENCE_S),
    "closed work stays for its retention": (CLOSED, 85.0, (), 115.0),
    "and is collected then": (CLOSED, 115.0, (Collect(),), None),
    "blocks are looked at later": (UNSWEPT, 100.0, (), 101.0),
    "until nothing stands in the wrong place": (UNSWEPT, 101.0, (SweepPending(),), None),
    "nothing does": (replace(UNSWEPT, swept=True), 101.0, (), None),
    "old fragments are left to the owner": (FEW, 100.0, (), None),
    "for so long": (MANY, 100.0, (Page(10, 180),), None),
    "an ownerless one's are paged out": (replace(FEW, owner_alive=False, active_s=100.0), 100.0, (Page(10, 180),), 160.0),
    "few fragments that are large": (LARGE, 100.0, (Page(0, 180),), None),
    "less large": (replace(LARGE, fragment_bytes=8 << 20), 100.0, (), None),
    "fewer": (replace(LARGE, applied=180), 100.0, (), None),
    "those of ended work": (LARGE_ENDED, 100.0, (Page(0, 180),), 1e9 + 60.0),
    "small ones of ended work": (replace(LARGE_ENDED, fragment_bytes=0), 100.0, (), 1e9 + 60.0),
    "a dependent submission is weighed": (WAITS, 100.0, (Weigh(),), None),
    "one held by its user is not": (replace(WAITS, submission=replace(HELD, reason=Reason.USER_HOLD)), 100.0, (), None),
}


@pytest.mark.parametrize(("known", "now_s", "actions", "again_s"), PLANS.values(), ids=PLANS)
def test_from_facts_follow_actions(known: Facts, now_s: float, actions: tuple[object, ...], again_s: float | None) -> None:
    assert plan(known, now_s, now_us=round(now_s * 1e6)) == ReconcilePlan(actions=actions, again_s=again_s)  # type: ignore[arg-type]


def test_what_a_list_waits_for_is_cancelled_when_its_program_goes_before_it_is_released() -> None:
    anchor = a_submission(ends_with_owner=True, phase=Phase.HELD, reason=Reason.USER_HOLD)
    known = facts(submission=anchor, tail=Tail(), active_s=99.0, gone_s=100.0)
    assert plan(known, 101.0) == ReconcilePlan(actions=(), again_s=100.0 + GONE_S)
    assert plan(known, 100.0 + GONE_S).actions == (Abandon(),)
    released = replace(known, submission=replace(anchor, phase=Phase.OPEN, reason=""))
    assert plan(released, 100.0 + GONE_S).actions == (EndTail(),), "its release let all go; it ends as COMPLETED"
    with_tasks = replace(known, tail=Tail(next=4))
    assert plan(with_tasks, 100.0 + GONE_S).actions == (EndTail(),), "an Executor that somebody holds keeps what it was given"
    gone, multi = leader_ops.abandoned(anchor, 3)
    assert (gone.phase, gone.reason) == (Phase.CANCELLED, Reason.OWNER_GONE)
    assert multi.ops == (Set(paths.sub(7), encode_record(gone), 3),), "a release on the same version loses"
    assert plan(replace(known, submission=gone), 100.0 + GONE_S).actions == (EndTail(),)


def test_what_was_cancelled_without_a_task_stays_so_when_it_is_closed() -> None:
    progress = Progress()
    progress.tail = Tail(complete=True)
    gone, _ = leader_ops.abandoned(a_submission(phase=Phase.HELD), 0)
    assert overall_state(gone, progress, 0) is State.CANCELLED
    closed, _ = leader_ops.close(gone, 1, now_us=5, gate=False)
    assert overall_state(closed, progress, 0) is State.CANCELLED, "what depends on it must never be met"
    released = a_submission(phase=Phase.CLOSED)
    assert overall_state(released, progress, 0) is State.COMPLETED


@given(
    st.sampled_from(list(Phase)), st.booleans(), st.booleans(), st.one_of(st.none(), st.floats(0, 200)), st.floats(0, 200),
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 50)), max_size=3),
)
def test_asking_again_when_told_to_always_finds_something_to_do(
    phase: Phase, owner: bool, swept: bool, ended: float | None, active: float, failed: list[tuple[float, float]]
) -> None:
    known = facts(
        submission=a_submission(phase=phase), owner_alive=owner, swept=swept, sweep_s=active, ended_s=ended, active_s=active,
        failed=tuple(FailedSeen(n, 1, 1, seen_s=seen, backoff_s=back) for n, (seen, back) in enumerate(failed)),
    )
    first = plan(known, 100.0, now_us=100_000_000)
    if first.again_s is not None:
        assert first.again_s > 100.0
        later = keeping.plan(known, SETTINGS, now_s=first.again_s, now_us=100_000_000 + round((first.again_s - 100.0) * 1e6) + 1)
        assert len(later.actions) > len(first.actions)


# -- blocks -------------------------------------------------------------------------------------------------------------------


def test_a_held_submission_has_its_waiting_blocks_set_aside() -> None:
    keys = [a_key(0), a_key(4)]
    assert keeping.moves(a_submission(phase=Phase.HELD), pending=keys, held=[a_key(8)], room=None) == [
        SetBlockAside(keys[0]),
        SetBlockAside(keys[1]),
    ]


def test_a_cancelled_submission_ends_all_blocks_that_wait() -> None:
    found = keeping.moves(a_submission(phase=Phase.CANCELLED), pending=[a_key(0)], held=[a_key(8), a_key(4)], room=None)
    assert found == [EndBlock(a_key(0), held=False), EndBlock(a_key(4), held=True), EndBlock(a_key(8), held=True)]


def test_released_blocks_come_back_in_their_order_and_those_without_a_place_last() -> None:
    placed, new = a_key(8, seq=5), a_key(0, seq=NO_SEQ)
    found = keeping.moves(a_submission(), pending=[], held=[new, placed, a_key(4, seq=5)], room=None)
    assert found == [BringBack(a_key(4, seq=5)), BringBack(placed), BringBack(new)]


def test_a_cap_brings_back_just_what_fits_cutting_the_last_block() -> None:
    held = [a_key(0, 4), a_key(4, 4), a_key(8, 4)]
    assert keeping.moves(a_submission(max_running=6), pending=[], held=held, room=6) == [BringBack(held[0]), BringBack(held[1], take=2)]
    assert keeping.moves(a_submission(max_running=6), pending=[], held=held, room=0) == []


def test_a_closed_submission_is_left_alone() -> None:
    assert keeping.moves(a_submission(phase=Phase.CLOSED), pending=[a_key()], held=[a_key()], room=None) == []


@pytest.mark.parametrize(("final", "held", "failed", "room"), [(0, 100, 0, 8), (0, 92, 0, 0), (3, 92, 0, 3), (3, 90, 2, 3), (0, 80, 0, 0)])
def test_room_is_the_cap_less_what_is_on_the_way(final: int, held: int, failed: int, room: int) -> None:
    assert keeping.room_of(a_submission(max_running=8), total=100, final=final, held=held, failed=failed) == room


def test_without_a_cap_there_is_no_room_to_count() -> None:
    assert keeping.room_of(a_submission(), total=100, final=0, held=100, failed=0) is None


def test_ending_the_largest_block_fits_one_znode_and_leaves_nothing() -> None:
    key = a_key(9_999_999_000, MAX_TASKS)
    multi = leader_ops.end_block(a_submission(phase=Phase.CANCELLED, reason="DEPENDENCY_FAILED"), key, held=True)
    assert multi.ops[0] == Delete(paths.held_block("default", key))
    created = multi.ops[1]
    assert isinstance(created, Create)
    assert len(created.data) <= MAX_ZNODE_BYTES
    outcomes = decode_fragment(created.data).outcomes
    assert [outcome.index for outcome in outcomes] == list(range(key.first, key.end))
    assert {(outcome.state, outcome.reason) for outcome in outcomes} == {(State.CANCELLED, Reason.DEPENDENCY_FAILED)}


def test_a_reason_that_is_no_reason_is_the_users() -> None:
    assert leader_ops.cancel_reason(a_submission(reason="because")) is Reason.USER_CANCEL
    assert leader_ops.cancel_reason(a_submission(reason="")) is Reason.USER_CANCEL


def test_records_change_with_their_gates() -> None:
    held = a_submission(phase=Phase.HELD, reason=Reason.DEPENDENCY, after=(Dependency(condition=Condition.OK, submission=3),))
    met, let_go = leader_ops.let_go(held, 4)
    assert let_go.ops == (Set(paths.sub(7), encode_record(met), 4), Create(paths.gate(7)))
    assert met.phase is Phase.OPEN
    unmet, broken = leader_ops.unmet(held, 4, "ok:3")
    assert broken.ops == (Set(paths.sub(7), encode_record(unmet), 4),)
    assert (unmet.phase, unmet.reason, unmet.reason_detail) == (Phase.CANCELLED, Reason.DEPENDENCY_FAILED, "ok:3")
    going = a_submission()
    closed, close = leader_ops.close(going, 4, now_us=99, gate=True)
    assert close.ops == (Set(paths.sub(7), encode_record(closed), 4), Delete(paths.gate(7)), nonces.end_of(going))
    assert (closed.phase, closed.closed_us) == (Phase.CLOSED, 99)


# -- dependencies ---------------------------------------------------------------------------------------------------------------


def after(*conditions: str) -> list[Dependency]:
    return [Dependency(condition=Condition(text.split(":")[0]), submission=int(text.split(":")[1])) for text in conditions]


@pytest.mark.parametrize(
    ("condition", "state", "met"),
    [
        ("ok:1", State.COMPLETED, True),
        ("ok:1", State.FAILED, False),
        ("ok:1", State.CANCELLED, False),
        ("any:1", State.COMPLETED, True),
        ("any:1", State.FAILED, True),
        ("any:1", State.CANCELLED, True),
        ("fail:1", State.FAILED, True),
        ("fail:1", State.CANCELLED, True),
        ("fail:1", State.COMPLETED, False),
    ],
)
def test_each_condition_on_each_end(condition: str, state: State, met: bool) -> None:
    verdict = weigh(after(condition), {1: SubmissionEnd(state=state, began=True)})
    assert isinstance(verdict, Met if met else Unmet)


@pytest.mark.parametrize(("condition", "met"), [("ok:1", False), ("any:1", True), ("fail:1", False)])
def test_what_was_cancelled_before_anything_of_it_ran_has_not_failed(condition: str, met: bool) -> None:
    verdict = weigh(after(condition), {1: SubmissionEnd(state=State.CANCELLED, began=False)})
    assert isinstance(verdict, Met if met else Unmet)
    if condition == "fail:1":
        assert verdict == Unmet("fail:1: submission 1 was cancelled before anything of it ran")


def test_all_conditions_must_hold_and_one_broken_is_enough() -> None:
    endings = {1: SubmissionEnd(state=State.COMPLETED), 2: SubmissionEnd(), 3: SubmissionEnd(state=State.FAILED)}
    assert weigh(after("ok:1", "any:2"), endings) == Open((2,))
    assert isinstance(weigh(after("any:2", "ok:3"), endings), Unmet)
    assert weigh(after("ok:1", "any:3"), endings) == Met()


def test_ok_is_broken_as_soon_as_one_task_cannot_complete_but_fail_waits_for_the_end() -> None:
    assert isinstance(weigh(after("ok:1"), {1: SubmissionEnd(spoiled=True)}), Unmet)
    assert weigh(after("fail:1"), {1: SubmissionEnd(spoiled=True)}) == Open((1,))


def test_one_that_was_not_looked_up_is_missing_and_one_that_nobody_knows_breaks_every_condition() -> None:
    assert weigh(after("any:1"), {}) == Open((), (1,))
    for condition in ("ok:1", "any:1", "fail:1"):
        verdict = weigh(after(condition), {1: SubmissionEnd(known=False)})
        assert isinstance(verdict, Unmet)
        assert "neither in the cluster nor in the history" in verdict.detail
