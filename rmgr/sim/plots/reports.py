"""A paper's report as pictures: its figures (lines, box plots), and its tables: a panel for each column of numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rmgr.errors import UsageError
from rmgr.sim.papers import report
from rmgr.sim.plots.canvas import (
    INK,
    MOST_LINES,
    PALETTE,
    Artist,
    Axes,
    Figure,
    MaxNLocator,
    clipped,
    legend_below,
    line_style,
    logarithmic,
    named,
    new_figure,
)

_MOST_PANELS, _MOST_ROWS, _PANELS_A_ROW = 12, 40, 3
#: A column "N sd" is the spread of column N, and no panel of its own.
_SPREAD = " sd"


def lines(shown: report.Figure) -> Figure:
    """Lines with the range over the seeds at each point. Raises: UsageError for more lines than can be told apart, or none with a point."""
    drawn = [(name, points) for name, points in shown.lines if points]
    if not 0 < len(drawn) <= MOST_LINES:
        raise UsageError(f"figure {shown.title!r} has {len(drawn)} lines", hint=f"from 1 to {MOST_LINES} can be drawn")
    figure = new_figure(width=8.0, height=5.0)
    axes = figure.add_subplot()
    handles: list[Artist] = []
    with_range = False
    for at, (_, points) in enumerate(drawn):
        style = line_style(at)
        places = [point.x for point in points]
        handles += axes.plot(places, [point.y for point in points], marker="o", markersize=4, **style)
        if any(point.low < point.high for point in points):
            with_range = True
            axes.fill_between(
                places, [point.low for point in points], [point.high for point in points], color=style["color"], alpha=0.13, linewidth=0
            )
    least, most = (each(value for _, points in drawn for point in points for value in point[1:]) for each in (min, max))
    if shown.logarithmic:
        logarithmic(axes)
    elif 0 <= least < most / 2:
        axes.set_ylim(bottom=0.0)
    if min(point.x for _, points in drawn for point in points) >= 0:
        axes.set_xlim(left=0 if axes.get_xlim()[0] < 0 else None)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(shown.x_label)
    axes.set_ylabel("\n".join(textwrap.wrap(shown.y_label, 50)))
    named(axes, shown.title, "line: mean of the seeds, band: least to most" if with_range else "")
    legend_below(figure, handles, [name for name, _ in drawn])
    return figure


def boxes(shown: report.Boxes) -> Figure:
    """Box plots, side by side in each group: quartiles and the whole range; the y axis is logarithmic above 1 and has a 0.

    Raises: UsageError for too many.
    """
    count = len(shown.boxes)
    if not 0 < count <= MOST_LINES or not shown.groups:
        raise UsageError(f"figure {shown.title!r} has {count} boxes in {len(shown.groups)} groups", hint=f"from 1 to {MOST_LINES} fit")
    figure = new_figure(width=8.0, height=5.0)
    axes = figure.add_subplot()
    handles: list[Artist] = []
    width = 0.8 / count
    for at, (_, groups) in enumerate(shown.boxes):
        colour = line_style(at)["color"]
        places = [group + (at - (count - 1) / 2) * width for group in range(len(groups))]
        drawn = axes.boxplot(
            [list(values) for values in groups],
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
    named(axes, shown.title, "box: quartiles of the seeds, whiskers: least to most")
    legend_below(figure, handles, [name for name, _ in shown.boxes])
    return figure


def draw_table(table: Mapping[str, Any], *, paper: str = "") -> Figure:
    """A panel for each column of numbers, against the first column; names are bars, numbers are lines.

    Raises: UsageError for a table that is too large, or has no numbers.
    """
    by_number, panels, groups = _parts(table)
    columns = 2 if len(panels) == 4 else min(len(panels), _PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    height = 3.3 if by_number else 1.0 + 0.3 * len(groups)
    figure = new_figure(width=max(3.6 * columns, 6.0), height=rows * height + 0.9)
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
            line[0].set_yticks(range(len(groups)), [clipped(name, 48) for name in groups])
            line[0].set_ylim(len(groups) - 0.5, -0.5)
    told = "lines across: standard deviation" if any(name + _SPREAD in spreads for _, name in panels) else ""
    named(grid[0][0], table["title"], f"paper {paper}" if paper else "", told)
    grid[0][0].title.set_in_layout(False)
    if by_number and len(groups) > 1:
        legend_below(figure, handles, list(groups))
    return figure


def is_drawable(table: Mapping[str, Any]) -> bool:
    """It has a first column to draw against, columns of numbers beside it, and no more rows and columns than a picture can hold."""
    try:
        _, panels, groups = _parts(table)
    except UsageError:
        return False
    return bool(panels and groups)


def _parts(table: Mapping[str, Any]) -> tuple[bool, list[tuple[int, str]], dict[str, list[Sequence[Any]]]]:
    """(the first column is numbers, (place, name) of each column of numbers beside it, name of a line or bar -> its rows)."""
    columns, rows = table["columns"], table["rows"]
    kinds = [_is_numbers([row[at] for row in rows]) for at in range(len(columns))]
    by_number = bool(kinds) and kinds[0]
    panels = [(at, name) for at, name in enumerate(columns) if at and kinds[at] and not _is_spread(name, columns[:at])]
    words = [at for at in range(len(columns)) if not kinds[at]]
    while by_number and panels and len({tuple(row[at] for at in (0, *words)) for row in rows}) < len(rows):
        words.append(panels.pop(0)[0])  # a further parameter, as a threshold and a limit: a line for each of its values
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        said = [f"{columns[at]} {row[at]:g}" if kinds[at] else str(row[at]) for at in words if row[at] not in {None, ""}]
        groups.setdefault(", ".join(said), []).append(row)
    most = MOST_LINES if by_number else _MOST_ROWS
    if not (0 < len(panels) <= _MOST_PANELS and 0 < len(groups) <= most):
        told = f"{len(panels)} columns of numbers and {len(groups)} rows or lines"
        raise UsageError(f"table {table['title']!r} cannot be drawn: {told}", hint=f"at most {_MOST_PANELS} and {most}")
    return by_number, panels, groups


def _is_numbers(cells: Sequence[Any]) -> bool:
    return any(cell is not None for cell in cells) and all(cell is None or isinstance(cell, int | float) for cell in cells)


def _line_panel(axes: Axes, groups: Mapping[str, list[Sequence[Any]]], place: int, spread: int | None) -> list[Artist]:
    handles: list[Artist] = []
    for at, rows in enumerate(groups.values()):
        points = sorted((row[0], row[place], _spread(row, spread)) for row in rows if row[0] is not None and row[place] is not None)
        style = line_style(at)
        handles += axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", markersize=3.5, **style)
        for x, y, sd in points:
            if sd:
                axes.plot([x, x], [y - sd, y + sd], color=style["color"], linewidth=0.8, marker="_", markersize=5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    return handles


def _bar_panel(axes: Axes, groups: Mapping[str, list[Sequence[Any]]], place: int, spread: int | None) -> None:
    shown = [next((row for row in rows if row[place] is not None), rows[0]) for rows in groups.values()]
    values, spreads = [row[place] for row in shown], [_spread(row, spread) for row in shown]
    drawn = [value or 0.0 for value in values]
    axes.barh(range(len(drawn)), drawn, height=0.66, color=PALETTE[0], alpha=0.75)
    for at, value in enumerate(values):
        text = "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        top = max(drawn[at] + spreads[at], 0.0)
        axes.annotate(text, (top, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        if spreads[at]:
            axes.plot([drawn[at] - spreads[at], drawn[at] + spreads[at]], [at, at], color=INK, linewidth=1.0, marker="|", markersize=5)
    low, high = min(0.0, *drawn), max(0.0, *(value + sd for value, sd in zip(drawn, spreads, strict=True)))
    axes.set_xlim(low * 1.05, (high or 1.0) * 1.25)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _is_spread(name: str, before: Sequence[str]) -> bool:
    return name.endswith(_SPREAD) and name.removesuffix(_SPREAD) in before


def _spread(row: Sequence[Any], spread: int | None) -> float:
    return float(row[spread] or 0.0) if spread is not None else 0.0
