"""Workload model: a stand-in for Feitelson 1996. Rigid jobs of a parallel computer centre, calibrated by papers.md 2.3.

Algorithm:
1. Size: n in 1..processors with weight n^-1.5, times 8 when n >= 8 is a power of two, else times 2 when n >= 8 is a square or a
   multiple of 10.
2. Calculation time: exponential with mean 5,700 min with probability pL(n) = 0.10 + 0.80 log2(n) / 10, mean 430 min with probability
   pM(n) = min(0.30, 1 - pL(n)), else mean 30 min; the time of the chosen stage is drawn again until 10 min <= x <= 30 days.
3. Communication time: uniform on [0, 0.2 x calculation time]. The run time is the sum of both.
4. Arrivals: Poisson, mean gap `interarrival_min`. One seed draws the same unit gaps for every mean.
5. Repetitions, off by default: jobs of the same size and calculation time are submitted r times in a row, P(r) ~ r^-repeat_exponent,
   each with its own gap and communication time.
Parameters: `Constants`. Source: papers.md 2.3; D. G. Feitelson, "Packing schemes for gang scheduling", JSSPP 1996 (shape of the model).
Differs from it in: the archive's hand-tuned constants are not public; these constants are calibrated and can be configured. The requested
time is the run time, since the model has no estimates.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from rmgr.errors import UsageError
from rmgr.sim.workload.jobs import Workload, WorkloadJob, stream

MINUTE = 60_000_000
PROCESSORS = 1024
#: Exponent of repetitions that users of the archive report.
REPEAT_EXPONENT = 2.5
_MOST_REPEATS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Parameters, calibrated by papers.md 2.3. Times in minutes; probability of a stage for n processors: base + slope x log2(n) / 10."""

    size_exponent: float = 1.5
    emphasised_from: int = 8
    power_of_two_weight: float = 8.0
    square_or_ten_weight: float = 2.0
    long_mean_min: float = 5_700.0
    middle_mean_min: float = 430.0
    short_mean_min: float = 30.0
    long_base: float = 0.10
    long_slope: float = 0.80
    middle_most: float = 0.30
    shortest_min: float = 10.0
    longest_min: float = 43_200.0
    communication_share: float = 0.2
    interarrival_min: float = 500.0
    repeat_exponent: float | None = None  #: None = each job once

    def __post_init__(self) -> None:
        """Raises: UsageError for impossible times or weights."""
        times = ("interarrival_min", "long_mean_min", "middle_mean_min", "short_mean_min")
        for name in (*times, "power_of_two_weight", "square_or_ten_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"feitelson96: {name} is {getattr(self, name)}", hint="a finite number above 0")
        if not 0 < self.shortest_min < self.longest_min:
            raise UsageError(f"feitelson96: no time lies between {self.shortest_min} and {self.longest_min} min")
        if self.repeat_exponent is not None and not self.repeat_exponent > 1:
            raise UsageError(
                f"feitelson96: repeat_exponent is {self.repeat_exponent}", hint="above 1, as 2.5; without it each job comes once"
            )

    def size_weight(self, n: int) -> float:
        """Returns how often size n is drawn, relative to size 1."""
        weight = math.pow(n, -self.size_exponent)
        if n < self.emphasised_from:
            return weight
        if n & (n - 1) == 0:
            return weight * self.power_of_two_weight
        return weight * self.square_or_ten_weight if math.isqrt(n) ** 2 == n or n % 10 == 0 else weight

    def stages(self, n: int) -> tuple[tuple[float, float], ...]:
        """Returns (cumulative probability, mean in minutes) of each of the three stages."""
        long = min(self.long_base + self.long_slope * math.log2(n) / 10, 1.0)
        middle = min(self.middle_most, 1 - long)
        return ((long, self.long_mean_min), (long + middle, self.middle_mean_min), (math.inf, self.short_mean_min))


DEFAULT = Constants()


def feitelson96(jobs: int, *, processors: int = PROCESSORS, seed: int = 0, constants: Constants = DEFAULT) -> Workload:
    """Draws `jobs` jobs for a machine of `processors`; communication time is also stored on its own (`WorkloadJob.communication_us`).

    Raises: UsageError for fewer than one job or processor. Cost: about 5 us a job and 1 us a processor.
    """
    if jobs < 1 or processors < 1:
        raise UsageError(f"feitelson96 cannot make {jobs} jobs for {processors} processors", hint="at least 1 job and 1 processor")
    gaps, shares = stream(seed, "feitelson96/arrivals"), stream(seed, "feitelson96/communication times")
    asked = _asked(constants, processors, seed)
    found: list[WorkloadJob] = []
    submit_min = 0.0  # gaps are added up once, in one order, so that every policy sees the same times
    for number in range(1, jobs + 1):
        size, calculation_us = next(asked)
        communication_us = round(shares.random() * constants.communication_share * calculation_us)
        run_us = calculation_us + communication_us
        found.append(
            WorkloadJob(
                number=number,
                submit_us=round(submit_min * constants.interarrival_min * MINUTE),
                run_us=run_us,
                estimate_us=run_us,
                processors=size,
                processes=size,
                communication_us=communication_us,
            )
        )
        submit_min += gaps.expovariate(1.0)
    repeated = ":repeated" if constants.repeat_exponent is not None else ""
    return Workload(name=f"feitelson96{repeated}", jobs=tuple(found), processors=processors)


def _asked(constants: Constants, processors: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yields (size, calculation time in us) of one job after another, endlessly."""
    sizes, times = stream(seed, "feitelson96/sizes"), stream(seed, "feitelson96/calculation times")
    again = stream(seed, "feitelson96/repetitions")
    up_to = list(accumulate(constants.size_weight(n) for n in range(1, processors + 1)))
    repeats = _repeats(constants.repeat_exponent)
    while True:
        size = min(bisect_right(up_to, sizes.random() * up_to[-1]), processors - 1) + 1
        calculation_us = round(_calculation_min(constants, size, times) * MINUTE)
        count = min(bisect_right(repeats, again.random() * repeats[-1]), len(repeats) - 1) + 1
        for _ in range(count):
            yield size, calculation_us


def _repeats(exponent: float | None) -> list[float]:
    """Returns cumulative weights of 1, 2, ... submissions of one job."""
    return [1.0] if exponent is None else list(accumulate(math.pow(r, -exponent) for r in range(1, _MOST_REPEATS + 1)))


def _calculation_min(constants: Constants, size: int, rng: random.Random) -> float:
    chosen = rng.random()
    mean = next(mean for up_to, mean in constants.stages(size) if chosen < up_to)
    while True:
        time_min = rng.expovariate(1 / mean)
        if constants.shortest_min <= time_min <= constants.longest_min:
            return time_min
