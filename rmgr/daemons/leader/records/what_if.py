"""Finds where and when a request would run if it were submitted now: tried on a copy of the scheduler's state, played forward to its start.

The copy is made in the leader's loop; the trial runs wherever the question is answered. Runs end at their limits, decisions are carried
out at once, nothing else arrives: what is told is the policies' own answer under these assumptions, not a promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rmgr.daemons.leader.core.facts import Names, allocation_of, allows, job_of, misplaced, node_mark
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.daemons.leader.records.view import said
from rmgr.errors import Infeasible, RmgrError
from rmgr.model.base.resources import MIB
from rmgr.model.tasks.block import NO_SEQ, BlockKey
from rmgr.model.tasks.placing import MAX_INDEX, Rigid
from rmgr.model.tasks.submission import Submission
from rmgr.model.views import ShareView, WhatIfView
from rmgr.runtime import machine
from rmgr.sched.engine import run_pass
from rmgr.sched.job import UNLIMITED_US, Job
from rmgr.sched.plan import Plan, Reject, Route, Start, WakeAt, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState, Snapshot

#: The longest that a trial may take, and the most passes that it makes.
LIMIT_S, PASSES = 2.0, 2000


class Scheduler(Protocol):
    """Source of the state and the policies of a trial. state: None while everything is read."""

    state: ClusterState | None
    served: ServedPartitions
    names: Names

    @property
    def is_passing(self) -> bool:
        """A pass is under way: the state is not to be touched."""
        ...

    @property
    def pipeline(self) -> tuple[tuple[Stage, ...], int]:
        """What passes are made of, and the half-life of use (us)."""
        ...

    def now_us(self) -> int:
        """Its clock."""
        ...

    def runs_elsewhere(self, partition: str) -> bool:
        """The policies of that partition have a process of their own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfTrial:
    """A copy of the scheduler's state with one more job."""

    snapshot: Snapshot
    job: Job
    submission: Submission
    names: Names
    stages: tuple[Stage, ...]
    half_life_us: int
    now_us: int
    elsewhere: str = ""  #: the policy that would decide, where only a process of its own can run it


def copied(scheduler: Scheduler, submission: Submission) -> WhatIfTrial | None:
    """In the leader's loop. None: a pass is under way, or everything is read again just now.

    Raises: ValueError for an odd request, Infeasible for one whose queue class does not admit it.
    """
    if scheduler.state is None or scheduler.is_passing:
        return None
    snapshot, now_us, served = scheduler.state.snapshot(), scheduler.now_us(), scheduler.served
    last = max((job.id for job in (*snapshot.waiting, *(run.job for run in snapshot.running))), default=0)
    key = BlockKey(
        priority=submission.priority,
        seq=NO_SEQ,
        submission=last // MAX_INDEX + 1,
        first=0,
        count=1,
        attempt=1,
        cores=submission.request.cores,
        memory_mib=-(-submission.request.memory_bytes // MIB),
    )
    job = job_of(submission, key, served.queues[submission.queue].partition, now_us)
    if why := misplaced(submission, job, served.classes.get(job.partition, ())):
        raise Infeasible(f"it would never start: {why}", hint="rmgr queues shows the classes; without -q the policy chooses one")
    mark = node_mark(submission.rigid or Rigid())
    if mark:
        nodes = (
            replace(node, features=tuple(sorted({*node.features, mark}))) if allows(mark, node.name) else node for node in snapshot.nodes
        )
        snapshot = replace(snapshot, nodes=tuple(nodes))
    stages, half_life_us = scheduler.pipeline
    elsewhere = served.policies.get(job.partition, "") if scheduler.runs_elsewhere(job.partition) else ""
    return WhatIfTrial(
        snapshot=snapshot,
        job=job,
        submission=submission,
        names=scheduler.names,
        stages=stages,
        half_life_us=half_life_us,
        now_us=now_us,
        elsewhere=elsewhere,
    )


def tried(trial: WhatIfTrial, clock: Callable[[], float] | None = None) -> WhatIfView:
    """Plays the copy forward until the job starts, nothing can change any more, or the time is up. Cost: a pass for each event.

    Raises: Infeasible for one that the policy ends.
    """
    clock = clock or machine.monotonic
    end_s, first = clock() + LIMIT_S, Why("", "")
    route = trial.submission.rigid.queue_class if trial.submission.rigid is not None else ""
    state = ClusterState.restored(trial.snapshot, trial.half_life_us)
    if all(node.closed for node in trial.snapshot.nodes if node.partition == trial.job.partition):
        return WhatIfView(reason=f"no node of partition {trial.job.partition} takes work now (rmgr nodes)")
    if trial.elsewhere:
        return WhatIfView(reason=f"policy {trial.elsewhere} is a plug-in: when and where it would start a job is not tried out")
    job, now_us, causes = trial.job, trial.now_us, frozenset({Cause.JOB_SUBMITTED})
    state.job_submitted(job)
    for _ in range(PASSES):
        plan = run_pass(state, causes, now=now_us, seed=0, pipeline=trial.stages, expired=lambda: clock() > end_s)
        for decision in plan.decisions:
            if type(decision) is Route and decision.job_id == job.id:
                route = decision.to
            if type(decision) is Reject and decision.job_id == job.id:
                why = said(decision.why)
                raise Infeasible(f"it would end at once, FAILED: {why}", hint="ask for less with -n, -c or -t; rmgr policy show")
            if type(decision) is Start and decision.job_id == job.id:
                shares = allocation_of(trial.submission, decision.placement, trial.names, now_us).shares
                nodes = tuple(ShareView(node=name, processes=count) for name, count in shares)
                return WhatIfView(start_us=now_us, nodes=nodes, at_once=now_us == trial.now_us, reason=said(first), route=route)
        if not first.rule:
            first = plan.why(job.id, job.partition) or first
        if clock() > end_s:
            break
        try:
            state.apply(plan, now_us)
            following = _next_us(state, plan, now_us)
            if following is None:
                break
            causes, now_us = _moved(state, following), following
        except RmgrError:
            break  # what these policies decide cannot be played here
    return WhatIfView(start_us=max(0, job.begin_us), reason=said(first), route=route)


def _next_us(state: ClusterState, plan: Plan, now_us: int) -> int | None:
    """When something happens next, None for never."""
    ends = [max(run.end_us, now_us + 1) for part in state.partitions.values() for run in part.running.values() if run.end_us < UNLIMITED_US]
    wakes = [decision.at_us for decision in plan.decisions if type(decision) is WakeAt]
    begins = [job.begin_us for part in state.partitions.values() for job in part.jobs.values()]
    return min((at_us for at_us in (*ends, *wakes, *begins) if at_us > now_us), default=None)


def _moved(state: ClusterState, at_us: int) -> frozenset[Cause]:
    """The time is `at_us`: runs whose limit is over have ended."""
    causes = {Cause.TIMER}
    for name, part in list(state.partitions.items()):
        for run in [run for run in part.running.values() if run.end_us <= at_us]:
            state.job_ended(run.job.id, name, now=at_us)
            causes.add(Cause.JOB_ENDED)
    return frozenset(causes)
