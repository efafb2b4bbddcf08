"""Whole commands, from the shell to their end: their elapsed and processor time, compared with a Python that does nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from rmgr.bench.measuring import SAME_RUN, SETUP, Bench, MeasuringPlan, Row, over, row, two_slots, zookeeper_counts
from rmgr.bench.tasks import fill
from rmgr.model.units import percentile

#: Tasks and submissions in the queue meanwhile.
_TASKS, _SUBMISSIONS = 100_000, 100
#: Runs of each command in each repetition.
_TIMES = 20
_BASELINE = ("python -c pass", ("-c", "pass"))
#: Name -> arguments of rmgr.
_COMMANDS = {
    "rmgr --help": ("--help",),
    "rmgr status": ("status",),
    "rmgr jobs": ("jobs",),
    "rmgr submit --parsable -- true": ("submit", "--parsable", "--", "true"),
}
#: Exit status of `rmgr status` here, because no node of the cluster takes work.
_UNHEALTHY = 1


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a command. wall_ms, cpu_ms: of its process, from before its start to its end. transactions: of ZooKeeper meanwhile."""

    wall_ms: float
    cpu_ms: float
    transactions: float


def commands(plan: MeasuringPlan) -> list[Row]:
    """Measures `--help`, `status`, `jobs` and `submit` with 100,000 queued tasks in 100 submissions, each after a `python -c pass`."""
    tasks, submissions = plan.count(_TASKS), plan.count(_SUBMISSIONS)
    times = min(_TIMES, plan.count(_TIMES))
    medians: dict[str, list[float]] = {}
    runs: dict[str, list[_Run]] = {}
    with two_slots(plan) as bench:
        bench.command("drain", "n1", "--reason", "bench")
        plan.progress(f"queueing {tasks} tasks in {submissions} submissions")
        fill(bench, submissions, tasks)
        for _ in plan.rounds("commands"):
            found: dict[str, list[_Run]] = {}
            for _ in range(times):
                for name, words in _COMMANDS.items():
                    found.setdefault(_BASELINE[0], []).append(_run(bench, *_BASELINE[1]))
                    found.setdefault(name, []).append(_run(bench, "-m", "rmgr.cli.main", *words))
            for name, of_it in found.items():
                medians.setdefault(name, []).append(statistics.median(one.wall_ms for one in of_it))
                runs.setdefault(name, []).extend(of_it)
    what = f"{tasks} tasks in {submissions} submissions"
    return [_row(name, what, medians, runs) for name in (_BASELINE[0], *_COMMANDS)]


def _row(name: str, what: str, medians: dict[str, list[float]], runs: dict[str, list[_Run]]) -> Row:
    of_it = runs[name]
    return row(
        name,
        SAME_RUN if name == _BASELINE[0] else SETUP,
        f"whole command, {what}",
        "ms",
        medians[name],
        ratio=over(medians[name], medians[_BASELINE[0]]),
        p95_ms=percentile([one.wall_ms for one in of_it], 95),
        cpu_ms=statistics.median(one.cpu_ms for one in of_it),
        zookeeper_transactions=statistics.median(one.transactions for one in of_it),
    )


def _run(bench: Bench, *words: str) -> _Run:
    """Runs a command. Raises: CalledProcessError."""
    argv = [sys.executable, *words]
    before = zookeeper_counts(bench.cluster)[1]
    started = time.perf_counter()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, **bench.environment()})
    _, status, usage = os.wait4(child.pid, 0)
    wall_ms = (time.perf_counter() - started) * 1000
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in {0, _UNHEALTHY}:
        raise subprocess.CalledProcessError(child.returncode, argv)
    return _Run(wall_ms, (usage.ru_utime + usage.ru_stime) * 1000, zookeeper_counts(bench.cluster)[1] - before)
