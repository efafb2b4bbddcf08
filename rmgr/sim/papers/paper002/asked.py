"""Paper 002, what its checks and tables ask: the same functions first say which runs they need, then read what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rmgr.sim.gangs import SLOTS
from rmgr.sim.papers.paper002.cells import Measures, Paper002Run
from rmgr.sim.papers.report import mean, spread

#: Of the tree in figures 8 to 10; 2^7 is that of tables 2 to 4.
HEIGHTS = (7, 8, 9, 10, 11)
TABLES_HEIGHT = 7
#: Trees higher than this are run with `_FEW` seeds; batches are quick, and run with all.
_LOW, _FEW = 9, 2

_UNKNOWN = Measures(
    utilisation=1.0,
    useful=1.0,
    most_tqlb=1,
    retr=1.0,
    ended=1,
    longest_queue=1,
    tqlb=(1.0, 1, 1, 1),
    by_weight=((1, 1.0), (2, 1.0), (4, 1.0)),
    ratios=((1, 1.0), (2, 1.0), (4, 1.0)),
)


class Paper002Runs:
    """Measures of runs by what was run. Before anything was measured (`measures` None) it takes down what is asked, and answers ones."""

    def __init__(
        self,
        seeds: Sequence[int],
        measures: Mapping[Paper002Run, Measures] | None = None,
        *,
        heights: Sequence[int] = HEIGHTS,
        slots: int = SLOTS,
    ) -> None:
        self.seeds, self.heights = tuple(seeds), tuple(heights)
        self.asked: dict[Paper002Run, None] = {}
        self._measures, self._slots = measures, slots

    def all(self, *, height: int = TABLES_HEIGHT, **fields: Any) -> list[Measures]:
        """Of each seed. fields: of `Paper002Run`."""
        seeds = self.seeds if height <= _LOW or fields.get("kind") == "batch" else self.seeds[:_FEW]
        fields = {"leaves": 1 << height, **fields}
        cells = [Paper002Run(seed=seed, slots=self._slots, **fields) for seed in seeds]
        if self._measures is None:
            self.asked.update(dict.fromkeys(cells))
            return [_UNKNOWN] * len(cells)
        return [self._measures[cell] for cell in cells]

    def of(self, what: str | Callable[[Measures], float], **fields: Any) -> list[float]:
        """One value a seed."""
        if callable(what):
            return [float(what(found)) for found in self.all(**fields)]
        return [float(getattr(found, what)) for found in self.all(**fields)]

    def mean(self, what: str | Callable[[Measures], float], **fields: Any) -> float:
        return mean(self.of(what, **fields))

    def spread(self, what: str | Callable[[Measures], float], **fields: Any) -> float:
        return spread(self.of(what, **fields))

    def median(self, what: str, **fields: Any) -> float:
        return median(self.of(what, **fields))
