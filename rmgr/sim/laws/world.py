"""Small worlds on which laws of scheduling are tried: a machine, jobs with their real run times, and what else happens to them.

`Chance` draws them: a seeded generator for `rmgr policy check`, Hypothesis in the tests. They are small because a law that breaks at all
nearly always breaks with six nodes and a dozen jobs, and a person can read such a world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from rmgr.sched.job import Job, Node, resources_of
from rmgr.sched.records import Limits, Maintenance

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
