"""Statements of paper 002 that hold exactly: table 1, guarantees of section 3, skipping, shares by weight. Each counts what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from rmgr.sched.tree.allocation import AllocationRule
from rmgr.sched.tree.rotation import Newcomers, Rotation
from rmgr.sched.tree.shape import Tree, is_balanced, is_fulfilled
from rmgr.sched.tree.stepped import Stepped
from rmgr.sim.gangs import Sharing, Task, run, stepped
from rmgr.sim.workload.jobs import stream

#: (violations, (weight, quanta over those of weight 1))
Found: TypeAlias = tuple[int, tuple[tuple[int, float], ...]]

#: Figure 1: entries of the queues 0 to 6.
FIGURE_1 = (2, 2, 1, 1, 2, 3, 2)
#: Table 1: of each slot, Q_i(j) on the four processors, as 10 i + j.
TABLE_1 = (
    (0, 0, 0, 0),
    (1, 1, 1, 1),
    (10, 10, 20, 20),
    (11, 11, 50, 60),
    (30, 40, 51, 61),
    (30, 41, 52, 60),
    (0, 0, 0, 0),
    (1, 1, 1, 1),
    (10, 10, 20, 20),
    (11, 11, 50, 61),
    (30, 40, 51, 60),
    (30, 41, 52, 61),
    (0, 0, 0, 0),
)
_TREES = 60
_WORKLOADS, _SKIPPED_SLOTS = 10, 20_000
WEIGHTS = (1, 2, 4)


def table_1() -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The slots of table 1, stepped and skipped."""
    tree = Tree(2, 4)
    plain, fast = Stepped(tree), Rotation(tree)
    for node, length in enumerate(FIGURE_1):
        for j in range(length):
            plain.add(10 * node + j, node, 1000)
            fast.add(10 * node + j, node, 1000)
    found: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    for _ in TABLE_1:
        for rows, row in zip(found, (plain.slot(), fast.row()), strict=True):
            on = [-1] * tree.leaves
            for node, task in row:
                low, high = tree.span(node)
                on[low:high] = [task] * (high - low)
            rows.append(tuple(on))
        fast.advance(1)
    return found


def _schedule(_seed: int, _slots: int) -> Found:
    plain, skipped = table_1()
    return sum(a != b for rows in (plain, skipped) for a, b in zip(rows, TABLE_1, strict=True)), ()


def _guarantees(seed: int, _slots: int) -> Found:
    """C2.10 on random trees: each task in each window of max-TQLB slots; balanced and fulfilled trees leave nothing idle."""
    chance, broken = stream(seed, "guarantees"), 0
    for at in range(_TREES):
        tree = Tree(chance.choice([2, 3]), chance.randint(2, 16))
        rotation = Rotation(tree)
        lengths = {node: chance.randint(0, 3) for node in range(tree.nodes) if tree.sizes[node]}
        if not at % 3:  # the same on each level: balanced
            level = [chance.randint(0, 2) for _ in range(tree.height + 1)]
            lengths = {node: level[tree.depth[node]] for node in lengths}
        task = 0
        for node, length in lengths.items():
            for _ in range(length):
                task += 1
                rotation.add(task, node, 10**9)
        window = rotation.rounds[0]
        if not window:
            continue
        rotation.advance(chance.randint(window, 9 * window))
        last = dict.fromkeys(range(1, task + 1), -1)
        for slot in range(4 * window):
            row = rotation.row()
            if is_fulfilled(tree, lengths) or is_balanced(tree, lengths):
                broken += sum(tree.sizes[node] for node, _ in row) != tree.processors
            for _, one in row:
                gap = slot - last[one]
                broken += gap > window or (is_balanced(tree, lengths) and last[one] >= 0 and gap != window)
                last[one] = slot
            rotation.advance(1)
        broken += sum(4 * window - slot > window for slot in last.values())
    return broken, ()


def _skipping(seed: int, slots: int) -> Found:
    """C2.12: ends and utilisation of random workloads, event to event and slot by slot."""
    chance, broken = stream(seed, "skipping"), 0
    slots = min(slots, _SKIPPED_SLOTS)
    for _ in range(_WORKLOADS):
        height = chance.randint(2, 5)
        tree = Tree(2, 1 << height)
        sharing = Sharing(allocation=chance.choice(list(AllocationRule)), newcomers=chance.choice(list(Newcomers)))
        tasks = random_tasks(chance, tree, slots)
        plain, out = stepped(tasks, tree, slots, sharing), run(tasks, tree, slots, sharing)
        broken += sum(a != b for a, b in zip(plain[0], out.ends, strict=True)) + (plain[1] != out.used)
    return broken, ()


def random_tasks(chance: Random, tree: Tree, slots: int) -> list[Task]:
    """Short tasks of any size and weight at random times: many events, queues that empty and fill."""
    count = chance.randint(20, 200)
    times = sorted(chance.randint(0, slots) for _ in range(count))
    return [
        Task(at, chance.randint(1, tree.leaves), chance.randint(1, 2 * slots // count + 1), chance.choice([1, 1, 2, 3])) for at in times
    ]


def _weights(seed: int, _slots: int) -> Found:
    """C2.13: jobs of one queue that never end, weights 1, 2 and 4, while other tasks come and go."""
    chance = stream(seed, "shares")
    tree, whole = Tree(2, 32), 10**9
    rotation, shares = Rotation(tree), dict.fromkeys(WEIGHTS, 0)
    home = chance.choice([1, 4, 9])
    for weight in WEIGHTS:
        rotation.add(-weight, home, whole, weight)
    task = 0
    while rotation.now < 20_000:
        task += 1
        rotation.add(task, chance.randrange(tree.nodes), chance.randint(1, 400), chance.choice(WEIGHTS))
        until = rotation.now + chance.randint(1, 100)
        while rotation.now < until:
            rotation.advance(rotation.next_end(until - rotation.now) or until - rotation.now)
            rotation.finish()
    rotation.settle()
    rest = rotation.queues[home].rest()
    for weight in WEIGHTS:
        shares[weight] = whole - rest[-weight]
    return 0, tuple((weight, shares[weight] / shares[1]) for weight in WEIGHTS)


EXACT: Mapping[str, Callable[[int, int], Found]] = {
    "schedule": _schedule,
    "guarantees": _guarantees,
    "skipping": _skipping,
    "weights": _weights,
}
