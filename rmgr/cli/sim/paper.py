"""`rmgr sim paper`: a paper's experiments run again, its values beside ours, with spread, tolerance and verdict. And `rmgr sim calls`."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from rmgr.cli.display.render import Column, Layout, emit, paint, table
from rmgr.cli.session import Session, command
from rmgr.cli.sim import versions
from rmgr.cli.sim.runs import parse_names, parse_seeds
from rmgr.cli.words.params import PARAMETER, Parsed
from rmgr.client.progress import ProgressDisplay
from rmgr.errors import UsageError
from rmgr.model.units import counted, format_duration

if TYPE_CHECKING:
    from rmgr.sim.calls.runs import Summary
    from rmgr.sim.calls.scenario import Scenario
    from rmgr.sim.papers.report import Cell, PaperCheck, PaperReport, Table

_MOST_SEEDS = 1000
_STYLES = {"pass": "green", "fail": "red", "expected": "yellow", "reported": "cyan"}
_SIGNS = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}
#: Default number of processes of a run.
_PROCESSES = 2


def parse_seed_count(text: str) -> tuple[int, ...]:
    """Reads `5` as the seeds 1 to 5, and `3-5` or `1,4` as these seeds. Raises UsageError."""
    word = text.strip()
    if word.isascii() and word.isdigit():
        if not 1 <= int(word) <= _MOST_SEEDS:
            raise UsageError(f"{text!r} is not a number of seeds", hint=f"from 1 to {_MOST_SEEDS}; `7-7` is the one seed 7")
        return tuple(range(1, int(word) + 1))
    return tuple(dict.fromkeys(parse_seeds(word)))


@command(
    "paper",
    examples="""\
    rmgr sim paper 001
    rmgr sim paper 001 --check C1.2 --check C1.9 --seeds 3
    rmgr sim paper 001 --seeds 6 --jobs 2 --out out/paper001
    rmgr sim paper all --quick --out out/papers""",
    exits="0 no check fails, 1 one fails (or a run did), 2 usage, 130 interrupted",
)
@click.argument("number", metavar="000|001|002|004|all")
@click.option("--check", "checks", multiple=True, metavar="ID", help="only this check, and only the runs it needs; repeatable")
@click.option("--seeds", type=Parsed("seeds", parse_seed_count), metavar="N", help="seeds 1 to N (or 3-5, or 1,4); default: the paper's")
@click.option("--jobs", "processes", type=click.IntRange(1, 1024), default=2, show_default=True, help="runs at a time")
@click.option("--quick/--full", help="fewer runs: minutes for all papers, not an hour; default: full")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="report.json, tables as csv, figures; must not exist yet")
def paper(
    session: Session, number: str, checks: tuple[str, ...], seeds: tuple[int, ...] | None, processes: int, quick: bool, out: Path | None
) -> None:
    """Runs a paper's experiments again and says, for each of its statements, what the paper has and what we find.

    A required check fails when it does not hold; one that is listed as not holding fails when it holds. Other claims are reported. The
    spread is the standard deviation over the seeds. The same command gives the same numbers. `all` prints one table of all papers.
    """
    from rmgr.sim.papers import PAPERS, checks_named, paper_named
    from rmgr.sim.runs.output import refuse_existing

    if number == "all" and checks:
        raise UsageError("--check names a check of one paper", hint="as rmgr sim paper 001 --check C1.4")
    study = paper_named(number) if number != "all" else None
    wanted = checks_named(number, checks, tuple(study.checks)) if study and checks else None
    if out is not None:
        refuse_existing(out)
    found: list[_Found] = []
    for name in PAPERS if study is None else (number,):
        found.append(_run(session, name, wanted, seeds, processes, quick))
        if out is not None:
            out.mkdir(exist_ok=True) if study is None else None
            _write(session, out / name if study is None else out, found[-1], wanted)
    if session.json:
        emit({"schema": "rmgr/1", "papers": [one.report.document() for one in found]} if study is None else found[0].report.document())
    elif study is None:
        sys.stdout.writelines(f"{line}\n" for line in _summary(found))
    else:
        sys.stdout.writelines(f"{line}\n" for line in _report_lines(found[0].report))
        message = f"{found[0].runs} runs, seeds {_ranges(found[0].seeds)}, {format_duration(found[0].seconds)}"
        sys.stdout.write(f"\n{_verdicts(found[0].report)}; {message}\n")
    if out is not None and not session.json:
        what = ", ".join(PAPERS) if study is None else f"report.json, {len(found[0].report.tables)} tables as csv"
        sys.stdout.write(f"written: {out}: {what}\n")
    if not all(one.report.passes for one in found):
        click.get_current_context().exit(1)


class _Found(NamedTuple):
    """A report and what it cost."""

    report: PaperReport
    seeds: tuple[int, ...]
    runs: int
    seconds: float


def _run(
    session: Session, number: str, wanted: tuple[str, ...] | None, seeds: tuple[int, ...] | None, processes: int, quick: bool
) -> _Found:
    from rmgr.sim.papers import paper_named

    study = paper_named(number)
    chosen = seeds or tuple(range(1, (study.quick_seeds if quick else study.seeds) + 1))
    began = time.monotonic()
    with ProgressDisplay(f"paper {number}", enabled=not session.json) as display:
        report = study.report(study.runs(chosen, quick=quick), wanted, processes=processes, on_progress=display.tell)
    return _Found(report, chosen, display.counts.total, time.monotonic() - began)


def _ranges(seeds: tuple[int, ...]) -> str:
    """Returns seeds as ranges: (1, 2, 3, 7) -> `1-3, 7`."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


# -- text ----------------------------------------------------------------------------------------------------------------------


def _report_lines(report: PaperReport) -> Iterator[str]:
    for check in report.checks:
        yield from told_check(check)
        yield ""
    for one in report.tables:
        yield from _table(one)
        yield ""
    if report.notes:
        yield "Notes"
        for note in report.notes:
            yield f"  {note}"


def _summary(found: Sequence[_Found]) -> Iterator[str]:
    """Yields a line for each paper, and one for each check that does not hold or fails."""
    rows = []
    for one in found:
        verdicts = [check.verdict for check in one.report.checks]
        holding = [check.holds for check in one.report.checks if check.verdict == "reported"]
        counts = [verdicts.count(verdict) for verdict in ("pass", "fail", "expected")]
        rows.append([len(verdicts), *counts, holding.count(True), holding.count(False), one.runs])
    total = [sum(column) for column in zip(*rows, strict=True)]
    names = [*(one.report.paper for one in found), "all"]
    times = [format_duration(one.seconds) for one in found] + [format_duration(sum(one.seconds for one in found))]
    heads = ["paper", "checks", "pass", "fail", "expected", "reported: hold", "do not", "runs", "time"]
    lines = [[name, *map(shown, row), its] for name, row, its in zip(names, [*rows, total], times, strict=True)]
    yield from _aligned([heads, *lines])
    yield ""
    for one in found:
        for check in one.report.checks:
            if check.verdict == "fail" or not check.holds:
                yield shorten(f"{check.id:<6} {check.verdict:<8}  {check.what}", 80)


def shorten(line: str, most: int) -> str:
    """Cuts a line to at most `most` characters."""
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def told_check(check: PaperCheck) -> Iterator[str]:
    """Yields the statement with its verdict, then one line per row: paper, ours, spread, tolerance."""
    from rmgr.sim.papers.report import rows_of

    verdict = paint(check.verdict, _STYLES[check.verdict], sys.stdout)
    finds = " (holds)" if check.holds else " (does not hold)"
    yield f"{check.id:<6} {verdict}{'' if check.required and not check.expected else finds}  {check.what}"
    if check.expected:
        yield from textwrap.wrap(f"listed as not holding: {check.expected}", 80, initial_indent=" " * 7, subsequent_indent=" " * 7)
    columns = {"paper": rows_of(check.paper), "ours": rows_of(check.ours), "spread": rows_of(check.spread)}
    columns |= {"decided": rows_of(check.decided), "ties": rows_of(check.ties)}
    columns = {head: rows for head, rows in columns.items() if rows}
    limit = tolerance(check.rule.tolerance())
    names = dict.fromkeys(name for head in ("ours", "paper", "ties") for name in columns.get(head, ()))
    lines = [[name, *(shown(rows.get(name)) or "-" for rows in columns.values()), limit] for name in names]
    yield from (f"       {line}" for line in _aligned([["", *columns, "tolerance"], *lines]))


def tolerance(rule: dict[str, int | float]) -> str:
    """Returns a tolerance as text: `> 1`, `>= 0.7 and <= 1.3`, `exactly`, `+- 5 %`."""
    signs = [f"{_SIGNS[name]} {shown(limit)}" for name, limit in rule.items() if name in _SIGNS]
    if signs:
        return " and ".join(signs)
    absolute, relative = rule.get("absolute", 0), rule.get("relative", 0)
    parts = [f"{shown(absolute)}"] if absolute else []
    parts += [f"{shown(100 * relative)} %"] if relative else []
    return f"+- {' + '.join(parts)}" if parts else "exactly"


def _table(table: Table) -> Iterator[str]:
    yield paint(table.title, "bold", sys.stdout)
    yield from (f"  {line}" for line in _aligned([list(table.columns), *([shown(cell) for cell in row] for row in table.rows)]))


def shown(cell: Cell) -> str:
    """Returns a number for people: whole numbers whole, others with four digits; words unchanged, None as ""."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, int) or (cell.is_integer() and abs(cell) >= 1000):
        return f"{cell:,.0f}"
    return f"{cell:,.0f}" if abs(cell) >= 10_000 else f"{cell:.4g}"


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yields aligned lines: the first column to the left, the others, which are numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True))]
        yield "  ".join(cells).rstrip()


def _verdicts(report: PaperReport) -> str:
    verdicts = [check.verdict for check in report.checks]
    expected = verdicts.count("expected")
    listed = f", {expected} expected not to hold" if expected else ""
    return f"{verdicts.count('pass')} pass, {verdicts.count('fail')} fail{listed}, {verdicts.count('reported')} reported"


# -- files ---------------------------------------------------------------------------------------------------------------------


def _write(session: Session, out: Path, found: _Found, checks: tuple[str, ...] | None) -> None:
    """Writes all files, or none."""
    from rmgr.sim.runs.output import whole_directory, write_json

    report = found.report
    manifest = {
        "schema": "rmgr/1",
        "versions": versions(),
        "paper": report.paper,
        "seeds": list(found.seeds),
        "checks": None if checks is None else list(checks),
    }
    with whole_directory(out) as partial:
        write_json(partial / "report.json", report.document())
        write_json(partial / "manifest.json", manifest)
        if report.figures:
            write_json(partial / "figures.json", report.figures_document())
        for table in report.tables:
            (partial / table.file_name).write_text(table.csv(), encoding="utf-8")
        drawn = not report.figures or _draw(partial, report)
    if not drawn:
        session.note(f"figures are not drawn: matplotlib is missing (pip install 'matplotlib>=3.8,<4', then rmgr sim plot {out})")


def _draw(directory: Path, report: PaperReport) -> bool:
    """Draws the figures if matplotlib is there; returns whether it is."""
    try:
        from rmgr.sim.plots.pictures import draw, figures
    except UsageError:
        return False
    draw(figures(report.figures), directory, ("png", "svg"))
    return True


# -- `rmgr sim calls` ----------------------------------------------------------------------------------------------------------


@command(
    "calls",
    examples="""\
    rmgr sim calls ninf_table4 --policy rr,loth,loth+l
    rmgr sim calls my_servers.toml --policy loth --param predictor=queueing --seeds 200 --out out/queueing
    rmgr sim plot out/queueing --kind calls""",
    exits="0 done, 1 a policy failed or the results could not be written, 2 usage, or a scenario that cannot be used, 130 interrupted",
)
@click.argument("source", metavar="FILE.toml|SCENARIO")
@click.option(
    "--policy",
    "policies",
    type=Parsed("names", parse_names),
    metavar="A,B",
    help="names or FILE.py; default: all of rmgr policy list for calls",
)
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="parameter of all named policies; repeatable")
@click.option(
    "--seeds", type=Parsed("seeds", parse_seed_count), default="50", show_default=True, metavar="N", help="replications 1 to N (or 3-5)"
)
@click.option("--jobs", "processes", type=click.IntRange(1, 1024), default=_PROCESSES, show_default=True, help="processes at a time")
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="LOG", help="facts and picks of one policy, first case and seed, for sim replay"
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="calls.csv, summary.json, manifest.json; must not exist yet")
def calls(
    session: Session,
    source: str,
    policies: tuple[str, ...] | None,
    params: tuple[tuple[str, str], ...],
    seeds: tuple[int, ...],
    processes: int,
    record: Path | None,
    out: Path | None,
) -> None:
    """Simulates calls under stale information: which policy has the answers first.

    \b
    SCENARIO      shipped (paper 004): ninf_table4, ninf_text, ninf_shared,
                  ninf_tnet, ninf_functions, ninf_many
    FILE.toml     servers, links, clients, cases; its keys: rmgr/sim/calls/scenario.py

    The policies are those of the leader. All of them meet the same requests (common random numbers). Times in seconds, means over the
    replications; +- is the 90 % confidence interval of the total; ERROR how far the policy's own
    predictions are off, of the actual time.
    """
    from rmgr.adapters import policy_files
    from rmgr.sched.catalogue import CALL_POLICIES
    from rmgr.sim.calls.runs import calls_document, replications, summed, write_calls
    from rmgr.sim.calls.scenario import scenario_named
    from rmgr.sim.runs.output import refuse_existing

    scenario = scenario_named(source)
    names = tuple(dict.fromkeys(policies or CALL_POLICIES))
    for name in names:
        policy_files.for_calls(name, dict(params))
    if len(set(dict(params))) != len(params):
        raise UsageError("a parameter is given twice", hint="--param NAME=VALUE once for each name")
    for place in filter(None, (out, record)):
        refuse_existing(place)
    if record is not None:
        if len(names) != 1:
            raise UsageError("--record writes the log of one policy", hint="--policy NAME")
        _record(record, scenario, names[0], dict(params), seeds[0])
    with ProgressDisplay(f"calls of {scenario.name}", enabled=not session.json) as display:
        found = replications(
            scenario,
            [(name, params) for name in names],
            seeds,
            make=policy_files.for_calls,
            processes=processes,
            on_progress=display.tell,
        )
    summaries = {key: summed(ones) for key, ones in found.items()}
    if out is not None:
        manifest = {"schema": "rmgr/1", "versions": versions(), "scenario": source, "params": dict(params), "seeds": list(seeds)}
        write_calls(out, found, summaries, seeds, manifest)
    if session.json:
        emit(calls_document(summaries))
        return
    about = scenario.about or "no description"
    sys.stdout.write(f"{scenario.name}: {about}; {counted(len(seeds), 'replication')} of {counted(scenario.requests, 'request')}\n")
    _show(summaries)
    if out is not None:
        sys.stdout.write(f"written: {out}\n")


def _record(path: Path, scenario: Scenario, policy: str, params: dict[str, str], seed: int) -> None:
    """Simulates one replication and writes its log."""
    from rmgr.adapters import policy_files
    from rmgr.sched.state.event_log import Recorder
    from rmgr.sim.calls.world import replicate
    from rmgr.sim.runs.output import new_log

    with new_log(path) as write:
        recorder = Recorder(write, policy=policy, parameters=params, about={"scenario": scenario.name})
        replicate(scenario, scenario.cases[0], policy_files.for_calls(policy, params), seed=seed, recorder=recorder)


def _show(summaries: Mapping[tuple[str, str], Summary]) -> None:
    """Prints a line for each case and policy, with utilisation and share of calls for each server."""
    rows: Sequence[tuple[str, str, Summary]] = [
        (case, policy, summary) for (policy, case), summary in sorted(summaries.items(), key=lambda item: item[0][1])
    ]
    servers = list(rows[0][2].busy)
    columns = [
        Column(name="CASE", text=lambda row: row[0], is_id=True),
        Column(name="POLICY", text=lambda row: row[1], is_id=True),
        Column(name="COMP", text=lambda row: f"{row[2].computing_s:.3f}"),
        Column(name="COMM", text=lambda row: f"{row[2].transfer_s:.3f}"),
        Column(name="TOTAL", text=lambda row: f"{row[2].total_s:.3f}"),
        Column(name="+-", text=lambda row: f"{row[2].half_width_s:.3f}"),
        Column(name="REQ/S", text=lambda row: f"{row[2].requests_per_s:.4g}"),
        Column(name="ERROR", text=lambda row: "-" if row[2].error is None else f"{100 * row[2].error:.0f}%"),
    ]
    for server in servers:
        columns.append(Column(name=f"BUSY {server}", text=lambda row, server=server: f"{row[2].busy[server]:.3f}"))  # type: ignore[misc]
        columns.append(Column(name=f"CALLS {server}", text=lambda row, server=server: f"{100 * row[2].chosen[server]:.0f}%"))  # type: ignore[misc]
    table(rows, tuple(columns), Layout())
