"""A policy that uses every verb at random: whatever it does, nothing is over-committed, records say all, and the next pass can be run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sched_worlds import MONKEY, Monkey, worlds

from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Accepted, Start
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.laws.check import _TRIED, told, tried
from rmgr.sim.laws.world import SmallWorld

#: It starves jobs as it likes, says nothing, and raises.
LAWS = _TRIED - {"served", "explained"}
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def assert_harmless(world: SmallWorld, *policies: object, laws: frozenset[str] = LAWS) -> None:
    result = tried(world, lambda: tuple(Stage(policy) for policy in policies), laws=laws, most_passes=25)  # type: ignore[arg-type]
    if result.breach is not None:
        story = "\n".join(told(result.breach))
        pytest.fail(f"{result.breach.law} is broken: {result.breach.text}\n{story}")


@MANY
@given(world=worlds(), seed=st.integers(0, 999))
def test_a_monkey_cannot_hurt_the_cluster(world: SmallWorld, seed: int) -> None:
    assert_harmless(world, Monkey(seed=seed))


@MANY
@given(world=worlds(), seed=st.integers(0, 999))
def test_a_monkey_that_falls_leaves_the_others_in_peace(world: SmallWorld, seed: int) -> None:
    pipeline = (policy_named("easy"), Monkey(seed=seed, raises=True), policy_named("first_fit"))
    assert_harmless(world, *pipeline, laws=LAWS - {"sound"})


class Keeper:
    """Starts what was promised a start for now, and complains when that does not work."""

    name = "keeper"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        promises = [(at_us, job.id) for job in draft.by_arrival() if (at_us := draft.promised(job.id)) is not None]
        for at_us, job_id in sorted(promises):
            if at_us > draft.now_us:
                draft.wake_at(at_us, MONKEY)
            elif at_us == draft.now_us:
                verdict = draft.start(job_id, MONKEY)
                assert isinstance(verdict, Accepted), f"the promise to job {job_id} is not kept: {verdict.why}"


@MANY
@given(world=worlds(events=False), seed=st.integers(0, 999))
def test_whatever_a_monkey_does_promises_can_be_kept(world: SmallWorld, seed: int) -> None:
    assert_harmless(world, Keeper(), Monkey(seed=seed), laws=frozenset({"sound"}))


class Quits:
    """A policy that starts a job and calls `sys.exit`."""

    name = "quits"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        draft.start(1, MONKEY)
        raise SystemExit(3)


def test_a_policy_that_exits_does_not_take_the_leader_with_it() -> None:
    state = ClusterState([Node(id=0)])
    state.job_submitted(Job(id=1, submit_us=0))
    plan = run_pass(state, frozenset({Cause.JOB_SUBMITTED}), now=0, seed=0, pipeline=(Stage(Quits()), Stage(policy_named("fcfs"))))
    assert [fault.error for fault in plan.faults] == ["SystemExit: 3"]
    assert [type(decision) for decision in plan.decisions] == [Start]
