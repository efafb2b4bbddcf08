"""Free cores, memory and other resources of a partition of any nodes: per node, with counts per shape of process that follow every change.

Asking whether a job fits costs O(nodes changed since a job of its shape asked), so a pass over a long queue does not look at nodes again
for each job. Placing costs O(nodes looked at), beginning at the first node where that shape fits.

Jobs may ask for any number of bytes, so there may be as many shapes as jobs. `EXACT` shapes are counted exactly; the others share the
counts of a shape that needs a little less memory. A job that does not fit by those counts does not fit; otherwise the nodes where the
shared shape fits are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from rmgr.sched.job import PLAIN, Job, Node, Placement, Resources, Shape, Span, spans_of
from rmgr.sched.records import Cores

if TYPE_CHECKING:
    from rmgr.sched.capacity.horizon import Horizon

#: Shapes counted exactly; more share rounded counts. 10,000 jobs of 100,000 memory sizes on 1,000 nodes: a first pass of 15 ms, not 3.5 s.
EXACT = 32
#: Leading bits kept of the memory size by which the other shapes are counted.
BITS = 3
#: Shapes for which the number of processes that fit on the empty machine is cached.
MOST_SHAPES = 10_000
#: Counts of all shapes together (8 bytes each); beyond it they are counted anew.
MOST_COUNTS = 16_000_000
#: Shapes counted in a clone at once, because a timeline has thousands of clones.
MOST_OF_CLONE = 4


@dataclass(slots=True)
class _Fit:
    """How many processes of one shape fit on each node, as of entry `at` of the log of changes."""

    shape: Shape
    counts: list[int]
    total: int
    at: int
    low: int = 0  #: no node before this one has room


class NodePool:
    """The nodes' free capacity; `take` then `give` restores it exactly. Positions number the nodes in ascending order of id."""

    __slots__ = ("_at", "_fits", "_ids", "_kinds", "_log", "_most", "_nodes", "_possible", "cores", "memory", "others")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = sorted(nodes, key=_id)
        self._ids = [node.id for node in self._nodes]
        self._at = {node: i for i, node in enumerate(self._ids)}
        self._fits: dict[Shape, _Fit] = {}
        self._most = MOST_COUNTS // max(len(self._nodes), 1) + 1  # number of shapes
        self._possible: dict[Shape, int] = {}
        kinds: dict[object, list[Node]] = {}
        for node in self._nodes:
            kinds.setdefault((node.cores, node.memory_bytes, node.features, node.resources), []).append(node)
        self._kinds = [(same[0], len(same)) for same in kinds.values()]
        self._log: list[int] = []  #: positions of changed nodes, oldest first
        self.cores = [node.cores for node in self._nodes]  #: free cores, also of closed nodes
        self.memory = [node.memory_bytes for node in self._nodes]
        #: resource name -> free count on each node, for names that some node has
        self.others: dict[str, list[int]] = {name: [0] * len(self._nodes) for node in self._nodes for name, _ in node.resources}
        for i, node in enumerate(self._nodes):
            for name, count in node.resources:
                self.others[name][i] = count

    def clone(self) -> NodePool:
        """Returns an independent copy: the same nodes with the same free capacity. Cost: O(nodes)."""
        other = NodePool.__new__(NodePool)
        other._nodes, other._ids, other._at, other._possible = self._nodes, self._ids, self._at, self._possible  # noqa: SLF001 - its own class
        other._kinds = self._kinds  # noqa: SLF001 - its own class
        other._fits, other._log, other._most = {}, [], MOST_OF_CLONE  # noqa: SLF001 - its own class
        other.cores, other.memory = self.cores.copy(), self.memory.copy()
        other.others = {name: free.copy() for name, free in self.others.items()} if self.others else self.others
        return other

    @property
    def free(self) -> int:
        """Free cores of open nodes."""
        return self._fit(PLAIN).total

    def free_of(self, name: str) -> int:
        """Returns how many of a resource are free on open nodes. Cost: O(nodes)."""
        free = self.others.get(name, ())
        return sum(max(count, 0) for count, node in zip(free, self._nodes, strict=False) if not node.closed)

    def feasible(self, job: Job) -> bool:
        """Whether the job could run if the partition were empty and open."""
        possible = self._possible.get(job.shape)
        if possible is None:
            if len(self._possible) > MOST_SHAPES:
                self._possible.clear()
            possible = sum(count * room_if_empty(job.shape, node) for node, count in self._kinds)
            self._possible[job.shape] = possible
        return job.processes <= possible

    def fits(self, job: Job) -> bool:
        """Whether the job could start now."""
        fit = self._fit(job.shape)
        return job.processes <= fit.total and (fit.shape == job.shape or self._fits_nodes(job, fit))

    def startable(self, jobs: Iterable[Job], horizon: Horizon | None) -> Iterator[Job]:
        """Yields the `jobs` that fit now and keep every promise, each judged when it is reached; stops when no core is free."""
        if not self.free:
            return
        counted: Shape | None = None  # shape that `fit` counts: nothing changes until a job is yielded
        for job in jobs:
            shape = job.shape
            if shape is not counted and shape != counted:
                fit, counted = self._fit(shape), shape
            if job.processes > fit.total:  # same test as `fits`, one call per job cheaper
                continue
            if fit.shape is not shape and fit.shape != shape and not self._fits_nodes(job, fit):
                continue
            if horizon is None or horizon.admits(job):
                yield job
                if not self.free:
                    return
                counted = None

    def pick(self, job: Job) -> Placement | None:
        """Returns the free nodes of lowest id, with as many processes on each as fit; None if the job does not fit."""
        fit = self._fit(job.shape)
        if job.processes > fit.total or (fit.shape != job.shape and not self._fits_nodes(job, fit)):
            return None
        while not fit.counts[fit.low]:
            fit.low += 1
        return self.lowest(job, fit.counts, fit.low, exact=fit.shape == job.shape)

    def claim(self, job: Job) -> Placement | None:
        """Picks and takes in one step."""
        placement = self.pick(job)
        if placement is not None:
            self.take(job, placement)
        return placement

    def rooms(self, job: Job) -> list[int]:
        """Returns how many of the job's processes fit on each node now; read only. Cost: O(nodes changed since last asked)."""
        return self._counts(job.shape, self._fit(job.shape))

    def lowest(self, job: Job, counts: list[int], low: int, *, exact: bool) -> Placement:
        ids, shape, wanted = self._ids, job.shape, job.processes
        spans: list[Span] = []
        first = last = processes = -1
        for i in range(low, len(counts)):
            count = counts[i]
            if count and not exact:
                count = room_on(shape, self._nodes[i], self.cores[i], self.memory[i])
                if shape.resources:
                    count = room_beside(count, shape.resources, self.others, i)
            if not count:
                continue
            count = min(count, wanted)
            if count == processes and ids[i] == last + 1:
                last = ids[i]
            else:
                if processes > 0:
                    spans.append((first, last, processes))
                first = last = ids[i]
                processes = count
            wanted -= count
            if not wanted:
                break
        spans.append((first, last, processes))
        return tuple(spans)

    def pick_sparing(self, job: Job, other: NodePool) -> Placement | None:
        """As `pick`, but prefers nodes where `other` has no room for this shape, which leaves shared room to other jobs. Cost: O(nodes)."""
        if not self.fits(job):
            return None
        shape, wanted = job.shape, job.processes
        counts, spared = self._counts(shape, self._fit(shape)), other._counts(shape, other._fit(shape))
        chosen: list[tuple[int, int]] = []  # (position, processes)
        for spare in (False, True):
            for i, room in enumerate(counts):
                if room and bool(spared[i]) is spare:
                    chosen.append((i, min(room, wanted)))
                    wanted -= chosen[-1][1]
                    if not wanted:
                        return self.spans(sorted(chosen))
        raise AssertionError("the counts of a shape do not add up to its total")

    def spans(self, chosen: Iterable[tuple[int, int]]) -> Placement:
        """Returns (position, processes), ascending, as a placement."""
        ids = self._ids
        return spans_of((ids[i], processes) for i, processes in chosen)

    def holds(self, job: Job, placement: Placement, rooms: list[int] | None = None) -> bool:
        """Whether these nodes exist, have room (now, or as `rooms` says) and take all processes: checks a placement made elsewhere."""
        counts = self.rooms(job) if rooms is None else rooms
        total, after = 0, -1
        for first, last, processes in placement:
            if first <= after or last < first or processes < 1:
                return False
            for node in range(first, last + 1):
                i = self._at.get(node)
                if i is None or counts[i] < processes:
                    return False
            total, after = total + processes * (last - first + 1), last
        return total == job.processes

    def take(self, job: Job, placement: Placement) -> None:
        """Takes what the job needs on these nodes."""
        self.change(job, placement, -1)

    def give(self, job: Job, placement: Placement) -> None:
        """Gives back what the job needs on these nodes."""
        self.change(job, placement, 1)

    def returns(self, job: Job, _placement: Placement) -> int:
        """Returns the cores that come back when the job ends."""
        return job.cpus

    def set_closed(self, node: Node, *, taken: bool) -> None:  # noqa: ARG002 - - what runs there is counted anyway
        """Closes or opens the node. Cost: O(1)."""
        i = self._at[node.id]
        self._nodes[i] = node
        self._log.append(i)

    def take_share(self, job: Job, cores: Cores) -> None:
        """Holds these cores for the job, with its memory and resources for as many threads.

        If the nodes have less, the free counts go negative until others end.
        """
        self._change_cores(job, cores, -1)

    def give_share(self, job: Job, cores: Cores) -> None:
        """Gives a held share back."""
        self._change_cores(job, cores, 1)

    def park(self, job: Job, placement: Placement) -> None:
        """Takes a stopped job's memory and other resources on these nodes, but not its cores."""
        self._change_memory(job, placement, -1)

    def unpark(self, job: Job, placement: Placement) -> None:
        """Gives a parked job's memory and other resources back."""
        self._change_memory(job, placement, 1)

    def can_resume(self, job: Job, placement: Placement) -> bool:
        """Whether the suspended job's cores are free, on open nodes."""
        for first, last, processes in placement:
            for node in range(first, last + 1):
                i = self._at[node]
                wanted = self._nodes[i].cores if job.exclusive else processes * job.threads
                if self._nodes[i].closed or self.cores[i] < wanted:
                    return False
        return True

    @property
    def idle_nodes(self) -> int:
        """Number of open nodes with every core free."""
        return sum(not node.closed and cores == node.cores for cores, node in zip(self.cores, self._nodes, strict=True))

    @property
    def overdrawn(self) -> bool:
        """Whether more is taken of some node than it has, so that the plan cannot be kept."""
        if min(self.cores, default=0) < 0 or any(min(free) < 0 for free in self.others.values()):
            return True
        return any(m < 0 and n.memory_bytes for m, n in zip(self.memory, self._nodes, strict=True))

    def lower(self, other: NodePool, positions: Iterable[int] | None = None) -> None:
        """Lowers free capacity to that of `other` where that is less, on every node or at these positions."""
        if positions is None:  # whole lists at once
            self.cores = list(map(min, self.cores, other.cores))
            self.memory = list(map(min, self.memory, other.memory))
            self.others = {name: list(map(min, free, other.others[name])) for name, free in self.others.items()}
            self._fits.clear()
            self._log.clear()
            return
        for i in positions:
            self.cores[i] = min(self.cores[i], other.cores[i])
            self.memory[i] = min(self.memory[i], other.memory[i])
            for name, free in self.others.items():
                free[i] = min(free[i], other.others[name][i])
            self._log.append(i)

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by position."""
        return self._nodes

    def changed(self) -> list[int]:
        """Returns the positions changed since the last call, and forgets all counts."""
        log, self._log = self._log, []
        self._fits.clear()
        return log

    def positions(self, placement: Placement) -> list[int]:
        """Returns the positions of the placement's nodes."""
        return [self._at[node] for first, last, _ in placement for node in range(first, last + 1)]

    def change(self, job: Job, placement: Placement, sign: int) -> None:
        threads, memory_bytes, special, exclusive, _ = job.shape
        log = self._log
        if len(log) > 8 * len(self._ids) + 1000:
            log.clear()
            self._fits.clear()
        for first, last, processes in placement:
            for node in range(first, last + 1):
                i = self._at[node]
                self.cores[i] += sign * (self._nodes[i].cores if exclusive else threads * processes)
                self.memory[i] += sign * (self._nodes[i].memory_bytes if exclusive else memory_bytes * processes)
                log.append(i)
        if special is not None and special.resources:
            self._change_others(job.resources, placement, sign)

    def _change_cores(self, job: Job, cores: Cores, sign: int) -> None:
        for first, last, count in cores:
            for node in range(first, last + 1):
                i = self._at[node]
                self.cores[i] += sign * count
                self.memory[i] += sign * -(-count * job.memory_bytes // job.threads)
                self._log.append(i)
            if job.resources:
                share = tuple((name, -(-count * number // job.threads)) for name, number in job.resources)
                self._change_others(share, ((first, last, 1),), sign)

    def _change_memory(self, job: Job, placement: Placement, sign: int) -> None:
        for first, last, processes in placement:
            for node in range(first, last + 1):
                i = self._at[node]
                self.memory[i] += sign * (self._nodes[i].memory_bytes if job.exclusive else processes * job.memory_bytes)
                self._log.append(i)
        if job.resources:
            self._change_others(job.resources, placement, sign)

    def _change_others(self, resources: Resources, placement: Placement, sign: int) -> None:
        for name, count in resources:
            free = self.others.get(name)
            if free is None:
                continue
            for first, last, processes in placement:
                for node in range(first, last + 1):
                    free[self._at[node]] += sign * processes * count

    def _fit(self, shape: Shape) -> _Fit:
        """Returns the counts of this shape or, if there are too many shapes, of one that fits wherever this one does."""
        fit = self._fits.get(shape)
        if fit is None:
            if len(self._fits) >= EXACT and shape.memory_bytes:
                shape = rough(shape)
                fit = self._fits.get(shape)
            if fit is None:
                return self._counted(shape)
        log = self._log
        if fit.at == len(log):
            return fit
        if len(log) - fit.at > len(self._nodes):
            return self._counted(shape)
        counts, cores, memory, nodes, special = fit.counts, self.cores, self.memory, self._nodes, shape.special
        for i in log[fit.at :]:
            count = 0 if nodes[i].closed else room_on(shape, nodes[i], cores[i], memory[i])
            if special is not None:
                count = room_beside(count, special.resources, self.others, i)
            fit.total += count - counts[i]
            counts[i] = count
            if count and i < fit.low:
                fit.low = i
        fit.at = len(log)
        return fit

    def _counted(self, shape: Shape) -> _Fit:
        nodes, memory, threads = self._nodes, self.memory, shape.threads
        if len(self._fits) >= self._most:
            self._fits.clear()
        counts = [0] * len(nodes)
        for i, cores in enumerate(self.cores):
            if cores >= threads and not nodes[i].closed:
                counts[i] = room_on(shape, nodes[i], cores, memory[i])
        if shape.resources:
            counts = [room_beside(count, shape.resources, self.others, i) if count else 0 for i, count in enumerate(counts)]
        fit = self._fits[shape] = _Fit(shape, counts, sum(counts), len(self._log))
        return fit

    def _fits_nodes(self, job: Job, fit: _Fit) -> bool:
        """Checks the job on the nodes where the rougher shape, whose counts these are, fits."""
        wanted, shape, nodes, cores, memory, resources = job.processes, job.shape, self._nodes, self.cores, self.memory, job.resources
        for i in compress(range(len(nodes)), fit.counts):
            count = room_on(shape, nodes[i], cores[i], memory[i])
            wanted -= room_beside(count, resources, self.others, i) if resources else count
            if wanted <= 0:
                return True
        return False

    def _counts(self, shape: Shape, fit: _Fit) -> list[int]:
        """Returns the processes of this shape that fit on each node."""
        if fit.shape == shape:
            return fit.counts
        nodes, cores, memory, resources = self._nodes, self.cores, self.memory, shape.resources
        counts = [room_on(shape, nodes[i], cores[i], memory[i]) if count else 0 for i, count in enumerate(fit.counts)]
        return [room_beside(count, resources, self.others, i) for i, count in enumerate(counts)] if resources else counts


def rough(shape: Shape) -> Shape:
    """Returns the shape with its memory rounded down to one of few values."""
    below = max(shape.memory_bytes.bit_length() - BITS, 0)
    return shape._replace(memory_bytes=shape.memory_bytes >> below << below)


def room_on(shape: Shape, node: Node, cores: int, memory: int) -> int:
    """Returns how many processes of this shape fit on so many free cores and bytes of the node; see `room_beside` for other resources."""
    threads, memory_bytes, special, exclusive, spread = shape
    if exclusive and cores != node.cores:
        return 0
    if special is not None and not set(special.features) <= set(node.features):
        return 0
    count = cores // threads
    if memory_bytes and node.memory_bytes:
        count = min(count, memory // memory_bytes)
    return max(min(count, 1) if spread else count, 0)


def room_beside(count: int, resources: Resources, others: Mapping[str, Sequence[int]], at: int = 0) -> int:
    """Returns how many of `count` processes the resources in `others`, at index `at`, suffice for."""
    for name, number in resources:
        count = min(count, others[name][at] // number) if name in others else 0
    return max(count, 0)


def room_if_empty(shape: Shape, node: Node) -> int:
    """Returns how many processes of this shape fit on the empty node."""
    count = room_on(shape, node, node.cores, node.memory_bytes)
    return room_beside(count, shape.resources, {name: (has,) for name, has in node.resources})


def _id(node: Node) -> int:
    return node.id
