"""The simulated machine: its nodes, and which cores of them each job gets (the policies' placements name nodes only)."""

from __future__ import annotations

from rmgr.errors import UsageError
from rmgr.sched.job import Node, Placement

#: A gang of nodes beyond this is a slip of the keyboard.
MOST_NODES = 10_000_000
MOST_CORES = 100_000

#: Cores as inclusive ranges, ascending, never adjacent.
Cores = tuple[tuple[int, int], ...]


class Machine:
    """`nodes` nodes with `cores` cores each; core c of node n has the number n x cores + c.

    Cores are handed out lowest first, as they come free. Space O(nodes); a node of one core costs nothing.
    Raises: UsageError for a machine without nodes or cores, or one too large to mean it.
    """

    def __init__(self, nodes: int, cores: int = 1) -> None:
        for what, given, most in (("nodes", nodes, MOST_NODES), ("cores of a node", cores, MOST_CORES)):
            if not 1 <= given <= most:
                raise UsageError(f"a machine cannot have {given} {what}", hint=f"from 1 to {most:,}")
        self.nodes = nodes
        self.cores = cores
        self._all = (1 << cores) - 1
        self._free = [self._all] * nodes if cores > 1 else []  # bits of free cores

    @property
    def processors(self) -> int:
        """Cores of all nodes."""
        return self.nodes * self.cores

    def described(self) -> tuple[Node, ...]:
        """The nodes as the scheduler sees them, ids from 0."""
        return tuple(Node(id=n, cores=self.cores, name=f"node{n}") for n in range(self.nodes))

    def take(self, placement: Placement, threads: int) -> Cores:
        """Cores for a job placed like this. Raises ValueError when a node has not as many free: the policy's vetting failed.

        Cost: O(spans) with nodes of one core, else O(nodes of the placement).
        """
        if self.cores == 1 and len(placement) == 1:
            return (placement[0][:2],)
        ranges: list[tuple[int, int]] = []
        for first, last, processes in placement:
            wanted = processes * threads
            if self.cores in {1, wanted}:
                if self.cores > 1:
                    self._take_whole(first, last)
                _append(ranges, first * self.cores, (last + 1) * self.cores - 1)
            else:
                for node in range(first, last + 1):
                    self._take_some(ranges, node, wanted)
        return tuple(ranges)

    def give(self, cores: Cores) -> None:
        """The cores are free again. Cost: as `take`."""
        if self.cores == 1:
            return
        for first, last in cores:
            for node in range(first // self.cores, last // self.cores + 1):
                low, high = max(first - node * self.cores, 0), min(last - node * self.cores, self.cores - 1)
                self._free[node] |= ((1 << (high - low + 1)) - 1) << low

    def _take_whole(self, first: int, last: int) -> None:
        for node in range(first, last + 1):
            if self._free[node] != self._all:
                raise ValueError(f"node {node} is not free")
            self._free[node] = 0

    def _take_some(self, ranges: list[tuple[int, int]], node: int, wanted: int) -> None:
        free = self._free[node]
        if free.bit_count() < wanted:
            raise ValueError(f"node {node} has {free.bit_count()} free cores, not {wanted}")
        base = node * self.cores
        while wanted:
            low = (free & -free).bit_length() - 1
            run = _ones_from(free, low, wanted)
            _append(ranges, base + low, base + low + run - 1)
            free &= ~(((1 << run) - 1) << low)
            wanted -= run
        self._free[node] = free


def _ones_from(bits: int, low: int, most: int) -> int:
    """How many ones stand in a row from bit `low` on, up to `most`."""
    zeros = ~(bits >> low)
    return min((zeros & -zeros).bit_length() - 1, most)


def _append(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
