"""Matrix of a gang (Ousterhout): slots downwards, cores to the right, a colour a job; what of it `--from` and `--to` choose."""

from __future__ import annotations

import numpy as np

from rmgr.errors import UsageError
from rmgr.sim.plots.parts.canvas import Figure, MaxNLocator, PolyCollection, named, new_figure
from rmgr.sim.plots.parts.reading import SPELLS, Floats, Integers, Run
from rmgr.sim.plots.parts.window import TimeWindow

#: More rows than this cannot be told apart.
MOST_SLOTS = 200
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
    """The picture: a row a slot, empty cells are idle cores. Raises: UsageError as `Slots`."""
    slots = Slots(run, window, MOST_SLOTS)
    corners: list[list[tuple[int, int]]] = []
    places: list[int] = []
    open_: dict[tuple[int, int, int], int] = {}  # what ran in the row before -> its rectangle
    for at, row in enumerate(slots.rows):
        before, open_ = open_, {}
        for place, first, last in row:
            known = before.get((place, first, last))
            if known is None or slots.start[at] - slots.start[at - 1] > 1.5 * slots.quantum:
                known = len(corners)
                corners.append([(first, at), (first, at + 1), (last + 1, at + 1), (last + 1, at)])
                places.append(place)
            (left, top), _, (right, _), _ = corners[known]
            corners[known] = [(left, top), (left, at + 1), (right, at + 1), (right, top)]
            open_[place, first, last] = known
    numbers = run.numbers[np.array(places, dtype=np.int64)]
    figure = new_figure(height=min(2.0 + 0.22 * len(slots.rows), 9.0))
    axes = figure.add_subplot()
    fills, edges = (np.array(colours)[numbers % len(colours)] for colours in (_FILLS, _EDGES))
    axes.add_collection(PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=0.4), autolim=False)
    axes.set_xlim(0, run.processors)
    axes.set_ylim(len(slots.rows), 0)
    axes.set_xlabel("core")
    told = f"slot of {slots.quantum:g} s"  # slots of several partitions begin at instants of their own
    axes.set_ylabel(told if len(run.trees) == 1 else f"beginnings of slots, in order ({told})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.grid(visible=False)
    wide, tall = 7.5 * 72 / run.processors, (figure.get_figheight() - 1.2) * 72 / max(len(slots.rows), 1)
    for ((left, top), _, (right, bottom), _), number in zip(corners, numbers.tolist(), strict=True):
        text = str(number)
        if (right - left) * wide > 5 * len(text) and (bottom - top) * tall > 8:
            axes.text((left + right) / 2, (top + bottom) / 2, text, fontsize=6.5, ha="center", va="center")
    named(axes, f"Slots of {run.title}", *run.facts, f"from {slots.start[0]:g} s" if len(slots.start) else "")
    return figure
