"""Matrix of a gang (Ousterhout): slots downwards, cores to the right, a colour a job; what of it `--from` and `--to` choose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.canvas import Axes, Figure, MaxNLocator, PolyCollection, named, new_figure
from rmgr.sim.plots.parts.reading import SPELLS, Floats, Integers, LiveSlots, Run, counted
from rmgr.sim.plots.parts.window import TimeWindow

#: More rows than this cannot be told apart.
MOST_SLOTS = 200
#: More names of nodes than this do not stand beside each other.
_MOST_NAMES = 16
_FILLS = ("#7FB8DD", "#F0B27A", "#8FD3BC", "#E3B7CF", "#BFE3F6", "#F5DA94", "#C3BCE6", "#D2D2D2")
_EDGES = ("#00507F", "#8A3C00", "#00664B", "#8A4A6E", "#2F7FA8", "#8A6100", "#4B3F99", "#555555")


class Slots:
    """The slots of a run under dqt. start: seconds at which each begins; rows: of each, (place of the job, first core, last core)."""

    def __init__(self, run: Run, window: TimeWindow, most: int) -> None:
        """The first `most` slots of the window in which anything runs.

        Raises: UsageError for a run without gangs, or without its stretches.
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
        """A stretch begins with a slot and lasts some of them; slots of one gang follow each other."""
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
    """Of a run: a row a slot, empty cells are idle cores. Raises: UsageError as `Slots`."""
    slots = Slots(run, window, MOST_SLOTS)
    follows = [at > 0 and bool(slots.start[at] - slots.start[at - 1] <= 1.5 * slots.quantum) for at in range(len(slots.rows))]
    numbers = run.numbers.tolist()
    figure, axes = _drawn(slots.rows, follows, list(map(str, numbers)), numbers, run.processors, first=0)
    axes.set_xlabel("core")
    told = f"slot of {slots.quantum:g} s"  # slots of several partitions begin at instants of their own
    axes.set_ylabel(told if len(run.trees) == 1 else f"beginnings of slots, in order ({told})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    named(axes, f"Slots of {run.title}", *run.facts, f"from {slots.start[0]:g} s" if len(slots.start) else "")
    return figure


def matrix_of_live(live: LiveSlots) -> Figure:
    """Of a live partition, its slots under their numbers."""
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
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    cut = f"the first {len(shown)} of {len(live.rows)} slots" if len(shown) < len(live.rows) else counted(len(shown), "slot")
    facts = (counted(len(jobs), "job"), counted(live.cores, "core"), f"generation {live.generation}", cut)
    named(axes, f"Slots of partition {live.partition} under {live.policy}", *facts)
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
    """A row a slot, numbered from `first`; what a job keeps over slots that follow each other is one rectangle.

    Args:
        rows: of each slot (place of the job, first core, last core). follows: it begins when the one before ends.
        names, colours: of the jobs, by place.
    """
    corners: list[list[tuple[int, int]]] = []
    places: list[int] = []
    open_: dict[tuple[int, int, int], int] = {}  # what ran in the row before -> its rectangle
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
    figure = new_figure(height=min(2.0 + 0.22 * len(rows), 9.0))
    axes = figure.add_subplot()
    chosen = np.array([colours[place] for place in places], dtype=np.int64)
    fills, edges = (np.array(of)[chosen % len(of)] for of in (_FILLS, _EDGES))
    axes.add_collection(PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=0.4), autolim=False)
    axes.set_xlim(0, processors)
    axes.set_ylim(first + len(rows), first)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.grid(visible=False)
    wide, tall = 7.5 * 72 / processors, (figure.get_figheight() - 1.2) * 72 / max(len(rows), 1)
    for ((left, top), _, (right, bottom), _), place in zip(corners, places, strict=True):
        text = names[place]
        if (right - left) * wide > 5 * len(text) and (bottom - top) * tall > 8:
            axes.text((left + right) / 2, (top + bottom) / 2, text, fontsize=6.5, ha="center", va="center")
    return figure, axes
