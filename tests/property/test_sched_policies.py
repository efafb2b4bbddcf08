"""Every shipped policy, whatever the workload: same facts, same plan; nothing over-committed, all served, no promise broken."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmgr.sched.catalogue import POLICIES, policy_named
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node, Running, nodes_of
from rmgr.sched.plan import Plan, Reserve, WakeAt
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.state import ClusterState, Snapshot

COMPOSED = [(name, {}) for name in POLICIES] + [
    ("easy", {"order": "sjf"}),
    ("easy", {"order": "priority"}),
    ("first_fit", {"order": "priority"}),
    ("conservative", {"order": "ljf"}),
    ("sjf", {"max_wait": "0.000004"}),
    ("ljf_first_fit", {"max_wait": "0.000004"}),
]
EVERY_POLICY = pytest.mark.parametrize(("name", "params"), COMPOSED, ids=lambda value: value if isinstance(value, str) else str(value))
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class World:
    """A machine and what happens on it: each job with its real run time (never above its limit)."""

    nodes: tuple[Node, ...]
    jobs: tuple[tuple[Job, int], ...]
    seed: int


@st.composite
def worlds(draw: st.DrawFn, *, one_core: bool | None = None) -> World:
    flat = draw(st.booleans()) if one_core is None else one_core
    count = draw(st.integers(2, 6))
    nodes = tuple(
        Node(
            id=10 * i if i % 3 == 0 else 10 * (i - 1) + 1,  # gaps and neighbours
            cores=1 if flat else draw(st.sampled_from([1, 2, 4])),
            memory_bytes=0 if flat else draw(st.sampled_from([0, 4, 8])),
            features=() if flat or draw(st.booleans()) else ("gpu",),
        )
        for i in range(count)
    )
    jobs = []
    for job_id in range(1, draw(st.integers(1, 14)) + 1):
        limit = draw(st.integers(1, 12))
        job = Job(
            id=job_id,
            submit_us=draw(st.integers(0, 15)),
            processes=draw(st.integers(1, 4)),
            threads=1 if flat else draw(st.sampled_from([1, 1, 2])),
            limit_us=limit,
            memory_bytes=0 if flat else draw(st.sampled_from([0, 1, 3])),
            features=() if flat or draw(st.integers(0, 4)) else ("gpu",),
            exclusive=not flat and draw(st.integers(0, 4)) == 0,
            priority=draw(st.integers(0, 2)),
        )
        jobs.append((job, draw(st.integers(1, limit))))
    return World(nodes, tuple(jobs), draw(st.integers(0, 99)))


@dataclass
class Run:
    """A small driver: what the leader and the simulator do, with a look at every pass."""

    world: World
    policy: Callable[[], Policy]
    at_pass: Callable[[ClusterState, frozenset[Cause], int, Plan], ClusterState] = lambda state, *_: state
    began: dict[int, Running] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)

    def to_the_end(self) -> Run:
        state, pipeline = ClusterState(self.world.nodes), (Stage(self.policy()),)
        arrivals = sorted(self.world.jobs, key=lambda pair: (pair[0].submit_us, pair[0].id))
        lasts = {job.id: run_us for job, run_us in arrivals}
        ends: dict[int, int] = {}
        wake: int | None = None
        refused: set[int] = set()
        while arrivals or ends or wake is not None:
            now = min([*ends.values(), *([wake] if wake is not None else []), *([arrivals[0][0].submit_us] if arrivals else [])])
            causes = {Cause.TIMER} if wake == now else set()
            for job_id in sorted(job_id for job_id, end in ends.items() if end == now):
                state.job_ended(job_id)
                del ends[job_id]
                causes.add(Cause.JOB_ENDED)
            while arrivals and arrivals[0][0].submit_us == now:
                job, _ = arrivals.pop(0)
                if not state.job_submitted(job):
                    refused.add(job.id)
                causes.add(Cause.JOB_SUBMITTED)
            plan = run_pass(state, frozenset(causes), now=now, seed=1, pipeline=pipeline)
            assert plan.faults == ()
            state = self.at_pass(state, frozenset(causes), now, plan)
            wake = min((d.at_us for d in plan.decisions if isinstance(d, WakeAt)), default=None)
            for decision in plan.decisions:
                if isinstance(decision, Reserve) and decision.keep:
                    self.promised.setdefault(decision.job_id, decision.start_us)
            for run in state.apply(plan, now):
                self.began[run.job.id] = run
                ends[run.job.id] = now + lasts[run.job.id]
            assert_not_overcommitted(state)
        assert {job.id for job, _ in self.world.jobs} - refused == set(self.began), "a job waits for ever"
        return self


def assert_not_overcommitted(state: ClusterState) -> None:
    """Counted afresh from the records, without the pools."""
    snapshot = state.snapshot()
    nodes = {node.id: node for node in snapshot.nodes}
    cores: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    jobs_on: dict[int, list[Job]] = {}
    for run in snapshot.running:
        assert run.start_us >= run.job.submit_us
        assert sum(processes * (last - first + 1) for first, last, processes in run.placement) == run.job.processes
        assert len(set(nodes_of(run.placement))) == len(nodes_of(run.placement))
        for first, last, processes in run.placement:
            for node in range(first, last + 1):
                cores[node] += processes * run.job.threads
                memory[node] += processes * run.job.memory_bytes
                jobs_on.setdefault(node, []).append(run.job)
                assert set(run.job.features) <= set(nodes[node].features)
    for node_id, jobs in jobs_on.items():
        assert cores[node_id] <= nodes[node_id].cores
        assert not nodes[node_id].memory_bytes or memory[node_id] <= nodes[node_id].memory_bytes
        assert len(jobs) == 1 or not any(job.exclusive for job in jobs)


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    chance = random.Random(seed)
    return replace(
        snapshot,
        **{name: tuple(chance.sample(rows := list(getattr(snapshot, name)), len(rows))) for name in Snapshot.__slots__},
    )


@EVERY_POLICY
@FEW
@given(world=worlds())
def test_nothing_is_overcommitted_nobody_starts_early_and_everybody_is_served(name: str, params: dict[str, str], world: World) -> None:
    Run(world, lambda: policy_named(name, params)).to_the_end()


@EVERY_POLICY
@FEW
@given(world=worlds())
def test_a_new_leader_with_shuffled_records_decides_the_same(name: str, params: dict[str, str], world: World) -> None:
    def replaced(state: ClusterState, causes: frozenset[Cause], now: int, plan: Plan) -> ClusterState:
        before = state.snapshot()
        again = run_pass(state, causes, now=now, seed=1, pipeline=(Stage(policy_named(name, params)),))
        assert again == plan, "same input, same plan"
        assert state.snapshot() == before, "a pass changes nothing"
        fresh = ClusterState.restored(shuffled(before, world.seed))
        assert run_pass(fresh, causes, now=now, seed=1, pipeline=(Stage(policy_named(name, params)),)) == plan
        return fresh

    Run(world, lambda: policy_named(name, params), replaced).to_the_end()


@FEW
@given(world=worlds())
def test_conservative_starts_every_job_no_later_than_it_promised_first(world: World) -> None:
    run = Run(world, lambda: policy_named("conservative")).to_the_end()
    for job_id, at_us in run.promised.items():
        assert run.began[job_id].start_us <= at_us


@FEW
@given(world=worlds(one_core=True))
def test_counts_and_nodes_decide_alike(world: World) -> None:
    """EASY on the fast representation and on the general one: a feature on one node and nowhere asked for selects the latter."""
    first, *others = world.nodes
    general = replace(world, nodes=(replace(first, features=("unused",)), *others))
    fast, slow = (Run(w, lambda: policy_named("easy")).to_the_end() for w in (world, general))
    assert {i: run.start_us for i, run in fast.began.items()} == {i: run.start_us for i, run in slow.began.items()}


@FEW
@given(world=worlds(one_core=True))
def test_easy_never_delays_the_head_beyond_its_shadow(world: World) -> None:
    """The head's promise can only move earlier while the same job is the head, whatever is backfilled."""
    shadows: dict[int, int] = {}

    def look(state: ClusterState, _causes: frozenset[Cause], _now: int, plan: Plan) -> ClusterState:
        for decision in plan.decisions:
            if isinstance(decision, Reserve):
                assert decision.start_us <= shadows.get(decision.job_id, decision.start_us)
                shadows[decision.job_id] = decision.start_us
        return state

    run = Run(world, lambda: policy_named("easy"), look).to_the_end()
    assert all(run.began[job_id].start_us <= at_us for job_id, at_us in shadows.items())
