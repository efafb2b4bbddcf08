"""Which job has which processors when: Gantt charts, slots of gangs; and lanes of calls.

A few thousand spells are drawn one by one; more become an image that shows the share in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rmgr.errors import UsageError
from rmgr.model.units import counted
from rmgr.sched.tree.shape import Tree
from rmgr.sim.calls.runs import CallRow
from rmgr.sim.plots import canvas
from rmgr.sim.plots.canvas import Axes, Figure, TimeAxis
from rmgr.sim.plots.reading import SPELLS, Floats, Integers, LiveSlots, QueueTree, Run, TimeWindow

#: More rectangles than this are drawn as an image, since each would be thinner than a dot.
MOST_RECTANGLES = 4000
#: Largest number of bins of time and of rows of processors in the image; a bin is two dots wide on paper.
_BINS, _ROWS = 600, 300
#: Largest number of jobs whose numbers are written into their rectangles, and of lines drawn between successive spells.
_MOST_NUMBERS, _MOST_ARROWS = 1000, 300
_AXES_INCHES = (7.9, 4.0)
#: (index of the spell, first core, last core), one entry per rectangle.
_Ranges: TypeAlias = tuple[Integers, Integers, Integers]
#: More rows than this cannot be told apart.
MOST_SLOTS = 200
#: More names of nodes than this do not fit beside each other.
_MOST_NAMES = 16
#: Largest number of fronts in one picture; more would hide each other.
MOST_FRONTS = 7
#: Distance between the lines of successive slots, as a share of a level's height.
_STEP = 0.085
#: Largest number of tracks in which overlapping bars of one lane are drawn.
_TRACKS = 8
_MOST_CLIENTS = len(canvas.PALETTE)


def gantt(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """Draws the Gantt chart. Colours tell neighbours apart (job number modulo eight); jobs with several spells are hatched.

    Raises: UsageError for damaged ranges of processors, or a window after the end of the run.
    Cost: O(ranges), and at most 300 x 600 numbers.
    """
    start, end = window.of(run)
    chosen = window.spells(run)
    owners, first, last = run.spells.rectangles(chosen)
    figure = canvas.new_figure()
    axes = figure.add_subplot()
    axis = canvas.set_time_axis(axes, start, end)
    axes.set_ylim(0, run.processors)
    axes.set_ylabel("processor")
    axes.yaxis.set_major_locator(canvas.MaxNLocator(nbins=9, integer=True, steps=[1, 2, 2.5, 4, 5, 10]))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=False)
    jobs = len(np.unique(run.spells.job[chosen]))
    shown = "" if window.is_whole else f"{window.told(run)}: {counted(jobs, 'job')}"
    if len(owners) <= MOST_RECTANGLES:
        canvas.named(axes, f"Schedule of {run.title}", *run.facts, shown)
        _rectangles(figure, axes, run, axis, (owners, first, last))
    else:
        width = _image(figure, axes, run, axis, (start, end), (owners, first, last))
        several = len(np.intersect1d(_in_several(run), run.spells.job[chosen]))
        stretches = f"{several:,} of them in several stretches" if several else ""
        canvas.named(axes, f"Processors in use, {run.title}", *run.facts, shown, stretches, f"a dot is {width}")
    return figure


def _rectangles(figure: Figure, axes: Axes, run: Run, axis: TimeAxis, ranges: _Ranges) -> None:
    owners, first, last = ranges
    left, right = axis.at(run.spells.start[owners]), axis.at(run.spells.end[owners])
    corners = np.stack(
        [np.stack([left, first], 1), np.stack([left, last + 1], 1), np.stack([right, last + 1], 1), np.stack([right, first], 1)], 1
    )
    places = run.spells.job[owners]
    several = np.isin(places, _in_several(run))
    fills, edges = (np.array(colours)[run.numbers[places] % len(colours)] for colours in (canvas.FILLS, canvas.EDGES))
    line = 0.4 if len(owners) <= 1000 else 0.25
    for chosen, hatch in ((~several, None), (several, "////")):
        if chosen.any():
            axes.add_collection(
                canvas.PolyCollection(
                    list(corners[chosen]), facecolors=fills[chosen], edgecolors=edges[chosen], linewidths=line, hatch=hatch
                ),
                autolim=False,
            )
    _numbers(axes, run, places, corners, np.where(several, fills, "none"))
    if several.any():
        _arrows(axes, run, axis)
        canvas.legend_below(
            figure,
            [canvas.Patch(facecolor="white", edgecolor=canvas.INK, hatch="////")],
            ["job that ran in several stretches, joined by a line"],
        )


def _in_several(run: Run) -> Integers:
    """Returns the indices of jobs with more than one spell."""
    places, counts = np.unique(run.spells.job, return_counts=True)
    return places[counts > 1]


def _numbers(axes: Axes, run: Run, places: Integers, corners: Floats, behind: NDArray[np.str_]) -> None:
    """Writes each job's number into its rectangles that have room for it. behind: colour under the number, where hatches would cross it."""
    if len(np.unique(places)) > _MOST_NUMBERS:
        return
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    left, right = np.maximum(corners[:, 0, 0], x0), np.minimum(corners[:, 2, 0], x1)
    low, high = corners[:, 0, 1], corners[:, 1, 1]
    wide = (right - left) / (x1 - x0) * _AXES_INCHES[0] * 72
    tall = (high - low) / (y1 - y0) * _AXES_INCHES[1] * 72
    for at in range(len(places)):
        text = str(run.numbers[places[at]])
        size = min(7.5, tall[at] * 0.8, wide[at] / (0.68 * len(text)))
        if size >= 4.5:
            box = {"facecolor": behind[at], "edgecolor": "none", "pad": 0.6} if behind[at] != "none" else None
            x, y = (left[at] + right[at]) / 2, (low[at] + high[at]) / 2
            axes.text(x, y, text, fontsize=size, ha="center", va="center", clip_on=True, bbox=box)


def _arrows(axes: Axes, run: Run, axis: TimeAxis) -> None:
    """Draws a line from the end of each spell to the beginning of the job's next one."""
    spells = run.spells
    before = np.flatnonzero(spells.job[1:] == spells.job[:-1])
    if not 0 < len(before) <= _MOST_ARROWS:
        return
    for at in before.tolist():
        (x0, y0), (x1, y1) = ((spells.end[at], _middle(run, at)), (spells.start[at + 1], _middle(run, at + 1)))
        axes.plot([axis.at(x0), axis.at(x1)], [y0, y1], color=canvas.INK, linewidth=0.7, linestyle=(0, (2, 1)), clip_on=True)


def _middle(run: Run, spell: int) -> float:
    _, first, last = run.spells.rectangles(np.array([spell]))
    return float((first[0] + last[0] + 1) / 2) if len(first) else 0.0


def _image(figure: Figure, axes: Axes, run: Run, axis: TimeAxis, span: tuple[float, float], ranges: _Ranges) -> str:
    """Draws the share of time and processors in use, dot by dot. Returns the size of a dot in words."""
    owners, first, last = ranges
    start, end = span
    rows = min(run.processors, _ROWS)
    used = occupancy(
        (run.spells.start[owners] - start) / (end - start) * _BINS,
        (run.spells.end[owners] - start) / (end - start) * _BINS,
        np.multiply(first, rows / run.processors, dtype=np.float64),
        np.multiply(last + 1, rows / run.processors, dtype=np.float64),
        bins=_BINS,
        rows=rows,
    )
    extent = (axis.at(start), axis.at(end), 0, run.processors)
    image = axes.imshow(
        used,
        aspect="auto",
        origin="lower",
        extent=extent,
        interpolation="nearest",
        cmap="Blues",
        norm=canvas.Normalize(0, 1),
        rasterized=True,
    )
    bar = figure.colorbar(image, ax=axes, label="share of the dot in use", pad=0.015, aspect=35)
    bar.outline.set_visible(False)
    each = "1 processor" if rows == run.processors else f"{run.processors / rows:.3g} processors"
    return f"{each} x {canvas.label_of((end - start) / _BINS)}"


def occupancy(left: Floats, right: Floats, low: Floats, high: Floats, *, bins: int, rows: int) -> Floats:
    """Returns the share of each cell (row, bin) that the rectangles cover.

    Args:
        left, right: edges in bins; low, high: edges in rows. Parts outside the grid are cut off. The rectangles must not overlap.
    Cost: O(rectangles) + O(bins x rows).
    """
    grid = np.zeros((rows + 2, bins + 2))
    left, right = np.clip(left, 0, bins), np.clip(right, 0, bins)
    low, high = np.clip(low, 0, rows), np.clip(high, 0, rows)
    for x, y, sign in ((left, low, 1), (right, low, -1), (left, high, -1), (right, high, 1)):
        bin_at, row_at = x.astype(np.int64), y.astype(np.int64)
        in_bin, in_row = x - bin_at, y - row_at
        # A step at x adds 1 - f to its own cell and f to the next one, before the sum along the axis.
        for row, bin_, part in (
            (row_at, bin_at, (1 - in_row) * (1 - in_bin)),
            (row_at, bin_at + 1, (1 - in_row) * in_bin),
            (row_at + 1, bin_at, in_row * (1 - in_bin)),
            (row_at + 1, bin_at + 1, in_row * in_bin),
        ):
            np.add.at(grid, (row, bin_), sign * part)
    covered: Floats = np.clip(grid.cumsum(0).cumsum(1)[:rows, :bins], 0, 1)
    return covered


# -- slots of a gang: the matrix (Ousterhout) with slots downwards and cores to the right; the fronts of its trees -------------


class Slots:
    """Slots of a run under dqt. start: when each begins (s). rows: for each slot, (index of the job, first core, last core)."""

    def __init__(self, run: Run, window: TimeWindow, most: int) -> None:
        """Takes the first `most` slots of the window in which any job runs.

        Raises: UsageError for a run without gangs, or one written without spells.csv.
        """
        if not any(path.name == SPELLS for path in run.spells.origins) or not run.turns.any():
            raise UsageError(
                f"{run.directory} has no slots: it is no run of dqt whose stretches were kept",
                hint="rmgr sim run TRACE --policy dqt --spells --out DIR",
            )
        self.quantum = run.quantum
        chosen = window.spells(run)
        owners, first, last = run.spells.rectangles(chosen)
        begins = self._begins(run, chosen, window, most)
        self.start: Floats = begins
        self.rows: list[list[tuple[int, int, int]]] = [[] for _ in begins]
        for at in range(len(owners)):
            spell = owners[at]
            low = int(np.searchsorted(begins, run.spells.start[spell] - 1e-6))
            high = int(np.searchsorted(begins, run.spells.end[spell] - 1e-6))
            for slot in range(low, high):
                self.rows[slot].append((int(run.spells.job[spell]), int(first[at]), int(last[at])))

    def _begins(self, run: Run, chosen: Integers, window: TimeWindow, most: int) -> Floats:
        """Returns when each slot begins (s). A spell begins with a slot and lasts one or more slots of its gang."""
        low, high = window.of(run)
        found: set[float] = set()
        latest = high
        for spell in chosen[np.argsort(run.spells.start[chosen], kind="stable")].tolist():
            start, end = float(run.spells.start[spell]), float(run.spells.end[spell])
            if start >= latest - 1e-6:
                break
            before = max(int(np.ceil((low - start) / self.quantum - 1e-9)), 0)
            count = max(int(np.ceil((min(end, latest) - start) / self.quantum - 1e-9)), 1)
            found.update(round(start + at * self.quantum, 6) for at in range(before, min(count, before + most)))
            if len(found) > most:
                latest = sorted(found)[most]
        return np.array(sorted(found)[:most])


def matrix(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """Draws the matrix of a run: a row for each slot; empty cells are idle cores. Raises: UsageError as `Slots`."""
    slots = Slots(run, window, MOST_SLOTS)
    follows = [at > 0 and bool(slots.start[at] - slots.start[at - 1] <= 1.5 * slots.quantum) for at in range(len(slots.rows))]
    numbers = run.numbers.tolist()
    figure, axes = _drawn(slots.rows, follows, list(map(str, numbers)), numbers, run.processors, first=0)
    axes.set_xlabel("core")
    message = f"slot of {slots.quantum:g} s"  # slots of different partitions begin at different instants
    axes.set_ylabel(message if len(run.trees) == 1 else f"beginnings of slots, in order ({message})")
    axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=9, integer=True))
    canvas.named(axes, f"Slots of {run.title}", *run.facts, f"from {slots.start[0]:g} s" if len(slots.start) else "")
    return figure


def matrix_of_live(live: LiveSlots) -> Figure:
    """Draws the matrix of a live partition; rows have the numbers of its slots."""
    shown = live.rows[:MOST_SLOTS]
    jobs = list(dict.fromkeys(job for row in shown for job in row if job is not None))
    places = {job: place for place, job in enumerate(jobs)}
    rows: list[list[tuple[int, int, int]]] = []
    for row in shown:
        rows.append([])
        first = 0
        for job, cores in groupby(row):
            count = len(list(cores))
            if job is not None:
                rows[-1].append((places[job], first, first + count - 1))
            first += count
    figure, axes = _drawn(rows, [at > 0 for at in range(len(rows))], jobs, range(len(jobs)), live.cores, first=live.first)
    axes.set_ylabel(f"slot of {live.quantum:g} s")
    if len(live.nodes) <= _MOST_NAMES:
        ends = list(accumulate(cores for _, cores in live.nodes))
        axes.set_xticks([end - cores / 2 for end, (_, cores) in zip(ends, live.nodes, strict=True)], [name for name, _ in live.nodes])
        for end in ends[:-1]:
            axes.axvline(end, color="#999999", linewidth=0.6, linestyle=":", zorder=0)
        axes.set_xlabel("node")
    else:
        axes.set_xlabel("core")
        axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=9, integer=True))
    cut = f"the first {len(shown)} of {len(live.rows)} slots" if len(shown) < len(live.rows) else counted(len(shown), "slot")
    facts = (counted(len(jobs), "job"), counted(live.cores, "core"), f"generation {live.generation}", cut)
    canvas.named(axes, f"Slots of partition {live.partition} under {live.policy}", *facts)
    return figure


def _drawn(
    rows: Sequence[Sequence[tuple[int, int, int]]],
    follows: Sequence[bool],
    names: Sequence[str],
    colours: Sequence[int],
    processors: int,
    *,
    first: int,
) -> tuple[Figure, Axes]:
    """Draws a row for each slot, numbered from `first`; cores that a job keeps over successive slots are one rectangle.

    Args:
        rows: for each slot, (index of the job, first core, last core). follows: whether the slot begins when the previous one ends.
        names, colours: of the jobs, by index.
    """
    corners: list[list[tuple[int, int]]] = []
    places: list[int] = []
    open_: dict[tuple[int, int, int], int] = {}  # (job, first core, last core) of the previous row -> its rectangle
    for at, row in enumerate(rows, first):
        before, open_ = open_, {}
        for place, low, high in row:
            known = before.get((place, low, high))
            if known is None or not follows[at - first]:
                known = len(corners)
                corners.append([(low, at), (low, at + 1), (high + 1, at + 1), (high + 1, at)])
                places.append(place)
            (left, top), _, (right, _), _ = corners[known]
            corners[known] = [(left, top), (left, at + 1), (right, at + 1), (right, top)]
            open_[place, low, high] = known
    figure = canvas.new_figure(height=min(2.0 + 0.22 * len(rows), 9.0))
    axes = figure.add_subplot()
    chosen = np.array([colours[place] for place in places], dtype=np.int64)
    fills, edges = (np.array(of)[chosen % len(of)] for of in (canvas.FILLS, canvas.EDGES))
    axes.add_collection(canvas.PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=0.4), autolim=False)
    axes.set_xlim(0, processors)
    axes.set_ylim(first + len(rows), first)
    axes.yaxis.set_major_locator(canvas.MaxNLocator(nbins=12, integer=True))
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.grid(visible=False)
    wide, tall = 7.5 * 72 / processors, (figure.get_figheight() - 1.2) * 72 / max(len(rows), 1)
    for ((left, top), _, (right, bottom), _), place in zip(corners, places, strict=True):
        text = names[place]
        if (right - left) * wide > 5 * len(text) and (bottom - top) * tall > 8:
            axes.text((left + right) / 2, (top + bottom) / 2, text, fontsize=6.5, ha="center", va="center")
    return figure, axes


def front(run: Run, window: TimeWindow = TimeWindow()) -> Figure:  # noqa: B008 - a frozen value
    """Draws the front: levels of the trees downwards, cores to the right. Cores without a line in a slot are idle. Raises: as `Slots`."""
    slots = Slots(run, window, MOST_FRONTS)
    trees = [Leaves(shape) for shape in run.trees]
    found = {place: _home(trees, first, last) for place, (first, last) in reaches(slots.rows).items()}
    homes = {place: home for place, home in found.items() if home is not None}
    height = max(leaves.tree.height for leaves in trees)
    figure = canvas.new_figure(height=1.8 + 0.75 * (height + 1))
    axes = figure.add_subplot()
    for at, leaves in enumerate(trees):
        _draw_tree(axes, leaves, {node: _told(run, homes, (at, node)) for node in range(leaves.tree.nodes)})
    handles, labels = [], []
    for step, row in enumerate(slots.rows):
        style = canvas.line_style(step)
        for place in dict.fromkeys(place for place, _, _ in row if place in homes):
            at, node = homes[place]
            y = trees[at].tree.depth[node] - 0.2 + _STEP * step
            for low, high in trees[at].spans(node):
                axes.plot([low + 0.1, high - 0.1], [y, y], linewidth=2.2, solid_capstyle="butt", **style)
        handles.append(canvas.Line2D([], [], linewidth=2.2, **style))
        labels.append(f"{slots.start[step]:g} s")
    axes.set_xlim(0, run.processors)
    axes.set_ylim(height + 0.6, -0.75)
    axes.set_xlabel("core")
    axes.set_ylabel("level of the tree")
    axes.xaxis.set_major_locator(canvas.MaxNLocator(nbins=9, integer=True))
    axes.yaxis.set_major_locator(canvas.MultipleLocator(1))
    axes.grid(visible=False)
    canvas.legend_below(figure, handles, labels, title="the front in the slot that begins at")
    canvas.named(axes, f"Front of {run.title}", *run.facts, "grey: nodes of the tree, with their jobs that run in these slots")
    return figure


class Leaves:
    """A partition's tree over the cores of the machine: leaf i is the i-th core of the partition."""

    def __init__(self, shape: QueueTree) -> None:
        self.name = shape.partition
        self._cores = shape.cores
        self._before = [0, *accumulate(last - first + 1 for first, last in shape.cores)]
        self.tree = Tree(shape.width, self._before[-1])

    def leaf(self, core: int) -> int | None:
        """Returns the leaf of a core, or None for a core of another partition."""
        for before, (first, last) in zip(self._before, self._cores, strict=False):
            if first <= core <= last:
                return before + core - first
        return None

    def spans(self, node: int) -> list[tuple[int, int]]:
        """Returns (first core, last core + 1) of each contiguous range of cores below this node of the tree."""
        low, high = self.tree.span(node)
        found = []
        for before, (first, last) in zip(self._before, self._cores, strict=False):
            begin, end = max(low - before, 0), min(high - before, last - first + 1)
            if begin < end:
                found.append((first + begin, first + end))
        return found

    def home(self, first: int, last: int) -> int | None:
        """Returns the smallest node of the tree that holds both cores, or None if the partition does not have them."""
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
    """Returns the first and the last core of each job; on nodes of several cores there may be gaps between them."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        for place, first, last in row:
            low, high = found.get(place, (first, last))
            found[place] = min(low, first), max(high, last)
    return found


def _home(trees: Sequence[Leaves], first: int, last: int) -> tuple[int, int] | None:
    """Returns (index of the tree, node) in whose queue a job with these cores is, or None for a job of a partition without a tree."""
    return next(((at, node) for at, leaves in enumerate(trees) if (node := leaves.home(first, last)) is not None), None)


def _told(run: Run, homes: Mapping[int, tuple[int, int]], home: tuple[int, int]) -> str:
    """Returns the numbers of the node's jobs, up to four of them."""
    jobs = sorted(int(run.numbers[place]) for place, found in homes.items() if found == home)
    return ",".join(map(str, jobs[:4])) + ("..." if len(jobs) > 4 else "")


def _draw_tree(axes: Axes, leaves: Leaves, jobs: Mapping[int, str]) -> None:
    """Draws the nodes of a tree with their jobs above them; the root also shows the name of the partition."""
    for node, told in jobs.items():
        spans = leaves.spans(node)
        if not spans:
            continue
        depth = leaves.tree.depth[node]
        for low, high in spans:
            axes.plot([low + 0.08, high - 0.08], [depth - 0.3] * 2, color=canvas.PALE, linewidth=1.2, solid_capstyle="butt")
        text = f"{leaves.name}: {told}".rstrip(": ") if node == 0 and leaves.name else told
        if text:
            axes.text((spans[0][0] + spans[-1][1]) / 2, depth - 0.33, text, fontsize=6, ha="center", va="bottom", color=canvas.INK)


# -- lanes of calls: when calls were transferred and computed, on each server and each of its links ----------------------------


class _Bar(NamedTuple):
    """One call's stay in a lane."""

    client: str
    start_s: float
    end_s: float


def calls(rows: Sequence[CallRow]) -> Figure:
    """Draws the calls of one policy, case and seed: a lane for each server (waiting and computing), below it one for each of its links.

    Colours tell clients apart. Raises: UsageError if there are no calls.
    """
    if not rows:
        raise UsageError("there are no calls to draw", hint="rmgr sim calls ... --out DIR")
    clients = sorted({row.client for row in rows}, key=lambda name: (len(name), name))
    colours = {client: canvas.PALETTE[at % _MOST_CLIENTS] for at, client in enumerate(clients)}
    lanes: list[tuple[str, list[_Bar]]] = []
    for server in sorted({row.server for row in rows}):
        mine = [row for row in rows if row.server == server]
        lanes.append((f"{server}: computing", [_Bar(row.client, row.arrived_s, row.ended_s) for row in mine]))
        for client in (name for name in clients if any(row.client == name for row in mine)):
            bars = [_Bar(client, row.sent_s, row.arrived_s) for row in mine if row.client == client]
            lanes.append((f"{server}: link of {client}", bars))
    figure = canvas.new_figure(height=max(3.0, 0.34 * len(lanes) + 1.4))
    axes = figure.add_subplot()
    axis = canvas.set_time_axis(axes, 0.0, max(row.ended_s for row in rows))
    axes.set_xlabel(axes.get_xlabel().replace("the first submit", "the beginning"))
    for at, (_, bars) in enumerate(lanes):
        tracks = _tracks(bars)
        height = 0.84 / (max(track for track, _ in tracks) + 1)
        for track, bar in tracks:
            left, right = axis.at(bar.start_s), axis.at(bar.end_s)
            axes.barh(
                at - 0.42 + (track + 0.5) * height,
                right - left,
                left=left,
                height=height,
                color=colours[bar.client],
                linewidth=0.2,
                edgecolor="white",
            )
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    first = rows[0]
    mean = sum(row.ended_s - row.issued_s for row in rows) / len(rows)
    canvas.named(axes, f"Calls under {first.policy}, case {first.case}", f"seed {first.seed}", f"{len(rows)} calls", f"mean {mean:.2f} s")
    canvas.legend_below(figure, [canvas.Patch(color=colours[client]) for client in clients[:_MOST_CLIENTS]], clients[:_MOST_CLIENTS])
    return figure


def _tracks(bars: Sequence[_Bar]) -> list[tuple[int, _Bar]]:
    """Returns each bar with the first track that is free for it; when all tracks are taken, bars share the last one."""
    free: list[float] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start_s, bar.end_s)):
        track = next((at for at, end in enumerate(free) if end <= bar.start_s), len(free))
        if track == len(free) and track < _TRACKS:
            free.append(bar.end_s)
        track = min(track, _TRACKS - 1)
        free[track] = max(free[track], bar.end_s)
        placed.append((track, bar))
    return placed
