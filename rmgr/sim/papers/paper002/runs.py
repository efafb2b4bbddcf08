"""Paper 002, its runs: one run as a value, what is measured of it, how checks and tables ask for it; and what holds exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

from rmgr.sched.tree.allocation import AllocationRule
from rmgr.sched.tree.rotation import Newcomers, Rotation
from rmgr.sched.tree.shape import Tree, is_balanced, is_fulfilled
from rmgr.sched.tree.stepped import Stepped
from rmgr.sim.gangs import SLOTS, Sharing, SlotsOutcome, Spec, Task, drawn, run, run_batch, stepped
from rmgr.sim.papers.report import Runs, mean, spread
from rmgr.sim.workload.jobs import stream

#: Sizes of tasks go up to half of the machine and no further than this (why: `NOTES` of the report).
LARGEST = 256
#: dqt and batch are runs of a workload; the others are counts of violations (`EXACT`).
Kind: TypeAlias = Literal["dqt", "batch", "schedule", "guarantees", "skipping", "weights"]
#: Of the tree in figures 8 to 10; 2^7 is that of tables 2 to 4.
HEIGHTS = (7, 8, 9, 10, 11)
QUICK_HEIGHTS = (7, 8)
TABLES_HEIGHT = 7
#: Trees higher than this are run with `_FEW` seeds; batches are quick, and run with all.
_LOW, _FEW = 9, 2

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper002Run:
    """Settings of one run.

    leaves: processors. odd: sizes that are no powers. messages: count them. weights: drawn for each task. largest: size of a task;
    None: half of the machine, at most `LARGEST`.
    """

    kind: Kind = "dqt"
    leaves: int = 128
    width: int = 2
    load: float = 0.0
    seed: int = 1
    allocation: AllocationRule = AllocationRule.BF_APA
    newcomers: Newcomers = Newcomers.THIS_ROUND
    switch: float = 0.0
    weights: tuple[int, ...] = (1,)
    odd: bool = False
    messages: bool = False
    largest: int | None = None
    slots: int = SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Measures of one run; 0 where its kind has none. tqlb: mean, median, 90 and 99 per cent over time. by_weight: (weight, mean RETR).

    violations: of a count; ratios: (weight, quanta over those of weight 1).
    """

    utilisation: float = 0.0
    useful: float = 0.0
    most_tqlb: int = 0
    retr: float = 0.0
    breaches: int = 0
    ended: int = 0
    longest_queue: int = 0
    tqlb: tuple[float, int, int, int] = (0.0, 0, 0, 0)
    by_weight: tuple[tuple[int, float], ...] = ()
    per_slot: float = 0.0
    per_task: float = 0.0
    violations: int = 0
    ratios: tuple[tuple[int, float], ...] = ()


def measure(cell: Paper002Run) -> Measures:
    """Runs it."""
    if cell.kind not in {"dqt", "batch"}:
        violations, ratios = EXACT[cell.kind](cell.seed, cell.slots)
        return Measures(violations=violations, ratios=ratios)
    largest = cell.largest or min(cell.leaves // 2, LARGEST)
    spec = Spec(
        processors=cell.leaves,
        load=cell.load,
        largest=largest,
        seed=cell.seed,
        slots=cell.slots,
        odd=cell.odd,
        weights=cell.weights,
    )
    tasks = drawn(spec)
    if cell.kind == "batch":
        batch = run_batch(tasks, cell.leaves, cell.slots)
        return Measures(utilisation=batch.utilisation, longest_queue=batch.longest_queue)
    sharing = Sharing(allocation=cell.allocation, newcomers=cell.newcomers, switch=cell.switch)
    out = run(tasks, Tree(cell.width, cell.leaves), cell.slots, sharing, count_messages=cell.messages)
    return Measures(
        utilisation=out.utilisation,
        useful=out.useful_utilisation * (1 - cell.switch),
        most_tqlb=out.most_tqlb,
        retr=out.mean_retr,
        breaches=out.breaches,
        ended=len(out.retr),
        tqlb=_spread(out.tqlb),
        by_weight=_by_weight(out, tasks),
        per_slot=out.messages.per_slot if out.messages is not None else 0.0,
        per_task=out.messages.per_task if out.messages is not None else 0.0,
    )


def _by_weight(out: SlotsOutcome, tasks: list[Task]) -> tuple[tuple[int, float], ...]:
    found: dict[int, list[float]] = {}
    for task, end in zip(tasks, out.ends, strict=True):
        if end >= 0:
            found.setdefault(task.weight, []).append((end - task.arrival) / task.length)
    return tuple((weight, fmean(ratios)) for weight, ratios in sorted(found.items()))


def _spread(lasting: Counter[int]) -> tuple[float, int, int, int]:
    whole = sum(lasting.values())
    found, passed, marks = [], 0, [0.5, 0.9, 0.99]
    for value, slots in sorted(lasting.items()):
        passed += slots
        while marks and passed >= marks[0] * whole:
            found.append(value)
            del marks[0]
    return sum(value * slots for value, slots in lasting.items()) / whole, found[0], found[1], found[2]


_UNKNOWN = Measures(
    utilisation=1.0,
    useful=1.0,
    most_tqlb=1,
    retr=1.0,
    ended=1,
    longest_queue=1,
    tqlb=(1.0, 1, 1, 1),
    by_weight=((1, 1.0), (2, 1.0), (4, 1.0)),
    ratios=((1, 1.0), (2, 1.0), (4, 1.0)),
)


class Paper002Runs(Runs[Paper002Run, Measures]):
    """Measures by load, height of the tree and policy, a value a seed.

    heights: of figures 8 to 10. slots: of each run; fewer give a look, not a result. quick: two heights, and of the tables those of the
    figures.
    """

    def __init__(self, seeds: Sequence[int], *, heights: Sequence[int] = HEIGHTS, slots: int = SLOTS, quick: bool = False) -> None:
        super().__init__(seeds, _UNKNOWN, measure, quick=quick)
        self.heights = QUICK_HEIGHTS if quick else tuple(heights)
        self._slots = slots
        if slots != SLOTS:
            self.remarks = (f"{slots:,} slots were run, not {SLOTS:,}: a look, not a result.",)

    def all(self, *, height: int = TABLES_HEIGHT, **fields: Any) -> list[Measures]:
        """Of each seed. fields: of `Paper002Run`."""
        seeds = self.seeds if height <= _LOW or fields.get("kind") == "batch" else self.seeds[:_FEW]
        fields = {"leaves": 1 << height, **fields}
        return [self[Paper002Run(seed=seed, slots=self._slots, **fields)] for seed in seeds]

    def of(self, what: str | Callable[[Measures], float], **fields: Any) -> list[float]:
        """One value a seed."""
        if callable(what):
            return [float(what(found)) for found in self.all(**fields)]
        return [float(getattr(found, what)) for found in self.all(**fields)]

    def mean(self, what: str | Callable[[Measures], float], **fields: Any) -> float:
        return mean(self.of(what, **fields))

    def spread(self, what: str | Callable[[Measures], float], **fields: Any) -> float:
        return spread(self.of(what, **fields))

    def median(self, what: str, **fields: Any) -> float:
        return median(self.of(what, **fields))


# -- statements that hold exactly: table 1, guarantees of section 3, skipping, shares by weight; each counts what breaks it ----


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
