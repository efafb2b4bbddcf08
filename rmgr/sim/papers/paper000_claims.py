"""Paper 000: what it says of figures 2 and 3 (C0.8 to C0.11), judged for each queue, load and seed; and the tables of the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from rmgr.sim.papers.paper000_runs import ALL, CONVENTIONAL, PARTITIONED, PROPOSAL_1, PROPOSAL_2, QUEUES, SYSTEMS, Measured, Waits
from rmgr.sim.papers.report import Check, Table, Within, mean, spread

SMALL, LARGE = ("ss8", "s8"), ("s128", "d32", "d128", "d512")
ROWS = (*QUEUES, ALL)
#: "Clearly above" is more than this share above, "about equal" is within it (a choice: the paper prints no bar's value).
CLEARLY = 0.10

#: (system, load, seed) -> what was measured.
Runs: TypeAlias = Mapping[tuple[str, Fraction, int], Measured]
#: Of one load and seed: system -> measure of one queue (s).
Bars: TypeAlias = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper about bars. id: of papers.md. measure: `median` or `max`. holds: of (bars of a queue, baseline)."""

    id: str
    what: str
    measure: str
    queues: tuple[str, ...]
    holds: Callable[[Bars, str], bool]
    compares_baseline: bool = True


def _lowest(system: str) -> Callable[[Bars, str], bool]:
    """Neither of the two others is lower."""
    return lambda bars, baseline: bars[system] <= min(bars[baseline], bars[PROPOSAL_1], bars[PROPOSAL_2])


def _above(system: str, *, clearly: bool) -> Callable[[Bars, str], bool]:
    share = CLEARLY if clearly else 0.0
    return lambda bars, baseline: bars[system] > (1 + share) * bars[baseline]


def _below(system: str) -> Callable[[Bars, str], bool]:
    return lambda bars, baseline: bars[system] < bars[baseline]


def _about_equal(system: str) -> Callable[[Bars, str], bool]:
    return lambda bars, baseline: abs(bars[system] - bars[baseline]) <= CLEARLY * bars[baseline]


def _rises(bars: Bars, _baseline: str) -> bool:
    return bars[PROPOSAL_2] > bars[PROPOSAL_1]


def _falls(bars: Bars, _baseline: str) -> bool:
    return bars[PROPOSAL_2] < bars[PROPOSAL_1]


CLAIMS = (
    Claim(id="C0.8", what="figure 2: proposal 1 has the lowest median wait", measure="median", queues=("d32", "d128", ALL),
          holds=_lowest(PROPOSAL_1)),
    Claim(id="C0.8", what="figure 2: median wait of proposal 1 clearly above conventional", measure="median", queues=("s8", "s128", "d512"),
          holds=_above(PROPOSAL_1, clearly=True)),
    Claim(id="C0.9", what="figure 2: proposal 2 has the lowest median wait", measure="median", queues=("ss8",), holds=_lowest(PROPOSAL_2)),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 above conventional", measure="median", queues=("s8", *LARGE),
          holds=_above(PROPOSAL_2, clearly=False)),
    Claim(id="C0.9", what="figure 2: median wait of proposal 2 about equal to conventional", measure="median", queues=(ALL,),
          holds=_about_equal(PROPOSAL_2)),
    Claim(id="C0.10", what="figure 3: proposal 1 has the lowest longest wait", measure="max", queues=("s128", "d128"),
          holds=_lowest(PROPOSAL_1)),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 1 about equal to conventional", measure="max",
          queues=("ss8", "s8", "d32", "d512", ALL), holds=_about_equal(PROPOSAL_1)),
    Claim(id="C0.10", what="figure 3: longest wait of proposal 2 below conventional", measure="max", queues=("ss8", "s8", "s128"),
          holds=_below(PROPOSAL_2)),
    Claim(id="C0.10", what="figure 3: proposal 2 has the lowest longest wait", measure="max", queues=SMALL, holds=_lowest(PROPOSAL_2)),
    Claim(id="C0.11", what="reservation raises the median wait in queues of large jobs", measure="median", queues=LARGE, holds=_rises,
          compares_baseline=False),
    Claim(id="C0.11", what="reservation raises the longest wait in queues of large jobs", measure="max", queues=LARGE, holds=_rises,
          compares_baseline=False),
    Claim(id="C0.11", what="reservation lowers the median wait in queues of small jobs", measure="median", queues=SMALL, holds=_falls,
          compares_baseline=False),
    Claim(id="C0.11", what="reservation lowers the longest wait in queues of small jobs", measure="max", queues=SMALL, holds=_falls,
          compares_baseline=False),
)  # fmt: skip


def judged(runs: Runs, loads: Sequence[Fraction], seeds: Sequence[int]) -> tuple[list[Check], Table]:
    """Each claim as a check (the share of seeds in which it holds, a row for each queue and load), and a table of every verdict."""
    checks: list[Check] = []
    rows: list[tuple[str | int | float | None, ...]] = []
    letters: dict[str, int] = {}
    for claim, baseline in _compared():
        letter = letters[claim.id] = letters.get(claim.id, -1) + 1
        shares: dict[str, float] = {}
        for load in loads:
            for queue in claim.queues:
                verdicts = [int(claim.holds(_bars(runs, load, seed, queue, claim.measure), baseline)) for seed in seeds]
                shares[f"{queue} at load {float(load):g}"] = mean(verdicts)
                told = baseline if claim.compares_baseline else PROPOSAL_1
                rows.append((f"{claim.id}{chr(ord('a') + letter)}", told, float(load), queue, *verdicts))
        against = f" ({baseline})" if claim.compares_baseline else ""
        checks.append(
            Check(
                id=f"{claim.id}{chr(ord('a') + letter)}",
                what=f"{claim.what}{against}: share of seeds",
                paper=dict.fromkeys(shares, 1),
                ours=shares,
                rule=Within(),
                required=False,
            )
        )
    columns = ("check", "against", "load", "queue", *(f"seed {seed}" for seed in seeds))
    return checks, Table(title="Claims of figures 2 and 3 by queue and seed (1 = holds)", columns=columns, rows=tuple(rows))


def figure_tables(runs: Runs, loads: Sequence[Fraction], seeds: Sequence[int]) -> Iterator[Table]:
    """Figures 2 and 3 and the mean wait as numbers, and what the systems make of the machine."""
    for title, measure in (("Figure 2: median wait", "median"), ("Figure 3: longest wait", "max"), ("Mean wait", "mean")):
        for load in loads:
            columns = tuple(name for system in SYSTEMS for name in (system, f"{system} sd"))
            rows = []
            for queue in ROWS:
                bars = [[_bar(runs[system, load, seed], queue, measure) for seed in seeds] for system in SYSTEMS]
                rows.append((queue, *(number for values in bars for number in (round(mean(values), 1), round(spread(values), 1)))))
            yield Table(
                title=f"{title} at load {float(load):g} (s; mean, standard deviation over seeds)",
                columns=("queue", *columns),
                rows=tuple(rows),
            )
    yield Table(
        title="The systems: utilisation until the last end, reservations made",
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
    for claim in CLAIMS:
        yield claim, CONVENTIONAL
        if claim.compares_baseline:
            yield claim, PARTITIONED


def _bars(runs: Runs, load: Fraction, seed: int, queue: str, measure: str) -> dict[str, float]:
    return {system: _bar(runs[system, load, seed], queue, measure) for system in SYSTEMS}


def _bar(run: Measured, queue: str, measure: str) -> float:
    """0 for a queue in which nobody was."""
    waits: Waits | None = run.waits.get(queue)
    return 0.0 if waits is None else float(getattr(waits, f"{measure}_s"))
