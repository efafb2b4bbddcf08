"""A report's figure: lines with the range over the seeds at each point."""

from __future__ import annotations

import textwrap

from rmgr.errors import UsageError
from rmgr.sim.papers import report
from rmgr.sim.plots.parts.canvas import MOST_LINES, Artist, Figure, legend_below, line_style, logarithmic, named, new_figure


def lines(shown: report.Figure) -> Figure:
    """The picture. Raises: UsageError for more lines than can be told apart, or none with a point."""
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
