"""Experiments as plain values (workload, machine, policy, load, seed), alone or in a sweep.

The same values give the same run, in any process. DIR/manifest.json of a sweep says what is run, on what input, by which versions;
DIR/runs/NAME/ holds each finished run (moved there whole); DIR/results.csv, one line a run, is written when all have finished. A directory
without results.csv is an unfinished sweep.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rmgr.errors import RmgrError, StateConflict, UsageError
from rmgr.sched.job import Node
from rmgr.sched.pipeline import Configuration, configured
from rmgr.sched.policies.dqt import Dqt
from rmgr.sched.policy import Stage, sends_calls
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.execution import MINUTE_US, Grid, by_speed, drawn
from rmgr.sim.engine.machine import Machine
from rmgr.sim.engine.outcome import Result, Setting
from rmgr.sim.engine.validate import check
from rmgr.sim.models import is_model, model_named, refuse_misspelt
from rmgr.sim.runs.output import MEASURED, ranges_text, whole_directory, write_file, write_run
from rmgr.sim.runs.parallel import Piece, StillWanted, in_processes
from rmgr.sim.workload.events import Failures, LimitsChange, read_events
from rmgr.sim.workload.jobs import Workload, read_trace

MANIFEST = "manifest.json"
RESULTS = "results.csv"
#: Columns of results.csv before the measures of schedule.json.
_KEYS = ("name", "policy", "load", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A request to `rmgr sim run`.

    Attributes:
        source: path of a trace, or name of a model. policy, params: for `configure`.
        configure: (policy, params) -> pipeline and machine; with the catalogue's policies only, or also with files and plug-ins (then it
            does IO, and the command line passes it). A function of a module: other processes find it by its name.
        nodes: None = from the trace's header (for a model: 128); cores: of a node.
        load: offered load to which arrivals are stretched; interarrival: factor for submit times; at most one of them, None = unchanged.
        count: jobs from the beginning of a trace, or of a model; None = all (for a model: 10,000). seed: of everything that is drawn.
        tick_us: passes only at its multiples, 0 = at every event.
        events: path of a file of events (`read_events`), "" = none. mtbf_us, mttr_us: of each node, 0 = nodes never fail; both or none.
        requeue: a job that loses a node waits again, otherwise it fails. dependencies: follows fields 17 and 18 of a trace.
        spells: keeps every stretch of a job in a gang, not only its stay.
        sites: a grid of one-core nodes with drawn speeds in this many sites (`Grid`), 0 = none; delay_us: for each site of a job beyond
            the first; penalty_us: of a migration, for each processor of the job.
    """

    source: str
    policy: str
    params: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None
    cores: int = 1
    load: Fraction | None = None
    interarrival: Fraction | None = None
    count: int | None = None
    seed: int = 0
    tick_us: int = 0
    events: str = ""
    mtbf_us: int = 0
    mttr_us: int = 0
    requeue: bool = True
    dependencies: bool = False
    spells: bool = False
    sites: int = 0
    delay_us: int = 10 * MINUTE_US
    penalty_us: int = MINUTE_US
    configure: Callable[[str, Mapping[str, str]], Configuration] = configured

    def workload(self) -> Workload:
        """Returns the jobs to be submitted. Raises: UsageError (see `read_trace`), also if both load and interarrival are given."""
        if self.load is not None and self.interarrival is not None:
            raise UsageError("--load and --interarrival both stretch the arrivals", hint="give one of them")
        machine = self._machine(self.configure(self.policy, self.params))
        processors = machine.processors if machine is not None else None
        if is_model(self.source):
            found = model_named(self.source, jobs=self.count, processors=processors, seed=self.seed)
        else:
            refuse_misspelt(self.source)
            found = read_trace(self.source, processors=processors, dependencies=self.dependencies)
            found = found.first(self.count) if self.count is not None else found
        if self.interarrival is not None:
            found = found.stretched(self.interarrival)
        return found.at_load(self.load) if self.load is not None else found

    def setting(self, workload: Workload) -> Setting:
        """Returns machine, policy and events for the workload.

        Raises: ConfigError for an unknown policy or parameter; UsageError for an impossible machine, or unreadable events.
        """
        found = self.configure(self.policy, self.params)
        self._machine(found)
        nodes: int | tuple[Node, ...] | None = found.nodes or self.nodes
        if nodes is None:
            nodes, rest = divmod(workload.processors, self.cores)
            if rest:
                raise UsageError(f"{workload.processors} processors are no whole number of nodes with {self.cores} cores", hint="--nodes N")
        grid = self._grid(nodes)
        limits = (LimitsChange(0, partition, limits) for partition, limits in found.limits.items())
        return Setting(
            nodes=nodes if grid is None else grid.nodes(),
            cores=self.cores,
            pipeline=found.stages,
            policy=self.policy,
            seed=self.seed,
            tick_us=self.tick_us,
            partitions=_homes(found, workload),
            execution=by_speed(found.nodes) if grid is None else grid,
            events=(*limits, *(read_events(self.events) if self.events else ())),
            failures=self._failures(),
            requeue=self.requeue,
            spells=self.spells,
            usage_half_life_us=found.usage_half_life_us,
        )

    def _grid(self, nodes: int | tuple[Node, ...]) -> Grid | None:
        if not self.sites:
            return None
        if self.cores != 1 or not isinstance(nodes, int):
            raise UsageError("a grid has nodes of one core and draws their speeds", hint="--sites goes with --nodes, without --cores")
        return drawn(self.seed, nodes=nodes, sites=self.sites, delay_us=self.delay_us, penalty_us=self.penalty_us)

    def _failures(self) -> Failures | None:
        if not self.mtbf_us and not self.mttr_us:
            return None
        if self.mtbf_us <= 0 or self.mttr_us <= 0:
            raise UsageError("failures need --mtbf and --mttr, both above 0 s", hint="--mtbf 30d --mttr 4h, of each node")
        return Failures(self.mtbf_us, self.mttr_us)

    def node_count(self, processors: int) -> int:
        """Returns the number of nodes of a machine with this many processors: with `cores` each, or as the policy file describes them."""
        return len(self.configure(self.policy, self.params).nodes) or processors // self.cores

    def _machine(self, found: Configuration) -> Machine | None:
        """Returns the requested machine, or the policy file's; None = from the workload. Raises: UsageError if both are given."""
        if not found.nodes:
            return Machine(self.nodes, self.cores) if self.nodes is not None else None
        if self.nodes is not None or self.cores != 1:
            raise UsageError(f"{self.policy} describes the machine: --nodes and --cores say another one", hint="leave one of them out")
        return Machine(found.nodes)

    def check(self) -> None:
        """Raises what `setting` would raise for names, parameters and events, before a long trace is read."""
        self._check_partitions()
        self._failures()
        if self.events:
            read_events(self.events)

    def _check_partitions(self) -> None:
        """Refuses stages for partitions that only a cluster has, and policies for calls, which would place no job."""
        found = self.configure(self.policy, self.params)
        if any(sends_calls(stage.policy) for stage in found.stages):
            raise UsageError(
                f"{self.policy} chooses servers for calls, it places no jobs", hint="rmgr sim calls ninf_table4 --policy NAME|FILE.py"
            )
        for stage in () if found.nodes else found.stages:
            other = next((name for name in stage.partitions if name != "default"), None)
            if other is not None:
                raise UsageError(
                    f"{self.policy}: a stage is for partition {other!r}, and the file describes no machine with partitions",
                    hint=f'[[partition]] with name = "{other}" and nodes = N; or leave `partitions` out',
                )

    def pipeline(self) -> tuple[Stage, ...]:
        """Returns the stages of policies. Raises: ConfigError for an unknown policy or parameter, or an invalid file."""
        return self.configure(self.policy, self.params).stages

    def slots(self) -> dict[str, object]:
        """Returns seconds of a slot and width of the tree for manifests; empty if no jobs share cores in time.

        If the file describes several partitions, the trees are listed one by one, each with its cores from the left.
        """
        found = self.configure(self.policy, self.params)
        gangs: dict[str, Dqt] = {}
        for stage in found.stages:
            if isinstance(stage.policy, Dqt):
                gangs = dict.fromkeys(stage.partitions or found.partitions or ("default",), stage.policy) | gangs
        if not gangs:
            return {}
        policies = list(gangs.values())
        slots: dict[str, object] = {"quantum_seconds": min(policy.quantum_us for policy in policies) / 1e6, "width": policies[0].width}
        if len(found.partitions) > 1:
            cores = _cores_of(found.nodes)
            trees = ((name, policy.width) for name, policy in gangs.items() if name in cores)
            slots["trees"] = [{"partition": name, "width": width, "cores": ranges_text(cores[name])} for name, width in trees]
        return slots

    def empty_queues(self, workload: Workload) -> tuple[str, ...]:
        """Returns queues that the file maps to a partition but that no job of the workload uses. Cost: O(jobs)."""
        homes = self.configure(self.policy, self.params).homes
        there = {job.queue for job in workload.jobs} if homes else set()
        return tuple(sorted(queue for queue in homes if queue and queue not in there))

    def described(self) -> dict[str, Any]:
        """Returns everything that decides the result, for manifests and JSON."""
        return {
            "source": self.source,
            "policy": self.policy,
            "params": dict(sorted(self.params.items())),
            "nodes": self.nodes,
            "cores": self.cores,
            "load": _plain(self.load),
            "interarrival": _plain(self.interarrival),
            "count": self.count,
            "seed": self.seed,
            "tick_seconds": self.tick_us / 1e6,
            "events": self.events or None,
            "mtbf_seconds": self.mtbf_us / 1e6 or None,
            "mttr_seconds": self.mttr_us / 1e6 or None,
            "requeue": self.requeue,
            "dependencies": self.dependencies,
            "sites": self.sites or None,
            "delay_seconds": self.delay_us / 1e6 if self.sites else None,
            "penalty_seconds": self.penalty_us / 1e6 if self.sites else None,
        }


def carry_out(
    experiment: Experiment,
    workload: Workload,
    *,
    validate: bool = False,
    on_progress: Callable[[int], None] | None = None,
    log: Callable[[str], object] | None = None,
) -> Result:
    """Runs the experiment, optionally checks the schedule, and writes every fact and pass to `log` if given.

    Raises: as `simulate` and `validate.check`.
    """
    setting = experiment.setting(workload)
    recorder = None
    if log is not None:
        recorder = Recorder(log, policy=experiment.policy, parameters=experiment.params, about=experiment.described())
    result = simulate(workload, setting, on_progress=on_progress, recorder=recorder)
    if validate:
        check(result, workload, setting)
    return result


def _cores_of(nodes: Iterable[Node]) -> dict[str, list[tuple[int, int]]]:
    """Returns the cores of each partition by their numbers in results, as ranges."""
    found: dict[str, list[tuple[int, int]]] = {}
    base = 0
    for node in sorted(nodes, key=lambda node: node.id):
        ranges = found.setdefault(node.partition, [])
        beside = ranges.pop() if ranges and ranges[-1][1] == base - 1 else (base, base)
        ranges.append((beside[0], base + node.cores - 1))
        base += node.cores
    return found


def _homes(found: Configuration, workload: Workload) -> dict[str, str]:
    """Returns queue -> partition of its jobs, for every queue of the workload."""
    if not found.homes:
        return {}
    other = found.homes.get("", "default")
    return {queue: found.homes.get(queue, other) for queue in sorted({job.queue for job in workload.jobs})}


def _plain(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


# -- a sweep: many experiments in processes of their own; every finished run is kept, so the same command continues ------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Plan of a sweep. experiments: in the order of the results. validate: checks each schedule. versions: of the software."""

    experiments: tuple[Experiment, ...]
    validate: bool = False
    versions: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        """Returns the directory names of all runs. Raises: UsageError if two experiments are the same."""
        names = [name_of(experiment) for experiment in self.experiments]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"a sweep runs everything once, and {twice[0]} stands in it twice")
        return names


def name_of(experiment: Experiment) -> str:
    """Returns `easy-load0.7-seed1`; without a load `easy-seed1`; a policy file is named by its last component."""
    load = f"-load{float(experiment.load):g}" if experiment.load is not None else ""
    return f"{Path(experiment.policy).name}{load}-seed{experiment.seed}"


def carry_out_sweep(
    sweep: Sweep, directory: Path, *, processes: int = 1, on_end: Callable[[int, int], None] = lambda _done, _total: None
) -> list[dict[str, Any]]:
    """Runs what is missing. Returns the rows of results.csv.

    Args:
        directory: new, or of the very same sweep, unfinished or not. processes: number at a time.
        on_end: called with (finished runs, all runs) at the beginning and whenever one ends.
    Raises: UsageError for a directory of something else; StateConflict if another process sweeps there; RmgrError if a run failed or
        the disk is full (finished runs stay). KeyboardInterrupt ends the running ones; nothing half-written is left.
    """
    names = sweep.names()
    with _owned_directory(sweep, directory):
        runs = directory / "runs"
        runs.mkdir(exist_ok=True)
        for left in runs.glob(".*.partial-*"):  # left by a killed sweep; no other process writes here
            shutil.rmtree(left, ignore_errors=True)
        missing = [(name, e) for name, e in zip(names, sweep.experiments, strict=True) if not (runs / name).is_dir()]
        done = len(names) - len(missing)
        on_end(done, len(names))
        for _ in _run_all(missing, runs, sweep.validate, processes):
            done += 1
            on_end(done, len(names))
        rows = [_row_of_run(name, e, runs / name) for name, e in zip(names, sweep.experiments, strict=True)]
        write_file(directory / RESULTS, _table_of_rows(rows))
        return rows


# -- the directory -------------------------------------------------------------------------------------------------------------


@contextmanager
def _owned_directory(sweep: Sweep, directory: Path) -> Iterator[None]:
    """Makes or checks the directory of this sweep, and locks it for this process."""
    text = json.dumps(_manifest(sweep), indent=2, ensure_ascii=False) + "\n"
    if not os.path.lexists(directory):
        with whole_directory(directory) as partial:  # even if killed at any time, the sweep exists or it does not
            (partial / MANIFEST).write_text(text, encoding="utf-8")
    elif not (directory / MANIFEST).is_file():
        raise UsageError(f"{directory} exists already and is no sweep", hint="results are never mixed or overwritten: name another --out")
    elif (directory / MANIFEST).read_text(encoding="utf-8") != text:
        other = _difference(sweep, directory / MANIFEST)
        raise UsageError(f"{directory} holds another sweep: {other}", hint="name another --out, or give the same options")
    with (directory / MANIFEST).open("rb") as manifest:
        try:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateConflict(f"another process is sweeping in {directory}", hint="wait for it, or name another --out") from error
        yield


def _manifest(sweep: Sweep) -> dict[str, Any]:
    return {
        "schema": "rmgr/1",
        "versions": dict(sweep.versions),
        "inputs": inputs_of(sweep.experiments),
        "validate": sweep.validate,
        "runs": [{"name": name, **e.described()} for name, e in zip(sweep.names(), sweep.experiments, strict=True)],
    }


def _difference(sweep: Sweep, path: Path) -> str:
    """Returns the first difference to an existing manifest."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{MANIFEST} is damaged"
    ours = json.loads(json.dumps(_manifest(sweep)))
    return next((f"its {key} differ" for key in ours if there.get(key) != ours[key]), "its manifest differs")


def inputs_of(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Returns traces and policy files -> their SHA-256. Raises: UsageError if one cannot be read."""
    inputs = {experiment.source for experiment in experiments if not is_model(experiment.source)}
    inputs.update(experiment.events for experiment in experiments if experiment.events)
    policies = {e.policy: e for e in experiments}.values()
    inputs.update(file for experiment in policies for file in experiment.configure(experiment.policy, experiment.params).files)
    return {source: digest_of(source) for source in sorted(inputs)}


def digest_of(source: str) -> str:
    """Returns the SHA-256 of a file's bytes. Raises: UsageError if it cannot be read."""
    try:
        with Path(source).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}", hint="name a trace in SWF, plain or gz") from error


def _row_of_run(name: str, experiment: Experiment, run: Path) -> dict[str, Any]:
    found = json.loads((run / "schedule.json").read_text(encoding="utf-8"))
    load = None if experiment.load is None else float(experiment.load)
    keys = dict(zip(_KEYS, (name, experiment.policy, load, experiment.seed), strict=True))
    return keys | {key: value for key, value in found.items() if key not in MEASURED}


def _table_of_rows(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -- one run -------------------------------------------------------------------------------------------------------------------


def _run_all(missing: Sequence[tuple[str, Experiment]], runs: Path, validate: bool, processes: int) -> Iterator[str]:
    """Yields names of runs as they end. Closing it, or an error, ends the running ones."""
    pieces = (Piece(name=name, function=_run_experiment, arguments=(e, runs / name, validate)) for name, e in missing)
    try:
        for piece, _ in in_processes(pieces, processes):
            yield piece.name
    except RmgrError as error:
        kept = "finished runs are kept, the same command goes on"
        raise RmgrError(error.message, hint=f"{error.hint}\n{kept}" if error.hint else kept) from error


def _run_experiment(still_wanted: StillWanted, experiment: Experiment, directory: Path, validate: bool) -> None:
    """Carries out one run, in a process of its own."""
    workload = experiment.workload()
    result = carry_out(experiment, workload, validate=validate, on_progress=lambda _: still_wanted())
    write_run(directory, result, workload_name=workload.name)
