"""Fronts of queue trees (figure 3 of the paper): the tree of each partition, the jobs of its nodes, and the front in successive slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from rmgr.sched.tree.shape import Tree
from rmgr.sim.plots.matrix import Slots
from rmgr.sim.plots.parts.canvas import (
    INK,
    PALE,
    Axes,
    Figure,
    Line2D,
    MaxNLocator,
    MultipleLocator,
    legend_below,
    line_style,
    named,
    new_figure,
)
from rmgr.sim.plots.parts.reading import QueueTree, Run
from rmgr.sim.plots.parts.window import TimeWindow

#: Fronts in one picture; more of them hide each other.
MOST_FRONTS = 7
#: Of a level's height, what the lines of successive slots are apart.
_STEP = 0.085


def front(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """The picture: levels of the trees downwards, cores to the right. Cores without a line in a slot are idle. Raises: as `Slots`."""
    slots = Slots(run, window, MOST_FRONTS)
    trees = [Leaves(shape) for shape in run.trees]
    found = {place: _home(trees, first, last) for place, (first, last) in reaches(slots.rows).items()}
    homes = {place: home for place, home in found.items() if home is not None}
    height = max(leaves.tree.height for leaves in trees)
    figure = new_figure(height=1.8 + 0.75 * (height + 1))
    axes = figure.add_subplot()
    for at, leaves in enumerate(trees):
        _draw_tree(axes, leaves, {node: _told(run, homes, (at, node)) for node in range(leaves.tree.nodes)})
    handles, labels = [], []
    for step, row in enumerate(slots.rows):
        style = line_style(step)
        for place in dict.fromkeys(place for place, _, _ in row if place in homes):
            at, node = homes[place]
            y = trees[at].tree.depth[node] - 0.2 + _STEP * step
            for low, high in trees[at].spans(node):
                axes.plot([low + 0.1, high - 0.1], [y, y], linewidth=2.2, solid_capstyle="butt", **style)
        handles.append(Line2D([], [], linewidth=2.2, **style))
        labels.append(f"{slots.start[step]:g} s")
    axes.set_xlim(0, run.processors)
    axes.set_ylim(height + 0.6, -0.75)
    axes.set_xlabel("core")
    axes.set_ylabel("level of the tree")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.yaxis.set_major_locator(MultipleLocator(1))
    axes.grid(visible=False)
    legend_below(figure, handles, labels, title="the front in the slot that begins at")
    named(axes, f"Front of {run.title}", *run.facts, "grey: nodes of the tree, with their jobs that run in these slots")
    return figure


class Leaves:
    """A partition's tree over the cores of the machine: leaf i is the i-th of its cores."""

    def __init__(self, shape: QueueTree) -> None:
        self.name = shape.partition
        self._cores = shape.cores
        self._before = [0, *accumulate(last - first + 1 for first, last in shape.cores)]
        self.tree = Tree(shape.width, self._before[-1])

    def leaf(self, core: int) -> int | None:
        """None for a core of another partition."""
        for before, (first, last) in zip(self._before, self._cores, strict=False):
            if first <= core <= last:
                return before + core - first
        return None

    def spans(self, node: int) -> list[tuple[int, int]]:
        """First core and the one beyond, of each run of cores that this node of the tree holds."""
        low, high = self.tree.span(node)
        found = []
        for before, (first, last) in zip(self._before, self._cores, strict=False):
            begin, end = max(low - before, 0), min(high - before, last - first + 1)
            if begin < end:
                found.append((first + begin, first + end))
        return found

    def home(self, first: int, last: int) -> int | None:
        """The smallest node of the tree that holds both cores; None where it does not have them."""
        low, high = self.leaf(first), self.leaf(last)
        if low is None or high is None:
            return None
        node = 0
        while True:
            inside = [child for child in self.tree.children(node) if self.tree.span(child)[0] <= low and high < self.tree.span(child)[1]]
            if not inside:
                return node
            node = inside[0]


def reaches(rows: Iterable[Iterable[tuple[int, int, int]]]) -> dict[int, tuple[int, int]]:
    """Of each job its first and its last core: on nodes of several cores there may be gaps between."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        for place, first, last in row:
            low, high = found.get(place, (first, last))
            found[place] = min(low, first), max(high, last)
    return found


def _home(trees: Sequence[Leaves], first: int, last: int) -> tuple[int, int] | None:
    """(place of the tree, its node) on which a job with these cores stands; None for a job of a partition without one."""
    return next(((at, node) for at, leaves in enumerate(trees) if (node := leaves.home(first, last)) is not None), None)


def _told(run: Run, homes: Mapping[int, tuple[int, int]], home: tuple[int, int]) -> str:
    """Numbers of the jobs of this node."""
    jobs = sorted(int(run.numbers[place]) for place, found in homes.items() if found == home)
    return ",".join(map(str, jobs[:4])) + ("..." if len(jobs) > 4 else "")


def _draw_tree(axes: Axes, leaves: Leaves, jobs: Mapping[int, str]) -> None:
    """Its nodes, and above them their jobs; the root has the partition's name."""
    for node, told in jobs.items():
        spans = leaves.spans(node)
        if not spans:
            continue
        depth = leaves.tree.depth[node]
        for low, high in spans:
            axes.plot([low + 0.08, high - 0.08], [depth - 0.3] * 2, color=PALE, linewidth=1.2, solid_capstyle="butt")
        text = f"{leaves.name}: {told}".rstrip(": ") if node == 0 and leaves.name else told
        if text:
            axes.text((spans[0][0] + spans[-1][1]) / 2, depth - 0.33, text, fontsize=6, ha="center", va="bottom", color=INK)
