"""Curves and bars: policies compared (measures, wait and slowdown against load, distributions), utilisation over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots import canvas
from rmgr.sim.plots.canvas import Artist, Axes, Figure, TimeAxis
from rmgr.sim.plots.reading import MEASURES, SCHEDULE, Floats, Run, SweepResults, TimeWindow, labels_of, shared_facts

#: More bars than this cannot be read.
MOST_BARS = 40
_LONGEST = 48
#: Values that differ by more than this factor are drawn on a logarithmic axis.
_RATIO = 30
_MOST_TICKS = 11
#: A curve shows nothing more with more points than this.
_MOST_POINTS = 2000
#: A step curve with more changes than this in view is drawn in bins.
MOST_STEPS = 3000
_MOST_BINS = 400
#: Lengths of bins that read well, in seconds.
_LENGTHS = (
    *(m * canvas.MINUTE for m in (1, 2, 5, 10, 15, 30)),
    *(h * canvas.HOUR for h in (1, 2, 3, 6, 12)),
    *(d * canvas.DAY for d in (1, 2, 7, 14, 28, 91, 365, 3650)),
)


def compare_runs(runs: Sequence[Run]) -> Figure:
    """Draws a bar for each run. Raises: UsageError for more than 40 runs, or missing measures."""
    bars = [
        _Bar(label, {name: [_measure(run.summary, name, f"{run.directory / SCHEDULE}")] for name in MEASURES})
        for label, run in zip(labels_of(runs), runs, strict=True)
    ]
    title, facts = shared_facts(runs)
    return _bars_figure(bars, title, facts)


def compare_sweep(sweep: SweepResults) -> Figure:
    """Draws a bar for each policy and load of a sweep. Raises: UsageError for more than 40 bars, or missing measures."""
    bars = []
    for (policy, load), rows in sweep.groups().items():
        label = policy if load is None or len(sweep.loads) == 1 else f"{policy}, load {load:g}"
        bars.append(_Bar(label, {name: [row[name] for row in rows] for name in MEASURES}))
    loads = sweep.loads
    only = f"load {loads[0]:g}" if len(loads) == 1 and loads[0] is not None else ""
    return _bars_figure(bars, sweep.title, [only, *sweep.facts])


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar: name of a measure -> its values, one per seed."""

    label: str
    values: Mapping[str, Sequence[float]]


def _measure(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float):
        raise UsageError(f"{where} has no number for {name}", hint="a directory that rmgr sim run --out wrote is meant")
    return float(value)


def _bars_figure(bars: Sequence[_Bar], title: str, facts: Sequence[str]) -> Figure:
    if len(bars) > MOST_BARS:
        raise UsageError(f"{len(bars)} bars are too many for one picture", hint=f"at most {MOST_BARS}; for a sweep over loads: --kind load")
    figure = canvas.new_figure(
        width=9.0 + 0.07 * max(len(canvas.clipped(bar.label, _LONGEST)) for bar in bars), height=1.7 + 0.36 * len(bars)
    )
    panels = figure.subplots(1, 3, sharey=True)
    unit = canvas.unit_for(max(max(bar.values["mean_waiting_time"]) for bar in bars))
    _bar_panel(panels[0], bars, "mean_waiting_time", f"mean wait ({unit.sign})", 1 / unit.seconds)
    _bar_panel(panels[1], bars, "mean_bounded_slowdown", "mean bounded slowdown (tau 10 s)", 1.0)
    _bar_panel(panels[2], bars, "utilisation", "utilisation of the machine", 1.0)
    panels[0].set_yticks(range(len(bars)), [canvas.clipped(bar.label, _LONGEST) for bar in bars])
    panels[0].set_ylim(len(bars) - 0.5, -0.5)
    spread = "bars: mean over the seeds, lines: least to most" if any(len(v) > 1 for bar in bars for v in bar.values.values()) else ""
    canvas.named(panels[0], f"Comparison, {title}", *facts, spread)
    panels[0].title.set_in_layout(False)
    return figure


def _bar_panel(axes: Axes, bars: Sequence[_Bar], measure: str, label: str, factor: float) -> None:
    values = [[value * factor for value in bar.values[measure]] for bar in bars]
    means, tops = [fmean(each) for each in values], [max(each) for each in values]
    axes.barh(range(len(bars)), means, height=0.66, color=canvas.PALETTE[0] if measure != "utilisation" else canvas.PALETTE[2], alpha=0.75)
    for at, each in enumerate(values):
        if len(each) > 1:
            axes.plot([min(each), max(each)], [at, at], color=canvas.INK, linewidth=1.2, marker="|", markersize=6, markeredgewidth=1.2)
        text = _shown(fmean(bars[at].values[measure]), measure)
        axes.annotate(text, (max(means[at], tops[at]), at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, (max(tops) or 1.0) * 1.22)
    if measure == "utilisation":
        axes.xaxis.set_major_formatter(canvas.PercentFormatter(1.0, decimals=0))
    else:
        axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=4))
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _shown(value: float, measure: str) -> str:
    if measure == "mean_waiting_time":
        return canvas.label_of(value)
    if measure == "utilisation":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def load(sweep: SweepResults) -> Figure:
    """Draws wait and bounded slowdown against load, a line for each policy.

    Raises: UsageError for a sweep over fewer than two loads, or for more policies than lines that can be told apart.
    """
    loads = [each for each in sweep.loads if each is not None]
    if len(loads) < 2:
        raise UsageError(
            f"{sweep.path} has {len(loads)} load{'s' if not loads else ''}, and a curve needs two",
            hint="rmgr sim sweep --load .7,.8,.9 ...; or --kind compare",
        )
    policies = list(dict.fromkeys(row["policy"] for row in sweep.rows))
    if len(policies) > canvas.MOST_LINES:
        raise UsageError(f"{len(policies)} policies are too many for one picture", hint=f"at most {canvas.MOST_LINES}")
    figure = canvas.new_figure(width=10.0, height=4.8)
    panels = figure.subplots(1, 2)
    waits = [row["mean_waiting_time"] for row in sweep.rows]
    unit = canvas.unit_for(max(waits))
    _line_panel(panels[0], sweep, policies, loads, "mean_waiting_time", 1 / unit.seconds)
    handles = _line_panel(panels[1], sweep, policies, loads, "mean_bounded_slowdown", 1.0)
    panels[0].set_ylabel(f"mean wait ({unit.sign})")
    panels[1].set_ylabel("mean bounded slowdown (tau 10 s)")
    several = len({row["seed"] for row in sweep.rows}) > 1
    canvas.named(
        panels[0], f"Load and wait, {sweep.title}", *sweep.facts, "line: median of the seeds, band: least to most" if several else ""
    )
    panels[0].title.set_in_layout(False)
    canvas.legend_below(figure, handles, policies)
    return figure


def _line_panel(axes: Axes, sweep: SweepResults, policies: list[str], loads: list[float], measure: str, factor: float) -> list[Artist]:
    groups = sweep.groups()
    handles: list[Artist] = []
    seen: list[float] = []
    for at, policy in enumerate(policies):
        at_loads = [each for each in loads if (policy, each) in groups]
        values = [[row[measure] * factor for row in groups[policy, each]] for each in at_loads]
        style = canvas.line_style(at)
        handles += axes.plot(at_loads, [median(each) for each in values], marker="o", markersize=4, **style)
        low, high = [min(each) for each in values], [max(each) for each in values]
        axes.fill_between(at_loads, low, high, color=style["color"], alpha=0.13, linewidth=0)
        for edge in (low, high):
            axes.plot(at_loads, edge, linewidth=0.5, **style)
        seen += [value for each in values for value in each]
    positive = [value for value in seen if value > 0]
    if positive and len(positive) == len(seen) and max(positive) > _RATIO * min(positive):
        canvas.logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if len(loads) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(canvas.FixedLocator(loads))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("offered load (share of the machine)")
    return handles


def waits(runs: Sequence[Run], window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """Draws for each run the share of jobs that wait no longer than x; the x axis is logarithmic.

    At the left edge each curve begins with the share of jobs that do not wait at all. Only jobs that ran and were submitted in the window
    count.
    Raises: UsageError for more runs than lines that can be told apart, or for a run of which no job ran.
    """
    if len(runs) > canvas.MOST_LINES:
        raise UsageError(
            f"{len(runs)} runs are too many for one picture of waits", hint=f"at most {canvas.MOST_LINES}; name fewer directories"
        )
    found = [_waits(run, window) for run in runs]
    positive = [waits[waits > 0] for waits in found if (waits > 0).any()]
    low = 10.0 ** np.floor(np.log10(min((waits.min() for waits in positive), default=1.0)))
    high = max((float(waits.max()) for waits in positive), default=10.0) * 1.3
    figure = canvas.new_figure(height=5.2)
    axes = figure.add_subplot()
    handles = []
    for at, times in enumerate(found):
        values, shares = distribution(times)
        x, y = np.concatenate([[low], values[1:], [high * 2]]), np.append(shares, 1.0)
        handles += axes.step(x, y, where="post", **canvas.line_style(at))
    canvas.set_logarithmic_times(axes, low, high)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(canvas.PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("wait (logarithmic; at the left edge: no wait)")
    axes.set_ylabel("jobs that wait no longer")
    title, facts = shared_facts(runs)
    message = "" if window.is_whole else f"submitted {window.told(runs[0])}"
    canvas.named(axes, f"Wait times, {title}", *facts, message)
    legend = [
        f"{label}: mean {canvas.label_of(times.mean())}, {np.count_nonzero(times == 0) / len(times):.0%} do not wait"
        for label, times in zip(labels_of(runs), found, strict=True)
    ]
    canvas.legend_below(figure, handles, legend)
    return figure


def distribution(times: Floats) -> tuple[Floats, Floats]:
    """Returns (waits, shares of jobs that wait no longer) for no wait and each wait that occurs, at most 2,000 of them."""
    values, counts = np.unique(times, return_counts=True)
    shares = counts.cumsum() / len(times)
    if values[0] > 0:
        values, shares = np.concatenate([[0.0], values]), np.concatenate([[0.0], shares])
    if len(values) > _MOST_POINTS:
        kept = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(np.int64))
        values, shares = values[kept], shares[kept]
    return values, shares


def _waits(run: Run, window: TimeWindow) -> Floats:
    start, end = (0.0, np.inf) if window.is_whole else window.of(run)
    found = run.wait[np.isfinite(run.start) & np.isfinite(run.wait) & (run.submit >= start) & (run.submit < end)]
    if not len(found):
        raise UsageError(f"{run.directory}: no job that was submitted {window.told(run) or 'at all'} ran, so there are no waits to draw")
    return found


# -- over time: utilisation and queue length on one axis, as steps, or as means of bins when there are many steps --------------


def utilisation(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """Draws the share of the machine that runs jobs, and below it the number of waiting jobs.

    Up to 3,000 changes are drawn as steps; more become means over bins of a round length, with the range of each bin behind them.
    Raises: UsageError for a window after the end of the run.
    """
    start, end = window.of(run)
    used, queue = busy(run), waiting(run)
    used = Steps(used.time, used.value / run.processors)
    many = max(len(cut(curve, start, end).time) for curve in (used, queue)) > MOST_STEPS
    length = bin_length(end - start) if many else 0.0
    figure = canvas.new_figure(height=5.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1])
    axis = canvas.set_time_axis(below, start, end)
    for axes, curve, colour in ((above, used, canvas.PALETTE[0]), (below, queue, canvas.PALETTE[1])):
        _draw(axes, curve, (start, end), axis, length, colour)
    above.set_ylim(0, 1.02)
    above.set_ylabel("processors in use")
    above.yaxis.set_major_formatter(canvas.PercentFormatter(1.0, decimals=0))
    below.set_ylim(bottom=0)
    if below.get_ylim()[1] < 1:
        below.set_ylim(0, 1)
    below.set_ylabel("jobs waiting")
    below.yaxis.set_major_locator(canvas.MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    below.yaxis.set_major_formatter("{x:,.0f}")
    share = cut(used, start, end)
    mean = float((share.value[:-1] * (share.time[1:] - share.time[:-1])).sum() / (end - start))
    above.axhline(mean, color=canvas.INK, linewidth=0.9, linestyle=(0, (4, 2)))
    canvas.named(above, f"Utilisation and queue, {run.title}", *run.facts, window.told(run), f"mean utilisation {mean:.1%} (dashed)")
    if many:
        told = [f"mean of {canvas.label_of(length)}", f"least to most within {canvas.label_of(length)}"]
        canvas.legend_below(
            figure, [canvas.Line2D([], [], color="#444444", linewidth=1.2), canvas.Patch(color="#444444", alpha=0.22, linewidth=0)], told
        )
    return figure


def _draw(axes: Axes, curve: Steps, span: tuple[float, float], axis: TimeAxis, length: float, colour: str) -> None:
    """Draws one curve. length: of a bin in seconds; 0 draws every change."""
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
    """A step function in equal bins: edges (one more than bins); mean over time, least and largest value of each bin."""

    edges: Floats
    mean: Floats
    low: Floats
    high: Floats


def steps_of(times: Floats, changes: Floats) -> Steps:
    """Returns the sum of all changes up to each time; changes at the same time become one step."""
    order = np.argsort(times, kind="stable")
    at, first = np.unique(times[order], return_index=True)
    return Steps(at, np.add.reduceat(changes[order], first).cumsum() if len(at) else np.zeros(0))


def busy(run: Run) -> Steps:
    """Returns the number of processors that run jobs, over time."""
    spells, size = run.spells, run.size[run.spells.job]
    return steps_of(np.concatenate([spells.start, spells.end]), np.concatenate([size, -size]))


def waiting(run: Run) -> Steps:
    """Returns the number of waiting jobs over time: before their first start, and between two spells of running."""
    spells, count = run.spells, len(run.submit)
    last = np.zeros(len(spells.job), dtype=bool)
    if len(last):
        last[:-1] = spells.job[1:] != spells.job[:-1]
        last[-1] = True
    back = spells.end[~last]
    never = np.ones(count, dtype=bool)
    never[spells.job] = False
    left = never & np.isfinite(run.finish)  # withdrawn before they ran; a refused job never waited
    submitted = run.submit[~never | left]
    return steps_of(
        np.concatenate([submitted, back, spells.start, run.finish[left]]),
        np.concatenate([np.ones(len(submitted) + len(back)), -np.ones(len(spells.start) + int(left.sum()))]),
    )


def cut(steps: Steps, start: float, end: float) -> Steps:
    """Returns the part in [start, end]; its first step has the value that holds at `start`, and the last value is repeated at `end`."""
    inside = (steps.time > start) & (steps.time < end)
    before = int(np.searchsorted(steps.time, start, side="right"))
    first = steps.value[before - 1] if before else 0.0
    values = np.concatenate([[first], steps.value[inside]])
    return Steps(np.concatenate([[start], steps.time[inside], [end]]), np.append(values, values[-1]))


def bin_length(span: float) -> float:
    """Returns the shortest length (s) that reads well and makes at most 400 bins."""
    return next((length for length in _LENGTHS if span / length <= _MOST_BINS), span / _MOST_BINS)


def binned(steps: Steps, start: float, end: float, length: float) -> Bins:
    """Returns the curve in bins; the last bin may be shorter. A mean is exact: the area under the curve in the bin / length of the bin."""
    edges = np.append(np.arange(start, end, length), end)
    if len(edges) > 2 and edges[-1] - edges[-2] < 1e-9 * length:
        edges = np.delete(edges, -2)
    part = cut(steps, start, end)
    area = np.concatenate([[0.0], (part.value[:-1] * np.diff(part.time)).cumsum()])
    mean = np.diff(np.interp(edges, part.time, area)) / np.diff(edges)
    # The value at each edge becomes a step of its own, so that a bin without any change has one too.
    time = np.concatenate([part.time[:-1], edges[:-1]])
    value = np.concatenate([part.value[:-1], part.value[np.searchsorted(part.time, edges[:-1], side="right") - 1]])
    order = np.argsort(time, kind="stable")
    first = np.searchsorted(time[order], edges[:-1], side="left")
    return Bins(edges, mean, np.minimum.reduceat(value[order], first), np.maximum.reduceat(value[order], first))
