"""The tree of nested partitions, quantities derived from queue lengths (TQLB, its extremes, processor amounts, balance), and allocation.

A node has w children; nodes are numbered breadth-first from 0; leaves are single processors. `lengths` maps a node to the entries of its
queue. Recursions are 0 below the leaves. (The paper prints "0 for i >= w^h", which does not fit P = w^h leaves; it would be a tree of h
levels and P = w^(h-1).) Phantom leaves have no queue and are ignored by minima.

Allocation decides which queue a new task enters, from the root down, knowing only its size. A node hands the task to one of its children
until no child is a large enough partition. Children without a partition that may take the task are skipped. Remaining ties go to the
first child.

| rule | hands the task to |
|---|---|
| `rr` | the children in turn (cursors, the only state) |
| `max` | the least M: the longest branch below |
| `min` | the least N: the shortest branch below |
| `apa` | the least A: processors assigned below |
| `bf` | the child with the shortest queue among the target partitions below |
| `bf_apa` | as `bf`, ties by `apa` |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

#: Number of leaves above which the tree must be a typing error.
MOST_LEAVES = 1 << 20
_NONE = 1 << 62
Lengths = Mapping[int, int]


class Tree:
    """Partitions of a machine. Node i has the children w*i+1 .. w*i+w and the parent (i-1) // w.

    Args:
        width: children of a node, at least 2. leaves: real processors; the tree is the smallest one with that many leaves, and the rest
            are phantoms at the end. closed: leaves (0..leaves-1) on which nothing new is placed.
        Attributes: nodes: number of nodes, including phantoms. sizes: of each node, its real and open leaves. depth: of each node, 0 at the
        root.
    Raises: ValueError for a width below 2, or a number of leaves below 1 or above `MOST_LEAVES`.
    Cost: O(nodes).
    """

    __slots__ = ("closed", "depth", "first", "height", "leaves", "nodes", "sizes", "width")

    def __init__(self, width: int, leaves: int, closed: Collection[int] = ()) -> None:
        if width < 2:
            raise ValueError(f"the width of the tree is {width}: a node needs at least 2 children")
        if not 1 <= leaves <= MOST_LEAVES:
            raise ValueError(f"a tree cannot have {leaves} leaves, from 1 to {MOST_LEAVES:,} are allowed")
        self.width, self.leaves, self.closed = width, leaves, frozenset(closed)
        self.height = height_of(width, leaves)
        #: First node of each depth; the last entry is the number of nodes.
        self.first = [first_of_depth(width, depth) for depth in range(self.height + 2)]
        self.nodes = self.first[-1]
        self.depth = [depth for depth in range(self.height + 1) for _ in range(width**depth)]
        self.sizes = [0] * self.nodes
        bottom = self.first[self.height]
        for leaf in range(leaves):
            self.sizes[bottom + leaf] = leaf not in self.closed
        for node in range(self.nodes - 1, 0, -1):
            self.sizes[(node - 1) // width] += self.sizes[node]

    @property
    def processors(self) -> int:
        """P: the number of real and open leaves."""
        return self.sizes[0]

    def children(self, node: int) -> range:
        """Returns the children of the node; empty below the leaves."""
        low = self.width * node + 1
        return range(low, low + self.width) if low < self.nodes else range(0)

    def parent(self, node: int) -> int:
        """Returns the parent. Raises: ValueError for the root."""
        if not node:
            raise ValueError("the root has no parent")
        return (node - 1) // self.width

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root down to the node, both included."""
        path = [node]
        while node:
            node = (node - 1) // self.width
            path.append(node)
        return path[::-1]

    def span(self, node: int) -> tuple[int, int]:
        """Returns the first leaf of the partition and the first one beyond it; phantoms are cut off."""
        depth = self.depth[node]
        wide: int = self.width ** (self.height - depth)
        low = (node - self.first[depth]) * wide
        return min(low, self.leaves), min(low + wide, self.leaves)

    def level(self, size: int) -> int:
        """Returns the depth of the smallest full partitions that hold a task of this size. Raises: ValueError if it exceeds the tree."""
        if not 1 <= size <= self.processors:
            raise ValueError(f"a task of size {size} does not fit: the tree has {self.processors} open leaves")
        return self.height - height_of(self.width, size)


def height_of(width: int, leaves: int) -> int:
    """Returns the height of the smallest tree of this width that has so many leaves."""
    height = 0
    while width**height < leaves:
        height += 1
    return height


def first_of_depth(width: int, depth: int) -> int:
    """Returns the first node of this depth, which is also the number of nodes above it."""
    first: int = (width**depth - 1) // (width - 1)
    return first


def tqlb(tree: Tree, lengths: Lengths) -> list[int]:
    """Returns B of every node: entries of all queues from the root down to it.

    The guarantee (every task runs in any window of max-TQLB slots) needs the root's queue, which the printed formula leaves out.
    Cost: O(nodes).
    """
    found = [lengths.get(0, 0)]
    for node in range(1, tree.nodes):
        found.append(lengths.get(node, 0) + found[(node - 1) // tree.width])
    return found


def longest_branch(tree: Tree, lengths: Lengths) -> list[int]:
    """Returns M of every node: L + the largest M of its children; the root's is the maximum of TQLB with root. Cost: O(nodes)."""
    found = [0] * tree.nodes
    for node in range(tree.nodes - 1, -1, -1):
        found[node] = lengths.get(node, 0) + max((found[child] for child in tree.children(node)), default=0)
    return found


def is_balanced(tree: Tree, lengths: Lengths) -> bool:
    """Whether the tree is not empty and TQLB is equal at all leaves: every task gets the same share, and no processor idles."""
    found = tqlb(tree, lengths)
    leaves = {found[node] for node in range(tree.first[tree.height], tree.nodes) if tree.sizes[node]}
    return len(leaves) == 1 and 0 not in leaves


def is_fulfilled(tree: Tree, lengths: Lengths) -> bool:
    """Whether the tree is not empty and each node's children are either all empty or all not: no processor idles."""
    full = longest_branch(tree, lengths)
    for node in range(tree.nodes):
        kinds = {full[child] > 0 for child in tree.children(node) if tree.sizes[child]}
        if len(kinds) > 1:
            return False
    return full[0] > 0


# -- allocation: where a new task goes ---------------------------------------------------------------------------------------


class AllocationRule(StrEnum):
    """Values of the parameter `allocation`."""

    RR = "rr"
    MAX = "max"
    MIN = "min"
    APA = "apa"
    BF = "bf"
    BF_APA = "bf_apa"


class Loads:
    """Lengths of all queues, with the quantities that allocation needs kept up to date. Cost of a change: O(height x width)."""

    __slots__ = ("_full", "_shortest", "apa", "lengths", "longest", "shortest", "tree")

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.lengths = [0] * tree.nodes
        self.longest = [0] * tree.nodes  #: M
        self.shortest = [0] * tree.nodes  #: N
        self.apa = [0] * tree.nodes  #: A
        self._full = tree.leaves == tree.width**tree.height and not tree.closed
        #: For each node, by depth below it: the shortest queue there. Only in a full tree; otherwise partitions of a depth differ in size.
        self._shortest = [[0] * (tree.height - depth + 1) for depth in tree.depth] if self._full else []

    def copy(self) -> Loads:
        """Returns an equal object that shares no mutable state with this one."""
        new = object.__new__(Loads)
        new.tree, new._full = self.tree, self._full
        new.lengths, new.longest, new.shortest, new.apa = self.lengths[:], self.longest[:], self.shortest[:], self.apa[:]
        new._shortest = [found[:] for found in self._shortest]
        return new

    def change(self, node: int, entries: int) -> None:
        """Adds `entries` to the queue of the node (may be negative)."""
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
        """Returns the shortest queue of the subtree at each depth (figure 7). Only in a full tree; otherwise ()."""
        return tuple(self._shortest[node]) if self._full else ()

    def shortest_queue(self, node: int, size: int, may: Callable[[int], bool] | None) -> int:
        """Returns the shortest queue among the subtree's targets of this size. O(1) in a full tree without `may`, else O(subtree)."""
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
    """Returns the node whose queue a task of this size enters; None if no partition may take it.

    Args:
        cursors: node -> child (0..w-1) that got the last task; `rr` reads and writes it. may: whether a target partition may take the task.
    Cost: O(height x width); with `may`, or for a best fit on a tree that is not full, O(nodes).
    """
    tree, node = loads.tree, 0
    if not 1 <= size <= tree.sizes[0]:
        return None
    while True:
        kids = [child for child in tree.children(node) if tree.sizes[child] >= size]
        if not kids:
            return node if may is None or may(node) else None
        if may is not None:
            kids = [child for child in kids if _reaches_node(tree, child, size, may)]
            if not kids:
                return None
        node = _pick_child(loads, node, kids, size, allocation, cursors, may)


def _reaches_node(tree: Tree, node: int, size: int, may: Callable[[int], bool]) -> bool:
    kids = [child for child in tree.children(node) if tree.sizes[child] >= size]
    return any(_reaches_node(tree, child, size, may) for child in kids) if kids else may(node)


def _pick_child(
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
