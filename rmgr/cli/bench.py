"""`rmgr bench`: measurements on this machine, each beside its baseline."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import emit
from rmgr.cli.session import Session, command
from rmgr.cli.words.params import Parsed, unknown
from rmgr.errors import UsageError
from rmgr.model.units import parse_size

if TYPE_CHECKING:
    from rmgr.bench.measuring import MeasuringPlan, Row

_MAX_VALUE_BYTES = 64 * 2**20
#: name -> its function below `rmgr.bench` (module:function). The module is imported only when it is asked for.
_MEASUREMENTS = {
    "tasks": "tasks:tasks",
    "latency": "tasks:latency",
    "shell": "tasks:shell",
    "backlog": "tasks:backlog",
    "commands": "commands:commands",
    "store": "store:store",
    "keyed": "store:keyed",
    "mixed": "tasks:mixed",
    "idle": "idle:idle",
    "scale": "scale:scale",
    "jobs": "jobs:jobs",
    "classes": "reality:classes",
    "gang": "gang:gang",
    "calls": "calls:calls",
    "reality": "reality:reality",
    "sim": "sched:sim",
    "pass": "sched:passes",
    "placing": "jobs:published",
}


def _sizes(text: str) -> tuple[int, ...]:
    found = {part: parse_size(part) for part in text.split(",") if text}
    for part, size in found.items():
        if not 1 <= size <= _MAX_VALUE_BYTES:
            raise UsageError(f"{part}: a value of this measurement has 1 byte to 64 MiB", hint="--size 100,10k,1M")
    return tuple(found.values())


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@command(
    "bench",
    examples="""\
    rmgr bench tasks                     no-op tasks against ProcessPoolExecutor(2) in the same run
    rmgr bench latency shell --json      two measurements, one JSON value
    rmgr bench backlog --scale 0.1       a tenth of the tasks
    rmgr bench commands                  status, jobs, submit, --help as a shell user waits for them
    rmgr bench store --cassandra         data through SQLite and through one Cassandra of its own
    rmgr bench keyed --size 100,10k      tasks whose inputs and outputs are keys of the store, beside a bare program's reads and writes
    rmgr bench mixed --scale 0.2         long and short tasks against the shortest time they can take (10 min unscaled)
    rmgr bench idle                      processor and memory of a cluster without work, process by process
    rmgr bench scale --scale 0.2         the cost of a task with one and with 40 virtual Starters (minutes; 200 unscaled)
    rmgr bench jobs                      placed jobs a second, their cost, a job of four ranks from submit to first instruction
    rmgr bench placing --scale 0.1       passes of a live leader: 1000 nodes in ZooKeeper, 10000 jobs that wait (unscaled)
    rmgr bench gang                      jobs that share cores in time: the switch beside bare loops, what sharing costs (4 min)
    rmgr bench calls                     calls of functions: a pick, a call, a transfer beside bare gRPC, predictions (4 min)
    rmgr bench calls --row ninf_shared   table 3 of paper 004 on servers that run, beside the simulator (7 min a repetition)
    rmgr bench reality --repeat 1        60 jobs of seconds live and in the simulator, under four policies (5 min each)
    rmgr bench classes --repeat 1        200 jobs of seed 000 live and simulated: conventional, proposal 1, proposal 2 (4 min)
    rmgr bench sim --trace KTH.swf.gz    jobs simulated per second, beside a bare event loop
    rmgr bench pass                      time of a scheduling pass by pending jobs and nodes""",
    exits="0 measured, 2 usage, 5 no cluster could be started",
)
@click.argument("names", nargs=-1, required=True, metavar="|".join(_MEASUREMENTS) + "...")
@click.option(
    "--repeat", "repetitions", type=click.IntRange(1, 100), default=3, show_default=True, help="repetitions; medians and spread are printed"
)
@click.option("--scale", type=click.FloatRange(0.001, 1000), default=1.0, show_default=True, help="factor on numbers of tasks, jobs, nodes")
@click.option("--trace", default="", metavar="FILE", help="sim: this workload (SWF, plain or gz) instead of 28467 jobs of lublin99")
@click.option("--large", is_flag=True, help="sim, pass: a million jobs on 100000 nodes instead, and their memory")
@click.option("--cassandra", is_flag=True, help="store, tasks, keyed: on one Cassandra too (the last two: with three ZooKeepers)")
@click.option(
    "--size", "sizes", type=Parsed("sizes", _sizes), default="", metavar="SIZE,...",
    help="keyed: sizes of the values, e.g. 100,10k,1M (the default)",
)  # fmt: skip
@click.option("--through-gateway", "gateway", is_flag=True, help="tasks, latency: directly and through a gateway, in turns")
@click.option(
    "--row", "rows", type=Parsed("rows", _names), default="", metavar="NAME,...",
    help="calls: these rows only; waiting, fifty, ninf_shared, ninf_table4 take minutes",
)  # fmt: skip
def bench(session: Session, names: tuple[str, ...], **asked: Any) -> None:
    """Measures rmgr on a cluster of its own (one ZooKeeper, SQLite, two slots) beside a baseline in the same run.

    sim and pass measure the scheduler by itself and start nothing. Absolute rates depend on the machine and the hour; ratios hold.
    Nothing of a running cluster is touched.
    """
    for name in names:
        if name not in _MEASUREMENTS:
            raise unknown("measurement", name, _MEASUREMENTS)
    from rmgr.bench.measuring import MeasuringPlan

    plan = MeasuringPlan(progress=session.note, **asked)
    rows = {name: _measured(name, plan) for name in names}
    if session.json:
        documents: list[dict[str, Any]] = [{"bench": name, "rows": [asdict(one) for one in found]} for name, found in rows.items()]
        emit(documents[0] if len(documents) == 1 else {"benches": documents})
        return
    what, system = (max(len(getattr(one, name)) for found in rows.values() for one in found) for name in ("what", "system"))
    for found in rows.values():
        for one in found:
            ratio = f"  ratio {one.ratio:.2f}" if one.ratio is not None else ""
            detail = "".join(f"  {key.replace('_', ' ')} {value:.4g}" for key, value in one.detail.items())
            spread = f"[{_figure(one.spread[0])} .. {_figure(one.spread[1])}]"
            sys.stdout.write(f"{one.what:<{what}}  {one.system:<{system}} {_figure(one.rate):>10} {one.unit:<10} {spread}{ratio}{detail}\n")


def _measured(name: str, plan: MeasuringPlan) -> list[Row]:
    module, _, function = _MEASUREMENTS[name].partition(":")
    found: list[Row] = getattr(importlib.import_module(f"rmgr.bench.{module}"), function)(plan)
    return found


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"
