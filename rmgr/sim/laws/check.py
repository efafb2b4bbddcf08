"""Tries a policy against the laws that every policy must keep, on small seeded worlds; shrinks the world of each broken law.

`rmgr policy check` and the property tests use it. A law has a name, a sentence, and a point at which it is checked: during a pass, after
its decisions are carried out, or at the end of a world. `overcommitted` recounts the resources of any records from scratch. Starvation
under endless work is tried on separate streams (`starved`). A policy whose paper says that it breaks a law declares it:
`waives: ClassVar[Mapping[str, str]] = {"endless": "papers.md 2.2: First-Fit promises nothing"}`; an order does the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from random import Random
from traceback import extract_tb
from typing import TypeAlias, cast

from rmgr.model.units import format_duration
from rmgr.sched.capacity.gangs import cores_within
from rmgr.sched.draft import Draft
from rmgr.sched.job import Job, Node, Placement, Running, count_of, count_on, each_node, nodes_of
from rmgr.sched.plan import Decision, Plan, Reserve, Start, WakeAt
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.records import Gang
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.tree.shape import Tree
from rmgr.sim.engine.world import shuffled
from rmgr.sim.laws.world import (
    MOST_PASSES,
    QUEUES,
    Budget,
    Drive,
    LawsJob,
    OutOfTime,
    Seeded,
    SmallWorld,
    StoryLine,
    StoryStay,
    described,
    shrunk,
    where,
    world_of,
)

#: Most attempts to shrink a world; fewer for a policy that uses up its whole time budget in every pass.
TRIES = 400
SLOW_TRIES = 8
#: Most columns of a chart, lines of a story and jobs of a world that are shown.
MOST_COLUMNS = 100
MOST_LINES = 60
MOST_WORKS = 20
_NAMES = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: name -> what must hold
LAWS: Mapping[str, str] = {
    "pure": "the same input gives the same plan, and a pass changes no record",
    "stateless": "another leader, with a new policy object and shuffled records, decides the same",
    "fork": "what a fork takes back leaves no trace",
    "contained": "a policy that raises or takes too long loses its decisions, and nothing else is touched",
    "sound": "it does not raise",
    "applies": "what is decided can be carried out, and what happens can be told",
    "in_time": "a pass takes no longer than its budget",
    "explained": "every job that starts or waits has a reason",
    "capacity": "no core, memory or exclusive node is given twice",
    "permission": "nothing starts before its submit, begin time or dependencies, on a closed node, into a window or over a limit",
    "served": "every job has its turn where what arrives is finite",
}
TRIED = frozenset(LAWS)
#: Returns new objects of the same pipeline at each call.
Make: TypeAlias = Callable[[], tuple[Stage, ...]]
#: This law is tried on worlds of its own (`starved`).
ENDLESS = "endless"
ENDLESS_SAYS = "no job waits for ever under an endless stream of others"
EVERY_LAW: Mapping[str, str] = {**LAWS, ENDLESS: ENDLESS_SAYS}
#: Of those worlds: number of nodes, jobs of the stream, id of the victim, unit of time.
NODES = 4
STREAM = 100
VICTIM = 1_000_000
UNIT_US = 60_000_000


# -- the laws ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken law: where it broke, and the story up to that point."""

    law: str
    text: str
    at_us: int
    world: SmallWorld
    story: tuple[StoryLine, ...]
    stays: tuple[StoryStay, ...] = ()


class Broken(Exception):
    """Raised when a law breaks. `tried` catches it."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.text = text


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one world: the number of passes checked, and the first law that broke."""

    passes: int
    breach: Breach | None = None


def tried(
    world: SmallWorld, make: Make, *, laws: Collection[str] = TRIED, budget: Budget | None = None, most_passes: int = MOST_PASSES
) -> Tried:
    """Runs the pipeline through the world and checks every pass until a law breaks. Cost: about six passes for each pass checked."""
    drive = Drive(world, make(), budget=budget or Budget(0))
    try:
        while drive.passes < most_passes and drive.advance():
            drive.decide()
            other = _look_at_pass(drive, make, laws)
            drive.carry_out()
            if "stateless" in laws:
                other.apply(drive.plan, drive.now_us)
                if other.snapshot() != drive.state.snapshot():
                    raise Broken("stateless", f"the plan leaves other records with another leader: {_other(other, drive.state)}")
            _hold("capacity", laws, overcommitted(drive.state.snapshot()))
            _hold("permission", laws, drive.wrongs)
        if drive.passes < most_passes:
            _hold("served", laws, drive.left_waiting())
    except Broken as broken:
        return Tried(drive.passes, Breach(broken.law, broken.text, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    except Exception as error:  # noqa: BLE001 - whatever it is, facts, passes and decisions must not raise; it is told with its world
        frame = extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"
        return Tried(drive.passes, Breach("applies", text, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    except OutOfTime:
        return Tried(drive.passes, Breach("in_time", drive.budget.told, drive.now_us, world, tuple(drive.story), tuple(drive.stays)))
    return Tried(drive.passes)


def _look_at_pass(drive: Drive, make: Make, laws: Collection[str]) -> ClusterState:
    """Checks all laws of one pass against the state before it. The drive itself continues with its own state.

    Returns: the state that a new leader would have at the same point.
    """
    state, plan = drive.state, drive.plan
    for fault in plan.faults:
        name = "in_time" if fault.error == "out of time" else "sound"
        _hold(name, laws, [f"policy {fault.policy}: {fault.error}"])
    before = state.snapshot()
    if "pure" in laws:
        _same("pure", "the pass once more", plan, drive.planned(state, drive.pipeline))
        if state.snapshot() != before:
            raise Broken("pure", "the pass changed records of the state")
    fresh = ClusterState.restored(shuffled(before, Random(drive.world.seed)), drive.world.half_life_us)
    if "stateless" in laws:
        if fresh.snapshot() != before:
            raise Broken("stateless", f"the records say something else to another leader: {_other(fresh, state)}")
        _same("stateless", "another leader, restored from shuffled records", plan, drive.planned(fresh, make()))
    if "fork" in laws:
        forked = drive.planned(state, _wrapped(make(), _Forked))
        _same("fork", "the pass after a fork that was taken back", plan, forked, counts=False)
    if "contained" in laws and not plan.faults:
        lost = drive.planned(state, _wrapped(make(), _Raises))
        idle = drive.planned(state, _wrapped(make(), _Idle))
        _same("contained", "the pass whose policy raised at its end", idle, lost, counts=False)
        late = drive.planned(state, make(), expired=_always)
        _same("contained", "the pass whose policy took too long", idle, late, counts=False)
        if state.snapshot() != before:
            raise Broken("contained", "a policy that raised or took too long changed records of the state")
    _hold("explained", laws, _unexplained(drive))
    return fresh


def _other(fresh: ClusterState, state: ClusterState) -> str:
    """Returns the first records that differ."""
    its, mine = fresh.snapshot(), state.snapshot()
    name = next(name for name in Snapshot.__slots__ if getattr(its, name) != getattr(mine, name))
    return f"{name} {getattr(its, name)} instead of {getattr(mine, name)}"


def _always() -> bool:
    return True


def _unexplained(drive: Drive) -> Iterator[str]:
    for decision in drive.plan.decisions:
        if not str(decision.why):
            yield f"{decision!r} has no reason"
    for name, part in drive.state.partitions.items():
        for job_id in part.jobs:
            if drive.plan.why(job_id, name) is None:
                yield f"job {job_id} waits and no reason is given: draft.leave_pending or draft.leave_rest"


def _same(law: str, what: str, first: Plan, second: Plan, *, counts: bool = True) -> None:
    """Raises Broken unless both plans are equal. counts: faults and refused verbs must be equal, too."""
    for mine, its in zip_longest(first.decisions, second.decisions):
        if mine != its:
            raise Broken(law, f"{what}: {shown(its)} instead of {shown(mine)}")
    for job_id in sorted({*first.left, *second.left}):
        mine_why, its_why = first.left.get(job_id), second.left.get(job_id)
        if mine_why != its_why:
            raise Broken(law, f"{what}: job {job_id} waits for another reason: {its_why} instead of {mine_why}")
    if first.rest != second.rest:
        raise Broken(law, f"{what}: jobs wait for other reasons: {second.rest} instead of {first.rest}")
    if counts and first.faults != second.faults:
        raise Broken(law, f"{what}: {_faults(second)} instead of {_faults(first)}")
    if counts and first.refused != second.refused:
        raise Broken(law, f"{what}: {second.refused} refused verbs instead of {first.refused}")


def shown(decision: Decision | None) -> str:
    """Describes a decision in a few words."""
    match decision:
        case None:
            return "nothing"
        case Start(job_id, placement):
            return f"start job {job_id} on {where(placement)}"
        case WakeAt(at_us):
            return f"wake at {at_us} us"
        case Reserve(job_id, start_us):
            return f"reserve {start_us} us for job {job_id}"
        case _:
            return repr(decision)


def _faults(plan: Plan) -> str:
    return "; ".join(f"{fault.policy}: {fault.error}" for fault in plan.faults) or "no fault"


def _hold(law: str, laws: Collection[str], breaches: Iterator[str] | list[str]) -> None:
    if law in laws:
        for text in breaches:
            raise Broken(law, text)


def _wrapped(pipeline: tuple[Stage, ...], kind: type[_Wrapped]) -> tuple[Stage, ...]:
    return tuple(replace(stage, policy=cast("Policy", kind(stage.policy))) for stage in pipeline)


@dataclass(frozen=True)
class _Wrapped:
    """A policy under its own name, so that its records stay its records."""

    policy: Policy

    @property
    def name(self) -> str:  # a wrapper's name is its policy's
        return self.policy.name


class _Forked(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        with draft.fork():
            self.policy.plan(draft, causes)
        self.policy.plan(draft, causes)


class _Raises(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        self.policy.plan(draft, causes)
        raise RuntimeError("raises after it decided")


class _Idle(_Wrapped):
    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        pass


def overcommitted(snapshot: Snapshot) -> Iterator[str]:
    """Yields a sentence for each resource that is over-committed, and for each job placed where it cannot run.

    Cost: O(nodes + processes of what stands).
    """
    nodes = {node.id: node for node in snapshot.nodes}
    gangs = {job_id for gang in snapshot.gangs for job_id in gang.jobs}
    alone = _Taken(nodes)
    stands = {run.job.id: run for run in snapshot.running}
    for run in snapshot.running:
        yield from misplaced(run.job, run.placement, nodes)
        if run.job.id not in gangs:
            alone.add(run)
    for stopped in snapshot.suspended:
        yield from misplaced(stopped.run.job, stopped.run.placement, nodes)
        alone.add_memory(stopped.run)
    yield from _promised(snapshot, stands, alone)
    yield from alone.too_much()
    owners: dict[int, str] = {}
    for gang in snapshot.gangs:
        yield from _crowded(gang, stands, nodes, alone, owners)


def _promised(snapshot: Snapshot, stands: dict[int, Running], taken: _Taken) -> Iterator[str]:
    """Checks holds: what they own counts as taken; what they wait for must be running, and be promised to one hold only."""
    waits = {job.id for job in snapshot.waiting}
    flagged: set[int] = set()
    for hold in snapshot.holds:
        if hold.job_id not in waits:
            yield f"cores are held for job {hold.job_id}, which does not wait"
        for share in hold.held:
            for node, cores in each_node(share.cores):
                taken.cores[node] += cores
                taken.names[node].append(f"the hold of job {hold.job_id}")
        for share in hold.waits_for:
            if share.run_id not in stands:
                yield f"the hold of job {hold.job_id} waits for job {share.run_id}, which does not run"
            if share.run_id in flagged:
                yield f"job {share.run_id} is promised in two holds"
            flagged.add(share.run_id)


def _crowded(gang: Gang, stands: dict[int, Running], nodes: dict[int, Node], alone: _Taken, owners: dict[int, str]) -> Iterator[str]:
    """Checks a gang: each job runs on the leaves of its tree node, all jobs keep their memory, and no other job is on their nodes."""
    together = _Taken(nodes)
    tree = Tree(gang.width, count_of(gang.leaves))
    for job_id, home in gang.homes.items():
        run = stands.get(job_id)
        if run is None:
            continue  # it has ended, or waits again: its slots are empty
        together.add_memory(run)
        leaves = {node: cores for node, _, cores in cores_within(gang.leaves, *tree.span(home))}
        for node, processes in each_node(run.placement):
            if processes * run.job.threads > leaves.get(node, 0):
                yield f"job {job_id} stands on node {node} outside of tree node {home} of gang {gang.name}"
            if run.job.exclusive and leaves.get(node, 0) < count_on(node, gang.leaves):
                yield f"job {job_id} is exclusive, and others have cores of node {node} in its slots"
            if run.job.spread and processes > 1:
                yield f"node {node} has several processes of job {job_id}, which is spread"
            if alone.names[node]:
                yield f"node {node} belongs to gang {gang.name}, and {', '.join(alone.names[node])} is on it"
            if owners.setdefault(node, gang.name) != gang.name:
                yield f"node {node} belongs to gangs {owners[node]} and {gang.name}"
    yield from together.too_much()


def misplaced(job: Job, placement: Placement, nodes: dict[int, Node]) -> Iterator[str]:
    """Yields what is wrong with this job on these nodes, whatever other jobs are there."""
    ids = nodes_of(placement)
    if sorted(set(ids)) != ids:
        yield f"job {job.id} stands on {placement}: nodes twice or out of order"
    total = sum(processes for _, processes in each_node(placement))
    if total != job.processes or any(processes < 1 for _, _, processes in placement):
        yield f"job {job.id} has {job.processes} processes, {total} stand on {placement}"
    for node_id in ids:
        node = nodes.get(node_id)
        if node is None:
            yield f"job {job.id} stands on node {node_id}, which is not there"
        elif node.partition != job.partition:
            yield f"job {job.id} of partition {job.partition} stands on node {node_id} of partition {node.partition}"
        elif not set(job.features) <= set(node.features):
            yield f"job {job.id} needs {', '.join(job.features)}, node {node_id} lacks it"


class _Taken:
    """Resources taken on each node."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.cores: Counter[int] = Counter()
        self.memory: Counter[int] = Counter()
        self.others: Counter[tuple[int, str]] = Counter()
        self.names: defaultdict[int, list[str]] = defaultdict(list)
        self.exclusive: defaultdict[int, list[int]] = defaultdict(list)
        self.crowded: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, run: Running) -> None:
        self.add_memory(run)
        for node, processes in each_node(run.placement):
            self.cores[node] += processes * run.job.threads
            self.names[node].append(f"job {run.job.id}")
            if run.job.exclusive:
                self.exclusive[node].append(run.job.id)
            if run.job.spread and processes > 1:
                self.crowded[node].append(run.job.id)

    def add_memory(self, run: Running) -> None:
        for node, processes in each_node(run.placement):
            self.memory[node] += processes * run.job.memory_bytes
            for name, count in run.job.resources:
                self.others[node, name] += processes * count

    def too_much(self) -> Iterator[str]:
        for node_id in sorted(self.nodes):
            node, names = self.nodes[node_id], ", ".join(self.names[node_id])
            if self.cores[node_id] > node.cores:
                yield f"node {node_id} has {node.cores} cores, {names} take {self.cores[node_id]}"
            if node.memory_bytes and self.memory[node_id] > node.memory_bytes:
                yield f"node {node_id} has {node.memory_bytes} bytes, {names} and what is suspended there take {self.memory[node_id]}"
            has = dict(node.resources)
            for name in sorted(name for at, name in self.others if at == node_id):
                if self.others[node_id, name] > has.get(name, 0):
                    taken = self.others[node_id, name]
                    yield f"node {node_id} has {has.get(name, 0)} {name}, {names} and what is suspended there take {taken}"
            if self.exclusive[node_id] and len(self.names[node_id]) > 1:
                yield f"node {node_id} is shared by {names}, and job {self.exclusive[node_id][0]} is exclusive"
            for job_id in self.crowded[node_id]:
                yield f"node {node_id} has several processes of job {job_id}, which is spread"


def starved(make: Make, *, budget: Budget | None = None, partition: str = "default", queue: str = "default") -> Iterator[Tried]:
    """Tries three streams of jobs that keep the machine full; each has one job, the victim, that the others could overtake for ever.

    A stream is long, not endless: the victim must start before the last other job arrives. Cost: about 100 passes for each stream.
    """
    for what, world in streams(partition, queue).items():
        drive = Drive(world, make(), budget=budget or Budget(0))
        last_us = world.works[-1].job.submit_us
        try:
            while VICTIM not in drive.started and drive.now_us < last_us and drive.advance():
                drive.decide()
                drive.carry_out()
        except OutOfTime:
            yield Tried(drive.passes, Breach(ENDLESS, drive.budget.told, drive.now_us, world, tuple(drive.story[-12:]), tuple(drive.stays)))
            continue
        if VICTIM in drive.started or VICTIM in drive.gone:
            yield Tried(drive.passes)
            continue
        waited = (drive.now_us - next(w.job.submit_us for w in world.works if w.job.id == VICTIM)) / UNIT_US
        why = drive.plan.why(VICTIM, partition) or "no reason given"
        text = f"{what} waits {waited:g} minutes while {len(drive.started)} others start ({why})"
        yield Tried(drive.passes, Breach(ENDLESS, text, drive.now_us, world, tuple(drive.story[-12:]), tuple(drive.stays)))


def streams(partition: str, queue: str) -> Mapping[str, SmallWorld]:
    """Returns a world for each kind of victim, by its description. The stream requests exactly the whole machine."""
    return {
        "a job of every node among jobs of one node": _stream(partition, queue, victim=(NODES, 0), others=(1, 0), every=1),
        "a job of one node among jobs of every node": _stream(partition, queue, victim=(1, 0), others=(NODES, 0), every=NODES),
        "a job of low priority among jobs of high priority": _stream(partition, queue, victim=(NODES, 0), others=(NODES, 1), every=NODES),
    }


def _stream(partition: str, queue: str, *, victim: tuple[int, int], others: tuple[int, int], every: int) -> SmallWorld:
    """victim, others: (nodes, priority). every: minutes between two other jobs; each runs for as many minutes as the machine has nodes."""

    def work(job_id: int, submit: int, shape: tuple[int, int]) -> LawsJob:
        processes, priority = shape
        limit_us = NODES * UNIT_US
        job = Job(
            id=job_id,
            submit_us=submit * UNIT_US,
            processes=processes,
            limit_us=limit_us,
            priority=priority,
            partition=partition,
            queue=queue,
            user="ann" if job_id == VICTIM else "bob",
        )
        return LawsJob(job=job, run_us=limit_us)

    stream = [work(i + 1, i * every, others) for i in range(STREAM)]
    nodes = tuple(Node(id=i, partition=partition) for i in range(NODES))
    return SmallWorld(nodes=nodes, works=(work(VICTIM, NODES + 1, victim), *stream), unit_us=UNIT_US)


# -- a policy before them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LawsReport:
    """The findings on all laws, in the order of `LAWS`."""

    findings: tuple[Finding, ...]
    worlds: int
    passes: int

    @property
    def is_lawful(self) -> bool:
        return all(finding.verdict != "broken" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one law.

    text: how it broke, "" if it held. breach: the break in the smallest world found. seed: of the original world.
    waiver: why the policy may break it.
    """

    law: str
    says: str
    worlds: int
    passes: int
    seed: int = 0
    text: str = ""
    breach: Breach | None = None
    waiver: str = ""

    @property
    def verdict(self) -> str:
        if not self.text:
            return "holds"
        return "waived" if self.waiver else "broken"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What worlds must contain: the partitions and queues that the pipeline names; () = any."""

    partitions: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    def world(self, seed: int) -> SmallWorld:
        return world_of(Seeded(seed), partitions=self.partitions, queues=self.queues or QUEUES)


def digest(make: Make, *, worlds: int, seed: int = 0, drawn: Drawn = Drawn()) -> str:
    """Returns the SHA-256 of all plans in these worlds: equal in every interpreter, whatever its hash seed and set order."""
    sum_ = sha256()
    for number in range(seed, seed + worlds):
        drive = Drive(drawn.world(number), make(), budget=Budget(0))
        while drive.advance():
            drive.decide()
            plan = drive.plan
            sum_.update(repr((plan.decisions, sorted(plan.left.items()), sorted(plan.rest.items()))).encode())
            drive.carry_out()
    return sum_.hexdigest()


def _finding(law: str, count: tuple[int, int], broke: tuple[int, Breach] | None, waivers: Mapping[str, str]) -> Finding:
    worlds, passes = count
    if broke is None:
        return Finding(law, EVERY_LAW[law], worlds, passes, waiver=waivers.get(law, ""))
    seed, breach = broke
    return Finding(law, EVERY_LAW[law], worlds, passes, seed, breach.text, breach, waivers.get(law, ""))


def _counted(counts: Mapping[str, tuple[int, int]], laws: Collection[str], passes: int) -> dict[str, tuple[int, int]]:
    """Adds one world to the counts of these laws."""
    return {law: (worlds + 1, of + passes) if law in laws else (worlds, of) for law, (worlds, of) in counts.items()}


def waived(pipeline: tuple[Stage, ...]) -> dict[str, str]:
    """Returns the laws that these policies, or their orders, declare that they break, each with the reason."""
    found: dict[str, str] = {}
    for stage in pipeline:
        for declares in (getattr(stage.policy, "order", None), stage.policy):
            found |= getattr(declares, "waives", {})
    return found


def _smallest(breach: Breach, make: Make, budget: Budget) -> Breach:
    law = breach.law
    best = [breach]

    def breaks(world: SmallWorld) -> bool:
        result = tried(world, make, laws=(law,), budget=budget)
        if result.breach is None or result.breach.law != law:
            return False
        best.append(result.breach)
        return True

    shrunk(breach.world, breaks, tries=SLOW_TRIES if law == "in_time" else TRIES)
    return best[-1]


def _endless(make: Make, budget: Budget, waivers: Mapping[str, str], drawn: Drawn) -> Finding:
    partition, queue = (*drawn.partitions, "default")[0], (*drawn.queues, *QUEUES)[0]
    results = list(starved(make, budget=budget, partition=partition, queue=queue))
    breach = next((result.breach for result in results if result.breach is not None), None)
    count = (len(results), sum(result.passes for result in results))
    return _finding(ENDLESS, count, None if breach is None else (0, breach), waivers)


def told(breach: Breach) -> Iterator[str]:
    """Yields a readable account of a broken law: the world, its events, and a chart of jobs on cores. Times in the world's own unit."""
    world, unit = breach.world, breach.world.unit_us
    yield from _machine(world)
    story = breach.story[-MOST_LINES:]
    if len(story) < len(breach.story):
        yield f"  ... {len(breach.story) - len(story)} lines before"
    before = None
    for line in story:
        at = f"{line.at_us / unit:g}" if line.at_us != before else ""
        yield f"{at:>6}  {line.text}"
        before = line.at_us
    yield from chart(world, breach.stays, breach.at_us)


def _machine(world: SmallWorld) -> Iterator[str]:
    length = "1 us" if world.unit_us == 1 else format_duration(world.unit_us / 1e6)
    yield f"  times in units of {length}; limits of jobs, too"
    joins = {joining.node.id: joining.at_us for joining in world.joinings}
    for node in world.every_node:
        parts = [f"{node.cores} core" + "s" * (node.cores > 1)]
        parts += [f"{node.memory_bytes} bytes"] if node.memory_bytes else []
        parts += [f"{count} {name}" for name, count in node.resources]
        parts += [f"has {', '.join(node.features)}"] if node.features else []
        parts += [f"partition {node.partition}"] if node.partition != "default" else []
        parts += [f"joins at {joins[node.id] / world.unit_us:g}"] if node.id in joins else []
        yield f"  node {node.id}: {', '.join(parts)}"
    for partition, limits in world.limits.items():
        shown = [f"{name} {getattr(limits, name)}" for name in limits.__dataclass_fields__ if getattr(limits, name)]
        yield f"  limits of {partition}: {', '.join(shown) or 'none'}"
    for work in world.works[:MOST_WORKS]:
        yield f"  job {work.job.id}: {described(work.job, world.unit_us)}, will run {work.run_us / world.unit_us:g}"
    if len(world.works) > MOST_WORKS:
        yield f"  and {len(world.works) - MOST_WORKS} more jobs as the last"


def chart(world: SmallWorld, stays: tuple[StoryStay, ...], until_us: int) -> Iterator[str]:
    """Yields a row for each core: for each unit of time the last digit of the job on it, `.` if the core is free."""
    unit = world.unit_us
    columns = until_us // unit + 1
    if columns > MOST_COLUMNS or not stays:
        return
    yield "  who stands where, a column for each unit of time:"
    for node in world.every_node:
        cores = max([node.cores, *(outage.cores for outage in world.outages if outage.node == node.id)])
        rows = [["."] * columns for _ in range(cores)]
        for stay in stays:
            processes = count_on(node.id, stay.placement)
            end_us = until_us + 1 if stay.end_us is None else stay.end_us
            span = range(stay.start_us // unit, min(-(-end_us // unit), columns))
            free = [row for row in rows if all(row[column] == "." for column in span)]
            for row in free[: processes * stay.job.threads]:
                for column in span:
                    row[column] = _NAMES[stay.job.id % len(_NAMES)]
        for row in rows:
            yield f"  {'node ' + str(node.id):>8} |{''.join(row)}|"


def check(
    make: Make,
    *,
    worlds: int,
    seed: int = 0,
    budget_s: float = 0,
    drawn: Drawn = Drawn(),
    on_progress: Callable[[int], None] | None = None,
) -> LawsReport:
    """Tries all laws on worlds of the seeds `seed`, `seed` + 1, ..., so a world that breaks one can be repeated alone by its own seed.

    Args:
        make: returns a new pipeline. budget_s: wall-clock limit of a pass (s); 0 = unlimited.
        on_progress: called with the number of worlds tried.
    Cost: about ten passes for each pass of each world: 5 ms a world.
    """
    budget = Budget(budget_s)
    counts: Mapping[str, tuple[int, int]] = dict.fromkeys(LAWS, (0, 0))
    broken: dict[str, tuple[int, Breach]] = {}
    passes = done = 0
    for number in range(seed, seed + worlds):
        world, done = drawn.world(number), done + 1
        result = tried(world, make, laws=LAWS.keys() - broken, budget=budget)
        while result.breach is not None and result.breach.law not in broken:  # a world that cannot be run breaks the same law again
            counts = _counted(counts, (result.breach.law,), result.passes)
            broken[result.breach.law] = (number, _smallest(result.breach, make, budget))
            if "in_time" not in broken:
                result = tried(world, make, laws=LAWS.keys() - broken, budget=budget)
        if "in_time" in broken:
            break
        counts, passes = _counted(counts, LAWS.keys() - broken, result.passes), passes + result.passes
        if on_progress is not None:
            on_progress(done)
    waivers = waived(make())
    findings = [_finding(law, counts[law], broken.get(law), waivers) for law in LAWS]
    if "in_time" not in broken:
        findings.append(_endless(make, budget, waivers, drawn))
    return LawsReport(tuple(findings), done, passes)
