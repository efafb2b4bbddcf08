"""Workloads of paper 002: tasks at constant intervals, sizes inversely proportional to their frequency, lengths uniform."""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from random import Random
from typing import NamedTuple

from rmgr.errors import RmgrError
from rmgr.sim.workload.streams import stream

#: Slots of one simulation, and the lengths of tasks (papers.md 3.4).
SLOTS = 1_000_000
SHORTEST, LONGEST = 500, 19_999
#: A workload is drawn until its realised ratio is as near to the load.
NEAR = 0.0005
_MOST_DRAWS = 100_000


class Task(NamedTuple):
    """One task. weight: adjacent entries in its queue."""

    arrival: int
    size: int
    length: int
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Settings of a workload. largest: sizes are powers of two up to here; odd: instead every size from 1 on, P(s) ~ 1/s.

    processors: of the machine that gives the load its meaning. weights: each task draws one of them.
    """

    processors: int
    load: float
    largest: int
    seed: int
    slots: int = SLOTS
    odd: bool = False
    weights: tuple[int, ...] = (1,)


def drawn(spec: Spec) -> list[Task]:
    """Tasks in order of arrival; the ratio sum(size x length) / (P x T) is within `NEAR` of the load.

    Runs too short for that (a task is worth more) take the nearest of 200 draws. Raises: RmgrError for a load that cannot be drawn.
    """
    sizes, weights = _sizes(spec)
    mean_size = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    interval = mean_size * (SHORTEST + LONGEST) / 2 / (spec.load * spec.processors)
    count = max(int(spec.slots / interval), 1)
    capacity = spec.processors * spec.slots
    chance = stream(spec.seed, "tasks")
    coarse = spec.largest * LONGEST > NEAR * capacity
    best: tuple[float, list[int], list[int]] | None = None
    for draw in range(_MOST_DRAWS):
        drawn_sizes = chance.choices(sizes, weights, k=count)
        lengths = [SHORTEST + int(chance.random() * (LONGEST - SHORTEST + 1)) for _ in range(count)]
        off = abs(sum(map(mul, drawn_sizes, lengths)) / capacity - spec.load)
        if best is None or off < best[0]:
            best = off, drawn_sizes, lengths
        if best[0] <= NEAR or (coarse and draw >= 200 and best[0] <= 20 * NEAR):
            break
    if best is None or best[0] > 20 * NEAR:
        raise RmgrError(f"no workload of load {spec.load} was drawn for {spec.processors} processors and {spec.slots} slots")
    return [
        Task(int(at * interval), size, length, weight)
        for at, (size, length, weight) in enumerate(zip(best[1], best[2], _weights(spec, count), strict=True))
    ]


def _sizes(spec: Spec) -> tuple[list[int], list[float]]:
    sizes = list(range(1, spec.largest + 1)) if spec.odd else [1 << k for k in range(spec.largest.bit_length())]
    return sizes, [1 / size for size in sizes]


def _weights(spec: Spec, count: int) -> list[int]:
    if len(spec.weights) == 1:
        return [spec.weights[0]] * count
    chance: Random = stream(spec.seed, "weights")
    return chance.choices(spec.weights, k=count)
