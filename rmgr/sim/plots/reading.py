"""Reads results back for drawing: runs, sweeps, reports of papers, slots of a live cluster. An error names file, line and column.

For a run it reads jobs.csv, spells.csv and schedule.json, for a sweep results.csv and its manifest, for a live cluster the output of
`rmgr queues --tree --matrix N --json`. Pictures may show a part of a run (`TimeWindow`) and tell runs apart (`labels_of`).
Times become floating-point seconds: exact enough for a picture, never written anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rmgr.errors import UNREADABLE_TEXT, ConfigError, UsageError
from rmgr.model.units import counted
from rmgr.sched.parameters import parameters_of, read_values
from rmgr.sched.policies.dqt import Dqt
from rmgr.sim.papers import report
from rmgr.sim.plots.canvas import label_of, moment

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
JOBS, SPELLS, SCHEDULE, MANIFEST = "jobs.csv", "spells.csv", "schedule.json", "manifest.json"
#: A larger number is damage, not a time or a count.
_LARGEST = 1e16
#: Field of a manifest beside policy and machine -> its name in titles.
_DETAILS = {"load": "load", "interarrival": "inter-arrival factor", "seed": "seed", "sites": "sites"}
_LIVE = "rmgr queues --tree --matrix 20 --json > slots.json"
_CUT = "a file that was cut off ends like this; run the simulation again"
RESULTS = "results.csv"
#: Measures of a run that pictures of sweeps and comparisons show.
MEASURES = ("mean_waiting_time", "mean_bounded_slowdown", "utilisation")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. Arrays have one entry per job, in job order; nan if the job never started.

    Attributes:
        directory, name: directory that was read, and its last part. workload, policy: names; policy is "" if no file names it.
        processors: of the machine. details: further settings (load 0.7, seed 3), for titles.
        numbers: of the jobs. submit, start, finish, ran, wait: seconds. size: processors. summary: content of schedule.json.
        spells: of all jobs.
        turns: number of gang slots in which each job ran, 0 without a gang. quantum: length of a slot (s) under dqt. trees: of partitions.
    """

    directory: Path
    workload: str
    policy: str
    details: tuple[str, ...]
    processors: int
    numbers: Integers
    submit: Floats
    start: Floats
    finish: Floats
    ran: Floats
    wait: Floats
    size: Floats
    summary: Mapping[str, Any]
    spells: Spells
    turns: Integers
    quantum: float
    trees: tuple[QueueTree, ...]

    @property
    def name(self) -> str:
        return self.directory.absolute().name

    @cached_property
    def end(self) -> float:
        """Returns when the last job ended or was submitted, whichever is later (s)."""
        return max(float(np.nanmax(self.spells.end, initial=0.0)), float(self.submit.max()))

    @property
    def title(self) -> str:
        return f"{self.workload} under {self.policy}" if self.policy else self.workload

    @property
    def facts(self) -> tuple[str, ...]:
        """Returns details for the second line of a title."""
        return (counted(len(self.numbers), "job"), counted(self.processors, "processor"), *self.details)


@dataclass(frozen=True, slots=True)
class QueueTree:
    """Shape of a partition's queue tree. cores: ranges of its leaves from the left. partition: its name, "" = the whole machine."""

    width: int
    cores: tuple[tuple[int, int], ...]
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spells:
    """Spells of running, in the order of jobs and time. job: index of the job in the run's arrays; start, end: seconds; cores: "0-3 7".

    origins: files from which the spells were read; origin, line: index of a spell's file, and its line there.
    """

    job: Integers
    start: Floats
    end: Floats
    cores: Sequence[str]
    origins: tuple[Path, ...]
    origin: Integers
    line: Integers

    def rectangles(self, chosen: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns (indices of spells, first cores, last cores), an entry for each range of cores of the chosen spells.

        Raises: UsageError for damaged ranges.
        """
        owners: list[int] = []
        first: list[int] = []
        last: list[int] = []
        for at in chosen.tolist():
            for part in self.cores[at].split():
                low, dash, high = part.partition("-")
                try:
                    start, end = int(low), int(high if dash else low)
                except ValueError:
                    start, end = 0, -1
                if not 0 <= start <= end <= _LARGEST:
                    where = f"{self.origins[self.origin[at]]}, line {self.line[at]}, column allocated_resources"
                    raise UsageError(f"{where}: {part!r} is not a range of processors, as 0-3", hint=_CUT)
                owners.append(at)
                first.append(start)
                last.append(end)
        return np.array(owners, dtype=np.int64), np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Part of a run to draw. start, end: seconds; end None = the end of the run."""

    start: float = 0.0
    end: float | None = None

    @property
    def is_whole(self) -> bool:
        return not self.start and self.end is None

    def of(self, run: Run) -> tuple[float, float]:
        """Returns (start, end) on this run's axis. Raises: UsageError if the run ended before the window."""
        end = run.end if self.end is None else self.end
        if self.start >= run.end and run.end > 0:
            message = f"{run.directory} ends {moment(run.end)} after its first submit"
            raise UsageError(f"{message}, before the part that is to be drawn", hint=f"--from below {run.end:g}")
        return self.start, max(end, self.start + 1e-6)

    def spells(self, run: Run) -> Integers:
        """Returns the indices of spells that overlap the window."""
        start, end = self.of(run)
        return np.flatnonzero((run.spells.start < end) & (run.spells.end > start))

    def told(self, run: Run) -> str:
        """Returns the window in words, for titles."""
        if self.is_whole:
            return ""
        start, end = self.of(run)
        return f"from {moment(start)} to {moment(end)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """A sweep. path: of results.csv. title: its workload. rows: one per run, numbers as floats; `load` is None if none was set."""

    path: Path
    title: str
    rows: Sequence[Mapping[str, Any]]

    @property
    def loads(self) -> list[float | None]:
        """Returns the loads in ascending order."""
        return sorted({row["load"] for row in self.rows}, key=lambda load: -1.0 if load is None else load)

    @property
    def facts(self) -> list[str]:
        """Returns details for the second line of a title."""
        jobs = {int(row["jobs"]) for row in self.rows if "jobs" in row}
        told = [counted(jobs.pop(), "job")] if len(jobs) == 1 else []
        return [*told, counted(len({row["seed"] for row in self.rows}), "seed")]

    def groups(self) -> dict[tuple[str, float | None], list[Mapping[str, Any]]]:
        """Returns (policy, load) -> its runs, one per seed, in the order of the file."""
        found: dict[tuple[str, float | None], list[Mapping[str, Any]]] = {}
        for row in self.rows:
            found.setdefault((row["policy"], row["load"]), []).append(row)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSlots:
    """Slots of a live partition.

    quantum: length of a slot (s). nodes: (name, cores), from the left. first: number of the first slot. rows: for each slot, the job of
    every core.
    """

    partition: str
    policy: str
    generation: int
    quantum: float
    nodes: tuple[tuple[str, int], ...]
    first: int
    rows: tuple[tuple[str | None, ...], ...]

    @property
    def cores(self) -> int:
        return sum(cores for _, cores in self.nodes)


def read_run(directory: Path) -> Run:
    """Reads the results that `rmgr sim run --out` wrote.

    Raises: UsageError for files that are missing, damaged (it names file, line and column) or do not fit together.
    Cost: about 5 us a job.
    """
    summary = read_json(directory / SCHEDULE)
    table = read_columns(directory / JOBS)
    if not table.lines:
        raise UsageError(f"{directory / JOBS} holds no job, so there is nothing to draw")
    if summary.get("jobs", table.lines) != table.lines:
        raise UsageError(f"{directory / JOBS} holds {table.lines} jobs, and {SCHEDULE} says {summary['jobs']}", hint=_CUT)
    start, finish = table.numbers("starting_time", empty=True), table.numbers("finish_time", empty=True)
    ran, size = table.numbers("execution_time", empty=True), table.numbers("requested_number_of_resources", least=1)
    numbers = table.numbers("job_id", least=0).astype(np.int64)
    _check_order(table, start, finish)
    spells = _spells(directory, table, numbers, start, finish)
    policy, details, processors = _described(directory)
    turns = table.numbers("turns", least=0).astype(np.int64) if "turns" in table.by_name else np.zeros(len(numbers), dtype=np.int64)
    processors = processors or _processors(summary, spells, size, ran)
    quantum, trees = _slots(directory, processors)
    return Run(
        directory=directory,
        workload=table.texts("workload_name")[0],
        policy=policy,
        details=details,
        processors=processors,
        numbers=numbers,
        submit=table.numbers("submission_time", least=0),
        start=start,
        finish=finish,
        ran=ran,
        wait=table.numbers("waiting_time", empty=True, least=0),
        size=size,
        summary=summary,
        spells=spells,
        turns=turns,
        quantum=quantum,
        trees=trees,
    )


def read_sweep(directory: Path) -> SweepResults:
    """Reads the results of a sweep. Raises: UsageError for a sweep that has not ended, or damage (it names file, line and column)."""
    path = directory / RESULTS
    if not path.exists():
        raise UsageError(
            f"{directory} is a sweep that has not ended: {RESULTS} is not there", hint="the same rmgr sim sweep command goes on"
        )
    table = read_columns(path)
    if not table.lines:
        raise UsageError(f"{path} holds no run, so there is nothing to draw")
    loads = table.numbers("load", empty=True, least=0).tolist()
    columns: dict[str, Sequence[Any]] = {
        "name": table.texts("name"),
        "policy": [policy_name(policy) for policy in table.texts("policy")],
        "load": [None if text == "" else load for text, load in zip(table.texts("load"), loads, strict=True)],
    }
    columns |= {name: table.numbers(name, least=0).tolist() for name in ("seed", *MEASURES)}
    if "jobs" in table.by_name:
        columns["jobs"] = table.numbers("jobs", least=0).tolist()
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return SweepResults(path=path, title=_source(directory), rows=rows)


def read_live(path: Path) -> list[LiveSlots]:
    """Reads the slots that `rmgr queues --tree --matrix N --json` wrote, an entry for each partition.

    Raises: UsageError for a file without trees, a tree without slots, or damage (it names the place in the file).
    """
    document = read_json(path, hint=_LIVE)
    trees = document.get("trees")
    if not isinstance(trees, list):
        raise UsageError(f"{path} holds no slots: there is no list `trees`", hint=_LIVE)
    if not trees:
        raise UsageError(f"{path}: no partition shared its cores in time", hint="rmgr policy set dqt, submit jobs, then " + _LIVE)
    return [_live(path, at, tree) for at, tree in enumerate(trees)]


def read_report(path: Path) -> Mapping[str, Any]:
    """Reads the report of a paper. Raises: UsageError if its tables are not as long and as wide as they say."""
    document = read_json(path)
    try:
        msgspec.convert(document["tables"], list[report.Table])
    except (KeyError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} holds no report", hint="a directory that rmgr sim paper --out wrote is meant") from error
    return document


def read_figures(path: Path) -> Sequence[report.Figure | report.Boxes]:
    """Reads the figures of a report; none if the file does not exist. Raises: UsageError."""
    if not path.exists():
        return ()
    try:
        return tuple(map(_figure, read_json(path)["figures"]))
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} holds no figures: {error!r}", hint="a directory that rmgr sim paper --out wrote is meant") from error


def _figure(plain: Mapping[str, Any]) -> report.Figure | report.Boxes:
    return msgspec.convert(plain, report.Boxes) if "boxes" in plain else msgspec.convert(plain, report.Figure)


def read_json(path: Path, *, hint: str = _CUT) -> dict[str, Any]:
    """Reads a JSON object. Raises: UsageError if the file cannot be read or holds no object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: it is no text", hint=hint) from error
    except UNREADABLE_TEXT as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object", hint=hint)
    return found


def read_columns(path: Path) -> Columns:
    """Reads a CSV file without quoted cells. Raises: UsageError if it cannot be read, is empty, or a line has missing or spare cells."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: it is no text", hint="a directory that rmgr sim run --out wrote is meant") from error
    lines = text.split("\n")
    if not text:
        raise UsageError(f"{path} is empty", hint=_CUT)
    if lines.pop():
        raise UsageError(f"{path}, line {len(lines) + 1}: it ends in the middle of the line", hint=_CUT)
    header = lines[0].split(",")
    rows = [line.split(",") for line in lines[1:]]
    width = len(header)
    wrong = next((at for at, row in enumerate(rows) if len(row) != width), None)
    if wrong is not None:
        row = rows[wrong]
        message = f"column {header[len(row)]} is missing" if len(row) < width else f"the header names {width}"
        raise UsageError(f"{path}, line {wrong + 2}: {len(row)} columns; {message}", hint=_CUT)
    return Columns(path, len(rows), dict(zip(header, zip(*rows, strict=True) if rows else [()] * width, strict=True)))


@dataclass(frozen=True, slots=True)
class Columns:
    """A CSV file: its columns as text; index i holds line i + 2."""

    path: Path
    lines: int
    by_name: Mapping[str, Sequence[str]]

    def numbers(self, name: str, *, empty: bool = False, least: float = -np.inf) -> Floats:
        """Returns a column of numbers. empty: cells may be empty (nan). Raises: UsageError with line and column for any other cell."""
        cells = self.texts(name)
        try:
            found = np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
        except ValueError:
            found = np.array([_number(cell) for cell in cells], dtype=np.float64)
        good = np.isfinite(found) & (found >= least) & (found <= _LARGEST)
        if empty:
            good |= np.array([not cell for cell in cells], dtype=bool)
        if not good.all():
            at = int(np.argmin(good))
            message = "is not a number" if not np.isfinite(found[at]) else f"is below {least:g}" if found[at] < least else "is too large"
            raise UsageError(f"{self.path}, line {at + 2}, column {name}: {cells[at]!r} {message}", hint=_CUT)
        return found

    def texts(self, name: str) -> Sequence[str]:
        """Returns a column as text. Raises: UsageError if there is no such column."""
        if name not in self.by_name:
            raise UsageError(f"{self.path}, line 1: there is no column {name}", hint=f"its columns are {', '.join(self.by_name)}")
        return self.by_name[name]


def policy_name(policy: str) -> str:
    """Returns the name of a policy in pictures; for a file, its name without directory and ending."""
    return Path(policy).stem if policy.endswith((".py", ".toml")) else policy


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Returns a different label for each run: the policy, with further differences if needed; as a last resort the directory."""
    policies = [run.policy or run.name for run in runs]
    workloads = [run.workload for run in runs]
    workloads = workloads if len(set(workloads)) > 1 else [""] * len(runs)
    everyones = set.intersection(*(set(run.details) for run in runs)) if runs else set()
    details = [", ".join(sorted(set(run.details) - everyones)) for run in runs]
    tries = (
        policies,
        [_joined(policy, detail) for policy, detail in zip(policies, details, strict=True)],
        [_joined(policy, workload) for policy, workload in zip(policies, workloads, strict=True)],
        [_joined(*parts) for parts in zip(policies, workloads, details, strict=True)],
        [run.name for run in runs],
        [f"{run.directory.absolute().parent.name}/{run.name}" for run in runs],
    )
    different = next((names for names in tries if len(set(names)) == len(runs)), None)
    return different if different is not None else [str(run.directory) for run in runs]


def shared_facts(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """Returns (workload, details) that all runs share, for the title of a picture of several runs."""
    workloads = list(dict.fromkeys(run.workload for run in runs))
    if len(runs) == 1:
        return runs[0].title, list(runs[0].facts)
    title = workloads[0] if len(workloads) == 1 else f"{len(workloads)} workloads"
    return title, [fact for fact in runs[0].facts if all(fact in run.facts for run in runs)]


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _live(path: Path, at: int, tree: object) -> LiveSlots:
    where = f"{path}, trees[{at}]"
    try:
        assert isinstance(tree, dict)
        found = LiveSlots(
            partition=str(tree["partition"]),
            policy=str(tree["policy"]),
            generation=int(tree["generation"]),
            quantum=float(tree["quantum_seconds"]),
            nodes=tuple((str(leaf["node"]), int(leaf["cores"])) for leaf in tree["leaves"]),
            first=int(tree["matrix"][0]["slot"]) if tree["matrix"] else 0,
            rows=tuple(tuple(None if job is None else str(job) for job in row["cores"]) for row in tree["matrix"]),
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        message = f"there is no {error}" if isinstance(error, KeyError) else "it is no queue tree"
        raise UsageError(f"{where}: {message}", hint=_LIVE) from error
    if not found.rows:
        raise UsageError(f"{where}: partition {found.partition} has no slots in it: it was written without --matrix", hint=_LIVE)
    wrong = next((row for row, cores in enumerate(found.rows) if len(cores) != found.cores), None)
    if wrong is not None:
        raise UsageError(f"{where}.matrix[{wrong}]: {len(found.rows[wrong])} cores, and the leaves have {found.cores}", hint=_LIVE)
    return found


# -- parts --------------------------------------------------------------------------------------------------------------------


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _check_order(table: Columns, start: Floats, finish: Floats) -> None:
    wrong = finish < start
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UsageError(f"{table.path}, line {at + 2}, column finish_time: the job ends before it starts", hint=_CUT)


def _spells(directory: Path, table: Columns, numbers: Integers, start: Floats, finish: Floats) -> Spells:
    """Returns the spells of jobs listed in spells.csv, if it exists; any other job that ran has one spell."""
    one = np.flatnonzero(np.isfinite(start) & np.isfinite(finish))
    cores = table.texts("allocated_resources")
    path = directory / SPELLS
    if not path.exists():
        text = [cores[i] for i in one.tolist()]
        origin = np.zeros(len(one), dtype=np.int64)
        return Spells(job=one, start=start[one], end=finish[one], cores=text, origins=(table.path,), origin=origin, line=one + 2)
    several = read_columns(path)
    ids = several.numbers("job_id", least=0).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers, ids, sorter=order), len(order) - 1)]
    unknown = numbers[at] != ids
    if unknown.any():
        wrong = int(np.argmax(unknown))
        raise UsageError(f"{path}, line {wrong + 2}, column job_id: {JOBS} has no job {ids[wrong]}", hint=_CUT)
    one = one[~np.isin(one, at)]
    job = np.concatenate([one, at])
    begin = np.concatenate([start[one], several.numbers("starting_time", least=0)])
    end = np.concatenate([finish[one], several.numbers("finish_time", least=0)])
    text = [cores[i] for i in one.tolist()] + list(several.texts("allocated_resources"))
    if (end < begin).any():
        wrong = int(np.argmax(end < begin)) - len(one)
        raise UsageError(f"{path}, line {wrong + 2}, column finish_time: the spell ends before it starts", hint=_CUT)
    line = np.concatenate([one + 2, np.arange(len(at)) + 2])
    origin = np.repeat([0, 1], [len(one), len(at)])
    by_job = np.lexsort((begin, job))
    return Spells(
        job=job[by_job],
        start=begin[by_job],
        end=end[by_job],
        cores=[text[i] for i in by_job.tolist()],
        origins=(table.path, path),
        origin=origin[by_job],
        line=line[by_job],
    )


def _described(directory: Path) -> tuple[str, tuple[str, ...], int]:
    """Returns (policy, details, processors or 0) from the manifest of the run, or of the sweep to which it belongs."""
    own = directory / MANIFEST
    sweep = directory.absolute().parent.parent / MANIFEST
    found: Mapping[str, Any] = {}
    if own.is_file():
        document = read_json(own)
        found = document.get("experiment") or document
    elif directory.absolute().parent.name == "runs" and sweep.is_file():
        runs = read_json(sweep).get("runs", [])
        found = next((run for run in runs if isinstance(run, dict) and run.get("name") == directory.absolute().name), {})
    found = found if isinstance(found, dict) else {}
    params = found.get("params")
    policy = policy_name(str(found.get("policy", "")))
    if isinstance(params, dict):
        policy = " ".join([policy, *(f"{name}={value}" for name, value in sorted(params.items()))]).strip()
    told = ((name, found.get(key)) for key, name in _DETAILS.items())
    details = [f"{name} {value:g}" for name, value in told if isinstance(value, int | float) and value]
    details += [f"{key} {label_of(value)}" for key in ("mtbf", "mttr") if isinstance(value := found.get(f"{key}_seconds"), int | float)]
    processors, nodes, cores = (found.get(key) for key in ("processors", "nodes", "cores"))
    if not isinstance(processors, int):
        processors = nodes * cores if isinstance(nodes, int) and isinstance(cores, int) else 0
    return policy, tuple(details), processors


def _slots(directory: Path, processors: int) -> tuple[float, tuple[QueueTree, ...]]:
    """Returns (quantum in seconds, trees) of dqt from the run's manifest; else the policy's defaults with one tree over the machine."""
    policy = Dqt()
    path = directory / MANIFEST
    document = read_json(path) if path.is_file() else {}
    found = document.get("experiment") or document
    slots, params = found.get("slots"), found.get("params")
    whole = ((0, processors - 1),)
    if isinstance(slots, dict):  # present also for a pipeline, whose parameters are only in its file
        quantum, width = slots.get("quantum_seconds"), slots.get("width")
        if isinstance(quantum, int | float) and isinstance(width, int) and quantum > 0 and width >= 2:
            return float(quantum), tuple(_trees(slots.get("trees"))) or (QueueTree(width, whole),)
    if isinstance(params, dict):
        known = {"quantum", "width"} & params.keys()
        with suppress(ConfigError):  # the parameters of another policy
            policy = Dqt(**read_values("dqt", parameters_of(Dqt), {name: params[name] for name in known}))
    return policy.quantum_us / 1e6, (QueueTree(policy.width, whole),)


def _trees(told: object) -> Iterator[QueueTree]:
    """Yields the trees of a manifest that can be read."""
    for tree in told if isinstance(told, list) else ():
        if not isinstance(tree, dict) or not isinstance(width := tree.get("width"), int):
            continue
        with suppress(ValueError):
            parts = str(tree.get("cores", "")).split()
            cores = tuple((int(low), int(high or low)) for low, _, high in (part.partition("-") for part in parts))
            if width >= 2 and cores and all(0 <= low <= high <= _LARGEST for low, high in cores):
                yield QueueTree(width, cores, str(tree.get("partition", "")))


def _processors(summary: Mapping[str, Any], spells: Spells, size: Floats, ran: Floats) -> int:
    """Returns the processors of the machine, computed from its utilisation; at least one more than the highest number that a job used."""
    _, _, last = spells.rectangles(np.arange(len(spells.start)))
    seen = int(max(last.max(initial=0) + 1, np.max(size, where=np.isfinite(ran), initial=1)))
    told = [summary.get(name) for name in ("utilisation", "makespan")]
    if all(isinstance(value, int | float) and value > 0 for value in told):
        work = float(np.nansum(size * ran))
        machine = work / (float(told[0]) * float(told[1]))  # type: ignore[arg-type]  # numbers, as the line above says
        if abs(machine - round(machine)) < 1e-6 * machine:
            return max(seen, round(machine))
    return seen


def _source(directory: Path) -> str:
    """Returns the workload as the manifest names it, without directories and suffixes, or the name of the directory if none is named."""
    manifest = directory / MANIFEST
    runs = read_json(manifest).get("runs") if manifest.is_file() else None
    source = runs[0].get("source", "") if isinstance(runs, list) and runs and isinstance(runs[0], dict) else ""
    name = Path(str(source)).name
    for suffix in (".gz", ".swf", ".txt"):
        name = name.removesuffix(suffix)
    return name or directory.absolute().name
