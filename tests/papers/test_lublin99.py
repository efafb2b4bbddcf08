"""The model of Lublin and Feitelson follows papers.md 5.1: distributions within sampling error, independent streams."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from rmgr.errors import UsageError
from rmgr.sim.models.lublin99 import BATCH, INTERACTIVE, UNTYPED, gamma_cdf, lublin99, weights_of
from rmgr.sim.workload.jobs import SECOND


@pytest.mark.parametrize("kind", [BATCH, INTERACTIVE, UNTYPED])
def test_sizes_are_serial_power_of_two_or_other_as_often_as_the_constants_say(kind: object) -> None:
    jobs = lublin99(20_000, mix=kind.name).jobs  # type: ignore[attr-defined]
    serial = sum(job.processors == 1 for job in jobs) / len(jobs)
    powers = sum(job.processors > 1 and job.processors.bit_count() == 1 for job in jobs) / len(jobs)
    error = 4 * math.sqrt(0.25 / len(jobs))
    # `other` jobs that happen to round to a power of two, and sizes of 1 from x < 0.58, are in no constant: hence "at least".
    assert kind.serial - error < serial < kind.serial + error + 0.02  # type: ignore[attr-defined]
    assert powers > kind.pow2 - error - 0.02  # type: ignore[attr-defined]
    assert max(job.processors for job in jobs) <= 128


def test_run_times_follow_the_mixture_of_two_gammas() -> None:
    jobs = [job for job in lublin99(40_000, mix="batch").jobs if job.processors == 1]
    logs = [math.log(job.run_us / SECOND) for job in jobs]
    share = BATCH.pa + BATCH.pb
    # E[g | g <= 12]: cutting at 12 removes the tail of both gammas; Gamma(a, b) cut at c has mean a b F(c; a+1) / F(c; a).
    mass = [w * gamma_cdf(12, a, b) for w, a, b in ((share, BATCH.a1, BATCH.b1), (1 - share, BATCH.a2, BATCH.b2))]
    first = [w * a * b * gamma_cdf(12, a + 1, b) for w, a, b in ((share, BATCH.a1, BATCH.b1), (1 - share, BATCH.a2, BATCH.b2))]
    assert fmean(logs) == pytest.approx(sum(first) / sum(mass), abs=0.08)
    assert max(job.run_us for job in jobs) <= math.exp(12) * SECOND
    assert min(job.run_us for job in jobs) >= SECOND


def test_the_day_has_its_cycle() -> None:
    weights = weights_of(BATCH.anum, BATCH.bnum)
    assert fmean(weights) == pytest.approx(1)
    assert weights.index(max(weights)) == 26  # the half hour from 13:00 on
    assert weights.index(min(weights)) == 9  # and the quietest: from 4:30 on
    assert gamma_cdf(1, 1, 1) == pytest.approx(1 - math.exp(-1), abs=1e-12)


def test_one_seed_gives_one_workload_and_another_seed_another() -> None:
    assert lublin99(500, seed=3) == lublin99(500, seed=3)
    assert lublin99(500, seed=3) != lublin99(500, seed=4)
    # A stream a purpose: more jobs, the same beginning; another mix, the same sizes of batch jobs.
    assert lublin99(400, seed=3).jobs == lublin99(500, seed=3).jobs[:400]
    mixed = [job.processors for job in lublin99(500, seed=3).jobs if job.queue == "batch"]
    assert mixed == [job.processors for job in lublin99(500, seed=3, mix="batch").jobs][: len(mixed)]


@pytest.mark.parametrize("processors", [2, 16, 1000])
def test_other_machines_get_jobs_that_fit(processors: int) -> None:
    workload = lublin99(2000, processors=processors)
    assert max(job.processors for job in workload.jobs) <= processors
    assert [job.submit_us for job in workload.jobs] == sorted(job.submit_us for job in workload.jobs)
    assert workload.jobs[0].submit_us == 0


def test_no_jobs_are_no_workload() -> None:
    with pytest.raises(UsageError, match="cannot make 0 jobs"):
        lublin99(0)
