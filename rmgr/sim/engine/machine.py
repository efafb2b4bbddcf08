"""The simulated machine: its nodes, and which cores of them each job gets (the policies' placements name nodes only)."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise

from rmgr.errors import UsageError
from rmgr.sched.job import Node, Placement, spans_of

#: A gang of nodes beyond this is a slip of the keyboard.
MOST_NODES = 10_000_000
MOST_CORES = 100_000

#: Cores as inclusive ranges, ascending, never adjacent.
Cores = tuple[tuple[int, int], ...]


class Machine:
    """Its cores have numbers: those of the node of lowest id first. Cores are handed out lowest first, as they come free.

    Args:
        nodes: a number of identical nodes, ids from 0, or each of them as the scheduler sees it. cores: of each, when a number is given.
    Space O(nodes); identical nodes of one core cost nothing.
    Raises: UsageError for a machine without nodes or cores, one too large to mean it, or nodes of one id.
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
        #: where nodes are numbered 0.. and have the same cores, the first core of a node is a product; else it is looked up.
        self._bases = [] if regular else [0, *accumulate(node.cores for node in self._nodes)]
        self._index = {} if regular else {node.id: i for i, node in enumerate(self._nodes)}
        self.processors: int = self._bases[-1] if self._bases else nodes * cores  #: cores of all nodes
        self._free: list[int] = []  # bits of free cores
        if cores > 1:
            self._free = [(1 << cores) - 1] * nodes if regular else [(1 << node.cores) - 1 for node in self._nodes]

    def described(self) -> tuple[Node, ...]:
        """The nodes as the scheduler sees them."""
        return self._nodes or tuple(Node(id=n, cores=self.cores, name=f"node{n}") for n in range(self.nodes))

    def take(self, placement: Placement, threads: int) -> Cores:
        """Cores for a job placed like this. Raises ValueError when a node has not as many free: the policy's vetting failed.

        Cost: O(spans) with nodes of one core, else O(nodes of the placement).
        """
        if self.cores == 1 and not self._bases:
            if len(placement) == 1:
                return (placement[0][:2],)
            ranges: list[tuple[int, int]] = []
            for first, last, _ in placement:
                _append(ranges, first, last)
            return tuple(ranges)
        ranges = []
        for first, last, processes in placement:
            wanted = processes * threads
            for node in range(first, last + 1):
                self._take_of(ranges, node, wanted)
        return tuple(ranges)

    def give(self, cores: Cores) -> None:
        """The cores are free again. Cost: as `take`."""
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
        """Where a job of so many threads a process stands that holds these cores: what `take` was asked for. Cost: O(nodes)."""
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
        """First and last core of the node with this id. Raises: KeyError for one that is not there."""
        base, beyond = self._cores_of(self._index[node] if self._index else node)
        return base, beyond - 1

    def _cores_of(self, at: int) -> tuple[int, int]:
        """First core of the node at this position, and the first one beyond it."""
        return (self._bases[at], self._bases[at + 1]) if self._bases else (at * self.cores, (at + 1) * self.cores)

    def _take_of(self, ranges: list[tuple[int, int]], node: int, wanted: int) -> None:
        at = self._index[node] if self._index else node
        base, beyond = self._cores_of(at)
        if not self._free:
            _append(ranges, base, base)
            return
        free = self._free[at]
        if wanted == beyond - base:
            if free != (1 << wanted) - 1:
                raise ValueError(f"node {node} is not free")
            self._free[at] = 0
            _append(ranges, base, beyond - 1)
            return
        if free.bit_count() < wanted:
            raise ValueError(f"node {node} has {free.bit_count()} free cores, not {wanted}")
        while wanted:
            low = (free & -free).bit_length() - 1
            run = _ones_from(free, low, wanted)
            _append(ranges, base + low, base + low + run - 1)
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
    """How many ones stand in a row from bit `low` on, up to `most`."""
    zeros = ~(bits >> low)
    return min((zeros & -zeros).bit_length() - 1, most)


def _append(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
