"""Small worlds on which laws of scheduling are tried: a machine, jobs with their real run times, and what else happens to them.

`Chance` draws them: a seeded generator for `rmgr policy check`, Hypothesis in the tests. They are small because a law that breaks at all
nearly always breaks with six nodes and a dozen jobs, and a person can read such a world.

`Drive` leads a pipeline through a world step by step: it tells the state the facts, runs a pass and carries out its decisions, as the
simulator and the leader do, without their machinery. Between `decide` and `carry_out` the caller may inspect everything and even replace
the state, as a new leader would. `Budget` limits the wall-clock time of a pass and interrupts a policy that does not return.
"""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from rmgr.model.units import counted
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node, Placement, Running, nodes_of, resources_of
from rmgr.sched.plan import Decision, Migrate, Plan, Preempt, Reject, Resume, Start, Suspend, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Limits, Maintenance
from rmgr.sched.state.cluster import ClusterState

Option = TypeVar("Option")
#: A world's unit of time (us): microseconds as in tests of policies, or seconds and minutes as in real use.
UNITS_US = (1, 1_000_000, 600_000_000)
USERS = ("ann", "bob")
KINDS = ("after", "begin", "outage", "withdrawal", "window", "limits")
NEEDED = ((), ("tape",), ("tape",), ("fpga", "tape"))
QUEUES = ("default", "small", "large")


class Chance(Protocol):
    """A source of choices for a world. Lower numbers and earlier options are simpler."""

    def between(self, low: int, high: int) -> int:
        """Returns a number from `low` to `high`, both included."""
        ...

    def one_of(self, options: Sequence[Option]) -> Option: ...


class Seeded:
    """A seeded source: the same seed gives the same world."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"world {seed}")

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one_of(self, options: Sequence[Option]) -> Option:
        return self._random.choice(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawsJob:
    """A job and its real run time (us, never above its limit)."""

    job: Job
    run_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node takes nothing new from `at_us` to `until_us`.

    loses: its jobs are lost and wait again; otherwise it is drained. cores: its cores when it comes back; 0 = as before.
    """

    at_us: int
    until_us: int
    node: int
    loses: bool
    cores: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LateNode:
    """A node that is first seen at `at_us`."""

    at_us: int
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """Cancels a job at `at_us` if it still waits."""

    at_us: int
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """Maintenance that becomes known at `at_us`."""

    at_us: int
    plan: Maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWorld:
    """A machine and everything that happens on it. half_life_us: of usage for fair share; 0 = usage is not kept. seed: of passes."""

    nodes: tuple[Node, ...]
    works: tuple[LawsJob, ...]
    outages: tuple[Outage, ...] = ()
    joinings: tuple[LateNode, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    windows: tuple[MaintenanceWindow, ...] = ()
    limits: dict[str, Limits] = field(default_factory=dict)
    half_life_us: int = 0
    seed: int = 0
    unit_us: int = 1

    @property
    def size(self) -> int:
        """A measure of complexity, which shrinking reduces."""
        shapes = sum(w.job.processes + w.job.threads + bool(w.job.memory_bytes) + len(w.job.features) for w in self.works)
        shapes += sum(len(w.job.resources) for w in self.works) + sum(len(node.resources) for node in self.nodes)
        shapes += sum(w.job.exclusive + w.job.spread for w in self.works)
        extras = sum(len(w.job.after) + bool(w.job.begin_us) + bool(w.job.submit_us) + (w.job.queue != QUEUES[0]) for w in self.works)
        things = len(self.works) + len(self.nodes) + len(self.outages) + len(self.withdrawals) + len(self.windows) + len(self.limits)
        things += len(self.joinings)
        extras += sum(bool(outage.cores) for outage in self.outages)
        shapes += sum(node.cores + bool(node.memory_bytes) for node in self.every_node)
        return 10 * things + shapes + extras + bool(self.half_life_us)

    @property
    def every_node(self) -> tuple[Node, ...]:
        """All nodes, including those that join later."""
        return (*self.nodes, *(joining.node for joining in self.joinings))


def world_of(
    chance: Chance, *, one_core: bool | None = None, events: bool = True, partitions: Sequence[str] = (), queues: Sequence[str] = QUEUES
) -> SmallWorld:
    """Draws a world.

    Args:
        one_core: all nodes are identical with one core; None draws this. events: with outages, windows, limits, dependencies, ...
        partitions: names, each with at least one node; () draws one or two. queues: into which jobs arrive.
    """
    flat = bool(chance.between(0, 1)) if one_core is None else one_core
    unit = chance.one_of(UNITS_US)
    names = partitions or ("default", "other")[: 2 if events and chance.between(0, 3) == 3 else 1]
    nodes = tuple(_node(chance, i, flat, names[i % len(names)]) for i in range(chance.between(max(2, len(names)), 6 + len(names))))
    kinds = frozenset(kind for kind in KINDS if events and chance.between(0, 3) == 3)
    works = tuple(_work(chance, job_id, flat, unit, kinds, names, queues) for job_id in range(1, chance.between(1, 12) + 1))
    world = SmallWorld(
        nodes=nodes,
        works=works,
        outages=_outages(chance, nodes, unit) if "outage" in kinds else (),
        withdrawals=tuple(
            Withdrawal(at_us=unit * chance.between(0, 20), job_id=job_id)
            for job_id in sorted({chance.between(1, len(works)) for _ in range(2)})
        )
        if "withdrawal" in kinds
        else (),
        windows=(_window(chance, nodes, unit),) if "window" in kinds else (),
        limits={name: _limits(chance, unit) for name in names} if "limits" in kinds else {},
        half_life_us=unit * chance.one_of((0, 8)),
        seed=chance.between(0, 99),
        unit_us=unit,
    )
    if not flat and chance.between(0, 2) == 2:
        world = _equipped(chance, world)
    return _growing(chance, world, flat) if events and chance.between(0, 3) == 3 else world


def _growing(chance: Chance, world: SmallWorld, flat: bool) -> SmallWorld:
    """Adds nodes that join later, with ids between and above the others. Nodes come back with more cores, lost ones also with fewer."""
    names = tuple(dict.fromkeys(node.partition for node in world.nodes))
    places = (len(world.nodes) + 1, len(world.nodes) + 4)[: chance.between(1, 2)]
    nodes = [_node(chance, place, flat, chance.one_of(names)) for place in places]
    nodes[0] = replace(nodes[0], id=chance.one_of((nodes[0].id, 5)))  # 5: no node has it at the beginning
    sizes = {node.id: node.cores for node in world.nodes}
    cores = [0 if flat else chance.one_of((0, 1, 2) if outage.loses else (0, 1 + sizes[outage.node])) for outage in world.outages]
    return replace(
        world,
        outages=tuple(replace(outage, cores=count) for outage, count in zip(world.outages, cores, strict=True)),
        joinings=tuple(LateNode(at_us=world.unit_us * chance.between(0, 20), node=node) for node in nodes),
    )


def _equipped(chance: Chance, world: SmallWorld) -> SmallWorld:
    """Gives some nodes countable resources besides cores and memory, which some jobs request."""
    has = [resources_of({"fpga": chance.between(0, 1), "tape": chance.between(0, 3)}) for _ in world.nodes]
    nodes = tuple(replace(node, resources=some) for node, some in zip(world.nodes, has, strict=True))
    works = tuple(
        replace(work, job=replace(work.job, resources=resources_of({name: chance.between(0, 2) for name in chance.one_of(NEEDED)})))
        for work in world.works
    )
    return replace(world, nodes=nodes, works=works)


def smaller(world: SmallWorld) -> Iterator[SmallWorld]:
    """Yields slightly simpler worlds, the boldest cuts first. Each is consistent: nothing in it names a missing job or node."""
    for works in _without_each(world.works):
        yield _mended(replace(world, works=works))
    for name in ("outages", "joinings", "withdrawals", "windows"):
        for fewer in _without_each(getattr(world, name)):
            change: dict[str, Any] = {name: fewer}
            yield replace(world, **change)
    yield replace(world, outages=tuple(replace(outage, cores=0) for outage in world.outages))
    yield replace(world, half_life_us=0)
    for partition in world.limits:
        yield replace(world, limits={name: limits for name, limits in world.limits.items() if name != partition})
    for nodes in _without_each(world.nodes):
        if nodes:
            yield _mended(replace(world, nodes=nodes))
    for i, work in enumerate(world.works):
        for plainer in _plainer(work):
            yield replace(world, works=(*world.works[:i], plainer, *world.works[i + 1 :]))
    for i, node in enumerate(world.nodes):
        plainer_nodes = (replace(node, cores=1), replace(node, memory_bytes=0), replace(node, features=()), replace(node, resources=()))
        for plain in set(plainer_nodes) - {node}:
            yield replace(world, nodes=(*world.nodes[:i], plain, *world.nodes[i + 1 :]))


def _node(chance: Chance, position: int, flat: bool, partition: str) -> Node:
    return Node(
        id=10 * position if position % 3 == 0 else 10 * (position - 1) + 1,  # gaps and neighbours
        cores=1 if flat else chance.one_of((1, 2, 4)),
        memory_bytes=0 if flat else chance.one_of((0, 4, 8)),
        features=() if flat or chance.between(0, 1) == 0 else ("gpu",),
        partition=partition,
        speed=chance.one_of((1.0, 0.5)),
        site=chance.one_of(("east", "west")),
    )


def _work(
    chance: Chance, job_id: int, flat: bool, unit: int, kinds: frozenset[str], partitions: Sequence[str], queues: Sequence[str]
) -> LawsJob:
    limit = chance.between(1, 12)
    run = chance.between(1, limit)
    submit = chance.between(0, 15)
    job = Job(
        id=job_id,
        submit_us=unit * submit,
        processes=chance.between(1, 4),
        threads=1 if flat else chance.one_of((1, 1, 2)),
        limit_us=unit * limit if chance.between(0, 9) < 9 else 0,
        memory_bytes=0 if flat else chance.one_of((0, 1, 3)),
        features=() if flat or chance.between(0, 4) < 4 else ("gpu",),
        exclusive=not flat and chance.between(0, 4) == 4,
        spread=not flat and job_id % 5 == 3,
        priority=chance.between(0, 2),
        partition=chance.one_of(partitions),
        user=chance.one_of(USERS),
        account=chance.one_of(("physics", "chemistry")),
        queue=chance.one_of(queues),
        after=(chance.between(1, job_id - 1),) if "after" in kinds and job_id > 1 and chance.between(0, 2) == 2 else (),
        begin_us=unit * (submit + chance.between(0, 9)) if "begin" in kinds and chance.between(0, 2) == 2 else 0,
    )
    return LawsJob(job=job, run_us=unit * run)


def _outages(chance: Chance, nodes: tuple[Node, ...], unit: int) -> tuple[Outage, ...]:
    """Draws at most one outage for each node, so that none overlap."""
    found = []
    for node in nodes:
        if chance.between(0, 2) == 2:
            at = chance.between(0, 20)
            found.append(
                Outage(at_us=unit * at, until_us=unit * (at + chance.between(1, 10)), node=node.id, loses=bool(chance.between(0, 1)))
            )
    return tuple(found)


def _window(chance: Chance, nodes: tuple[Node, ...], unit: int) -> MaintenanceWindow:
    known = chance.between(0, 12)
    start = known + chance.between(0, 12)
    partition = nodes[0].partition
    chosen = tuple(node.id for node in nodes if node.partition == partition and chance.between(0, 1)) or (nodes[0].id,)
    plan = Maintenance(1, unit * start, unit * (start + chance.between(1, 8)), chosen, "cooling", partition)
    return MaintenanceWindow(at_us=unit * known, plan=plan)


def _limits(chance: Chance, unit: int) -> Limits:
    return Limits(
        max_cpus_per_user=chance.one_of((0, 4, 6)),
        max_jobs_per_user=chance.one_of((0, 1, 2)),
        max_cpus_per_account=chance.one_of((0, 4, 8)),
        max_time_us=unit * chance.one_of((0, 0, 10)),
    )


def _without_each(things: tuple[Option, ...]) -> Iterator[tuple[Option, ...]]:
    if len(things) > 3:
        half = len(things) // 2
        yield things[half:]
        yield things[:half]
    for i in range(len(things)):
        yield things[:i] + things[i + 1 :]


def _plainer(work: LawsJob) -> Iterator[LawsJob]:
    job = work.job
    changes: list[dict[str, object]] = [
        {"processes": 1},
        {"processes": job.processes - 1},
        {"threads": 1},
        {"memory_bytes": 0},
        {"features": ()},
        {"resources": ()},
        {"exclusive": False},
        {"spread": False},
        {"priority": 0},
        {"after": ()},
        {"begin_us": 0},
        {"submit_us": 0},
        {"queue": QUEUES[0]},
        {"user": USERS[0]},
    ]
    for change in changes:
        ((name, value),) = change.items()
        if value != getattr(job, name) and (name != "processes" or job.processes > 1):
            yield replace(work, job=replace(job, **change))  # type: ignore[arg-type]  # the names are fields of a job


def _mended(world: SmallWorld) -> SmallWorld:
    """Removes everything that names a job, a node or a partition that is gone."""
    nodes = {node.id for node in world.nodes}
    partitions = {node.partition for node in world.nodes}
    works = [work for work in world.works if work.job.partition in partitions]
    jobs = {work.job.id for work in works}
    windows = [
        replace(window, plan=window.plan._replace(nodes=tuple(n for n in window.plan.nodes if n in nodes))) for window in world.windows
    ]
    return replace(
        world,
        works=tuple(replace(w, job=replace(w.job, after=tuple(i for i in w.job.after if i in jobs))) for w in works),
        outages=tuple(outage for outage in world.outages if outage.node in nodes),
        joinings=tuple(joining for joining in world.joinings if joining.node.partition in partitions),
        withdrawals=tuple(withdrawal for withdrawal in world.withdrawals if withdrawal.job_id in jobs),
        windows=tuple(window for window in windows if window.plan.nodes),
        limits={name: limits for name, limits in world.limits.items() if name in partitions},
    )


def shrunk(world: SmallWorld, breaks: Callable[[SmallWorld], bool], *, tries: int = 400) -> SmallWorld:
    """Returns a smaller world that still `breaks` but has no simplification that does, or the smallest one found after `tries` calls.

    Cost: at most `tries` calls of `breaks`.
    """
    left = tries
    while left > 0:
        for candidate in smaller(world):
            if candidate.size >= world.size:
                continue
            left -= 1
            if breaks(candidate):
                world = candidate
                break
            if left <= 0:
                return world
        else:
            return world
    return world


# -- a pipeline is led through a world -----------------------------------------------------------------------------------------

#: After more passes in a row than this, caused by timers alone while nothing runs and nothing is to come, the policy waits for nothing.
MOST_IDLE_PASSES = 50
#: No policy needs so many passes for a world of a dozen jobs.
MOST_PASSES = 5_000


class Drive:
    """One world under one pipeline, from the first arrival to the last end.

        while drive.advance():   # facts of the next instant
            drive.decide()       # a pass: drive.plan
            drive.carry_out()

    Attributes:
        state, now_us, causes, plan: of the current pass. story: everything that has happened so far.
        wrongs: forbidden starts of the last `carry_out`, one sentence each.
        stays: unbroken stays of jobs on nodes, by start. gone: jobs that have left: ended, withdrawn, refused or rejected.
    """

    def __init__(self, world: SmallWorld, pipeline: tuple[Stage, ...], *, budget: Budget) -> None:
        self.world = world
        self.pipeline = pipeline
        self.budget = budget
        self.state = ClusterState(world.nodes, world.half_life_us)
        for partition, limits in sorted(world.limits.items()):
            self.state.limits_changed(partition, limits)
        self.now_us = 0
        self.causes: frozenset[Cause] = frozenset()
        self.plan = Plan()
        self.passes = 0
        self.story: list[StoryLine] = []
        self.wrongs: list[str] = []
        self.gone: set[int] = set()
        self.stays: list[StoryStay] = []
        self.started: set[int] = set()
        self._works = {work.job.id: work for work in world.works}
        self._left = {work.job.id: work.run_us for work in world.works}  # job -> work still to do (us)
        self._since: dict[int, int] = {}  # job that executes -> when it last began to
        self._wakes: dict[str, int] = {}  # partition -> next wake-up (us)
        self._nodes = {node.id: node for node in world.nodes}
        self._closed: set[int] = set()
        self._windows: dict[int, MaintenanceWindow] = {}
        self._to_come = sorted(self._events(), key=_by_time)
        self._idle = 0

    # -- facts ------------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Tells the state all facts of the next instant. Returns False at the end of the world, or if the policy waits for nothing."""
        ends = {job_id: since + self._left[job_id] for job_id, since in self._since.items()}
        times = [*ends.values(), *self._wakes.values(), *(event[0] for event in self._to_come[:1])]
        if not times or self.passes >= MOST_PASSES or self._idle > MOST_IDLE_PASSES:
            return False
        self.now_us = now = min(times)
        causes: set[Cause] = set()
        for job_id in sorted(job_id for job_id, end in ends.items() if end == now):
            self._end(job_id)
            causes.add(Cause.JOB_ENDED)
        while self._to_come and self._to_come[0][0] == now:
            causes |= self._happen(self._to_come.pop(0)[2])
        if now in self._wakes.values():
            causes.add(Cause.TIMER)
        self._idle = self._idle + 1 if causes == {Cause.TIMER} and not self._since and not self._to_come else 0
        self.causes = frozenset(causes)
        return True

    def _events(self) -> Iterator[tuple[int, int, Outage | LateNode | Withdrawal | MaintenanceWindow | LawsJob]]:
        for outage in self.world.outages:
            yield outage.at_us, 1, outage
            yield outage.until_us, 0, outage
        for joining in self.world.joinings:
            yield joining.at_us, 1, joining
        for window in self.world.windows:
            yield window.at_us, 1, window
            yield max(window.plan.end_us, window.at_us), 2, window
        for work in self.world.works:
            yield work.job.submit_us, 3, work
        for withdrawal in self.world.withdrawals:
            yield withdrawal.at_us, 4, withdrawal

    def _happen(self, event: Outage | LateNode | Withdrawal | MaintenanceWindow | LawsJob) -> set[Cause]:
        match event:
            case LawsJob(job=job):
                self._tell(f"job {job.id} arrives")
                if not self.state.job_submitted(job) and self._hopeless(job):
                    self._refuse(job)
                return {Cause.JOB_SUBMITTED}
            case Withdrawal(job_id=job_id):
                return self._withdraw(job_id)
            case Outage(at_us=at_us) if at_us == self.now_us:
                return self._close(event)
            case LateNode(node=node):
                self._tell(f"node {node.id} joins")
                self._nodes[node.id] = node
                self.state.node_changed(node)
            case Outage(node=node_id, cores=cores):
                self._tell(f"node {node_id} is back" + (f" with {counted(cores, 'core')}" if cores else ""))
                self._closed.discard(node_id)
                self._nodes[node_id] = replace(self._nodes[node_id], cores=cores or self._nodes[node_id].cores)
                self._set_closed(node_id, closed=False)
            case MaintenanceWindow(at_us=at_us, plan=window) if at_us == self.now_us and window.end_us > self.now_us:
                self._tell(f"maintenance {window.name} is planned from {window.start_us} to {window.end_us} on nodes {window.nodes}")
                self._windows[window.id] = event
                self.state.maintenance_planned(window)
            case MaintenanceWindow(plan=window):
                self._tell(f"maintenance {window.name} is over")
                if self._windows.pop(window.id, None) is not None:
                    self.state.maintenance_over(window.id)
        return {Cause.NODES_CHANGED}

    def _end(self, job_id: int) -> None:
        run = self.state.job_ended(job_id, self._works[job_id].job.partition, now=self.now_us)
        self._tell(f"job {job_id} ends")
        self._leave(run.job.id)

    def _leave(self, job_id: int) -> None:
        self._stop(job_id)
        self.gone.add(job_id)

    def _go_on(self, run: Running) -> None:
        """The job executes from now on."""
        self._since[run.job.id] = self.now_us
        self.started.add(run.job.id)
        self.stays.append(StoryStay(run.job, run.placement, self.now_us))

    def _stop(self, job_id: int) -> None:
        """The job stops executing, and keeps the work it has done."""
        since = self._since.pop(job_id, None)
        if since is not None:
            self._left[job_id] -= self.now_us - since
            next(stay for stay in reversed(self.stays) if stay.job.id == job_id).end_us = self.now_us

    def _withdraw(self, job_id: int) -> set[Cause]:
        job = self._works[job_id].job
        if job_id not in self.state.partitions[job.partition].jobs:
            return set()
        self._tell(f"job {job_id} is cancelled")
        self.state.job_withdrawn(job_id, job.partition)
        self._leave(job_id)
        return {Cause.JOB_WITHDRAWN}

    def _close(self, outage: Outage) -> set[Cause]:
        node_id = outage.node
        self._tell(f"node {node_id} is " + ("lost" if outage.loses else "drained"))
        self._closed.add(node_id)
        self._set_closed(node_id, closed=True)
        causes = {Cause.NODES_CHANGED}
        if outage.loses:
            snapshot = self.state.snapshot()
            runs = [*snapshot.running, *(stopped.run for stopped in snapshot.suspended)]
            for run in runs:
                if node_id in nodes_of(run.placement):
                    self._requeue(run.job)
                    causes.add(Cause.JOB_ENDED)
        return causes

    def _requeue(self, job: Job) -> None:
        """The job loses its work and waits to run from the beginning."""
        self._tell(f"job {job.id} waits again")
        self._stop(job.id)
        self._left[job.id] = self._works[job.id].run_us
        self.state.job_preempted(job.id, self.now_us, job.partition)

    def _set_closed(self, node_id: int, *, closed: bool) -> None:
        self.state.node_changed(replace(self._nodes[node_id], closed=closed))

    # -- a pass -----------------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Runs the pass. Raises: OutOfTime if the policy does not return in time."""
        self.plan = self.planned(self.state, self.pipeline)
        self.passes += 1

    def planned(self, state: ClusterState, pipeline: tuple[Stage, ...], expired: Callable[[], bool] | None = None) -> Plan:
        """Returns the plan of this pipeline in this state, now. expired: replaces the check of the budget."""
        with self.budget.counted():
            return run_pass(
                state,
                self.causes,
                now=self.now_us,
                seed=self.world.seed,
                pipeline=pipeline,
                expired=expired or self.budget.expired,
            )

    def carry_out(self) -> None:
        """Carries out all decisions of the plan and records the forbidden ones in `wrongs`."""
        self._wakes.clear()
        self.wrongs = []
        for decision in self.plan.decisions:
            if isinstance(decision, Start):
                self.wrongs += self._not_permitted(decision)
            elif isinstance(decision, Resume):
                self.wrongs += self._not_resumable(decision)
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        run = self.state.carried_out(decision, self.now_us)
        match decision:
            case Start(job_id, placement, why):
                assert run is not None
                self._tell(f"job {job_id} starts on {where(placement)}  ({why})")
                self._go_on(run)
            case Migrate(job_id) | Suspend(job_id):
                self._tell(f"job {job_id}: {type(decision).__name__.lower()}  ({decision.why})")
                self._stop(job_id)
            case Preempt(job_id, why):
                self._tell(f"job {job_id}: preempt  ({why})")
                self._stop(job_id)
                self._left[job_id] = self._works[job_id].run_us
            case Resume(job_id, why):
                self._tell(f"job {job_id}: resume  ({why})")
                assert run is not None
                self._go_on(run)
            case Reject(job_id, why):
                self._tell(f"job {job_id}: rejected  ({why})")
                self._leave(job_id)
            case WakeAt(at_us, _, partition):
                self._wakes[partition] = min(at_us, self._wakes.get(partition, at_us))
            case _:
                pass

    # -- what should not be -----------------------------------------------------------------------------------------------

    def _not_permitted(self, start: Start) -> Iterator[str]:
        """Yields why this start is forbidden, judged from the world alone."""
        now, work = self.now_us, self._works.get(start.job_id)
        if work is None:
            yield f"job {start.job_id} starts and was never submitted"
            return
        job, name = work.job, f"job {work.job.id}"
        if now < job.submit_us:
            yield f"{name} starts at {now} us, before its submit at {job.submit_us} us"
        if now < job.begin_us:
            yield f"{name} starts at {now} us, it may begin at {job.begin_us} us"
        for before in job.after:
            there = before in self._works and self._works[before].job.submit_us <= now
            if there and before not in self.gone and job.id not in self.started:  # a job that has started once has met its dependencies
                yield f"{name} starts before job {before} has ended"
        yield from self._out_of_bounds(job, start.placement, now + job.planned_us)
        yield from self._over_limits(job)

    def _not_resumable(self, resume: Resume) -> Iterator[str]:
        stopped = self.state.partitions[resume.partition].suspended.get(resume.job_id)
        if stopped is not None:
            run = stopped.run
            yield from self._out_of_bounds(run.job, run.placement, self.now_us + run.end_us - stopped.since_us)

    def _out_of_bounds(self, job: Job, placement: Placement, end_us: int) -> Iterator[str]:
        """Yields complaints if the job, running from now until `end_us`, uses a closed node or meets a maintenance window."""
        nodes = set(nodes_of(placement))
        for node_id in sorted(nodes & self._closed):
            yield f"job {job.id} starts on node {node_id}, which is closed"
        for event in self._windows.values():
            window = event.plan
            if nodes & set(window.nodes) and self.now_us < window.end_us and end_us > window.start_us:
                yield f"job {job.id} may run until {end_us} us, into maintenance {window.name} at {window.start_us} us"

    def _over_limits(self, job: Job) -> Iterator[str]:
        limits = self.world.limits.get(job.partition)
        if limits is None:
            return
        running = [run.job for run in self.state.snapshot().running if run.job.partition == job.partition]
        users = [other for other in running if other.user == job.user]
        cpus = job.wanted_cpus + sum(other.wanted_cpus for other in users)
        of_account = job.wanted_cpus + sum(other.wanted_cpus for other in running if other.account == job.account)
        counts = (
            ("max_cpus_per_user", cpus, limits.max_cpus_per_user),
            ("max_jobs_per_user", 1 + len(users), limits.max_jobs_per_user),
            ("max_cpus_per_account", of_account, limits.max_cpus_per_account),
            ("max_time_us", job.planned_us, limits.max_time_us),
        )
        for what, count, most in counts:
            if most and count > most:
                yield f"job {job.id} starts beyond {what} of {job.user} ({job.account}): {count} of {most}"

    def left_waiting(self) -> Iterator[str]:
        """Yields a sentence for each job that never ran although it could have."""
        never: set[int] = set()  # jobs too large for what is left, and jobs that depend on these
        for work in sorted(self.world.works, key=lambda work: work.job.id):
            job = work.job
            part = self.state.partitions[job.partition]
            if job.id in self.gone:
                continue
            if job.id in part.infeasible or self._hopeless(job) or never.intersection(job.after):
                never.add(job.id)
                continue
            why = self.plan.why(job.id, job.partition) or "no reason given"
            yield f"job {job.id} waits for ever ({why})"

    def _hopeless(self, job: Job) -> bool:
        """Returns whether the job exceeds its partition or its limits."""
        part, limits = self.state.partitions[job.partition], self.world.limits.get(job.partition)
        if not part.pool.feasible(job):
            return True
        if limits is None:
            return False
        asked = (
            (job.wanted_cpus, limits.max_cpus_per_user),
            (job.wanted_cpus, limits.max_cpus_per_account),
            (job.planned_us, limits.max_time_us),
        )
        return any(most and count > most for count, most in asked)

    def _refuse(self, job: Job) -> None:
        self._tell(f"job {job.id} can never run here")
        self.state.job_withdrawn(job.id, job.partition)
        self._leave(job.id)

    def _tell(self, text: str) -> None:
        self.story.append(StoryLine(self.now_us, text))


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A line of the story: an event, or a decision with its reason."""

    at_us: int
    text: str


@dataclass(slots=True)
class StoryStay:
    """An unbroken stay of a job on its nodes; `end_us` is None while it lasts."""

    job: Job
    placement: Placement
    start_us: int
    end_us: int | None = None


def described(job: Job, unit_us: int) -> str:
    """Describes the request of a job without its defaults; times in units of `unit_us` (us)."""
    parts = [f"{job.processes} x {job.threads} cores" if job.threads > 1 else f"{job.processes} cores"]
    parts.append(f"limit {job.limit_us / unit_us:g}" if job.limit_us else "no limit")
    parts += [f"{job.memory_bytes} bytes each"] if job.memory_bytes else []
    parts += [f"{count} {name} each" for name, count in job.resources]
    parts += [f"needs {', '.join(job.features)}"] if job.features else []
    parts += ["exclusive"] if job.exclusive else []
    parts += ["each process on a node of its own"] if job.spread else []
    parts += [f"priority {job.priority}"] if job.priority else []
    parts += [f"after {', '.join(map(str, job.after))}"] if job.after else []
    parts += [f"not before {job.begin_us / unit_us:g}"] if job.begin_us else []
    parts += [f"queue {job.queue}"] if job.queue != "default" else []
    return ", ".join(parts)


def where(placement: Placement) -> str:
    """Names the nodes of a placement, as in `nodes 0-3, 7`."""
    spans = (f"{first}-{last}" if last > first else str(first) for first, last, _ in placement)
    return "nodes " + ", ".join(spans)


def _by_time(event: tuple[int, int, object]) -> tuple[int, int, int]:
    what = event[2]
    return (event[0], event[1], what.job.id if isinstance(what, LawsJob) else 0)


class Budget:
    """A wall-clock limit for one pass (s); 0 = unlimited.

    In the main thread SIGALRM interrupts a pass at the limit; in other threads an overrun is only found afterwards.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = -math.inf

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Times one pass. Raises: OutOfTime."""
        self._began = time.perf_counter()
        if not self.seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, _end_pass)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @property
    def told(self) -> str:
        """Returns the complaint about a policy that took too long."""
        return f"a pass takes longer than {self.seconds:g} s"

    def expired(self) -> bool:
        """Returns whether this pass is over its limit; the engine asks after each policy."""
        return bool(self.seconds) and time.perf_counter() - self._began > self.seconds


class OutOfTime(BaseException):
    """Raised inside a policy whose time is up. Not an `Exception`, so that neither the policy nor the engine catches it."""


def _end_pass(_signal: int, _frame: object) -> None:
    raise OutOfTime
