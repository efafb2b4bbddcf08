"""Policies beside each other: bars of the measures, load against wait and slowdown, distributions of wait times.

Of several runs, or of a sweep: over several seeds bars are means and lines medians, with the range from least to most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots.canvas import (
    INK,
    MOST_LINES,
    PALETTE,
    Artist,
    Axes,
    Figure,
    FixedLocator,
    MaxNLocator,
    PercentFormatter,
    clipped,
    label_of,
    legend_below,
    line_style,
    logarithmic,
    named,
    new_figure,
    set_logarithmic_times,
    unit_for,
)
from rmgr.sim.plots.reading import MEASURES, SCHEDULE, Floats, Run, SweepResults, TimeWindow, labels_of, shared_facts

#: More bars than this cannot be read.
MOST_BARS = 40
_LONGEST = 48
#: Values that differ by more than this factor are drawn on a logarithmic axis.
_RATIO = 30
_MOST_TICKS = 11
#: A curve through more points than this has no more to show.
_MOST_POINTS = 2000


def compare_runs(runs: Sequence[Run]) -> Figure:
    """The picture for some runs, a bar each. Raises: UsageError for more than 40, or measures that are missing."""
    bars = [
        _Bar(label, {name: [_measure(run.summary, name, f"{run.directory / SCHEDULE}")] for name in MEASURES})
        for label, run in zip(labels_of(runs), runs, strict=True)
    ]
    title, facts = shared_facts(runs)
    return _bars_figure(bars, title, facts)


def compare_sweep(sweep: SweepResults) -> Figure:
    """The picture for a sweep: a bar for each policy and load. Raises: UsageError for more than 40, or measures that are missing."""
    bars = []
    for (policy, load), rows in sweep.groups().items():
        label = policy if load is None or len(sweep.loads) == 1 else f"{policy}, load {load:g}"
        bars.append(_Bar(label, {name: [row[name] for row in rows] for name in MEASURES}))
    loads = sweep.loads
    only = f"load {loads[0]:g}" if len(loads) == 1 and loads[0] is not None else ""
    return _bars_figure(bars, sweep.title, [only, *sweep.facts])


@dataclass(frozen=True, slots=True)
class _Bar:
    """One policy: its values of each measure, one a seed."""

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
    figure = new_figure(width=9.0 + 0.07 * max(len(clipped(bar.label, _LONGEST)) for bar in bars), height=1.7 + 0.36 * len(bars))
    panels = figure.subplots(1, 3, sharey=True)
    unit = unit_for(max(max(bar.values["mean_waiting_time"]) for bar in bars))
    _bar_panel(panels[0], bars, "mean_waiting_time", f"mean wait ({unit.sign})", 1 / unit.seconds)
    _bar_panel(panels[1], bars, "mean_bounded_slowdown", "mean bounded slowdown (tau 10 s)", 1.0)
    _bar_panel(panels[2], bars, "utilisation", "utilisation of the machine", 1.0)
    panels[0].set_yticks(range(len(bars)), [clipped(bar.label, _LONGEST) for bar in bars])
    panels[0].set_ylim(len(bars) - 0.5, -0.5)
    spread = "bars: mean over the seeds, lines: least to most" if any(len(v) > 1 for bar in bars for v in bar.values.values()) else ""
    named(panels[0], f"Comparison, {title}", *facts, spread)
    panels[0].title.set_in_layout(False)
    return figure


def _bar_panel(axes: Axes, bars: Sequence[_Bar], measure: str, label: str, factor: float) -> None:
    values = [[value * factor for value in bar.values[measure]] for bar in bars]
    means, tops = [fmean(each) for each in values], [max(each) for each in values]
    axes.barh(range(len(bars)), means, height=0.66, color=PALETTE[0] if measure != "utilisation" else PALETTE[2], alpha=0.75)
    for at, each in enumerate(values):
        if len(each) > 1:
            axes.plot([min(each), max(each)], [at, at], color=INK, linewidth=1.2, marker="|", markersize=6, markeredgewidth=1.2)
        text = _shown(fmean(bars[at].values[measure]), measure)
        axes.annotate(text, (max(means[at], tops[at]), at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, (max(tops) or 1.0) * 1.22)
    if measure == "utilisation":
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    else:
        axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_xlabel(label)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _shown(value: float, measure: str) -> str:
    if measure == "mean_waiting_time":
        return label_of(value)
    if measure == "utilisation":
        return f"{value:.1%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def load(sweep: SweepResults) -> Figure:
    """Load against wait and bounded slowdown, a line for each policy.

    Raises: UsageError for a sweep over fewer than two loads, or more policies than lines can be told apart.
    """
    loads = [each for each in sweep.loads if each is not None]
    if len(loads) < 2:
        raise UsageError(
            f"{sweep.path} has {len(loads)} load{'s' if not loads else ''}, and a curve needs two",
            hint="rmgr sim sweep --load .7,.8,.9 ...; or --kind compare",
        )
    policies = list(dict.fromkeys(row["policy"] for row in sweep.rows))
    if len(policies) > MOST_LINES:
        raise UsageError(f"{len(policies)} policies are too many for one picture", hint=f"at most {MOST_LINES}")
    figure = new_figure(width=10.0, height=4.8)
    panels = figure.subplots(1, 2)
    waits = [row["mean_waiting_time"] for row in sweep.rows]
    unit = unit_for(max(waits))
    _line_panel(panels[0], sweep, policies, loads, "mean_waiting_time", 1 / unit.seconds)
    handles = _line_panel(panels[1], sweep, policies, loads, "mean_bounded_slowdown", 1.0)
    panels[0].set_ylabel(f"mean wait ({unit.sign})")
    panels[1].set_ylabel("mean bounded slowdown (tau 10 s)")
    several = len({row["seed"] for row in sweep.rows}) > 1
    named(panels[0], f"Load and wait, {sweep.title}", *sweep.facts, "line: median of the seeds, band: least to most" if several else "")
    panels[0].title.set_in_layout(False)
    legend_below(figure, handles, policies)
    return figure


def _line_panel(axes: Axes, sweep: SweepResults, policies: list[str], loads: list[float], measure: str, factor: float) -> list[Artist]:
    groups = sweep.groups()
    handles: list[Artist] = []
    seen: list[float] = []
    for at, policy in enumerate(policies):
        at_loads = [each for each in loads if (policy, each) in groups]
        values = [[row[measure] * factor for row in groups[policy, each]] for each in at_loads]
        style = line_style(at)
        handles += axes.plot(at_loads, [median(each) for each in values], marker="o", markersize=4, **style)
        low, high = [min(each) for each in values], [max(each) for each in values]
        axes.fill_between(at_loads, low, high, color=style["color"], alpha=0.13, linewidth=0)
        for edge in (low, high):
            axes.plot(at_loads, edge, linewidth=0.5, **style)
        seen += [value for each in values for value in each]
    positive = [value for value in seen if value > 0]
    if positive and len(positive) == len(seen) and max(positive) > _RATIO * min(positive):
        logarithmic(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if len(loads) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(loads))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("offered load (share of the machine)")
    return handles


def waits(runs: Sequence[Run], window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """For each run the share of jobs that wait no longer than x, x logarithmic.

    At its left edge each curve begins at the share of jobs that do not wait at all. Jobs count that ran and were submitted in the window.

    Raises: UsageError for more runs than lines can be told apart, or when no job ran.
    """
    if len(runs) > MOST_LINES:
        raise UsageError(f"{len(runs)} runs are too many for one picture of waits", hint=f"at most {MOST_LINES}; name fewer directories")
    found = [_waits(run, window) for run in runs]
    positive = [waits[waits > 0] for waits in found if (waits > 0).any()]
    low = 10.0 ** np.floor(np.log10(min((waits.min() for waits in positive), default=1.0)))
    high = max((float(waits.max()) for waits in positive), default=10.0) * 1.3
    figure = new_figure(height=5.2)
    axes = figure.add_subplot()
    handles = []
    for at, times in enumerate(found):
        values, shares = distribution(times)
        x, y = np.concatenate([[low], values[1:], [high * 2]]), np.append(shares, 1.0)
        handles += axes.step(x, y, where="post", **line_style(at))
    set_logarithmic_times(axes, low, high)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("wait (logarithmic; at the left edge: no wait)")
    axes.set_ylabel("jobs that wait no longer")
    title, facts = shared_facts(runs)
    told = "" if window.is_whole else f"submitted {window.told(runs[0])}"
    named(axes, f"Wait times, {title}", *facts, told)
    legend = [
        f"{label}: mean {label_of(times.mean())}, {np.count_nonzero(times == 0) / len(times):.0%} do not wait"
        for label, times in zip(labels_of(runs), found, strict=True)
    ]
    legend_below(figure, handles, legend)
    return figure


def distribution(times: Floats) -> tuple[Floats, Floats]:
    """(wait, share of jobs that wait no longer) at no wait and at each wait that occurs, or at two thousand of them."""
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
