"""Load against wait and bounded slowdown: the median over the seeds of a sweep as a line for each policy, least to most as a band."""

from __future__ import annotations

from statistics import median

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.canvas import (
    MOST_LINES,
    Artist,
    Axes,
    Figure,
    FixedLocator,
    legend_below,
    line_style,
    logarithmic,
    named,
    new_figure,
)
from rmgr.sim.plots.parts.sweeps import SweepResults
from rmgr.sim.plots.parts.timing import unit_for

#: Values that differ by more than this factor are drawn on a logarithmic axis.
_RATIO = 30
_MOST_TICKS = 11


def load(sweep: SweepResults) -> Figure:
    """The picture. Raises: UsageError for a sweep over fewer than two loads, or more policies than lines can be told apart."""
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
    _panel(panels[0], sweep, policies, loads, "mean_waiting_time", 1 / unit.seconds)
    handles = _panel(panels[1], sweep, policies, loads, "mean_bounded_slowdown", 1.0)
    panels[0].set_ylabel(f"mean wait ({unit.sign})")
    panels[1].set_ylabel("mean bounded slowdown (tau 10 s)")
    several = len({row["seed"] for row in sweep.rows}) > 1
    named(panels[0], f"Load and wait, {sweep.title}", *sweep.facts, "line: median of the seeds, band: least to most" if several else "")
    panels[0].title.set_in_layout(False)
    legend_below(figure, handles, policies)
    return figure


def _panel(axes: Axes, sweep: SweepResults, policies: list[str], loads: list[float], measure: str, factor: float) -> list[Artist]:
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
