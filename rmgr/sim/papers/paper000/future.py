"""Paper 000, its future work (section 5; papers.md 2.6): thresholds, limits of reservations, reservation in queues of small jobs.

And what it leaves open (papers.md 1.4, 1.8): the order in which the queues are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TypeAlias

from rmgr.sched.queue_class import HPC2500, Ladder
from rmgr.sim.papers.paper000.claims import ROWS
from rmgr.sim.papers.paper000.runs import CONVENTIONAL, PROPOSAL_1, PROPOSAL_2, Measured, Paper000Run
from rmgr.sim.papers.report import Cell, Figure, Point, Table, mean

THRESHOLDS = (5, 10, 20, 30, 40)
LIMITS = (0, 1, 2, 3, 4)
LOAD = Fraction("1.10")
#: Smaller than the figures': there are 41 settings.
JOBS = 3_000
SMALL = ("ss8", "s8")
#: Queues in the order of scanning.
ORDERS: Mapping[str, Ladder] = {"small": HPC2500, "large": HPC2500[::-1]}
SCANNED = (CONVENTIONAL, PROPOSAL_1, PROPOSAL_2)
#: Queues of the figures.
LONGEST, MEDIAN = ("ss8", "s128", "d32", "d128", "d512", "all"), ("s128", "d128", "d512")

#: (threshold, limit, the small queues have the limit too).
Setting: TypeAlias = tuple[int, int, bool]


def settings() -> list[Setting]:
    """Every one; at limit 0 nothing else matters."""
    return [(THRESHOLDS[0], 0, False), *product(THRESHOLDS, LIMITS[1:], (False, True))]


def classes(setting: Setting) -> Ladder:
    """The paper's, with one threshold and one limit for all queues that reserve."""
    threshold, limit, small = setting
    return tuple(
        replace(queue, reservation_threshold=threshold, max_reservations=limit) if small or queue.name not in SMALL else queue
        for queue in HPC2500
    )


def cells(seeds: Sequence[int]) -> list[Paper000Run]:
    """The runs, each once."""
    kinds = [(PROPOSAL_2, classes(setting)) for setting in settings()] + list(product(SCANNED, ORDERS.values()))
    found = (Paper000Run(system=system, load=LOAD, seed=seed, jobs=JOBS, queues=queues) for system, queues in kinds for seed in seeds)
    return list(dict.fromkeys(found))


def tables(found: Mapping[Paper000Run, Measured], seeds: Sequence[int]) -> Iterator[Table]:
    """Medians and maxima by queue: of the sweep, then of the orders of scanning."""
    small = f"{JOBS:,} jobs, load {float(LOAD):g}, {len(seeds)} seeds"
    for title, measure in (("median", "median_s"), ("longest", "max_s")):
        rows: list[tuple[Cell, ...]] = []
        for setting in settings():
            threshold, limit, with_small = setting
            values = (round(value, 1) for value in (_mean(found, setting, seeds, queue, measure) for queue in ROWS))
            rows.append((threshold if limit else None, limit, limit if with_small else 0, *values))
        columns = ("threshold", "limit", "limit of ss8 and s8", *ROWS)
        yield Table(title=f"Future work: {title} wait (s), {small}", columns=columns, rows=tuple(rows))
    orders: list[tuple[Cell, ...]] = []
    for system, (order, queues) in product(SCANNED, ORDERS.items()):
        runs = [found[Paper000Run(system=system, load=LOAD, seed=seed, jobs=JOBS, queues=queues)] for seed in seeds]
        for measure, told in (("median_s", "median"), ("mean_s", "mean"), ("max_s", "longest")):
            values = (round(mean([_of(run, queue, measure) for run in runs]), 1) for queue in ROWS)
            orders.append((system, order, told, *values))
    columns = ("system", "queues scanned first", "wait", *ROWS)
    yield Table(title=f"The order of scanning (s), {small}", columns=columns, rows=tuple(orders))


def figures(found: Mapping[Paper000Run, Measured], seeds: Sequence[int]) -> Iterator[Figure]:
    """Longest and median wait against the threshold, a line for each limit of the large queues, a figure for each of some queues."""
    kinds = [("longest", "max_s", queue) for queue in LONGEST] + [("median", "median_s", queue) for queue in MEDIAN]
    for told, measure, queue in kinds:
        lines = []
        for limit in LIMITS[1:]:
            points = []
            for threshold in THRESHOLDS:
                values = [_value(found, (threshold, limit, False), seed, queue, measure) / 3600 for seed in seeds]
                points.append(Point(threshold, mean(values), min(values), max(values)))
            lines.append((f"limit {limit}", tuple(points)))
        yield Figure(
            title=f"Future work: {told} wait in {queue} by threshold and limit",
            x_label="threshold of individual priority",
            y_label=f"{told} wait (h)",
            lines=tuple(lines),
        )


def _mean(found: Mapping[Paper000Run, Measured], setting: Setting, seeds: Sequence[int], queue: str, measure: str) -> float:
    return mean([_value(found, setting, seed, queue, measure) for seed in seeds])


def _value(found: Mapping[Paper000Run, Measured], setting: Setting, seed: int, queue: str, measure: str) -> float:
    cell = Paper000Run(system=PROPOSAL_2, load=LOAD, seed=seed, jobs=JOBS, queues=classes(setting))
    return _of(found[cell], queue, measure)


def _of(run: Measured, queue: str, measure: str) -> float:
    waits = run.waits.get(queue)
    return 0.0 if waits is None else float(getattr(waits, measure))
