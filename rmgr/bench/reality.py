"""Simulator against reality: a workload on a live cluster and in the simulator, under the same policies.

The simulator is given the same jobs, the same policy and nodes, and no costs at all: starts, stops and moves take no time in it.

`reality`: 60 jobs of 1 to 8 processes (one core each) that sleep 0.5 to 4 seconds arrive over some 25 s at eight Starters of one core. Told
are both makespans, and by how much the jobs started earlier or later than it says.

`classes`: paper 000 on live nodes, under the conventional system and both proposals. The classes, the sizes and the machine of HPC2500
divided by 16: six classes on eight nodes of eight cores. 200 jobs of the model `hpc2500`, one of them over half of the machine, at load
1.1, whose hours become seconds (the fifth root of their time). Under `conventional` each names the class that its user chose; under
the proposals none does.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from rmgr.bench.load.live_workload import Played, WorkloadStage, pipeline_with
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row, scratch
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError
from rmgr.model.base.states import State
from rmgr.model.base.units import percentile
from rmgr.sched.pipeline import pipeline_from
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.models.hpc2500 import hpc2500
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
#: Of `classes`.
CLASS_NODES, CLASS_CORES, CLASS_JOBS, CLASS_SEED = 8, 8, 200, 2
CLASS_SETUP = f"1 ZooKeeper (fsync), SQLite, {CLASS_NODES} Starters of {CLASS_CORES} cores"
_SCALE = 16
#: A job of five seconds at Kyoto runs so long here; its requested time is longer by `_SLACK_US`: what a start costs is not in it.
_SHORTEST_US = 1_500_000
_SLACK_US = 60 * SECOND
#: The requested time of ss8 must be below two hours of Kyoto.
_HOURS_2 = 7200
HPC2500_CLASSES: tuple[Mapping[str, object], ...] = (
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
    for name, virtual, lives in _played(plan, POLICIES, dict.fromkeys(POLICIES, jobs), nodes=NODES, cores=1, moving=("migration",)):
        rows += _rows(name, [compare(live, virtual) for live in lives])
    return rows


def _played(
    plan: MeasuringPlan,
    tables: Mapping[str, Mapping[str, object]],
    jobs: Mapping[str, Workload],
    *,
    nodes: int,
    cores: int,
    moving: Collection[str] = (),
) -> Iterator[tuple[str, list[Played], list[list[Played]]]]:
    """One cluster for all policies, one after the other: (name, what the simulator says, what happened in each repetition).

    moving: whose jobs can move.
    """
    with (
        scratch() as directory,
        DevCluster(directory / "cluster", nodes=nodes, cores=cores) as cluster,
        connected(cluster) as connection,
    ):
        stage = WorkloadStage(connection)
        for name, document in tables.items():
            virtual = simulated(jobs[name], document, nodes=nodes, cores=cores)
            stage.use(pipeline_with(name, document))
            yield name, virtual, [stage.play(jobs[name], checkpoints=name in moving) for _ in plan.rounds(name)]


def _rows(name: str, found: Sequence[Compared]) -> list[Row]:
    apart = [[abs(late) for late in one.late_s] for one in found]
    return [
        _makespan(
            SETUP,
            f"{len(found[0].late_s)} jobs under {name}",
            found,
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
            p90=statistics.median(percentile(one, 90) for one in apart),
            most=max(max(one) for one in apart),
        ),
    ]


def _makespan(setup: str, what: str, found: Sequence[Compared], **more: float) -> Row:
    return row(
        "rmgr",
        setup,
        f"{what}: makespan",
        "s",
        [one.makespan_s for one in found],
        ratio=statistics.median(one.makespan_s / one.simulated_s for one in found),
        simulated=found[0].simulated_s,
        **more,
    )


# -- paper 000 in small --------------------------------------------------------------------------------------------------------


def classes(plan: MeasuringPlan) -> list[Row]:
    """All three on one cluster, one after the other."""
    count = plan.count(CLASS_JOBS)
    rows: list[Row] = []
    tables = {system: system_document(system) for system in SYSTEMS}
    jobs = {system: system_workload(system, jobs=count) for system in SYSTEMS}
    for system, virtual, lives in _played(plan, tables, jobs, nodes=CLASS_NODES, cores=CLASS_CORES):
        found = [compare(live, virtual) for live in lives]
        rows.append(
            _makespan(
                CLASS_SETUP,
                f"{count} jobs, {system}",
                found,
                large_wait=statistics.median(_waits(jobs[system], live) for live in lives),
                large_wait_simulated=_waits(jobs[system], virtual),
            )
        )
    return rows


def _waits(jobs: Workload, played: Sequence[Played]) -> float:
    """Mean wait (s) of the jobs of at least a whole node."""
    waits = [one.start_us - job.submit_us for job, one in zip(jobs.jobs, played, strict=True) if job.processors >= CLASS_CORES]
    return statistics.fmean(waits) / 1e6 if waits else 0.0


def system_document(system: str, pace: float = 1.0) -> Mapping[str, object]:
    """The pipeline of a system; pace: as for `system_workload`.

    The conventional one has no limits: its users chose by those of the machine 16 times as large, and some shapes cannot be scaled down
    into them (4 processes of 16 threads in s128 are 4 of one here, and s128 has room for one process).
    """
    if system == CONVENTIONAL:
        return {"stage": [{"policy": SYSTEMS[system]}], "queue": [{"name": queue["name"]} for queue in HPC2500_CLASSES]}
    below_us = _run_us(_HOURS_2, pace) + _SLACK_US
    queues = [{**queue, "max_time": f"{below_us / 1e6:.6f}s"} if queue["name"] == "ss8" else dict(queue) for queue in HPC2500_CLASSES]
    return {"stage": [{"policy": SYSTEMS[system]}], "queue": queues}


def system_workload(system: str, *, jobs: int = CLASS_JOBS, seed: int = CLASS_SEED, pace: float = 1.0) -> Workload:
    """The jobs as that system gets them; pace: 0.5 makes all times half as long."""
    drawn = hpc2500(jobs, seed=seed, kind="user" if system == CONVENTIONAL else "")
    small = [_small(job, pace) for job in drawn.jobs]
    work_us = sum(job.processors * job.run_us for job in small)
    spread = Fraction(work_us, CLASS_NODES * CLASS_CORES) / Fraction("1.1") / max(1, drawn.span_us)
    placed = tuple(replace(job, submit_us=int(job.submit_us * spread) // 1000 * 1000) for job in small)
    return Workload(name=f"hpc2500/{_SCALE}", jobs=placed, processors=CLASS_NODES * CLASS_CORES)


def _small(job: WorkloadJob, pace: float) -> WorkloadJob:
    cpus = max(1, job.processors // _SCALE)
    threads = cpus if job.processes == 1 else 2 if job.threads > _SCALE and cpus % 2 == 0 else 1
    run_us = _run_us(job.run_us / SECOND, pace)
    estimate_us = run_us + _SLACK_US
    return replace(job, processors=cpus, processes=cpus // threads, threads=threads, run_us=run_us, estimate_us=estimate_us)


def _run_us(seconds: float, pace: float) -> int:
    longer: float = (seconds / 5) ** 0.2
    return round(_SHORTEST_US * pace * longer) // 1000 * 1000
