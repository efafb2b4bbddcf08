"""A report's figure: box plots, side by side in each group."""

from __future__ import annotations

import textwrap

from rmgr.errors import UsageError
from rmgr.sim.papers import report
from rmgr.sim.plots.parts.canvas import MOST_LINES, Artist, Figure, legend_below, line_style, named, new_figure


def boxes(shown: report.Boxes) -> Figure:
    """The picture: quartiles and the whole range; the y axis is logarithmic above 1 and has a 0. Raises: UsageError for too many."""
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
