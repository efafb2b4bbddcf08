"""Quantities of a queue tree by their definitions in paper 002: what the tree keeps up to date is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.sched.tree.quantities import Lengths
from rmgr.sched.tree.rounds import _count, _fresh, _per_phase
from rmgr.sched.tree.shape import Tree


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


def workload_ratio(tasks: Sequence[tuple[int, int]], processors: int, slots: int) -> float:
    """R_w: sum of size x length of the tasks, over P x T."""
    return sum(size * length for size, length in tasks) / (processors * slots)


def own_quanta(slots: int, length: int, round_length: int) -> int:
    """Quanta that a queue gets while its node runs for `slots` from its own beginning: floor(X/R) L + min(X mod R, L)."""
    rounds, rest = divmod(slots, round_length)
    return rounds * length + min(rest, length)


def quanta_within(chain: Sequence[tuple[int, int]], slots: int) -> int:
    """Quanta of the last queue of a chain while its first node runs for `slots` from its own beginning.

    Args: chain: (L, R) of each node from some ancestor down to the queue's own node. Cost: O(length of the chain squared).
    """
    return _count(chain, _per_phase(chain), 0, slots)


def slot_of_quantum(chain: Sequence[tuple[int, int]], number: int) -> int:
    """The slot (1 = the first) in which the last queue of a chain gets its quantum `number` (from 1), from the chain's own beginning.

    Raises: ValueError for a number below 1. Cost: O(length of the chain squared).
    """
    if number < 1:
        raise ValueError(f"quanta are counted from 1, not {number}")
    return _fresh(chain, _per_phase(chain), 0, number)
