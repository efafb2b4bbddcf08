"""Paper 002, its runs: one run as a value, what is measured of it, and which ones checks and tables need.

The same functions first say which runs they need, then read what was measured (`Paper002Runs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

from rmgr.sched.tree.allocation import AllocationRule
from rmgr.sched.tree.rotation import Newcomers
from rmgr.sched.tree.shape import Tree
from rmgr.sim.gangs import SLOTS, Sharing, SlotsOutcome, Spec, Task, drawn, run, run_batch
from rmgr.sim.papers.paper002.exact import EXACT
from rmgr.sim.papers.report import mean, spread

#: Sizes of tasks go up to half of the machine and no further than this (why: `NOTES` of the report).
LARGEST = 256
#: dqt and batch are runs of a workload; the others are counts of violations (`exact.py`).
Kind: TypeAlias = Literal["dqt", "batch", "schedule", "guarantees", "skipping", "weights"]
#: Of the tree in figures 8 to 10; 2^7 is that of tables 2 to 4.
HEIGHTS = (7, 8, 9, 10, 11)
TABLES_HEIGHT = 7
#: Trees higher than this are run with `_FEW` seeds; batches are quick, and run with all.
_LOW, _FEW = 9, 2


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


class Paper002Runs:
    """Measures of runs by what was run. Before anything was measured (`measures` None) it takes down what is asked, and answers ones."""

    def __init__(
        self,
        seeds: Sequence[int],
        measures: Mapping[Paper002Run, Measures] | None = None,
        *,
        heights: Sequence[int] = HEIGHTS,
        slots: int = SLOTS,
    ) -> None:
        self.seeds, self.heights = tuple(seeds), tuple(heights)
        self.asked: dict[Paper002Run, None] = {}
        self._measures, self._slots = measures, slots

    def all(self, *, height: int = TABLES_HEIGHT, **fields: Any) -> list[Measures]:
        """Of each seed. fields: of `Paper002Run`."""
        seeds = self.seeds if height <= _LOW or fields.get("kind") == "batch" else self.seeds[:_FEW]
        fields = {"leaves": 1 << height, **fields}
        cells = [Paper002Run(seed=seed, slots=self._slots, **fields) for seed in seeds]
        if self._measures is None:
            self.asked.update(dict.fromkeys(cells))
            return [_UNKNOWN] * len(cells)
        return [self._measures[cell] for cell in cells]

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
