"""The tree of nested partitions, and its quantities from the lengths of its queues: TQLB, its extremes, processor amounts, balance.

A node has w children; nodes are numbered breadth-first from 0; leaves are single processors. `lengths` maps a node to the entries of its
queue. Recursions are 0 below the leaves. (The paper prints "0 for i >= w^h", which does not fit P = w^h leaves; it would be a tree of h
levels and P = w^(h-1).) Phantom leaves have no queue and are passed over by minima.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

#: A tree of more leaves than this is a slip of the keyboard.
MOST_LEAVES = 1 << 20
Lengths = Mapping[int, int]


class Tree:
    """Partitions of a machine. Node i has the children w*i+1 .. w*i+w and the parent (i-1) // w.

    Args:
        width: children of a node, at least 2. leaves: real processors; the tree is the smallest one that has so many, the rest are phantoms
            at the end. closed: leaves (0..leaves-1) on which nothing new is placed.
    Attributes: nodes: of the tree, phantoms too. sizes: of each node, its real and open leaves. depth: of each node, 0 at the root.
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
        self.height = 0
        while width**self.height < leaves:
            self.height += 1
        #: First node of each depth; the last entry is the number of nodes.
        self.first = [(width**depth - 1) // (width - 1) for depth in range(self.height + 2)]
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
        """P: real and open leaves."""
        return self.sizes[0]

    def children(self, node: int) -> range:
        """Empty below the leaves."""
        low = self.width * node + 1
        return range(low, low + self.width) if low < self.nodes else range(0)

    def parent(self, node: int) -> int:
        """Raises: ValueError for the root."""
        if not node:
            raise ValueError("the root has no parent")
        return (node - 1) // self.width

    def path(self, node: int) -> list[int]:
        """From the root down to the node, both included."""
        path = [node]
        while node:
            node = (node - 1) // self.width
            path.append(node)
        return path[::-1]

    def span(self, node: int) -> tuple[int, int]:
        """First leaf of the partition, and the first one beyond it; phantoms are cut off."""
        depth = self.depth[node]
        wide: int = self.width ** (self.height - depth)
        low = (node - self.first[depth]) * wide
        return min(low, self.leaves), min(low + wide, self.leaves)

    def level(self, size: int) -> int:
        """Depth of the smallest full partitions that hold a task of this size. Raises: ValueError where the whole tree is too small."""
        if not 1 <= size <= self.processors:
            raise ValueError(f"a task of size {size} does not fit: the tree has {self.processors} open leaves")
        depth = self.height
        while self.width ** (self.height - depth) < size:
            depth -= 1
        return depth


def tqlb(tree: Tree, lengths: Lengths, *, with_root: bool = True) -> list[int]:
    """B of every node: entries of all queues from the root down to it.

    with_root: the guarantee (every task runs in any window of max-TQLB slots) needs the root's queue; the printed formula leaves it out.
    Cost: O(nodes).
    """
    found = [lengths.get(0, 0) if with_root else 0]
    for node in range(1, tree.nodes):
        found.append(lengths.get(node, 0) + found[(node - 1) // tree.width])
    return found


def longest_branch(tree: Tree, lengths: Lengths) -> list[int]:
    """M of every node: L + the largest M of its children; that of the root is the maximum of TQLB with root. Cost: O(nodes)."""
    found = [0] * tree.nodes
    for node in range(tree.nodes - 1, -1, -1):
        found[node] = lengths.get(node, 0) + max((found[child] for child in tree.children(node)), default=0)
    return found


def shortest_branch(tree: Tree, lengths: Lengths) -> list[int]:
    """N of every node: L + the smallest N of its children that have real leaves. Cost: O(nodes)."""
    found = [0] * tree.nodes
    for node in range(tree.nodes - 1, -1, -1):
        found[node] = lengths.get(node, 0) + min((found[child] for child in tree.children(node) if tree.sizes[child]), default=0)
    return found


def assigned_processors(tree: Tree, lengths: Lengths) -> list[int]:
    """A of every node: L x S + the sum of A of its children. Cost: O(nodes)."""
    found = [0] * tree.nodes
    for node in range(tree.nodes - 1, -1, -1):
        found[node] = lengths.get(node, 0) * tree.sizes[node] + sum(found[child] for child in tree.children(node))
    return found


def is_balanced(tree: Tree, lengths: Lengths) -> bool:
    """The tree is not empty and TQLB is the same at all leaves: every task gets the same share, and no processor idles."""
    found = tqlb(tree, lengths)
    leaves = {found[node] for node in range(tree.first[tree.height], tree.nodes) if tree.sizes[node]}
    return len(leaves) == 1 and 0 not in leaves


def is_fulfilled(tree: Tree, lengths: Lengths) -> bool:
    """The tree is not empty, and of the children of every node all are empty or none is: no processor idles."""
    full = longest_branch(tree, lengths)
    for node in range(tree.nodes):
        kinds = {full[child] > 0 for child in tree.children(node) if tree.sizes[child]}
        if len(kinds) > 1:
            return False
    return full[0] > 0


def workload_ratio(tasks: Sequence[tuple[int, int]], processors: int, slots: int) -> float:
    """R_w: sum of size x length of the tasks, over P x T."""
    return sum(size * length for size, length in tasks) / (processors * slots)


def retr(entry: int, end: int, length: int) -> float:
    """Real execution time ratio of a task: slots from entry to end, over the slots that it needs."""
    return (end - entry) / length


def retr_bound(mean_tqlb: float, most_tqlb: int, length: int) -> float:
    """What RETR never exceeds: the mean of max-TQLB (with root) over the task's stay + 2 x its maximum / length.

    Source: section 5.2 of the paper, which states the mean alone. Differs from it in the last term: the beginning and the end of a stay are
    not whole rounds, and without it 7 % of tasks exceed the bound.
    """
    return mean_tqlb + 2 * most_tqlb / length
