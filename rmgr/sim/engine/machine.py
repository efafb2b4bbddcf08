"""The simulated machine and the jobs on it: the cores of each job, its remaining time there, and what is left of moved jobs.

The policies' placements name only nodes; `Machine` assigns cores of these nodes. `Stays`, the driver's other half, handles
time and work, but no scheduling. Every stretch becomes a row of `Stretches` when it ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from rmgr.errors import UsageError
from rmgr.sched.job import Node, Placement, Running, spans_of
from rmgr.sim.engine.execution import Execution, Recorded, Work, unexecuted
from rmgr.sim.engine.outcome import Cores, Parting, Stretches
from rmgr.sim.workload.events import NodeRanges
from rmgr.sim.workload.jobs import WorkloadJob

#: More nodes or cores than this are a typing error.
MOST_NODES = 10_000_000
MOST_CORES = 100_000


class Machine:
    """The cores, numbered from those of the node with the lowest id. The lowest free cores are handed out first.

    Args:
        nodes: a number of identical nodes with ids from 0, or each node as the scheduler sees it. cores: of each, with a number of nodes.
    Space O(nodes); identical nodes with one core cost nothing.
    Raises: UsageError for a machine without nodes or cores, a machine too large to be meant, or nodes with the same id.
    """

    def __init__(self, nodes: int | tuple[Node, ...], cores: int = 1) -> None:
        self._nodes: tuple[Node, ...] = ()
        if not isinstance(nodes, int):
            self._nodes = tuple(sorted(nodes, key=lambda node: node.id))
            nodes, cores = len(self._nodes), max((node.cores for node in self._nodes), default=0)
            _check_ids(self._nodes)
        for what, given, most in (("nodes", nodes, MOST_NODES), ("cores of a node", cores, MOST_CORES)):
            if not 1 <= given <= most:
                raise UsageError(f"a machine cannot have {given} {what}", hint=f"from 1 to {most:,}")
        self.nodes = nodes
        self.cores = cores  #: of the largest node
        regular = all(node.id == i and node.cores == cores for i, node in enumerate(self._nodes))
        #: If nodes are numbered from 0 with equal cores, the first core of a node is a product; else it is looked up.
        self._bases = [] if regular else [0, *accumulate(node.cores for node in self._nodes)]
        self._index = {} if regular else {node.id: i for i, node in enumerate(self._nodes)}
        self.processors: int = self._bases[-1] if self._bases else nodes * cores  #: cores of all nodes
        self._free: list[int] = []  # bits of free cores
        if cores > 1:
            self._free = [(1 << cores) - 1] * nodes if regular else [(1 << node.cores) - 1 for node in self._nodes]

    def described(self) -> tuple[Node, ...]:
        """Returns the nodes as the scheduler sees them."""
        return self._nodes or tuple(Node(id=n, cores=self.cores, name=f"node{n}") for n in range(self.nodes))

    def take(self, placement: Placement, threads: int) -> Cores:
        """Takes cores for a job with this placement. Raises ValueError if a node has too few free: the policy's vetting failed.

        Cost: O(spans) on nodes with one core, else O(nodes of the placement).
        """
        if self.cores == 1 and not self._bases:
            if len(placement) == 1:
                return (placement[0][:2],)
            ranges: list[tuple[int, int]] = []
            for first, last, _ in placement:
                _append_range(ranges, first, last)
            return tuple(ranges)
        ranges = []
        for first, last, processes in placement:
            wanted = processes * threads
            for node in range(first, last + 1):
                self._take_of(ranges, node, wanted)
        return tuple(ranges)

    def give(self, cores: Cores) -> None:
        """Frees the cores. Cost: as `take`."""
        if self.cores == 1:
            return
        for first, last in cores:
            core = first
            while core <= last:
                at = bisect_right(self._bases, core) - 1 if self._bases else core // self.cores
                base, beyond = self._cores_of(at)
                high = min(last, beyond - 1)
                self._free[at] |= ((1 << (high - core + 1)) - 1) << (core - base)
                core = high + 1

    def placed(self, cores: Cores, threads: int) -> Placement:
        """Returns the placement of a job with this many threads per process that holds these cores; inverts `take`. Cost: O(nodes)."""
        held: dict[int, int] = {}
        for first, last in cores:
            core = first
            while core <= last:
                at = bisect_right(self._bases, core) - 1 if self._bases else core // self.cores
                high = min(last, self._cores_of(at)[1] - 1)
                held[at] = held.get(at, 0) + high - core + 1
                core = high + 1
        return spans_of((self._nodes[at].id if self._nodes else at, count // threads) for at, count in sorted(held.items()))

    def cores_of(self, node: int) -> tuple[int, int]:
        """Returns the first and last core of the node with this id. Raises: KeyError for an unknown node."""
        base, beyond = self._cores_of(self._index[node] if self._index else node)
        return base, beyond - 1

    def _cores_of(self, at: int) -> tuple[int, int]:
        """Returns the first core of the node at this position, and the first core beyond it."""
        return (self._bases[at], self._bases[at + 1]) if self._bases else (at * self.cores, (at + 1) * self.cores)

    def _take_of(self, ranges: list[tuple[int, int]], node: int, wanted: int) -> None:
        at = self._index[node] if self._index else node
        base, beyond = self._cores_of(at)
        if not self._free:
            _append_range(ranges, base, base)
            return
        free = self._free[at]
        if wanted == beyond - base:
            if free != (1 << wanted) - 1:
                raise ValueError(f"node {node} is not free")
            self._free[at] = 0
            _append_range(ranges, base, beyond - 1)
            return
        if free.bit_count() < wanted:
            raise ValueError(f"node {node} has {free.bit_count()} free cores, not {wanted}")
        while wanted:
            low = (free & -free).bit_length() - 1
            run = _ones_from(free, low, wanted)
            _append_range(ranges, base + low, base + low + run - 1)
            free &= ~(((1 << run) - 1) << low)
            wanted -= run
        self._free[at] = free


def _check_ids(nodes: tuple[Node, ...]) -> None:
    for before, node in pairwise(nodes):
        if before.id == node.id:
            raise UsageError(f"two nodes of the machine have the id {node.id}")
    for node in nodes:
        if node.id < 0 or node.cores < 1:
            raise UsageError(f"node {node.id} has {node.cores} cores", hint="ids from 0, at least one core each")


def _ones_from(bits: int, low: int, most: int) -> int:
    """Returns how many ones stand in a row from bit `low` on, up to `most`."""
    zeros = ~(bits >> low)
    return min((zeros & -zeros).bit_length() - 1, most)


def _append_range(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))


class Stay:
    """One job on its nodes, from its start until it leaves them; a suspension in between does not end it."""

    __slots__ = ("cores", "duration_us", "left", "rest_us", "run", "served_us", "since_us", "spells", "turns")

    def __init__(self, run: Running, left: Work | None, duration_us: int) -> None:
        self.run = run
        self.left = left  #: at the arrival here; None = all of it
        self.duration_us = duration_us  #: of `left` on these nodes
        self.rest_us = duration_us  #: remaining time as of `since_us`
        self.since_us = run.start_us
        self.cores: Cores = ()
        self.turns = -1  #: in a gang: slots that it was given; -1: it does not share its cores
        self.served_us = 0  #: in a gang: how long it ran in them
        self.spells: list[tuple[int, int]] | None = None  #: in a gang: its stretches, if they are kept

    def __lt__(self, other: Stay) -> bool:
        """Orders two ends of one job at one instant: all but one are outdated, so any order will do."""
        return self.since_us < other.since_us


class Stays:
    """Jobs by place. Numbers are job numbers (1..n)."""

    __slots__ = ("_execution", "_jobs", "_left", "_machine", "_plain", "_stretches", "running", "stopped")

    def __init__(self, jobs: Sequence[WorkloadJob], machine: Machine, execution: Execution, stretches: Stretches) -> None:
        self._jobs = jobs
        self._machine, self._execution, self._stretches = machine, execution, stretches
        self._plain = type(execution) is Recorded
        self._left: dict[int, Work] = {}  # of jobs that moved
        self.running: dict[int, Stay] = {}
        self.stopped: dict[int, Stay] = {}  #: suspended in place

    def begin(self, run: Running) -> Stay:
        """Puts the job on its nodes. Raises: ValueError if they lack free cores: the vetting failed."""
        stay = self.running[run.job.id] = self._stay(run)
        stay.cores = self._machine.take(run.placement, run.job.threads)
        return stay

    def begin_shared(self, run: Running, cores: Cores) -> Stay:
        """Puts the job of a gang on its nodes, which other jobs use in other slots; `Turns` knows when it runs."""
        stay = self.running[run.job.id] = self._stay(run)
        stay.cores, stay.turns = cores, 0
        return stay

    def _stay(self, run: Running) -> Stay:
        number = run.job.id
        job = self._jobs[number - 1]
        left = self._left.pop(number, None) if self._left else None
        if left is None and self._plain:
            duration_us = job.run_us
        else:
            duration_us = self._execution.duration_us(job, self._execution.work(job) if left is None else left, run.placement)
        return Stay(run, left, max(duration_us, 1))

    def end(self, number: int, now_us: int, parting: Parting = Parting.ENDED) -> Stay:
        """Removes the job from its nodes: it is over, or starts again from nothing. Raises: KeyError if it is not there."""
        stay = self.running.pop(number, None)
        if stay is None:
            stay = self.stopped.pop(number)
            self._stretches.left(number, parting)
            return stay
        self._stretch(number, stay, now_us, parting)
        return stay

    def migrate(self, number: int, now_us: int) -> Stay:
        """Removes the job from its nodes with its progress, also if it was suspended there."""
        stay = self.end(number, now_us, Parting.MIGRATED)
        job = self._jobs[number - 1]
        whole = self._execution.work(job) if stay.left is None else stay.left
        left = unexecuted(whole, stay.duration_us - stay.rest_us, stay.duration_us)
        self._left[number] = self._execution.after_migration(job, left)
        return stay

    def suspend(self, number: int, now_us: int) -> None:
        """Stops the job in place; its cores are free, its memory is not."""
        stay = self.stopped[number] = self.running.pop(number)
        self._stretch(number, stay, now_us, Parting.SUSPENDED)

    def resume(self, number: int, now_us: int) -> Stay:
        """Continues the job on the lowest free cores of the same nodes."""
        stay = self.running[number] = self.stopped.pop(number)
        stay.cores = self._machine.take(stay.run.placement, stay.run.job.threads)
        stay.since_us = now_us
        return stay

    def on(self, nodes: NodeRanges) -> list[int]:
        """Returns jobs that run or are suspended on any of these nodes, ascending. Cost: O(spans of all x ranges)."""
        return sorted(stay.run.job.id for stay in self._all() if _stands_on(stay, nodes))

    def of(self, number: int) -> Stay | None:
        """Returns the stay of a job that runs or is suspended, or None."""
        return self.running.get(number) or self.stopped.get(number)

    def _all(self) -> Iterator[Stay]:
        yield from self.running.values()
        yield from self.stopped.values()

    def _stretch(self, number: int, stay: Stay, now_us: int, parting: Parting) -> None:
        if stay.turns >= 0:
            self._share(number, stay, now_us, parting)
            return
        stay.rest_us -= now_us - stay.since_us
        self._machine.give(stay.cores)
        self._stretches.append(number, stay.since_us, now_us, stay.cores, parting)

    def _share(self, number: int, stay: Stay, now_us: int, parting: Parting) -> None:
        """Records a stay in a gang as one row, or as its stretches if they are kept."""
        stay.rest_us = stay.duration_us - stay.served_us
        self._stretches.serve(number, None if stay.spells is not None else stay.served_us, stay.turns)
        for at, (start, end) in enumerate(stay.spells if stay.spells is not None else [(stay.since_us, now_us)], 1):
            last = stay.spells is None or at == len(stay.spells)
            self._stretches.append(number, start, end, stay.cores, parting if last else Parting.SUSPENDED)


def _stands_on(stay: Stay, nodes: NodeRanges) -> bool:
    return any(first <= high and low <= last for first, last, _ in stay.run.placement for low, high in nodes)
