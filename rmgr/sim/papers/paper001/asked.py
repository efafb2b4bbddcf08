"""Paper 001, what its checks and tables ask: the same functions first say which runs they need, then read what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from rmgr.sim.papers.paper001.runs import ALGORITHMS, JOBS, READINGS, Paper001Measures, Paper001Run
from rmgr.sim.papers.report import mean, spread

#: Fewer say nothing (papers.md 2.5).
LEAST_SEEDS = 3
#: Mean gaps between arrivals in minutes, from the paper's lowest to its highest.
INTERVALS = (500, 600, 800, 1000, 1250, 1500, 2000)
QUICK_INTERVALS = (500, 600, 2000)
#: Minutes a node, figure 4.
PENALTIES = (1, 10, 20, 30, 40, 50, 60)


class Paper001Runs:
    """Measures of runs by what was run. Before anything was measured (`measures` None) it takes down what is asked, and answers 1."""

    def __init__(
        self,
        seeds: Sequence[int],
        measures: Mapping[Paper001Run, Paper001Measures] | None = None,
        jobs: int = JOBS,
        *,
        quick: bool = False,
    ) -> None:
        self.seeds = tuple(seeds)
        self.quick = quick
        self.intervals = QUICK_INTERVALS if quick else INTERVALS
        self.penalties = (PENALTIES[0], PENALTIES[-1]) if quick else PENALTIES
        self.fields: dict[str, Any] = {}
        self.asked: dict[Paper001Run, None] = {}
        self._measures = measures
        self._jobs = jobs

    def having(self, **fields: Any) -> Paper001Runs:
        """The same runs with these fields of `Paper001Run`; how to migrate is said to the migrating algorithms only."""
        other = copy(self)
        other.fields = self.fields | fields
        return other

    def with_least_seeds(self) -> Paper001Runs:
        """The same runs of the first three seeds, for what is shown and not judged."""
        other = copy(self)
        other.seeds = self.seeds[:LEAST_SEEDS]
        return other

    def of(self, measure: str, algorithm: str, interval: int, *, least_seeds: int = LEAST_SEEDS, **other: Any) -> list[float]:
        """One value a seed. least_seeds: if fewer are run, the next ones are added. other: fields of `Paper001Run`."""
        seeds = list(self.seeds)
        while len(seeds) < least_seeds:
            seeds.append(max(seeds) + 1)
        fields = self.fields | other
        if not ALGORITHMS[algorithm].migrates:
            fields = {name: value for name, value in fields.items() if name not in READINGS}
        cells = [Paper001Run(algorithm=algorithm, interval=interval, seed=seed, jobs=self._jobs, **fields) for seed in seeds]
        if self._measures is None:
            self.asked.update(dict.fromkeys(cells))
            return [1.0] * len(cells)
        return [float(getattr(self._measures[cell], measure)) for cell in cells]

    def mean(self, measure: str, algorithm: str, interval: int, **other: Any) -> float:
        return mean(self.of(measure, algorithm, interval, **other))

    def spread(self, measure: str, algorithm: str, interval: int, **other: Any) -> float:
        return spread(self.of(measure, algorithm, interval, **other))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Of the means over the seeds."""
    return mean(above) / mean(below)


def ratio_spread(above: Sequence[float], below: Sequence[float]) -> float:
    """Standard deviation of the seeds' own ratios."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """left - right, seed by seed: the seeds share their workload."""
    return [a - b for a, b in zip(left, right, strict=True)]
