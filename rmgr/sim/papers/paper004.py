"""Repeats paper 004, job scheduling in Ninf (Takefusa, Nakada, Aida, Ogawa, Matsuoka, Nagashima; papers.md section 4).

The paper's printed values are here in the names of the scenarios; papers.md 4.5 lists the checks.
May use: `rmgr.sim.calls` and the report. Must not: know how calls are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from rmgr.sched.forecast import Forecast, Last
from rmgr.sched.records import Call, Server
from rmgr.sim.calls.runs import Group, Summary, played, summed
from rmgr.sim.calls.scenario import scenario_named
from rmgr.sim.papers.report import Cell, PaperCheck, Runs, Study, Table, Within, WithinBounds
from rmgr.sim.runs.parallel import OnProgress

#: Our readings where the paper contradicts itself or is silent.
NOTES = (
    "The text gives the 400-Mops server 0.20 MB/s; LOTH's 4.13 s (table 4) is impossible then. Decoded: the fast server's link is fast.",
    "The columns of utilisation in table 4 are swapped: A(400) holds the 40-Mops server, B(40) the 400-Mops one (their RR and LOTH rows).",
    "The text's background of 0.10 is that of the fast server; the slow one has 0.247 in every LOTH row.",
    "A transfer takes 3.27 s on the fast link and 17 s on the slow one, exponential (papers.md: 3.27 and 16.2 to 17); queues are FCFS.",
    "Clients go on asking until the first 50 requests have their answers, so that the last ones meet the same load as the others.",
    "LOAD's quarter of calls to the slow server does not follow from (L + 1) / P with P = 400 : 40 under any reading of L that was tried.",
    "+T counts 1 + the calls of all clients to a server since it was measured; the other reading would turn its effect round.",
    "ninf_tnet is the network that the decoding leaves out: as M/M/1 the ratio of the cases is the paper's, the level 18 % low.",
    "Table 3 comes from real machines: the model has no disks, no other users and no overload of the local workstation (C4.7e).",
    "error: sum of |predicted - actual| over the sum of actual times.",
    "distance from truth: |operations/s believed in / true ones - 1|, mean over the calls.",
)
POLICIES = ("rr", "load", "load+l", "loth", "loth+l", "loth+t", "loth+lt")
CASES = ("A", "B")
_ANY = {"A": 1.0, "B": 1.0, "fast": 1.0, "slow": 1.0, "vector": 1.0, "workstation": 1.0}

#: Placeholder for a summary before anything has run.
UNKNOWN = Summary(
    computing_s=1.0,
    transfer_s=1.0,
    total_s=1.0,
    half_width_s=0.0,
    spread_s=0.0,
    busy=_ANY,
    chosen=_ANY,
    throughput=_ANY,
    response_s={},
    requests_per_s=1.0,
    makespan_s=1.0,
    error=0.0,
    belief=0.0,
)
#: The scenario that reproduces table 4, and the one that reproduces table 3.
DECODED, REAL = "ninf_table4", "ninf_shared"
_LINPACK_N = 600
#: Seconds of one request on the slower machine (table 2), and seconds that the mean interval adds to a multiple of them.
_REQUEST_S, _INTERVAL_S = 19.265, 5.0
_PREDICTORS = ("last", "ewma", "queueing")
_SOURCES = ("declared", "calibrated", "learnt")


class Paper004Runs(Runs[Group, Summary]):
    """Summaries over all seeds, by scenario, policy and case. quick: no tables."""

    def __init__(self, seeds: Sequence[int], *, quick: bool = False) -> None:
        super().__init__(seeds, UNKNOWN, lambda group: summed(played((group,), self.seeds)[group]), quick=quick)
        self._scenario = cache(scenario_named)

    def run(self, processes: int, on_progress: OnProgress) -> Mapping[Group, Summary]:
        """Runs every group that was asked for, in chunks of seeds."""
        return {group: summed(its) for group, its in played(self.asked, self.seeds, processes=processes, on_progress=on_progress).items()}

    def of(self, scenario: str, policy: str, case: str, *, change: Mapping[str, Any] | None = None, **params: str) -> Summary:
        """Returns the summary of a policy in a case. change: fields of the scenario to replace. params: of the policy."""
        known = self._scenario(scenario)
        return self[Group(replace(known, **change) if change else known, case, policy, tuple(sorted(params.items())))]

    def windowed(self, window: str) -> Summary:
        """Returns the summary of `call_many` with this window."""
        clients = self._scenario("ninf_many").clients
        change = {"clients": tuple(replace(client, window=window) for client in clients)}  # type: ignore[arg-type]  # one of its words
        return self.of("ninf_many", "loth+lt", "at once", change=change)


def c4_1(_runs: Paper004Runs) -> Iterator[PaperCheck]:
    scenario = scenario_named("ninf_text")
    client, n = scenario.clients[0], _LINPACK_N
    paper: dict[str, float] = {"operations": (2 * n**3 + 6 * n**2) // 3, "bytes": 8 * n**2 + 20 * n}
    paper |= {f"interval {case}": round(factor * _REQUEST_S + _INTERVAL_S, 3) for case, factor in (("A", 1), ("B", 2))}
    ours: dict[str, float] = {"operations": client.operations, "bytes": client.bytes}
    ours |= {f"interval {case.name}": case.interval_s for case in scenario.cases}
    yield PaperCheck(id="C4.1", what="a request of Linpack n = 600, and the mean intervals", paper=paper, ours=ours, rule=Within())
    costs = {server.name: idle(server.name).total_s for server in scenario.servers}
    what = "LOTH's cost on the idle system of the printed text"
    yield PaperCheck(id="C4.1b", what=what, paper={"A": 14.82, "B": 6.296}, ours=costs, rule=Within(absolute=0.005))
    yield PaperCheck(id="C4.1c", what="so LOTH picks B there: cost of B over A", ours=costs["B"] / costs["A"], rule=WithinBounds(below=1))


def idle(name: str) -> Forecast:
    """Returns LOTH's forecast for an idle server of `ninf_text`."""
    scenario = scenario_named("ninf_text")
    plan = next(server for server in scenario.servers if server.name == name)
    link = next(link for link in scenario.links if link.server == name)
    client = scenario.clients[0]
    server = Server(name, plan.speed, 0, (("client1", link.capacity),))
    return Last().forecast(Call(1, 0, client.operations, client.bytes, "client1"), (server,), plan.speed)


def c4_2(runs: Paper004Runs) -> Iterator[PaperCheck]:
    for policy, letters, limits in (("rr", ("", "b"), (0.10, 0.08)), ("loth", ("c", "d"), (0.05, 0.05))):
        for case, letter, limit in zip(CASES, letters, limits, strict=True):
            found, paper = runs.of(DECODED, policy, case), TABLE_4[policy, case]
            what = f"table 4, mean total of {policy.upper()} in case {case}, s"
            yield PaperCheck(
                f"C4.2{letter}", what,
                paper=paper.total_s, ours=found.total_s, spread=found.spread_s, rule=Within(relative=limit),
            )
    for policy, letter, limit in (("rr", "e", 0.12), ("loth", "f", 0.02)):
        paper_s = {case: TABLE_4[policy, case].computing_s for case in CASES}
        ours_s = {case: runs.of(DECODED, policy, case).computing_s for case in CASES}
        what = f"table 4, mean computing time of {policy.upper()}, s"
        yield PaperCheck(id=f"C4.2{letter}", what=what, paper=paper_s, ours=ours_s, rule=Within(relative=limit))
    for policy, letter in (("rr", "g"), ("loth", "h")):
        paper_u = {f"{server} {case}": _printed_busy(policy, case)[server] for case in CASES for server in ("fast", "slow")}
        ours_u = {f"{server} {case}": runs.of(DECODED, policy, case).busy[server] for case in CASES for server in ("fast", "slow")}
        what = f"table 4, utilisation of the servers under {policy.upper()} (the paper's columns swapped)"
        yield PaperCheck(id=f"C4.2{letter}", what=what, paper=paper_u, ours=ours_u, rule=Within(absolute=0.02))


def _printed_busy(policy: str, case: str) -> Mapping[str, float]:
    row = TABLE_4[policy, case]
    return {"fast": row.busy_fast, "slow": row.busy_slow}


def c4_3(runs: Paper004Runs) -> Iterator[PaperCheck]:
    yield _ratio(runs, "C4.3", "LOTH is no slower than LOTH+L (1 % for chance)", "loth", "loth+l", WithinBounds(at_most=1.01))
    yield _ratio(runs, "C4.3b", "LOTH+L is within 10 % of LOTH", "loth+l", "loth", WithinBounds(at_least=0.9, at_most=1.1))
    for letter, policy in (("c", "loth+t"), ("d", "loth+lt")):
        yield _ratio(runs, f"C4.3{letter}", f"LOTH+L is faster than {policy.upper()}", "loth+l", policy, WithinBounds(below=1))
    for letter, policy in (("e", "loth+t"), ("f", "loth+lt")):
        yield _ratio(runs, f"C4.3{letter}", f"{policy.upper()} is faster than RR", policy, "rr", WithinBounds(below=1))


def c4_4(runs: Paper004Runs) -> Iterator[PaperCheck]:
    yield _ratio(runs, "C4.4", "LOTH beats RR by a factor above 3", "rr", "loth", WithinBounds(above=3))


def c4_5(runs: Paper004Runs) -> Iterator[PaperCheck]:
    for letter, policy in (("", "load"), ("b", "load+l")):
        what = f"{policy.upper()} lies between LOTH and RR: its way from LOTH to RR"
        ours, paper = {}, {}
        for case in CASES:
            rr, loth, own = (runs.of(DECODED, name, case).total_s for name in ("rr", "loth", policy))
            ours[case] = (own - loth) / (rr - loth) if rr != loth else 0.0
            rr, loth, own = (TABLE_4[name, case].total_s for name in ("rr", "loth", policy))
            paper[case] = (own - loth) / (rr - loth)
        yield PaperCheck(id=f"C4.5{letter}", what=what, paper=paper, ours=ours, rule=WithinBounds(at_least=0, at_most=1), required=False)


def c4_6(runs: Paper004Runs) -> Iterator[PaperCheck]:
    for letter, policy in (("", "loth+t"), ("b", "loth+lt")):
        yield _ratio(
            runs, f"C4.6{letter}", f"{policy.upper()} is at least 15 % slower than LOTH", policy, "loth", WithinBounds(at_least=1.15)
        )


def c4_7(runs: Paper004Runs) -> Iterator[PaperCheck]:
    for case, letter in zip(CASES, ("", "b"), strict=True):
        found = runs.of(REAL, "rr", case)
        what = f"table 3, mean total of RR in case {case}, s"
        paper = TABLE_3["rr", case].total_s
        yield PaperCheck(id=f"C4.7{letter}", what=what, paper=paper, ours=found.total_s, spread=found.spread_s, rule=Within(relative=0.10))
    yield _ratio(runs, "C4.7c", "LOAD sends all over the slow shared link: LOAD over RR", "load", "rr", WithinBounds(above=2.5), REAL)
    case_b = {"B": runs.of(REAL, "loth", "B").total_s / runs.of(REAL, "rr", "B").total_s}
    paper_b = {"B": TABLE_3["loth", "B"].total_s / TABLE_3["rr", "B"].total_s}
    yield PaperCheck("C4.7d", "LOTH is faster than RR in case B: LOTH over RR", paper=paper_b, ours=case_b, rule=WithinBounds(below=1))
    case_a = {"A": runs.of(REAL, "rr", "A").total_s / runs.of(REAL, "loth", "A").total_s}
    paper_a = {"A": TABLE_3["rr", "A"].total_s / TABLE_3["loth", "A"].total_s}
    what = "RR is faster than LOTH in case A: RR over LOTH (the model does not overload the local machine)"
    yield PaperCheck(id="C4.7e", what=what, paper=paper_a, ours=case_a, rule=WithinBounds(below=1), required=False)


def c4_8(runs: Paper004Runs) -> Iterator[PaperCheck]:
    fresh = {"refresh_us": 0}
    for letter, policy, base in (("", "loth+l", "loth"), ("b", "load+l", "load"), ("c", "loth+lt", "loth+t")):
        pairs = {case: (runs.of(DECODED, policy, case, change=fresh), runs.of(DECODED, base, case, change=fresh)) for case in CASES}
        ours = {case: left.total_s - right.total_s for case, (left, right) in pairs.items()}
        what = f"measured before every decision, {policy.upper()} equals {base.upper()}: difference of the totals, s"
        yield PaperCheck(id=f"C4.8{letter}", what=what, paper=dict.fromkeys(CASES, 0.0), ours=ours, rule=Within())


def tnet(runs: Paper004Runs) -> Iterator[PaperCheck]:
    ours = {case: runs.of("ninf_tnet", "loth", case).transfer_s for case in CASES}
    paper = {case: TABLE_4["loth", case].transfer_s for case in CASES}
    what = "links of 1.5 MB/s filled by other traffic: transfer of LOTH, s (18 % low as M/M/1)"
    yield PaperCheck(id="tnet", what=what, paper=paper, ours=ours, rule=Within(relative=0.05), required=False)
    cases = {"A / B": ours["A"] / ours["B"]}
    what = "the same, case A over case B"
    yield PaperCheck("tnetb", what, paper={"A / B": paper["A"] / paper["B"]}, ours=cases, rule=Within(relative=0.05), required=False)


def adaptive(runs: Paper004Runs) -> Iterator[PaperCheck]:
    for letter, scenario in (("", DECODED), ("b", REAL)):
        ours = {}
        for case in CASES:
            best = min(runs.of(scenario, name, case).total_s for name in ("rr", "loth"))
            ours[case] = runs.of(scenario, "adaptive", case).total_s / best
        what = f"adaptive is as good as the better of RR and LOTH in {scenario}: over it"
        yield PaperCheck(id=f"adaptive{letter}", what=what, ours=ours, rule=WithinBounds(at_most=1.05), required=False)


def queueing(runs: Paper004Runs) -> Iterator[PaperCheck]:
    ours = {}
    for case in CASES:
        with_queues, plain = runs.of(DECODED, "loth", case, predictor="queueing"), runs.of(DECODED, "loth", case)
        ours[case] = (with_queues.error or 0.0) / (plain.error or 1.0)
    what = "a predictor that queues misses by less than the last measurement: errors of LOTH's predictions, queueing over last"
    yield PaperCheck(id="queueing", what=what, ours=ours, rule=WithinBounds(below=1), required=False)


def _ratio(runs: Paper004Runs, check_id: str, what: str, above: str, below: str, rule: WithinBounds, scenario: str = DECODED) -> PaperCheck:
    def totals(name: str) -> dict[str, Summary]:
        return {case: runs.of(scenario, name, case) for case in CASES}

    table = TABLE_4 if scenario == DECODED else TABLE_3
    over, under = totals(above), totals(below)
    ours = {case: over[case].total_s / under[case].total_s for case in CASES}
    paper = {case: table[above, case].total_s / table[below, case].total_s for case in CASES}
    return PaperCheck(id=check_id, what=f"{what}: ratio of the totals", paper=paper, ours=ours, rule=rule)


#: Checks by id, without the letters of parts.
CHECKS: Mapping[str, Callable[[Paper004Runs], Iterator[PaperCheck]]] = {
    "C4.1": c4_1, "C4.2": c4_2, "C4.3": c4_3, "C4.4": c4_4, "C4.5": c4_5, "C4.6": c4_6, "C4.7": c4_7, "C4.8": c4_8, "tnet": tnet,
    "adaptive": adaptive, "queueing": queueing,
}


def tables(runs: Paper004Runs) -> Iterator[Table]:
    if runs.quick:
        return
    yield table_3(runs)
    yield table_4(runs)
    yield network(runs)
    yield balance(runs)
    yield predictions(runs)
    yield performances(runs)
    yield windows(runs)


def table_3(runs: Paper004Runs) -> Table:
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


def table_4(runs: Paper004Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for policy in POLICIES:
            found = runs.of(DECODED, policy, case)
            rows.append((case, policy, "paper", *TABLE_4[policy, case], None))
            ours = (found.computing_s, found.transfer_s, found.total_s, found.busy["slow"], found.busy["fast"], found.half_width_s)
            rows.append((case, policy, "ours", *ours))
    columns = ("case", "policy", "", "comp s", "comm s", "total s", "busy slow", "busy fast", "+- 90 %")
    return Table(title="Table 4: performance model (ninf_table4)", columns=columns, rows=tuple(rows))


def network(runs: Paper004Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for policy in ("rr", "loth"):
            found, paper = runs.of("ninf_tnet", policy, case), TABLE_4[policy, case]
            rows.append((case, policy, paper.computing_s, found.computing_s, paper.transfer_s, found.transfer_s))
    columns = ("case", "policy", "comp paper", "comp ours", "comm paper", "comm ours")
    return Table(title="The paper's own network (ninf_tnet)", columns=columns, rows=tuple(rows))


def balance(runs: Paper004Runs) -> Table:
    """Returns the response of one client and the throughput of all, by policy: the paper's thesis."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in (DECODED, REAL):
        for case in CASES:
            for policy in (*POLICIES, "adaptive"):
                found = runs.of(scenario, policy, case)
                worst = max(found.response_s.values(), default=None)
                rows.append((scenario, case, policy, found.total_s, worst, found.requests_per_s, found.makespan_s))
    columns = ("scenario", "case", "policy", "response s", "worst client s", "requests/s", "all done s")
    return Table(title="Response of a client and throughput of all", columns=columns, rows=tuple(rows))


def predictions(runs: Paper004Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for scenario in (DECODED, REAL):
        for case in CASES:
            for policy in ("rr", "loth", "loth+l", "loth+lt"):
                for load in ("now", "mean"):
                    for predictor in _PREDICTORS:
                        if predictor == "queueing" and load == "mean":
                            continue  # this predictor does not use the load
                        found = runs.of(scenario, policy, case, **_unless_default(load=load, predictor=predictor))
                        rows.append((scenario, case, policy, predictor, load, found.error, found.total_s))
    columns = ("scenario", "case", "policy", "predictor", "load", "error", "total s")
    return Table(title="Errors of predictions by policy and predictor", columns=columns, rows=tuple(rows))


def performances(runs: Paper004Runs) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for case in CASES:
        for source in _SOURCES:
            found = runs.of("ninf_functions", "loth", case, **_unless_default(performance=source))
            rows.append((case, source, found.belief, found.error, found.total_s, found.chosen["vector"]))
    columns = ("case", "performance", "distance from truth", "error", "total s", "calls to vector")
    return Table(title="Performance declared, calibrated and learnt (ninf_functions)", columns=columns, rows=tuple(rows))


def windows(runs: Paper004Runs) -> Table:
    rows = []
    for window in ("predicted", "one", "all"):
        found = runs.windowed(window)
        rows.append((window, found.makespan_s, found.total_s, found.chosen["fast"]))
    return Table(
        title="call_many by window (ninf_many)", columns=("window", "makespan s", "mean total s", "calls to fast"), rows=tuple(rows)
    )


def _unless_default(**params: str) -> dict[str, Any]:
    """Returns the parameters that differ from their defaults, so that runs of other tables with defaults are not run twice."""
    return {name: value for name, value in params.items() if value not in {"now", "last", "declared"}}


class _Measured(NamedTuple):
    """A row of table 3: seconds; utilisation of servers A (400 Mops) and B (40); MB/s of the transfers to them."""

    computing_s: float
    transfer_s: float
    total_s: float
    busy_a: float
    busy_b: float
    throughput_a: float
    throughput_b: float


class Modelled(NamedTuple):
    """A row of table 4, decoded: the paper's column A(400) is the slow server, B(40) the fast one (papers.md 4.4)."""

    computing_s: float
    transfer_s: float
    total_s: float
    busy_slow: float
    busy_fast: float


#: (policy, case) -> row.
TABLE_3: Mapping[tuple[str, str], _Measured] = {
    ("rr", "A"): _Measured(2.879, 14.821, 18.269, 0.009, 0.111, 0.189, 0.960),
    ("load", "A"): _Measured(0.421, 63.051, 65.879, 0.080, 0.217, 0.172, 0.864),
    ("load+l", "A"): _Measured(0.409, 65.956, 67.935, 0.121, 0.134, 0.139, 0.956),
    ("loth", "A"): _Measured(15.599, 16.434, 32.849, 0.136, 0.099, 0.117, 0.988),
    ("loth+l", "A"): _Measured(13.396, 21.050, 35.264, 0.120, 0.189, 0.127, 0.952),
    ("loth+t", "A"): _Measured(19.831, 8.459, 28.762, 0.107, 0.266, 0.130, 0.918),
    ("loth+lt", "A"): _Measured(7.562, 21.992, 30.588, 0.115, 0.227, 0.133, 0.927),
    ("rr", "B"): _Measured(2.303, 10.725, 13.606, 0.015, 0.001, 0.152, 1.0760),
    ("load", "B"): _Measured(0.405, 53.512, 55.325, 0.154, 0.051, 0.163, 0.994),
    ("load+l", "B"): _Measured(0.392, 54.299, 57.115, 0.088, 0.030, 0.138, 1.030),
    ("loth", "B"): _Measured(6.941, 5.263, 12.590, 0.100, 0.034, 0.123, 1.041),
    ("loth+l", "B"): _Measured(4.822, 12.964, 18.407, 0.093, 0.129, 0.129, 0.997),
    ("loth+t", "B"): _Measured(7.370, 8.485, 16.407, 0.098, 0.146, 0.140, 0.965),
    ("loth+lt", "B"): _Measured(3.641, 9.613, 13.680, 0.095, 0.137, 0.135, 0.978),
}
#: (policy, case) -> row.
TABLE_4: Mapping[tuple[str, str], Modelled] = {
    ("rr", "A"): Modelled(2.314, 14.339, 16.654, 0.538, 0.130),
    ("load", "A"): Modelled(1.689, 9.375, 11.064, 0.387, 0.148),
    ("load+l", "A"): Modelled(0.711, 5.499, 6.210, 0.309, 0.155),
    ("loth", "A"): Modelled(0.377, 3.752, 4.129, 0.248, 0.162),
    ("loth+l", "A"): Modelled(0.423, 4.010, 4.433, 0.256, 0.161),
    ("loth+t", "A"): Modelled(1.002, 6.981, 7.983, 0.346, 0.151),
    ("loth+lt", "A"): Modelled(0.908, 6.783, 7.691, 0.339, 0.152),
    ("rr", "B"): Modelled(2.145, 11.527, 13.672, 0.418, 0.117),
    ("load", "B"): Modelled(0.964, 5.726, 6.690, 0.293, 0.130),
    ("load+l", "B"): Modelled(0.800, 5.423, 6.223, 0.291, 0.130),
    ("loth", "B"): Modelled(0.374, 3.554, 3.928, 0.247, 0.135),
    ("loth+l", "B"): Modelled(0.379, 3.575, 3.954, 0.248, 0.135),
    ("loth+t", "B"): Modelled(0.612, 4.701, 5.313, 0.272, 0.132),
    ("loth+lt", "B"): Modelled(0.636, 4.816, 5.452, 0.275, 0.132),
}

#: 50 replications, as in the paper.
STUDY = Study(paper="004", runs=Paper004Runs, seeds=50, quick_seeds=50, checks=CHECKS, tables=tables, figures=lambda _runs: (), notes=NOTES)
