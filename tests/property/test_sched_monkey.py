"""Policies that use verbs at random, or with wrong arguments, never over-commit; records stay complete, and the next pass runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sched_worlds import MONKEY, Monkey, worlds
from test_sched_facts import derived

from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Accepted, Start, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Gang, Server, Share
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.laws.check import TRIED, told, tried
from rmgr.sim.laws.world import SmallWorld

#: It starves jobs as it likes, says nothing, and raises.
LAWS = TRIED - {"served", "explained"}
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


NOW = 5
ENDLESS = ((0, 10**12, 1),)
JUNK: tuple[Any, ...] = (
    *(None, -1, 0, 1.0, 1.5, 7.5, "", "x", "1", True, 10**30, float("nan"), object(), (), [], {}, {1: 2}),
    *([[0, 0, 1]], ((0, 0, 1),), ENDLESS, ((2, 1, 1),), ((2, 2, 0),), ((2, 2, -1),), ((2, 2, 1.0),), ((2.0, 2.0, 1),), ((2, 2),)),
    *([Share(1, ((0, 0, 1),))], [Share(1.0, ((0, 0, 1),))], [Share(1, [[0, 0, 1]])], [Share(1, ((0, 0, 5),))], [Share(1, ENDLESS)]),  # type: ignore[arg-type]
    *([(1, 2)], ((1,),), ((3,),), [[3], [1.0]], ("a", "b")),
)
GANG = Gang("g", 1, 0, 0, 2, ((2, 3, 1),), ((1, ((3, 1),)),), ((0, 0, False), (1, 1, False)))
#: What is tried with each piece of junk.
CALLS: dict[str, Callable[[Draft, Any], object]] = {
    **{
        verb: lambda draft, junk, verb=verb: getattr(draft, verb)(junk, MONKEY)
        for verb in ("start", "reserve", "unreserve", "migrate", "preempt", "suspend", "resume", "release", "reject", "wake_at")
    },
    "start somewhere": lambda draft, junk: draft.start(3, MONKEY, junk),
    "hold for": lambda draft, junk: draft.hold(junk, [Share(1, ((0, 0, 1),))], MONKEY),
    "hold what": lambda draft, junk: draft.hold(3, junk, MONKEY),
    "note value": lambda draft, junk: draft.note("k", 3, junk),
    "note number": lambda draft, junk: draft.note("k", 3, (junk,)),
    "note of": lambda draft, junk: draft.note("k", junk, (1,)),
    "note kind": lambda draft, junk: draft.note(junk, 3, (1,)),
    "forget": lambda draft, junk: draft.forget("k", junk),
    "route to": lambda draft, junk: draft.route(3, junk, MONKEY),
    "send to": lambda draft, junk: draft.send(9, junk, MONKEY),
    "send what": lambda draft, junk: draft.send(junk, "a", MONKEY),
    "send for": lambda draft, junk: draft.send(9, "a", MONKEY, predicted_us=junk),
    "route": lambda draft, junk: draft.route(junk, "a", MONKEY),
    "gang": lambda draft, junk: draft.gang(junk, MONKEY),
    **{
        f"gang {field}": lambda draft, junk, field=field: draft.gang(GANG._replace(**{field: junk}), MONKEY)
        for field in ("name", "slot_us", "origin_us", "slot", "width", "leaves", "queues", "front", "late", "next_round")
    },
    "gang entries": lambda draft, junk: draft.gang(GANG._replace(queues=((3, junk),)), MONKEY),
    "say of": lambda draft, junk: draft.leave_pending(junk, MONKEY),
}


@dataclass
class Clumsy:
    call: Callable[[Draft, Any], object]
    junk: Any
    name: ClassVar[str] = "clumsy"

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.call(draft, self.junk)


def cluster(cores: int) -> ClusterState:
    """Job 1 runs, 2 is suspended, 3 and 4 wait, call 9 wants a server."""
    state = ClusterState(Node(id=i, cores=cores) for i in range(4))
    for job_id, processes in ((1, 1), (2, 1), (3, 1), (4, 2)):
        state.job_submitted(Job(id=job_id, submit_us=0, processes=processes, limit_us=10))
    state.job_started(1, ((0, 0, 1),), 0)
    state.job_started(2, ((1, 1, 1),), 0)
    state.job_suspended(2, 1)
    state.call_submitted(Call(9, 0, 1, 1, partition="calls"))
    state.server_changed(Server("a", 1.0, 0, partition="calls"))
    return state


def unclean(value: object) -> Iterator[object]:
    """What no record may hold."""
    if isinstance(value, tuple) and not isinstance(value, Why):
        for part in value:
            yield from unclean(part)
    elif value is not None and not isinstance(value, int | str | Why):
        yield value


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrong_arguments_hurt_nobody(call: Callable[[Draft, Any], object], cores: int) -> None:
    for junk in JUNK:
        state = cluster(cores)
        records, all_else = state.snapshot(), derived(state, NOW)
        stages = (Stage(Clumsy(call, junk)), Stage(policy_named("easy")))
        plan = run_pass(state, frozenset(Cause), now=NOW, seed=0, pipeline=stages)
        assert state.snapshot() == records
        assert derived(state, NOW) == all_else
        assert list(unclean(tuple(plan.decisions))) == []
        state.apply(plan, NOW)
        assert run_pass(state, frozenset(Cause), now=NOW + 1, seed=0, pipeline=stages[1:]).faults == ()
