"""Simulator against reality: a workload on a live cluster and in the simulator, under the same policies.

The simulator gets the same jobs, policy and nodes, and no costs at all: starts, stops and moves take no time in it.

`reality`: 60 jobs of 1 to 8 processes (one core each) that sleep 0.5 to 4 seconds arrive over some 25 s at eight Starters of one core.
It reports both makespans, and how much earlier or later than simulated the jobs started.

`classes`: paper 000 on live nodes, under the conventional system and both proposals. The classes, the sizes and the machine of HPC2500
are divided by 16: six classes on eight nodes of eight cores. 200 jobs of the model `hpc2500`, one of them over half of the machine, come
at load 1.1; their hours become seconds (the fifth root of their time). Under `conventional` each job names the class that its user chose;
under the proposals none does.

`WorkloadStage` plays a workload of the simulator on real nodes, here and in other benches: jobs are submitted at the workload's times and
run as long as it says. A job is a command that sleeps. When it is asked to stop (migration), it saves the rest of its time in its
checkpoint directory, and goes on with that. So both report the same: when each job started and ended, and how often it was stopped.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rmgr.bench.measuring import MeasuringPlan, Row, connected, over, row, scratch
from rmgr.client.connection import Connection
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import Engine
from rmgr.client.submission.handle import SilentListener
from rmgr.client.submission.packing import Buffer, TaskSpec, block_of
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.block import Fragment, Outcome
from rmgr.model.queue import PipelineSpec
from rmgr.model.states import State
from rmgr.model.submission import Command, Rigid, Submission, Work
from rmgr.model.units import percentile
from rmgr.procedures.admission import admit
from rmgr.sched.pipeline import pipeline_from
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.models.hpc2500 import hpc2500
from rmgr.sim.workload.jobs import SECOND, Workload, WorkloadJob
from rmgr.submitter.port import Order
from rmgr.submitter.questions import ApplySettings, ReadSettings

PARTITION = "default"
_QUEUE = "batch"
#: Sleeps "$1" milliseconds less what earlier attempts have slept; when asked to save, saves the rest.
_SLEEP = """cd "$RMGR_CHECKPOINT_DIR"; read -r left 2>/dev/null < left || left=$1
now() { read -r up _ < /proc/uptime; echo "${up%.*}${up#*.}0"; }
trap asked=yes USR1
while [ $left -gt 0 ]; do
    asked= began=$(now)
    sleep "$((left / 1000)).$(printf %03d $((left % 1000)))" & wait $!
    [ "$asked" ] || exit 0
    kill $!; left=$((left - $(now) + began)); [ $left -gt 0 ] || left=0
    echo $left > new; mv new left; cp .rmgr/number .rmgr/saved; [ ! -e .rmgr/stop ] || exit 85
done
"""
#: Sleeps argv[1] times 10 ms.
_NAPS = "import sys, time\nfor _ in range(int(sys.argv[1])): time.sleep(0.01)"
NODES, JOBS, SEED = 8, 60, 7
SETUP = f"1 ZooKeeper (fsync), SQLite, {NODES} Starters of 1 core"
#: Classes of a machine of eight cores; a job that names none goes to the strictest class that admits it.
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
#: Settings of `classes`.
CLASS_NODES, CLASS_CORES, CLASS_JOBS, CLASS_SEED = 8, 8, 200, 2
CLASS_SETUP = f"1 ZooKeeper (fsync), SQLite, {CLASS_NODES} Starters of {CLASS_CORES} cores"
_SCALE = 16
#: Run time here of a job of five seconds at Kyoto. Requested times add `_SLACK_US`, because starting a job takes time.
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
        "name": "d512", "max_cpus": 32, "max_processes": 32, "max_threads": 2, "reservation_threshold": 20, "max_reservations": 1,
        "head_trigger": True,
    },
)
CONVENTIONAL = "conventional"
#: System -> name of its policy.
SYSTEMS = {CONVENTIONAL: "queue_first_fit", "proposal 1": "queue_select", "proposal 2": "connection_reservation"}


def workload(jobs: int = JOBS) -> Workload:
    """Returns jobs of 1..8 processes and 0.5..4 s that ask for about 0.9 of the machine; requested times are up to three times too long."""
    rng = random.Random(SEED)
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
    """Seconds. late: live minus simulated first start of each job; moved: migrations, live and simulated."""

    makespan_s: float
    simulated_s: float
    late_s: tuple[float, ...]
    moved: tuple[int, int]

    @property
    def off(self) -> float:
        """Relative difference of the makespans."""
        return abs(self.makespan_s - self.simulated_s) / self.simulated_s


def simulated(jobs: Workload, document: Mapping[str, object], *, nodes: int = NODES, cores: int = 1) -> list[Played]:
    """Returns the simulator's result. Raises: RmgrError if a policy fails in it."""
    setting = Setting(nodes=nodes, cores=cores, pipeline=pipeline_from(document).stages, policy="reality")
    result = simulate(jobs, setting)
    if result.faults:
        raise RmgrError(f"the policy failed in the simulator: {result.faults[0][0]}")
    return [
        Played(number=one.job.number, start_us=one.start_us, end_us=one.end_us, attempts=len(one.spells), state=one.state)
        for one in result.outcomes
    ]


def compare(live: Sequence[Played], virtual: Sequence[Played]) -> Compared:
    """Compares job by job. Raises: RmgrError for jobs that did not run to their end."""
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
    """Measures all policies on one cluster, one after the other."""
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
    """Uses one cluster for all policies, one after the other; yields (name, simulated jobs, live jobs of each repetition).

    moving: names of policies under which jobs can move.
    """
    with scratch() as directory, DevCluster(directory / "cluster", nodes=nodes, cores=cores) as cluster, connected(cluster) as connection:
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
    live_s, virtual_s = [one.makespan_s for one in found], [one.simulated_s for one in found]
    return row("rmgr", setup, f"{what}: makespan", "s", live_s, ratio=over(live_s, virtual_s), simulated=virtual_s[0], **more)


# -- paper 000 at a small scale ------------------------------------------------------------------------------------------------


def classes(plan: MeasuringPlan) -> list[Row]:
    """Measures all three systems on one cluster, one after the other."""
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
    """Returns the mean wait (s) of the jobs that need at least a whole node."""
    waits = [one.start_us - job.submit_us for job, one in zip(jobs.jobs, played, strict=True) if job.processors >= CLASS_CORES]
    return statistics.fmean(waits) / 1e6 if waits else 0.0


def system_document(system: str, pace: float = 1.0) -> Mapping[str, object]:
    """Returns the pipeline of a system; pace: as for `system_workload`.

    The conventional system has no limits: its users chose by the limits of a machine 16 times as large, and some shapes do not fit them
    when scaled down (4 processes of 16 threads in s128 become 4 of one thread here, and s128 has room for one process).
    """
    if system == CONVENTIONAL:
        return {"stage": [{"policy": SYSTEMS[system]}], "queue": [{"name": queue["name"]} for queue in HPC2500_CLASSES]}
    below_us = _run_us(_HOURS_2, pace) + _SLACK_US
    queues = [{**queue, "max_time": f"{below_us / 1e6:.6f}s"} if queue["name"] == "ss8" else dict(queue) for queue in HPC2500_CLASSES]
    return {"stage": [{"policy": SYSTEMS[system]}], "queue": queues}


def system_workload(system: str, *, jobs: int = CLASS_JOBS, pace: float = 1.0) -> Workload:
    """Returns the jobs as that system gets them; pace: 0.5 makes all times half as long."""
    drawn = hpc2500(jobs, seed=CLASS_SEED, kind="user" if system == CONVENTIONAL else "")
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


# -- a workload on a live cluster ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A job as it ran. start_us: of its first attempt; end_us: of its last one; both since the first submission. attempts: 1 + its moves.

    submission: its number, 0 = simulated. state: COMPLETED, or what went wrong; why: the reason. nodes: of its last attempt, the head
    first.
    """

    number: int
    start_us: int
    end_us: int
    attempts: int
    submission: int = 0
    state: State = State.COMPLETED
    why: str = ""
    nodes: tuple[str, ...] = ()


class WorkloadStage:
    """A cluster on which workloads are played, one after the other. Nothing else may be submitted there.

    queue: of jobs that name none; workloads of several partitions may be played at once, each in queues of its own.
    """

    def __init__(self, connection: Connection, *, queue: str = _QUEUE) -> None:
        self._engine = connection.submitter
        self._queue = queue

    def use(self, pipeline: PipelineSpec) -> None:
        """Makes this pipeline place jobs from now on. Raises: Unavailable."""
        asks = self._engine.asks
        found = asks.ask(ReadSettings(), timeout_s=10.0)
        asks.ask(ApplySettings(settings=replace(found.settings, pipelines=(pipeline,)), version=found.version), timeout_s=10.0)

    def play(self, workload: Workload, *, patience_s: float = 300.0, checkpoints: bool = False, naps: bool = False) -> list[Played]:
        """Submits each job at its time, to the queue or class that it names, and waits for all; returns them in order of their numbers.

        checkpoints: jobs can move (one more shell per job). naps: jobs sleep 10 ms at a time (one Python per job).
        Raises: Unavailable for a job not ended `patience_s` after the last submission.
        """
        self._engine.settings()
        ends = [_End(job.number) for job in workload.jobs]
        began_ns, began_s = time.time_ns(), time.monotonic()
        for job, end in zip(workload.jobs, ends, strict=True):
            wait_s = began_s + job.submit_us / 1e6 - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            end.submission = self._submit(job, checkpoints=checkpoints, naps=naps)
            self._engine.attach(end.submission, end, own=False, timeout_s=30.0)
        until_s = time.monotonic() + patience_s
        for end in ends:
            if not end.over.wait(max(0.0, until_s - time.monotonic())):
                raise Unavailable(f"job {end.number} (submission {end.submission}) has not ended after {patience_s:g} s")
        return [end.played(began_ns // 1000) for end in ends]

    def _submit(self, job: WorkloadJob, *, checkpoints: bool, naps: bool) -> int:
        """Submits one job in one commit, as `rmgr submit` does; returns its number."""
        seconds = job.run_us / 1e6
        command: tuple[str, ...] = ("/bin/sleep", f"{seconds:.3f}")
        if checkpoints:
            command = ("/bin/sh", "-c", _SLEEP, "sh", str(round(seconds * 1000)))
        elif naps:
            command = (sys.executable, "-ISc", _NAPS, str(job.run_us // 10_000))
        options = Options(queue=job.queue or self._queue, name=f"job-{job.number}", cores=job.threads, time=job.estimate_us / 1e6)
        rigid = Rigid(processes=job.processes, checkpoint=checkpoints)
        return send(self._engine, command_draft(self._engine, command, options, rigid=rigid))


def command_draft(engine: Engine, argv: Sequence[str], options: Options, **fields: Any) -> Submission:
    """Returns the submission of a command, as the cluster admits it. fields: of the record, beside the options."""
    draft = draft_of(options, work=Work.COMMAND, command=Command(argv=tuple(argv)), user=engine.user, **fields)
    return admit(draft, engine.settings(), engine.nodes())


def send(engine: Engine, draft: Submission) -> int:
    """Submits one task in one commit, as `rmgr submit` does; returns the submission's number."""
    buffer = Buffer(single=True)
    buffer.add(TaskSpec(), [b""])
    (packed,) = buffer.take()
    key, data = block_of(packed, submission=0, priority=draft.priority, cores=draft.request.cores, memory_mib=0, user=draft.user)
    order = Order(draft=draft, blocks=[(key, data)], tasks=1, complete=True)
    return engine.submit(order, timeout_s=30.0).submission.id


def pipeline_with(name: str, document: Mapping[str, object]) -> PipelineSpec:
    """Returns the pipeline made of a policy file's tables."""
    return PipelineSpec(partition=PARTITION, document=json.dumps(document, sort_keys=True), name=name)


class _End(SilentListener):
    """Waits for the end of one job."""

    def __init__(self, number: int) -> None:
        self.number, self.submission, self.over = number, 0, threading.Event()
        self._found: tuple[Fragment, Outcome] | None = None
        self._error: RmgrError | None = None

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `handle.Listener`. Called on the Submitter's thread."""
        self._found = (fragment, outcomes[0])
        self.over.set()

    def on_dead(self, error: RmgrError) -> None:
        """See `handle.Listener`."""
        if self._found is None:
            self._error = error
            self.over.set()

    def played(self, began_us: int) -> Played:
        """Returns the job as it ran. Raises: the error of its submission, or Unavailable."""
        if self._found is None:
            raise self._error or Unavailable(f"job {self.number} is not told")
        fragment, outcome = self._found
        last_us = fragment.base_us + outcome.started_us
        first_us = min([last_us, *(past.started_us for past in outcome.past if past.started_us)])
        return Played(
            number=self.number,
            start_us=first_us - began_us,
            end_us=last_us + outcome.elapsed_us - began_us,
            attempts=1 + len(outcome.past),
            submission=self.submission,
            state=outcome.state,
            why=f"{outcome.reason} {outcome.error}".strip(),
            nodes=(fragment.node, *outcome.helpers),
        )
