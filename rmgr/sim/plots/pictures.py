"""From directories of results to files of pictures: what can be drawn, under which names; all files are written or none."""

from __future__ import annotations

import errno
import math
import os
import textwrap
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
from rmgr.sim.plots import canvas, curves, gantt, reading
from rmgr.sim.plots.canvas import Artist, Axes, Figure
from rmgr.sim.runs.output import write_file

REPORT, FIGURES = "report.json", "figures.json"
#: Kinds of pictures; the help of `rmgr sim plot` says what each shows.
KINDS = ("gantt", "utilisation", "waits", "compare", "load", "tables", "figures", "matrix", "front", "calls")
_WRITTEN = "name a directory that rmgr sim run|sweep|paper|calls --out wrote, or FILE.json of rmgr queues --tree --matrix N --json"
FORMS: Mapping[str, tuple[str, ...]] = {"png": ("png",), "svg": ("svg",), "both": ("png", "svg")}
_MOST_PANELS, _MOST_ROWS, _PANELS_A_ROW = 12, 40, 3
#: A column "N sd" is the spread of column N and gets no panel of its own.
_SPREAD = " sd"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture to draw. name: of the file, without its ending. draw: makes the figure; is called inside `styled`."""

    name: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Contents of directories: runs, sweeps, reports as (document, figures), and calls."""

    runs: Sequence[reading.Run]
    sweeps: Sequence[reading.SweepResults]
    reports: Sequence[tuple[Mapping[str, Any], Sequence[report.Figure | report.Boxes]]]
    calls: Sequence[Sequence[CallRow]] = ()  #: one entry per directory of calls
    live: Sequence[tuple[Path, reading.LiveSlots]] = ()  #: one entry per file of a live cluster and partition in it


def read(directories: Iterable[Path]) -> Results:
    """Reads directories and files of live slots. Raises: UsageError for one without results, or with damaged ones."""
    runs, sweeps, reports, lanes = [], [], [], []
    live: list[tuple[Path, reading.LiveSlots]] = []
    for directory in (each for given in directories for each in _of_papers(given) or [given]):
        if directory.suffix == ".json" and directory.is_file():
            live += [(directory, slots) for slots in reading.read_live(directory)]
            continue
        there = _listed(directory)
        if CALLS in there:
            lanes.append(read_calls(directory))
        elif reading.JOBS in there:
            runs.append(reading.read_run(directory))
        elif reading.RESULTS in there or "runs" in there:
            sweeps.append(reading.read_sweep(directory))
        elif REPORT in there:
            reports.append((reading.read_report(directory / REPORT), reading.read_figures(directory / FIGURES)))
        else:
            message = "holds no results" if there else "is empty"
            raise UsageError(f"{directory} {message}: there is no {reading.JOBS}, {reading.RESULTS}, {REPORT} or {CALLS}", hint=_WRITTEN)
    return Results(runs=runs, sweeps=sweeps, reports=reports, calls=lanes, live=live)


def pictures(results: Results, kinds: Sequence[str] = (), window: reading.TimeWindow = reading.TimeWindow()) -> list[Picture]:  # noqa: B008
    """Returns the pictures to draw. kinds: those to draw; without any, all that fit: for each run gantt and utilisation, for all runs
    together waits, and compare if there are several; for a sweep load (compare if it has one load); for a report its figures, or its
    tables if it has none; for calls their lanes; for live slots the matrix.

    Raises: UsageError if a named kind does not fit the results.
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
    for name, draw in (("gantt", gantt.gantt), ("utilisation", curves.utilisation), ("matrix", gantt.matrix), ("front", gantt.front)):
        if name in wanted:
            made += [Picture(name + end, partial(draw, run, window)) for end, run in zip(names, runs, strict=True)]
    for path, slots in results.live if "matrix" in wanted else ():
        ends = [path.stem] * (len({path for path, _ in results.live}) > 1 or bool(runs)) + [slots.partition] * (len(results.live) > 1)
        made.append(Picture("-".join(["matrix", *map(slug, ends)]), partial(gantt.matrix_of_live, slots)))
    if "waits" in wanted:
        made.append(Picture("waits", partial(curves.waits, runs, window)))
    if "compare" in wanted and runs:
        made.append(Picture("compare", partial(curves.compare_runs, runs)))
    for at, sweep in enumerate(results.sweeps):
        end = f"-{slug(sweep.path.absolute().parent.name)}" if len(results.sweeps) > 1 or runs else ""
        end += f"-{at + 1}" if end in {f"-{slug(s.path.absolute().parent.name)}" for s in results.sweeps[:at]} else ""
        if "load" in wanted and (kinds or len(sweep.loads) > 1):
            made.append(Picture(f"load{end}", partial(curves.load, sweep)))
        if "compare" in wanted and (kinds or len(sweep.loads) == 1):
            made.append(Picture(f"compare{end}", partial(curves.compare_sweep, sweep)))
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
    """Draws all pictures, then writes them: nothing is written if one cannot be drawn. The same results give the same bytes.

    Args:
        out: directory, made if its parent exists. forms: png, svg. overwrite: whether to replace existing pictures.
    Raises: StateConflict if a picture exists already; UsageError if `out` cannot be a directory; RmgrError if the disk is full.
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
        with canvas.styled():
            figure = picture.draw()
            contents |= {files[picture.name, form]: canvas.encoded(figure, form) for form in forms}
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror or error}", hint="name another --out") from error
    for path, content in contents.items():
        write_file(path, content)
    return list(contents)


def figures(shown: Sequence[report.Figure | report.Boxes]) -> list[Picture]:
    """Returns a report's figures as pictures named after their titles, for `draw`."""
    return [Picture(slug(each.title), partial(boxes, each) if isinstance(each, report.Boxes) else partial(lines, each)) for each in shown]


def _lanes(rows: Sequence[CallRow]) -> list[Picture]:
    """Returns a picture of the first replication of each policy and case."""
    groups: dict[tuple[str, str], list[CallRow]] = {}
    for row in rows:
        group = groups.setdefault((row.policy, row.case), [])
        if not group or group[0].seed == row.seed:
            group.append(row)
    return [Picture(f"calls-{slug(f'{case} {policy}')}", partial(gantt.calls, group)) for (policy, case), group in groups.items()]


# -- parts ---------------------------------------------------------------------------------------------------------------------


def _of_papers(directory: Path) -> list[Path]:
    """Returns the directories of reports inside a directory that `sim paper all` wrote."""
    return [] if (directory / REPORT).exists() else sorted(path.parent for path in directory.glob(f"*/{REPORT}"))


def _listed(directory: Path) -> set[str]:
    """Returns the names in a directory. Raises: UsageError if it cannot be read."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError as error:
        told = {errno.ENOENT: "does not exist", errno.ENOTDIR: "is no directory"}.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise UsageError(f"{directory} {told}", hint=_WRITTEN) from error


def _fitting(results: Results, window: reading.TimeWindow) -> set[str]:
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


def _names(runs: Sequence[reading.Run]) -> list[str]:
    """Returns the ends of file names: empty for a single run, else the name of the directory, preceded by its parent's if two are equal."""
    if len(runs) <= 1:
        return [""] * len(runs)
    short = [slug(run.name) for run in runs]
    if len(set(short)) == len(runs):
        return [f"-{name}" for name in short]
    return [f"-{slug(f'{run.directory.absolute().parent.name} {run.name}')}" for run in runs]


# -- a paper's report: its figures (lines, box plots), and its tables (a panel for each column of numbers) ---------------------


def lines(shown: report.Figure) -> Figure:
    """Draws lines with the range over the seeds. Raises: UsageError for more lines than can be told apart, or if no line has a point."""
    drawn = [(line.name, line.points) for line in shown.lines if line.points]
    if not 0 < len(drawn) <= canvas.MOST_LINES:
        raise UsageError(f"figure {shown.title!r} has {len(drawn)} lines", hint=f"from 1 to {canvas.MOST_LINES} can be drawn")
    figure = canvas.new_figure(width=8.0, height=5.0)
    axes = figure.add_subplot()
    handles: list[Artist] = []
    with_range = False
    for at, (_, points) in enumerate(drawn):
        style = canvas.line_style(at)
        places = [point.x for point in points]
        handles += axes.plot(places, [point.y for point in points], marker="o", markersize=4, **style)
        if any(point.low < point.high for point in points):
            with_range = True
            axes.fill_between(
                places, [point.low for point in points], [point.high for point in points], color=style["color"], alpha=0.13, linewidth=0
            )
    least, most = (each(value for _, points in drawn for point in points for value in point[1:]) for each in (min, max))
    if shown.logarithmic:
        canvas.logarithmic(axes)
    elif 0 <= least < most / 2:
        axes.set_ylim(bottom=0.0)
    if min(point.x for _, points in drawn for point in points) >= 0:
        axes.set_xlim(left=0 if axes.get_xlim()[0] < 0 else None)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(shown.x_label)
    axes.set_ylabel("\n".join(textwrap.wrap(shown.y_label, 50)))
    canvas.named(axes, shown.title, "line: mean of the seeds, band: least to most" if with_range else "")
    canvas.legend_below(figure, handles, [name for name, _ in drawn])
    return figure


def boxes(shown: report.Boxes) -> Figure:
    """Draws box plots side by side in each group: quartiles and the whole range. The y axis is logarithmic above 1, linear below.

    Raises: UsageError for too many boxes.
    """
    count = len(shown.boxes)
    if not 0 < count <= canvas.MOST_LINES or not shown.groups:
        raise UsageError(
            f"figure {shown.title!r} has {count} boxes in {len(shown.groups)} groups", hint=f"from 1 to {canvas.MOST_LINES} fit"
        )
    figure = canvas.new_figure(width=8.0, height=5.0)
    axes = figure.add_subplot()
    handles: list[Artist] = []
    width = 0.8 / count
    for at, box in enumerate(shown.boxes):
        colour = canvas.line_style(at)["color"]
        places = [group + (at - (count - 1) / 2) * width for group in range(len(box.values))]
        drawn = axes.boxplot(
            [list(values) for values in box.values],
            positions=places,
            widths=0.8 * width,
            whis=(0, 100),
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.5},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            medianprops={"color": colour, "linewidth": 2},
        )
        handles.append(drawn["boxes"][0])
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=-0.2)
    axes.set_xticks(range(len(shown.groups)), shown.groups)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("\n".join(textwrap.wrap(shown.y_label, 50)))
    canvas.named(axes, shown.title, "box: quartiles of the seeds, whiskers: least to most")
    canvas.legend_below(figure, handles, [box.name for box in shown.boxes])
    return figure


def draw_table(table: Mapping[str, Any], *, paper: str = "") -> Figure:
    """Draws a panel for each column of numbers against the first column: lines if the first column holds numbers, bars if names.

    Raises: UsageError for a table that is too large or has no numbers.
    """
    by_number, panels, groups = _parts(table)
    columns = 2 if len(panels) == 4 else min(len(panels), _PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    height = 3.3 if by_number else 1.0 + 0.3 * len(groups)
    figure = canvas.new_figure(width=max(3.6 * columns, 6.0), height=rows * height + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=not by_number)
    handles: list[Artist] = []
    spreads = {name: at for at, name in enumerate(table["columns"]) if name.endswith(_SPREAD)}
    for at, (place, name) in enumerate(panels):
        spread = spreads.get(name + _SPREAD)
        axes = grid[at // columns][at % columns]
        if by_number:
            handles = _line_panel(axes, groups, place, spread)
            axes.set_xlabel(table["columns"][0])
            axes.set_ylabel(name)
        else:
            _bar_panel(axes, groups, place, spread)
            axes.set_xlabel(name)
    for spare in range(len(panels), rows * columns):
        grid[spare // columns][spare % columns].set_axis_off()
    if not by_number:
        for line in grid:
            line[0].set_yticks(range(len(groups)), [canvas.clipped(name, 48) for name in groups])
            line[0].set_ylim(len(groups) - 0.5, -0.5)
    message = "lines across: standard deviation" if any(name + _SPREAD in spreads for _, name in panels) else ""
    canvas.named(grid[0][0], table["title"], f"paper {paper}" if paper else "", message)
    grid[0][0].title.set_in_layout(False)
    if by_number and len(groups) > 1:
        canvas.legend_below(figure, handles, list(groups))
    return figure


def is_drawable(table: Mapping[str, Any]) -> bool:
    """Returns whether the table has rows, columns of numbers beside the first, and no more of both than a picture can hold."""
    try:
        _, panels, groups = _parts(table)
    except UsageError:
        return False
    return bool(panels and groups)


def _parts(table: Mapping[str, Any]) -> tuple[bool, list[tuple[int, str]], dict[str, list[Sequence[Any]]]]:
    """Returns (whether the first column holds numbers, (index, name) of other columns of numbers, name of a line or bar -> its rows)."""
    columns, rows = table["columns"], table["rows"]
    kinds = [_is_numbers([row[at] for row in rows]) for at in range(len(columns))]
    by_number = bool(kinds) and kinds[0]
    panels = [(at, name) for at, name in enumerate(columns) if at and kinds[at] and not _is_spread(name, columns[:at])]
    words = [at for at in range(len(columns)) if not kinds[at]]
    while by_number and panels and len({tuple(row[at] for at in (0, *words)) for row in rows}) < len(rows):
        words.append(panels.pop(0)[0])  # a further parameter (a limit beside a threshold): a line for each of its values
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        said = [f"{columns[at]} {row[at]:g}" if kinds[at] else str(row[at]) for at in words if row[at] not in {None, ""}]
        groups.setdefault(", ".join(said), []).append(row)
    most = canvas.MOST_LINES if by_number else _MOST_ROWS
    if not (0 < len(panels) <= _MOST_PANELS and 0 < len(groups) <= most):
        message = f"{len(panels)} columns of numbers and {len(groups)} rows or lines"
        raise UsageError(f"table {table['title']!r} cannot be drawn: {message}", hint=f"at most {_MOST_PANELS} and {most}")
    return by_number, panels, groups


def _is_numbers(cells: Sequence[Any]) -> bool:
    return any(cell is not None for cell in cells) and all(cell is None or isinstance(cell, int | float) for cell in cells)


def _line_panel(axes: Axes, groups: Mapping[str, list[Sequence[Any]]], place: int, spread: int | None) -> list[Artist]:
    handles: list[Artist] = []
    for at, rows in enumerate(groups.values()):
        points = sorted((row[0], row[place], _spread(row, spread)) for row in rows if row[0] is not None and row[place] is not None)
        style = canvas.line_style(at)
        handles += axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", markersize=3.5, **style)
        for x, y, sd in points:
            if sd:
                axes.plot([x, x], [y - sd, y + sd], color=style["color"], linewidth=0.8, marker="_", markersize=5)
    axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    return handles


def _bar_panel(axes: Axes, groups: Mapping[str, list[Sequence[Any]]], place: int, spread: int | None) -> None:
    shown = [next((row for row in rows if row[place] is not None), rows[0]) for rows in groups.values()]
    values, spreads = [row[place] for row in shown], [_spread(row, spread) for row in shown]
    drawn = [value or 0.0 for value in values]
    axes.barh(range(len(drawn)), drawn, height=0.66, color=canvas.PALETTE[0], alpha=0.75)
    for at, value in enumerate(values):
        text = "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        top = max(drawn[at] + spreads[at], 0.0)
        axes.annotate(text, (top, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        if spreads[at]:
            axes.plot(
                [drawn[at] - spreads[at], drawn[at] + spreads[at]], [at, at], color=canvas.INK, linewidth=1.0, marker="|", markersize=5
            )
    low, high = min(0.0, *drawn), max(0.0, *(value + sd for value, sd in zip(drawn, spreads, strict=True)))
    axes.set_xlim(low * 1.05, (high or 1.0) * 1.25)
    axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _is_spread(name: str, before: Sequence[str]) -> bool:
    return name.endswith(_SPREAD) and name.removesuffix(_SPREAD) in before


def _spread(row: Sequence[Any], spread: int | None) -> float:
    return float(row[spread] or 0.0) if spread is not None else 0.0
