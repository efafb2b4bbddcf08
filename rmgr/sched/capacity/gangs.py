"""Gangs of a partition: their records as live objects, who stands in one, and which nodes belong to one as a whole.

`Carousel` is a record made live: the tree, its front, what each queue holds; moved on, and made a record again. `GangBook` is what a
partition keeps: a node belongs to a gang as a whole while one of its jobs stands there. `Timetable` has the slots of one node.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from rmgr.model.cluster.node import GangRecord
from rmgr.model.tasks.block import run_label, task_of
from rmgr.sched.capacity.holds import each_node, room
from rmgr.sched.capacity.pool_node import NodePool
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.job import Job, Node, Placement, Running, nodes_of, spans_of
from rmgr.sched.records import Cores, Gang
from rmgr.sched.tree.rotation import Newcomers, Rotation, Row, RunQueue
from rmgr.sched.tree.shape import MOST_LEAVES, Loads, Tree

#: Stands for a gang in a pool: a node that it has is nobody else's.
OWNER = Job(id=0, submit_us=0, exclusive=True)
#: Quanta of a job whose end nobody knows.
ENDLESS = 1 << 60


class Carousel:
    """Attributes: tree, rotation, and for each job its weight.

    Everybody who makes it from the same record gets the same slots. Cost: O(nodes of the tree).
    """

    __slots__ = ("_loads", "leaves", "memory_share", "next_round", "origin_us", "rotation", "slot_us", "tree", "weights", "width")

    def __init__(self, gang: Gang, closed: frozenset[int] = frozenset()) -> None:
        """closed: leaves on which nothing new is placed."""
        self.width, self.leaves, self.next_round = gang.width, gang.leaves, gang.next_round
        self.slot_us, self.origin_us, self.memory_share = gang.slot_us, gang.origin_us, gang.memory_share
        count = sum(cores for _, cores in each_node(gang.leaves))
        self.tree = Tree(gang.width, count, closed)
        self.rotation = Rotation(self.tree, Newcomers.NEXT_ROUND if gang.next_round else Newcomers.THIS_ROUND)
        self.rotation.now = gang.slot
        self._loads: tuple[Loads, Loads] | None = None
        self.weights: dict[int, int] = {}
        for node, entries in gang.queues:
            queue = RunQueue()
            for job_id, weight in entries:
                queue.append(job_id, ENDLESS, weight)
                self.weights[job_id] = self.weights.get(job_id, 0) + weight
            self.rotation.fill(node, queue.close())
        self.rotation.stand(gang.front)
        for job_id, node, weight in gang.late:
            self.add(job_id, node, weight)

    def copy(self) -> Carousel:
        """An equal one that shares nothing that changes."""
        new = object.__new__(Carousel)
        new.width, new.leaves, new.next_round = self.width, self.leaves, self.next_round
        new.slot_us, new.origin_us, new.tree, new.memory_share = self.slot_us, self.origin_us, self.tree, self.memory_share
        new.rotation, new.weights = self.rotation.copy(), dict(self.weights)
        entries, jobs = self._counted()  # a copy is made to place jobs: they are counted once, not in each
        new._loads = entries.copy(), jobs.copy()
        return new

    @property
    def entries(self) -> Loads:
        """Loads in entries, by which tasks are allocated. Cost: the first time O(jobs x height x width): who reads slots needs none."""
        return self._counted()[0]

    @property
    def jobs(self) -> Loads:
        """Loads in jobs, which the cap counts. Cost: as `entries`."""
        return self._counted()[1]

    def _counted(self) -> tuple[Loads, Loads]:
        if self._loads is None:
            self._loads = entries, jobs = Loads(self.tree), Loads(self.tree)
            for job_id, weight in self.weights.items():
                entries.change(self.node_of(job_id), weight)
                jobs.change(self.node_of(job_id), 1)
        return self._loads

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.weights

    def boundary(self, now_us: int) -> int:
        """The first slot that begins at `now_us` or later."""
        return max(-((self.origin_us - now_us) // self.slot_us), self.rotation.now)

    def advance_to(self, slot: int) -> None:
        """Time passes; newcomers are let in on the way."""
        rotation = self.rotation
        while rotation.now < slot:
            rotation.advance((rotation.next_end(slot - rotation.now) if self.next_round else None) or slot - rotation.now)
            if self.next_round:
                rotation.finish()

    def add(self, job_id: int, node: int, weight: int, quanta: int = ENDLESS) -> None:
        """The job enters the queue of the tree node."""
        self.weights[job_id] = weight
        if self._loads is not None:
            self.entries.change(node, weight)
            self.jobs.change(node, 1)
        self.rotation.home.setdefault(job_id, node)
        self.rotation.add(job_id, node, quanta, weight)

    def remove(self, job_id: int) -> None:
        """The job leaves. Raises: KeyError when it is not in it."""
        node = self.node_of(job_id)
        self.rotation.remove(job_id)
        self.rotation.home.pop(job_id, None)
        weight = self.weights.pop(job_id)
        if self._loads is not None:
            self.entries.change(node, -weight)
            self.jobs.change(node, -1)

    def given(self) -> dict[int, int]:
        """Slots that each job without an end has had since this was made of a record. Cost: O(nodes of the tree + jobs)."""
        self.rotation.settle()
        return {job_id: ENDLESS - rest for queue in self.rotation.queues for job_id, rest in queue.rest().items()}

    def node_of(self, job_id: int) -> int:
        """The tree node in whose queue the job stands."""
        return self.rotation.home[job_id]

    def record(self, name: str, policy: str, partition: str) -> Gang:
        """What it is now. Cost: O(nodes of the tree)."""
        front, rotation = self.rotation.front(), self.rotation
        queues = []
        for node, queue in enumerate(rotation.queues):
            if queue.entries:
                runs: list[tuple[int, int]] = []
                for job_id in queue.look():
                    if runs and runs[-1][0] == job_id:
                        runs[-1] = (job_id, runs[-1][1] + 1)
                    else:
                        runs.append((job_id, 1))
                queues.append((node, tuple(runs)))
        return Gang(
            name,
            self.slot_us,
            self.origin_us,
            rotation.now,
            self.width,
            self.leaves,
            tuple(queues),
            front,
            rotation.late_tasks(),
            self.next_round,
            policy,
            partition,
            self.memory_share,
        )


def leaves_of(nodes: Mapping[int, Node]) -> Cores:
    """Every core of these nodes, in order of node id."""
    return spans_of((node.id, node.cores) for node in sorted(nodes.values(), key=lambda node: node.id))


def cores_within(leaves: Cores, low: int, high: int) -> list[tuple[int, int, int]]:
    """(node, first of its cores, how many) of the leaves low..high-1. Cost: O(spans + nodes within)."""
    found: list[tuple[int, int, int]] = []
    start = 0
    for first, last, cores in leaves:
        beyond = start + (last - first + 1) * cores
        if low < beyond and high > start:
            for node in range(first + max(low - start, 0) // cores, last + 1):
                at = start + (node - first) * cores
                if at >= high:
                    break
                found.append((node, max(at, low) - at, min(at + cores, high) - max(at, low)))
        start = beyond
    return found


def placed_in(job: Job, carousel_leaves: Cores, span: tuple[int, int], nodes: Mapping[int, Node]) -> Placement | None:
    """The job on the leaves of a partition, lowest first; None where they have no room for all its processes."""
    wanted, counts = job.processes, []
    for node, _, cores in cores_within(carousel_leaves, *span):
        count = min(room(job, nodes.get(node), cores), wanted)
        if count:
            counts.append((node, count))
            wanted -= count
        if not wanted:
            return spans_of(sorted(counts))
    return None


def stands_in(run: Running, leaves: Cores, span: tuple[int, int], nodes: Mapping[int, Node]) -> bool:
    """Every core of the run is among the leaves of a partition, whatever has closed or opened there since it began."""
    has = {node: cores for node, _, cores in cores_within(leaves, *span)}
    job = run.job
    return all(
        has.get(node, 0) >= (nodes[node].cores if job.exclusive and node in nodes else count * job.threads)
        for node, count in each_node(run.placement)
    )


def too_many_leaves(leaves: Cores) -> bool:
    """More than a tree may have."""
    return sum((last - first + 1) * cores for first, last, cores in leaves) > MOST_LEAVES


class GangBook:
    """`job_id in book`: it stands in a gang."""

    __slots__ = ("_carousels", "_given", "_owned", "by_name", "of")

    def __init__(self) -> None:
        self.by_name: dict[str, Gang] = {}
        self.of: dict[int, str] = {}  #: job that runs, or is about to -> gang
        self._carousels: list[tuple[Gang, frozenset[int], Carousel]] = []  # derived, of the last records
        self._given: tuple[Gang, int, dict[int, int]] | None = None  # derived, of the last question
        self._owned: dict[int, int] = {}  # node -> jobs of gangs that run there

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.of

    def __iter__(self) -> Iterator[Gang]:
        return iter(sorted(self.by_name.values()))

    def put(self, gang: Gang) -> None:
        """In place of the one of that name. Without jobs: it goes."""
        old = self.by_name.pop(gang.name, None)
        for job_id in old.homes if old is not None else ():
            self.of.pop(job_id, None)
        homes = gang.homes
        if homes:
            self.by_name[gang.name] = gang
            self.of.update(dict.fromkeys(homes, gang.name))

    def keep(self, running: Container[int]) -> None:
        """Only jobs that run are members; gangs without any go. After records were read."""
        for job_id in [job_id for job_id in self.of if job_id not in running]:
            self.strike(job_id)

    def carousel(self, gang: Gang, closed: frozenset[int]) -> Carousel:
        """The record as live objects: read it, or change a copy. Derived; those of the last two records are kept."""
        for known, shut, carousel in self._carousels:
            if known is gang and shut == closed:
                return carousel
        carousel = Carousel(gang, closed)
        self.remember(gang, closed, carousel)
        return carousel

    def remember(self, gang: Gang, closed: frozenset[int], carousel: Carousel) -> None:
        """This is what the record makes; nobody changes it from now on."""
        self._carousels = [*self._carousels[-1:], (gang, closed, carousel)]

    def given(self, gang: Gang, slot: int) -> Mapping[int, int]:
        """Job -> slots that the record gives it from its first one up to this. Cost: O(nodes of the tree), once a record and slot."""
        if self._given is None or self._given[0] is not gang or self._given[1] != slot:
            carousel = Carousel(gang)  # a remembered one may count from an earlier record
            carousel.advance_to(slot)
            self._given = gang, slot, carousel.given()
        return self._given[2]

    def enter(self, pool: UnitPool | NodePool, run: Running) -> None:
        """One of its jobs runs: nodes that no gang had are taken."""
        for node in nodes_of(run.placement):
            count = self._owned.get(node, 0)
            if not count:
                pool.take(OWNER, ((node, node, 1),))
            self._owned[node] = count + 1

    def leave(self, pool: UnitPool | NodePool, run: Running) -> None:
        """It does not any more, and is no member."""
        self.step_out(pool, run)
        self.strike(run.job.id)

    def step_out(self, pool: UnitPool | NodePool, run: Running) -> None:
        """Nodes on which it was the last are given back."""
        for node in nodes_of(run.placement):
            self._owned[node] -= 1
            if not self._owned[node]:
                del self._owned[node]
                pool.give(OWNER, ((node, node, 1),))

    def strike(self, job_id: int) -> None:
        """The job is no member any more; the record keeps it until it is set again, or goes with the last one."""
        name = self.of.pop(job_id, None)
        if name is not None and name not in self.of.values():
            del self.by_name[name]

    def owns(self, node: int) -> bool:
        """A job of a gang runs there."""
        return node in self._owned

    def vacate(self) -> None:
        """The pool is a new one: nothing of it is taken yet."""
        self._owned.clear()


def memory_on(job: Job, node: Node, count: int, share: int) -> int:
    """Bytes of the node's memory that so many processes of the job count as: what they ask for, or its `share_of_memory`."""
    if job.memory_bytes or not share:
        return count * job.memory_bytes
    return share_of_memory(node.memory_bytes, node.cores, node.cores if job.exclusive else count * job.threads, share)


def share_of_memory(memory_bytes: int, cores: int, used: int, share: int) -> int:
    """What a job that says nothing of memory has of a node's, on so many of its cores: 1/share (`Gang.memory_share`) of their part.

    So jobs that say nothing have memory wherever they have cores.
    """
    return memory_bytes * used // (cores * share)


# -- slots of one node: everybody who reads the record computes the same ones, however late -------------------------------------


class SlotRow(NamedTuple):
    """parts: names (`run_label`) of the attempts that have cores of this node in the slot that begins at start_us of gang time."""

    start_us: int
    parts: tuple[str, ...]


class Timetable:
    """What one generation of a record says of one node. Cost: O(nodes of the tree) to make, O(front) a slot."""

    def __init__(self, record: GangRecord, node: str) -> None:
        """Raises: ValueError for a record that is no tree."""
        self.record = record
        self._carousel = Carousel(numbered(record))
        self.names = {run_label(*task_of(job), attempt): job for job, attempt, _ in record.attempts}  #: of attempts -> the scheduler's id
        self._named = {job: name for name, job in self.names.items()}
        self._low = self._high = 0  # this node's leaves
        for name, cores in record.leaves:
            if name == node:
                self._high = self._low + cores
                break
            self._low += cores
        if not self._high:
            self._low = 0
        self._here: dict[int, bool] = {}  # tree node -> it has leaves of this node
        self.slot = record.slot  #: the next one to be computed

    def start_us(self, slot: int) -> int:
        """When it begins, in gang time."""
        return self.record.origin_us + slot * self.record.slot_us

    def skip_to(self, slot: int) -> None:
        """Rows before this slot are not asked for any more: nobody counts the slots that a record has seen since it was set."""
        self.slot = max(self.slot, slot)

    @property
    def tree(self) -> Tree:
        """Partitions of the gang's cores."""
        return self._carousel.tree

    @property
    def rotation(self) -> Rotation:
        """Queues and front at the next slot. Read it only."""
        self._carousel.advance_to(self.slot)
        return self._carousel.rotation

    @property
    def round_slots(self) -> int:
        """Slots of a round of the whole tree: each job has one of so many at least."""
        return self._carousel.rotation.rounds[0]

    def row(self) -> Row:
        """(tree node, job) of the next slot, on all nodes."""
        return self.rotation.row()

    def next(self) -> SlotRow:
        """The row of the next slot, on this node."""
        there = [self._named[job] for node, job in self.row() if self._is_here(node) and job in self._named]
        found = SlotRow(self.start_us(self.slot), tuple(there))
        self.slot += 1
        return found

    def cores_of(self, part: str) -> tuple[int, int] | None:
        """(first, how many) of this node's cores that the part's partition has; None: the record does not have it here."""
        job = self.names.get(part)
        if job is None or job not in self._carousel:
            return None
        low, high = self._carousel.tree.span(self._carousel.node_of(job))
        low, high = max(low, self._low), min(high, self._high)
        return (low - self._low, high - low) if low < high else None

    def _is_here(self, node: int) -> bool:
        found = self._here.get(node)
        if found is None:
            low, high = self._carousel.tree.span(node)
            found = self._here[node] = max(low, self._low) < min(high, self._high)
        return found


def numbered(record: GangRecord) -> Gang:
    """The scheduler's record of a gang whose nodes are numbered from the left, of no partition."""
    return Gang(
        name=record.policy,
        slot_us=record.slot_us,
        origin_us=record.origin_us,
        slot=record.slot,
        width=record.width,
        leaves=tuple((at, at, cores) for at, (_, cores) in enumerate(record.leaves)),
        queues=record.queues,
        front=record.front,
        late=record.late,
        next_round=record.next_round,
        memory_share=record.memory_share,
    )
