"""A sweep: many experiments in processes of their own; every finished run is kept, so the same command goes on where it was stopped.

DIR/manifest.json says what is run, on what input, by which versions; DIR/runs/NAME/ holds each finished run (moved there whole);
DIR/results.csv, one line a run, is written when all are there. A directory without results.csv is an unfinished sweep.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmgr.errors import RmgrError, StateConflict, UsageError
from rmgr.sim.models.catalogue import is_model
from rmgr.sim.runs.experiment import Experiment, carry_out
from rmgr.sim.runs.output import MEASURED, whole_directory, write_file, write_run
from rmgr.sim.runs.parallel import Piece, StillWanted, in_processes

MANIFEST = "manifest.json"
RESULTS = "results.csv"
#: Columns of results.csv before the measures of schedule.json.
_KEYS = ("name", "policy", "load", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Plan of a sweep. experiments: in the order of the results. validate: each schedule is checked. versions: of what computes it."""

    experiments: tuple[Experiment, ...]
    validate: bool = False
    versions: tuple[tuple[str, str], ...] = ()

    def names(self) -> list[str]:
        """The directory of each run. Raises: UsageError when two experiments are the same."""
        names = [name_of(experiment) for experiment in self.experiments]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"a sweep runs everything once, and {twice[0]} stands in it twice")
        return names


def name_of(experiment: Experiment) -> str:
    """`easy-load0.7-seed1`; without a load `easy-seed1`; a policy file goes by its last name."""
    load = f"-load{float(experiment.load):g}" if experiment.load is not None else ""
    return f"{Path(experiment.policy).name}{load}-seed{experiment.seed}"


def carry_out_sweep(
    sweep: Sweep, directory: Path, *, processes: int = 1, on_end: Callable[[int, int], None] = lambda _done, _total: None
) -> list[dict[str, Any]]:
    """Runs what is missing and returns the rows of results.csv.

    Args:
        directory: new, or of the very same sweep, unfinished or not. processes: at a time.
        on_end: called with (finished runs, all runs) at the beginning and whenever one ends.
    Raises: UsageError for a directory of something else; StateConflict when another process sweeps there; RmgrError when a run failed or
        the disk is full (what has finished stays). KeyboardInterrupt ends the running ones; nothing half-written is left.
    """
    names = sweep.names()
    with _owned(sweep, directory):
        runs = directory / "runs"
        runs.mkdir(exist_ok=True)
        for left in runs.glob(".*.partial-*"):  # of a sweep that was killed; nobody else writes here
            shutil.rmtree(left, ignore_errors=True)
        missing = [(name, e) for name, e in zip(names, sweep.experiments, strict=True) if not (runs / name).is_dir()]
        done = len(names) - len(missing)
        on_end(done, len(names))
        for _ in _run_all(missing, runs, sweep.validate, processes):
            done += 1
            on_end(done, len(names))
        rows = [_row(name, e, runs / name) for name, e in zip(names, sweep.experiments, strict=True)]
        write_file(directory / RESULTS, _table(rows))
        return rows


# -- the directory ------------------------------------------------------------------------------------------------------------


@contextmanager
def _owned(sweep: Sweep, directory: Path) -> Iterator[None]:
    """The directory is this sweep's, and this process is the only one in it."""
    text = json.dumps(_manifest(sweep), indent=2, ensure_ascii=False) + "\n"
    if not os.path.lexists(directory):
        with whole_directory(directory) as partial:  # killed at any time, there is a sweep or there is nothing
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
    """The first thing in which an existing manifest differs."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{MANIFEST} is damaged"
    ours = json.loads(json.dumps(_manifest(sweep)))
    return next((f"its {key} differ" for key in ours if there.get(key) != ours[key]), "its manifest differs")


def inputs_of(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Traces and policy files -> their SHA-256. Raises: UsageError when one cannot be read."""
    inputs = {experiment.source for experiment in experiments if not is_model(experiment.source)}
    inputs.update(experiment.events for experiment in experiments if experiment.events)
    policies = {e.policy: e for e in experiments}.values()
    inputs.update(file for experiment in policies for file in experiment.configure(experiment.policy, experiment.params).files)
    return {source: digest_of(source) for source in sorted(inputs)}


def digest_of(source: str) -> str:
    """SHA-256 of a file's bytes. Raises: UsageError when it cannot be read."""
    try:
        with Path(source).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}", hint="name a trace in SWF, plain or gz") from error


def _row(name: str, experiment: Experiment, run: Path) -> dict[str, Any]:
    found = json.loads((run / "schedule.json").read_text(encoding="utf-8"))
    load = None if experiment.load is None else float(experiment.load)
    keys = dict(zip(_KEYS, (name, experiment.policy, load, experiment.seed), strict=True))
    return keys | {key: value for key, value in found.items() if key not in MEASURED}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -- one run ------------------------------------------------------------------------------------------------------------------


def _run_all(missing: Sequence[tuple[str, Experiment]], runs: Path, validate: bool, processes: int) -> Iterator[str]:
    """Names of runs as they end. Closing it, or an error, ends those that are running."""
    pieces = (Piece(name=name, function=_one, arguments=(e, runs / name, validate)) for name, e in missing)
    try:
        for piece, _ in in_processes(pieces, processes):
            yield piece.name
    except RmgrError as error:
        kept = "finished runs are kept, the same command goes on"
        raise RmgrError(error.message, hint=f"{error.hint}\n{kept}" if error.hint else kept) from error


def _one(still_wanted: StillWanted, experiment: Experiment, directory: Path, validate: bool) -> None:
    """One run, in a process of its own."""
    workload = experiment.workload()
    result = carry_out(experiment, workload, validate=validate, on_progress=lambda _: still_wanted())
    write_run(directory, result, workload_name=workload.name)
