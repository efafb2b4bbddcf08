"""Task allocation policies: in which queue of the tree a new task goes, from the root down, knowing only its size.

A node hands the task to one of its children until no child is a large enough partition. Children without a partition that may take the task
are passed over. Any tie that is left goes to the first child.

| policy | hands the task to |
|---|---|
| `rr` | the children in turn (cursors, the only memory there is) |
| `max` | the least M: the longest branch below |
| `min` | the least N: the shortest branch below |
| `apa` | the least A: processors assigned below |
| `bf` | the child below which the shortest queue of the target partitions stands |
| `bf_apa` | as `bf`, equals by `apa` |
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from rmgr.sched.tree.shape import Tree

_NONE = 1 << 62


class AllocationRule(StrEnum):
    """Values of the parameter `allocation`."""

    RR = "rr"
    MAX = "max"
    MIN = "min"
    APA = "apa"
    BF = "bf"
    BF_APA = "bf_apa"


class Loads:
    """Lengths of all queues, with the quantities that allocation asks for kept up to date. Cost of a change: O(height x width)."""

    __slots__ = ("_full", "_shortest", "apa", "lengths", "longest", "shortest", "tree")

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.lengths = [0] * tree.nodes
        self.longest = [0] * tree.nodes  #: M
        self.shortest = [0] * tree.nodes  #: N
        self.apa = [0] * tree.nodes  #: A
        self._full = tree.leaves == tree.width**tree.height and not tree.closed
        #: of each node, by depth below it: the shortest queue there. Of a full tree only: else partitions of a depth differ in size.
        self._shortest = [[0] * (tree.height - depth + 1) for depth in tree.depth] if self._full else []

    def copy(self) -> Loads:
        """An equal one that shares nothing that changes."""
        new = object.__new__(Loads)
        new.tree, new._full = self.tree, self._full
        new.lengths, new.longest, new.shortest, new.apa = self.lengths[:], self.longest[:], self.shortest[:], self.apa[:]
        new._shortest = [found[:] for found in self._shortest]
        return new

    def change(self, node: int, entries: int) -> None:
        """The queue of the node gets so many entries more, or fewer."""
        tree, width = self.tree, self.tree.width
        self.lengths[node] += entries
        amount = entries * tree.sizes[node]
        below = -1
        at = node
        while True:
            low = width * at + 1
            self.apa[at] += amount
            if low < tree.nodes:
                self.longest[at] = self.lengths[at] + max(self.longest[low : low + width])
                kids = [self.shortest[child] for child in range(low, low + width) if tree.sizes[child]]
                self.shortest[at] = self.lengths[at] + (min(kids) if kids else 0)
            else:
                self.longest[at] = self.shortest[at] = self.lengths[at]
            if self._full:
                below += 1
                shortest = self._shortest
                if below:
                    shortest[at][below] = min([shortest[child][below - 1] for child in range(low, low + width)])
                else:
                    shortest[at][0] = self.lengths[at]
            if not at:
                return
            at = (at - 1) // width

    def profile(self, node: int) -> tuple[int, ...]:
        """The shortest queue of the subtree at each depth (figure 7). Of a full tree only; () else."""
        return tuple(self._shortest[node]) if self._full else ()

    def shortest_queue(self, node: int, size: int, may: Callable[[int], bool] | None) -> int:
        """Of the target partitions of this size in the subtree. Cost: O(1) in a full tree without `may`, else O(nodes of the subtree)."""
        tree = self.tree
        if self._full and may is None:
            return self._shortest[node][tree.level(size) - tree.depth[node]]
        kids = [child for child in tree.children(node) if tree.sizes[child] >= size]
        if not kids:
            return self.lengths[node] if may is None or may(node) else _NONE
        return min(self.shortest_queue(child, size, may) for child in kids)


def choose(
    loads: Loads, size: int, allocation: AllocationRule, cursors: dict[int, int], may: Callable[[int], bool] | None = None
) -> int | None:
    """The node whose queue a task of this size enters; None where no partition may take it.

    Args:
        cursors: node -> child (0..w-1) that had the last task; `rr` reads and writes it. may: whether a target partition may take the task.
    Cost: O(height x width); with `may`, or where the tree is not full and the policy is a best fit, O(nodes).
    """
    tree, node = loads.tree, 0
    if not 1 <= size <= tree.sizes[0]:
        return None
    while True:
        kids = [child for child in tree.children(node) if tree.sizes[child] >= size]
        if not kids:
            return node if may is None or may(node) else None
        if may is not None:
            kids = [child for child in kids if _reaches(tree, child, size, may)]
            if not kids:
                return None
        node = _pick(loads, node, kids, size, allocation, cursors, may)


def _reaches(tree: Tree, node: int, size: int, may: Callable[[int], bool]) -> bool:
    kids = [child for child in tree.children(node) if tree.sizes[child] >= size]
    return any(_reaches(tree, child, size, may) for child in kids) if kids else may(node)


def _pick(
    loads: Loads,
    node: int,
    kids: list[int],
    size: int,
    allocation: AllocationRule,
    cursors: dict[int, int],
    may: Callable[[int], bool] | None,
) -> int:
    match allocation:
        case AllocationRule.RR:
            low, width = loads.tree.width * node + 1, loads.tree.width
            last = cursors.get(node, width - 1)
            chosen = min(kids, key=lambda child: (child - low - last - 1) % width)
            cursors[node] = chosen - low
            return chosen
        case AllocationRule.MAX:
            return min(kids, key=loads.longest.__getitem__)
        case AllocationRule.MIN:
            return min(kids, key=loads.shortest.__getitem__)
        case AllocationRule.APA:
            return min(kids, key=loads.apa.__getitem__)
        case AllocationRule.BF:
            return min(kids, key=lambda child: loads.shortest_queue(child, size, may))
        case AllocationRule.BF_APA:
            return min(kids, key=lambda child: (loads.shortest_queue(child, size, may), loads.apa[child]))
