"""The simulator's driver: virtual time feeds facts to the scheduler's state, runs one pass an instant, and carries out its plan.

The leader does the same with facts from ZooKeeper and a real clock: state, vetting, policies and cadence are the very same objects.
At one instant: ends, then arrivals, then timers, then exactly one pass (papers.md, common rules). With `tick_us` passes happen
only at multiples of it, as in systems whose scheduler runs every few minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rmgr.errors import RmgrError
from rmgr.model.states import State
from rmgr.sched import job as sched
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Running
from rmgr.sched.plan import Plan, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state import ClusterState
from rmgr.sim.kernel import Kernel, Rank
from rmgr.sim.machine import Machine
from rmgr.sim.outcome import Outcome, Result, Spell
from rmgr.sim.workload import Job, Workload

#: Plain integers: compared once an event.
_END, _ARRIVAL, _TIME = int(Rank.END), int(Rank.ARRIVAL), int(Rank.TIMER)
_ENDED = frozenset({Cause.JOB_ENDED})
_SUBMITTED = frozenset({Cause.JOB_SUBMITTED})
_TIMER = frozenset({Cause.TIMER})
_NOTHING: frozenset[Cause] = frozenset()
_REPORT_EVERY = 1024
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that decides a run beside its workload: the same setting and workload give the same result.

    nodes, cores: of the machine. pipeline: stages of policies. policy: how it is named in results. seed: handed to every pass.
    tick_us: passes only at multiples of it; 0 = at every instant at which something happened.
    """

    nodes: int
    cores: int = 1
    pipeline: tuple[Stage, ...]
    policy: str
    seed: int = 0
    tick_us: int = 0


def simulate(workload: Workload, setting: Setting, *, on_progress: Callable[[int], None] | None = None) -> Result:
    """Runs the whole workload.

    Args:
        on_progress: called with the number of jobs that have ended, now and then.
    Raises: RmgrError when jobs are left waiting with nothing to come that could start them; UsageError for an impossible machine.
    Cost: one pass for each instant with an event.
    """
    return _Run(workload, setting, on_progress).to_the_end()


class _Run:
    def __init__(self, workload: Workload, setting: Setting, on_progress: Callable[[int], None] | None) -> None:
        self._workload = workload
        self._setting = setting
        self._on_progress = on_progress
        self._machine = Machine(setting.nodes, setting.cores)
        self._state = ClusterState(self._machine.described())
        self._kernel: Kernel[Running | Job | None] = Kernel()
        self._arrivals = iter(workload.jobs)
        self._spells: list[tuple[Spell, ...]] = [()] * len(workload.jobs)
        self._cores: dict[int, tuple[tuple[int, int], ...]] = {}  # of jobs that run
        self._refused: set[int] = set()
        self._wakes: set[int] = set()
        self._faults: Counter[str] = Counter()
        self._plan = Plan()
        self._passes = 0
        self._ended = 0

    def to_the_end(self) -> Result:
        began = time.perf_counter()
        kernel, tick = self._kernel, self._setting.tick_us
        self._expect_arrival()
        due = _NOTHING  # causes that wait for the next tick
        while kernel.advance():
            new = self._happen()
            due = due | new if due else new
            if due:
                if tick and kernel.now_us % tick:
                    self._wake(kernel.now_us - kernel.now_us % tick + tick)
                    continue
                self._pass(due)
                due = _NOTHING
        self._check_all_ran()
        outcomes = tuple(map(self._outcome, self._workload.jobs))
        return Result(
            outcomes=outcomes,
            processors=self._machine.processors,
            policy=self._setting.policy,
            seed=self._setting.seed,
            passes=self._passes,
            wall_seconds=time.perf_counter() - began,
            faults=tuple(sorted(self._faults.items())),
        )

    # -- events -> facts --------------------------------------------------------------------------------------------------

    def _happen(self) -> frozenset[Cause]:
        """Everything of this instant, in its order; what it gives the scheduler to think about."""
        take, causes = self._kernel.take, _NOTHING
        while (event := take()) is not None:
            at_us, rank, _, what = event
            if rank == _END:
                self._end(what)  # type: ignore[arg-type]  # the rank says what it is
                causes = _ENDED
            elif rank == _ARRIVAL:
                self._arrive(what)  # type: ignore[arg-type]
                causes = causes | _SUBMITTED if causes else _SUBMITTED
            else:
                self._wakes.discard(at_us)
                causes |= _TIMER
        return causes

    def _arrive(self, job: Job) -> None:
        if not self._state.job_submitted(_as_request(job)):
            self._refused.add(job.number)
            self._state.job_withdrawn(job.number)
        self._expect_arrival()

    def _end(self, run: Running) -> None:
        number = run.job.id
        self._state.job_ended(number)
        cores = self._cores.pop(number)
        self._machine.give(cores)
        self._spells[number - 1] = (Spell(run.start_us, self._kernel.now_us, cores),)
        self._ended += 1
        if self._on_progress is not None and not self._ended % _REPORT_EVERY:
            self._on_progress(self._ended)

    def _expect_arrival(self) -> None:
        """One arrival stands in the heap at a time: it stays as small as what runs."""
        job = next(self._arrivals, None)
        if job is not None:
            self._kernel.put(job.submit_us, _ARRIVAL, job.number, job)

    # -- passes -> effects ------------------------------------------------------------------------------------------------

    def _pass(self, causes: frozenset[Cause]) -> None:
        setting, state, now = self._setting, self._state, self._kernel.now_us
        plan = self._plan = run_pass(state, causes, now=now, seed=setting.seed, pipeline=setting.pipeline)
        self._passes += 1
        for decision in plan.decisions:
            run = state.carried_out(decision, now)
            if run is not None:
                self._begin(run)
            elif type(decision) is WakeAt:
                self._wake(decision.at_us)
        if plan.faults:
            self._faults.update(f"{fault.policy}: {fault.error}" for fault in plan.faults)

    def _begin(self, run: Running) -> None:
        job = run.job
        self._cores[job.id] = self._machine.take(run.placement, job.threads)
        self._kernel.put(run.start_us + self._workload.jobs[job.id - 1].run_us, _END, job.id, run)

    def _wake(self, at_us: int) -> None:
        if at_us not in self._wakes:
            self._wakes.add(at_us)
            self._kernel.put(at_us, _TIME, 0, None)

    # -- the end ----------------------------------------------------------------------------------------------------------

    def _check_all_ran(self) -> None:
        stuck = [job for job, spells in zip(self._workload.jobs, self._spells, strict=True) if not spells]
        stuck = [job for job in stuck if job.number not in self._refused]
        if not stuck:
            return
        told = "; ".join(f"job {job.number} ({job.processors} processors): {self._why(job)}" for job in stuck[:_SHOWN])
        more = f" (and {len(stuck) - _SHOWN} more)" if len(stuck) > _SHOWN else ""
        faults = f"; it failed {sum(self._faults.values())} times, {next(iter(self._faults))}" if self._faults else ""
        raise RmgrError(
            f"policy {self._setting.policy} leaves {len(stuck)} jobs waiting for ever: {told}{more}{faults}",
            hint="nothing runs and nothing is to come that could start them: the policy starves them",
        )

    def _why(self, job: Job) -> str:
        return str(self._plan.why(job.number) or "no reason given")

    def _outcome(self, job: Job) -> Outcome:
        spells = self._spells[job.number - 1]
        return Outcome(job=job, spells=spells, state=State.COMPLETED if spells else State.FAILED, queue=job.queue)


def _as_request(job: Job) -> sched.Job:
    """What the scheduler is told of a job: everything but how long it will really run."""
    return sched.Job(
        id=job.number,
        submit_us=job.submit_us,
        processes=job.processes,
        threads=job.threads,
        limit_us=job.estimate_us,
        user=job.user,
        account=job.account,
        queue=job.queue or "default",
    )
