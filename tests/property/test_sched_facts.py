"""Facts in any order: a new leader derives the same pools, endings, queues and shown jobs from the records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sched_worlds import Monkey, worlds

from rmgr.errors import NotFound, StateConflict
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Node
from rmgr.sched.policies.orders import Ljf
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Call, Limits, Maintenance, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.world import shuffled
from rmgr.sim.laws.check import overcommitted
from rmgr.sim.laws.world import SmallWorld

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HALF_LIFE_US = 8
FACTS = ("submit", "submit", "plan", "plan", "plan", "end", "node", "limits", "window", "again", "leave", "call", "server")
FACTS += ("stop", "stopped", "pin")


def derived(state: ClusterState, now: int) -> dict[str, Any]:
    """Of each partition: everything that a pass would look at."""
    found: dict[str, Any] = {}
    for name, part in state.partitions.items():
        if not part.nodes and not part.jobs:
            continue  # of a partition that has nothing no record is left
        part.open_for(now)
        pool = part.pool
        free: Any = (pool.free, pool.firsts, pool.lasts) if isinstance(pool, UnitPool) else (pool.cores, pool.memory, pool.others)
        jobs = sorted(part.jobs.values(), key=lambda job: job.id)
        found[name] = {
            "free": free,
            "fits": {job.id: pool.fits(job) for job in jobs if job.id not in part.infeasible},
            "endings": list(part.endings),
            "waiting": [job.id for job in part.waiting],
            "by size": [job.id for job in part.sorted_by(Ljf())],
            "queues": {queue: [job.id for job in jobs] for queue, jobs in part.queued().items()},
            "aside": {job_id: str(why) for job_id, why in part.aside.items()},
            "infeasible": sorted(part.infeasible),
            "used": [part.used("user", user) for user in ("ann", "bob")],
            "flagged": part.flagged,
            "stopping": {job_id: part.has_room_for(run) for job_id, run in sorted(part.stopping.items())},
            "pinned": part.pinned,
            "calls": part.calls,
            "servers": part.servers,
        }
    return found


class Story:
    """A state that is told random facts; some cannot be, and are refused."""

    def __init__(self, world: SmallWorld, seed: int) -> None:
        self.chance = Random(f"facts {seed}")
        self.world = world
        self.state = ClusterState(world.nodes, HALF_LIFE_US)
        self.now = 0
        self.to_come = [work.job for work in world.works]

    def step(self) -> None:
        self.now += self.chance.randint(0, 3) * self.world.unit_us
        with suppress(StateConflict, NotFound):
            getattr(self, self.chance.choice(FACTS))()

    def submit(self) -> None:
        if self.to_come:
            self.state.job_submitted(self.to_come.pop(0))

    def plan(self) -> None:
        plan = run_pass(self.state, frozenset(Cause), now=self.now, seed=self.chance.randint(0, 99), pipeline=(Stage(Monkey()),))
        assert plan.faults == ()
        self.state.apply(plan, self.now)

    def end(self) -> None:
        runs = self.state.snapshot().running
        if runs:
            job = self.chance.choice(runs).job
            how = self.chance.choice(("job_ended", "job_migrated", "job_preempted"))
            getattr(self.state, how)(job.id, partition=job.partition, now=self.now)

    def stop(self) -> None:
        """A run is asked to give its nodes up: it is off them as far as passes see, until it is known what came of it."""
        snapshot = self.state.snapshot()
        runs = [*snapshot.running, *(stopped.run for stopped in snapshot.suspended)]
        if runs:
            self.state.job_stopping(self.chance.choice(runs), self.now)

    def stopped(self) -> None:
        stopping = self.state.snapshot().stopping
        if stopping:
            job = self.chance.choice(stopping).job
            match self.chance.randint(0, 2):
                case 0:
                    self.state.job_returned(replace(job, queued_us=self.now, restarts=job.restarts + 1))
                case 1:
                    self.state.job_went_on(job.id, self.now, job.partition)
                case _:
                    self.state.job_ended(job.id, job.partition, now=self.now)

    def pin(self) -> None:
        runs = self.state.snapshot().running
        if runs:
            job = self.chance.choice(runs).job
            self.state.job_pinned(job.id, bool(self.chance.randrange(3)), job.partition)

    def node(self) -> None:
        node = self.chance.choice(self.state.snapshot().nodes or self.world.nodes)
        match self.chance.randint(0, 4):
            case 0:
                self.state.node_changed(replace(node, closed=not node.closed))
            case 1:
                self.state.node_removed(node.id, node.partition)
            case 2:
                self.state.node_changed(Node(id=self.chance.randint(90, 93), partition=node.partition, cores=2))
            case _:
                self.state.node_changed(replace(node, closed=False, cores=node.cores + self.chance.randint(0, 1)))

    def limits(self) -> None:
        limits = Limits(max_cpus_per_user=self.chance.randint(1, 9), max_time_us=9 * self.world.unit_us)
        self.state.limits_changed("default", self.chance.choice((None, limits)))

    def window(self) -> None:
        if self.chance.randrange(2):
            self.state.maintenance_over(self.chance.randint(1, 2))
        else:
            node = self.chance.choice(self.state.snapshot().nodes or self.world.nodes)
            start = self.now + self.chance.randint(-2, 9)
            self.state.maintenance_planned(Maintenance(self.chance.randint(1, 2), start, start + 5, (node.id,), "works", node.partition))

    def again(self) -> None:
        """A waiting job is another request."""
        waiting = self.state.snapshot().waiting
        if waiting:
            job = self.chance.choice(waiting)
            self.state.job_requeued(replace(job, processes=self.chance.randint(1, 3), queue=self.chance.choice(("small", job.queue))))

    def call(self) -> None:
        if self.chance.randrange(4):
            self.state.call_submitted(Call(self.chance.randint(500, 510), self.now, 10, 10, "c", "calls"))
        else:
            self.state.call_left(self.chance.randint(500, 510), "calls")

    def server(self) -> None:
        name = self.chance.choice("st")
        self.state.server_changed(Server(name, 1.5, self.chance.randint(0, 3), (("c", 2.0),), self.now, "calls"))

    def leave(self) -> None:
        waiting = self.state.snapshot().waiting
        if waiting:
            job = self.chance.choice(waiting)
            self.state.job_withdrawn(job.id, job.partition)


@MANY
@given(world=worlds(), seed=st.integers(0, 9999))
def test_a_new_leader_derives_the_same_from_the_records(world: SmallWorld, seed: int) -> None:
    story = Story(world, seed)
    for _ in range(25):
        story.step()
        snapshot = story.state.snapshot()
        fresh = ClusterState.restored(shuffled(snapshot, Random(seed)), HALF_LIFE_US)
        assert fresh.snapshot() == snapshot
        assert derived(fresh, story.now) == derived(story.state, story.now)
        assert list(overcommitted(snapshot)) == []
