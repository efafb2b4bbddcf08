"""Jobs that the migration policy moves, in the simulator's driver: decisions are facts at once, and counts stay with the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Migrate, Plan, Start
from rmgr.sched.policies.migration import Candidates, Migration
from rmgr.sched.policies.migration import SuspendedShare as HowMany
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Opening, decode, encode

HEAD = 9


def job(number: int, processes: int = 1, **more: Any) -> Job:
    return Job(id=number, submit_us=number, processes=processes, limit_us=1000, **more)


def starved(*followers: Job) -> ClusterState:
    """Six cores, of which two have just become free: a head of five waits, jobs of one core have passed it."""
    state = ClusterState(Node(id=number) for number in range(6))
    state.job_submitted(job(1, 2))
    state.job_started(1, ((0, 1, 1),), 1)
    state.job_submitted(replace(job(HEAD, 5), submit_us=2))
    for one in followers:
        state.job_submitted(one)
    for decision in passed(state, Migration(), 20).decisions:
        state.carried_out(decision, 20)
    assert len(state.partitions["default"].running) == 1 + len(followers)
    state.job_ended(1)
    return state


def passed(state: ClusterState, policy: Migration, now: int) -> Plan:
    plan = run_pass(state, frozenset({Cause.TIMER}), now=now, seed=0, pipeline=(Stage(policy),))
    assert plan.faults == ()
    return plan


def moved(plan: Plan) -> list[int]:
    return sorted(decision.job_id for decision in plan.decisions if isinstance(decision, Migrate))


def started(plan: Plan) -> set[int]:
    return {decision.job_id for decision in plan.decisions if isinstance(decision, Start)}


@pytest.mark.parametrize("how_many", list(HowMany))
def test_condition_one_counts_candidates_only(how_many: HowMany) -> None:
    followers = [job(3), job(4, saves=False), job(5), job(6)]
    plan = passed(starved(*followers), Migration(suspend=how_many), 30)
    assert (moved(plan), HEAD in started(plan)) == ([3, 5, 6], True)
    plain = [job(3), job(4, saves=False), job(5, saves=False), job(6)]
    plan = passed(starved(*plain), Migration(suspend=how_many), 30)
    assert (moved(plan), started(plan)) == ([], set()), "two candidates and two free cores are not five"
    assert plan.why(HEAD, "default").facts == ("4, 5",)
    plan = passed(starved(*plain), Migration(suspend=how_many, candidates=Candidates.ALL), 30)
    assert moved(plan) == ([3, 4, 5, 6] if how_many is HowMany.ALL else [4, 5, 6])


@pytest.mark.parametrize(("own", "policy"), [(2, 0), (0, 2), (2, 7), (7, 2)])
def test_the_smaller_cap_counts_and_moves_are_counted_where_they_happen(own: int, policy: int) -> None:
    state = starved(*(job(number, max_moves=own, moves=1) for number in (3, 4, 5)), job(6, max_moves=own, moves=2))
    plan = passed(state, Migration(max_moves=policy), 30)
    assert moved(plan) == [3, 4, 5]
    for decision in plan.decisions:
        state.carried_out(decision, 30)
    part = state.partitions["default"]
    assert {number: part.jobs[number].moves for number in (3, 4, 5)} == {3: 2, 4: 2, 5: 2}
    assert state.job_preempted(6, 40).moves == 2, "nobody has moved that one"


def test_what_is_learned_of_a_running_job_is_a_fact_of_the_log_and_of_a_snapshot() -> None:
    state = starved(job(3, saves=False), job(4), job(5), job(6, saves=False))
    assert moved(passed(state, Migration(), 30)) == []
    state.job_known(3, True, 4)
    state.job_suspended(6, 30)
    state.job_known(6, True, 1)
    state.job_known(77, True, 1)  # it has left meanwhile
    part = state.partitions["default"]
    assert (part.running[3].job.moves, part.suspended[6].run.job.saves) == (4, True)
    assert HEAD in started(passed(state, Migration(), 30))
    opening = decode(encode(Opening("migration", {}, 0, state.snapshot())))
    assert isinstance(opening, Opening)
    assert opening.state == state.snapshot()
