"""Nodes that close and open while jobs come and go: what is kept up to date is what would be derived from the records."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Start, Why
from rmgr.sched.policies.first_fit import FirstFit
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Limits
from rmgr.sched.state.cluster import ClusterState

WHY = Why("test", "it fits")


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("policy", ["first_fit", "easy", "conservative"])
def test_closing_and_opening_nodes_keeps_the_pool_that_the_records_make(policy: str, cores: int) -> None:
    chance = random.Random(11)
    nodes = [Node(id=n, cores=cores) for n in range(12)]
    state = ClusterState(nodes)
    pipeline = (Stage(policy_named(policy)),)
    started = 0
    for now in range(400):
        for run in list(state.partitions["default"].running.values()):
            if chance.random() < 0.15:
                state.job_ended(run.job.id)
        if chance.random() < 0.6:
            size = chance.randint(1, 5 * cores)
            state.job_submitted(Job(id=now, submit_us=now, processes=size, limit_us=chance.randint(1, 20)))
        node = state.partitions["default"].nodes[chance.randrange(12)]
        state.node_changed(replace(node, closed=chance.random() < 0.4))
        again = ClusterState.restored(state.snapshot())
        ours, theirs = state.partitions["default"], again.partitions["default"]
        assert ours.endings == theirs.endings
        assert ours.pool.free == theirs.pool.free
        plans = [run_pass(each, frozenset({Cause.TIMER}), now=now, seed=0, pipeline=pipeline) for each in (state, again)]
        assert plans[0] == plans[1]
        state.apply(plans[0], now)
        started += len(plans[0].decisions)
    assert started > 100


@pytest.mark.parametrize("cores", [1, 4])
def test_where_no_core_is_free_the_rest_of_a_long_queue_is_not_gone_through(cores: int) -> None:
    state = ClusterState([Node(id=0, cores=cores)])
    for number in range(1, 101):
        state.job_submitted(Job(id=number, submit_us=number, limit_us=10))
    looked: list[int] = []

    class Counting(FirstFit):
        def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
            for job in draft.startable(job for job in draft.by_arrival() if looked.append(job.id) is None):
                draft.start(job.id, WHY)

    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=100, seed=0, pipeline=(Stage(Counting()),))
    assert [decision.job_id for decision in plan.decisions if isinstance(decision, Start)] == list(range(1, cores + 1))
    assert len(looked) <= cores + 1
    state.apply(plan, 100)
    looked.clear()
    assert not run_pass(state, frozenset({Cause.TIMER}), now=101, seed=0, pipeline=(Stage(Counting()),)).decisions
    assert len(looked) <= 1


@pytest.mark.parametrize("cores", [1, 4])
def test_who_is_over_a_limit_is_told_so_although_no_core_is_free(cores: int) -> None:
    state = ClusterState([Node(id=0, cores=cores)])
    state.limits_changed("default", Limits(max_jobs_per_user=cores))
    for number in range(1, cores + 3):
        state.job_submitted(Job(id=number, submit_us=number, limit_us=10, user="ann"))
    state.job_submitted(Job(id=50, submit_us=50, limit_us=10, user="bob"))
    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=100, seed=0, pipeline=(Stage(FirstFit()),))
    told = f"limits: user ann may run {cores} job{'s' if cores > 1 else ''} at once and does"
    assert [str(plan.why(job)) for job in (cores + 1, cores + 2)] == [told, told]
    assert str(plan.why(50)).startswith("first_fit: ")
