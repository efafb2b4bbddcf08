"""Front of a queue tree (figure 3 of the paper): the tree, the jobs of each node, and the front in successive slots."""

from __future__ import annotations

from rmgr.sched.tree.shape import Tree
from rmgr.sim.plots.matrix import Slots
from rmgr.sim.plots.parts.canvas import INK, PALE, Figure, Line2D, MaxNLocator, MultipleLocator, legend_below, line_style, named, new_figure
from rmgr.sim.plots.parts.reading import Run
from rmgr.sim.plots.parts.window import TimeWindow

#: Fronts in one picture; more of them hide each other.
MOST_FRONTS = 7
#: Of a level's height, what the lines of successive slots are apart.
_STEP = 0.085


def front(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """The picture: levels of the tree downwards, cores to the right. Cores without a line in a slot are idle. Raises: as `Slots`."""
    slots = Slots(run, window, MOST_FRONTS)
    tree = Tree(run.width, run.processors)
    nodes = {place: _node(tree, first, last) for row in slots.rows for place, first, last in row}
    figure = new_figure(height=1.8 + 0.75 * (tree.height + 1))
    axes = figure.add_subplot()
    for node in range(tree.nodes):
        low, high = tree.span(node)
        if low < high:
            depth = tree.depth[node]
            axes.plot([low + 0.08, high - 0.08], [depth - 0.3] * 2, color=PALE, linewidth=1.2, solid_capstyle="butt")
            jobs = sorted(int(run.numbers[place]) for place, home in nodes.items() if home == node)
            if jobs:
                told = ",".join(map(str, jobs[:4])) + ("..." if len(jobs) > 4 else "")
                axes.text((low + high) / 2, depth - 0.33, told, fontsize=6, ha="center", va="bottom", color=INK)
    handles, labels = [], []
    for at, row in enumerate(slots.rows):
        style = line_style(at)
        for place, _, _ in row:
            low, high = tree.span(nodes[place])
            y = tree.depth[nodes[place]] - 0.2 + _STEP * at
            axes.plot([low + 0.1, high - 0.1], [y, y], linewidth=2.2, solid_capstyle="butt", **style)
        handles.append(Line2D([], [], linewidth=2.2, **style))
        labels.append(f"{slots.start[at]:g} s")
    axes.set_xlim(0, run.processors)
    axes.set_ylim(tree.height + 0.6, -0.75)
    axes.set_xlabel("core")
    axes.set_ylabel("level of the tree")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.yaxis.set_major_locator(MultipleLocator(1))
    axes.grid(visible=False)
    legend_below(figure, handles, labels, title="the front in the slot that begins at")
    named(axes, f"Front of {run.title}", *run.facts, "grey: partitions, with their jobs that run in these slots")
    return figure


def _node(tree: Tree, first: int, last: int) -> int:
    """The smallest partition that holds these cores."""
    node = 0
    while True:
        inside = [child for child in tree.children(node) if tree.span(child)[0] <= first and last < tree.span(child)[1]]
        if not inside:
            return node
        node = inside[0]
