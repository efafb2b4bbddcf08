"""Any nodes of a partition: free cores, memory and other resources now, and what promises leave free (for counted nodes: `units.py`).

The pool has free capacity per node, with counts per shape of process that follow every change. Asking whether a job fits costs O(nodes
changed since a job of its shape asked), so a pass over a long queue does not look at nodes again for each job. Placing costs O(nodes looked
at), beginning at the first node where that shape fits.

Jobs may ask for any number of bytes, so there may be as many shapes as jobs. `EXACT` shapes are counted exactly; the others share the
counts of a shape that needs a little less memory. A job that does not fit by those counts does not fit; otherwise the nodes where the
shared shape fits are looked at.

A horizon says what promises leave free, at one shadow time or at every step of a timeline. A timeline keeps a profile of each node and,
for each shape of process asked about, an index of gaps: over all nodes, sorted by start, classed by length. For a job it walks the gaps at
least as long as the job's limit, in order of time, until as many processes fit at once as the job has. Few of these gaps begin before the
answer, because free intervals between promises are short. A question costs O(gaps of that length before the answer).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from itertools import compress
from operator import attrgetter, itemgetter
from typing import Protocol, TypeAlias

from rmgr.sched.job import PLAIN, Job, Node, Placement, Resources, Shape, Span, room_beside, room_if_empty, room_on, spans_of
from rmgr.sched.records import Cores

#: (time at which the run's limit ends it, job id, units of the pool that come back then)
Ending: TypeAlias = tuple[int, int, int]
#: A window of maintenance: (start, a job of whole nodes that occupies the window, its placement).
Closing: TypeAlias = tuple[int, Job, Placement]


class Horizon(Protocol):
    """Answers whether a job may start now and run for its whole limit without breaking a promise; records starts."""

    def admits(self, job: Job) -> bool:
        """Whether the job may start on the nodes that `place` would choose. The job must fit now, promises aside."""
        ...

    def place(self, job: Job) -> Placement | None:
        """Returns the free nodes of lowest id on which the job may start, or None."""
        ...

    def allows(self, job: Job, placement: Placement) -> bool:
        """Whether the job may start on these nodes, which are free now."""
        ...

    def started(self, job: Job, placement: Placement) -> None:
        """Records that the job has started; the pool has already taken its nodes."""
        ...


class Timeline(Horizon, Protocol):
    """A horizon of many promises."""

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """Returns when and where the job can be promised a start, or None if unknown. Where nodes are counted, the placement is `()`."""
        ...

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Promises the earliest start, not counting the job's old promise. None: the old promise is withdrawn and no start is known."""
        ...

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        """Promises the job these nodes from `at_us` on, for its limit."""
        ...

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        """Takes the promise back."""
        ...

    @property
    def overdrawn(self) -> bool:
        """Whether more is promised than exists."""
        ...


# -- what is free now ----------------------------------------------------------------------------------------------------------

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
        self._nodes = sorted(nodes, key=attrgetter("id"))
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
            possible = sum(count * room_if_empty(job.shape, node, node.cores) for node, count in self._kinds)
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


# -- what promises leave free --------------------------------------------------------------------------------------------------

#: Gives a pool of nodes what comes back at the end of this job: all that it has, less what is promised out of it.
GiveBack: TypeAlias = Callable[[NodePool, int], None]
#: Shapes with an index of gaps of their own; more share the index of one that needs a little less memory, and look at nodes.
INDEXED = 8
#: (start, position of the node, end, processes)
_Entry = tuple[int, int, int, int]
#: In a class the longest gap is 4 times the shortest. The first class holds all gaps up to two minutes, the last all from half a year on.
_SHORTEST, _CLASSES = 13, 11
#: (start, end, processes): how many more processes fit than in the gaps around it.
Gap = tuple[int, int, int]
#: Later than any time.
_NEVER = 1 << 100


class NodeShadow:
    """One promise of certain nodes at `at_us`. A job that outlives that time must fit into what is free both now and then."""

    __slots__ = ("_lasting", "_later", "_now", "_pool", "at_us", "placement")

    def __init__(self, pool: NodePool, later: NodePool, now_us: int, at_us: int, placement: Placement) -> None:
        self._pool, self._later, self._now = pool, later, now_us
        self.at_us, self.placement = at_us, placement
        self._lasting = later.clone()
        self._lasting.lower(pool)

    @classmethod
    def of(cls, job: Job, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> NodeShadow | None:
        """Promises the earliest time at which `job` fits if every run uses its limit; None if it never does. An overdue run ends "soon"."""
        later, at_us = pool.clone(), now_us
        for end_us, job_id, _ in endings:
            end = max(end_us, now_us + 1)
            if end > at_us:
                if later.fits(job):
                    break
                at_us = end
            give_back(later, job_id)
        placement = later.pick_sparing(job, pool)
        if placement is None:
            return None
        later.take(job, placement)
        return cls(pool, later, now_us, at_us, placement)

    def admits(self, job: Job) -> bool:
        return self._ends_before(job) or self._lasting.fits(job)

    def place(self, job: Job) -> Placement | None:
        return self._pool.pick_sparing(job, self._lasting) if self._ends_before(job) else self._lasting.pick(job)

    def allows(self, job: Job, placement: Placement) -> bool:
        return self._ends_before(job) or self._lasting.holds(job, placement)

    def started(self, job: Job, placement: Placement) -> None:
        positions = self._pool.positions(placement)
        if not self._ends_before(job):
            self._later.take(job, placement)
            self._lasting.lower(self._later, positions)
        self._lasting.lower(self._pool, positions)

    def _ends_before(self, job: Job) -> bool:
        return self._now + job.planned_us <= self.at_us


class NodeWindows:
    """Windows of maintenance without promises: a job that starts now must leave its nodes before they close."""

    __slots__ = ("_lasting", "_now", "_pool", "_starts")

    def __init__(self, pool: NodePool, now_us: int, windows: Iterable[Closing]) -> None:
        """windows: (start, job of whole nodes that occupies the window, its placement). Cost: O(nodes) for each distinct start."""
        self._pool, self._now = pool, now_us
        self._starts: list[int] = []
        self._lasting: list[NodePool] = []  #: capacity for a job that ends after the start at this index
        for start_us, job, nodes in sorted(windows, key=itemgetter(0)):
            if not self._starts or start_us > self._starts[-1]:
                self._starts.append(start_us)
                self._lasting.append((self._lasting[-1] if self._lasting else pool).clone())
            self._lasting[-1].take(job, nodes)

    def admits(self, job: Job) -> bool:
        return self._left_for(job).fits(job)

    def place(self, job: Job) -> Placement | None:
        return self._left_for(job).pick(job)

    def allows(self, job: Job, placement: Placement) -> bool:
        return self._left_for(job).holds(job, placement)

    def started(self, job: Job, placement: Placement) -> None:
        for pool in self._lasting:
            pool.take(job, placement)

    def _left_for(self, job: Job) -> NodePool:
        i = bisect_left(self._starts, self._now + job.planned_us)
        return self._lasting[i - 1] if i else self._pool


class NodeTimeline:
    """Free capacity of each node as steps in time, with an index of gaps for each shape asked about. Space: O(steps of all nodes)."""

    __slots__ = ("_indexes", "_log", "_now", "_pool", "_profiles")

    def __init__(self, now_us: int, pool: NodePool, endings: Sequence[Ending], give_back: GiveBack) -> None:
        self._now, self._pool = now_us, pool
        self._indexes: dict[Shape, GapIndex] = {}
        self._log: list[int] = []  #: positions of changed nodes, oldest first
        later = pool.clone()
        self._profiles = [NodeProfile(now_us, cores, memory) for cores, memory in zip(later.cores, later.memory, strict=True)]
        if later.others:
            for i, profile in enumerate(self._profiles):
                profile.others = {name: [free[i]] for name, free in later.others.items()}
        for end_us, job_id, _ in endings:
            give_back(later, job_id)
            at = max(end_us, now_us + 1)
            for i in later.changed():
                others = {name: free[i] for name, free in later.others.items()} if later.others else None
                self._profiles[i].append(at, later.cores[i], later.memory[i], others)

    def admits(self, job: Job) -> bool:
        return self._now_open(job) is not None

    def place(self, job: Job) -> Placement | None:
        room = self._now_open(job)
        return None if room is None else self._pool.spans(pick(room, job))

    def allows(self, job: Job, placement: Placement) -> bool:
        """Cost: O(nodes of the placement)."""
        if not self._pool.holds(job, placement):
            return False
        end_us = self._now + job.planned_us
        for first, last, processes in placement:
            for i in self._pool.positions(((first, last, processes),)):
                if self._room(i, self._profiles[i], job, self._now, end_us) < processes:
                    return False
        return True

    def started(self, job: Job, placement: Placement) -> None:
        self.promise(job, self._now, placement)

    def earliest(self, job: Job) -> tuple[int, Placement] | None:
        """Cost: O(gaps as long as the job's limit that begin before the answer)."""
        return self._earliest(job, {})

    def move(self, job: Job, old: tuple[int, Placement] | None) -> tuple[int, Placement] | None:
        """Cost: as `earliest`, which is asked without the old promise. Changes nothing if there is no better start."""
        if old is None:
            found = self.earliest(job)
        else:
            other = {i: self._profiles[i].copy() for i in self._pool.positions(old[1])}
            self._add(job, *old, 1, other)
            found = self._earliest(job, other)
            if found == old:
                return found
            self.withdraw(job, *old)
        if found is not None:
            self.promise(job, *found)
        return found

    def promise(self, job: Job, at_us: int, placement: Placement) -> None:
        self._add(job, at_us, placement, -1, self._profiles)
        self._log += self._pool.positions(placement)

    def withdraw(self, job: Job, at_us: int, placement: Placement) -> None:
        self._add(job, at_us, placement, 1, self._profiles)
        self._log += self._pool.positions(placement)

    @property
    def overdrawn(self) -> bool:
        for profile, node in zip(self._profiles, self._pool.nodes, strict=True):
            if min(profile.cores) < 0 or (node.memory_bytes and min(profile.memory) < 0):
                return True
            if profile.others and any(min(free) < 0 for free in profile.others.values()):
                return True
        return False

    def _add(self, job: Job, at_us: int, placement: Placement, sign: int, profiles: Sequence[NodeProfile] | dict[int, NodeProfile]) -> None:
        start_us, end_us = max(at_us, self._now), max(at_us + job.planned_us, self._now)
        threads, memory_bytes, special, exclusive, _ = job.shape
        for first, last, processes in placement:
            cores, memory = sign * threads * processes, sign * memory_bytes * processes
            for i in self._pool.positions(((first, last, processes),)):
                if exclusive:
                    node = self._pool.nodes[i]
                    cores, memory = sign * node.cores, sign * node.memory_bytes
                profiles[i].add(start_us, end_us, cores, memory)
                if special is not None:
                    profiles[i].add_others(start_us, end_us, special.resources, sign * processes)

    def _earliest(self, job: Job, other: dict[int, NodeProfile]) -> tuple[int, Placement] | None:
        found = self._index(job.shape).opening(job, self._profiles, other)
        return None if found is None else (found[0], self._pool.spans(pick(found[1], job)))

    def _now_open(self, job: Job) -> Mapping[int, int] | None:
        """Returns node position -> processes that fit from now on for the job's limit, or None if they do not suffice."""
        index, wanted = self._index(job.shape), job.processes
        room = index.open_at(self._now, job.planned_us)
        if index.shape != job.shape and sum(room.values()) >= wanted:  # enough room for a rougher shape
            end_us = self._now + job.planned_us
            room = {i: self._room(i, self._profiles[i], job, self._now, end_us) for i in room}
        return room if sum(room.values()) >= wanted else None

    def _room(self, i: int, profile: NodeProfile, job: Job, at_us: int, end_us: int) -> int:
        node = self._pool.nodes[i]
        if node.closed:
            return 0
        room = room_on(job.shape, node, *profile.lowest(at_us, end_us))
        return room_beside(room, job.resources, profile.lowest_others(at_us, end_us)) if job.resources and room else room

    def _index(self, shape: Shape) -> GapIndex:
        index = self._indexes.get(shape)
        if index is None:
            if len(self._indexes) >= INDEXED and shape.memory_bytes:
                shape = rough(shape)
                index = self._indexes.get(shape)
            if index is None:
                index = self._indexes[shape] = GapIndex(shape, self._pool.nodes, self._profiles, len(self._log))
                return index
        if index.at < len(self._log):
            index.update(dict.fromkeys(self._log[index.at :]), self._profiles)
            index.at = len(self._log)
        return index


class GapIndex:
    """The gaps of one shape on every node of a partition."""

    __slots__ = ("_classes", "_gaps", "_nodes", "at", "shape")

    def __init__(self, shape: Shape, nodes: Sequence[Node], profiles: Sequence[NodeProfile], at: int) -> None:
        self.shape, self._nodes = shape, nodes
        self.at = at  #: number of log entries it takes into account
        self._classes: list[list[_Entry]] = [[] for _ in range(_CLASSES)]
        self._gaps: list[list[Gap]] = []  #: by position
        for i, profile in enumerate(profiles):
            gaps = profile.gaps(shape, nodes[i])
            self._gaps.append(gaps)
            for since, until, processes in gaps:
                self._classes[_class_of(until - since)].append((since, i, until, processes))
        for entries in self._classes:
            entries.sort()

    def update(self, positions: Iterable[int], profiles: Sequence[NodeProfile]) -> None:
        """Computes the gaps of these changed nodes again."""
        for i in positions:
            old, new = self._gaps[i], profiles[i].gaps(self.shape, self._nodes[i])
            self._gaps[i] = new
            for gap in old:
                if gap not in new:
                    since, until, processes = gap
                    entries = self._classes[_class_of(until - since)]
                    del entries[bisect_left(entries, (since, i, until, processes))]
            for gap in new:
                if gap not in old:
                    since, until, processes = gap
                    insort(self._classes[_class_of(until - since)], (since, i, until, processes))

    def opening(self, job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]) -> tuple[int, Mapping[int, int]] | None:
        """Returns the first time from which enough processes fit for the job's limit, with node position -> processes; None if there is
        none.

        Args: profiles: what was indexed; the job's shape needs no less than the indexed one. other: profiles that replace some nodes', by
        position.
        """
        length_us, wanted = job.planned_us, job.processes
        now_us, count = -1, 0
        room: dict[int, int] = {}
        closing: list[tuple[int, int, int]] = []  # (last start, position, processes), a heap
        for since, i, until, processes in self._from(job, profiles, other):
            last = until - length_us
            if last < since:
                continue
            if since > now_us:
                if count >= wanted:
                    break
                now_us = since
                while closing and closing[0][0] < since:
                    _, gone, less = heappop(closing)
                    count -= less
                    room[gone] -= less
            heappush(closing, (last, i, processes))
            count += processes
            room[i] = room.get(i, 0) + processes
        return (now_us, room) if count >= wanted else None

    def open_at(self, first_us: int, length_us: int) -> dict[int, int]:
        """Returns position -> processes that fit from the first step on for `length_us`. Cost: O(gaps open then)."""
        room: dict[int, int] = {}
        for entries in self._classes[_class_of(length_us) :]:
            for since, i, until, processes in entries:
                if since != first_us:
                    break
                if until - since >= length_us:
                    room[i] = room.get(i, 0) + processes
        return room

    def _from(self, job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]) -> Iterator[_Entry]:
        """Yields gaps of the job's shape, sorted by start; some may be too short for it."""
        classes = [entries for entries in self._classes[_class_of(job.planned_us) :] if entries]
        found = iter(classes[0]) if len(classes) == 1 else merge(*classes)
        if other:
            mine = [(since, i, until, n) for i, profile in other.items() for since, until, n in profile.gaps(self.shape, self._nodes[i])]
            mine.sort()
            found = merge((entry for entry in found if entry[1] not in other), mine)
        return found if job.shape == self.shape else self._finer(found, job, profiles, other)

    def _finer(
        self, rough: Iterator[_Entry], job: Job, profiles: Sequence[NodeProfile], other: Mapping[int, NodeProfile]
    ) -> Iterator[_Entry]:
        """Replaces rougher gaps by the job's own. Those lie within the rougher ones, so a node is looked at when its first one comes."""
        seen: set[int] = set()
        finer: list[_Entry] = []  # a heap
        for begin, i, end, _ in rough:
            while finer and finer[0][0] < begin:
                yield heappop(finer)
            if i not in seen and end - begin >= job.planned_us:
                seen.add(i)
                for since, until, processes in (other.get(i) or profiles[i]).gaps(job.shape, self._nodes[i]):
                    heappush(finer, (since, i, until, processes))
        yield from sorted(finer)


def pick(room: Mapping[int, int], job: Job) -> list[tuple[int, int]]:
    """Chooses from position -> processes that fit: the lowest positions, as many processes on each as fit."""
    chosen: list[tuple[int, int]] = []
    wanted = job.processes
    for i in sorted(room):
        count = min(room[i], wanted)
        if count:
            chosen.append((i, count))
            wanted -= count
            if not wanted:
                break
    return chosen


def _class_of(length_us: int) -> int:
    return min(max(length_us.bit_length() // 2 - _SHORTEST, 0), _CLASSES - 1)


class NodeProfile:
    """From `times[i]` until `times[i + 1]` (the last for ever), `cores[i]`, `memory[i]` and `others[name][i]` are free.

    A negative number is promised but does not exist.
    """

    __slots__ = ("cores", "memory", "others", "times")

    def __init__(self, now_us: int, cores: int, memory: int) -> None:
        self.times, self.cores, self.memory = [now_us], [cores], [memory]
        self.others: dict[str, list[int]] = {}

    def copy(self) -> NodeProfile:
        """Returns an independent copy."""
        other = NodeProfile.__new__(NodeProfile)
        other.times, other.cores, other.memory = self.times.copy(), self.cores.copy(), self.memory.copy()
        other.others = {name: free.copy() for name, free in self.others.items()} if self.others else self.others
        return other

    def append(self, at_us: int, cores: int, memory: int, others: Mapping[str, int] | None = None) -> None:
        """Sets what is free from `at_us` on, which is no earlier than the last step."""
        if self.times[-1] == at_us:
            self.cores[-1], self.memory[-1] = cores, memory
            for name in others or ():
                self.others[name].pop()
        else:
            self.times.append(at_us)
            self.cores.append(cores)
            self.memory.append(memory)
        if others:
            for name, free in others.items():
                self.others[name].append(free)

    def add(self, start_us: int, end_us: int, cores: int, memory: int) -> None:
        """Adds to what is free in the interval (negative numbers: less); times before the first step are ignored."""
        low = self._cut(start_us)
        for i in range(low, self._cut(end_us)):
            self.cores[i] += cores
            self.memory[i] += memory

    def add_others(self, start_us: int, end_us: int, resources: Resources, times: int) -> None:
        """As `add`, for `times` times these resources."""
        low = self._cut(start_us)
        high = self._cut(end_us)
        for name, count in resources:
            free = self.others.get(name)
            if free is not None:
                free[low:high] = [left + times * count for left in free[low:high]]

    def lowest_others(self, start_us: int, end_us: int) -> dict[str, tuple[int]]:
        """As `lowest`, for other resources: name -> (count,)."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return {name: (min(free[low:high]),) for name, free in self.others.items()}

    def lowest(self, start_us: int, end_us: int) -> tuple[int, int]:
        """Returns the least free cores and memory from `start_us`, which is no earlier than the first step, until `end_us`."""
        low, high = bisect_right(self.times, start_us) - 1, bisect_left(self.times, end_us)
        return min(self.cores[low:high]), min(self.memory[low:high])

    def gaps(self, shape: Shape, node: Node) -> list[Gap]:
        """Returns when processes of this shape fit, each for as long as possible; at any time the gaps open then add up to all that fit.

        Gaps of a node are nested or disjoint, so during an interval as many processes fit as the gaps that contain it have.
        """
        if node.closed:
            return []
        if shape is PLAIN:
            rooms = self.cores
        elif shape.special is not None:
            rooms = [room_on(shape, node, cores, memory) for cores, memory in zip(self.cores, self.memory, strict=True)]
            rooms = [room_beside(room, shape.resources, self.others, i) for i, room in enumerate(rooms)]
        else:
            rooms = [room_on(shape, node, cores, memory) for cores, memory in zip(self.cores, self.memory, strict=True)]
        found: list[Gap] = []
        if len(rooms) == 1:
            return [(self.times[0], _NEVER, rooms[0])] if rooms[0] > 0 else found
        heights, starts = [0], [0]  # of open gaps, the lowest first
        for at, room in zip(self.times, rooms, strict=True):
            since = at
            while heights[-1] > room and len(heights) > 1:
                since, height = starts.pop(), heights.pop()
                found.append((since, at, height - max(room, heights[-1])))
            if room > heights[-1]:
                heights.append(room)
                starts.append(since)
        while len(heights) > 1:
            since, height = starts.pop(), heights.pop()
            found.append((since, _NEVER, height - heights[-1]))
        return found

    def _cut(self, at_us: int) -> int:
        times = self.times
        i = bisect_left(times, at_us)
        if i == 0:
            return 0
        if i == len(times) or times[i] != at_us:
            times.insert(i, at_us)
            self.cores.insert(i, self.cores[i - 1])
            self.memory.insert(i, self.memory[i - 1])
            for free in self.others.values() if self.others else ():
                free.insert(i, free[i - 1])
        return i
