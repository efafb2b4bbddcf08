"""From directories of results to files: which pictures there are to draw, under which names, all of them or none."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rmgr.errors import StateConflict, UsageError
from rmgr.sim.calls.runs import CALLS, CallRow, read_calls
from rmgr.sim.papers import report
from rmgr.sim.papers.report import slug
from rmgr.sim.plots.calls import calls
from rmgr.sim.plots.canvas import Figure, encoded, styled
from rmgr.sim.plots.compare import compare_runs, compare_sweep, load, waits
from rmgr.sim.plots.gantt import gantt
from rmgr.sim.plots.reading import JOBS, RESULTS, LiveSlots, Run, SweepResults, TimeWindow, read_json, read_live, read_run, read_sweep
from rmgr.sim.plots.reports import boxes, draw_table, is_drawable, lines
from rmgr.sim.plots.slots import front, matrix, matrix_of_live
from rmgr.sim.plots.utilisation import utilisation
from rmgr.sim.runs.output import write_file

REPORT, FIGURES = "report.json", "figures.json"
#: kind -> what it shows.
KINDS: Mapping[str, str] = {
    "gantt": "processors against time, of each run",
    "utilisation": "processors in use and jobs waiting over time, of each run",
    "waits": "distribution of wait times, all runs in one picture",
    "compare": "mean wait, bounded slowdown and utilisation, all runs in one picture",
    "load": "wait and slowdown against load, of a sweep",
    "tables": "tables of a paper's report; unasked only when it has no figures",
    "figures": "figures of a paper's report",
    "matrix": "slots against cores, a colour a job, of each run of dqt with --spells, or of queues --tree --matrix N --json",
    "front": "the queue tree with its front in a few slots, of each run of dqt with --spells",
    "calls": "a lane for each server and link, of the first replication of each policy and case of rmgr sim calls",
}
_WRITTEN = "name a directory that rmgr sim run|sweep|paper|calls --out wrote, or FILE.json of rmgr queues --tree --matrix N --json"
FORMS: Mapping[str, tuple[str, ...]] = {"png": ("png",), "svg": ("svg",), "both": ("png", "svg")}


@dataclass(frozen=True, slots=True)
class Picture:
    """name: of the file, without its ending. draw: makes the figure, inside `styled`."""

    name: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Content of a directory: runs, sweeps, reports as (document, figures), and calls."""

    runs: Sequence[Run]
    sweeps: Sequence[SweepResults]
    reports: Sequence[tuple[Mapping[str, Any], Sequence[report.Figure | report.Boxes]]]
    calls: Sequence[Sequence[CallRow]] = ()  #: of each directory of calls
    live: Sequence[tuple[Path, LiveSlots]] = ()  #: of each file of a live cluster, and each partition in it


def read(directories: Iterable[Path]) -> Results:
    """Reads every directory, and files of live slots. Raises: UsageError for one that holds no results, or damaged ones."""
    runs, sweeps, reports, lanes = [], [], [], []
    live: list[tuple[Path, LiveSlots]] = []
    for directory in (each for named in directories for each in _of_papers(named) or [named]):
        if directory.suffix == ".json" and directory.is_file():
            live += [(directory, slots) for slots in read_live(directory)]
            continue
        there = _listed(directory)
        if CALLS in there:
            lanes.append(read_calls(directory))
        elif JOBS in there:
            runs.append(read_run(directory))
        elif RESULTS in there or "runs" in there:
            sweeps.append(read_sweep(directory))
        elif REPORT in there:
            reports.append((_report(directory / REPORT), _figures(directory / FIGURES)))
        else:
            told = "holds no results" if there else "is empty"
            raise UsageError(f"{directory} {told}: there is no {JOBS}, {RESULTS}, {REPORT} or {CALLS}", hint=_WRITTEN)
    return Results(runs=runs, sweeps=sweeps, reports=reports, calls=lanes, live=live)


def pictures(results: Results, kinds: Sequence[str] = (), window: TimeWindow = TimeWindow()) -> list[Picture]:  # noqa: B008 - a frozen value
    """What is drawn of them. kinds: none = all that fit: of each run gantt and utilisation, of all runs together waits, and compare when
    there are several; of a sweep load (compare when it has one load); of a report its figures, or
    its tables when it has none.

    Raises: UsageError when a kind that was named does not fit to what was read.
    """
    made: list[Picture] = []
    runs, names = results.runs, _names(results.runs)
    wanted = set(kinds) or _fitting(results, window)
    if ({"gantt", "utilisation", "waits", "front"} & wanted or ("matrix" in wanted and not results.live)) and not runs:
        kind = next(kind for kind in KINDS if kind in wanted)
        example = (
            f"{results.sweeps[0].path.parent}/runs/{results.sweeps[0].rows[0]['name']}" if results.sweeps else "rmgr sim run --out DIR"
        )
        raise UsageError(f"--kind {kind} draws single runs, and none was named", hint=f"as {example}")
    if "load" in wanted and not results.sweeps:
        raise UsageError("--kind load draws sweeps, and none was named", hint="rmgr sim sweep --load .7,.8,.9 ... --out DIR")
    if {"tables", "figures"} & wanted and not results.reports:
        raise UsageError("--kind tables and figures draw reports, and none was named", hint="rmgr sim paper 001 --out DIR")
    if "compare" in wanted and not (runs or results.sweeps):
        raise UsageError("--kind compare draws runs or sweeps, and none was named", hint="rmgr sim run --out DIR")
    if "calls" in wanted and not results.calls:
        raise UsageError("--kind calls draws calls, and none were named", hint="rmgr sim calls ... --out DIR")
    if {"compare", "load", "tables", "figures", "calls"} & wanted and not window.is_whole:
        raise UsageError("--from and --to cut single runs, as gantt and utilisation show them", hint="leave them away, or name --kind")
    if results.live and not window.is_whole:
        raise UsageError("--from and --to cut single runs, not slots of a live cluster", hint="leave them away")
    for name, draw in (("gantt", gantt), ("utilisation", utilisation), ("matrix", matrix), ("front", front)):
        if name in wanted:
            made += [Picture(name + end, partial(draw, run, window)) for end, run in zip(names, runs, strict=True)]
    for path, slots in results.live if "matrix" in wanted else ():
        ends = [path.stem] * (len({path for path, _ in results.live}) > 1 or bool(runs)) + [slots.partition] * (len(results.live) > 1)
        made.append(Picture("-".join(["matrix", *map(slug, ends)]), partial(matrix_of_live, slots)))
    if "waits" in wanted:
        made.append(Picture("waits", partial(waits, runs, window)))
    if "compare" in wanted and runs:
        made.append(Picture("compare", partial(compare_runs, runs)))
    for at, sweep in enumerate(results.sweeps):
        end = f"-{slug(sweep.path.absolute().parent.name)}" if len(results.sweeps) > 1 or runs else ""
        end += f"-{at + 1}" if end in {f"-{slug(s.path.absolute().parent.name)}" for s in results.sweeps[:at]} else ""
        if "load" in wanted and (kinds or len(sweep.loads) > 1):
            made.append(Picture(f"load{end}", partial(load, sweep)))
        if "compare" in wanted and (kinds or len(sweep.loads) == 1):
            made.append(Picture(f"compare{end}", partial(compare_sweep, sweep)))
    for document, shown in results.reports:
        paper = str(document.get("paper", ""))
        if "tables" in wanted:
            drawable = [table for table in document["tables"] if is_drawable(table)]
            made += [Picture(f"paper{paper}-table-{slug(table['title'])}", partial(draw_table, table, paper=paper)) for table in drawable]
        if "figures" in wanted:
            made += [Picture(f"paper{paper}-{picture.name}", picture.draw) for picture in figures(shown)]
    if "calls" in wanted:
        for rows in results.calls:
            made += _lanes(rows)
    if not made:
        raise UsageError("there is nothing to draw in what was named", hint=f"--kind {'|'.join(KINDS)}")
    twice = [name for name, times in Counter(picture.name for picture in made).items() if times > 1]
    if twice:
        raise UsageError(f"two pictures would have the name {twice[0]}", hint="name fewer directories at a time")
    return made


def draw(made: Sequence[Picture], out: Path, forms: Sequence[str] = ("png",), *, overwrite: bool = False) -> list[Path]:
    """Draws them all, then writes them all: nothing is written when one cannot be drawn. The same results give the same bytes.

    Args:
        out: directory, made when its parent is there. forms: png, svg. overwrite: pictures that are there already are replaced.
    Raises: StateConflict when a picture is there already; UsageError when `out` cannot be one; RmgrError when the disk is full.
    """
    files = {(picture.name, form): out / f"{picture.name}.{form}" for picture in made for form in forms}
    there = [path for path in files.values() if os.path.lexists(path)]
    if there and not overwrite:
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise StateConflict(f"{there[0]} exists already{more}", hint="--overwrite replaces it, --out DIR writes elsewhere")
    if os.path.lexists(out) and not out.is_dir():
        raise UsageError(f"{out} is no directory", hint="name another --out")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out.absolute().parent} is no directory", hint=f"create it first: mkdir -p {out.absolute().parent}")
    contents: dict[Path, bytes] = {}
    for picture in made:
        with styled():
            figure = picture.draw()
            contents |= {files[picture.name, form]: encoded(figure, form) for form in forms}
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror or error}", hint="name another --out") from error
    for path, content in contents.items():
        write_file(path, content)
    return list(contents)


def figures(shown: Sequence[report.Figure | report.Boxes]) -> list[Picture]:
    """A report's figures, each under its title: for `draw` into the directory of the report."""
    return [
        Picture(slug(each.title), partial(boxes, each) if isinstance(each, report.Boxes) else partial(lines, each)) for each in shown
    ]


def _lanes(rows: Sequence[CallRow]) -> list[Picture]:
    """The first replication of each policy and case."""
    groups: dict[tuple[str, str], list[CallRow]] = {}
    for row in rows:
        group = groups.setdefault((row.policy, row.case), [])
        if not group or group[0].seed == row.seed:
            group.append(row)
    return [Picture(f"calls-{slug(f'{case} {policy}')}", partial(calls, group)) for (policy, case), group in groups.items()]


# -- parts --------------------------------------------------------------------------------------------------------------------


def _of_papers(directory: Path) -> list[Path]:
    """Directories of reports in that of `sim paper all`."""
    return [] if (directory / REPORT).exists() else sorted(path.parent for path in directory.glob(f"*/{REPORT}"))


def _listed(directory: Path) -> set[str]:
    """Names in it. Raises: UsageError when it cannot be read."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        told = {errno.ENOENT: "does not exist", errno.ENOTDIR: "is no directory"}.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise UsageError(f"{directory} {told}", hint=_WRITTEN) from error


def _fitting(results: Results, window: TimeWindow) -> set[str]:
    fitting = {"gantt", "utilisation", "waits"} if results.runs else set()
    if not window.is_whole:
        return fitting
    if len(results.runs) > 1:
        fitting.add("compare")
    if any(len(sweep.loads) == 1 for sweep in results.sweeps):
        fitting.add("compare")
    if any(len(sweep.loads) > 1 for sweep in results.sweeps):
        fitting.add("load")
    if results.calls:
        fitting.add("calls")
    if results.live:
        fitting.add("matrix")
    for _, shown in results.reports:
        fitting.add("figures" if shown else "tables")
    return fitting


def _names(runs: Sequence[Run]) -> list[str]:
    """Ends of file names: none for one run; the directory's name, with that of its parent when two are the same."""
    if len(runs) <= 1:
        return [""] * len(runs)
    short = [slug(run.name) for run in runs]
    if len(set(short)) == len(runs):
        return [f"-{name}" for name in short]
    return [f"-{slug(f'{run.directory.absolute().parent.name} {run.name}')}" for run in runs]


def _report(path: Path) -> Mapping[str, Any]:
    document = read_json(path)
    tables = document.get("tables")
    good = isinstance(tables, list) and all(
        isinstance(table, dict)
        and isinstance(table.get("title"), str)
        and isinstance(table.get("columns"), list)
        and isinstance(table.get("rows"), list)
        and all(isinstance(name, str) for name in table["columns"])
        and all(isinstance(row, list) and len(row) == len(table["columns"]) for row in table["rows"])
        and all(cell is None or isinstance(cell, str | int | float) for row in table["rows"] for cell in row)
        for table in tables
    )
    if not good:
        raise UsageError(f"{path} holds no report", hint="a directory that rmgr sim paper --out wrote is meant")
    return document


def _figures(path: Path) -> Sequence[report.Figure | report.Boxes]:
    if not path.exists():
        return ()
    try:
        return tuple(_boxes(each) if "boxes" in each else _lines(each) for each in read_json(path)["figures"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} holds no figures: {error!r}", hint="a directory that rmgr sim paper --out wrote is meant") from error


def _lines(each: Mapping[str, Any]) -> report.Figure:
    return report.Figure(
        title=str(each["title"]),
        x_label=str(each["x_label"]),
        y_label=str(each["y_label"]),
        logarithmic=bool(each["logarithmic"]),
        lines=tuple((str(line["name"]), tuple(report.Point(*map(float, point)) for point in line["points"])) for line in each["lines"]),
    )


def _boxes(each: Mapping[str, Any]) -> report.Boxes:
    return report.Boxes(
        title=str(each["title"]),
        y_label=str(each["y_label"]),
        groups=tuple(map(str, each["groups"])),
        boxes=tuple((str(box["name"]), tuple(tuple(map(float, values)) for values in box["values"])) for box in each["boxes"]),
    )
