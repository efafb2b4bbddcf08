"""A driver that can be looked into: facts of a small world to the state, a pass, its decisions carried out, step by step.

What the simulator and the leader do, without their machinery. Between `decide` and `carry_out` the owner of the drive may look at
everything, and put another state in its place (a new leader). `Budget` bounds the time of a pass by the wall clock; a policy that does not
come back is interrupted.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rmgr.model.base.units import counted
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Job, Placement, Running, nodes_of
from rmgr.sched.plan import Decision, Migrate, Plan, Preempt, Reject, Resume, Start, Suspend, WakeAt
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sim.laws.world import LateNode, LawsJob, MaintenanceWindow, Outage, SmallWorld, Withdrawal

#: Passes in a row that nothing but a timer caused while nothing runs and nothing is to come: more, and the policy waits for nothing.
MOST_IDLE_PASSES = 50
#: More passes than any policy needs for a world of a dozen jobs.
MOST_PASSES = 5_000


class Drive:
    """One world under one pipeline, from the first arrival to the last end.

        while drive.advance():   # facts of the next instant
            drive.decide()       # a pass: drive.plan
            drive.carry_out()

    Attributes:
        state, now_us, causes, plan: of the pass that is looked at. story: everything that happened so far.
        wrongs: starts of the last `carry_out` that were not permitted, a sentence each.
        stays: of jobs on nodes, in order of their start. gone: jobs that are out of the cluster: ended, withdrawn, refused, rejected.
    """

    def __init__(self, world: SmallWorld, pipeline: tuple[Stage, ...], *, budget: Budget) -> None:
        self.world = world
        self.pipeline = pipeline
        self.budget = budget
        self.state = ClusterState(world.nodes, world.half_life_us)
        for partition, limits in sorted(world.limits.items()):
            self.state.limits_changed(partition, limits)
        self.now_us = 0
        self.causes: frozenset[Cause] = frozenset()
        self.plan = Plan()
        self.passes = 0
        self.story: list[StoryLine] = []
        self.wrongs: list[str] = []
        self.gone: set[int] = set()
        self.stays: list[StoryStay] = []
        self.started: set[int] = set()
        self._works = {work.job.id: work for work in world.works}
        self._left = {work.job.id: work.run_us for work in world.works}  # us of work still to do
        self._since: dict[int, int] = {}  # of what executes: when it went on
        self._wakes: dict[str, int] = {}  # partition -> when
        self._nodes = {node.id: node for node in world.nodes}
        self._closed: set[int] = set()
        self._windows: dict[int, MaintenanceWindow] = {}
        self._to_come = sorted(self._events(), key=_order)
        self._idle = 0

    # -- facts ------------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Tells the state everything of the next instant; False at the end of the world, or when the policy waits for nothing."""
        ends = {job_id: since + self._left[job_id] for job_id, since in self._since.items()}
        times = [*ends.values(), *self._wakes.values(), *(event[0] for event in self._to_come[:1])]
        if not times or self.passes >= MOST_PASSES or self._idle > MOST_IDLE_PASSES:
            return False
        self.now_us = now = min(times)
        causes: set[Cause] = set()
        for job_id in sorted(job_id for job_id, end in ends.items() if end == now):
            self._end(job_id)
            causes.add(Cause.JOB_ENDED)
        while self._to_come and self._to_come[0][0] == now:
            causes |= self._happen(self._to_come.pop(0)[2])
        if now in self._wakes.values():
            causes.add(Cause.TIMER)
        self._idle = self._idle + 1 if causes == {Cause.TIMER} and not self._since and not self._to_come else 0
        self.causes = frozenset(causes)
        return True

    def _events(self) -> Iterator[tuple[int, int, Outage | LateNode | Withdrawal | MaintenanceWindow | LawsJob]]:
        for outage in self.world.outages:
            yield outage.at_us, 1, outage
            yield outage.until_us, 0, outage
        for joining in self.world.joinings:
            yield joining.at_us, 1, joining
        for window in self.world.windows:
            yield window.at_us, 1, window
            yield max(window.plan.end_us, window.at_us), 2, window
        for work in self.world.works:
            yield work.job.submit_us, 3, work
        for withdrawal in self.world.withdrawals:
            yield withdrawal.at_us, 4, withdrawal

    def _happen(self, event: Outage | LateNode | Withdrawal | MaintenanceWindow | LawsJob) -> set[Cause]:
        match event:
            case LawsJob(job=job):
                self._tell(f"job {job.id} arrives")
                if not self.state.job_submitted(job) and self._hopeless(job):
                    self._refuse(job)
                return {Cause.JOB_SUBMITTED}
            case Withdrawal(job_id=job_id):
                return self._withdraw(job_id)
            case Outage(at_us=at_us) if at_us == self.now_us:
                return self._close(event)
            case LateNode(node=node):
                self._tell(f"node {node.id} joins")
                self._nodes[node.id] = node
                self.state.node_changed(node)
            case Outage(node=node_id, cores=cores):
                self._tell(f"node {node_id} is back" + (f" with {counted(cores, 'core')}" if cores else ""))
                self._closed.discard(node_id)
                self._nodes[node_id] = replace(self._nodes[node_id], cores=cores or self._nodes[node_id].cores)
                self._set_closed(node_id, closed=False)
            case MaintenanceWindow(at_us=at_us, plan=window) if at_us == self.now_us and window.end_us > self.now_us:
                self._tell(f"maintenance {window.name} is planned from {window.start_us} to {window.end_us} on nodes {window.nodes}")
                self._windows[window.id] = event
                self.state.maintenance_planned(window)
            case MaintenanceWindow(plan=window):
                self._tell(f"maintenance {window.name} is over")
                if self._windows.pop(window.id, None) is not None:
                    self.state.maintenance_over(window.id)
        return {Cause.NODES_CHANGED}

    def _end(self, job_id: int) -> None:
        run = self.state.job_ended(job_id, self._works[job_id].job.partition, now=self.now_us)
        self._tell(f"job {job_id} ends")
        self._leave(run.job.id)

    def _leave(self, job_id: int) -> None:
        self._stop(job_id)
        self.gone.add(job_id)

    def _go_on(self, run: Running) -> None:
        """It executes from now on."""
        self._since[run.job.id] = self.now_us
        self.started.add(run.job.id)
        self.stays.append(StoryStay(run.job, run.placement, self.now_us))

    def _stop(self, job_id: int) -> None:
        """It executes no longer; what it has done is done."""
        since = self._since.pop(job_id, None)
        if since is not None:
            self._left[job_id] -= self.now_us - since
            next(stay for stay in reversed(self.stays) if stay.job.id == job_id).end_us = self.now_us

    def _withdraw(self, job_id: int) -> set[Cause]:
        job = self._works[job_id].job
        if job_id not in self.state.partitions[job.partition].jobs:
            return set()
        self._tell(f"job {job_id} is cancelled")
        self.state.job_withdrawn(job_id, job.partition)
        self._leave(job_id)
        return {Cause.JOB_WITHDRAWN}

    def _close(self, outage: Outage) -> set[Cause]:
        node_id = outage.node
        self._tell(f"node {node_id} is " + ("lost" if outage.loses else "drained"))
        self._closed.add(node_id)
        self._set_closed(node_id, closed=True)
        causes = {Cause.NODES_CHANGED}
        if outage.loses:
            snapshot = self.state.snapshot()
            runs = [*snapshot.running, *(stopped.run for stopped in snapshot.suspended)]
            for run in runs:
                if node_id in nodes_of(run.placement):
                    self._requeue(run.job)
                    causes.add(Cause.JOB_ENDED)
        return causes

    def _requeue(self, job: Job) -> None:
        """Its work is lost: from the beginning."""
        self._tell(f"job {job.id} waits again")
        self._stop(job.id)
        self._left[job.id] = self._works[job.id].run_us
        self.state.job_preempted(job.id, self.now_us, job.partition)

    def _set_closed(self, node_id: int, *, closed: bool) -> None:
        self.state.node_changed(replace(self._nodes[node_id], closed=closed))

    # -- a pass -----------------------------------------------------------------------------------------------------------

    def decide(self) -> None:
        """Runs the pass. Raises: OutOfTime when the policy does not come back."""
        self.plan = self.planned(self.state, self.pipeline)
        self.passes += 1

    def planned(self, state: ClusterState, pipeline: tuple[Stage, ...], expired: Callable[[], bool] | None = None) -> Plan:
        """What this pipeline decides in this state, now. expired: instead of the budget's."""
        with self.budget.counted():
            return run_pass(
                state,
                self.causes,
                now=self.now_us,
                seed=self.world.seed,
                pipeline=pipeline,
                expired=expired or self.budget.expired,
            )

    def carry_out(self) -> None:
        """Carries out every decision of the plan, and notes in `wrongs` what it should not have decided."""
        self._wakes.clear()
        self.wrongs = []
        for decision in self.plan.decisions:
            if isinstance(decision, Start):
                self.wrongs += self._not_permitted(decision)
            elif isinstance(decision, Resume):
                self.wrongs += self._not_resumable(decision)
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        run = self.state.carried_out(decision, self.now_us)
        match decision:
            case Start(job_id, placement, why):
                assert run is not None
                self._tell(f"job {job_id} starts on {where(placement)}  ({why})")
                self._go_on(run)
            case Migrate(job_id) | Suspend(job_id):
                self._tell(f"job {job_id}: {type(decision).__name__.lower()}  ({decision.why})")
                self._stop(job_id)
            case Preempt(job_id, why):
                self._tell(f"job {job_id}: preempt  ({why})")
                self._stop(job_id)
                self._left[job_id] = self._works[job_id].run_us
            case Resume(job_id, why):
                self._tell(f"job {job_id}: resume  ({why})")
                assert run is not None
                self._go_on(run)
            case Reject(job_id, why):
                self._tell(f"job {job_id}: rejected  ({why})")
                self._leave(job_id)
            case WakeAt(at_us, _, partition):
                self._wakes[partition] = min(at_us, self._wakes.get(partition, at_us))
            case _:
                pass

    # -- what should not be -----------------------------------------------------------------------------------------------

    def _not_permitted(self, start: Start) -> Iterator[str]:
        """Why this start is wrong, from the world alone."""
        now, work = self.now_us, self._works.get(start.job_id)
        if work is None:
            yield f"job {start.job_id} starts and was never submitted"
            return
        job, name = work.job, f"job {work.job.id}"
        if now < job.submit_us:
            yield f"{name} starts at {now} us, before its submit at {job.submit_us} us"
        if now < job.begin_us:
            yield f"{name} starts at {now} us, it may begin at {job.begin_us} us"
        for before in job.after:
            there = before in self._works and self._works[before].job.submit_us <= now
            if there and before not in self.gone and job.id not in self.started:  # once started it has waited for them
                yield f"{name} starts before job {before} has ended"
        yield from self._out_of_bounds(job, start.placement, now + job.planned_us)
        yield from self._over_limits(job)

    def _not_resumable(self, resume: Resume) -> Iterator[str]:
        stopped = self.state.partitions[resume.partition].suspended.get(resume.job_id)
        if stopped is not None:
            run = stopped.run
            yield from self._out_of_bounds(run.job, run.placement, self.now_us + run.end_us - stopped.since_us)

    def _out_of_bounds(self, job: Job, placement: Placement, end_us: int) -> Iterator[str]:
        """It begins now, and may run until then: not on closed nodes, not into a window."""
        nodes = set(nodes_of(placement))
        for node_id in sorted(nodes & self._closed):
            yield f"job {job.id} starts on node {node_id}, which is closed"
        for event in self._windows.values():
            window = event.plan
            if nodes & set(window.nodes) and self.now_us < window.end_us and end_us > window.start_us:
                yield f"job {job.id} may run until {end_us} us, into maintenance {window.name} at {window.start_us} us"

    def _over_limits(self, job: Job) -> Iterator[str]:
        limits = self.world.limits.get(job.partition)
        if limits is None:
            return
        running = [run.job for run in self.state.snapshot().running if run.job.partition == job.partition]
        users = [other for other in running if other.user == job.user]
        cpus = job.wanted_cpus + sum(other.wanted_cpus for other in users)
        of_account = job.wanted_cpus + sum(other.wanted_cpus for other in running if other.account == job.account)
        counts = (
            ("max_cpus_per_user", cpus, limits.max_cpus_per_user),
            ("max_jobs_per_user", 1 + len(users), limits.max_jobs_per_user),
            ("max_cpus_per_account", of_account, limits.max_cpus_per_account),
            ("max_time_us", job.planned_us, limits.max_time_us),
        )
        for what, count, most in counts:
            if most and count > most:
                yield f"job {job.id} starts beyond {what} of {job.user} ({job.account}): {count} of {most}"

    def left_waiting(self) -> Iterator[str]:
        """A sentence for each job that has not had its turn though it could have."""
        never: set[int] = set()  # larger than what is there by now; and who waits for those
        for work in sorted(self.world.works, key=lambda work: work.job.id):
            job = work.job
            part = self.state.partitions[job.partition]
            if job.id in self.gone:
                continue
            if job.id in part.infeasible or self._hopeless(job) or never.intersection(job.after):
                never.add(job.id)
                continue
            why = self.plan.why(job.id, job.partition) or "no reason given"
            yield f"job {job.id} waits for ever ({why})"

    def _hopeless(self, job: Job) -> bool:
        """Larger than its partition, or than its limits."""
        part, limits = self.state.partitions[job.partition], self.world.limits.get(job.partition)
        if not part.pool.feasible(job):
            return True
        if limits is None:
            return False
        asked = (
            (job.wanted_cpus, limits.max_cpus_per_user),
            (job.wanted_cpus, limits.max_cpus_per_account),
            (job.planned_us, limits.max_time_us),
        )
        return any(most and count > most for count, most in asked)

    def _refuse(self, job: Job) -> None:
        self._tell(f"job {job.id} can never run here")
        self.state.job_withdrawn(job.id, job.partition)
        self._leave(job.id)

    def _tell(self, text: str) -> None:
        self.story.append(StoryLine(self.now_us, text))


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A line of the story: what happened, or what was decided and why."""

    at_us: int
    text: str


@dataclass(slots=True)
class StoryStay:
    """A job on its nodes without a break; `end_us` None: still there."""

    job: Job
    placement: Placement
    start_us: int
    end_us: int | None = None


def described(job: Job, unit_us: int) -> str:
    """What a job asks for, without what it leaves at its default; times in units of so many us."""
    parts = [f"{job.processes} x {job.threads} cores" if job.threads > 1 else f"{job.processes} cores"]
    parts.append(f"limit {job.limit_us / unit_us:g}" if job.limit_us else "no limit")
    parts += [f"{job.memory_bytes} bytes each"] if job.memory_bytes else []
    parts += [f"{count} {name} each" for name, count in job.resources]
    parts += [f"needs {', '.join(job.features)}"] if job.features else []
    parts += ["exclusive"] if job.exclusive else []
    parts += ["each process on a node of its own"] if job.spread else []
    parts += [f"priority {job.priority}"] if job.priority else []
    parts += [f"after {', '.join(map(str, job.after))}"] if job.after else []
    parts += [f"not before {job.begin_us / unit_us:g}"] if job.begin_us else []
    parts += [f"queue {job.queue}"] if job.queue != "default" else []
    return ", ".join(parts)


def where(placement: Placement) -> str:
    """As `nodes 0-3, 7`."""
    spans = (f"{first}-{last}" if last > first else str(first) for first, last, _ in placement)
    return "nodes " + ", ".join(spans)


def _order(event: tuple[int, int, object]) -> tuple[int, int, int]:
    what = event[2]
    return (event[0], event[1], what.job.id if isinstance(what, LawsJob) else 0)


class Budget:
    """So many seconds for one pass. 0 = as long as it likes.

    In the main thread a pass is interrupted when they are over (SIGALRM); elsewhere it is only found out afterwards.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = -math.inf

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One pass. Raises: OutOfTime."""
        self._began = time.perf_counter()
        if not self.seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @property
    def told(self) -> str:
        """What is said of a policy that took longer."""
        return f"a pass takes longer than {self.seconds:g} s"

    def expired(self) -> bool:
        """This pass has taken longer: what the engine asks after each policy."""
        return bool(self.seconds) and time.perf_counter() - self._began > self.seconds


class OutOfTime(BaseException):
    """Raised inside a policy whose time is up. No `Exception`: neither the engine nor the policy takes it for an error of its own."""


def _interrupt(_signal: int, _frame: object) -> None:
    raise OutOfTime
