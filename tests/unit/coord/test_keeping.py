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
from rmgr.model.base.states import Reason, State
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.tasks.block import MAX_TASKS, NO_SEQ, BlockKey
from rmgr.model.tasks.submission import Condition, Dependency, Phase, Submission, Tail, Work

SETTINGS = ClusterSettings(retention_us=60_000_000, max_fragments=200)


def a_submission(**fields: object) -> Submission:
    return replace(Submission(id=7, name="t", user="u", queue="default", work=Work.PYTHON, submitted_us=1), **fields)  # type: ignore[arg-type]


def a_key(first: int = 0, count: int = 4, **fields: int) -> BlockKey:
    return replace(BlockKey(priority=0, seq=3, submission=7, first=first, count=count, attempt=1, cores=1, memory_mib=0), **fields)


def facts(**fields: object) -> Facts:
    return replace(Facts(submission=a_submission(), tail=Tail(next=4), final=0), **fields)  # type: ignore[arg-type]


def plan(known: Facts, now_s: float = 100.0, now_us: int = 0) -> ReconcilePlan:
    return keeping.plan(known, SETTINGS, now_s=now_s, now_us=now_us)


# -- failed ranges ----------------------------------------------------------------------------------------------------------


def test_the_leader_resubmits_for_a_dead_owner_at_once() -> None:
    assert plan(facts(owner_alive=False, active_s=100.0, failed=(FailedSeen(0, 2, 1, seen_s=100.0),))).actions == (Resubmit(0, 2, 1),)


def test_back_off_is_counted_from_when_the_leader_saw_the_failure() -> None:
    known = facts(active_s=100.0, failed=(FailedSeen(0, 2, 1, seen_s=100.0, backoff_s=4.0),))
    assert plan(known, 103.9) == ReconcilePlan(actions=(), again_s=104.0)
    assert plan(known, 104.0).actions == (Resubmit(0, 2, 1),)


def test_a_living_owner_is_given_time_and_then_helped() -> None:
    known = facts(owner_alive=True, failed=(FailedSeen(0, 2, 1, seen_s=100.0, backoff_s=1.0),))
    assert plan(known, 101.0) == ReconcilePlan(actions=(), again_s=101.0 + PATIENCE_S)
    assert plan(known, 101.0 + PATIENCE_S).actions == (Resubmit(0, 2, 1),)


def test_failed_ranges_of_a_cancelled_submission_end_whoever_owns_it() -> None:
    known = facts(
        submission=a_submission(phase=Phase.CANCELLED),
        owner_alive=True,
        active_s=100.0,
        failed=(FailedSeen(0, 2, 1, seen_s=100.0, backoff_s=50.0),),
    )
    assert plan(known).actions == (DropFailed(0, 2, 1),)


# -- ends -------------------------------------------------------------------------------------------------------------------


def test_an_ended_submission_without_owner_is_closed_at_once() -> None:
    assert plan(facts(tail=Tail(next=4, complete=True), final=4, ended_s=100.0)).actions == (Close(),)


def test_the_end_waits_for_no_owner() -> None:
    known = facts(tail=Tail(next=4, complete=True), final=4, ended_s=100.0, owner_alive=True)
    assert plan(known).actions == (Close(),)


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HELD])
def test_a_queue_whose_owner_died_stays_open_until_retention_is_over(phase: Phase) -> None:
    known = facts(submission=a_submission(phase=phase), active_s=100.0)
    assert plan(known, 101.0) == ReconcilePlan(actions=(), again_s=160.0)
    assert plan(known, 160.0).actions == (EndTail(),)


def test_an_executor_ends_when_its_program_has_been_gone_for_a_while() -> None:
    known = facts(submission=a_submission(ends_with_owner=True), active_s=99.0, gone_s=100.0)
    assert plan(known, 101.0) == ReconcilePlan(actions=(), again_s=100.0 + GONE_S)
    assert plan(known, 100.0 + GONE_S).actions == (EndTail(),)
    assert plan(replace(known, final=4), 100.0 + GONE_S).actions == (EndTail(),), "also when all its work was done"
    assert plan(replace(known, gone_s=None, owner_alive=True), 100.0 + GONE_S) == ReconcilePlan(actions=()), "it is back"
    queue = replace(known, submission=a_submission())
    assert plan(queue, 100.0 + GONE_S).actions == (), "somebody may attach to a TaskQueue"


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


def test_a_queue_whose_owner_lives_is_never_ended_by_the_leader() -> None:
    assert plan(facts(owner_alive=True, active_s=0.0), 10_000.0) == ReconcilePlan(actions=())


def test_a_cancelled_queue_takes_nothing_more() -> None:
    known = facts(submission=a_submission(phase=Phase.CANCELLED), active_s=100.0)
    assert plan(known).actions == (EndTail(),)
    assert plan(replace(known, owner_alive=True)) == ReconcilePlan(actions=(), again_s=100.0 + PATIENCE_S), "its owner does it"


def test_a_closed_submission_is_collected_when_its_retention_is_over() -> None:
    known = facts(submission=a_submission(phase=Phase.CLOSED, closed_us=1_000_000), tail=Tail(next=4, complete=True), final=4)
    assert plan(known, 5.0, now_us=31_000_000) == ReconcilePlan(actions=(), again_s=35.0)
    assert plan(known, 5.0, now_us=61_000_000).actions == (Collect(),)


# -- sweeps, pages, dependencies ----------------------------------------------------------------------------------------------


def test_blocks_are_looked_at_until_nothing_stands_in_the_wrong_place() -> None:
    known = facts(owner_alive=True, swept=False, sweep_s=101.0)
    assert plan(known) == ReconcilePlan(actions=(), again_s=101.0)
    assert plan(known, 101.0).actions == (SweepPending(),)
    assert plan(replace(known, swept=True), 101.0) == ReconcilePlan(actions=())


def test_old_fragments_are_paged_out_by_the_owner_first() -> None:
    known = facts(owner_alive=True, base=10, applied=10 + 201)
    assert plan(known).actions == ()
    assert plan(replace(known, applied=10 + 401)).actions == (Page(10, 180),)
    assert plan(replace(known, owner_alive=False, active_s=100.0)).actions == (Page(10, 180),)


def test_few_fragments_that_are_large_are_paged_out_too_and_those_of_ended_work() -> None:
    known = facts(owner_alive=True, applied=181, fragment_bytes=(8 << 20) + 1)
    assert plan(known).actions == (Page(0, 180),)
    assert plan(replace(known, fragment_bytes=8 << 20)).actions == ()
    assert plan(replace(known, applied=180)).actions == ()
    ended = replace(known, submission=a_submission(phase=Phase.CLOSED, closed_us=10**15))
    assert plan(ended).actions == (Page(0, 180),)
    assert plan(replace(ended, fragment_bytes=0)).actions == ()


def test_a_dependent_submission_is_weighed_and_one_held_by_its_user_is_not() -> None:
    waiting = facts(submission=a_submission(phase=Phase.HELD, reason=Reason.DEPENDENCY), owner_alive=True)
    assert plan(waiting).actions == (Weigh(),)
    assert plan(replace(waiting, submission=a_submission(phase=Phase.HELD, reason=Reason.USER_HOLD))).actions == ()


@given(
    st.sampled_from(list(Phase)),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 200)),
    st.floats(0, 200),
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, 50)), max_size=3),
)
def test_asking_again_when_told_to_always_finds_something_to_do(
    phase: Phase, owner: bool, swept: bool, ended: float | None, active: float, failed: list[tuple[float, float]]
) -> None:
    known = facts(
        submission=a_submission(phase=phase),
        owner_alive=owner,
        swept=swept,
        sweep_s=active,
        ended_s=ended,
        active_s=active,
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
