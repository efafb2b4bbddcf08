"""Measures of a run, in the words of the Standard Workload Format: wait, turnaround, slowdown, bounded slowdown, utilisation, makespan."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from statistics import median

from rmgr.sim.outcome import Result
from rmgr.sim.workload import SECOND

#: Bounded slowdown counts a run as at least this long (papers.md, common rules).
TAU_US = 10 * SECOND
#: What is measured of the simulator itself and therefore never the same twice.
MEASURED = ("wall_seconds", "jobs_per_second")


def seconds(time_us: float) -> int | float:
    """Microseconds as seconds; whole ones stay integers."""
    whole, rest = divmod(time_us, SECOND)
    return time_us / SECOND if rest else int(whole)


def summary(result: Result) -> dict[str, int | float]:
    """The measures of cli.md section 9, over all jobs that ran, without warm-up; times in seconds.

    Makespan = last end - first submit; utilisation = sum(processors x run time) / (machine x makespan); slowdown = turnaround / run
    time; bounded slowdown = max(1, turnaround / max(run time, 10 s)). Sums are exact, so the order of jobs changes no digit.
    Cost: O(n log n) for the median.
    """
    ran = [outcome for outcome in result.outcomes if outcome.spells]
    if not ran:
        nothing: dict[str, int | float] = dict.fromkeys(_NAMES, 0)
        return nothing | {"jobs": len(result.outcomes), "jobs_rejected": len(result.outcomes), "passes": result.passes} | _measured(result)
    waits = [outcome.wait_us for outcome in ran]
    turnarounds = [outcome.turnaround_us for outcome in ran]
    runs = [outcome.ran_us for outcome in ran]
    count = len(ran)
    makespan = max(outcome.end_us for outcome in ran) - min(outcome.job.submit_us for outcome in ran)
    work = sum(outcome.job.processors * run for outcome, run in zip(ran, runs, strict=True))
    bounded = fsum(max(1.0, turnaround / max(run, TAU_US)) for turnaround, run in zip(turnarounds, runs, strict=True))
    found: dict[str, int | float] = {
        "makespan": seconds(makespan),
        "mean_waiting_time": sum(waits) / count / SECOND,
        "median_waiting_time": seconds(median(waits)),
        "max_waiting_time": seconds(max(waits)),
        "mean_turnaround_time": sum(turnarounds) / count / SECOND,
        "mean_slowdown": fsum(turnaround / run for turnaround, run in zip(turnarounds, runs, strict=True)) / count,
        "mean_bounded_slowdown": bounded / count,
        "utilisation": work / (result.processors * makespan),
        "jobs_waiting_zero": waits.count(0),
        "jobs": len(result.outcomes),
        "jobs_rejected": len(result.outcomes) - count,
        "passes": result.passes,
    }
    return found | _measured(result)


_NAMES = (
    "makespan",
    "mean_waiting_time",
    "median_waiting_time",
    "max_waiting_time",
    "mean_turnaround_time",
    "mean_slowdown",
    "mean_bounded_slowdown",
    "utilisation",
    "jobs_waiting_zero",
)


def _measured(result: Result) -> dict[str, float]:
    wall = result.wall_seconds
    return dict(zip(MEASURED, (wall, len(result.outcomes) / wall if wall > 0 else 0.0), strict=True))


def reproducible(found: Mapping[str, int | float]) -> dict[str, int | float | None]:
    """The summary as it is written to a file: the same bytes from the same run, so what is measured of the simulator is null."""
    return {name: None if name in MEASURED else value for name, value in found.items()}
