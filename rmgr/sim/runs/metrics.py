"""Measures of a run, in the words of the Standard Workload Format: wait, turnaround, slowdown, bounded slowdown, utilisation, makespan."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from math import fsum
from statistics import median

from rmgr.model.base.states import State
from rmgr.sim.engine.outcome import Parting, Result
from rmgr.sim.workload.jobs import SECOND

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
    A job that ran more than once counts with all its spells: what it waited is turnaround - all of them.
    jobs_rejected never could run; jobs_failed and jobs_cancelled are the others that did not complete.
    Cost: O(n log n) for the median; 24 bytes a job.
    """
    waits, turnarounds, runs = array("q"), array("q"), array("q")
    rejected, states, partings = 0, Counter[State](), Counter[Parting]()
    first, last, work = 0, 0, 0
    for outcome in result.outcomes:
        spells, job = outcome.spells, outcome.job
        if outcome.state is not State.COMPLETED:
            states[outcome.state] += 1
        if not spells:
            rejected += outcome.state is State.FAILED
            continue
        ran, turnaround = outcome.ran_us, outcome.turnaround_us
        first = min(first, job.submit_us) if runs else job.submit_us
        last = max(last, spells[-1].end_us)
        work += job.processors * ran
        waits.append(turnaround - ran)
        turnarounds.append(turnaround)
        runs.append(ran)
        if len(spells) > 1 or spells[0].parting is not Parting.ENDED:
            partings.update(spell.parting for spell in spells)
    count = len(runs)
    if count:
        bounded = fsum(max(1.0, turnaround / max(run, TAU_US)) for turnaround, run in zip(turnarounds, runs, strict=True))
        found: dict[str, int | float] = {
            "makespan": seconds(last - first),
            "mean_waiting_time": sum(waits) / count / SECOND,
            "median_waiting_time": seconds(median(waits)),
            "max_waiting_time": seconds(max(waits)),
            "mean_turnaround_time": sum(turnarounds) / count / SECOND,
            "mean_slowdown": fsum(turnaround / run for turnaround, run in zip(turnarounds, runs, strict=True)) / count,
            "mean_bounded_slowdown": bounded / count,
            "utilisation": work / (result.processors * (last - first)),
            "jobs_waiting_zero": waits.count(0),
        }
    else:
        found = dict.fromkeys(_NAMES, 0)
    found |= {
        "jobs": len(result.outcomes),
        "jobs_rejected": rejected,
        "jobs_failed": states[State.FAILED] - rejected,
        "jobs_cancelled": states[State.CANCELLED],
        "migrations": partings[Parting.MIGRATED],
        "suspensions": partings[Parting.SUSPENDED],
        "preemptions": partings[Parting.PREEMPTED],
        "lost_to_nodes": partings[Parting.LOST],
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
