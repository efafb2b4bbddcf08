"""`rmgr sim sweep`: policies x loads x seeds in parallel processes; interrupted, the same command goes on."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.sim import run as sim_options
from rmgr.cli.sim.run import parse_factor
from rmgr.cli.words.params import DURATION_US, Parsed
from rmgr.errors import UsageError
from rmgr.model.base.version import VERSION

_MOST_SEEDS = 10_000


def parse_names(text: str) -> tuple[str, ...]:
    """`fcfs,easy`. Raises UsageError."""
    names = tuple(word.strip() for word in text.split(","))
    if not all(names):
        raise UsageError(f"{text!r} is not a list of names", hint="as fcfs,easy")
    return names


def parse_factors(text: str) -> tuple[Fraction, ...]:
    """`.7,.8`. Raises UsageError."""
    return tuple(parse_factor(word) for word in text.split(","))


def parse_seeds(text: str) -> tuple[int, ...]:
    """`1-5`, `1,3,7-9`. Raises UsageError."""
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise UsageError(f"{text!r} is not a list of seeds", hint="as 1-5 or 1,3,7-9")
        low, high = int(first), int(last or first)
        if high < low or high - low >= _MOST_SEEDS:
            raise UsageError(f"{word.strip()!r} is not a range of seeds", hint=f"upwards, at most {_MOST_SEEDS} of them")
        seeds += range(low, high + 1)
    return tuple(seeds)


@command(
    "sweep",
    examples="""\
    rmgr sim sweep --policy first_fit,easy --load .7,.8,.9 --seeds 1-5 lublin99 --out out/lublin --jobs 2
    rmgr sim sweep --policy first_fit,migration,ljf_migration --seeds 1-6 feitelson96 --sites 10 --tick 10m --out out/grid
    rmgr sim sweep --policy easy,conservative --seeds 1-5 --mtbf 60d --mttr 4h lublin99 --out out/failures
    rmgr sim sweep --policy fcfs,easy --load .6,.8 KTH-SP2-1996-2.1-cln.swf.gz --out out/kth""",
    exits="0 done, 1 a run failed or could not be written (what has finished is kept), 2 usage, 130 interrupted: the same command goes on",
)
@click.argument("source", metavar="TRACE.swf[.gz]|MODEL")
@click.option(
    "--policy",
    "policies",
    type=Parsed("names", parse_names),
    required=True,
    metavar="A,B",
    help="policies to compare: names, FILE.py, FILE.toml",
)
@click.option("--load", "loads", type=Parsed("factors", parse_factors), metavar="F,F", help="offered loads; default: the workload's own")
@click.option("--seeds", type=Parsed("seeds", parse_seeds), default="0", show_default=True, metavar="1-5", help="of models and policies")
@sim_options.nodes
@sim_options.cores
@sim_options.count
@sim_options.tick
@sim_options.sites
@sim_options.delay
@sim_options.penalty
@click.option("--events", type=click.Path(), metavar="FILE", default="", help="what happens beside the jobs; see rmgr sim run --help")
@sim_options.mtbf
@click.option("--mttr", type=DURATION_US, default="0", help="mean time to its repair; one seed gives all policies the same failures")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="new, or of this very sweep: it goes on")
@click.option("--jobs", "processes", type=click.IntRange(1, 1024), default=2, show_default=True, help="runs at a time")
@click.option("--validate", is_flag=True, help="check every schedule")
def sweep(
    session: Session,
    source: str,
    policies: tuple[str, ...],
    loads: tuple[Fraction, ...] | None,
    seeds: tuple[int, ...],
    nodes: int | None,
    cores: int,
    count: int | None,
    tick: int,
    sites: int,
    delay: int,
    penalty: int,
    events: str,
    mtbf: int,
    mttr: int,
    out: Path,
    processes: int,
    validate: bool,
) -> None:
    """Runs every policy at every load with every seed: one seed gives all policies the same workload.

    DIR gets manifest.json, a directory a run below runs/, and results.csv when all are there.
    """
    from rmgr.adapters.policy_files import load as configure
    from rmgr.client.progress import Counts, ProgressDisplay
    from rmgr.sim.models.catalogue import is_model
    from rmgr.sim.runs.experiment import Experiment, Sweep, carry_out_sweep

    experiments = tuple(
        Experiment(
            source=source,
            policy=policy,
            nodes=nodes,
            cores=cores,
            load=load,
            count=count,
            seed=seed,
            tick_us=tick,
            sites=sites,
            delay_us=delay,
            penalty_us=penalty,
            events=events,
            mtbf_us=mtbf,
            mttr_us=mttr,
            configure=configure,
        )
        for policy in policies
        for load in (loads or (None,))
        for seed in seeds
    )
    for experiment in experiments[:: len(seeds)]:
        experiment.check()  # a wrong name, and a wrong event, is refused before anything runs
    if not is_model(source):
        experiments[0].workload()  # a trace that cannot be used, too
    versions = (("rmgr", VERSION), ("python", platform.python_version()))
    plan = Sweep(experiments=experiments, validate=validate, versions=versions)
    done = 0
    with ProgressDisplay(f"sweep {out.name}", enabled=not session.json) as display:

        def on_end(finished: int, total: int) -> None:
            nonlocal done
            done = finished
            display.update(Counts(total=total, final=finished))

        try:
            rows = carry_out_sweep(plan, out, processes=processes, on_end=on_end)
        except KeyboardInterrupt:
            session.note(f"{done} of {len(experiments)} runs are finished and kept; the same command goes on from there")
            raise
    if session.json:
        emit({"out": str(out), "results": str(out / "results.csv"), "runs": rows})
        return
    _draw(rows)
    sys.stdout.write(f"{len(rows)} runs in {out}: results.csv, manifest.json, runs/\n")
    sys.stdout.write(f"draw: rmgr sim plot {shlex.quote(str(out))}\n")


def _draw(rows: list[dict[str, Any]]) -> None:
    """One line a policy and load: means over the seeds, and the range of the mean wait."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["policy"], row["load"]), []).append(row)

    def mean(group: Iterable[dict[str, Any]], measure: str) -> float:
        return fmean(row[measure] for row in group)

    def spread(group: list[dict[str, Any]]) -> str:
        waits = [row["mean_waiting_time"] for row in group]
        return f"{min(waits):,.0f}..{max(waits):,.0f}" if len(waits) > 1 else ""

    columns = (
        Column(name="POLICY", text=lambda g: g[0]["policy"], is_id=True),
        Column(name="LOAD", text=lambda g: "" if g[0]["load"] is None else f"{g[0]['load']:g}", right=True),
        Column(name="SEEDS", text=lambda g: str(len(g)), right=True),
        Column(name="WAIT[s]", text=lambda g: f"{mean(g, 'mean_waiting_time'):,.1f}", right=True),
        Column(name="RANGE[s]", text=spread, right=True),
        Column(name="BSLD", text=lambda g: f"{mean(g, 'mean_bounded_slowdown'):,.2f}", right=True),
        Column(name="UTILISATION", text=lambda g: f"{mean(g, 'utilisation'):.4f}", right=True),
    )
    table(list(groups.values()), columns, Layout())
