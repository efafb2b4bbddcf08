"""A policy that leaves the pipeline leaves no orphans: its stopped jobs go on, and its gangs take turns until they are empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import pytest

from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import UNLIMITED_US, Job, Node
from rmgr.sched.pipeline import configured
from rmgr.sched.plan import Plan, Resume, Start, Why
from rmgr.sched.policies.dqt import Dqt
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.view import ABANDONED
from rmgr.sim.laws.check import overcommitted

WHY = Why("test", "because")
S = 1_000_000
#: Policies of the catalogue that place jobs one by one.
PLACING = ("fcfs", "first_fit", "easy", "conservative", "queue_select", "connection_reservation", "migration")


@dataclass(frozen=True)
class Stops:
    """Stops job 1, and starts what comes instead."""

    what: Callable[[Draft], object]
    name: ClassVar[str] = "stops"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.what(draft)


def a_pass(state: ClusterState, *policies: Policy, now: int, cause: Cause = Cause.JOB_ENDED) -> Plan:
    """One pass on the state and on what another leader would make of its records; carried out."""
    stages = tuple(Stage(policy) for policy in policies)
    plan = run_pass(state, frozenset({cause}), now=now, seed=0, pipeline=stages)
    again = run_pass(ClusterState.restored(state.snapshot()), frozenset({cause}), now=now, seed=0, pipeline=stages)
    assert (plan.faults, again.decisions) == ((), plan.decisions)
    state.apply(plan, now)
    assert not list(overcommitted(state.snapshot()))
    return plan


def policy(name: str) -> Policy:
    return configured(name).stages[0].policy


def submit(state: ClusterState, number: int, processes: int, limit_s: int, now: int) -> None:
    state.job_submitted(Job(id=number, submit_us=now, processes=processes, limit_us=limit_s * S))


def stopped(nodes: int = 2, cores: int = 2) -> ClusterState:
    """Job 1 has all cores and stands still; the policy that stopped it has started job 2 on the half of them."""
    state = ClusterState(Node(id=number, cores=cores) for number in range(nodes))
    submit(state, 1, nodes * cores, 100, 0)
    a_pass(state, policy("fcfs"), now=0)
    submit(state, 2, nodes * cores // 2, 30, 10 * S)

    def stop(draft: Draft) -> None:
        draft.suspend(1, WHY)
        draft.start(2, WHY)

    a_pass(state, Stops(stop), now=10 * S)
    part = state.partitions["default"]
    assert (set(part.suspended), set(part.running)) == ({1}, {2})
    return state


def test_a_stopped_job_is_left_to_the_policy_that_stopped_it_while_that_serves() -> None:
    state = stopped()
    state.job_ended(2, now=40 * S)
    plan = a_pass(state, policy("fcfs"), Stops(lambda _: None), now=40 * S)
    assert plan.decisions == ()
    again = a_pass(ClusterState.restored(state.snapshot()), Stops(lambda draft: draft.resume(1, WHY)), now=41 * S)
    assert [type(decision) for decision in again.decisions] == [Resume, type(again.decisions[-1])]


@pytest.mark.parametrize("name", PLACING)
def test_what_a_policy_stopped_that_has_left_goes_on_at_once_where_its_cores_are_free(name: str) -> None:
    state = stopped()
    state.job_ended(2, now=40 * S)
    submit(state, 3, 4, 5, 40 * S)
    plan = a_pass(state, policy(name), now=40 * S, cause=Cause.TAKE_OVER)
    assert Resume(1, ABANDONED, "default") in plan.decisions
    run = state.partitions["default"].running[1]
    assert (run.start_us, run.end_us) == (40 * S, 130 * S)  # with what was left of its limit
    assert not state.partitions["default"].notes.get("stops")


@pytest.mark.parametrize("name", PLACING)
@pytest.mark.parametrize("one_core", [False, True])
def test_a_stream_of_jobs_does_not_keep_it_from_going_on(name: str, one_core: bool) -> None:
    """Its cores that are free, or come free, are given to nobody else; what promises took of them is promised elsewhere."""
    state = stopped(*((4, 1) if one_core else (2, 2)))
    chosen, numbers = policy(name), count(3)
    part = state.partitions["default"]
    for now in range(11 * S, 200 * S, 7 * S):
        for run in sorted(part.running.values(), key=lambda run: run.end_us):
            if run.end_us <= now:
                state.job_ended(run.job.id, now=run.end_us)
                a_pass(state, chosen, now=run.end_us)
        submit(state, next(numbers), 1 + now // S % 4, 20, now)
        a_pass(state, chosen, now=now, cause=Cause.JOB_SUBMITTED)
        if 1 in part.running:
            break
        assert set(part.running) == {2}, "somebody else has got cores of the job that stands still"
    assert part.running[1].start_us == 40 * S


def test_on_other_cores_others_go_on_meanwhile() -> None:
    state = stopped()
    state.node_changed(Node(id=9, cores=2))
    submit(state, 3, 2, 500, 12 * S)
    submit(state, 4, 2, 500, 12 * S)
    plan = a_pass(state, policy("easy"), now=12 * S, cause=Cause.NODES_CHANGED)
    assert [(one.job_id, one.placement) for one in plan.decisions if isinstance(one, Start)] == [(3, ((9, 9, 2),))]
    state.job_ended(2, now=40 * S)
    a_pass(state, policy("easy"), now=40 * S)
    assert set(state.partitions["default"].running) == {1, 3}


@pytest.mark.parametrize("name", PLACING)
def test_a_gang_whose_policy_has_left_turns_on_until_its_jobs_have_ended(name: str) -> None:
    """Its nodes are nobody else's meanwhile; what has ended leaves the record, and with the last one the gang goes."""
    state = ClusterState(Node(id=number, cores=2) for number in range(2))
    for number in (1, 2, 3):
        submit(state, number, 4, 50, 0)
    a_pass(state, Dqt(), now=0)
    part = state.partitions["default"]
    assert set(part.running) == {1, 2, 3}
    submit(state, 4, 1, 5, 5 * S)
    chosen = policy(name)
    for number in (2, 1, 3):
        before = part.gangs.by_name["dqt"].jobs
        assert not [one for one in a_pass(state, chosen, now=5 * S + number).decisions if isinstance(one, Start)]
        state.job_ended(number, now=10 * S * number)
        plan = a_pass(state, chosen, now=100 * S + number)
        if number != 3:
            assert part.gangs.by_name["dqt"].jobs == tuple(sorted(set(before) - {number}))
    assert not part.gangs.by_name
    assert [one.job_id for one in plan.decisions if isinstance(one, Start)] == [4]


def test_a_gang_is_taken_over_again_by_the_policy_that_made_it() -> None:
    state = ClusterState(Node(id=number, cores=2) for number in range(2))
    submit(state, 1, 4, 50, 0)
    a_pass(state, Dqt(), now=0)
    submit(state, 2, 4, 50, 5 * S)
    a_pass(state, policy("easy"), now=5 * S)
    a_pass(state, Dqt(), now=6 * S)
    part = state.partitions["default"]
    assert part.gangs.by_name["dqt"].jobs == (1, 2)
    assert part.running[2].end_us < UNLIMITED_US
