"""Utilisation and queue length over time: two curves, one above the other, on one axis of time."""

from __future__ import annotations

from rmgr.sim.plots.parts.canvas import (
    INK,
    PALETTE,
    Axes,
    Figure,
    Line2D,
    MaxNLocator,
    Patch,
    PercentFormatter,
    legend_below,
    named,
    new_figure,
)
from rmgr.sim.plots.parts.curves import MOST_STEPS, Steps, bin_length, binned, busy, cut, waiting
from rmgr.sim.plots.parts.reading import Run
from rmgr.sim.plots.parts.timing import TimeAxis, label_of, set_time_axis
from rmgr.sim.plots.parts.window import TimeWindow


def utilisation(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """The picture: the share of the machine that runs jobs, and below it how many jobs wait.

    Up to 3,000 changes are drawn as they are; more of them as means of bins of a round length, with the range in each bin behind.
    Raises: UsageError for a window after the end.
    """
    start, end = window.of(run)
    used, queue = busy(run), waiting(run)
    used = Steps(used.time, used.value / run.processors)
    many = max(len(cut(curve, start, end).time) for curve in (used, queue)) > MOST_STEPS
    length = bin_length(end - start) if many else 0.0
    figure = new_figure(height=5.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1])
    axis = set_time_axis(below, start, end)
    for axes, curve, colour in ((above, used, PALETTE[0]), (below, queue, PALETTE[1])):
        _draw(axes, curve, (start, end), axis, length, colour)
    above.set_ylim(0, 1.02)
    above.set_ylabel("processors in use")
    above.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.set_ylim(bottom=0)
    if below.get_ylim()[1] < 1:
        below.set_ylim(0, 1)
    below.set_ylabel("jobs waiting")
    below.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    below.yaxis.set_major_formatter("{x:,.0f}")
    share = cut(used, start, end)
    mean = float((share.value[:-1] * (share.time[1:] - share.time[:-1])).sum() / (end - start))
    above.axhline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    named(above, f"Utilisation and queue, {run.title}", *run.facts, window.told(run), f"mean utilisation {mean:.1%} (dashed)")
    if many:
        told = [f"mean of {label_of(length)}", f"least to most within {label_of(length)}"]
        legend_below(figure, [Line2D([], [], color="#444444", linewidth=1.2), Patch(color="#444444", alpha=0.22, linewidth=0)], told)
    return figure


def _draw(axes: Axes, curve: Steps, span: tuple[float, float], axis: TimeAxis, length: float, colour: str) -> None:
    """length: of bins in seconds, 0 = every change."""
    if not length:
        part = cut(curve, *span)
        axes.step(axis.at(part.time), part.value, where="post", color=colour, linewidth=1.2)
        axes.fill_between(axis.at(part.time), part.value, step="post", color=colour, alpha=0.12, linewidth=0)
        return
    bins = binned(curve, *span, length)
    edges = axis.at(bins.edges)
    axes.stairs(bins.high, edges, baseline=bins.low, fill=True, color=colour, alpha=0.22, linewidth=0)
    axes.stairs(bins.mean, edges, baseline=None, color=colour, linewidth=1.2)
