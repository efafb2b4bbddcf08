"""One run of paper 002 as a value, and what is measured of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from rmgr.sched.tree.allocation import AllocationRule
from rmgr.sched.tree.rotation import Newcomers
from rmgr.sched.tree.shape import Tree
from rmgr.sim.gangs import SLOTS, Sharing, SlotsOutcome, Spec, Task, drawn, run, run_batch
from rmgr.sim.papers.paper002.exact import EXACT

#: Sizes of tasks go up to half of the machine and no further than this (why: `NOTES` of the report).
LARGEST = 256

#: dqt and batch are runs of a workload; the others are counts of violations (`exact.py`).
Kind: TypeAlias = Literal["dqt", "batch", "schedule", "guarantees", "skipping", "weights"]


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
