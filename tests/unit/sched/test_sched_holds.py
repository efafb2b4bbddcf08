"""Connection reservations as records: promised cores of named runs, held when those leave, used by one job only (papers.md 1.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmgr.sched.draft import Draft
from rmgr.sched.job import Node
from rmgr.sched.plan import Accepted, HoldCores, Infeasible, Insufficient, ReleaseHold, Start, Why
from rmgr.sched.policies.searches import Conservative, Easy, FirstFit
from rmgr.sched.records import Hold, Share
from rmgr.sched.state.cluster import ClusterState
from tests.unit.sched.test_verbs import WHY, a_job, cluster, done, free, planned, restored, started, with_jobs

LEFT, RIGHT = ((0, 1, 1),), ((2, 3, 1),)


def held(state: ClusterState) -> Hold | None:
    return state.partitions["default"].holds.get(3)


def nothing(draft: Draft) -> None:
    """Keeps the records of `says`."""


def two_runs(cores: int = 1, limit_us: int = 10) -> ClusterState:
    """Jobs 1 and 2 have the left and right half of 4 nodes; job 3 wants 3 processes and is promised both, one node less of the right."""
    state = with_jobs(cluster(4, cores=cores), a_job(1, 2, 10, threads=cores), a_job(2, 2, 20, threads=cores))
    done(state, FirstFit())
    with_jobs(state, a_job(3, 3, limit_us, threads=cores))
    plan = done(state, lambda draft: draft.hold(3, [Share(2, ((2, 2, cores),)), Share(1, ((0, 1, cores),))], WHY))
    assert [type(decision) for decision in plan.decisions] == [HoldCores]
    return state


@pytest.mark.parametrize("cores", [1, 4])
def test_it_starts_when_the_last_has_left_and_nobody_else_gets_there(cores: int) -> None:
    state = two_runs(cores)
    with_jobs(state, *(a_job(i, 1, 1000, threads=cores) for i in (4, 5, 6)))
    state.job_ended(1)
    assert held(state) == Hold(3, (Share(2, ((2, 2, cores),)),), (Share(1, ((0, 1, cores),)),), "says")
    answers: list[object] = []

    def tries(draft: Draft) -> None:
        answers.append(
            (draft.start(3, WHY), draft.start(4, WHY), draft.free_cores, [job.id for job in draft.startable(draft.by_arrival())])
        )

    plan = done(state, tries, now=10)
    assert isinstance(answers[0][0], Insufficient)  # type: ignore[index]
    assert answers[0][1:] == (Insufficient(Why("resources", "needs {} x {} cores, {} are free", (1, cores, 0))), 0, [])  # type: ignore[index]
    state.job_ended(2)  # all of node 2 is held, node 3 was not promised
    plan = done(state, FirstFit(), tries, now=20)
    assert [(d.job_id, d.placement) for d in plan.decisions if isinstance(d, Start)] == [(3, ((0, 2, 1),)), (4, ((3, 3, 1),))]
    assert held(state) is None
    state.job_ended(3)
    assert started(planned(state, FirstFit(), now=30)) == [5, 6]


@pytest.mark.parametrize("cores", [1, 4])
def test_what_is_held_comes_back_when_the_hold_is_released_or_its_policy_or_job_goes(cores: int) -> None:
    for ends in ("release", "policy", "withdrawn", "shrunk"):
        state = two_runs(cores)
        state.job_ended(1)
        assert free(state) == 0
        match ends:
            case "release":
                assert [type(d) for d in done(state, lambda draft: draft.release(3, WHY)).decisions] == [ReleaseHold]
            case "policy":
                assert [type(d) for d in done(state, FirstFit()).decisions] == [ReleaseHold]
            case "withdrawn":
                state.job_withdrawn(3)
            case _:
                state.job_requeued(replace(state.partitions["default"].jobs[3], processes=2))
                assert held(state) is None
        assert free(state) == 2 * cores
        state.job_ended(2)
        assert free(state) == 4 * cores


def test_a_hold_may_shrink_to_less_of_what_is_held_and_only_to_that() -> None:
    state = two_runs(4)
    state.job_ended(1)
    answers: list[object] = []

    def shrinks(draft: Draft) -> None:
        right = Share(2, ((2, 2, 4),))
        answers.append(draft.shrink(3, [Share(1, ((0, 0, 4),)), right], WHY))  # 2 processes of 3
        answers.append(draft.shrink(3, [Share(1, ((0, 2, 4),)), right], WHY))  # node 2 was not its own
        answers.append(draft.shrink(3, [Share(1, ((0, 0, 4),)), Share(2, ((2, 3, 4),))], WHY))
        answers.append((draft.free_cores, draft.held_for(3)))
        answers.append(draft.shrink(2, [right], WHY))

    done(state, shrinks)
    assert [type(answer) for answer in answers[:3]] == [Insufficient, Infeasible, Accepted]
    assert answers[3] == (4, Hold(3, (Share(2, ((2, 3, 4),)),), (Share(1, ((0, 0, 4),)),), "says"))
    assert isinstance(answers[4], Infeasible)
    assert free(state) == 4


def test_a_run_is_promised_once_and_only_what_it_has() -> None:
    state = two_runs()
    with_jobs(state, a_job(4, 1), a_job(5, 1))
    answers: list[object] = []

    def tries(draft: Draft) -> None:
        answers.append(draft.hold(4, [Share(2, ((3, 3, 1),))], WHY))
        answers.append(draft.hold(4, [Share(9, ((3, 3, 1),))], WHY))
        answers.append(draft.hold(1, [Share(2, ((3, 3, 1),))], WHY))
        with draft.fork():
            draft.release(3, WHY)
            answers.append(draft.hold(4, [Share(2, ((2, 2, 1), (2, 2, 1)))], WHY))
            answers.append(draft.hold(4, [Share(2, ((3, 3, 1),))], WHY))
        answers.append(draft.held_for(3) == held(state))

    assert planned(state, tries).decisions == ()
    assert [type(answer) for answer in answers[:5]] == [Insufficient, Infeasible, Infeasible, Infeasible, Accepted]
    assert answers[5] is True


def test_what_started_in_this_pass_can_be_promised_in_it() -> None:
    state = with_jobs(cluster(2), a_job(1, 2), a_job(2, 2))

    def starts(draft: Draft) -> None:
        draft.start(1, WHY)
        assert draft.hold(2, [Share(1, ((0, 1, 1),))], WHY) == Accepted(0)

    done(state, starts)
    assert state.partitions["default"].flagged == {1: 2}


@pytest.mark.parametrize("verb", ["migrate", "suspend"])
@pytest.mark.parametrize("cores", [1, 4])
def test_a_promised_run_that_is_sent_away_leaves_its_share(verb: str, cores: int) -> None:
    state = two_runs(cores)

    def sends(draft: Draft) -> None:
        getattr(draft, verb)(2, WHY)
        hold = draft.held_for(3)
        assert hold is not None
        assert hold.held == (Share(2, ((2, 2, cores),)),)
        assert draft.free_cores == cores

    done(state, sends, now=1)
    assert free(state) == cores
    state.job_ended(1)
    assert [d.placement for d in done(state, lambda draft: draft.start(3, WHY), now=2).decisions if isinstance(d, Start)] == [((0, 2, 1),)]


@pytest.mark.parametrize("cores", [1, 4])
def test_no_promise_counts_on_what_a_hold_takes_over(cores: int) -> None:
    # Nodes 0 to 2 go to job 3 whenever that may be: a job of one node is promised node 3 at 20, one of two nodes nothing.
    state = two_runs(cores)
    with_jobs(state, a_job(4, 1, threads=cores), a_job(5, 2, threads=cores))
    answers: list[object] = []

    def reserves(draft: Draft) -> None:
        for keep in (False, True):
            with draft.fork():
                answers.append(
                    (draft.reserve(4, WHY, keep=keep), type(draft.reserve(5, WHY, keep=keep)), type(draft.reserve(3, WHY, keep=keep)))
                )
        with draft.fork():
            draft.reserve(4, WHY)
            broken = draft.hold(3, [Share(2, ((2, 3, cores),)), Share(1, ((0, 1, cores),))], WHY)
            answers.append(type(broken))
            answers.append(draft.held_for(3) == held(state))

    planned(state, reserves)
    assert answers[:4] == [(Accepted(20), Insufficient, Insufficient)] * 2 + [Insufficient, True]
    state.job_ended(1)
    state.job_ended(2)
    done(state, lambda draft: draft.start(3, WHY), now=20)
    planned(state, lambda draft: answers.append(draft.reserve(5, WHY)), now=20)
    assert answers[-1] == Accepted(30)


@pytest.mark.parametrize("policy", [Easy(), Conservative()])
def test_backfilling_goes_on_beside_a_hold(policy: Easy | Conservative) -> None:
    state = two_runs()
    with_jobs(state, a_job(4, 1))
    state.job_ended(1)
    state.job_ended(2)
    plan = planned(state, policy, nothing, now=20)
    assert started(plan) == [3, 4]


def test_memory_that_others_still_have_is_waited_for() -> None:
    # Node of 8 cores and 8 bytes: job 1 has 4 cores and 1 byte, job 2 has 1 core and 4 bytes. Job 3 needs the cores of 1 and 4 bytes.
    state = with_jobs(cluster(1, cores=8, memory_bytes=8), a_job(1, 1, threads=4, memory_bytes=1), a_job(2, 1, memory_bytes=5))
    done(state, FirstFit())
    with_jobs(state, a_job(3, 1, threads=4, memory_bytes=4))
    done(state, lambda draft: draft.hold(3, [Share(1, ((0, 0, 4),))], WHY))
    state.job_ended(1)
    assert started(planned(state, lambda draft: draft.start(3, WHY), now=1)) == []
    state.job_ended(2)
    assert started(planned(state, lambda draft: draft.start(3, WHY), now=2)) == [3]


@pytest.mark.parametrize("cores", [1, 4])
def test_holds_outlive_a_change_of_nodes_and_of_leaders(cores: int) -> None:
    state = two_runs(cores)
    state.job_ended(1)
    state.node_changed(Node(id=0, cores=cores, closed=True))
    state = restored(state)
    state.job_ended(2)
    assert started(planned(state, lambda draft: draft.start(3, WHY), now=20)) == []
    state.node_changed(Node(id=0, cores=cores))
    assert free(state) == cores
    assert started(planned(state, lambda draft: draft.start(3, WHY), now=20)) == [3]
