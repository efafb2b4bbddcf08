"""Gangs of a partition: their records as live objects, their members, and the nodes that belong to a gang as a whole.

`Carousel` is a live copy of a record (the tree, its front, the content of each queue) that can be moved on and written back as a record.
`GangBook` belongs to a partition: a node belongs to a gang as a whole while one of its jobs runs there. `Timetable`: slots of one node.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from rmgr.model.block import run_label, task_of
from rmgr.model.node import GangRecord
from rmgr.sched.capacity.nodes import NodePool
from rmgr.sched.capacity.units import UnitPool
from rmgr.sched.job import Job, Node, Placement, Running, count_of, count_on, each_node, nodes_of, room, spans_of
from rmgr.sched.records import Cores, Gang
from rmgr.sched.tree.rotation import Newcomers, Rotation, Row, RunQueue
from rmgr.sched.tree.shape import Loads, Tree

#: Stands for a gang in a pool: only the gang may use a node that it takes.
OWNER = Job(id=0, submit_us=0, exclusive=True)
#: Quanta of a job whose end is unknown.
ENDLESS = 1 << 60


class Carousel:
    """Tree, rotation and the weight of each job, live.

    Every process that builds it from the same record gets the same slots. Cost: O(nodes of the tree).
    """

    __slots__ = ("leaves", "loads", "memory_share", "next_round", "origin_us", "rotation", "slot_us", "tree", "weights", "width")

    def __init__(self, gang: Gang, closed: frozenset[int] = frozenset()) -> None:
        """closed: leaves on which nothing new is placed."""
        self.width, self.leaves, self.next_round = gang.width, gang.leaves, gang.next_round
        self.slot_us, self.origin_us, self.memory_share = gang.slot_us, gang.origin_us, gang.memory_share
        self.tree = Tree(gang.width, count_of(gang.leaves), closed)
        self.rotation = Rotation(self.tree, Newcomers.NEXT_ROUND if gang.next_round else Newcomers.THIS_ROUND)
        self.rotation.now = gang.slot
        self.loads: tuple[Loads, Loads] | None = None
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
        """Returns an equal carousel that shares no mutable state with this one."""
        new = object.__new__(Carousel)
        new.width, new.leaves, new.next_round = self.width, self.leaves, self.next_round
        new.slot_us, new.origin_us, new.tree, new.memory_share = self.slot_us, self.origin_us, self.tree, self.memory_share
        new.rotation, new.weights = self.rotation.copy(), dict(self.weights)
        entries, jobs = self._counted()  # a copy is made to place jobs: count once here, not in each copy
        new.loads = entries.copy(), jobs.copy()
        return new

    @property
    def entries(self) -> Loads:
        """Loads in entries, used to allocate tasks. First access: O(jobs x height x width); a reader of slots never needs them."""
        return self._counted()[0]

    @property
    def jobs(self) -> Loads:
        """Loads in jobs, which the cap limits. Cost: as `entries`."""
        return self._counted()[1]

    def _counted(self) -> tuple[Loads, Loads]:
        if self.loads is None:
            self.loads = entries, jobs = Loads(self.tree), Loads(self.tree)
            for job_id, weight in self.weights.items():
                entries.change(self.node_of(job_id), weight)
                jobs.change(self.node_of(job_id), 1)
        return self.loads

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.weights

    def boundary(self, now_us: int) -> int:
        """Returns the first slot that begins at `now_us` or later."""
        return max(-((self.origin_us - now_us) // self.slot_us), self.rotation.now)

    def advance_to(self, slot: int) -> None:
        """Moves on to the slot and lets newcomers in on the way."""
        rotation = self.rotation
        while rotation.now < slot:
            rotation.advance((rotation.next_end(slot - rotation.now) if self.next_round else None) or slot - rotation.now)
            if self.next_round:
                rotation.finish()

    def add(self, job_id: int, node: int, weight: int, quanta: int = ENDLESS) -> None:
        """Puts the job into the queue of the tree node."""
        self.weights[job_id] = weight
        if self.loads is not None:
            self.entries.change(node, weight)
            self.jobs.change(node, 1)
        self.rotation.home.setdefault(job_id, node)
        self.rotation.add(job_id, node, quanta, weight)

    def remove(self, job_id: int) -> None:
        """Removes the job. Raises: KeyError if it is not in the carousel."""
        node = self.node_of(job_id)
        self.rotation.remove(job_id)
        self.rotation.home.pop(job_id, None)
        weight = self.weights.pop(job_id)
        if self.loads is not None:
            self.entries.change(node, -weight)
            self.jobs.change(node, -1)

    def given(self) -> dict[int, int]:
        """Returns the slots that each job without an end has had since this was built. Cost: O(nodes of the tree + jobs)."""
        self.rotation.settle()
        return {job_id: ENDLESS - rest for queue in self.rotation.queues for job_id, rest in queue.rest().items()}

    def node_of(self, job_id: int) -> int:
        """Returns the tree node in whose queue the job is."""
        return self.rotation.home[job_id]

    def record(self, name: str, policy: str, partition: str) -> Gang:
        """Returns the current state as a record. Cost: O(nodes of the tree)."""
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
    """Returns every core of these nodes, in ascending order of node id."""
    return spans_of((node.id, node.cores) for node in sorted(nodes.values(), key=lambda node: node.id))


def cores_within(leaves: Cores, low: int, high: int) -> list[tuple[int, int, int]]:
    """Returns (node, its first core, number of cores) for the leaves low..high-1. Cost: O(spans + nodes within)."""
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
    """Places the job on the leaves `span`, lowest first; None if they have no room for all its processes."""
    wanted, counts = job.processes, []
    for node, _, cores in cores_within(carousel_leaves, *span):
        count = min(room(job, nodes.get(node), cores), wanted)
        if count:
            counts.append((node, count))
            wanted -= count
        if not wanted:
            return spans_of(sorted(counts))
    return None


def stands_in(run: Running, leaves: Cores, span: tuple[int, int]) -> bool:
    """Whether every core of the run is among the leaves `span`, and every leaf of its nodes if it is exclusive.

    How many cores the nodes have now does not count: a node that came back with more has its old leaves until the gang's jobs have ended.
    """
    has = {node: cores for node, _, cores in cores_within(leaves, *span)}
    job = run.job
    return all(
        has.get(node, 0) >= (count_on(node, leaves) if job.exclusive else count * job.threads) for node, count in each_node(run.placement)
    )


class GangBook:
    """The gangs of a partition and their members; `job_id in book` tells whether the job is in a gang."""

    __slots__ = ("_carousels", "_given", "_owned", "by_name", "of")

    def __init__(self) -> None:
        self.by_name: dict[str, Gang] = {}
        self.of: dict[int, str] = {}  #: job that runs or is about to start -> name of its gang
        self._carousels: list[tuple[Gang, frozenset[int], Carousel]] = []  # derived from the last records
        self._given: tuple[Gang, int, dict[int, int]] | None = None  # derived, for the last question
        self._owned: dict[int, int] = {}  # node -> number of gang jobs that run there

    def __contains__(self, job_id: int) -> bool:
        return job_id in self.of

    def __iter__(self) -> Iterator[Gang]:
        return iter(sorted(self.by_name.values()))

    def put(self, gang: Gang) -> None:
        """Replaces the gang of that name. A gang without jobs is deleted."""
        old = self.by_name.pop(gang.name, None)
        for job_id in old.homes if old is not None else ():
            self.of.pop(job_id, None)
        homes = gang.homes
        if homes:
            self.by_name[gang.name] = gang
            self.of.update(dict.fromkeys(homes, gang.name))

    def keep(self, running: Container[int]) -> None:
        """Keeps only running jobs as members and deletes gangs without any; called after records were read."""
        for job_id in [job_id for job_id in self.of if job_id not in running]:
            self.strike(job_id)

    def carousel(self, gang: Gang, closed: frozenset[int]) -> Carousel:
        """Returns the record as live objects, to read or to copy. Derived; the two most recent ones are kept."""
        for known, shut, carousel in self._carousels:
            if known is gang and shut == closed:
                return carousel
        carousel = Carousel(gang, closed)
        self.remember(gang, closed, carousel)
        return carousel

    def remember(self, gang: Gang, closed: frozenset[int], carousel: Carousel) -> None:
        """Caches the carousel of this record; it must not change from now on."""
        self._carousels = [*self._carousels[-1:], (gang, closed, carousel)]

    def given(self, gang: Gang, slot: int) -> Mapping[int, int]:
        """Returns job -> slots that the record gives it from its first slot to this one. Cost: O(nodes of the tree) per record and slot."""
        if self._given is None or self._given[0] is not gang or self._given[1] != slot:
            carousel = Carousel(gang)  # a cached one may count from an earlier record
            carousel.advance_to(slot)
            self._given = gang, slot, carousel.given()
        return self._given[2]

    def enter(self, pool: UnitPool | NodePool, run: Running) -> None:
        """Records that a job of a gang runs, and takes nodes that no gang had."""
        for node in nodes_of(run.placement):
            count = self._owned.get(node, 0)
            if not count:
                pool.take(OWNER, ((node, node, 1),))
            self._owned[node] = count + 1

    def leave(self, pool: UnitPool | NodePool, run: Running) -> None:
        """Records that the job no longer runs and is no longer a member; gives back the nodes on which it was the last of a gang."""
        for node in nodes_of(run.placement):
            self._owned[node] -= 1
            if not self._owned[node]:
                del self._owned[node]
                pool.give(OWNER, ((node, node, 1),))
        self.strike(run.job.id)

    def strike(self, job_id: int) -> None:
        """Removes the job as a member; the record keeps it until it is next set, and is deleted with its last member."""
        name = self.of.pop(job_id, None)
        if name is not None and name not in self.of.values():
            del self.by_name[name]

    def vacate(self) -> None:
        """Forgets the taken nodes: the pool is a new one of which nothing is taken yet."""
        self._owned.clear()


def memory_on(job: Job, node: Node, count: int, share: int) -> int:
    """Returns the bytes that `count` processes of the job use on the node: their request, or `share_of_memory` if they have none."""
    if job.memory_bytes or not share:
        return count * job.memory_bytes
    return share_of_memory(node.memory_bytes, node.cores, node.cores if job.exclusive else count * job.threads, share)


def share_of_memory(memory_bytes: int, cores: int, used: int, share: int) -> int:
    """Returns the memory counted for a job without a request on `used` cores of a node: 1/share (`Gang.memory_share`) of their part.

    Thus jobs without a request have memory wherever they have cores.
    """
    return memory_bytes * used // (cores * share)


# -- slots of one node: every reader of the record computes the same ones, however late -----------------------------------------


class SlotRow(NamedTuple):
    """One slot. parts: names (`run_label`) of the attempts that have cores of this node in the slot beginning at start_us of gang time."""

    start_us: int
    parts: tuple[str, ...]


class Timetable:
    """The slots of one node by one generation of a record. Cost: O(nodes of the tree) to build, O(front) a slot."""

    def __init__(self, record: GangRecord, node: str) -> None:
        """Raises: ValueError for a record that is not a tree."""
        self.record = record
        self._carousel = Carousel(numbered(record))
        self.names = {run_label(*task_of(job), attempt): job for job, attempt, _ in record.attempts}  #: attempt name -> scheduler's job id
        self._named = {job: name for name, job in self.names.items()}
        self._low = self._high = 0  # the range of this node's leaves
        for name, cores in record.leaves:
            if name == node:
                self._high = self._low + cores
                break
            self._low += cores
        if not self._high:
            self._low = 0
        self._here: dict[int, bool] = {}  # tree node -> whether it has leaves of this node
        self.slot = record.slot  #: the next slot to compute

    def start_us(self, slot: int) -> int:
        """Returns when the slot begins, in gang time."""
        return self.record.origin_us + slot * self.record.slot_us

    def skip_to(self, slot: int) -> None:
        """Skips the rows before this slot; a caller need not step through all slots since the record was set."""
        self.slot = max(self.slot, slot)

    @property
    def tree(self) -> Tree:
        """The tree over the gang's cores."""
        return self._carousel.tree

    @property
    def rotation(self) -> Rotation:
        """Queues and front at the next slot, read only."""
        self._carousel.advance_to(self.slot)
        return self._carousel.rotation

    @property
    def round_slots(self) -> int:
        """Number of slots in a round of the whole tree; each job has at least one of them."""
        return self._carousel.rotation.rounds[0]

    def row(self) -> Row:
        """Returns (tree node, job) of the next slot, for all nodes."""
        return self.rotation.row()

    def next(self) -> SlotRow:
        """Returns the next slot on this node and moves on."""
        there = [self._named[job] for node, job in self.row() if self._is_here(node) and job in self._named]
        found = SlotRow(self.start_us(self.slot), tuple(there))
        self.slot += 1
        return found

    def cores_of(self, part: str) -> tuple[int, int] | None:
        """Returns (first core, number of cores) on this node of the part's tree node; None if the record does not have the part here."""
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
    """Returns the scheduler's form of the record, with nodes numbered from the left and no partition."""
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
