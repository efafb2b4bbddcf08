"""Paper 000, automatic queue selection and connection reservation, run again: its exact statements, figures 2 and 3, its future work.

Kawanami, Yoshihisa, Kanazawa: batch queues of an HPC2500 (papers.md 1). The log is not public; the workload is the stand-in of papers.md
1.6, drawn once a seed and the same for every system. Nothing is tuned until a claim holds. `runs` measures, `checks` judges; what is shown
stands here: figures 2 and 3, the region in which the claims hold, the future work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import sqrt
from typing import NamedTuple, TypeAlias

from rmgr.model.base.units import counted
from rmgr.sched.queue_class import HPC2500, Ladder
from rmgr.sim.papers.paper000.checks import CHECKS, CLAIMS, CLEARLY, LARGE, SMALL, Claim, compared, judged
from rmgr.sim.papers.paper000.runs import (
    ALL,
    CONVENTIONAL,
    JOBS,
    LOADS,
    PARTITIONED,
    PROPOSAL_1,
    PROPOSAL_2,
    QUEUES,
    SYSTEMS,
    WARM_UP,
    Measured,
    Paper000Run,
    Paper000Runs,
)
from rmgr.sim.papers.report import Boxes, Cell, Figure, Point, Study, Table, mean, spread

ROWS = (*QUEUES, ALL)
#: Seeds of the future work and of the region, and their jobs: fewer than the figures', for there are many settings.
_SWEEP_SEEDS, _REGION_SEEDS = 2, 3
FEWER_JOBS = 3_000
#: Of the region (papers.md 1.9). The conventional system with First-Fit past others on so many nodes (0: all 11); -1: queues on nodes of
#: their own.
REGION_LOADS = (Fraction("0.9"), Fraction("1.2"), Fraction(2))
BASELINES = (0, 1, 4, 8, -1)
#: By name: jobs of at most 8 CPUs are so many times as frequent as in papers.md 1.6; the order in which queues are scanned (1.4: open).
MIXES: Mapping[str, tuple[int, Ladder]] = {"small first": (1, HPC2500), "x8, large first": (8, HPC2500[::-1])}
#: Of the future work.
THRESHOLDS = (5, 10, 20, 30, 40)
LIMITS = (0, 1, 2, 3, 4)
SWEEP_LOAD = Fraction("1.10")
#: Queues in the order of scanning.
ORDERS: Mapping[str, Ladder] = {"small": HPC2500, "large": HPC2500[::-1]}
SCANNED = (CONVENTIONAL, PROPOSAL_1, PROPOSAL_2)
#: Queues of its figures.
_LONGEST, _MEDIAN = ("ss8", "s128", "d32", "d128", "d512", "all"), ("s128", "d128", "d512")
#: (threshold, limit, the small queues have the limit too).
Reserving: TypeAlias = tuple[int, int, bool]

NOTES = (
    f"workload: {JOBS:,} jobs of the stand-in model hpc2500, on 11 nodes x 128 CPUs; the first {float(WARM_UP):.0%} of them are left out",
    f"every system gets the same jobs; loads {', '.join(f'{float(load):g}' for load in LOADS)} of the machine",
    "tables: means over the seeds; sd: standard deviation over them; in the table of claims 1 = holds, nothing = a tie",
    "conventional: the user names the queue, First-Fit in each queue over all CPUs; conventional_partitioned: queues on nodes of their own",
    f"'clearly above': more than {CLEARLY:.0%} above; 'about equal': within {CLEARLY:.0%}; of equals each is the lowest",
    "C0.8 to C0.11 depend on Kyoto's log, which is not public: they are reported, and nothing is tuned until they hold",
    "papers.md 1.4: the order between queues is open; here small queues first, so that they hardly ever wait in any system",
    (
        "C0.7: in s128, d32, d128 a job that came while another waited, and that no job of its own queue overtakes, never reserves (head "
        "reservation is for d512 only, as the paper has it): a stream of other queues can starve it; head_trigger of a class cures that"
    ),
    (
        "future work: a job with a reservation starts on what it is promised and nowhere else; in queues of small jobs, where First-Fit "
        "finds room soon, that makes the longest waits longer, not shorter"
    ),
)


def tables(runs: Paper000Runs) -> Iterator[Table]:
    yield from _of_figures(runs)
    yield _claims(runs)
    if not runs.quick:
        yield from _region(runs)
        yield from _future(runs)


def figures(runs: Paper000Runs) -> Iterator[Figure | Boxes]:
    for load in runs.loads:
        yield from boxes({system: runs.of(system, load) for system in SYSTEMS}, f"load {float(load):g}")
    if not runs.quick:
        yield from _most_agreeing(runs)
        yield from _by_threshold(runs)


# -- figures 2 and 3 -----------------------------------------------------------------------------------------------------------


def boxes(runs: Mapping[str, Sequence[Measured]], where: str) -> Iterator[Boxes]:
    """Figures 2 and 3: by queue, of each system the medians and the longest waits of its seeds."""
    for title, statistic, told in (("Figure 2", "median", "median"), ("Figure 3", "max", "longest")):
        yield Boxes(
            title=f"{title}: {told} wait, {where}",
            y_label=f"{told} wait of a seed (s)",
            groups=ROWS,
            boxes=tuple((name, tuple(tuple(run.wait_s(queue, statistic) for run in its) for queue in ROWS)) for name, its in runs.items()),
        )


def _of_figures(runs: Paper000Runs) -> Iterator[Table]:
    """Figures 2 and 3 and the mean wait as numbers, and what the systems make of the machine."""
    columns = ("queue", *(name for system in SYSTEMS for name in (system, f"{system} sd")))
    for title, statistic in (("Figure 2: median wait", "median"), ("Figure 3: longest wait", "max"), ("Mean wait", "mean")):
        for load in runs.loads:
            rows: list[tuple[Cell, ...]] = []
            for queue in ROWS:
                bars = [[run.wait_s(queue, statistic) for run in runs.of(system, load)] for system in SYSTEMS]
                rows.append((queue, *(number for values in bars for number in (round(mean(values), 1), round(spread(values), 1)))))
            yield Table(title=f"{title} at load {float(load):g} (s)", columns=columns, rows=tuple(rows))
    uses: list[tuple[Cell, ...]] = []
    for system, load in product(SYSTEMS, runs.loads):
        found = runs.of(system, load)
        made = (round(mean([run.made.get(queue, 0) for run in found]), 1) for queue in LARGE)
        uses.append((system, float(load), round(mean([run.utilisation for run in found]), 4), *made))
    columns = ("system", "load", "utilisation", *(f"reservations {queue}" for queue in LARGE))
    yield Table(title="Utilisation until the last end, reservations made", columns=columns, rows=tuple(uses))


def _claims(runs: Paper000Runs) -> Table:
    """Every verdict: 1 holds, 0 does not, nothing for a tie."""
    rows: list[tuple[Cell, ...]] = []
    for name, claim, baseline in compared():
        for load, queue, pairs, verdicts in judged(runs, claim, baseline):
            ours, other = (round(mean([pair[side] for pair in pairs]), 1) for side in (0, 1))
            rows.append((name, claim.system, ours, str(claim.relation), baseline, other, float(load), queue, *verdicts))
    columns: tuple[str, ...] = ("check", "system", "its mean (s)", "should be", "against", "that one's mean (s)", "load", "queue")
    columns += tuple(f"seed {seed}" for seed in runs.seeds)
    return Table(title="Claims of figures 2 and 3 by queue and seed", columns=columns, rows=tuple(rows))


# -- the region: where the claims hold, over loads, mixes and baselines in which small jobs do wait (papers.md 1.9) -------------

# The log of Kyoto is not public, so nobody knows the load and the mix of figures 2 and 3; the paper's conventional system lets jobs pass
# others on some nodes only, and does not say on how many. Each claim is asked for in every cell of these; ties decide nothing.


class Place(NamedTuple):
    """A cell: the load, the mix, the baseline."""

    load: Fraction
    mix: str
    nodes: int

    def of(self, runs: Paper000Runs, system: str) -> list[Measured]:
        """Of a system in it, a value a seed; `conventional` is its baseline."""
        small, queues = MIXES[self.mix]
        run = Paper000Run(system=system, load=self.load, seed=0, jobs=FEWER_JOBS, small=small, queues=queues)
        if system == CONVENTIONAL:
            run = replace(run, system=PARTITIONED) if self.nodes < 0 else replace(run, firstfit_nodes=self.nodes)
        return [runs[replace(run, seed=seed)] for seed in runs.seeds[:_REGION_SEEDS]]

    @property
    def baseline(self) -> str:
        return {0: "all nodes", -1: "partitioned"}.get(self.nodes, counted(self.nodes, "node"))

    def __str__(self) -> str:
        return f"load {float(self.load):g}, {self.mix}, {self.baseline}"


PLACES = tuple(Place(*each) for each in product(REGION_LOADS, MIXES, BASELINES))


class Votes(NamedTuple):
    """Of a claim in a place: in how many pairs (seed, queue) it holds, how many decide, and whether every queue has one that does."""

    holds: int
    decided: int
    whole: bool

    @property
    def agree(self) -> bool:
        return self.whole and self.holds == self.decided


def votes(runs: Paper000Runs, claim: Claim, place: Place) -> Votes:
    """Asks every seed and queue of the claim."""
    holds = decided = 0
    whole = True
    of_seeds = list(zip(*(place.of(runs, system) for system in SCANNED), strict=True))
    for queue in claim.queues:
        deciding = 0
        for of_it in of_seeds:
            bars = {name: run.wait_s(queue, claim.measure) for name, run in zip(SCANNED, of_it, strict=True)}
            pair = claim.compared(bars, claim.against or CONVENTIONAL)
            if not claim.relation.is_tie(*pair):
                deciding += 1
                holds += claim.relation.holds(*pair)
        decided += deciding
        whole = whole and deciding > 0
    return Votes(holds, decided, whole)


def interval(holds: int, decided: int) -> tuple[float, float]:
    """Of a share, 95 % (Wilson's score). 0 to 1 when nothing decides."""
    if not decided:
        return 0.0, 1.0
    z, share = 1.96, holds / decided
    middle = (share + z * z / (2 * decided)) / (1 + z * z / decided)
    half = z * sqrt(share * (1 - share) / decided + z * z / (4 * decided * decided)) / (1 + z * z / decided)
    return max(0.0, middle - half), min(1.0, middle + half)


def _most_agreeing(runs: Paper000Runs) -> Iterator[Boxes]:
    """Figures 2 and 3 in the place in which most claims hold, whatever it is."""
    place = max(PLACES, key=lambda place: sum(votes(runs, claim, place).agree for claim in CLAIMS))
    systems = {CONVENTIONAL: f"conventional, {place.baseline}", PROPOSAL_1: PROPOSAL_1, PROPOSAL_2: PROPOSAL_2}
    yield from boxes({told: place.of(runs, system) for system, told in systems.items()}, f"load {float(place.load):g}, {place.mix}")


def _region(runs: Paper000Runs) -> Iterator[Table]:
    """The region of each claim with its best place; then holds/decided in every place."""
    regions: list[tuple[Cell, ...]] = []
    every: list[tuple[Cell, ...]] = []
    for number, claim in enumerate(CLAIMS, 1):
        by_place = {place: votes(runs, claim, place) for place in PLACES}
        holding = [place for place, its in by_place.items() if its.agree]
        best = max(PLACES, key=lambda place: (by_place[place].agree, by_place[place].whole, interval(*by_place[place][:2])[0]))
        holds, decided, _ = by_place[best]
        low, high = interval(holds, decided)
        name = f"{claim.id}, {number}"
        regions.append((name, len(holding), str(best) if holds else "none", f"{holds}/{decided}", f"{low:.2f}-{high:.2f}"))
        for mix, nodes in product(MIXES, BASELINES if claim.against is None else BASELINES[:1]):
            row = [by_place[Place(load, mix, nodes)] for load in REGION_LOADS]
            told = [f"{its.holds}/{its.decided}{'' if its.whole else '?'}" for its in row]
            every.append((name, mix, "-" if claim.against else Place(REGION_LOADS[0], mix, nodes).baseline, *told))
    columns = ("claim", f"of {len(PLACES)}", "best place", "pairs", "95 %")
    size = f"{FEWER_JOBS:,} jobs, {len(runs.seeds[:_REGION_SEEDS])} seeds"
    yield Table(title=f"Where the claims hold, {size}", columns=columns, rows=tuple(regions))
    names = tuple(f"load {float(load):g}" for load in REGION_LOADS)
    title = "Claims by mix, baseline and load: pairs that hold/decide (? a queue never decides)"
    yield Table(title=title, columns=("claim", "mix", "baseline", *names), rows=tuple(every))
    yield Table(
        title="The claims by number",
        columns=("claim", "system", "measure", "queues", "relation"),
        rows=tuple((f"{c.id}, {n}", c.system, c.measure, " ".join(c.queues), str(c.relation)) for n, c in enumerate(CLAIMS, 1)),
    )


# -- future work (section 5 of the paper; papers.md 2.6): thresholds, limits of reservations, reservation in queues of small jobs;
# -- and what it leaves open (papers.md 1.4, 1.8): the order in which the queues are scanned


def swept() -> list[Reserving]:
    """Every setting; at limit 0 nothing else matters."""
    return [(THRESHOLDS[0], 0, False), *product(THRESHOLDS, LIMITS[1:], (False, True))]


def classes(reserving: Reserving) -> Ladder:
    """The paper's, with one threshold and one limit for all queues that reserve."""
    threshold, limit, small = reserving
    return tuple(
        replace(queue, reservation_threshold=threshold, max_reservations=limit) if small or queue.name not in SMALL else queue
        for queue in HPC2500
    )


def _with_fewer_jobs(runs: Paper000Runs, system: str, queues: Ladder) -> list[Measured]:
    run = Paper000Run(system=system, load=SWEEP_LOAD, seed=0, jobs=FEWER_JOBS, queues=queues)
    return [runs[replace(run, seed=seed)] for seed in runs.seeds[:_SWEEP_SEEDS]]


def _future(runs: Paper000Runs) -> Iterator[Table]:
    """Medians and maxima by queue: of the sweep, then of the orders of scanning."""

    def means(found: Iterable[Measured], statistic: str) -> tuple[float, ...]:
        return tuple(round(mean([run.wait_s(queue, statistic) for run in found]), 1) for queue in ROWS)

    size = f"{FEWER_JOBS:,} jobs, load {float(SWEEP_LOAD):g}, {len(runs.seeds[:_SWEEP_SEEDS])} seeds"
    for told, statistic in (("median", "median"), ("longest", "max")):
        rows: list[tuple[Cell, ...]] = []
        for setting in swept():
            threshold, limit, with_small = setting
            values = means(_with_fewer_jobs(runs, PROPOSAL_2, classes(setting)), statistic)
            rows.append((threshold if limit else None, limit, limit if with_small else 0, *values))
        columns = ("threshold", "limit", "limit of ss8 and s8", *ROWS)
        yield Table(title=f"Future work: {told} wait (s), {size}", columns=columns, rows=tuple(rows))
    orders: list[tuple[Cell, ...]] = []
    for system, (order, queues) in product(SCANNED, ORDERS.items()):
        found = _with_fewer_jobs(runs, system, queues)
        for told, statistic in (("median", "median"), ("mean", "mean"), ("longest", "max")):
            orders.append((system, order, told, *means(found, statistic)))
    columns = ("system", "queues scanned first", "wait", *ROWS)
    yield Table(title=f"The order of scanning (s), {size}", columns=columns, rows=tuple(orders))


def _by_threshold(runs: Paper000Runs) -> Iterator[Figure]:
    """Longest and median wait against the threshold, a line for each limit of the large queues, a figure for each of some queues."""
    kinds = [("longest", "max", queue) for queue in _LONGEST] + [("median", "median", queue) for queue in _MEDIAN]
    for told, statistic, queue in kinds:
        lines = []
        for limit in LIMITS[1:]:
            points = []
            for threshold in THRESHOLDS:
                found = _with_fewer_jobs(runs, PROPOSAL_2, classes((threshold, limit, False)))
                hours = [run.wait_s(queue, statistic) / 3600 for run in found]
                points.append(Point(threshold, mean(hours), min(hours), max(hours)))
            lines.append((f"limit {limit}", tuple(points)))
        yield Figure(
            title=f"Future work: {told} wait in {queue} by threshold and limit",
            x_label="threshold of individual priority",
            y_label=f"{told} wait (h)",
            lines=tuple(lines),
        )


#: For five seeds 40 runs of 20,000 jobs, 94 of 3,000 for the future work and 126 for the region: four minutes of two processors.
STUDY = Study(
    paper="000", runs=Paper000Runs, seeds=5, quick_seeds=2, checks=CHECKS, tables=tables, figures=figures, notes=NOTES
)
