"""Paper 000: where its claims hold, over loads, mixes and baselines in which small jobs do wait (papers.md 1.9).

The log of Kyoto is not public, so nobody knows the load and the mix of figures 2 and 3; the paper's conventional system lets jobs pass
others on some nodes only, and does not say on how many. Each claim is asked for in every cell of these; ties decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import sqrt
from typing import NamedTuple

from rmgr.model.base.units import counted
from rmgr.sched.queue_class import HPC2500, Ladder
from rmgr.sim.papers.paper000.claims import CLAIMS, Claim, bar, boxes
from rmgr.sim.papers.paper000.runs import CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2, Measured, Paper000Run
from rmgr.sim.papers.report import Boxes, Cell, Table

LOADS = (Fraction("0.9"), Fraction("1.2"), Fraction(2))
#: By name: jobs of at most 8 CPUs are so many times as frequent as in papers.md 1.6; the order in which queues are scanned (1.4: open).
MIXES: Mapping[str, tuple[int, Ladder]] = {"small first": (1, HPC2500), "x8, large first": (8, HPC2500[::-1])}
#: The conventional system with First-Fit past others on so many nodes (0: all 11); -1: queues on nodes of their own.
BASELINES = (0, 1, 4, 8, -1)
JOBS = 3_000


class Place(NamedTuple):
    """A cell: the load, the mix, the baseline."""

    load: Fraction
    mix: str
    nodes: int

    def run(self, system: str, seed: int) -> Paper000Run:
        """Of a system in it; `conventional` is its baseline."""
        small, queues = MIXES[self.mix]
        of_it = Paper000Run(system=system, load=self.load, seed=seed, jobs=JOBS, small=small, queues=queues)
        if system != CONVENTIONAL:
            return of_it
        return replace(of_it, system=PARTITIONED) if self.nodes < 0 else replace(of_it, firstfit_nodes=self.nodes)

    @property
    def baseline(self) -> str:
        return {0: "all nodes", -1: "partitioned"}.get(self.nodes, counted(self.nodes, "node"))

    def __str__(self) -> str:
        return f"load {float(self.load):g}, {self.mix}, {self.baseline}"


class Votes(NamedTuple):
    """Of a claim in a place: in how many pairs (seed, queue) it holds, how many decide, and whether every queue has one that does."""

    holds: int
    decided: int
    whole: bool

    @property
    def agree(self) -> bool:
        return self.whole and self.holds == self.decided


PLACES = tuple(Place(*each) for each in product(LOADS, MIXES, BASELINES))


def cells(seeds: Sequence[int]) -> list[Paper000Run]:
    """The runs, each once."""
    systems = (CONVENTIONAL, PROPOSAL_1, PROPOSAL_2)
    return list(dict.fromkeys(place.run(system, seed) for place, system, seed in product(PLACES, systems, seeds)))


def votes(found: Mapping[Paper000Run, Measured], claim: Claim, place: Place, seeds: Sequence[int]) -> Votes:
    """Asks every seed and queue of the claim."""
    holds = decided = 0
    whole = True
    for queue in claim.queues:
        deciding = 0
        for seed in seeds:
            bars = {name: bar(found[place.run(name, seed)], queue, claim.measure) for name in (CONVENTIONAL, PROPOSAL_1, PROPOSAL_2)}
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


def most_agreeing(found: Mapping[Paper000Run, Measured], seeds: Sequence[int]) -> Place:
    """The place in which most claims hold, whatever it is."""
    return max(PLACES, key=lambda place: sum(votes(found, claim, place, seeds).agree for claim in CLAIMS))


def figures(found: Mapping[Paper000Run, Measured], seeds: Sequence[int]) -> Iterator[Boxes]:
    """Figures 2 and 3 there."""
    place = most_agreeing(found, seeds)
    systems = {CONVENTIONAL: f"conventional, {place.baseline}", PROPOSAL_1: PROPOSAL_1, PROPOSAL_2: PROPOSAL_2}
    runs = {told: [found[place.run(system, seed)] for seed in seeds] for system, told in systems.items()}
    yield from boxes(runs, f"load {float(place.load):g}, {place.mix}")


def tables(found: Mapping[Paper000Run, Measured], seeds: Sequence[int]) -> Iterator[Table]:
    """The region of each claim with its best place; then holds/decided in every place."""
    regions: list[tuple[Cell, ...]] = []
    every: list[tuple[Cell, ...]] = []
    for number, claim in enumerate(CLAIMS, 1):
        by_place = {place: votes(found, claim, place, seeds) for place in PLACES}
        holding = [place for place, its in by_place.items() if its.agree]
        best = max(PLACES, key=lambda place: (by_place[place].agree, by_place[place].whole, interval(*by_place[place][:2])[0]))
        holds, decided, _ = by_place[best]
        low, high = interval(holds, decided)
        name = f"{claim.id}, {number}"
        regions.append((name, len(holding), str(best) if holds else "none", f"{holds}/{decided}", f"{low:.2f}-{high:.2f}"))
        for mix, nodes in product(MIXES, BASELINES if claim.against is None else BASELINES[:1]):
            row = [by_place[Place(load, mix, nodes)] for load in LOADS]
            told = [f"{its.holds}/{its.decided}{'' if its.whole else '?'}" for its in row]
            every.append((name, mix, "-" if claim.against else Place(LOADS[0], mix, nodes).baseline, *told))
    size = f"{JOBS:,} jobs, {len(seeds)} seeds"
    columns = ("claim", f"of {len(PLACES)}", "best place", "pairs", "95 %")
    yield Table(title=f"Where the claims hold, {size}", columns=columns, rows=tuple(regions))
    names = tuple(f"load {float(load):g}" for load in LOADS)
    title = "Claims by mix, baseline and load: pairs that hold/decide (? a queue never decides)"
    yield Table(title=title, columns=("claim", "mix", "baseline", *names), rows=tuple(every))
    yield Table(
        title="The claims by number",
        columns=("claim", "system", "measure", "queues", "relation"),
        rows=tuple((f"{c.id}, {n}", c.system, c.measure, " ".join(c.queues), str(c.relation)) for n, c in enumerate(CLAIMS, 1)),
    )
