"""The tree of nested partitions: w children a node, numbered breadth-first from 0, leaves are single processors."""

from __future__ import annotations

from collections.abc import Collection

#: A tree of more leaves than this is a slip of the keyboard.
MOST_LEAVES = 1 << 20


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
