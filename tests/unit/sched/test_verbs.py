"""Verbs that move jobs and remember: their answers, their effects on the state, and how a fork undoes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from rmgr.errors import StateConflict
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Accepted, GangSet, Infeasible, Insufficient, Migrate, Noted, Plan, Start, WakeAt, Why
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policies.searches import FirstFit, HeadBlocking
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.records import Call, Gang, Limits, Maintenance, Server, Used
from rmgr.sched.state.cluster import ClusterState, Snapshot

WHY = Why("test", "because")


def cluster(nodes: int = 4, *, half_life_us: int = 0, **attributes: object) -> ClusterState:
    return ClusterState((Node(id=i, **attributes) for i in range(nodes)), half_life_us)  # type: ignore[arg-type]


def a_job(job_id: int, processes: int = 1, limit_us: int = 10, **what: object) -> Job:
    return Job(id=job_id, submit_us=0, processes=processes, limit_us=limit_us, **what)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Says:
    """A policy that does what the test wants."""

    what: Callable[[Draft], object]
    name: ClassVar[str] = "says"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.what(draft)


def planned(state: ClusterState, *policies: Policy | Callable[[Draft], object], now: int = 0) -> Plan:
    """One pass, run twice: it leaves the state as it was, and a new leader with shuffled records decides the same."""
    stages = tuple(Stage(policy if hasattr(policy, "plan") else Says(policy)) for policy in policies)  # type: ignore[arg-type]
    before = state.snapshot()
    plan = run_pass(state, frozenset({Cause.TIMER}), now=now, seed=0, pipeline=stages)
    assert plan.faults == ()
    assert state.snapshot() == before
    fresh = restored(state, seed=now)
    assert fresh.snapshot() == before
    assert run_pass(fresh, frozenset({Cause.TIMER}), now=now, seed=0, pipeline=stages) == plan
    return plan


def restored(state: ClusterState, seed: int = 0) -> ClusterState:
    chance, snapshot = random.Random(seed), state.snapshot()
    rows = {name: getattr(snapshot, name) for name in Snapshot.__slots__}
    mixed = {name: tuple(chance.sample(some, len(some))) for name, some in rows.items()}
    return ClusterState.restored(Snapshot(**mixed), state.usage_half_life_us)


def done(state: ClusterState, *policies: Policy | Callable[[Draft], object], now: int = 0) -> Plan:
    """One pass, carried out."""
    plan = planned(state, *policies, now=now)
    state.apply(plan, now)
    return plan


def with_jobs(state: ClusterState, *jobs: Job) -> ClusterState:
    for job in jobs:
        state.job_submitted(job)
    return state


def started(plan: Plan) -> list[int]:
    return [d.job_id for d in plan.decisions if isinstance(d, Start)]


def free(state: ClusterState) -> int:
    return state.partitions["default"].pool.free


# -- back to the queue -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["migrate", "preempt"])
@pytest.mark.parametrize("cores", [1, 2])
def test_who_gives_way_waits_again_where_its_submit_time_puts_it(verb: str, cores: int) -> None:
    state = with_jobs(cluster(4, cores=cores), a_job(1, 3 * cores))
    done(state, FirstFit())
    with_jobs(state, replace(a_job(2, 4 * cores), submit_us=3), replace(a_job(3), submit_us=9))
    seen: list[object] = []

    def make_room(draft: Draft) -> None:
        seen.append([getattr(draft, verb)(1, WHY), draft.run(1), [job.id for job in draft.by_arrival()], draft.idle_nodes])
        seen.append([draft.start(2, WHY), getattr(draft, verb)(2, WHY), draft.start(1, WHY)])

    plan = done(state, make_room, now=5)
    assert seen[0] == [Accepted(5), None, [1, 2, 3], 4]
    assert [type(answer) for answer in seen[1]] == [Accepted, Insufficient, Insufficient]  # type: ignore[attr-defined]
    assert started(plan) == [2]
    again = state.partitions["default"].jobs[1]
    assert (again.submit_us, again.queued_us, again.restarts) == (0, 5, 1)
    state.job_ended(2)
    state.job_requeued(replace(again, limit_us=77))
    assert started(done(state, FirstFit(), now=9)) == [1, 3]
    assert state.partitions["default"].running[1].end_us == 86


def test_a_fork_takes_a_migration_back_and_an_unknown_run_is_refused() -> None:
    state = with_jobs(cluster(), a_job(1, 3))
    done(state, FirstFit())

    def what_if(draft: Draft) -> None:
        with draft.fork():
            draft.migrate(1, WHY)
            draft.note("k", 1, (1,))
            assert draft.free_cores == 4
            assert draft.start(1, WHY, ((1, 3, 1),)) == Accepted(0)
        assert (draft.free_cores, draft.note_of("k", 1)) == (1, None)
        assert [run.placement for run in draft.running()] == [((0, 2, 1),)]
        assert isinstance(draft.migrate(9, WHY), Infeasible)

    assert planned(state, what_if).decisions == ()
    assert free(state) == 1


def test_a_pinned_job_is_sent_back_by_nobody_and_one_that_stops_is_neither_waiting_nor_running() -> None:
    state = with_jobs(cluster(4), a_job(1, 2))
    done(state, Migration())
    with_jobs(state, a_job(2, 4))
    with_jobs(state, a_job(3, 1), a_job(4, 1))
    assert started(done(state, Migration(), now=1)) == [3, 4]
    state.job_pinned(3, True)
    state.job_ended(1)
    assert planned(state, Migration(), now=2).decisions == (), "only one of those that passed it may be moved, and that is not enough"
    refused: list[object] = []
    planned(state, lambda draft: refused.append(draft.migrate(3, WHY)), now=2)
    assert all(isinstance(answer, Infeasible) for answer in refused)
    state.job_pinned(3, False)
    runs = dict(state.partitions["default"].running)
    plan = done(state, Migration(), now=2)
    assert started(plan) == [2]
    for job_id in (3, 4):
        state.job_stopping(runs[job_id], 2)
    assert planned(state, Migration(), now=3).decisions == ()
    with pytest.raises(StateConflict, match="others were given its nodes"):
        state.job_went_on(4, 3)
    state.job_returned(replace(runs[3].job, queued_us=4, restarts=1))
    state.job_ended(2)
    assert state.job_went_on(4, 5) == runs[4]._replace(start_us=5)
    assert started(planned(state, Migration(), now=5)) == [3]
    with pytest.raises(StateConflict, match="was not asked"):
        state.job_returned(runs[4].job)


def test_a_policy_that_raises_after_moving_things_leaves_no_trace() -> None:
    state = with_jobs(cluster(), a_job(1, 3), a_job(2, 4))
    done(state, FirstFit())
    before = state.snapshot()

    def bad(draft: Draft) -> None:
        draft.migrate(1, WHY)
        draft.start(2, WHY)
        draft.note("k", 0, (1,))
        raise RuntimeError

    plan = run_pass(state, frozenset(), now=1, seed=0, pipeline=(Stage(FirstFit()), Stage(Says(bad)), Stage(FirstFit())))
    assert len(plan.faults) == 1
    assert plan.decisions == ()
    assert (state.snapshot(), free(state)) == (before, 1)


# -- in place --------------------------------------------------------------------------------------------------------------------


def test_what_stands_still_frees_its_cores_keeps_its_memory_and_its_time() -> None:
    state = with_jobs(cluster(1, cores=4, memory_bytes=10), a_job(1, 4, limit_us=100, memory_bytes=2))
    done(state, FirstFit())
    done(state, lambda draft: draft.suspend(1, WHY), now=30)
    with_jobs(state, a_job(2, 4, memory_bytes=1), a_job(3, 2, memory_bytes=1))
    assert started(done(state, FirstFit(), lambda _: None, now=40)) == [3]  # job 2 needs 4 bytes, 2 are left; who stopped job 1 serves
    assert [stopped.since_us for stopped in state.snapshot().suspended] == [30]
    answers: list[object] = []
    done(state, lambda draft: answers.append(draft.resume(1, WHY)), now=45)
    state.job_ended(3)
    done(state, lambda draft: answers.append((draft.resume(1, WHY), draft.resume(1, WHY), draft.suspend(1, WHY))), now=50)
    assert isinstance(answers[0], Insufficient)
    assert [type(answer) for answer in answers[2]] == [Accepted, Infeasible, Insufficient]  # type: ignore[attr-defined]
    run = state.partitions["default"].running[1]
    assert (run.start_us, run.end_us) == (50, 120)
    done(state, lambda draft: draft.suspend(1, WHY), now=60)
    assert state.job_ended(1).job.id == 1
    assert started(planned(state, FirstFit(), now=60)) == [2]


def test_a_stopped_job_can_be_migrated_and_a_promise_is_not_broken_by_going_on() -> None:
    state = with_jobs(cluster(2), a_job(1, 2, limit_us=100))
    done(state, FirstFit())
    done(state, lambda draft: draft.suspend(1, WHY), now=10)
    with_jobs(state, a_job(2, 1, limit_us=5), a_job(3, 2, limit_us=9))

    def reserves(draft: Draft) -> None:
        draft.start(2, WHY)
        draft.reserve(3, WHY)

    done(state, reserves, now=10)
    state.job_ended(2)

    def goes_on(draft: Draft) -> None:
        draft.reserve(3, WHY)
        assert isinstance(draft.resume(1, WHY), Insufficient)
        draft.unreserve(3, WHY)
        assert draft.resume(1, WHY) == Accepted(12)

    planned(state, goes_on, now=12)
    done(state, lambda draft: draft.migrate(1, WHY), now=12)
    assert state.snapshot().suspended == ()
    assert state.partitions["default"].jobs[1].restarts == 1


def kept(draft: Draft) -> None:
    draft.reserve(2, WHY, keep=True)


def loose(draft: Draft) -> None:
    draft.reserve(2, WHY)


def given_up(draft: Draft) -> None:
    draft.unreserve(2, WHY)


def sent_back(draft: Draft) -> None:
    draft.preempt(1, WHY)


@pytest.mark.parametrize("earlier", [True, False], ids=["record_of_before", "none_before"])
@pytest.mark.parametrize(
    ("verbs", "at_us"),
    [
        ([kept], 10),
        ([kept, given_up], None),
        ([kept, loose], None),
        ([kept, given_up, kept], 10),
        ([kept, given_up, loose], None),
        ([kept, sent_back, kept], 0),
    ],
)
def test_the_last_word_on_a_promise_decides_its_record(verbs: list[Callable[[Draft], None]], at_us: int | None, earlier: bool) -> None:
    state = with_jobs(cluster(2), a_job(1, 2), a_job(2, 2))
    done(state, lambda draft: draft.start(1, WHY))
    if earlier:
        done(state, kept)
    done(state, lambda draft: [verb(draft) for verb in verbs])
    assert {held.job_id: held.start_us for held in state.snapshot().reservations} == ({} if at_us is None else {2: at_us})


# -- queues and refusals ------------------------------------------------------------------------------------------------------------


def test_routed_jobs_are_seen_in_their_new_queue_rejected_ones_nowhere() -> None:
    state = with_jobs(cluster(1), a_job(1, queue="a"), a_job(2, queue="a"), a_job(3, queue="b"))
    shown: list[object] = []

    def moves(draft: Draft) -> None:
        draft.route(1, "b", WHY)
        draft.reject(2, WHY)
        shown.append({name: [job.id for job in draft.queue(name)] for name in draft.queues()})
        shown.append((draft.job(2), draft.waiting_count))
        assert isinstance(draft.start(2, WHY), Infeasible)
        assert isinstance(draft.route(2, "c", WHY), Infeasible)
        draft.start(1, WHY)

    done(state, moves)
    assert shown[:2] == [{"a": [], "b": [1, 3]}, (None, 2)]
    assert {job.id: job.queue for job in state.snapshot().waiting} == {3: "b"}
    done(state, lambda draft: shown.append((draft.queues(), [run.job.id for run in draft.running_in("b")])))
    assert shown[-1] == (("b",), [1])


def test_calls_go_to_known_servers_once() -> None:
    state = ClusterState()
    state.server_changed(Server("fast", 400.0, 1, (("here", 1.08),)))
    for call_id in (8, 7):
        state.call_submitted(Call(call_id, 0, 10, 10, "here"))
    answers: list[object] = []

    def sends(draft: Draft) -> None:
        answers.extend(call.id for call in draft.calls())
        answers.append([type(draft.send(7, to, WHY)) for to in ("slow", "fast", "fast")])
        answers.extend(call.id for call in draft.calls())

    done(state, sends)
    assert answers[:4] == [7, 8, [Infeasible, Accepted, Infeasible], 8]
    assert [call.id for call in state.snapshot().calls] == [8]


# -- notes --------------------------------------------------------------------------------------------------------------------------


def test_a_note_lives_as_long_as_its_job_and_its_policy() -> None:
    state = with_jobs(cluster(2), a_job(1), a_job(2))

    def writes(draft: Draft) -> None:
        assert isinstance(draft.note("k", 9, (1,)), Infeasible)
        draft.note("k", 1, (1,))
        draft.note("k", 1, (2, 3))
        draft.note("k", 2, (4,))
        draft.note("k", 0, (5,))
        draft.forget("k", 2)
        assert dict(draft.notes("k")) == {0: (5,), 1: (2, 3)}

    plan = done(state, writes, FirstFit())
    assert [d for d in plan.decisions if isinstance(d, Noted)] == [Noted("says", "k", 0, (5,)), Noted("says", "k", 1, (2, 3))]
    done(state, lambda draft: draft.migrate(1, WHY), now=3)
    seen: list[object] = []
    done(state, lambda draft: seen.append(draft.notes("k")[1]), FirstFit(), now=4)
    assert seen[0] == (2, 3)
    state.job_ended(1)
    assert [note.id for note in state.snapshot().notes] == [0]
    done(state, FirstFit(), now=5)
    assert state.snapshot().notes == ()


# -- constraints ----------------------------------------------------------------------------------------------------------------------


def test_what_depends_on_others_or_on_the_clock_is_shown_to_nobody_before() -> None:
    state = with_jobs(cluster(1), a_job(1), a_job(2, after=(1, 99)), a_job(3, begin_us=50), a_job(4, after=(3,), begin_us=60))
    plan = done(state, HeadBlocking())
    assert started(plan) == [1]
    assert str(plan.why(2)) == "after: starts after job 1"
    assert str(plan.why(3)) == "begin: may not start before 50 us"
    assert [d.at_us for d in plan.decisions if isinstance(d, WakeAt)] == [50]
    with_jobs(state, a_job(99))  # known now: it counts from now on
    state.job_ended(1)
    assert started(planned(state, HeadBlocking(), now=10)) == [99]
    state.job_withdrawn(99)
    assert started(done(state, HeadBlocking(), now=11)) == [2]
    state.job_ended(2)
    assert started(planned(state, HeadBlocking(), now=49)) == []
    assert started(planned(state, HeadBlocking(), now=50)) == [3]
    assert started(planned(state, HeadBlocking(), now=49)) == []  # asked again about the past
    done(state, HeadBlocking(), now=55)
    state.job_ended(3)
    assert started(planned(state, HeadBlocking(), now=59)) == []
    assert started(planned(state, HeadBlocking(), now=60)) == [4]


def test_who_is_over_a_limit_blocks_nobody() -> None:
    state = cluster(8)
    state.limits_changed("default", Limits(max_cpus_per_user=3, max_jobs_per_user=2, max_cpus_per_account=4, max_time_us=50))
    who = {"user": "ann", "account": "x"}
    with_jobs(state, a_job(1, 2, **who), a_job(2, 2, **who), a_job(3, 1, **who), a_job(4, 1, **who), a_job(5, 2, user="bob", account="x"))
    with_jobs(state, a_job(6, 1, user="eve"), a_job(7, 1, limit_us=51), a_job(8, 1, limit_us=0), a_job(9, 4))
    used: list[Used] = []
    plan = done(state, HeadBlocking(), lambda draft: used.append(draft.used_by("ann")))
    assert started(plan) == [1, 3, 6]
    assert used[0] == Used(3, 2)
    assert str(plan.why(2)) == "limits: user ann may have 3 CPUs at once and has 2"
    assert str(plan.why(5)) == "limits: account x may have 4 CPUs at once and has 3"
    assert str(plan.why(7)) == "limits: its time limit is above the longest of partition default, 50 us"
    kinds: list[object] = []
    planned(state, lambda draft: kinds.extend(type(draft.start(i, WHY)) for i in (2, 8, 9)))
    assert kinds[:3] == [Insufficient, Infeasible, Infeasible]
    state.job_ended(1)
    assert started(done(state, HeadBlocking(), now=2)) == [2]
    state.limits_changed("default", None)
    assert started(done(state, FirstFit(), now=3)) == [4, 5, 7]


@pytest.mark.parametrize("policy", [HeadBlocking(), FirstFit()])
def test_nothing_runs_into_a_window_of_maintenance(policy: Policy) -> None:
    state = with_jobs(cluster(4), a_job(1, 2, limit_us=20), a_job(2, 3, limit_us=9), a_job(3, 2, limit_us=11))
    state.maintenance_planned(Maintenance(1, 10, 30, (0, 1), "disks"))
    plan = done(state, policy)
    assert [(d.job_id, d.placement) for d in plan.decisions if isinstance(d, Start)] == [(1, ((2, 3, 1),))]
    assert str(planned(state, FirstFit()).why(3)) == "maintenance: its time limit reaches into disks at 10 us on nodes that it needs"
    state.job_ended(1)
    assert started(done(state, policy, now=1)) == [2]
    state.job_ended(2)
    assert [d.placement for d in planned(state, policy, now=10).decisions if isinstance(d, Start)] == [((2, 3, 1),)]
    state.maintenance_over(1)
    assert [d.placement for d in planned(state, policy, now=10).decisions if isinstance(d, Start)] == [((0, 1, 1),)]


def test_a_promise_waits_for_the_end_of_a_window() -> None:
    state = with_jobs(cluster(4), a_job(1, 4, limit_us=20))
    state.maintenance_planned(Maintenance(1, 10, 30, (0,), "disks"))
    answers: list[object] = []
    planned(state, lambda draft: answers.append(draft.reserve(1, WHY)))
    assert answers == [Accepted(30), Accepted(30)]


def test_use_is_charged_when_nodes_are_left_and_halves() -> None:
    state = with_jobs(cluster(4, half_life_us=1000), a_job(1, 4, user="ann", account="x"))
    done(state, FirstFit())
    state.job_ended(1, now=10)
    (use,) = state.snapshot().usage
    assert (use.user, use.account, use.at_us) == ("ann", "x", 10)
    assert use.core_us == 40  # 39.86: the first microseconds have decayed a little
    assert use.decayed(1010, 1000) == 20
    with pytest.raises(ValueError, match="now is needed"):
        with_jobs(state, a_job(2)).job_started(2, ((0, 0, 1),), 11)
        state.job_ended(2)


# -- gangs ----------------------------------------------------------------------------------------------------------------------------


def shared(*homes: tuple[int, int], leaves: int = 2, **fields: Any) -> Gang:
    """A gang on the first one-core nodes; homes: (job, tree node)."""
    queues: dict[int, list[tuple[int, int]]] = {}
    for job_id, node in homes:
        queues.setdefault(node, []).append((job_id, 1))
    there = tuple((node, tuple(entries)) for node, entries in sorted(queues.items()))
    return Gang("g", 5, 0, 0, 2, ((0, leaves - 1, 1),), there)._replace(**fields)


def test_jobs_of_a_gang_share_nodes_in_time_and_nobody_else_gets_there() -> None:
    state = with_jobs(cluster(4, memory_bytes=10), *(a_job(i, 2, memory_bytes=4) for i in (1, 2, 3)), a_job(4, 1))
    answers: list[object] = []

    def shares(draft: Draft) -> None:
        answers.append(draft.gang(shared((1, 1)), WHY))  # two processes on one leaf
        answers.append(draft.gang(shared((1, 0), (2, 0), (3, 0)), WHY))  # 12 bytes of 10
        answers.append(draft.gang(shared((1, 7)), WHY))  # no such tree node
        answers.append(draft.gang(shared((1, 0), (2, 0)), WHY))
        answers.append(draft.suspend(1, WHY))

    plan = done(state, shares, FirstFit())
    assert [type(answer) for answer in answers[:5]] == [Infeasible, Infeasible, Infeasible, Accepted, Insufficient]
    assert started(plan) == [1, 2, 3]
    assert free(state) == 0
    state.job_ended(3)
    assert started(done(state, FirstFit(), now=1)) == [4]
    state.job_ended(1)
    assert state.snapshot().gangs == (shared((1, 0), (2, 0), policy="says"),)  # its slots stay empty until the record is set again
    assert free(state) == 1
    state.job_ended(2)
    assert (state.snapshot().gangs, free(state)) == ((), 3)


def test_a_member_that_runs_may_not_be_left_out_or_moved_and_a_stranger_may_not_be_taken_in() -> None:
    state = with_jobs(cluster(4), a_job(1, 1), a_job(2, 1), a_job(3, 2))
    done(state, lambda draft: draft.gang(shared((1, 1), (2, 2)), WHY))
    done(state, FirstFit(), now=1)
    answers: list[object] = []

    def again(draft: Draft) -> None:
        records = (shared((1, 1)), shared((1, 1), (2, 1)), shared((1, 1), (2, 2), (3, 0)), shared((1, 1), (2, 2), slot=3))
        answers.extend(draft.gang(record, WHY) for record in records)

    planned(state, again, now=2)
    assert [type(answer) for answer in answers[:4]] == [Infeasible, Infeasible, Infeasible, Accepted]


def test_a_gang_of_a_policy_that_has_left_turns_on_and_loses_only_what_has_ended() -> None:
    state = with_jobs(cluster(2), a_job(1, 2), a_job(2, 2))
    done(state, lambda draft: draft.gang(shared((1, 0), (2, 0)), WHY))
    assert planned(state, FirstFit(), now=1).decisions == ()
    state.job_ended(1)
    (left,) = done(state, FirstFit(), now=12).decisions
    assert isinstance(left, GangSet)
    assert (left.gang.homes, left.gang.slot) == ({2: 0}, 3)
    assert state.snapshot().gangs == (left.gang,)
    restored = ClusterState.restored(state.snapshot())
    assert restored.snapshot() == state.snapshot()


def test_a_newcomer_joins_a_gang_that_has_grown_although_the_node_of_an_exclusive_member_has_more_cores_now() -> None:
    state = with_jobs(cluster(1), a_job(1, exclusive=True), a_job(2))
    done(state, lambda draft: draft.gang(shared((1, 0), leaves=1), WHY))
    state.node_changed(Node(id=0, cores=2))
    state.node_changed(Node(id=1))
    grown = shared((1, 1), (2, 2))._replace(leaves=((0, 0, 1), (1, 1, 1)))
    (begun,) = [d for d in done(state, lambda draft: draft.gang(grown, WHY), now=1).decisions if isinstance(d, Start)]
    assert (begun.job_id, begun.placement) == (2, ((1, 1, 1),))


def test_a_member_that_was_sent_back_and_begins_alone_stands_in_no_record_any_more() -> None:
    state = with_jobs(cluster(3), a_job(1), a_job(2))
    done(state, lambda draft: draft.gang(shared((1, 0), (2, 0)), WHY))
    done(state, lambda draft: draft.preempt(1, WHY), now=1)
    plan = done(state, lambda draft: draft.start(1, WHY, ((2, 2, 1),)), now=2)
    left, begins = plan.decisions
    assert isinstance(left, GangSet)
    assert (left.gang.homes, left.gang.policy) == ({2: 0}, "says")
    assert isinstance(begins, Start)
    assert state.snapshot().gangs == (left.gang,)
    done(state, lambda draft: draft.preempt(1, WHY), now=3)  # node 2 was never the gang's
    assert free(state) == 2


def test_facts_that_cannot_be_are_refused_too() -> None:
    state = with_jobs(cluster(2), a_job(1))
    for fact in (state.job_suspended, state.job_resumed, state.job_migrated):
        with pytest.raises(StateConflict):
            fact(1, 0)
    with pytest.raises(StateConflict, match="not after its start"):
        state.maintenance_planned(Maintenance(1, 10, 10, (0,)))


def test_a_migration_is_a_decision_with_its_reason() -> None:
    state = with_jobs(cluster(1), a_job(1))
    done(state, FirstFit())
    plan = planned(state, lambda draft: draft.migrate(1, WHY), now=1)
    assert plan.decisions == (Migrate(1, WHY),)
    assert plan.why(1) == WHY
