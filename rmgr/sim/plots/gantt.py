"""Gantt chart: processors against time. A few thousand stretches are drawn one by one; more of them become an image of what is in use."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmgr.sim.plots.canvas import (
    EDGES,
    FILLS,
    INK,
    Axes,
    Figure,
    MaxNLocator,
    Normalize,
    Patch,
    PolyCollection,
    TimeAxis,
    label_of,
    legend_below,
    named,
    new_figure,
    set_time_axis,
)
from rmgr.sim.plots.reading import Floats, Integers, Run, TimeWindow, counted

#: More rectangles than this are an image: they would be thinner than a dot.
MOST_RECTANGLES = 4000
#: The image: at most so many bins of time and rows of processors, two dots wide on paper.
_BINS, _ROWS = 600, 300
#: Numbers are written into the rectangles of up to so many jobs, arrows between the spells of up to so many.
_MOST_NUMBERS, _MOST_ARROWS = 1000, 300
_AXES_INCHES = (7.9, 4.0)
#: (place of the spell, first core, last core), one a rectangle.
_Ranges: TypeAlias = tuple[Integers, Integers, Integers]


def gantt(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """The picture. Colours tell neighbours apart (job number modulo eight); hatched: a job that ran in several stretches.

    Raises: UsageError for damaged ranges of processors, or a window after the end.
    Cost: O(ranges), and at most 300 x 600 numbers.
    """
    start, end = window.of(run)
    chosen = window.spells(run)
    owners, first, last = run.spells.rectangles(chosen)
    figure = new_figure()
    axes = figure.add_subplot()
    axis = set_time_axis(axes, start, end)
    axes.set_ylim(0, run.processors)
    axes.set_ylabel("processor")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 2.5, 4, 5, 10]))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=False)
    jobs = len(np.unique(run.spells.job[chosen]))
    shown = "" if window.is_whole else f"{window.told(run)}: {counted(jobs, 'job')}"
    if len(owners) <= MOST_RECTANGLES:
        named(axes, f"Schedule of {run.title}", *run.facts, shown)
        _rectangles(figure, axes, run, axis, (owners, first, last))
    else:
        width = _image(figure, axes, run, axis, (start, end), (owners, first, last))
        several = len(np.intersect1d(_in_several(run), run.spells.job[chosen]))
        stretches = f"{several:,} of them in several stretches" if several else ""
        named(axes, f"Processors in use, {run.title}", *run.facts, shown, stretches, f"a dot is {width}")
    return figure


def _rectangles(figure: Figure, axes: Axes, run: Run, axis: TimeAxis, ranges: _Ranges) -> None:
    owners, first, last = ranges
    left, right = axis.at(run.spells.start[owners]), axis.at(run.spells.end[owners])
    corners = np.stack(
        [np.stack([left, first], 1), np.stack([left, last + 1], 1), np.stack([right, last + 1], 1), np.stack([right, first], 1)], 1
    )
    places = run.spells.job[owners]
    several = np.isin(places, _in_several(run))
    fills, edges = (np.array(colours)[run.numbers[places] % len(colours)] for colours in (FILLS, EDGES))
    line = 0.4 if len(owners) <= 1000 else 0.25
    for chosen, hatch in ((~several, None), (several, "////")):
        if chosen.any():
            axes.add_collection(
                PolyCollection(list(corners[chosen]), facecolors=fills[chosen], edgecolors=edges[chosen], linewidths=line, hatch=hatch),
                autolim=False,
            )
    _numbers(axes, run, places, corners, np.where(several, fills, "none"))
    if several.any():
        _arrows(axes, run, axis)
        legend_below(
            figure, [Patch(facecolor="white", edgecolor=INK, hatch="////")], ["job that ran in several stretches, joined by a line"]
        )


def _in_several(run: Run) -> Integers:
    """Places of jobs with more than one spell."""
    places, counts = np.unique(run.spells.job, return_counts=True)
    return places[counts > 1]


def _numbers(axes: Axes, run: Run, places: Integers, corners: Floats, behind: NDArray[np.str_]) -> None:
    """Each job's number in those of its rectangles in which there is room for it; behind: colour under it, where hatches would cross it."""
    if len(np.unique(places)) > _MOST_NUMBERS:
        return
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    left, right = np.maximum(corners[:, 0, 0], x0), np.minimum(corners[:, 2, 0], x1)
    low, high = corners[:, 0, 1], corners[:, 1, 1]
    wide = (right - left) / (x1 - x0) * _AXES_INCHES[0] * 72
    tall = (high - low) / (y1 - y0) * _AXES_INCHES[1] * 72
    for at in range(len(places)):
        text = str(run.numbers[places[at]])
        size = min(7.5, tall[at] * 0.8, wide[at] / (0.68 * len(text)))
        if size >= 4.5:
            box = {"facecolor": behind[at], "edgecolor": "none", "pad": 0.6} if behind[at] != "none" else None
            x, y = (left[at] + right[at]) / 2, (low[at] + high[at]) / 2
            axes.text(x, y, text, fontsize=size, ha="center", va="center", clip_on=True, bbox=box)


def _arrows(axes: Axes, run: Run, axis: TimeAxis) -> None:
    """From the end of each spell to the beginning of the job's next one."""
    spells = run.spells
    before = np.flatnonzero(spells.job[1:] == spells.job[:-1])
    if not 0 < len(before) <= _MOST_ARROWS:
        return
    for at in before.tolist():
        (x0, y0), (x1, y1) = ((spells.end[at], _middle(run, at)), (spells.start[at + 1], _middle(run, at + 1)))
        axes.plot([axis.at(x0), axis.at(x1)], [y0, y1], color=INK, linewidth=0.7, linestyle=(0, (2, 1)), clip_on=True)


def _middle(run: Run, spell: int) -> float:
    _, first, last = run.spells.rectangles(np.array([spell]))
    return float((first[0] + last[0] + 1) / 2) if len(first) else 0.0


def _image(figure: Figure, axes: Axes, run: Run, axis: TimeAxis, span: tuple[float, float], ranges: _Ranges) -> str:
    """Share of time and processors in use, dot by dot. Returns what a dot is, in words."""
    owners, first, last = ranges
    start, end = span
    rows = min(run.processors, _ROWS)
    used = occupancy(
        (run.spells.start[owners] - start) / (end - start) * _BINS,
        (run.spells.end[owners] - start) / (end - start) * _BINS,
        np.multiply(first, rows / run.processors, dtype=np.float64),
        np.multiply(last + 1, rows / run.processors, dtype=np.float64),
        bins=_BINS,
        rows=rows,
    )
    extent = (axis.at(start), axis.at(end), 0, run.processors)
    image = axes.imshow(
        used, aspect="auto", origin="lower", extent=extent, interpolation="nearest", cmap="Blues", norm=Normalize(0, 1), rasterized=True
    )
    bar = figure.colorbar(image, ax=axes, label="share of the dot in use", pad=0.015, aspect=35)
    bar.outline.set_visible(False)
    each = "1 processor" if rows == run.processors else f"{run.processors / rows:.3g} processors"
    return f"{each} x {label_of((end - start) / _BINS)}"


def occupancy(left: Floats, right: Floats, low: Floats, high: Floats, *, bins: int, rows: int) -> Floats:
    """Share of each cell (row, bin) that the rectangles cover, 1 where they cover it whole.

    Args:
        left, right: edges in bins; low, high: in rows; parts outside of the grid are cut off. The rectangles do not overlap.
    Cost: O(rectangles) + O(bins x rows).
    """
    grid = np.zeros((rows + 2, bins + 2))
    left, right = np.clip(left, 0, bins), np.clip(right, 0, bins)
    low, high = np.clip(low, 0, rows), np.clip(high, 0, rows)
    for x, y, sign in ((left, low, 1), (right, low, -1), (left, high, -1), (right, high, 1)):
        bin_at, row_at = x.astype(np.int64), y.astype(np.int64)
        in_bin, in_row = x - bin_at, y - row_at
        # A step at x adds 1 - f to its own cell and f to the next one, before the sum along the axis.
        for row, bin_, part in (
            (row_at, bin_at, (1 - in_row) * (1 - in_bin)),
            (row_at, bin_at + 1, (1 - in_row) * in_bin),
            (row_at + 1, bin_at, in_row * (1 - in_bin)),
            (row_at + 1, bin_at + 1, in_row * in_bin),
        ):
            np.add.at(grid, (row, bin_), sign * part)
    covered: Floats = np.clip(grid.cumsum(0).cumsum(1)[:rows, :bins], 0, 1)
    return covered
