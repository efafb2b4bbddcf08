"""Verbs with arguments of every wrong kind: the pass goes on, the state is as it was, and only clean records are in the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from sched_worlds import MONKEY
from test_sched_facts import derived

from rmgr.sched.catalogue import policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Gang, Server, Share
from rmgr.sched.state.cluster import ClusterState

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
