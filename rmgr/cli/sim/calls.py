"""`rmgr sim calls`: calls of clients to servers, under policies that choose the server (paper 004)."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.sim.paper import parse_seed_count
from rmgr.cli.sim.sweep import parse_names
from rmgr.cli.words.params import Parsed, parse_pair
from rmgr.errors import UsageError
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from rmgr.sim.calls.runs import Summary
    from rmgr.sim.calls.scenario import Scenario

PARAMETER = Parsed("parameter", parse_pair("NAME=VALUE"))
#: Processes of a run, where nothing else is said.
_PROCESSES = 2


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
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="of every policy named; repeatable")
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
    from rmgr.cli.session.version import rmgr_version
    from rmgr.client.progress import Counts, ProgressDisplay
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
            on_progress=lambda done, total: display.update(Counts(total=total, final=done)),
        )
    summaries = {key: summed(ones) for key, ones in found.items()}
    if out is not None:
        versions = {"rmgr": rmgr_version(), "python": platform.python_version()}
        manifest = {"schema": "rmgr/1", "versions": versions, "scenario": source, "params": dict(params), "seeds": list(seeds)}
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
    """One replication, with its log."""
    from rmgr.adapters import policy_files
    from rmgr.sched.state.event_log import Recorder
    from rmgr.sim.calls.world import replicate
    from rmgr.sim.log_files import new_log

    with new_log(path) as write:
        recorder = Recorder(write, policy=policy, parameters=params, about={"scenario": scenario.name})
        replicate(scenario, scenario.cases[0], policy_files.for_calls(policy, params), seed=seed, recorder=recorder)


def _show(summaries: Mapping[tuple[str, str], Summary]) -> None:
    """A line for each case and policy; utilisation and share of calls for each server."""
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
