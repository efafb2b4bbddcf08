"""Workload model: Lublin and Feitelson 1999, rigid jobs with a daily cycle, batch and interactive.

Algorithm:
1. Size, from one random number u: 1 processor if u <= serial; else x = two-stage uniform on log2 scale ([low, med] with probability
   `first`, else [med, high]), rounded to a whole number if u <= serial + pow2; size = round(2^x), at most the machine.
2. Run time: floor(exp(g)) seconds, g from Gamma(a1, b1) with probability p = clamp(pa x size + pb, 0, 1), else Gamma(a2, b2); drawn
   again while g > 12 (two days).
3. Arrivals: each gap is worth exp(Gamma(aarr x arar, barr)) points, drawn again while the exponent is above 13; a half hour of the day
   uses up weight x 1800 points. Weights: differences of the cdf of Gamma(anum, bnum) at i +- 0.5 for half hours i = 11..58 of a cyclic
   day, normalised to mean 1. Batch and interactive jobs arrive independently; at equal times the interactive job comes first.
4. The requested time is the run time, since the model has no estimates.
Parameters: jobs; processors (128 takes the published constants; else high = log2(P), for interactive jobs 1.5 less, med = high - 2.5).
Source: papers.md 5.1; U. Lublin, D. G. Feitelson, "The workload on parallel supercomputers", JPDC 63(11), 2003; the archive's program.
Differs from it in: the random numbers themselves (one stream per purpose), and the first job is submitted at 0.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rmgr.errors import UsageError
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob, stream

_LONGEST_LOG = 12
_LONGEST_GAP_LOG = 13
_BUCKETS = 48
_BUCKET_S = 1800
_DAY_STARTS = 11  # half hours
_PUBLISHED = 128  # processors for which the constants were fitted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The constants of one kind of job (papers.md 5.1)."""

    name: str
    serial: float
    pow2: float
    low: float
    med: float
    high: float
    first: float
    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float
    aarr: float
    barr: float
    anum: float
    bnum: float
    arar: float

    def fitted_to(self, processors: int) -> _Kind:
        """Returns the kind with its sizes fitted to a machine of `processors`."""
        if processors == _PUBLISHED:
            return self
        high = math.log2(processors) - (math.log2(_PUBLISHED) - self.high)
        return replace(self, high=max(high, self.low), med=min(max(high - 2.5, self.low), max(high, self.low)))


BATCH = _Kind(
    name="batch", serial=0.2927, pow2=0.6686, low=1.2, med=5, high=7, first=0.875, a1=6.57, b1=0.823, a2=639.1, b2=0.0156, pa=-0.003,
    pb=0.6986, aarr=6.0415, barr=0.8531, anum=6.1271, bnum=5.2740, arar=1.0519,
)  # fmt: skip
INTERACTIVE = _Kind(
    name="interactive", serial=0.1541, pow2=0.625, low=1, med=3, high=5.5, first=0.705, a1=3.8351, b1=0.6605, a2=7.073, b2=0.6856,
    pa=-0.0118, pb=0.9156, aarr=6.5510, barr=0.6621, anum=8.9186, bnum=3.6680, arar=0.9797,
)  # fmt: skip
UNTYPED = _Kind(
    name="untyped", serial=0.244, pow2=0.576, low=0.8, med=4.5, high=7, first=0.86, a1=4.2, b1=0.94, a2=312, b2=0.03, pa=-0.0054,
    pb=0.78, aarr=10.2303, barr=0.4871, anum=8.1737, bnum=3.9631, arar=1.0225,
)  # fmt: skip
#: Name of a mix -> kinds of jobs in it; "" is the default of the archive's program.
MIXES: dict[str, tuple[_Kind, ...]] = {"": (INTERACTIVE, BATCH), "batch": (BATCH,), "interactive": (INTERACTIVE,), "untyped": (UNTYPED,)}


def lublin99(jobs: int, *, processors: int = _PUBLISHED, seed: int = 0, mix: str = "") -> Workload:
    """Draws `jobs` jobs for a machine of `processors`.

    Raises: UsageError for fewer than one job or two processors. Cost: about 10 us a job.
    """
    if jobs < 1 or processors < 2:
        raise UsageError(f"lublin99 cannot make {jobs} jobs for {processors} processors", hint="at least 1 job and 2 processors")
    sources = [_Source(kind.fitted_to(processors), seed) for kind in MIXES[mix]]
    found: list[WorkloadJob] = []
    origin = 0
    for number in range(1, jobs + 1):
        source = min(sources, key=_next_s)  # at equal times the first source: interactive
        submit, kind = int(source.next_s), source.kind
        source.advance()
        size = min(_size(kind, source.sizes), processors)
        run = _run_s(kind, size, source.runs)
        origin = submit if number == 1 else origin
        found.append(
            WorkloadJob(
                number=number,
                submit_us=(submit - origin) * SECOND,
                run_us=run * SECOND,
                estimate_us=run * SECOND,
                processors=size,
                processes=size,
                queue=kind.name,
            )
        )
    return Workload(name=f"lublin99{f':{mix}' if mix else ''}", jobs=tuple(found), processors=processors)


class _Source:
    """Arrivals of one kind of job. next_s: when its next job arrives."""

    def __init__(self, kind: _Kind, seed: int) -> None:
        self.kind = kind
        self.sizes = stream(seed, f"lublin99/{kind.name}/sizes")
        self.runs = stream(seed, f"lublin99/{kind.name}/run times")
        self.next_s = 0.0
        self._times = _arrival_times(kind, stream(seed, f"lublin99/{kind.name}/arrivals"))
        self.advance()

    def advance(self) -> None:
        self.next_s = next(self._times)


def _next_s(source: _Source) -> float:
    return source.next_s


def _size(kind: _Kind, rng: random.Random) -> int:
    chosen = rng.random()
    if chosen <= kind.serial:
        return 1
    low, high = (kind.low, kind.med) if rng.random() <= kind.first else (kind.med, kind.high)
    exponent = low + rng.random() * (high - low)
    if chosen <= kind.serial + kind.pow2:
        exponent = math.floor(exponent + 0.5)
    return math.floor(2**exponent + 0.5)


def _run_s(kind: _Kind, size: int, rng: random.Random) -> int:
    share = min(max(kind.pa * size + kind.pb, 0.0), 1.0)
    while True:
        shape, scale = (kind.a1, kind.b1) if rng.random() <= share else (kind.a2, kind.b2)
        log_run = rng.gammavariate(shape, scale)
        if log_run <= _LONGEST_LOG:
            return math.floor(math.exp(log_run))


def _arrival_times(kind: _Kind, rng: random.Random) -> Iterator[float]:
    """Yields arrival times endlessly (s since midnight of the first day). Buckets are counted, not added up, so that no error grows."""
    weights = weights_of(kind.anum, kind.bnum)
    bucket, points = 0, 0.0
    while True:
        log_gap = rng.gammavariate(kind.aarr * kind.arar, kind.barr)
        if log_gap > _LONGEST_GAP_LOG:
            continue
        points += math.exp(log_gap) / _BUCKET_S
        while points > weights[bucket % _BUCKETS]:
            points -= weights[bucket % _BUCKETS]
            bucket += 1
        yield (bucket + points / weights[bucket % _BUCKETS]) * _BUCKET_S


def weights_of(shape: float, scale: float) -> list[float]:
    """Returns how busy each half hour of the day is, from midnight on, with mean 1."""
    weights = [0.0] * _BUCKETS
    for i in range(_DAY_STARTS, _BUCKETS + _DAY_STARTS):
        weights[(i - 1) % _BUCKETS] = gamma_cdf(i + 0.5, shape, scale) - gamma_cdf(i - 0.5, shape, scale)
    mean = math.fsum(weights) / _BUCKETS
    return [weight / mean for weight in weights]


def gamma_cdf(x: float, shape: float, scale: float) -> float:
    """Returns P(Gamma(shape, scale) <= x) from the power series of the incomplete gamma function; exact to 1e-12 for x/scale below 50."""
    x /= scale
    term = total = 1 / shape
    n = shape
    while term > total * 1e-16:
        n += 1
        term *= x / n
        total += term
    return total * math.exp(-x + shape * math.log(x) - math.lgamma(shape))
