"""A scheduling pass: answers of verbs, limits of bad policies, stages that share a draft, forks, reasons, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rmgr.errors import ConfigError, StateConflict
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Accepted, Infeasible, Insufficient, Plan, Reserve, Start
from rmgr.sched.policies.searches import FirstFit
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Share
from rmgr.sched.state.cluster import ClusterState
from tests.unit.sched.test_verbs import WHY, Says, a_job, cluster, with_jobs

ARRIVED = frozenset({Cause.JOB_SUBMITTED})


def planned(state: ClusterState, *policies: object, now: int = 0, expired: Callable[[], bool] = lambda: False) -> Plan:
    stages = tuple(Stage(policy) for policy in policies)  # type: ignore[arg-type]
    return run_pass(state, ARRIVED, now=now, seed=0, pipeline=stages, expired=expired)


def started(plan: Plan) -> list[int]:
    return [d.job_id for d in plan.decisions if isinstance(d, Start)]


# -- bad policies ------------------------------------------------------------------------------------------------------------


def raises_after_starting(draft: Draft) -> None:
    draft.start(1, WHY)
    draft.reserve(2, WHY, keep=True)
    raise RuntimeError("a bug of mine")


def test_a_policy_that_raises_loses_its_decisions_and_the_next_one_goes_on() -> None:
    state = with_jobs(cluster(), a_job(1, 3), a_job(2, 2))
    before = state.snapshot()
    plan = planned(state, Says(raises_after_starting), policy_named("fcfs"))
    assert started(plan) == [1]
    assert [(f.policy, f.error) for f in plan.faults] == [("says", "RuntimeError: a bug of mine")]
    assert state.snapshot() == before
    assert state.partitions["default"].pool.free == 4
    assert not [d for d in plan.decisions if isinstance(d, Reserve)]


def test_a_second_policy_that_raises_does_not_undo_the_first() -> None:
    state = with_jobs(cluster(), a_job(2, 1), a_job(1, 4))
    plan = planned(state, FirstFit(), Says(raises_after_starting), FirstFit())
    assert started(plan) == [1]
    assert len(plan.faults) == 1
    assert state.partitions["default"].pool.free == 4


def test_a_policy_that_sleeps_loses_its_decisions() -> None:
    state = with_jobs(cluster(), a_job(1))
    plan = planned(state, policy_named("fcfs"), expired=lambda: True)
    assert plan.decisions == ()
    assert plan.faults[0].error == "out of time"


def test_a_policy_cannot_overcommit_start_twice_or_name_what_is_not_there() -> None:
    answers: list[object] = []

    def greedy(draft: Draft) -> None:
        answers.append(draft.start(1, WHY))
        answers.append(draft.start(1, WHY))  # twice
        answers.append(draft.start(2, WHY))  # 3 more on 4 nodes
        answers.append(draft.start(2, WHY, ((0, 2, 1),)))  # where job 1 stands
        answers.append(draft.start(3, WHY, ((99, 99, 1),)))  # unknown node
        answers.append(draft.start(3, WHY, ((3, 3, 2),)))  # two processes on one core
        answers.append(draft.start(77, WHY))  # unknown job
        answers.append(draft.wake_at(0, WHY))  # not later than now

    plan = planned(with_jobs(cluster(), a_job(1, 3), a_job(2, 3), a_job(3)), Says(greedy))
    kinds = [type(answer) for answer in answers]
    assert kinds == [Accepted, Infeasible, Insufficient, Insufficient, Infeasible, Insufficient, Infeasible, Infeasible]
    assert started(plan) == [1]
    assert plan.refused == 4


def test_a_draft_that_a_policy_kept_is_of_no_use_after_the_pass() -> None:
    kept: list[Draft] = []
    planned(with_jobs(cluster(), a_job(1)), Says(kept.append))
    with pytest.raises(StateConflict, match="closed"):
        kept[0].start(1, WHY)


@dataclass(frozen=True, slots=True)
class Crooked:
    """An order whose key raises for job 2."""

    name: ClassVar[str] = "crooked"

    def key(self, job: Job) -> tuple[int, ...]:
        return (1 // (job.id - 2), job.id)

    def arrange(self, draft: Draft) -> Iterator[Job]:
        return draft.sorted_by(self)


def test_an_order_whose_key_raises_hurts_neither_facts_nor_other_policies() -> None:
    state = with_jobs(cluster(), a_job(1, 4))
    assert started(planned(state, FirstFit(order=Crooked()))) == [1]
    with_jobs(state, a_job(2))
    plan = planned(state, FirstFit(order=Crooked()), FirstFit())
    assert "ZeroDivisionError" in plan.faults[0].error
    assert started(plan) == [1]
    state.job_withdrawn(2)
    assert started(planned(state, FirstFit(order=Crooked()))) == [1]


def test_a_stage_for_a_partition_that_is_not_there_is_a_fault() -> None:
    plan = run_pass(cluster(), ARRIVED, now=0, seed=0, pipeline=(Stage(FirstFit(), ("gone",)),))
    assert plan.faults[0].error == "no such partition"


# -- promises, forks, reasons ---------------------------------------------------------------------------------------------------


def test_a_fork_leaves_no_trace_unless_it_is_kept() -> None:
    seen: list[object] = []

    def what_if(draft: Draft) -> None:
        with draft.fork():
            draft.start(1, WHY)
            draft.reserve(2, WHY)
        seen.append(draft.fits(a_job(9, 4)))
        with draft.fork() as trial:
            seen.append(draft.start(2, WHY))
            trial.keep()

    plan = planned(with_jobs(cluster(), a_job(1, 3), a_job(2, 2)), Says(what_if))
    assert seen == [True, Accepted(0)]
    assert started(plan) == [2]


def test_promises_of_a_policy_that_left_the_pipeline_go() -> None:
    state = with_jobs(cluster(), a_job(1, 3), a_job(2, 4), a_job(3, 1, limit_us=100))
    state.apply(planned(state, policy_named("conservative")), 0)
    assert [(r.job_id, r.start_us) for r in state.snapshot().reservations] == [(2, 10), (3, 20)]
    plan = planned(state, policy_named("first_fit"))
    assert started(plan) == [3]
    state.apply(plan, 0)
    assert state.snapshot().reservations == ()


def test_easy_backfills_what_ends_before_the_shadow_or_fits_beside_it() -> None:
    # 5 nodes: job 1 holds 3 until 10. Head: job 2 wants 4 -> shadow 10, extra 1.
    state = with_jobs(cluster(5), a_job(1, 3), a_job(2, 4))
    state.apply(planned(state, policy_named("easy")), 0)
    with_jobs(state, a_job(3, 1, limit_us=11), a_job(4, 1, limit_us=11), a_job(5, 1, limit_us=10))
    plan = planned(state, policy_named("easy"))
    assert started(plan) == [3, 5]  # 3 uses up the extra node, 4 would delay the head, 5 ends in time
    assert str(plan.why(5)) == "backfill: fits now without delaying job 2"
    assert str(plan.why(4)) == "easy: does not fit now, or would delay the head of the queue"
    assert str(plan.why(2)) == "resources: needs 4 x 1 core, 2 are free"


def test_threads_of_a_process_share_a_node_and_memory_is_counted() -> None:
    state = cluster(2, cores=4, memory_bytes=8)
    with_jobs(state, a_job(1, 2, threads=3), a_job(2, 1, threads=2), a_job(3, 2, memory_bytes=5))
    assert [(d.job_id, d.placement) for d in planned(state, FirstFit()).decisions if isinstance(d, Start)] == [
        (1, ((0, 1, 1),)),
        (3, ((0, 1, 1),)),
    ]


def test_a_closed_node_gets_nothing_and_gives_nothing_back() -> None:
    state = with_jobs(cluster(), a_job(1, 4))
    state.apply(planned(state, FirstFit()), 0)
    state.node_changed(Node(id=1, closed=True))
    state.job_ended(1)
    with_jobs(state, a_job(2, 4), a_job(3, 3))
    assert [(d.job_id, d.placement) for d in planned(state, FirstFit()).decisions if isinstance(d, Start)] == [(3, ((0, 0, 1), (2, 3, 1)))]
    state.node_changed(Node(id=1))
    assert started(planned(state, FirstFit())) == [2]


def test_a_job_larger_than_its_partition_waits_aside_and_blocks_nobody() -> None:
    state = cluster(2)
    assert not state.job_submitted(a_job(1, 3))
    with_jobs(state, a_job(2, 2))
    assert started(planned(state, policy_named("fcfs"))) == [2]
    state.node_changed(Node(id=2))
    assert started(planned(state, policy_named("fcfs"))) == [1]


def test_what_short_jobs_fill_is_not_free_for_long_ones_either() -> None:
    # 3 nodes x 2 cores, nodes 0 and 1 with the feature "a". Node 0 is full until 10, one core of node 1 until 5.
    # Head: 2 x 2 cores with "a" -> shadow 10 on nodes 0 and 1. Short job 4 fills node 2; long job 5 fits on node 1 only, which is held.
    state = ClusterState(Node(id=i, cores=2, features=("a",) if i < 2 else ()) for i in range(3))
    with_jobs(state, a_job(1, threads=2), a_job(2, limit_us=5), a_job(3, 2, threads=2, features=("a",)))
    state.job_started(1, ((0, 0, 1),), 0)
    state.job_started(2, ((1, 1, 1),), 0)
    with_jobs(state, a_job(4, threads=2), a_job(5, limit_us=11))
    plan = planned(state, policy_named("easy"))
    assert [(d.job_id, d.placement) for d in plan.decisions if isinstance(d, Start)] == [(4, ((2, 2, 1),))]
    state.job_withdrawn(4)
    assert started(planned(state, policy_named("easy"))) == [5]


def test_conservative_looks_at_the_whole_run_on_nodes_with_several_cores() -> None:
    # One node x 2 cores, one taken until 10. Job 2 (2 cores) is promised 10; job 3 (1 core, 100 us) fits now but would break that.
    state = with_jobs(cluster(1, cores=2), a_job(1))
    state.apply(planned(state, policy_named("conservative")), 0)
    with_jobs(state, a_job(2, threads=2), a_job(3, limit_us=100), a_job(4, limit_us=10))
    plan = planned(state, policy_named("conservative"))
    assert [(d.job_id, d.start_us) for d in plan.decisions if isinstance(d, Reserve)] == [(2, 10), (3, 20), (4, 0)]
    assert started(plan) == [4]


def test_what_has_waited_too_long_goes_first() -> None:
    # Smallest first on 4 nodes: job 1 (4 nodes) would go last; after 10 us it goes first, and blocks.
    state = with_jobs(cluster(), Job(id=1, submit_us=0, processes=4), Job(id=2, submit_us=5, processes=1))
    policy = policy_named("sjf", {"max_wait": "0.00001"})
    assert started(planned(state, policy, now=9)) == [2]
    assert started(planned(state, policy, now=10)) == [1]


def test_facts_that_cannot_be_are_refused() -> None:
    state = with_jobs(cluster(), a_job(1, 2))
    state.job_started(1, ((0, 1, 1),), 5)
    with_jobs(state, a_job(2, 3))
    with pytest.raises(StateConflict, match="not free"):
        state.job_started(2, ((1, 3, 1),), 6)
    with pytest.raises(StateConflict, match="submitted before"):
        state.job_submitted(a_job(1))
    with pytest.raises(StateConflict, match="runs on it"):
        state.node_removed(0)
    with pytest.raises(StateConflict, match="is in partition default"):
        state.node_changed(Node(id=0, partition="other"))


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("first_fitt", {}, "did you mean first_fit"),
        ("easy", {"oder": "sjf"}, "did you mean order"),
        ("easy", {"order": "sfj"}, "no order is called 'sfj'; did you mean sjf"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, params: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        policy_named(name, params)


def test_a_promise_on_a_node_that_is_removed_goes_with_it() -> None:
    state = with_jobs(ClusterState(Node(id=i, cores=2) for i in range(3)), a_job(1, 4), a_job(2, 6))
    state.job_started(1, ((0, 1, 2),), 0)
    state.apply(planned(state, policy_named("conservative")), 0)
    assert [r.job_id for r in state.snapshot().reservations] == [2]
    state.node_removed(2)
    assert state.snapshot().reservations == ()
    assert started(planned(state, policy_named("conservative"))) == []


def test_any_number_of_shapes_places_jobs_as_if_each_were_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def placed(exact: int) -> list[object]:
        monkeypatch.setattr("rmgr.sched.capacity.nodes.EXACT", exact)
        state = ClusterState([Node(id=n, cores=8, memory_bytes=64) for n in range(12)])
        for n in range(1, 60):
            size, threads, memory = 1 + n % 5, 1 + n % 3, n * 7 % 23 + 1
            state.job_submitted(Job(id=n, submit_us=0, limit_us=10 * n, processes=size, threads=threads, memory_bytes=memory))
        plans: list[object] = []
        for now in range(0, 40, 10):
            plan = run_pass(state, frozenset(), now=now, seed=0, pipeline=(Stage(policy_named("easy", {})),))
            plans.append(plan.decisions)
            state.apply(plan, now)
            state.job_ended(min(state.partitions["default"].running))
        return plans

    assert placed(0) == placed(1000)


def test_what_a_hold_takes_over_is_promised_to_nobody_even_after_a_kept_promise() -> None:
    # 4 nodes. Job 1 (3 nodes) has been promised a start, starts, and job 2 holds all that it will leave: 3 has nothing to wait for.
    state = with_jobs(cluster(), a_job(1, 3), a_job(2, 3), a_job(3, 3))
    answers: list[object] = []

    def promises(draft: Draft) -> None:
        draft.reserve(1, WHY, keep=True)

    def holds(draft: Draft) -> None:
        answers.append(draft.start(1, WHY))
        answers.append(draft.hold(2, [Share(1, ((0, 2, 1),))], WHY))
        answers.append(draft.reserve(3, WHY, keep=True))

    state.apply(planned(state, Says(promises)), 0)
    planned(state, Says(holds), now=5)
    assert [type(answer) for answer in answers] == [Accepted, Accepted, Insufficient]
