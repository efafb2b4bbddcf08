"""The files of a run (cli.md section 9), written elsewhere and moved into place whole or not at all; and the measures in them.

jobs.csv, spells.csv, schedule.json. Measures use the words of the Standard Workload Format: wait, turnaround, slowdown, bounded
slowdown, utilisation, makespan.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from rmgr.errors import RmgrError, UsageError
from rmgr.model.states import State
from rmgr.sched.state.event_log import End, Entry, LogError, Opening, Passed, decode
from rmgr.sim.engine.outcome import JobOutcome, Parting, Result
from rmgr.sim.workload.jobs import SECOND, open_plain_or_gz

COLUMNS = (
    "job_id", "workload_name", "profile", "submission_time", "requested_number_of_resources", "requested_time", "success", "final_state",
    "starting_time", "execution_time", "finish_time", "waiting_time", "turnaround_time", "stretch", "allocated_resources",
)
#: Further columns if jobs shared cores in time: seconds that the job ran, and number of slots.
SHARED_COLUMNS = ("served", "turns")
SPELL_COLUMNS = ("job_id", "spell", "starting_time", "finish_time", "ending", "allocated_resources")
#: Batsim's names for final states.
_FINAL = {State.COMPLETED: "COMPLETED_SUCCESSFULLY", State.FAILED: "COMPLETED_FAILED", State.CANCELLED: "COMPLETED_KILLED"}
_REFUSED = "REJECTED"
_LINES_AT_ONCE = 4096
#: Bounded slowdown counts a run as at least this long (papers.md, common rules).
TAU_US = 10 * SECOND
#: Measures of the simulator itself, which differ from run to run.
MEASURED = ("wall_seconds", "jobs_per_second")
_OF_JOBS = (
    "makespan", "mean_waiting_time", "median_waiting_time", "max_waiting_time", "mean_turnaround_time", "mean_slowdown",
    "mean_bounded_slowdown", "utilisation", "jobs_waiting_zero",
)


def refuse_existing(directory: Path) -> None:
    """Raises UsageError if the place for the results is taken or not writable; called before anything is computed."""
    if os.path.lexists(directory):
        raise UsageError(f"{directory} exists already", hint="results are never mixed or overwritten: name another --out, or remove it")
    parent = directory.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"{parent} is no directory", hint=f"create it first: mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"nothing can be written into {parent}", hint="name another --out")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Yields a new directory to fill, flushed to the disk at the end. Raises: as `_new`."""
    with _new(directory) as partial:
        partial.mkdir()
        yield partial
        for path in [*sorted(partial.iterdir()), partial]:
            _flush_to_disk(path)


@contextmanager
def _new(place: Path) -> Iterator[Path]:
    """Yields a hidden neighbour (`.NAME.partial-PID`), which gets its name only if the block ends well; otherwise it is removed.

    Raises: UsageError if the name is taken; RmgrError if the disk is full or not writable.
    """
    refuse_existing(place)
    partial = place.absolute().parent / f".{place.name}.partial-{os.getpid()}"
    try:
        yield partial
        refuse_existing(place)
        partial.rename(place)
        _flush_to_disk(place.absolute().parent)
    except BaseException as error:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise not_written(place, error) from error
        raise


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all, replacing an older one; text as UTF-8.

    Raises: RmgrError if the disk is full or not writable.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        _flush_to_disk(partial)
        partial.replace(path)
        _flush_to_disk(path.absolute().parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise not_written(path, error) from error


def write_run(directory: Path, result: Result, *, workload_name: str, manifest: Mapping[str, Any] | None = None) -> None:
    """Writes jobs.csv and schedule.json of one run; spells.csv if a job ran more than once or in kept slots; always the same bytes.

    manifest: what was run, by which versions, for manifest.json; None writes none (a sweep has one for all its runs).
    Raises: as `whole_directory`.
    Cost: about 4 us a job, plus its cores' ranges.
    """
    with whole_directory(directory) as partial:
        write_jobs(partial / "jobs.csv", result.outcomes, workload_name=workload_name)
        # with kept stretches, a job that shared its cores in time has them there, even without interruption
        if any(len(outcome.spells) > 1 or (outcome.turns and outcome.served_us is None) for outcome in result.outcomes):
            write_spells(partial / "spells.csv", result.outcomes)
        write_json(partial / "schedule.json", reproducible(summary(result)))
        if manifest is not None:
            write_json(partial / "manifest.json", manifest)


def write_jobs(path: Path, outcomes: Iterable[JobOutcome], *, workload_name: str) -> None:
    """Writes one line a job, in job order: Batsim's columns, and those of jobs that shared cores; times in seconds."""
    name = workload_name.replace(",", "_").replace('"', "_").replace("\n", "_")
    outcomes = outcomes if isinstance(outcomes, Sequence) else list(outcomes)
    if any(outcome.turns for outcome in outcomes):
        lines = (f"{_job_line(outcome, name)},{_time(outcome.ran_us) if outcome.spells else ''},{outcome.turns}" for outcome in outcomes)
        _write_lines(path, chain([",".join((*COLUMNS, *SHARED_COLUMNS))], lines))
        return
    _write_lines(path, chain([",".join(COLUMNS)], (_job_line(outcome, name) for outcome in outcomes)))


def write_spells(path: Path, outcomes: Iterable[JobOutcome]) -> None:
    """Writes one line for each stretch of each job, in job order; times in seconds; `ending` says why the job left its nodes."""
    rows = (
        f"{outcome.job.number},{at},{_time(spell.start_us)},{_time(spell.end_us)},{spell.parting},{ranges_text(spell.cores)}"
        for outcome in outcomes
        for at, spell in enumerate(outcome.spells, 1)
    )
    _write_lines(path, chain([",".join(SPELL_COLUMNS)], rows))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    rest = iter(lines)
    with path.open("w", encoding="utf-8", newline="") as file:
        while some := list(islice(rest, _LINES_AT_ONCE)):
            file.write("\n".join(some) + "\n")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes one JSON value, indented, in the given order."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Returns `0-3 7` for ((0, 3), (7, 7))."""
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def _job_line(outcome: JobOutcome, workload_name: str) -> str:
    job = outcome.job
    asked = f"{job.number},{workload_name},{job.number},{_time(job.submit_us)},{job.processors},{_time(job.estimate_us)}"
    if not outcome.spells:
        return f"{asked},0,{_REFUSED if outcome.state is State.FAILED else _FINAL[outcome.state]},,,,,,,"
    ran, turnaround = outcome.ran_us, outcome.turnaround_us
    times = f"{_time(outcome.start_us)},{_time(ran)},{_time(outcome.end_us)},{_time(turnaround - ran)},{_time(turnaround)}"
    good = int(outcome.state is State.COMPLETED)
    return f"{asked},{good},{_FINAL[outcome.state]},{times},{turnaround / ran!r},{ranges_text(outcome.spells[-1].cores)}"


def _time(time_us: int) -> str:
    """Returns exact decimal seconds: 12, 0.5, 0.000001; never a power of ten."""
    shown = seconds(time_us)
    return str(shown) if isinstance(shown, int) else f"{time_us // 1_000_000}.{time_us % 1_000_000:06d}".rstrip("0")


def summary(result: Result) -> dict[str, int | float]:
    """Returns the measures of cli.md section 9, over all jobs that ran, without warm-up; times in seconds.

    Makespan = last end - first submit; utilisation = sum(processors x run time) / (machine x makespan); slowdown = turnaround / run
    time; bounded slowdown = max(1, turnaround / max(run time, 10 s)). Sums are exact, so the order of jobs changes no digit.
    A job that ran more than once counts with all its spells: its wait is turnaround minus all of them.
    jobs_rejected could never run; jobs_failed and jobs_cancelled are the others that did not complete.
    Cost: O(n log n) for the median; 24 bytes a job.
    """
    waits, turnarounds, runs = array("q"), array("q"), array("q")
    rejected, states, partings = 0, Counter[State](), Counter[Parting]()
    first, last, work = 0, 0, 0
    for outcome in result.outcomes:
        spells, job = outcome.spells, outcome.job
        if outcome.state is not State.COMPLETED:
            states[outcome.state] += 1
        if not spells:
            rejected += outcome.state is State.FAILED
            continue
        ran, turnaround = outcome.ran_us, outcome.turnaround_us
        first = min(first, job.submit_us) if runs else job.submit_us
        last = max(last, spells[-1].end_us)
        work += job.processors * ran
        waits.append(turnaround - ran)
        turnarounds.append(turnaround)
        runs.append(ran)
        if len(spells) > 1 or spells[0].parting is not Parting.ENDED:
            partings.update(spell.parting for spell in spells)
    count = len(runs)
    if count:
        bounded = fsum(max(1.0, turnaround / max(run, TAU_US)) for turnaround, run in zip(turnarounds, runs, strict=True))
        found: dict[str, int | float] = {
            "makespan": seconds(last - first),
            "mean_waiting_time": sum(waits) / count / SECOND,
            "median_waiting_time": seconds(median(waits)),
            "max_waiting_time": seconds(max(waits)),
            "mean_turnaround_time": sum(turnarounds) / count / SECOND,
            "mean_slowdown": fsum(turnaround / run for turnaround, run in zip(turnarounds, runs, strict=True)) / count,
            "mean_bounded_slowdown": bounded / count,
            "utilisation": work / (result.processors * (last - first)),
            "jobs_waiting_zero": waits.count(0),
        }
    else:
        found = dict.fromkeys(_OF_JOBS, 0)
    found |= {
        "jobs": len(result.outcomes),
        "jobs_rejected": rejected,
        "jobs_failed": states[State.FAILED] - rejected,
        "jobs_cancelled": states[State.CANCELLED],
        "migrations": partings[Parting.MIGRATED],
        "suspensions": partings[Parting.SUSPENDED],
        "preemptions": partings[Parting.PREEMPTED],
        "lost_to_nodes": partings[Parting.LOST],
        "passes": result.passes,
    }
    return found | _measured(result)


def _measured(result: Result) -> dict[str, float]:
    wall = result.wall_seconds
    return dict(zip(MEASURED, (wall, len(result.outcomes) / wall if wall > 0 else 0.0), strict=True))


def reproducible(found: Mapping[str, int | float]) -> dict[str, int | float | None]:
    """Returns the summary for a file: the same run gives the same bytes, so measures of the simulator are null."""
    return {name: None if name in MEASURED else value for name, value in found.items()}


def seconds(time_us: float) -> int | float:
    """Converts microseconds to seconds; whole seconds stay integers."""
    whole, rest = divmod(time_us, SECOND)
    return time_us / SECOND if rest else int(whole)


def not_written(path: Path, error: OSError) -> RmgrError:
    """Returns the error for a failed write; a full disk is named."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    message = "the disk is full" if full else error.strerror or str(error)
    return RmgrError(f"{path} could not be written: {message}", hint="nothing was left there; free some space or name another --out")


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- event logs (rmgr/sched/state/event_log.py): written whole or not at all, checked when they are read -----------------------


@contextmanager
def new_log(path: Path) -> Iterator[Callable[[str], object]]:
    """Yields the write function of a new text file, compressed if it is called .gz. Raises: as `_new`."""
    with _new(path) as partial, partial.open("wb") as file:
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) if path.suffix == ".gz" else None
        with io.TextIOWrapper(packed or file, encoding="utf-8", newline="\n", write_through=False) as text:
            yield text.write
            text.flush()
            if packed is not None:
                packed.close()
            file.flush()
            os.fsync(file.fileno())


def read_log(path: str | Path, *, whole: bool = True) -> Generator[Entry, None, None]:
    """Yields the entries of a log, compressed or not, checked: opening first, times and passes in order, counts at its end.

    Args:
        whole: requires an end; otherwise a log that was cut off, or is still being written, gives what it has.
    Raises: UsageError naming line and field.
    """
    facts = passes = number = 0
    at_us = None
    try:
        with open_plain_or_gz(Path(path)) as lines:
            for number, line in enumerate(lines, 1):
                if not whole and not line.endswith(b"\n"):
                    return
                where = f"{path}, line {number}"
                try:
                    entry = decode(line.decode("utf-8"))
                except (LogError, UnicodeDecodeError) as error:
                    cut = not line.endswith(b"\n")
                    raise UsageError(f"{where}: {error}", hint=_CUT if cut else _WRITERS) from error
                if (number == 1) is not isinstance(entry, Opening):
                    raise UsageError(f"{where}, field log: a log begins with it, once", hint=_WRITERS)
                if isinstance(entry, Opening):
                    yield entry
                    continue
                if at_us is not None and entry.at_us < at_us:
                    raise UsageError(f"{where}, field at: {entry.at_us} us is earlier than the line before, {at_us} us")
                at_us = entry.at_us
                if isinstance(entry, End):
                    if (entry.facts, entry.passes) != (facts, passes):
                        raise UsageError(f"{where}, field end: {facts} facts and {passes} passes stand before it", hint="lines are missing")
                    yield entry
                    return
                if isinstance(entry, Passed):
                    passes += 1
                    if entry.number != passes:
                        raise UsageError(f"{where}, field pass: {entry.number} follows pass {passes - 1}", hint="lines are missing")
                else:
                    facts += 1
                yield entry
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        if whole:
            raise UsageError(f"{path}: the gz file is damaged or ends in the middle, after line {number}", hint=_CUT) from error
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", hint=_WRITERS) from error
    if whole:
        raise UsageError(f"{path} has no end: it was cut off after line {number}, or is still being written", hint=_CUT)


_WRITERS = "rmgr sim run --record and rmgr admin export-events write such logs"
_CUT = "--partial replays what is there"
