"""Simulator against reality: one workload on a live cluster and in the simulator, under the same policies.

60 jobs of 1 to 8 processes (one core each) that sleep 0.5 to 4 seconds arrive over some 25 s at eight Starters of one core. The simulator
is given the same jobs, the same policy and nodes, and no costs at all: starts, stops and moves take no time in it. Told are both
makespans, and by how much the jobs started earlier or later than it says.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmgr.bench.load.live_workload import Played, WorkloadStage, pipeline_with
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError
from rmgr.model.base.states import State
from rmgr.sched.pipeline import pipeline_from
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

NODES, JOBS, SEED = 8, 60, 7
SETUP = f"1 ZooKeeper (fsync), SQLite, {NODES} Starters of 1 core"
#: Classes of a machine of eight cores; a job that names none goes to the strictest that admits it.
_CLASSES: tuple[Mapping[str, object], ...] = (
    {"name": "s2", "max_cpus": 2, "max_processes": 2, "max_threads": 2},
    {"name": "d4", "max_cpus": 4, "max_processes": 4, "max_threads": 4, "reservation_threshold": 2, "max_reservations": 1},
    {"name": "d8", "max_cpus": 8, "max_processes": 8, "max_threads": 8, "reservation_threshold": 1, "max_reservations": 1},
)
#: Policy -> the tables of its pipeline.
POLICIES: dict[str, Mapping[str, object]] = {
    "fcfs": {"stage": [{"policy": "fcfs"}]},
    "easy": {"stage": [{"policy": "easy"}]},
    "connection_reservation": {"stage": [{"policy": "connection_reservation"}], "queue": list(_CLASSES)},
    "migration": {"stage": [{"policy": "migration"}]},
}


def workload(jobs: int = JOBS, seed: int = SEED) -> Workload:
    """Jobs of 1..8 processes and 0.5..4 s that ask for about 0.9 of the machine; requested times are up to three times too long."""
    rng = random.Random(seed)
    made, at_us = [], 0
    for number in range(1, jobs + 1):
        processes = rng.choices((1, 2, 3, 4, 6, 8), weights=(30, 25, 12, 18, 8, 7))[0]
        run_us = rng.randrange(500_000, 4_000_001, 1000)
        made.append(
            WorkloadJob(
                number=number,
                submit_us=at_us,
                run_us=run_us,
                estimate_us=-(-round(run_us * rng.uniform(1.2, 3.0)) // SECOND) * SECOND,
                processors=processes,
                processes=processes,
            )
        )
        at_us += round(rng.expovariate(1.0) * 750_000)
    return Workload(name="reality", jobs=tuple(made), processors=NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Seconds. late: of each job's first start, live minus simulated; moved: migrations live and simulated."""

    makespan_s: float
    simulated_s: float
    late_s: tuple[float, ...]
    moved: tuple[int, int]

    @property
    def off(self) -> float:
        """By what share the makespans differ."""
        return abs(self.makespan_s - self.simulated_s) / self.simulated_s


def simulated(jobs: Workload, document: Mapping[str, object], *, nodes: int = NODES, cores: int = 1) -> list[Played]:
    """What the simulator says. Raises: RmgrError when a policy fails in it."""
    setting = Setting(nodes=nodes, cores=cores, pipeline=pipeline_from(document).stages, policy="reality")
    result = simulate(jobs, setting)
    if result.faults:
        raise RmgrError(f"the policy failed in the simulator: {result.faults[0][0]}")
    return [
        Played(number=one.job.number, start_us=one.start_us, end_us=one.end_us, attempts=len(one.spells), state=one.state)
        for one in result.outcomes
    ]


def compare(live: Sequence[Played], virtual: Sequence[Played]) -> Compared:
    """Job by job. Raises: RmgrError for jobs that did not run to their end."""
    for one in (*live, *virtual):
        if one.state is not State.COMPLETED:
            raise RmgrError(f"job {one.number} (submission {one.submission}) ended {one.state}: {one.why}")
    return Compared(
        makespan_s=max(one.end_us for one in live) / 1e6,
        simulated_s=max(one.end_us for one in virtual) / 1e6,
        late_s=tuple((one.start_us - other.start_us) / 1e6 for one, other in zip(live, virtual, strict=True)),
        moved=(sum(one.attempts - 1 for one in live), sum(one.attempts - 1 for one in virtual)),
    )


def reality(plan: MeasuringPlan) -> list[Row]:
    """All policies on one cluster, one after the other."""
    jobs = workload(plan.count(JOBS))
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True) as where,
        DevCluster(Path(where) / "cluster", nodes=NODES, cores=1) as cluster,
        connected(cluster) as connection,
    ):
        stage = WorkloadStage(connection)
        for name, document in POLICIES.items():
            virtual = simulated(jobs, document)
            stage.use(pipeline_with(name, document))
            found = [compare(stage.play(jobs, checkpoints=name == "migration"), virtual) for _ in plan.rounds(name)]
            rows += _rows(name, found)
    return rows


def _rows(name: str, found: Sequence[Compared]) -> list[Row]:
    apart = [[abs(late) for late in one.late_s] for one in found]
    return [
        row(
            "rmgr",
            SETUP,
            f"{len(found[0].late_s)} jobs under {name}: makespan",
            "s",
            [one.makespan_s for one in found],
            ratio=statistics.median(one.makespan_s / one.simulated_s for one in found),
            simulated=found[0].simulated_s,
            off_percent=100 * statistics.median(one.off for one in found),
            moved=statistics.median(one.moved[0] for one in found),
            moved_simulated=found[0].moved[1],
        ),
        row(
            "rmgr",
            SETUP,
            "... start of a job, live and simulated apart, median",
            "s",
            [statistics.median(one) for one in apart],
            mean=statistics.fmean(value for one in apart for value in one),
            p90=statistics.median(sorted(one)[int(0.9 * len(one))] for one in apart),
            most=max(max(one) for one in apart),
        ),
    ]
