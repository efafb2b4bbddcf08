"""Nodes that close and open, and other resources than cores and memory: counted from records, and never given twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmgr.daemons.leader.facts import job_of, node_of
from rmgr.model.base import Capacity, Request
from rmgr.model.block import BlockKey
from rmgr.model.node import NodeRecord, NodeState
from rmgr.model.submission import Rigid, Submission, Work
from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import PLAIN, Job, Node, Resources
from rmgr.sched.plan import Accepted, Insufficient, Start, Why
from rmgr.sched.policies.searches import FirstFit
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Limits
from rmgr.sched.state.cluster import ClusterState

GPU: Resources = (("gpu", 1),)
WHY = Why("test", "a test says so")


def cluster(*jobs: Job, gpus: tuple[int, ...] = (2, 0)) -> ClusterState:
    """Nodes 0, 1, ... of four cores, with so many GPUs."""
    state = ClusterState([Node(id=n, cores=4, resources=(("gpu", count),) if count else ()) for n, count in enumerate(gpus)])
    for job in jobs:
        state.job_submitted(job)
    return state


def a_job(number: int, processes: int = 1, resources: Resources = GPU, limit_us: int = 10) -> Job:
    return Job(id=number, submit_us=0, processes=processes, resources=resources, limit_us=limit_us)


def drafted(state: ClusterState) -> Draft:
    return Draft(state.partitions["default"], 0, 0)


def said(state: ClusterState, number: int) -> str:
    verdict = drafted(state).start(number, WHY)
    assert isinstance(verdict, Insufficient)
    return str(verdict.why)


def test_a_job_goes_where_its_resources_are_and_waits_while_they_are_taken() -> None:
    state = cluster(a_job(1), a_job(2), a_job(3), Job(id=4, submit_us=0, processes=5))
    plan = run_pass(state, frozenset({Cause.TIMER}), now=0, seed=0, pipeline=(Stage(policy_named("first_fit")),))
    state.apply(plan, 0)
    placed = {number: run.placement for number, run in state.partitions["default"].running.items()}
    assert placed == {1: ((0, 0, 1),), 2: ((0, 0, 1),), 4: ((0, 0, 2), (1, 1, 3))}
    assert said(state, 3) == "resources: needs 1 x 1 gpu, 0 are free"
    state.job_ended(1)
    draft = drafted(state)
    assert isinstance(draft.start(3, WHY), Accepted)
    draft.close()


def test_what_keeps_a_job_waiting_beside_free_cores_is_said() -> None:
    # Nodes of four cores: 2 and 4 of them are free, or 2 and 2.
    alone, wide = Job(id=2, submit_us=0, processes=2, exclusive=True, spread=True), Job(id=3, submit_us=0, threads=3)
    state = cluster(Job(id=1, submit_us=0, processes=2), Job(id=4, submit_us=0, processes=2), alone, wide, gpus=(0, 0))
    state.job_started(1, ((0, 0, 2),), 0)
    assert said(state, 2) == "resources: needs 2 x 1 core and its nodes for itself, 1 node empty"
    state.job_started(4, ((1, 1, 2),), 0)
    assert said(state, 3) == "resources: needs 1 x 3 cores, 4 are free, but where it may run there is room for 0 such processes"


def test_what_no_node_ever_has_is_told_by_name() -> None:
    tape: Resources = (("gpu", 1), ("tape", 1))
    state = cluster(a_job(1, resources=(("gpu", 3),)), a_job(2, processes=3), a_job(3, resources=tape), a_job(4, 9, ()))
    told = [str(state.partitions["default"].aside[number]) for number in (1, 2, 3, 4)]
    assert told == [
        "size: needs 1 x 3 gpu: more than partition default has",
        "size: needs 3 x 1 gpu: more than partition default has",
        "size: needs 1 x 1 tape: more than partition default has",
        "size: needs 9 x 1 core: more than partition default has",
    ]
    state.node_changed(Node(id=1, cores=4, resources=(("gpu", 1), ("tape", 1))))
    assert sorted(state.partitions["default"].infeasible) == [1, 4]


def test_a_promise_waits_for_the_resource_and_nobody_takes_it_meanwhile() -> None:
    state = cluster(a_job(1, 2, limit_us=100), a_job(2, 2, limit_us=50), a_job(3, limit_us=1000))
    pipeline = (Stage(policy_named("conservative")),)
    state.apply(run_pass(state, frozenset({Cause.TIMER}), now=0, seed=0, pipeline=pipeline), 0)
    draft = Draft(state.partitions["default"], 0, 0)
    assert draft.reserve(2, WHY) == Accepted(100)
    assert draft.reserve(3, WHY) == Accepted(150), "cores are free all the time, GPUs are not"
    draft.close()


def test_a_suspended_job_keeps_its_resources() -> None:
    state = cluster(a_job(1, 2), a_job(2))
    state.job_started(1, ((0, 0, 2),), 0)
    state.job_suspended(1, 5)
    assert state.partitions["default"].pool.free == 8
    assert said(state, 2) == "resources: needs 1 x 1 gpu, 0 are free"
    state.job_ended(1)
    draft = drafted(state)
    assert isinstance(draft.start(2, WHY), Accepted)
    draft.close()


def test_nodes_of_one_core_with_resources_are_looked_at_one_by_one() -> None:
    plain = ClusterState([Node(id=n) for n in range(3)])
    plain.job_submitted(a_job(1))
    assert 1 in plain.partitions["default"].infeasible
    state = ClusterState([Node(id=n, resources=GPU if n else ()) for n in range(3)])
    state.job_submitted(a_job(1, processes=2))
    draft = drafted(state)
    assert isinstance(draft.start(1, WHY), Accepted)
    assert draft.decisions[0].placement == ((1, 2, 1),)  # type: ignore[union-attr]
    draft.close()


def test_shapes_without_anything_special_are_the_plain_one() -> None:
    assert Job(id=1, submit_us=0).shape is PLAIN
    assert Job(id=1, submit_us=0, resources=GPU).shape.resources == GPU
    for wrong in ((("gpu", 0),), (("tape", 1), ("gpu", 1)), (("gpu", 1), ("gpu", 2))):
        with pytest.raises(ValueError, match="resources"):
            Job(id=1, submit_us=0, resources=wrong)


def test_records_become_nodes_and_jobs_with_their_resources() -> None:
    record = NodeRecord(
        node="n1", incarnation=1, state=NodeState.UP, guid="g", capacity=Capacity(cores=4, memory_bytes=0, resources={"tape": 0, "gpu": 2})
    )
    assert node_of(record, 7, closed=False).resources == (("gpu", 2),)
    key = BlockKey(priority=0, seq=1, submission=5, first=0, count=1, attempt=1, cores=1, memory_mib=0)
    for rigid, found in ((Rigid(processes=4), 1), (Rigid(processes=5, nodes=2), 3)):
        submission = Submission(id=5, name="x", user="u", queue="q", work=Work.COMMAND, request=Request(resources={"gpu": 1}), rigid=rigid)
        assert job_of(submission, key, "default", 0).resources == (("gpu", found),), "all that one node gets is one of its processes"


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
