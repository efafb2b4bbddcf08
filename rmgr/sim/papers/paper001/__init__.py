"""Paper 001 again: migration against starvation on a grid (Iwakiri, Yamamori, Yoshihara, Aikawa; papers.md section 2).

`runs` measures, `checks` judges; tables and figures are drawn here. It may use what is below `papers`, and no other paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rmgr.sim.papers.paper001.checks import (
    BUSY,
    CHECKS,
    LESS_BUSY,
    MIGRATING,
    PAPER_MIGRATIONS,
    PAPER_RATIO,
    PAPER_STARVED,
    RUN,
    SR,
    growth,
    readings,
)
from rmgr.sim.papers.paper001.runs import ALGORITHMS, CALIBRATIONS, PENALTIES, Paper001Runs
from rmgr.sim.papers.report import Cell, Figure, Point, Study, Table, mean

#: Required checks that are known not to hold: the experiment that shows why (papers.md 7).
EXPECTED: Mapping[str, str] = {
    "C1.8c": "table Readings: of 36 none comes near; followers that are counted and those that are moved do not explain it",
    "C1.9": "tables Figure 5 and Calibrations: at load .42 (6) counts who waits for jobs that were there before, which nobody may move",
    "C1.9b": "table Readings: 93 and 78 without migration are met, 0 with it by no reading: see C1.9; by (1) itself it is 0 (C1.9e)",
}

#: Where the paper contradicts itself or is silent, and what we read.
NOTES = (
    "(1) is printed N_top >= N_follow + N_idle, so the head could start only when it need not wait; its text says <=, which we use.",
    "4.2 says N_top is never below the nodes of the suspended followers; with <= it can be, for whole jobs go. Utilisation rises anyway.",
    "(5) is a ratio of means; the mean of the jobs' own ratios ranks the algorithms otherwise (C1.10): short jobs that are suspended pay.",
    "(6) also counts a job that waits for its own size while the next 50 find free nodes, even under plain FCFS: no algorithm reaches 0.",
    "(6') counts it only if a later job started before it while it waited at the head: 0 for FCFS, SJF, LJF by construction.",
    "With migration the head changes more often, so more of the starved jobs were passed as head: (6') may rise where (6) falls.",
    "Followers are the jobs that passed this head; with followers=any, that passed any head, there are more migrations; with strict, that",
    "passed it while it was the head, fewer. All of them are suspended (2.3, figure 1); 4.2 speaks for the fewest: rows with an m.",
    "The paper gives neither speeds, sites' sizes, delay nor the model's constants: Spec uniform [0.5, 1.5], delay 10 min, papers.md 2.3.",
    "What is left of CommTime after a migration is not said: the same share as of CalcTime; the delay of (3) is paid at each start.",
    "Penalty 60 is called 20 times the mean run time: 1,024 x 60 / 20 = 3,072 min; CalcTime is calibrated to that, (2) and (3) included.",
    "A suspended job goes back to its own place in the queue, and all its waiting counts; the last 50 jobs are not judged by (6).",
)
_CALLED = {SR: "SR", "utilisation": "utilisation", RUN: "mean run [min]", "starved": "starved (6)", "migrations": "migrations"}
_PRINTED = {"starved": PAPER_STARVED, "migrations": PAPER_MIGRATIONS}
_BEFORE = "as before"
#: Minutes that a job waits before ageing puts it first.
WAITS = {0: "none", 10_080: "7 days", 43_200: "30 days"}
FIGURES = ("Figure 2: slowdown ratio", "Figure 3: utilisation", "Figure 4: cost of migration", "Figure 5: starved jobs")
#: Penalty 60 costs a job of 1,024 nodes 20 of them.
PAPER_RUN = 3072


# -- tables and figures: calibrations side by side, figures 2 to 5 of two of them, readings, ageing ----------------------------


def tables(runs: Paper001Runs) -> tuple[Table, ...]:
    shown = (*_of_figures(runs), _starved(runs), _mean_of_ratios(runs))
    if runs.quick:
        return shown
    three = runs.with_least_seeds()
    before = three.having(calibration=_BEFORE)
    return (
        _calibrations(three, BUSY),
        _calibrations(three, LESS_BUSY),
        *shown,
        *_of_figures(before, _BEFORE),
        _starved(before, _BEFORE),
        _readings(three),
        _ageing(three),
    )


def figures(runs: Paper001Runs) -> tuple[Figure, ...]:
    shown = tuple(_figures(runs))
    return shown if runs.quick else (*shown, *_figures(runs.with_least_seeds().having(calibration=_BEFORE), _BEFORE))


def _figures(runs: Paper001Runs, calibration: str = "") -> Iterator[Figure]:
    migrating = [name for _, name in MIGRATING]
    searching = [name for pair in MIGRATING for name in pair]
    slowdown, use, cost, starving = (_titled(title, calibration) for title in FIGURES)
    yield _lines(runs, slowdown, "mean response time / mean run time", SR, list(ALGORITHMS), logarithmic=True)
    yield _lines(runs, use, "share of nodes that run a job", "utilisation", list(ALGORITHMS))
    yield Figure(
        title=cost,
        x_label="penalty [min a node]",
        y_label=f"growth of the mean run time over penalty {PENALTIES[0]} [%]",
        lines=tuple((name, tuple(_point(p, [100 * g for g in growth(runs, name, p)]) for p in runs.penalties)) for name in migrating),
    )
    yield _lines(runs, starving, "jobs that starve by rule (6)", "starved", searching)


def _titled(title: str, calibration: str) -> str:
    """`Figure 2: slowdown ratio`, of another calibration `Figure 2, as before: slowdown ratio`."""
    number, what = title.split(": ")
    return f"{number}, {calibration}: {what}" if calibration else title


def _lines(runs: Paper001Runs, title: str, label: str, measure: str, names: Sequence[str], *, logarithmic: bool = False) -> Figure:
    lines = tuple((name, tuple(_point(interval, runs.of(measure, name, interval)) for interval in runs.intervals)) for name in names)
    return Figure(title=title, x_label="mean inter-arrival time [min]", y_label=label, lines=lines, logarithmic=logarithmic)


def _point(x: float, values: Sequence[float]) -> Point:
    return Point(x, mean(values), min(values), max(values))


def _calibrations(runs: Paper001Runs, interval: int) -> Table:
    """The paper's printed numbers beside ours, by what was calibrated."""
    rows: list[tuple[Cell, ...]] = []
    for what, called in _CALLED.items():
        for name in ALGORITHMS:
            if what != "migrations" or ALGORITHMS[name].migrates:
                values = [runs.having(calibration=its).mean(what, name, interval) for its in CALIBRATIONS]
                printed = _PRINTED.get(what, {}).get(name, PAPER_RUN if what == RUN else None)
                rows.append((f"{called}, {name}", printed, *values))
    return Table(title=f"Calibrations at {interval} min", columns=("measure", "paper", *CALIBRATIONS), rows=tuple(rows))


def _of_figures(runs: Paper001Runs, calibration: str = "") -> Iterator[Table]:
    slowdown, use, cost, _ = (_titled(title, calibration) for title in FIGURES)
    yield _over_intervals(runs, slowdown, SR)
    yield _over_intervals(runs, use, "utilisation")
    yield _penalties(runs, cost)


def _over_intervals(runs: Paper001Runs, title: str, measure: str) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (interval, *(runs.mean(measure, name, interval) for name in ALGORITHMS)) for interval in runs.intervals
    )
    return Table(title=title, columns=("min", *ALGORITHMS), rows=rows)


def _penalties(runs: Paper001Runs, title: str) -> Table:
    names = [name for _, name in MIGRATING]
    least = {name: runs.mean(RUN, name, BUSY, penalty=PENALTIES[0]) for name in names}
    rows: list[tuple[Cell, ...]] = []
    for penalty in runs.penalties:
        row: list[Cell] = [penalty]
        for name in names:
            value = runs.mean(RUN, name, BUSY, penalty=penalty)
            row += [value, 100 * (value / least[name] - 1), runs.mean("migrations", name, BUSY, penalty=penalty)]
        rows.append(tuple(row))
    columns = ["min a node"]
    for name in names:
        columns += [f"{name}: min", "growth [%]", "moved"]
    return Table(title=title, columns=tuple(columns), rows=tuple(rows))


def _starved(runs: Paper001Runs, calibration: str = "") -> Table:
    """At each interval: by rule (6), by (6'), and those that were held at the head while (1) held."""
    intervals = (BUSY, LESS_BUSY)
    rows = []
    for name in ALGORITHMS:
        row: list[Cell] = [name, PAPER_STARVED.get(name)]
        for interval in intervals:
            row += [runs.mean(measure, name, interval) for measure in ("starved", "starved_at_head", "held")]
        rows.append(tuple(row))
    columns = ("algorithm", "paper", *(f"{head}{kind}" for head in intervals for kind in (": (6)", " (6')", " held")))
    return Table(title=_titled(FIGURES[-1], calibration), columns=columns, rows=tuple(rows))


def _readings(runs: Paper001Runs) -> Table:
    """Every reading of 2.2 against the paper's two numbers of migrations; starved jobs are 93 and 78 without migration, and 0 with it."""
    rows: list[tuple[Cell, ...]] = []
    for reading in readings(runs):
        moved, starved, held = (reading.of(runs, measure) for measure in ("migrations", "starved", "held"))
        cells: list[Cell] = [str(reading)]
        cells += [round(moved[name]) for name in PAPER_MIGRATIONS]
        cells += [reading.ratio(runs), round(100 * reading.distance(runs))]
        cells += [round(starved[name]) for name in PAPER_STARVED]
        rows.append((*cells, round(held["FCFS/FF+mig"] + held["LJF/FF+mig"])))
    columns = ("reading", "moved F", "L", "F / L", "off %", "F", "L", "F+mig", "L+mig", "held")
    paper: tuple[Cell, ...] = ("the paper", *PAPER_MIGRATIONS.values(), PAPER_RATIO, 0, *PAPER_STARVED.values(), 0)
    return Table(title="Readings: migrations of FCFS and LJF, starved (6), held", columns=columns, rows=(paper, *rows))


def _mean_of_ratios(runs: Paper001Runs) -> Table:
    columns = ("algorithm", "500: (5)", "500: mean of ratios", "600: (5)", "600: mean of ratios")
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


STUDY = Study(
    paper="001",
    runs=Paper001Runs,
    seeds=6,
    quick_seeds=3,
    checks=CHECKS,
    tables=tables,
    figures=figures,
    notes=NOTES,
    expected=EXPECTED,
)
