"""Paper 001, what its checks and tables ask: the same functions first say which runs they need, then read what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from rmgr.sim.papers.paper001.runs import ALGORITHMS, JOBS, Paper001Measures, Paper001Run
from rmgr.sim.papers.report import mean, spread

#: Fewer say nothing (papers.md 2.5).
LEAST_SEEDS = 3


class Paper001Runs:
    """Measures of runs by what was run. Before anything was measured (`measures` None) it takes down what is asked, and answers 1."""

    def __init__(self, seeds: Sequence[int], measures: Mapping[Paper001Run, Paper001Measures] | None = None, jobs: int = JOBS) -> None:
        self.seeds = tuple(seeds)
        self.suspend = "all"
        self.asked: dict[Paper001Run, None] = {}
        self._measures = measures
        self._jobs = jobs

    def with_suspend(self, suspend: str) -> Paper001Runs:
        """The same runs, but for the migrating algorithms, which suspend so many followers."""
        other = copy(self)
        other.suspend = suspend
        return other

    def of(self, measure: str, algorithm: str, interval: int, *, least_seeds: int = LEAST_SEEDS, **other: Any) -> list[float]:
        """One value a seed. least_seeds: if fewer are run, the next ones are added. other: fields of `Paper001Run`."""
        seeds = list(self.seeds)
        while len(seeds) < least_seeds:
            seeds.append(max(seeds) + 1)
        if ALGORITHMS[algorithm].migrates:
            other = {"suspend": self.suspend, **other}
        cells = [Paper001Run(algorithm=algorithm, interval=interval, seed=seed, jobs=self._jobs, **other) for seed in seeds]
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
