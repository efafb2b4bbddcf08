"""Checks of paper 004, by their names in papers.md 4.5; reported ones beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rmgr.sched.predictors.forecast import Forecast, Last
from rmgr.sched.records import Call, Server
from rmgr.sim.calls.runs import Summary
from rmgr.sim.calls.scenario import scenario_named
from rmgr.sim.papers.paper004.asked import Runs
from rmgr.sim.papers.paper004.printed import CASES, TABLE_3, TABLE_4
from rmgr.sim.papers.report import PaperCheck, Within, WithinBounds

#: The scenario that reproduces table 4 and the one of table 3.
DECODED, REAL = "ninf_table4", "ninf_shared"
_LINPACK_N = 600
#: Seconds of one request on the slower machine (table 2), and what is added.
_REQUEST_S, _INTERVAL_S = 19.265, 5.0


def c4_1(_runs: Runs) -> Iterator[PaperCheck]:
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
    """What LOTH expects of a server of `ninf_text` where nothing runs."""
    scenario = scenario_named("ninf_text")
    plan = next(server for server in scenario.servers if server.name == name)
    link = next(link for link in scenario.links if link.server == name)
    client = scenario.clients[0]
    server = Server(name, plan.speed, 0, (("client1", link.capacity),))
    return Last().forecast(Call(1, 0, client.operations, client.bytes, "client1"), (server,), plan.speed)


def c4_2(runs: Runs) -> Iterator[PaperCheck]:
    for policy, letters, limits in (("rr", ("", "b"), (0.10, 0.08)), ("loth", ("c", "d"), (0.05, 0.05))):
        for case, letter, limit in zip(CASES, letters, limits, strict=True):
            found, paper = runs.of(DECODED, policy, case), TABLE_4[policy, case]
            what = f"table 4, mean total of {policy.upper()} in case {case}, s"
            yield PaperCheck(
                id=f"C4.2{letter}", what=what, paper=paper.total_s, ours=found.total_s, spread=found.spread_s, rule=Within(relative=limit)
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


def c4_3(runs: Runs) -> Iterator[PaperCheck]:
    yield _ratio(runs, "C4.3", "LOTH is no slower than LOTH+L (1 % for chance)", "loth", "loth+l", WithinBounds(at_most=1.01))
    yield _ratio(runs, "C4.3b", "LOTH+L is within 10 % of LOTH", "loth+l", "loth", WithinBounds(at_least=0.9, at_most=1.1))
    for letter, policy in (("c", "loth+t"), ("d", "loth+lt")):
        yield _ratio(runs, f"C4.3{letter}", f"LOTH+L is faster than {policy.upper()}", "loth+l", policy, WithinBounds(below=1))
    for letter, policy in (("e", "loth+t"), ("f", "loth+lt")):
        yield _ratio(runs, f"C4.3{letter}", f"{policy.upper()} is faster than RR", policy, "rr", WithinBounds(below=1))


def c4_4(runs: Runs) -> Iterator[PaperCheck]:
    yield _ratio(runs, "C4.4", "LOTH beats RR by a factor above 3", "rr", "loth", WithinBounds(above=3))


def c4_5(runs: Runs) -> Iterator[PaperCheck]:
    for letter, policy in (("", "load"), ("b", "load+l")):
        what = f"{policy.upper()} lies between LOTH and RR: its way from LOTH to RR"
        ours, paper = {}, {}
        for case in CASES:
            rr, loth, own = (runs.of(DECODED, name, case).total_s for name in ("rr", "loth", policy))
            ours[case] = (own - loth) / (rr - loth) if rr != loth else 0.0
            rr, loth, own = (TABLE_4[name, case].total_s for name in ("rr", "loth", policy))
            paper[case] = (own - loth) / (rr - loth)
        yield PaperCheck(id=f"C4.5{letter}", what=what, paper=paper, ours=ours, rule=WithinBounds(at_least=0, at_most=1), required=False)


def c4_6(runs: Runs) -> Iterator[PaperCheck]:
    for letter, policy in (("", "loth+t"), ("b", "loth+lt")):
        yield _ratio(
            runs, f"C4.6{letter}", f"{policy.upper()} is at least 15 % slower than LOTH", policy, "loth", WithinBounds(at_least=1.15)
        )


def c4_7(runs: Runs) -> Iterator[PaperCheck]:
    for case, letter in zip(CASES, ("", "b"), strict=True):
        found = runs.of(REAL, "rr", case)
        what = f"table 3, mean total of RR in case {case}, s"
        paper = TABLE_3["rr", case].total_s
        yield PaperCheck(id=f"C4.7{letter}", what=what, paper=paper, ours=found.total_s, spread=found.spread_s, rule=Within(relative=0.10))
    yield _ratio(runs, "C4.7c", "LOAD sends all over the slow shared link: LOAD over RR", "load", "rr", WithinBounds(above=2.5), REAL)
    case_b = {"B": runs.of(REAL, "loth", "B").total_s / runs.of(REAL, "rr", "B").total_s}
    paper_b = {"B": TABLE_3["loth", "B"].total_s / TABLE_3["rr", "B"].total_s}
    yield PaperCheck(
        id="C4.7d", what="LOTH is faster than RR in case B: LOTH over RR", paper=paper_b, ours=case_b, rule=WithinBounds(below=1)
    )
    case_a = {"A": runs.of(REAL, "rr", "A").total_s / runs.of(REAL, "loth", "A").total_s}
    paper_a = {"A": TABLE_3["rr", "A"].total_s / TABLE_3["loth", "A"].total_s}
    what = "RR is faster than LOTH in case A: RR over LOTH (the model does not overload the local machine)"
    yield PaperCheck(id="C4.7e", what=what, paper=paper_a, ours=case_a, rule=WithinBounds(below=1), required=False)


def c4_8(runs: Runs) -> Iterator[PaperCheck]:
    fresh = {"refresh_us": 0}
    for letter, policy, base in (("", "loth+l", "loth"), ("b", "load+l", "load"), ("c", "loth+lt", "loth+t")):
        pairs = {case: (runs.of(DECODED, policy, case, change=fresh), runs.of(DECODED, base, case, change=fresh)) for case in CASES}
        ours = {case: left.total_s - right.total_s for case, (left, right) in pairs.items()}
        what = f"measured before every decision, {policy.upper()} equals {base.upper()}: difference of the totals, s"
        yield PaperCheck(id=f"C4.8{letter}", what=what, paper=dict.fromkeys(CASES, 0.0), ours=ours, rule=Within())


def tnet(runs: Runs) -> Iterator[PaperCheck]:
    ours = {case: runs.of("ninf_tnet", "loth", case).transfer_s for case in CASES}
    paper = {case: TABLE_4["loth", case].transfer_s for case in CASES}
    what = "links of 1.5 MB/s filled by other traffic: transfer of LOTH, s (18 % low as M/M/1)"
    yield PaperCheck(id="tnet", what=what, paper=paper, ours=ours, rule=Within(relative=0.05), required=False)
    cases = {"A / B": ours["A"] / ours["B"]}
    what = "the same, case A over case B"
    yield PaperCheck(
        id="tnetb", what=what, paper={"A / B": paper["A"] / paper["B"]}, ours=cases, rule=Within(relative=0.05), required=False
    )


def adaptive(runs: Runs) -> Iterator[PaperCheck]:
    for letter, scenario in (("", DECODED), ("b", REAL)):
        ours = {}
        for case in CASES:
            best = min(runs.of(scenario, name, case).total_s for name in ("rr", "loth"))
            ours[case] = runs.of(scenario, "adaptive", case).total_s / best
        what = f"adaptive is as good as the better of RR and LOTH in {scenario}: over it"
        yield PaperCheck(id=f"adaptive{letter}", what=what, ours=ours, rule=WithinBounds(at_most=1.05), required=False)


def queueing(runs: Runs) -> Iterator[PaperCheck]:
    ours = {}
    for case in CASES:
        with_queues, plain = runs.of(DECODED, "loth", case, predictor="queueing"), runs.of(DECODED, "loth", case)
        ours[case] = (with_queues.error or 0.0) / (plain.error or 1.0)
    what = "a predictor that queues misses by less than the last measurement: errors of LOTH's predictions, queueing over last"
    yield PaperCheck(id="queueing", what=what, ours=ours, rule=WithinBounds(below=1), required=False)


def _ratio(runs: Runs, check_id: str, what: str, above: str, below: str, rule: WithinBounds, scenario: str = DECODED) -> PaperCheck:
    def totals(name: str) -> dict[str, Summary]:
        return {case: runs.of(scenario, name, case) for case in CASES}

    table = TABLE_4 if scenario == DECODED else TABLE_3
    over, under = totals(above), totals(below)
    ours = {case: over[case].total_s / under[case].total_s for case in CASES}
    paper = {case: table[above, case].total_s / table[below, case].total_s for case in CASES}
    return PaperCheck(id=check_id, what=f"{what}: ratio of the totals", paper=paper, ours=ours, rule=rule)


#: Every id without the letters of its parts.
CHECKS: Mapping[str, Callable[[Runs], Iterator[PaperCheck]]] = {
    "C4.1": c4_1,
    "C4.2": c4_2,
    "C4.3": c4_3,
    "C4.4": c4_4,
    "C4.5": c4_5,
    "C4.6": c4_6,
    "C4.7": c4_7,
    "C4.8": c4_8,
    "tnet": tnet,
    "adaptive": adaptive,
    "queueing": queueing,
}
