"""Paper 000: what it says of figures 2 and 3 (C0.8 to C0.11), judged for each queue, load and seed; and the tables of the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

from rmgr.sim.papers.paper000.runs import ALL, CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2, QUEUES, SYSTEMS, Measured, Waits
from rmgr.sim.papers.report import Boxes, Cell, PaperCheck, Table, Within, mean, spread

SMALL, LARGE = ("ss8", "s8"), ("s128", "d32", "d128", "d512")
ROWS = (*QUEUES, ALL)
#: "Clearly above" is more than this share above, "about equal" is within it (a choice: the paper prints no bar's value).
CLEARLY = 0.10

#: (system, load, seed) -> what was measured.
Runs: TypeAlias = Mapping[tuple[str, Fraction, int], Measured]
#: Of one load and seed: system -> measure of one queue (s).
Bars: TypeAlias = Mapping[str, float]


class Relation(StrEnum):
    """Relation of a bar to another, or to the lower of two others (`LOWEST`)."""

    LOWEST = "lowest"
    CLEARLY_ABOVE = "clearly above"
    ABOVE = "above"
    BELOW = "below"
    EQUAL = "about equal to"

    def holds(self, ours: float, other: float) -> bool:
        match self:
            case Relation.LOWEST:
                return ours <= other
            case Relation.CLEARLY_ABOVE:
                return ours > (1 + CLEARLY) * other
            case Relation.ABOVE:
                return ours > other
            case Relation.BELOW:
                return ours < other
            case Relation.EQUAL:
                return abs(ours - other) <= CLEARLY * other

    def is_tie(self, ours: float, other: float) -> bool:
        """Equal bars decide nothing; about equal ones do, unless nobody waits."""
        return ours == other and (self is not Relation.EQUAL or ours == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper about bars. id: of papers.md. measure: `median` or `max`. against: None = the conventional system."""

    id: str
    what: str
    measure: str
    queues: tuple[str, ...]
    system: str
    relation: Relation
    against: str | None = None

    def compared(self, bars: Bars, baseline: str) -> tuple[float, float]:
        """(our bar, the one that it is held against)."""
        if self.relation is Relation.LOWEST:
            return bars[self.system], min(bars[other] for other in (baseline, PROPOSAL_1, PROPOSAL_2) if other != self.system)
        return bars[self.system], bars[baseline]


CLAIMS = (
    Claim(id="C0.8", what="figure 2: proposal 1 has the lowest median wait", measure="median", queues=("d32", "d128", ALL),
          system=PROPOSAL_1, relation=Relation.LOWEST),
    Claim(id="C0.8", what="figure 2: median wait of proposal 1 clearly above conventional", measure="median", queues=("s8", "s128", "d512"),
          system=PROPOSAL_1, relation=Relation.CLEARLY_ABOVE),
    Claim(id="C0.9", what="figure 2: proposal 2 has the lowest median wait", measure="median", queues=("ss8",),
          system=PROPOSAL_2, relation=Relation.LOWEST),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 above conventional", measure="median", queues=("s8", *LARGE),
          system=PROPOSAL_2, relation=Relation.ABOVE),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 about equal to conventional", measure="median", queues=(ALL,),
          system=PROPOSAL_2, relation=Relation.EQUAL),
    Claim(id="C0.10", what="figure 3: proposal 1 has the lowest longest wait", measure="max", queues=("s128", "d128"),
          system=PROPOSAL_1, relation=Relation.LOWEST),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 1 about equal to conventional", measure="max",
          queues=("ss8", "s8", "d32", "d512", ALL), system=PROPOSAL_1, relation=Relation.EQUAL),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 2 below conventional", measure="max", queues=("ss8", "s8", "s128"),
          system=PROPOSAL_2, relation=Relation.BELOW),
    Claim(id="C0.10", what="figure 3: proposal 2 has the lowest longest wait", measure="max", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.LOWEST),
    Claim(id="C0.11", what="reservation raises the median wait in queues of large jobs", measure="median", queues=LARGE,
          system=PROPOSAL_2, relation=Relation.ABOVE, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation raises the longest wait in queues of large jobs", measure="max", queues=LARGE,
          system=PROPOSAL_2, relation=Relation.ABOVE, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation lowers the median wait in queues of small jobs", measure="median", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.BELOW, against=PROPOSAL_1),
    Claim(id="C0.11", what="reservation lowers the longest wait in queues of small jobs", measure="max", queues=SMALL,
          system=PROPOSAL_2, relation=Relation.BELOW, against=PROPOSAL_1),
)  # fmt: skip


def judged(runs: Runs, loads: Sequence[Fraction], seeds: Sequence[int]) -> tuple[list[PaperCheck], Table]:
    """Judges each claim: a check with the share of those seeds that decide in which it holds, a row for each queue and load; and a table
    of every verdict: 1 holds, 0 does not, nothing for a tie."""
    checks: list[PaperCheck] = []
    rows: list[tuple[str | int | float | None, ...]] = []
    letters: Counter[str] = Counter()
    for claim, baseline in _compared():
        name = f"{claim.id}{chr(ord('a') + letters[claim.id])}"
        letters[claim.id] += 1
        shares: dict[str, float] = {}
        spreads: dict[str, float] = {}
        ties: dict[str, int] = {}
        decided: dict[str, int] = {}
        for load in loads:
            for queue in claim.queues:
                pairs = [claim.compared(_bars(runs, load, seed, queue, claim.measure), baseline) for seed in seeds]
                verdicts = [None if claim.relation.is_tie(*pair) else int(claim.relation.holds(*pair)) for pair in pairs]
                row = f"{queue} at load {float(load):g}"
                deciding = [verdict for verdict in verdicts if verdict is not None]
                decided[row], ties[row] = len(deciding), verdicts.count(None)
                if deciding:
                    shares[row], spreads[row] = mean(deciding), spread(deciding)
                ours, other = (round(mean([pair[side] for pair in pairs]), 1) for side in (0, 1))
                rows.append((name, claim.system, ours, str(claim.relation), baseline, other, float(load), queue, *verdicts))
        what = f"{claim.what}: share of deciding seeds" if claim.against else f"{claim.what} ({baseline}): share of deciding seeds"
        checks.append(
            PaperCheck(
                id=name,
                what=what,
                paper=dict.fromkeys(shares, 1),
                ours=shares,
                spread=spreads,
                ties=ties,
                decided=decided,
                rule=Within(),
                required=False,
            )
        )
    columns: tuple[str, ...] = ("check", "system", "its mean (s)", "should be", "against", "that one's mean (s)", "load", "queue")
    columns += tuple(f"seed {seed}" for seed in seeds)
    return checks, Table(title="Claims of figures 2 and 3 by queue and seed", columns=columns, rows=tuple(rows))


def boxes(runs: Mapping[str, Sequence[Measured]], where: str) -> Iterator[Boxes]:
    """Figures 2 and 3: by queue, of each system the medians and the longest waits of its seeds."""
    for title, measure, told in (("Figure 2", "median", "median"), ("Figure 3", "max", "longest")):
        yield Boxes(
            title=f"{title}: {told} wait, {where}",
            y_label=f"{told} wait of a seed (s)",
            groups=ROWS,
            boxes=tuple((name, tuple(tuple(bar(run, queue, measure) for run in of_it) for queue in ROWS)) for name, of_it in runs.items()),
        )


def figure_tables(runs: Runs, loads: Sequence[Fraction], seeds: Sequence[int]) -> Iterator[Table]:
    """Figures 2 and 3 and the mean wait as numbers, and what the systems make of the machine."""
    for title, measure in (("Figure 2: median wait", "median"), ("Figure 3: longest wait", "max"), ("Mean wait", "mean")):
        for load in loads:
            columns = tuple(name for system in SYSTEMS for name in (system, f"{system} sd"))
            rows: list[tuple[Cell, ...]] = []
            for queue in ROWS:
                bars = [[bar(runs[system, load, seed], queue, measure) for seed in seeds] for system in SYSTEMS]
                rows.append((queue, *(number for values in bars for number in (round(mean(values), 1), round(spread(values), 1)))))
            yield Table(
                title=f"{title} at load {float(load):g} (s)",
                columns=("queue", *columns),
                rows=tuple(rows),
            )
    yield Table(
        title="Utilisation until the last end, reservations made",
        columns=("system", "load", "utilisation", *(f"reservations {queue}" for queue in LARGE)),
        rows=tuple(
            (
                system,
                float(load),
                round(mean([runs[system, load, seed].utilisation for seed in seeds]), 4),
                *(round(mean([runs[system, load, seed].made.get(queue, 0) for seed in seeds]), 1) for queue in LARGE),
            )
            for system in SYSTEMS
            for load in loads
        ),
    )


def _compared() -> Iterator[tuple[Claim, str]]:
    """Each claim with every system that it is held against."""
    for claim in CLAIMS:
        for baseline in (claim.against,) if claim.against else (CONVENTIONAL, PARTITIONED):
            yield claim, baseline


def _bars(runs: Runs, load: Fraction, seed: int, queue: str, measure: str) -> dict[str, float]:
    return {system: bar(runs[system, load, seed], queue, measure) for system in SYSTEMS}


def bar(run: Measured, queue: str, measure: str) -> float:
    """0 for a queue in which nobody was."""
    waits: Waits | None = run.waits.get(queue)
    return 0.0 if waits is None else float(getattr(waits, f"{measure}_s"))
