"""The scheduler by itself, without a cluster: simulated jobs per second compared with a bare event loop, and the time of one pass.

Nothing here waits, so times are processor times, on which other load of the machine has less effect.
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import get_context
from typing import TypeVar

from rmgr.bench.measuring import SAME_RUN, MeasuringPlan, Row, paired, row
from rmgr.errors import RmgrError
from rmgr.model.base import MIB
from rmgr.sched.catalogue import POLICIES
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Node, Running
from rmgr.sched.pipeline import configured
from rmgr.sched.plan import Plan as SchedulerPlan
from rmgr.sched.policy import Cause
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.engine.driver import simulate
from rmgr.sim.engine.outcome import Setting
from rmgr.sim.engine.validate import BARE_POLICIES, bare_starts
from rmgr.sim.models.lublin99 import lublin99
from rmgr.sim.workload.jobs import Workload, read_trace

T = TypeVar("T")

_SIMULATED = ("fcfs", "first_fit", "easy", "conservative")
_SIMULATOR = "simulator, validation off"
#: As many jobs, processors and work as in the trace KTH-SP2.
_JOBS, _PROCESSORS, _LOAD = 28_467, 100, Fraction(7, 10)
_LARGE, LARGE_POLICIES = (1_000_000, 100_000), ("first_fit", "easy")

#: Cores of a node.
_CORES = 16
#: (policy, cores of a node); policies missing in the catalogue are skipped. With one core, free nodes are a count, which is other code.
_PASSED = (("first_fit", _CORES), ("easy", _CORES), ("fair_share", _CORES), ("conservative", _CORES), ("conservative", 1))
#: The reference size, and the curves through it: (pending jobs, nodes).
_SIZE = (10_000, 1_000)
_CURVES = {"queue length": ((1_000, 1_000), _SIZE, (100_000, 1_000)), "nodes": ((10_000, 100), _SIZE, (10_000, 10_000), (10_000, 100_000))}
#: Passes of a repetition after the first, each after the end of one job and the arrival of another; slow passes (ms) are timed once.
_STEPS, _SLOW_MS = 5, 500.0
#: A curve ends before a size whose pass would take longer (ms), assuming growth with the square of the queue and with the nodes.
_PATIENCE_MS = 20_000.0
_USERS = 50
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_SECOND = 1_000_000
_STEP_CAUSES = frozenset({Cause.JOB_ENDED, Cause.JOB_SUBMITTED})


# -- whole simulations ---------------------------------------------------------------------------------------------------------


def sim(plan: MeasuringPlan) -> list[Row]:
    """Measures jobs/s of whole simulations of a trace, or of jobs like KTH-SP2's, each with a bare loop in the same repetition.

    The bare loop knows processors, but no nodes, reasons or reservations, and no conservative backfilling.
    With `plan.large`: a million jobs on 100,000 nodes instead, once, with the memory of the process.
    Raises: UsageError for a trace that cannot be used.
    """
    if plan.large:
        return _large(plan)
    workload = workload_of(plan)
    plain = [(job.submit_us, job.run_us, job.processors, job.estimate_us) for job in workload.jobs]
    rows: list[Row] = []
    for policy in _SIMULATED:
        what = f"{policy}, {len(workload.jobs)} jobs of {workload.name} on {workload.processors} processors"

        def ours(policy: str = policy) -> float:
            return _rate(workload, lambda: simulated(workload, policy))

        def bare(policy: str = policy) -> float:
            return _rate(workload, lambda: bare_starts(plain, workload.processors, policy))

        if policy in BARE_POLICIES:
            rows += paired(plan, ("bare event loop", SAME_RUN, bare), ("rmgr", _SIMULATOR, ours), what=what, unit="jobs/s")
        else:
            rows.append(row("rmgr", _SIMULATOR, what, "jobs/s", [ours() for _ in _repetitions(plan, what)]))
    return rows


def workload_of(plan: MeasuringPlan) -> Workload:
    """Returns the plan's trace, cut by its scale, or as many jobs of lublin99 with the load of KTH-SP2. Raises: UsageError."""
    if plan.trace:
        found = read_trace(plan.trace)
        return found.first(plan.count(len(found.jobs)))
    return lublin99(plan.count(_JOBS), processors=_PROCESSORS, seed=1).at_load(_LOAD)


def simulated(workload: Workload, policy: str) -> None:
    """Runs one simulation on nodes of one core. Raises: RmgrError if the policy fails in it."""
    result = simulate(workload, Setting(nodes=workload.processors, pipeline=configured(policy).stages, policy=policy))
    for fault, times in result.faults:
        raise RmgrError(f"policy {policy} failed {times} times, so its rate says nothing: {fault}")


def _large(plan: MeasuringPlan) -> list[Row]:
    rows = []
    jobs, nodes = plan.count(_LARGE[0]), plan.count(_LARGE[1])
    for policy in LARGE_POLICIES:
        what = f"{policy}, {jobs} jobs of lublin99 on {nodes} nodes"
        plan.progress(what)
        rate, peak_mib = _in_own_process(_large_rate, policy, jobs, nodes)
        rows.append(row("rmgr", _SIMULATOR, what, "jobs/s", [rate], seconds=jobs / rate, peak_mib=peak_mib))
    return rows


def _large_rate(policy: str, jobs: int, nodes: int) -> float:
    workload = lublin99(jobs, processors=nodes, seed=1).at_load(_LOAD)
    return _rate(workload, lambda: simulated(workload, policy))


def _in_own_process(measure: Callable[[str, int, int], T], policy: str, jobs: int, nodes: int) -> tuple[T, float]:
    """Runs a measurement in a process of its own; returns its result and the peak memory (MiB) of that process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_with_peak, measure, policy, jobs, nodes).result()


def _with_peak(measure: Callable[[str, int, int], T], policy: str, jobs: int, nodes: int) -> tuple[T, float]:
    found = measure(policy, jobs, nodes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB; on macOS bytes
    return found, peak / (MIB if sys.platform == "darwin" else 1024)


def _rate(workload: Workload, run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return len(workload.jobs) / (time.process_time() - began)


def _repetitions(plan: MeasuringPlan, what: str) -> range:
    plan.progress(what)
    return range(plan.repetitions)


# -- one pass ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PassScene:
    """State of the cluster when the passes begin.

    busy: share of its cores in use. running_s, pending_s: shortest and longest limits of jobs (s). wide: share of jobs that ask for an
    eighth of the machine.
    """

    name: str
    busy: float
    running_s: tuple[int, int] = (2 * _MINUTE_S, _DAY_S)
    pending_s: tuple[int, int] = (2 * _MINUTE_S, _DAY_S)
    wide: float = 0.01


BUSY = PassScene(name="97 % busy", busy=0.97)
#: Two more scenes at one size: as many starts in one pass as possible; and jobs that fit, each refused for the sake of the head.
EMPTY = PassScene(name="empty", busy=0.0)
BLOCKED = PassScene(
    name="97 % busy, few may pass the head", busy=0.97, running_s=(2 * _MINUTE_S, _HOUR_S), pending_s=(12 * _HOUR_S, _DAY_S), wide=0.0
)


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds, one value per repetition: of the first pass on a state, as after a take-over, and of a pass after single events."""

    first: list[float]
    steps: list[float]


def passes(plan: MeasuringPlan) -> list[Row]:
    """Measures milliseconds of one pass, at 10,000 pending jobs and 1,000 nodes and along two curves through that size.

    `rate`: a pass after the end of one job and the arrival of another, median of five; `first ms`: the first pass on a state, as
    after a take-over. `ratio`: to the smallest size of the curve; `growth`: the ratio divided by the ratio of the sizes, 1 = linear.
    With `plan.large`: at a million pending jobs and 100,000 nodes instead, once, with the memory of the process.
    """
    if plan.large:
        return _large_passes(plan)
    rows: list[Row] = []
    for policy, cores in (one for one in _PASSED if one[0] in POLICIES):
        known: dict[tuple[int, int], Timed] = {}
        for along, curve in _CURVES.items():
            rows += _curve(plan, policy, cores, along, curve, known)
        for scene in (EMPTY, BLOCKED):
            pending, nodes = plan.count(_SIZE[0]), plan.count(_SIZE[1])
            what = f"first {policy} pass, {pending} pending, {nodes} nodes, {scene.name}"
            plan.progress(what)
            found = timed(policy, pending, nodes, cores=cores, repetitions=plan.repetitions, scene=scene)
            rows.append(row("rmgr", _setup(cores, scene), what, "ms", found.first))
    return rows


def _curve(
    plan: MeasuringPlan, policy: str, cores: int, along: str, curve: tuple[tuple[int, int], ...], known: dict[tuple[int, int], Timed]
) -> list[Row]:
    rows: list[Row] = []
    first, before = 0.0, (1, 1)
    for pending, nodes in curve:
        size = plan.count(pending), plan.count(nodes)
        what = f"{policy} pass, {size[0]} pending, {size[1]} nodes"
        feared = first * (size[0] / before[0]) ** 2 * size[1] / before[1]
        if size not in known and feared > _PATIENCE_MS:
            plan.progress(f"{what}: left out, it may take {feared / 1000:.0f} s")
            break
        if size not in known:
            plan.progress(what)
            known[size] = timed(policy, *size, cores=cores, repetitions=plan.repetitions)
        found = known[size]
        first, steps = statistics.median(found.first), statistics.median(found.steps)
        ratio = steps / rows[0].rate if rows else 1.0
        growth = ratio * plan.count(curve[0][0]) * plan.count(curve[0][1]) / (size[0] * size[1])
        setup = f"{_setup(cores, BUSY)}; by {along}"
        rows.append(row("rmgr", setup, what, "ms", found.steps, ratio=ratio, first_ms=first, growth=growth))
        before = size
    return rows


def _large_passes(plan: MeasuringPlan) -> list[Row]:
    rows = []
    pending, nodes = plan.count(_LARGE[0]), plan.count(_LARGE[1])
    for policy in LARGE_POLICIES:
        what = f"{policy} pass, {pending} pending, {nodes} nodes"
        plan.progress(what)
        found, peak_mib = _in_own_process(_timed_once, policy, pending, nodes)
        rows.append(row("rmgr", _setup(_CORES, BUSY), what, "ms", found.steps, first_ms=found.first[0], peak_mib=peak_mib))
    return rows


def _timed_once(policy: str, pending: int, nodes: int) -> Timed:
    return timed(policy, pending, nodes, cores=_CORES, repetitions=1)


def _setup(cores: int, scene: PassScene) -> str:
    return f"no cluster, cores of a node: {cores}, {scene.name}"


def timed(policy: str, pending: int, nodes: int, *, cores: int = _CORES, repetitions: int, scene: PassScene = BUSY) -> Timed:
    """Times passes of a policy. Cost: the state is built anew for each repetition."""
    first, steps = [], []
    for seed in range(repetitions):
        passing = Passing(policy, pending, nodes, cores=cores, seed=seed, scene=scene)
        first.append(passing.next_ms())
        count = _STEPS if first[-1] < _SLOW_MS else 1
        steps.append(statistics.median(passing.next_ms(after_events=True) for _ in range(count)))
    return Timed(first, steps)


class Passing:
    """A state of a scene with so many pending jobs, on which pass after pass is run and its plan carried out.

    Jobs have 1 to 128 processes, a few of them (and the first waiting one) an eighth of the machine; sizes and limits are log-uniform.
    """

    def __init__(self, policy: str, pending: int, nodes: int, *, cores: int = _CORES, seed: int, scene: PassScene) -> None:
        self._random = random.Random(seed)
        self._machine, self._wide = nodes * cores, scene.wide
        found = configured(policy)
        self._pipeline = found.stages
        self._next, self._now = 1, 0
        self._state = ClusterState((Node(id=number, cores=cores) for number in range(nodes)), found.usage_half_life_us)
        self.running: list[Running] = []
        self._limits_s = scene.running_s
        wanted = int(self._machine * scene.busy)
        while wanted > 0:
            wanted -= self._submit(self._size(most=wanted)).cpus
        self._carry_out(run_pass(self._state, _STEP_CAUSES, now=0, seed=0, pipeline=configured("first_fit").stages))
        self.running.sort(key=lambda run: -run.end_us)
        self._limits_s = scene.pending_s
        self._submit(max(1, self._machine // 8))
        for _ in range(pending - 1):
            self._submit(self._size())

    @property
    def pending(self) -> int:
        """Number of waiting jobs."""
        return len(self._state.snapshot().waiting)

    def next_ms(self, *, after_events: bool = False) -> float:
        """Returns the milliseconds of the next pass, one second after the last one."""
        self._now += _SECOND
        if after_events and self.running:
            self._state.job_ended(self.running.pop().job.id, now=self._now)
            self._submit(self._size())
        began = time.process_time()
        plan = run_pass(self._state, _STEP_CAUSES, now=self._now, seed=0, pipeline=self._pipeline)
        elapsed_s = time.process_time() - began
        self._carry_out(plan)
        return elapsed_s * 1000

    def _carry_out(self, plan: SchedulerPlan) -> None:
        for fault in plan.faults:
            raise RmgrError(f"policy {fault.policy} fails, so its time says nothing: {fault.error}")
        self.running += self._state.apply(plan, self._now)

    def _size(self, most: int = 0) -> int:
        size = self._machine // 8 if self._random.random() < self._wide else int(2 ** self._random.uniform(0, 7))
        return max(1, min(size, most or size, self._machine // 2))

    def _submit(self, processes: int) -> Job:
        shortest_s, longest_s = self._limits_s
        limit_us = int(shortest_s * (longest_s / shortest_s) ** self._random.random()) * _SECOND
        user = f"u{self._random.randrange(_USERS)}"
        job = Job(id=self._next, submit_us=self._now, processes=processes, limit_us=limit_us, user=user, account=user)
        self._next += 1
        self._state.job_submitted(job)
        return job
