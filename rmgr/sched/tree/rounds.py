"""Closed form of the round-robin rule: what a run of X slots gives to a queue and to its children, without stepping.

A node with a queue of L entries has a round of R = L + D slots, D being the longest round of its non-empty children (0 without any).
In the D slots of a round every child runs from its own beginning, starts over when it is early, and is cut off after D slots.
Checked by brute force against `stepped.py` (`tests/property/test_queue_tree.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rmgr.sched.tree.shape import Tree

#: Phases of one child: (slots of each, how many of them).
Phases: TypeAlias = list[tuple[int, int]]


def round_lengths(tree: Tree, lengths: Mapping[int, int]) -> list[int]:
    """R of every node; 0 for an empty subtree. lengths: node -> entries of its queue. Cost: O(nodes)."""
    rounds = [0] * tree.nodes
    for node in range(tree.nodes - 1, -1, -1):
        rounds[node] += lengths.get(node, 0)
        if node:
            parent = (node - 1) // tree.width
            longest = max(rounds[child] for child in tree.children(parent)) if node == tree.width * parent + 1 else 0
            rounds[parent] += longest
    return rounds


def own_quanta(slots: int, length: int, round_length: int) -> int:
    """Quanta that a queue gets while its node runs for `slots` from its own beginning: floor(X/R) L + min(X mod R, L)."""
    rounds, rest = divmod(slots, round_length)
    return rounds * length + min(rest, length)


def phases_below(slots: int, length: int, round_length: int) -> Phases:
    """Phases of each non-empty child meanwhile: floor(X/R) of R - L slots, then one of (X mod R) - L if that is more than 0."""
    rounds, rest = divmod(slots, round_length)
    phases = [(round_length - length, rounds)] if rounds and round_length > length else []
    return [*phases, (rest - length, 1)] if rest > length else phases


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


#: A node in the middle of its round: L, R, entries still to be served (0: its children run), slots to the end of the round, does it run.
Link: TypeAlias = tuple[int, int, int, int, bool]


def slots_until(links: Sequence[Link], quanta: int) -> int:
    """Slots from now until the last queue has got so many quanta, in a tree that does not change.

    Args: links: every node from the root down to the queue's own, as it stands now. Cost: O(links squared).
    """
    pairs = [(link[0], link[1]) for link in links]
    per_phase = _per_phase(pairs)
    slots, last = 0, len(links) - 1
    for at, (_, _, own, left, _) in enumerate(links):
        if at == last:
            return slots + quanta if quanta <= own else slots + left + _fresh(pairs, per_phase, at, quanta - own)
        if own:
            got = per_phase[at + 1]
            if quanta <= got:
                return slots + own + _fresh(pairs, per_phase, at + 1, quanta)
        else:
            got = _coming(links, pairs, per_phase, at + 1, left) if links[at + 1][4] else 0
        if quanta > got:
            return slots + left + _fresh(pairs, per_phase, at, quanta - got)
    raise ValueError("a chain of no nodes has no queue")


def _coming(links: Sequence[Link], pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, slots: int) -> int:
    """Quanta of the last queue while the running node at this place runs on for `slots`."""
    got = 0
    while True:
        _, _, own, left, _ = links[at]
        if slots >= left:
            got += _count(pairs, per_phase, at, slots - left)
            slots = left
        if at == len(links) - 1:
            return got + min(own, slots)
        slots -= own
        if slots <= 0:
            return got
        if own:
            return got + _count(pairs, per_phase, at + 1, slots)
        if not links[at + 1][4]:
            return got
        at += 1


def _per_phase(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Quanta of the last queue in a full phase of the node at each place (0 for the first, which has no phases)."""
    found = [0] * len(pairs)
    for at in range(len(pairs) - 1, 0, -1):
        length, round_length = pairs[at - 1]
        found[at] = _count(pairs, found, at, round_length - length)
    return found


def _count(pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, slots: int) -> int:
    """Quanta of the last queue in `slots` from the beginning of the node at this place."""
    got, last = 0, len(pairs) - 1
    while True:
        length, round_length = pairs[at]
        rounds, slots = divmod(slots, round_length)
        if at == last:
            return got + rounds * length + min(slots, length)
        got += rounds * per_phase[at + 1]
        slots -= length
        if slots <= 0:
            return got
        at += 1


def _fresh(pairs: Sequence[tuple[int, int]], per_phase: Sequence[int], at: int, quanta: int) -> int:
    """Slots from the beginning of the node at this place until the last queue has got so many quanta."""
    slots, last = 0, len(pairs) - 1
    while at < last:
        length, round_length = pairs[at]
        rounds = (quanta - 1) // per_phase[at + 1]
        quanta -= rounds * per_phase[at + 1]
        slots += rounds * round_length + length
        at += 1
    length, round_length = pairs[last]
    rounds, rest = divmod(quanta - 1, length)
    return slots + rounds * round_length + rest + 1
