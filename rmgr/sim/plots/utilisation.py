"""Utilisation and queue length over time: two curves, one above the other, on one axis of time; as steps, or as means of bins when many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmgr.sim.plots.canvas import (
    DAY,
    HOUR,
    INK,
    MINUTE,
    PALETTE,
    Axes,
    Figure,
    Line2D,
    MaxNLocator,
    Patch,
    PercentFormatter,
    TimeAxis,
    label_of,
    legend_below,
    named,
    new_figure,
    set_time_axis,
)
from rmgr.sim.plots.reading import Floats, Run, TimeWindow

#: A step curve with more changes than this in view is drawn in bins.
MOST_STEPS = 3000
_MOST_BINS = 400
#: Lengths of bins that read well, in seconds.
_LENGTHS = (
    *(m * MINUTE for m in (1, 2, 5, 10, 15, 30)),
    *(h * HOUR for h in (1, 2, 3, 6, 12)),
    *(d * DAY for d in (1, 2, 7, 14, 28, 91, 365, 3650)),
)


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


class Steps(NamedTuple):
    """A step function: value[i] holds from time[i] until time[i + 1]; 0 before the first. Times ascend."""

    time: Floats
    value: Floats


class Bins(NamedTuple):
    """The same in equal bins: edges (one more than bins), mean over time, least and largest value in each."""

    edges: Floats
    mean: Floats
    low: Floats
    high: Floats


def steps_of(times: Floats, changes: Floats) -> Steps:
    """The sum of all changes until a time; those at one time count together."""
    order = np.argsort(times, kind="stable")
    at, first = np.unique(times[order], return_index=True)
    return Steps(at, np.add.reduceat(changes[order], first).cumsum() if len(at) else np.zeros(0))


def busy(run: Run) -> Steps:
    """Processors that run jobs."""
    spells, size = run.spells, run.size[run.spells.job]
    return steps_of(np.concatenate([spells.start, spells.end]), np.concatenate([size, -size]))


def waiting(run: Run) -> Steps:
    """Jobs that are submitted and do not run: before their first start, and between two stretches of running."""
    spells, count = run.spells, len(run.submit)
    last = np.zeros(len(spells.job), dtype=bool)
    if len(last):
        last[:-1] = spells.job[1:] != spells.job[:-1]
        last[-1] = True
    back = spells.end[~last]
    never = np.ones(count, dtype=bool)
    never[spells.job] = False
    left = never & np.isfinite(run.finish)  # withdrawn before they ran; a job that was refused did not wait
    submitted = run.submit[~never | left]
    return steps_of(
        np.concatenate([submitted, back, spells.start, run.finish[left]]),
        np.concatenate([np.ones(len(submitted) + len(back)), -np.ones(len(spells.start) + int(left.sum()))]),
    )


def cut(steps: Steps, start: float, end: float) -> Steps:
    """The part in [start, end], with the value that holds at `start` as its first step and the last value again at `end`."""
    inside = (steps.time > start) & (steps.time < end)
    before = int(np.searchsorted(steps.time, start, side="right"))
    first = steps.value[before - 1] if before else 0.0
    values = np.concatenate([[first], steps.value[inside]])
    return Steps(np.concatenate([[start], steps.time[inside], [end]]), np.append(values, values[-1]))


def bin_length(span: float) -> float:
    """The shortest length that reads well and makes at most 400 bins."""
    return next((length for length in _LENGTHS if span / length <= _MOST_BINS), span / _MOST_BINS)


def binned(steps: Steps, start: float, end: float, length: float) -> Bins:
    """Means are exact: the area under the curve in each bin by the bin's length; the last bin may be shorter."""
    edges = np.append(np.arange(start, end, length), end)
    if len(edges) > 2 and edges[-1] - edges[-2] < 1e-9 * length:
        edges = np.delete(edges, -2)
    part = cut(steps, start, end)
    area = np.concatenate([[0.0], (part.value[:-1] * np.diff(part.time)).cumsum()])
    mean = np.diff(np.interp(edges, part.time, area)) / np.diff(edges)
    # The value at each edge becomes a step of its own, so that a bin without any change has one, too.
    time = np.concatenate([part.time[:-1], edges[:-1]])
    value = np.concatenate([part.value[:-1], part.value[np.searchsorted(part.time, edges[:-1], side="right") - 1]])
    order = np.argsort(time, kind="stable")
    first = np.searchsorted(time[order], edges[:-1], side="left")
    return Bins(edges, mean, np.minimum.reduceat(value[order], first), np.maximum.reduceat(value[order], first))
