"""Policies side by side: bars of mean wait, bounded slowdown and utilisation; over several seeds their mean, and from least to most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.canvas import INK, PALETTE, Axes, Figure, MaxNLocator, PercentFormatter, clipped, named, new_figure
from rmgr.sim.plots.parts.labels import labels_of, shared_facts
from rmgr.sim.plots.parts.reading import SCHEDULE, Run
from rmgr.sim.plots.parts.sweeps import MEASURES, SweepResults
from rmgr.sim.plots.parts.timing import label_of, unit_for

#: More bars than this cannot be read.
MOST_BARS = 40
_LONGEST = 48


@dataclass(frozen=True, slots=True)
class _Bar:
    """One policy: its values of each measure, one a seed."""

    label: str
    values: Mapping[str, Sequence[float]]


def compare_runs(runs: Sequence[Run]) -> Figure:
    """The picture for some runs, a bar each. Raises: UsageError for more than 40, or measures that are missing."""
    bars = [
        _Bar(label, {name: [_measure(run.summary, name, f"{run.directory / SCHEDULE}")] for name in MEASURES})
        for label, run in zip(labels_of(runs), runs, strict=True)
    ]
    title, facts = shared_facts(runs)
    return _figure(bars, title, facts)


def compare_sweep(sweep: SweepResults) -> Figure:
    """The picture for a sweep: a bar for each policy and load. Raises: UsageError for more than 40, or measures that are missing."""
    bars = []
    for (policy, load), rows in sweep.groups().items():
        label = policy if load is None or len(sweep.loads) == 1 else f"{policy}, load {load:g}"
        bars.append(_Bar(label, {name: [row[name] for row in rows] for name in MEASURES}))
    loads = sweep.loads
    only = f"load {loads[0]:g}" if len(loads) == 1 and loads[0] is not None else ""
    return _figure(bars, sweep.title, [only, *sweep.facts])


def _measure(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float):
        raise UsageError(f"{where} has no number for {name}", hint="a directory that rmgr sim run --out wrote is meant")
    return float(value)


def _figure(bars: Sequence[_Bar], title: str, facts: Sequence[str]) -> Figure:
    if len(bars) > MOST_BARS:
        raise UsageError(f"{len(bars)} bars are too many for one picture", hint=f"at most {MOST_BARS}; for a sweep over loads: --kind load")
    figure = new_figure(width=9.0 + 0.07 * max(len(clipped(bar.label, _LONGEST)) for bar in bars), height=1.7 + 0.36 * len(bars))
    panels = figure.subplots(1, 3, sharey=True)
    unit = unit_for(max(max(bar.values["mean_waiting_time"]) for bar in bars))
    _panel(panels[0], bars, "mean_waiting_time", f"mean wait ({unit.sign})", 1 / unit.seconds)
    _panel(panels[1], bars, "mean_bounded_slowdown", "mean bounded slowdown (tau 10 s)", 1.0)
    _panel(panels[2], bars, "utilisation", "utilisation of the machine", 1.0)
    panels[0].set_yticks(range(len(bars)), [clipped(bar.label, _LONGEST) for bar in bars])
    panels[0].set_ylim(len(bars) - 0.5, -0.5)
    spread = "bars: mean over the seeds, lines: least to most" if any(len(v) > 1 for bar in bars for v in bar.values.values()) else ""
    named(panels[0], f"Comparison, {title}", *facts, spread)
    panels[0].title.set_in_layout(False)
    return figure


def _panel(axes: Axes, bars: Sequence[_Bar], measure: str, label: str, factor: float) -> None:
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
