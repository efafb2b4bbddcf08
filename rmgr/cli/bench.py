"""`rmgr bench`: figures of this machine with their baselines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click


@click.command(
    short_help="Measure: tasks, latency, shell, backlog",
    epilog="""\b
Examples:
  rmgr bench tasks                     no-op tasks against ProcessPoolExecutor(2) in the same run
  rmgr bench latency shell --json      two measurements, one JSON value
  rmgr bench backlog --scale 0.1       a tenth of the tasks
""",
)
@click.argument("names", nargs=-1, required=True, metavar="tasks|latency|shell|backlog...")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Repetitions; medians and spread are printed.")
@click.option("--scale", type=click.FloatRange(0.001, 1000), default=1.0, show_default=True, help="Of the number of tasks.")
@click.pass_context
def bench(context: click.Context, names: tuple[str, ...], repeat: int, scale: float) -> None:
    """Measures rmgr on a cluster of its own (one ZooKeeper, SQLite, two slots) beside a baseline in the same run.

    Absolute rates depend on the machine and the hour; ratios hold. Nothing of a running cluster is touched.
    """
    from rmgr.dev import bench as measure

    as_json = bool(getattr(context.obj, "json", False))
    plan = measure.Plan(repetitions=repeat, scale=scale, progress=lambda text: print(f"rmgr bench: {text}", file=sys.stderr, flush=True))
    rows = {name: measure.run(name, plan) for name in names}
    if as_json:
        documents = [{"schema": "rmgr/1", "bench": name, "rows": [asdict(row) for row in found]} for name, found in rows.items()]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else {"schema": "rmgr/1", "benches": documents}))
        return
    for found in rows.values():
        for row in found:
            ratio = f"  ratio {row.ratio:.2f}" if row.ratio is not None else ""
            detail = "".join(f"  {key} {value:.0f}" for key, value in row.detail.items()).replace("_", " ")
            spread = f"[{row.spread[0]:.1f} .. {row.spread[1]:.1f}]"
            click.echo(f"{row.what:<58} {row.system:<34} {row.rate:>10.1f} {row.unit:<10} {spread}{ratio}{detail}")
