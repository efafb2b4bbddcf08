"""Quantities of a tree from the lengths of its queues: TQLB, its extremes, processor amounts; balanced and fulfilled trees.

`lengths` maps a node to the entries of its queue. Recursions are 0 below the leaves. (The paper prints "0 for i >= w^h", which does not fit
P = w^h leaves; it would be a tree of h levels and P = w^(h-1).) Phantom leaves have no queue and are passed over by minima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmgr.sched.tree.shape import Tree

Lengths = Mapping[int, int]


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
