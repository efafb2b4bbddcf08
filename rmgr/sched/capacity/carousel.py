"""A gang's record as live objects: the tree, its front, what each queue holds; made from a record, moved on, and made a record again."""

from __future__ import annotations

from collections.abc import Mapping

from rmgr.sched.capacity.holds import each_node, room
from rmgr.sched.job import Job, Node, Placement, Running, spans_of
from rmgr.sched.records import Cores, Gang
from rmgr.sched.tree.allocation import Loads
from rmgr.sched.tree.queue import Newcomers, RunQueue
from rmgr.sched.tree.rotation import Rotation
from rmgr.sched.tree.shape import MOST_LEAVES, Tree

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
