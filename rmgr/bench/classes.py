"""Seed 000 on live nodes: one workload under the conventional system and both proposals, and the same three in the simulator.

The classes, the sizes and the machine of HPC2500 divided by 16: six classes on eight nodes of eight cores. 200 jobs of the model
`hpc2500`, one of them over half of the machine, at load 1.1, whose hours become seconds (the fifth root of their time). Under
`conventional` each names the class that its user chose; under the proposals none does.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from rmgr.bench.load.live_workload import WorkloadStage, pipeline_with
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row
from rmgr.bench.reality import Compared, compare, simulated
from rmgr.dev.cluster import DevCluster
from rmgr.sim.models.hpc2500 import hpc2500
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob

NODES, CORES, JOBS, SEED = 8, 8, 200, 2
SETUP = f"1 ZooKeeper (fsync), SQLite, {NODES} Starters of {CORES} cores"
_SCALE = 16
#: A job of five seconds at Kyoto runs so long here; its requested time is longer by `_SLACK_US`: what a start costs is not in it.
_SHORTEST_US = 1_500_000
_SLACK_US = 60 * SECOND
#: The requested time of ss8 must be below two hours of Kyoto.
_HOURS_2 = 7200
QUEUES: tuple[Mapping[str, object], ...] = (
    {"name": "ss8", "max_cpus": 1, "max_processes": 1, "max_threads": 1},
    {"name": "s8", "max_cpus": 1, "max_processes": 1, "max_threads": 1},
    {"name": "s128", "max_cpus": 8, "max_processes": 1, "max_threads": 8, "reservation_threshold": 30, "max_reservations": 1},
    {"name": "d32", "max_cpus": 2, "max_processes": 2, "max_threads": 2, "reservation_threshold": 20, "max_reservations": 3},
    {"name": "d128", "max_cpus": 8, "max_processes": 8, "max_threads": 2, "reservation_threshold": 20, "max_reservations": 2},
    {
        "name": "d512",
        "max_cpus": 32,
        "max_processes": 32,
        "max_threads": 2,
        "reservation_threshold": 20,
        "max_reservations": 1,
        "head_trigger": True,
    },
)
CONVENTIONAL = "conventional"
#: System -> its policy.
SYSTEMS = {CONVENTIONAL: "queue_first_fit", "proposal 1": "queue_select", "proposal 2": "connection_reservation"}


def document(system: str, pace: float = 1.0) -> Mapping[str, object]:
    """The pipeline of a system; pace: as for `workload`.

    The conventional one has no limits: its users chose by those of the machine 16 times as large, and some shapes cannot be scaled down
    into them (4 processes of 16 threads in s128 are 4 of one here, and s128 has room for one process).
    """
    if system == CONVENTIONAL:
        return {"stage": [{"policy": SYSTEMS[system]}], "queue": [{"name": queue["name"]} for queue in QUEUES]}
    below_us = _run_us(_HOURS_2, pace) + _SLACK_US
    queues = [{**queue, "max_time": f"{below_us / 1e6:.6f}s"} if queue["name"] == "ss8" else dict(queue) for queue in QUEUES]
    return {"stage": [{"policy": SYSTEMS[system]}], "queue": queues}


def workload(system: str, *, jobs: int = JOBS, seed: int = SEED, pace: float = 1.0) -> Workload:
    """The jobs as that system gets them; pace: 0.5 makes all times half as long."""
    drawn = hpc2500(jobs, seed=seed, kind="user" if system == CONVENTIONAL else "")
    small = [_small(job, pace) for job in drawn.jobs]
    work_us = sum(job.processors * job.run_us for job in small)
    spread = Fraction(work_us, NODES * CORES) / Fraction("1.1") / max(1, drawn.span_us)
    placed = tuple(replace(job, submit_us=int(job.submit_us * spread) // 1000 * 1000) for job in small)
    return Workload(name=f"hpc2500/{_SCALE}", jobs=placed, processors=NODES * CORES)


def _small(job: WorkloadJob, pace: float) -> WorkloadJob:
    cpus = max(1, job.processors // _SCALE)
    threads = cpus if job.processes == 1 else 2 if job.threads > _SCALE and cpus % 2 == 0 else 1
    run_us = _run_us(job.run_us / SECOND, pace)
    estimate_us = run_us + _SLACK_US
    return replace(job, processors=cpus, processes=cpus // threads, threads=threads, run_us=run_us, estimate_us=estimate_us)


def _run_us(seconds: float, pace: float) -> int:
    longer: float = (seconds / 5) ** 0.2
    return round(_SHORTEST_US * pace * longer) // 1000 * 1000


def classes(plan: MeasuringPlan) -> list[Row]:
    """All three on one cluster, one after the other."""
    count = plan.count(JOBS)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True) as where,
        DevCluster(Path(where) / "cluster", nodes=NODES, cores=CORES) as cluster,
        connected(cluster) as connection,
    ):
        stage = WorkloadStage(connection)
        for system in SYSTEMS:
            jobs = workload(system, jobs=count)
            tables = document(system)
            virtual = simulated(jobs, tables, nodes=NODES, cores=CORES)
            stage.use(pipeline_with(system, tables))
            found: list[Compared] = []
            waits: list[tuple[float, float]] = []
            for _ in plan.rounds(system):
                live = stage.play(jobs)
                found.append(compare(live, virtual))
                waits.append((_waits(jobs, [one.start_us for one in live]), _waits(jobs, [one.start_us for one in virtual])))
            rows.append(
                row(
                    "rmgr",
                    SETUP,
                    f"{count} jobs, {system}: makespan",
                    "s",
                    [one.makespan_s for one in found],
                    ratio=statistics.median(one.makespan_s / one.simulated_s for one in found),
                    simulated=found[0].simulated_s,
                    large_wait=statistics.median(one for one, _ in waits),
                    large_wait_simulated=waits[0][1],
                )
            )
    return rows


def _waits(jobs: Workload, starts_us: list[int]) -> float:
    """Mean wait (s) of the jobs of at least a whole node."""
    waits = [start - job.submit_us for job, start in zip(jobs.jobs, starts_us, strict=True) if job.processors >= CORES]
    return statistics.fmean(waits) / 1e6 if waits else 0.0
