"""Tables of paper 004 beside ours, and those that answer what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmgr.sim.papers.paper004.asked import Runs
from rmgr.sim.papers.paper004.checks import DECODED, REAL
from rmgr.sim.papers.paper004.printed import CASES, POLICIES, TABLE_3, TABLE_4
from rmgr.sim.papers.report import Cell, Table

_PREDICTORS = ("last", "ewma", "queueing")
_SOURCES = ("declared", "calibrated", "learnt")


def tables(runs: Runs) -> Iterator[Table]:
    yield table_3(runs)
    yield table_4(runs)
    yield network(runs)
    yield balance(runs)
    yield predictions(runs)
    yield performances(runs)
    yield windows(runs)


def table_3(runs: Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for policy in POLICIES:
            found = runs.of(REAL, policy, case)
            rates = [found.throughput[name] / 1e6 for name in ("A", "B")]
            rows.append((case, policy, "paper", *TABLE_3[policy, case]))
            rows.append(
                (case, policy, "ours", found.computing_s, found.transfer_s, found.total_s, found.busy["A"], found.busy["B"], *rates)
            )
    columns = ("case", "policy", "", "comp s", "comm s", "total s", "busy A", "busy B", "MB/s A", "MB/s B")
    return Table(title="Table 3: real environment (ninf_shared)", columns=columns, rows=tuple(rows))


def table_4(runs: Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for policy in POLICIES:
            found = runs.of(DECODED, policy, case)
            rows.append((case, policy, "paper", *TABLE_4[policy, case], None))
            ours = (found.computing_s, found.transfer_s, found.total_s, found.busy["slow"], found.busy["fast"], found.half_width_s)
            rows.append((case, policy, "ours", *ours))
    columns = ("case", "policy", "", "comp s", "comm s", "total s", "busy slow", "busy fast", "+- 90 %")
    return Table(title="Table 4: performance model (ninf_table4)", columns=columns, rows=tuple(rows))


def network(runs: Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for policy in ("rr", "loth"):
            found, paper = runs.of("ninf_tnet", policy, case), TABLE_4[policy, case]
            rows.append((case, policy, paper.computing_s, found.computing_s, paper.transfer_s, found.transfer_s))
    columns = ("case", "policy", "comp paper", "comp ours", "comm paper", "comm ours")
    return Table(title="The paper's own network (ninf_tnet)", columns=columns, rows=tuple(rows))


def balance(runs: Runs) -> Table:
    """The paper's thesis: the response of one client and the throughput of all, by policy."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in (DECODED, REAL):
        for case in CASES:
            for policy in (*POLICIES, "adaptive"):
                found = runs.of(scenario, policy, case)
                worst = max(found.response_s.values(), default=None)
                rows.append((scenario, case, policy, found.total_s, worst, found.requests_per_s, found.makespan_s))
    columns = ("scenario", "case", "policy", "response s", "worst client s", "requests/s", "all done s")
    return Table(title="Response of a client and throughput of all", columns=columns, rows=tuple(rows))


def predictions(runs: Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for scenario in (DECODED, REAL):
        for case in CASES:
            for policy in ("rr", "loth", "loth+l", "loth+lt"):
                for load in ("now", "mean"):
                    for predictor in _PREDICTORS:
                        if predictor == "queueing" and load == "mean":
                            continue  # it does not use the load
                        found = runs.of(scenario, policy, case, **_unless_default(load=load, predictor=predictor))
                        rows.append((scenario, case, policy, predictor, load, found.error, found.total_s))
    columns = ("scenario", "case", "policy", "predictor", "load", "error", "total s")
    return Table(title="Errors of predictions by policy and predictor", columns=columns, rows=tuple(rows))


def performances(runs: Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for source in _SOURCES:
            found = runs.of("ninf_functions", "loth", case, **_unless_default(performance=source))
            rows.append((case, source, found.belief, found.error, found.total_s, found.chosen["vector"]))
    columns = ("case", "performance", "distance from truth", "error", "total s", "calls to vector")
    return Table(title="Performance declared, calibrated and learnt (ninf_functions)", columns=columns, rows=tuple(rows))


def windows(runs: Runs) -> Table:
    rows = []
    for window in ("predicted", "one", "all"):
        found = runs.windowed(window)
        rows.append((window, found.makespan_s, found.total_s, found.chosen["fast"]))
    return Table(
        title="call_many by window (ninf_many)", columns=("window", "makespan s", "mean total s", "calls to fast"), rows=tuple(rows)
    )


def _unless_default(**params: str) -> dict[str, Any]:
    """The runs of a policy without parameters are those of the tables above: not run twice."""
    return {name: value for name, value in params.items() if value not in {"now", "last", "declared"}}
