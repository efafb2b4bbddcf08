"""`rmgr sim run`, `sweep`, `plot`, `replay`: the leader's scheduling policies on a virtual clock, in one run or many; pictures of the runs;
and the replay of a recorded log, which checks every decision, or compares another policy with what was recorded.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session import Session, command
from rmgr.cli.sim import versions
from rmgr.cli.words.params import DURATION, DURATION_US, PARAMETER, Parsed, one_of
from rmgr.client.progress import ProgressDisplay
from rmgr.errors import UsageError
from rmgr.model.units import counted, format_duration

if TYPE_CHECKING:
    from rmgr.sim.engine.outcome import Result
    from rmgr.sim.replay import History
    from rmgr.sim.runs.experiment import Experiment
    from rmgr.sim.workload.jobs import Workload

#: Measures that are printed if they are not 0.
_HAPPENED = {
    "jobs_failed": "jobs failed",
    "jobs_cancelled": "jobs cancelled",
    "migrations": "migrations",
    "suspensions": "suspensions",
    "preemptions": "preemptions",
    "lost_to_nodes": "runs lost with their nodes",
}
#: Most names of queues in a note.
_MOST_QUEUES = 8
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)")
#: Measures of the comparison, with their name, unit and digits.
_COMPARED = {
    "mean_waiting_time": ("mean wait", "s", 2),
    "median_waiting_time": ("median wait", "s", 0),
    "max_waiting_time": ("max wait", "s", 0),
    "mean_turnaround_time": ("mean turnaround", "s", 2),
    "mean_bounded_slowdown": ("mean bounded slowdown", "", 3),
    "utilisation": ("utilisation", "", 5),
    "makespan": ("makespan", "s", 0),
    "jobs_waiting_zero": ("jobs that do not wait", "", 0),
    "jobs_rejected": ("jobs rejected", "", 0),
    "jobs_failed": ("jobs failed", "", 0),
    "migrations": ("migrations", "", 0),
    "lost_to_nodes": ("runs lost with nodes", "", 0),
}
#: Most letters of a policy's name above its column; a longer name, such as a path, shows its end.
_MOST_HEAD = 26


def parse_factor(text: str) -> Fraction:
    """Reads `0.7`, `.95` or `2` as exactly that decimal number, above 0 and at most 1,000. Raises UsageError."""
    word = text.strip()
    value = Fraction(word) if _NUMBER.fullmatch(word) else Fraction(0)
    if not 0 < value <= 1000:
        raise UsageError(f"{text!r} is not a factor", hint="a number above 0 and at most 1000, as 0.7")
    return value

FACTOR = Parsed("factor", parse_factor)
# Options of a run and of a sweep; they are called as fields of `Experiment`.
nodes = click.option(
    "--nodes", type=click.IntRange(1, 10_000_000), help="processors of the machine; default: as in the trace's header; of a model: 128"
)
cores = click.option("--cores", type=click.IntRange(1, 100_000), default=1, show_default=True, help="of a node")
count = click.option("--count", type=click.IntRange(1), metavar="N", help="only the first N jobs; of a model: N jobs, default 10000")
tick = click.option(
    "--tick", "tick_us", type=DURATION_US, default="0", show_default=True, help="pass only at multiples of this; 0: at every event"
)
sites = click.option(
    "--sites", type=click.IntRange(0, 10_000), default=0, help="a grid: nodes of drawn speeds, 0.5 to 1.5, in so many sites"
)
delay = click.option(
    *("--delay", "delay_us"), type=DURATION_US, default="10m", show_default=True,
    help="with --sites: extra time for each site of a job beyond the first",
)  # fmt: skip
penalty = click.option(
    *("--penalty", "penalty_us"), type=DURATION_US, default="1m", show_default=True,
    help="with --sites: extra time of a migration for each processor",
)  # fmt: skip
mtbf = click.option("--mtbf", "mtbf_us", type=DURATION_US, default="0", help="mean time between failures of each node, as 30d; with --mttr")


@command(
    "run",
    examples="""\
    rmgr sim run KTH-SP2-1996-2.1-cln.swf.gz --policy easy
    rmgr sim run trace.swf --policy first_fit --nodes 128 --load 0.9 --out out/ff --validate
    rmgr sim run trace.swf --policy easy --param order=sjf --json
    rmgr sim run trace.swf --policy ./my_policy.py --param spare=4
    rmgr sim run lublin99 --policy easy --nodes 256 --count 20000 --load 0.8 --seed 3
    rmgr sim run feitelson96 --policy migration --sites 10 --tick 10m --penalty 5m
    rmgr sim run trace.swf --policy easy --mtbf 30d --mttr 4h --events events.jsonl
    rmgr sim run trace.swf --policy easy --record easy.log.gz

    A file of events has one JSON object a line:
    {"at": 3600, "event": "fail", "nodes": "0-3 7"}      repair, drain and undrain alike; at: seconds, or "1h30m"
    {"at": "1d", "event": "fail_over", "for": 30}        the leader dies, another takes over
    {"at": 0, "event": "maintenance", "nodes": "0-9", "start": "7d", "end": "7d4h", "name": "new cooling"}
    {"at": 500.5, "event": "cancel", "job": 17}
    {"at": 0, "event": "limits", "partition": "default", "max_cpus_per_user": 64, "max_jobs_per_user": 4}""",
    exits="0 done, 1 the results could not be written or the schedule is not valid, 2 usage, or a trace that cannot be used",
)
@click.argument("source", metavar="TRACE.swf[.gz]|MODEL")
@click.option(
    "--policy", required=True, metavar="NAME|FILE", help="as easy (rmgr policy list shows all), your FILE.py, or a pipeline FILE.toml"
)
@nodes
@cores
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="policy parameter, as order=sjf; repeatable")
@click.option("--load", type=FACTOR, metavar="F", help="stretch arrivals until jobs request this share of the machine, as 0.7")
@click.option("--interarrival", type=FACTOR, metavar="F", help="multiply submit times; 0.9 submits a tenth faster")
@count
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="seed of all random draws")
@tick
@click.option("--events", type=click.Path(), metavar="FILE", default="", help="events besides the jobs, one JSON object per line")
@mtbf
@click.option("--mttr", "mttr_us", type=DURATION_US, default="0", help="mean time to its repair, as 4h")
@click.option("--requeue/--no-requeue", default=True, help="requeue a job that loses a node (default; at most 100 times), or fail it")
@click.option("--dependencies", is_flag=True, help="follow fields 17 and 18 of the trace: jobs come a think time after another's end")
@sites
@delay
@penalty
@click.option("--record", type=click.Path(path_type=Path), metavar="LOG", help="write all facts and decisions here, for rmgr sim replay")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="jobs.csv, schedule.json, manifest.json; must not exist yet")
@click.option("--spells", is_flag=True, help="spells.csv with every slot of jobs that share cores in time (dqt); long runs get large")
@click.option("--validate", is_flag=True, help="check the schedule: no overlap, no over-allocation, every job ends")
def run(session: Session, params: tuple[tuple[str, str], ...], record: Path | None, out: Path | None, validate: bool, **asked: Any) -> None:
    """Runs a trace in Standard Workload Format, or a model (lublin99, feitelson96, hpc2500), under one policy and prints its measures.

    Times are exact; the same command line gives the same files, byte for byte. Jobs run for the time that the trace says; the policy
    knows only what they requested.
    """
    from rmgr.adapters import policy_files
    from rmgr.sim.runs.experiment import Experiment, carry_out
    from rmgr.sim.runs.output import new_log, refuse_existing, summary, write_run

    experiment = Experiment(params=dict(params), configure=policy_files.load, **asked)
    experiment.check()  # a wrong name is refused before a long trace is read
    for place in (out, record):
        if place is not None:
            refuse_existing(place)
    workload = experiment.workload()
    for queue in experiment.empty_queues(workload):
        known = ", ".join(sorted({job.queue or "(none)" for job in workload.jobs})[:_MOST_QUEUES])
        session.note(f"no job of {workload.name} is in queue {queue} of {experiment.policy}; the queues of its jobs: {known}")
    total = len(workload.jobs)
    with ExitStack() as stack:
        display = stack.enter_context(ProgressDisplay(f"{workload.name} {experiment.policy}", enabled=not session.json))
        result = carry_out(
            experiment,
            workload,
            validate=validate,
            on_progress=lambda ended: display.tell(ended, total),
            log=stack.enter_context(new_log(record)) if record is not None else None,
        )
        display.tell(total, total)
    if out is not None:
        write_run(out, result, workload_name=workload.name, manifest=_manifest(experiment, result, workload.name))
    found = summary(result)
    for fault, times in result.faults:
        session.note(f"policy failed {counted(times, 'time')}, and lost its decisions each time: {fault}")
    if session.json:
        emit(
            {
                "workload": {"name": workload.name, "jobs": total, "offered_load": _load(workload), "touched": dict(workload.touched)},
                "experiment": experiment.described() | {"nodes": experiment.node_count(result.processors)},
                "summary": found,
                "faults": dict(result.faults),
                "validated": validate,
                "out": str(out) if out is not None else None,
                "record": str(record) if record is not None else None,
            }
        )
        return
    sys.stdout.writelines(f"{line}\n" for line in _summary(experiment, workload, result, found, out=out, record=record, validated=validate))


def _summary(
    experiment: Experiment,
    workload: Workload,
    result: Result,
    found: dict[str, int | float],
    *,
    out: Path | None,
    record: Path | None,
    validated: bool,
) -> Iterable[str]:
    """Yields the summary that is pasted into a paper: what was run, the results, whom to thank, how to run it again."""
    jobs, processors = len(workload.jobs), result.processors
    nodes = experiment.node_count(processors)
    machine = counted(processors, "processor")
    if nodes != processors:
        machine = f"{counted(nodes, 'node')} with {counted(processors, 'core')} in all"
    machine += f" of drawn speeds in {experiment.sites} sites" if experiment.sites else ""
    offered = _load(workload)
    touched = [f"{count:,} {what}" for what, count in workload.touched.items() if count and what != "records read"]
    span = format_duration(workload.span_us / 1e6)
    share = found["jobs_waiting_zero"] / jobs
    params = "".join(f" {name}={value}" for name, value in sorted(experiment.params.items()))
    yield f"{workload.name} under {experiment.policy}{params} on {machine}"
    yield f"  workload      {counted(jobs, 'job')} submitted in {span}, offered load {'-' if offered is None else f'{offered:.4f}'}"
    if touched:
        yield f"  normalised    of {counted(workload.touched['records read'], 'record')}: {'; '.join(touched)}"
    yield (
        f"  wait          mean {found['mean_waiting_time']:,.2f} s, median {found['median_waiting_time']:,} s, "
        f"max {found['max_waiting_time']:,} s; {share:.1%} of the jobs do not wait"
    )
    yield f"  turnaround    mean {found['mean_turnaround_time']:,.2f} s"
    yield f"  slowdown      mean {found['mean_slowdown']:,.4f}, bounded (tau 10 s) {found['mean_bounded_slowdown']:,.4f}"
    yield f"  utilisation   {found['utilisation']:.5f} over a makespan of {found['makespan']:,} s"
    if found["jobs_rejected"]:
        yield f"  rejected      {counted(int(found['jobs_rejected']), 'job')} that can never run here"
    told = [f"{found[name]:,} {what}" for name, what in _HAPPENED.items() if found[name]]
    if told:
        yield f"  happened      {', '.join(told)}"
    yield (
        f"  simulated     {counted(int(found['passes']), 'pass')} in {found['wall_seconds']:.2f} s, "
        f"{found['jobs_per_second']:,.0f} jobs/s; "
        f"seed {result.seed}{'; schedule validated' if validated else ''}"
    )
    if out is not None:
        spells = f"{out}/spells.csv, " if (out / "spells.csv").exists() else ""
        yield f"  written       {out}/jobs.csv, {spells}{out}/schedule.json"
        yield f"  draw          rmgr sim plot {shlex.quote(str(out))}"
    if record is not None:
        yield f"  recorded      {record}; rmgr sim replay {shlex.quote(str(record))} [--policy NAME]"
    if workload.acknowledgement:
        yield f"  acknowledge   {workload.acknowledgement} provided the trace; Parallel Workloads Archive"
    yield f"  again         {_command_line()}"


def _manifest(experiment: Experiment, result: Result, workload_name: str) -> dict[str, Any]:
    """Returns what determines the files: versions, digests of the inputs, the experiment."""
    from rmgr.sim.runs.experiment import inputs_of

    slots = experiment.slots()
    shared = {"slots": slots} if slots else {}
    return {
        "schema": "rmgr/1",
        "versions": versions(),
        "inputs": inputs_of([experiment]),
        "experiment": experiment.described() | {"workload": workload_name, "processors": result.processors} | shared,
    }


def _load(workload: Workload) -> float | None:
    load = workload.offered_load
    return None if load is None else float(load)


def _command_line() -> str:
    """Returns the command as it was typed: it gives the same result again (with another --out)."""
    context = click.get_current_context()
    return shlex.join([*context.command_path.split(), *context.meta.get("rmgr.args", ())])


# -- `rmgr sim sweep` ----------------------------------------------------------------------------------------------------------


_MOST_SEEDS = 10_000


def parse_names(text: str) -> tuple[str, ...]:
    """Reads `fcfs,easy`. Raises UsageError."""
    names = tuple(word.strip() for word in text.split(","))
    if not all(names):
        raise UsageError(f"{text!r} is not a list of names", hint="as fcfs,easy")
    return names


def parse_factors(text: str) -> tuple[Fraction, ...]:
    """Reads `.7,.8`. Raises UsageError."""
    return tuple(parse_factor(word) for word in text.split(","))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `1-5` or `1,3,7-9`. Raises UsageError."""
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
@click.option("--seeds", type=Parsed("seeds", parse_seeds), default="0", show_default=True, metavar="1-5", help="for models and policies")
@nodes
@cores
@count
@tick
@sites
@delay
@penalty
@click.option("--events", type=click.Path(), metavar="FILE", default="", help="events besides the jobs; see rmgr sim run --help")
@mtbf
@click.option(
    "--mttr", "mttr_us", type=DURATION_US, default="0", help="mean time to its repair; one seed gives all policies the same failures"
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="new, or the same sweep's: it continues")
@click.option("--jobs", "processes", type=click.IntRange(1, 1024), default=2, show_default=True, help="runs at a time")
@click.option("--validate", is_flag=True, help="check every schedule")
def sweep(
    session: Session,
    policies: tuple[str, ...],
    loads: tuple[Fraction, ...] | None,
    seeds: tuple[int, ...],
    out: Path,
    processes: int,
    validate: bool,
    **asked: Any,
) -> None:
    """Runs every policy at every load with every seed: one seed gives all policies the same workload.

    DIR gets manifest.json, a directory a run below runs/, and results.csv when all are there.
    """
    from rmgr.adapters.policy_files import load as configure
    from rmgr.sim.models import is_model
    from rmgr.sim.runs.experiment import Experiment, Sweep, carry_out_sweep

    experiments = tuple(
        Experiment(policy=policy, load=load, seed=seed, configure=configure, **asked)
        for policy in policies
        for load in (loads or (None,))
        for seed in seeds
    )
    for experiment in experiments[:: len(seeds)]:
        experiment.check()  # refuses a wrong name or event before anything runs
    if not is_model(experiments[0].source):
        experiments[0].workload()  # refuses an unusable trace, too
    plan = Sweep(experiments=experiments, validate=validate, versions=tuple(versions().items()))
    with ProgressDisplay(f"sweep {out.name}", enabled=not session.json) as display:
        try:
            rows = carry_out_sweep(plan, out, processes=processes, on_end=display.tell)
        except KeyboardInterrupt:
            session.note(f"{display.counts.final} of {len(experiments)} runs are finished and kept; the same command goes on from there")
            raise
    if session.json:
        emit({"out": str(out), "results": str(out / "results.csv"), "runs": rows})
        return
    _draw_sweep(rows)
    sys.stdout.write(f"{len(rows)} runs in {out}: results.csv, manifest.json, runs/\n")
    sys.stdout.write(f"draw: rmgr sim plot {shlex.quote(str(out))}\n")


def _draw_sweep(rows: list[dict[str, Any]]) -> None:
    """Prints one line per policy and load: means over the seeds, and the range of the mean wait."""
    from statistics import fmean

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


# -- `rmgr sim plot` -----------------------------------------------------------------------------------------------------------


#: The same as `rmgr.sim.plots.pictures.KINDS` and `FORMS`, repeated here so that the help needs no matplotlib.
KINDS = ("gantt", "utilisation", "waits", "compare", "load", "tables", "figures", "matrix", "front", "calls")
FORMS = ("png", "svg", "both")


@command(
    "plot",
    examples="""\
    rmgr sim plot out/easy
    rmgr sim plot out/fcfs out/easy --kind waits --kind compare --format both --out pictures
    rmgr sim plot out/easy --kind gantt --from 2d --to 3d12h
    rmgr sim plot out/sweep --kind load --format svg
    rmgr queues --tree --matrix 20 --json > slots.json; rmgr sim plot slots.json --kind matrix""",
    exits="0 done, 1 a picture is there already or could not be written, 2 usage, no results, or damaged ones",
)
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR|FILE...")
@click.option(
    "--kind", "kinds", type=one_of("kind of picture", KINDS), multiple=True, metavar="|".join(KINDS), help="default: all that fit"
)
@click.option("--format", "form", type=one_of("format", FORMS), default="png", show_default=True, metavar="|".join(FORMS))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="default: plots/ in the DIR, or beside the FILE, that is drawn; of several: ./plots",
)
@click.option("--from", "start", type=DURATION, default="0", metavar="T", help="after the first submit, as 2d or 36:00:00")
@click.option("--to", "end", type=DURATION, metavar="T", help="of single runs; default: the end")
@click.option("--overwrite", is_flag=True, help="replace pictures that are there already")
def plot(
    session: Session,
    directories: tuple[Path, ...],
    kinds: tuple[str, ...],
    form: str,
    out: Path | None,
    start: float,
    end: float | None,
    overwrite: bool,
) -> None:
    """Draws the results that rmgr sim run, sweep and paper wrote with --out, and the slots of a live cluster.

    \b
    gantt         processors against time, of each run; with very many jobs how much of them is in use
    utilisation   processors in use and jobs waiting over time, of each run
    waits         distribution of wait times, all runs in one picture
    compare       mean wait, bounded slowdown and utilisation, all runs (or all of a sweep) in one picture
    load          wait and slowdown against load, of a sweep: median of the seeds, least to most
    tables        tables of a paper's report (by itself only when it has no figures)
    matrix        slots against cores, a colour a job, of a run of dqt with --spells: its first 200 slots after --from;
                  of a FILE of rmgr queues --tree --matrix N --json: who shares the cores of a live partition
    front         the queue tree of each partition and its front in the first 7 slots after --from, of such a run
    calls         a lane for each server and link, of rmgr sim calls: the first replication of each policy and case
    figures       its figures: lines with the range over the seeds

    The same results give the same pictures, byte for byte. Needs matplotlib: pip install 'matplotlib>=3.8,<4'.
    """
    from rmgr.sim.plots import pictures
    from rmgr.sim.plots.reading import TimeWindow

    if end is not None and end <= start:
        raise UsageError(f"--to {end:g} s is not after --from {start:g} s", hint="as --from 1d --to 2d")
    window = TimeWindow(start, end)
    results = pictures.read(directories)
    made = pictures.pictures(results, tuple(dict.fromkeys(kinds)), window)
    beside = directories[0].parent if directories[0].suffix == ".json" else directories[0]
    target = out if out is not None else (beside if len(directories) == 1 else Path()) / "plots"
    written = pictures.draw(made, target, pictures.FORMS[form], overwrite=overwrite)
    session.answer({"out": str(target), "pictures": [str(path) for path in written]}, "".join(f"{path}\n" for path in written))


# -- `rmgr sim replay` ---------------------------------------------------------------------------------------------------------


@command(
    "replay",
    examples="""\
    rmgr sim run trace.swf --policy easy --record easy.log.gz
    rmgr sim replay easy.log.gz                       every pass again: the decisions must be the recorded ones
    rmgr sim replay easy.log.gz --policy conservative   the same jobs, nodes and failures under another policy
    rmgr sim replay easy.log.gz --policy sjf --out out/sjf --validate""",
    exits="0 done, 1 a decision is not the recorded one, or the results could not be written, 2 usage, or a log that cannot be used",
)
@click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
@click.option("--policy", metavar="NAME|FILE", help="default: the recorded policy, whose decisions are then checked")
@click.option("--param", "params", type=PARAMETER, multiple=True, metavar="NAME=VALUE", help="parameter of the policy; repeatable")
@click.option("--partial", is_flag=True, help="a log that was cut off, or is still being written: what there is of it")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="the run under --policy as sim run writes it; must not exist yet"
)
@click.option("--validate", is_flag=True, help="check the schedule under --policy")
def replay(
    session: Session, log: Path, policy: str | None, params: tuple[tuple[str, str], ...], partial: bool, out: Path | None, validate: bool
) -> None:
    """Replays a log of facts and decisions that `rmgr sim run --record` (or a leader) wrote.

    Under the recorded policy every pass is run again on the recorded facts and must decide the same. Under another one the recorded jobs
    run as long as they did, on the recorded nodes with their failures, and the measures are printed beside the recorded ones.
    """
    from rmgr.adapters import policy_files
    from rmgr.sched.catalogue import CALL_POLICIES
    from rmgr.sim.replay import verify
    from rmgr.sim.runs.output import read_log, refuse_existing

    if out is not None:
        refuse_existing(out)
    with closing(read_log(log, whole=not partial)) as entries:
        opening = _opening(next(entries, None), log)
    own = policy in {None, opening.policy} and (not params or dict(params) == dict(opening.parameters))
    if own and (out is not None or validate):
        raise UsageError("--out and --validate are for a run under another policy", hint="--policy NAME; the log itself is checked anyway")
    chosen = policy or opening.policy
    if lost := opening.about.get("lost"):
        session.note(f"{counted(lost, 'request')} of gateways before this log are in none: the data store was away or slow")
    if opening.policy in CALL_POLICIES or "scenario" in opening.about:
        parameters = dict(opening.parameters) if own else dict(params)
        _replay_calls(session, log, chosen, parameters, own=own, whole=not partial, refused=out is not None or validate)
        return
    if own and opening.pipelines:
        configuration = policy_files.recorded(opening.pipelines)
    else:
        configuration = policy_files.load(chosen, dict(opening.parameters) if own else dict(params))
    with closing(read_log(log, whole=not partial)) as entries:
        history = verify(entries, configuration.stages if own else None)
    if own:
        _tell_same(session, log, history)
        return
    _compare(session, log, history, chosen, dict(params), configuration, out=out, validate=validate)


def _opening(entry: object, log: Path) -> Any:
    from rmgr.sched.state.event_log import Opening

    if not isinstance(entry, Opening):
        raise UsageError(f"{log}: the log is empty", hint="rmgr sim run --record and rmgr admin export-events write such logs")
    return entry


def _replay_calls(session: Session, log: Path, policy: str, params: dict[str, str], *, own: bool, whole: bool, refused: bool) -> None:
    """Replays a log of calls: makes every pick again, or shows another policy's picks beside the recorded ones."""
    from rmgr.adapters import policy_files
    from rmgr.sched.policy import Stage
    from rmgr.sim.replay import picks, verify
    from rmgr.sim.runs.output import read_log

    pipeline = (Stage(policy_files.for_calls(policy, params)),)
    if refused:
        raise UsageError("--out and --validate are for logs of jobs", hint=f"rmgr sim replay {log} --policy {policy}")
    with closing(read_log(log, whole=whole)) as entries:
        if own:
            _tell_same(session, log, verify(entries, pipeline))
            return
        found = picks(entries, pipeline)
    sides = {"recorded": (found.policy, found.recorded), "replayed": (policy, found.replayed)}
    told = {
        side: {"policy": name, "calls": found.shares(sends), "predicted_s": round(found.predicted_s(sends), 6)}
        for side, (name, sends) in sides.items()
    }
    text = f"{log.name}: {counted(len(found.recorded), 'call')}, {found.same:,} go to the same server under {policy}\n"
    for side, (name, sends) in sides.items():
        shares = ", ".join(f"{server} {count}" for server, count in found.shares(sends).items())
        text += f"  {side:10}{name:10} {shares}; predicted {found.predicted_s(sends):.3f} s in the mean\n"
    text += f"  answers as recorded took {found.answered_s:.3f} s in the mean; those of other picks are in no log\n"
    session.answer({"log": str(log), **told, "same": found.same, "answered_s": round(found.answered_s, 6)}, text)


def _tell_same(session: Session, log: Path, history: History) -> None:
    found = {"facts": history.told, "passes": history.passes, "decisions": history.decided, "identical": True}
    session.answer(
        {"log": str(log), "policy": history.opening.policy, "replay": found},
        f"{log}: {counted(history.passes, 'pass')} of {history.opening.policy} over {history.told:,} facts; "
        f"all {history.decided:,} decisions are the recorded ones\n",
    )


def _compare(
    session: Session,
    log: Path,
    history: History,
    policy: str,
    params: dict[str, str],
    configuration: Any,
    *,
    out: Path | None,
    validate: bool,
) -> None:
    from rmgr.sim.engine.driver import simulate
    from rmgr.sim.engine.validate import check
    from rmgr.sim.replay import recorded, under
    from rmgr.sim.runs.output import reproducible, summary, write_run

    world = recorded(history, name=log.name)
    setting = under(world, configuration.stages, policy, configuration.usage_half_life_us)
    total = len(world.workload.jobs)
    with ProgressDisplay(f"{log.name} {policy}", enabled=not session.json) as display:
        result = simulate(world.workload, setting, on_progress=lambda ended: display.tell(ended, total))
    if validate:
        check(result, world.workload, setting)
    if out is not None:
        write_run(out, result, workload_name=world.workload.name, manifest=_replay_manifest(log, history, policy, params, configuration))
    if world.left_out:
        session.note(f"left out: {counted(world.left_out, 'job')} whose end is not in the log")
    before, after = summary(world.result), summary(result)
    lines = [*_table(log, total, history.opening.policy, policy, before, after)]
    if out is not None:
        lines.append(f"  written       {out}/jobs.csv, {out}/schedule.json, {out}/manifest.json")
    sides = {"recorded": (history.opening.policy, before), "replayed": (policy, after)}
    told = {side: {"policy": name, "summary": reproducible(found)} for side, (name, found) in sides.items()}
    session.answer({"log": str(log), **told}, "".join(f"{line}\n" for line in lines))


def _replay_manifest(log: Path, history: History, policy: str, params: dict[str, str], configuration: Any) -> dict[str, Any]:
    """Returns what determines the files, as for `rmgr sim run`."""
    from rmgr.sim.runs.experiment import digest_of

    recorded = {"policy": history.opening.policy, "params": dict(sorted(history.opening.parameters.items()))}
    replayed = {"policy": policy, "params": dict(sorted(params.items())), "seed": history.opening.seed}
    return {
        "schema": "rmgr/1",
        "versions": versions(),
        "inputs": {source: digest_of(source) for source in sorted({str(log), *configuration.files})},
        "experiment": {"source": str(log), "recorded": recorded, **replayed},
    }


def _table(log: Path, jobs: int, old: str, new: str, before: dict[str, int | float], after: dict[str, int | float]) -> Iterable[str]:
    yield f"{log.name}: {counted(jobs, 'job')} as recorded and under {new}"
    heads = [name if len(name) <= _MOST_HEAD else f"...{name[3 - _MOST_HEAD :]}" for name in (old, new)]
    wide = max(20, *(len(head) + 2 for head in heads))
    yield f"  {'':24}{heads[0]:>{wide}}{heads[1]:>{wide}}{'change':>10}"
    for name, (told, unit, digits) in _COMPARED.items():
        a, b = before[name], after[name]
        if not a and not b and name.startswith(("jobs_", "migr", "lost")):
            continue
        change = f"{(b - a) / a:+.1%}" if a else "" if b == a else "new"
        yield f"  {told + (f' ({unit})' if unit else ''):24}{a:>{wide},.{digits}f}{b:>{wide},.{digits}f}{change:>10}"
