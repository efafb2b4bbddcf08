"""Paper 001, its tables and figures: the paper's numbers beside ours, figures 2 to 5, other readings, ageing."""

from __future__ import annotations

from collections.abc import Sequence

from rmgr.sim.papers.paper001.asked import Paper001Runs
from rmgr.sim.papers.paper001.checks import (
    BUSY,
    INTERVALS,
    LESS_BUSY,
    MIGRATING,
    PAPER_MIGRATIONS,
    PAPER_STARVED,
    PENALTIES,
    RUN,
    SR,
    growth,
)
from rmgr.sim.papers.paper001.runs import ALGORITHMS
from rmgr.sim.papers.report import Cell, Figure, Point, Table, mean

#: papers.md 2.4, measured with followers=any, suspend=minimal: measure -> algorithm -> value, at 500 and at 600 min.
_EARLIER = {
    BUSY: {
        SR: (21, 1.78, 127, 1.64, 1.61, 1.54, 1.95),
        "utilisation": (0.707, 0.699, 0.709, 0.704, 0.709, 0.725, 0.726),
        "starved": (8, 120, 15, 120, 108, 68, 63),
        "migrations": (None, None, None, None, None, 883, 760),
    },
    LESS_BUSY: {
        SR: (6.3, 1.42, 17.0, 1.39, 1.48, 1.30, 1.43),
        "utilisation": (0.604, 0.598, 0.603, 0.599, 0.600, 0.606, 0.606),
        "starved": (46, 116, 42, 114, 111, 81, 81),
        "migrations": (None, None, None, None, None, 517, 483),
    },
}
_PRINTED = {"starved": PAPER_STARVED, "migrations": PAPER_MIGRATIONS}
_CALLED = {SR: "SR", "utilisation": "utilisation", "starved": "starved (6)", "migrations": "migrations"}
#: Minutes that a job waits before ageing puts it first.
WAITS = {0: "none", 10_080: "7 days", 43_200: "30 days"}
#: papers.md 2.4: with repetitions, 87 and 77 starved without migration; and a grid that is saturated.
REPEATED, SATURATED = 400, 370


def tables(runs: Paper001Runs) -> tuple[Table, ...]:
    return (
        _beside(runs, BUSY),
        _beside(runs, LESS_BUSY),
        _over_intervals(runs, "Figure 2: slowdown ratio", SR),
        _over_intervals(runs, "Figure 3: utilisation", "utilisation"),
        _penalties(runs),
        _starved(runs),
        _other_readings(runs),
        _mean_of_ratios(runs),
        _ageing(runs),
    )


def figures(runs: Paper001Runs) -> tuple[Figure, ...]:
    migrating = [name for _, name in MIGRATING]
    return (
        _lines(runs, "Figure 2: slowdown ratio", "mean response time / mean run time", SR, list(ALGORITHMS), logarithmic=True),
        _lines(runs, "Figure 3: utilisation", "share of nodes that run a job", "utilisation", list(ALGORITHMS)),
        Figure(
            title="Figure 4: cost of migration",
            x_label="penalty [min a node]",
            y_label=f"growth of the mean run time over penalty {PENALTIES[0]} [%]",
            lines=tuple((name, tuple(_point(p, [100 * g for g in growth(runs, name, p)]) for p in PENALTIES)) for name in migrating),
        ),
        _lines(runs, "Figure 5: starved jobs", "jobs that starve by rule (6)", "starved", [name for pair in MIGRATING for name in pair]),
    )


def _lines(runs: Paper001Runs, title: str, label: str, measure: str, names: Sequence[str], *, logarithmic: bool = False) -> Figure:
    lines = tuple((name, tuple(_point(interval, runs.of(measure, name, interval)) for interval in INTERVALS)) for name in names)
    return Figure(title=title, x_label="mean inter-arrival time [min]", y_label=label, lines=lines, logarithmic=logarithmic)


def _point(x: float, values: Sequence[float]) -> Point:
    return Point(x, mean(values), min(values), max(values))


def _beside(runs: Paper001Runs, interval: int) -> Table:
    """The paper's printed numbers and those of papers.md 2.4 beside ours."""
    rows: list[tuple[Cell, ...]] = []
    for measure, earlier in _EARLIER[interval].items():
        for name, before in zip(ALGORITHMS, earlier, strict=True):
            if measure != "migrations" or ALGORITHMS[name].migrates:
                values = runs.of(measure, name, interval)
                printed = _PRINTED.get(measure, {}).get(name) if interval == BUSY else None
                spread = runs.spread(measure, name, interval)
                rows.append((f"{_CALLED[measure]}, {name}", printed, before, mean(values), spread, min(values), max(values)))
    columns = ("measure", "paper", "papers.md 2.4", "ours", "spread", "least", "most")
    return Table(title=f"At {interval} min: the paper and ours", columns=columns, rows=tuple(rows))


def _over_intervals(runs: Paper001Runs, title: str, measure: str) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (interval, *(runs.mean(measure, name, interval) for name in ALGORITHMS)) for interval in INTERVALS
    )
    return Table(title=title, columns=("interval [min]", *ALGORITHMS), rows=rows)


def _penalties(runs: Paper001Runs) -> Table:
    names = [name for _, name in MIGRATING]
    least = {name: runs.mean(RUN, name, BUSY, penalty=PENALTIES[0]) for name in names}
    rows: list[tuple[Cell, ...]] = []
    for penalty in PENALTIES:
        row: list[Cell] = [penalty]
        for name in names:
            value = runs.mean(RUN, name, BUSY, penalty=penalty)
            row += [value, 100 * (value / least[name] - 1), runs.mean("migrations", name, BUSY, penalty=penalty)]
        rows.append(tuple(row))
    columns = ["penalty [min]"]
    for name in names:
        columns += [f"{name}: mean run [min]", "growth [%]", "migrations"]
    return Table(title="Figure 4: cost of migration", columns=tuple(columns), rows=tuple(rows))


def _starved(runs: Paper001Runs) -> Table:
    rows = []
    for name in ALGORITHMS:
        row: list[Cell] = [name, PAPER_STARVED.get(name)]
        for interval in (BUSY, LESS_BUSY, 2000):
            row += [runs.mean("starved", name, interval), runs.mean("starved_at_head", name, interval)]
        rows.append(tuple(row))
    columns = ("algorithm", "paper", "500: (6)", "500: (6')", "600: (6)", "600: (6')", "2000: (6)", "2000: (6')")
    return Table(title="Figure 5: starved jobs", columns=columns, rows=tuple(rows))


def _other_readings(runs: Paper001Runs) -> Table:
    """followers=strict and any, suspend=minimal, repetitions, saturation."""
    readings: list[tuple[str, int, dict[str, str]]] = [(f"{interval} min", interval, {}) for interval in (BUSY, LESS_BUSY)]
    for how in ({"followers": "any"}, {"followers": "strict"}, {"suspend": "minimal"}, {"followers": "any", "suspend": "minimal"}):
        told = ", ".join(f"{name}={value}" for name, value in how.items())
        readings += [(f"{interval} min, {told}", interval, how) for interval in (BUSY, LESS_BUSY)]
    rows: list[tuple[Cell, ...]] = []
    for _, name in MIGRATING:
        for told, interval, how in readings:
            rows.append((f"{name}, {told}", *_measures(runs, name, interval, **how)))
    for interval, told, repeat in ((REPEATED, "with repetitions", True), (SATURATED, "saturated", False)):
        names = [name for pair in MIGRATING for name in pair]
        rows += [(f"{name}, {interval} min, {told}", *_measures(runs, name, interval, repeat=repeat)) for name in names]
    columns = ("reading", "SR", "utilisation", "migrations", "jobs migrated", "most of one job", "starved (6)", "starved (6')")
    return Table(title="Other readings of the paper", columns=columns, rows=tuple(rows))


def _measures(runs: Paper001Runs, name: str, interval: int, **how: object) -> list[float]:
    wanted = (SR, "utilisation", "migrations", "migrated", "most_of_one", "starved", "starved_at_head")
    return [runs.mean(measure, name, interval, **how) for measure in wanted]


def _mean_of_ratios(runs: Paper001Runs) -> Table:
    columns = ("algorithm", "500: ratio of means", "500: mean of ratios", "600: ratio of means", "600: mean of ratios")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(runs.mean(measure, name, interval) for interval in (BUSY, LESS_BUSY) for measure in (SR, "mean_of_ratios")))
        for name in ALGORITHMS
    )
    return Table(title="Ratio of means and mean of ratios", columns=columns, rows=rows)


def _ageing(runs: Paper001Runs) -> Table:
    """papers.md 2.6: the paper's future work, starvation by sorting, and what ageing does to it."""
    rows: list[tuple[Cell, ...]] = []
    for name in ("SJF", "LJF", "LJF/FF", "LJF/FF+mig"):
        for interval in (BUSY, LESS_BUSY):
            for wait, told in WAITS.items():
                measures = [runs.mean(m, name, interval, max_wait=wait) for m in ("starved", SR, "mean_wait", "longest_wait")]
                rows.append((f"{name} at {interval}", told, *measures))
    columns = ("queue", "max_wait", "starved (6)", "SR", "mean wait [min]", "longest wait [min]")
    return Table(title="Future work: ageing against starvation by sorting", columns=columns, rows=tuple(rows))
