"""The placing leader's knowledge as users see it: why and how long jobs wait, where they run, what is held, how policies and classes do.

Called in the leader's loop. Reasons are those of the last pass, with ids and times in users' terms. Where and when a request would run if
it were submitted now is tried on a copy of the scheduler's state, played forward to its start in the thread that asks: runs end at their
limits, decisions are carried out at once, nothing else arrives. The result is the policies' answer under these assumptions, no promise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.views.answers import STOPPING, SUSPENDED
from rmgr.daemons.leader.facts import NOTHING_KNOWN, Names, allocation_of, allows, job_of, misplaced, node_mark
from rmgr.daemons.leader.placement.job_table import JobTable
from rmgr.errors import Infeasible, RmgrError
from rmgr.model import views
from rmgr.model.base import MIB
from rmgr.model.block import MAX_INDEX, NO_SEQ, BlockKey, job_label, task_of
from rmgr.model.submission import Rigid, Submission, shown_index
from rmgr.model.units import utc
from rmgr.procedures.admission import class_view, state_of
from rmgr.runtime import machine
from rmgr.sched.engine import run_pass
from rmgr.sched.job import UNLIMITED_US, Job, count_of
from rmgr.sched.pipeline import fair_share_of
from rmgr.sched.plan import Plan, Reject, Reserve, Route, Start, WakeAt, Why
from rmgr.sched.policies.connection_reservation import ConnectionReservation, Trigger, fired_in
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policies.queue_first_fit import QueueSelect
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.queue_class import QueueClass
from rmgr.sched.records import Hold, by_node
from rmgr.sched.state.cluster import ClusterState, Snapshot
from rmgr.sched.state.partition import Partition

if TYPE_CHECKING:
    from rmgr.daemons.leader.placement.placer import Placer

_PLACE = re.compile(r"(?P<before>\bjobs? |\brun |\bruns |)\{\}(?P<us> us)?")
#: Submissions as far as they are known, for the arrays of their tasks.
Records: TypeAlias = Mapping[int, Submission | None]
Stages: TypeAlias = Iterable[Stage]
_NO_RECORDS: Records = {}
_NO_POLICY = Why("policy", "nobody places in this partition", ())
_NOT_YET = Why("pass", "the next scheduling pass will look at it", ())
#: Delay after a change until the metrics show it: counting is O(jobs).
MEASURED_S = 1.0
_NEVER = (0,) * len(Trigger)
#: Longest duration of a trial, and most passes of one.
LIMIT_S, PASSES = 2.0, 2000


def placing_view(placer: Placer) -> views.PlacingView:
    """Returns the placer's state as users see it. Cost: O(jobs)."""
    promised = promised_starts(placer)
    return views.PlacingView(
        partitions=_partitions(placer),
        jobs=_jobs(placer, promised),
        ledger=_ledger(placer, promised),
        shares=_shares(placer),
        classes=class_views(placer, promised),
    )


def _jobs(placer: Placer, promised: Mapping[int, int]) -> dict[tuple[int, int], views.PlacedView]:
    """Returns where each job stands, and what it waits for."""
    jobs: dict[tuple[int, int], views.PlacedView] = {}
    job_table, stages, turns = placer.job_table, placer.pipeline[0], placer.gangs.turns()
    records = job_table.submissions
    for job, waiting in job_table.waiting.items():
        why = _NO_POLICY if waiting.partition in placer.served.problems else placer.plan.why(job, waiting.partition) or _NOT_YET
        saves, moves = job_table.known.get(job, NOTHING_KNOWN)
        jobs[task_of(job)] = views.PlacedView(
            state="waiting",
            what=why.rule,
            blocker=blocker(why, records),
            reason=said(why, records) + _next_start(job_table.marks.get(job, "")),
            expected_start_us=promised.get(job, 0),
            route=job_table.class_of(job),
            saves=saves,
            moves=moves,
        )
    for name, reason in job_table.refused_blocks.items():
        for _, key in paths.blocks_in((name,)):
            message = f"it is set aside and not tried again: {reason}; rmgr cancel {key.submission} takes it away"
            jobs.setdefault((key.submission, key.first), views.PlacedView(state="waiting", what="set aside", reason=message))
    for job, placed in job_table.placed.items():
        stop, part, turn = placer.stops.by_job.get(job), placer.partitions.get(placed.partition), turns.get(job)
        stands = (part is not None and job in part.suspended) or (turn is not None and not turn.runs)
        doing = SUSPENDED if stands else "running"
        if stop is not None and not stop.is_refused and not stop.is_taken_back:  # a job taken back has not begun, and is shown so
            doing = STOPPING
        run = part.running.get(job) if part is not None else None
        jobs[task_of(job)] = views.PlacedView(
            state=doing,
            reason="" if run is None else _stays(run.job, stages),
            nodes=placed.allocation.shares,
            route=job_table.class_of(job),
            turns="" if turn is None else turn.told,
            slots="" if turn is None else turn.slots,
            served_us=0 if turn is None else turn.served_us,
        )
    return jobs


def _shares(placer: Placer) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Returns what users with jobs have used compared with their shares, if one of the stages orders by shares."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for stage in placer.pipeline[0]:
        fair = fair_share_of(stage.policy)
        for name in stage.partitions if fair is not None else ():
            if fair is not None and name in placer.partitions:
                for (account, user), (all_us, own_us) in fair.standing(placer.partitions[name], placer.now_us()).items():
                    found.setdefault((name, account, user), (all_us / 1e6, own_us / 1e6))
    return found


def _stays(job: Job, stages: Stages) -> str:
    """Returns why the partition's policies that move jobs do not move this one, "" if they may, or if there are none."""
    mine = (stage.policy for stage in stages if not stage.partitions or job.partition in stage.partitions)
    return next(filter(None, (policy.stays(job) for policy in mine if isinstance(policy, Migration))), "")


def _next_start(mark: str) -> str:
    """Returns where a moved job may start next."""
    only, _, never = mark[1:].partition(";")
    if only:
        return f"; it is to go on on {only}"
    return f"; it was asked to leave {never.replace(',', ', ')}, and starts elsewhere" if never else ""


def said(why: Why, records: Records = _NO_RECORDS) -> str:
    """Returns a reason as a sentence, with job ids as users know them and times as dates."""
    facts = iter(why.facts)

    def put(found: re.Match[str]) -> str:
        fact = next(facts, "")
        if found["us"] and isinstance(fact, int):
            return found["before"] + utc(fact)
        if found["before"]:
            return found["before"] + ", ".join(_shown(part, records) for part in str(fact).split(", "))
        return str(fact) + (found["us"] or "")

    return _PLACE.sub(put, why.agreed)


def label(job: int, records: Records = _NO_RECORDS) -> str:
    """Returns `42`; for a task of an array, or one behind the first, `42_7`, where 7 is its number in the array, as far as known."""
    submission, index = task_of(job)
    record = records.get(submission)
    if record is not None and record.array:
        return f"{submission}_{shown_index(record.array, index)}"
    return job_label(submission, index)


def _shown(fact: str, records: Records) -> str:
    return label(int(fact), records) if fact.isdigit() and int(fact) >= MAX_INDEX else fact


def blocker(why: Why, records: Records = _NO_RECORDS) -> str:
    """Returns the id of the job that the reason waits for, "" if there is none."""
    found = re.search(r"\bjobs? \{\}", why.text)
    if found is None or not why.facts:
        return ""
    at = why.text[: found.start()].count("{}")
    return ", ".join(_shown(part, records) for part in str(why.facts[at]).split(", "))


def promised_starts(placer: Placer) -> Mapping[int, int]:
    """Returns job -> promised start (us); leaves out starts behind a run without a limit, whose end is unknown."""
    reserved = (decision for decision in placer.plan.decisions if type(decision) is Reserve)
    found: dict[int, int | None] = {decision.job_id: decision.start_us for decision in reserved}
    for part in placer.partitions.values():
        found |= {job: held.start_us for job, held in part.reservations.items()}
        found |= {job: _complete_us(part, hold) for job, hold in part.holds.items()}
    return {job: at_us for job, at_us in found.items() if at_us is not None and at_us < UNLIMITED_US}


def _complete_us(part: Partition, hold: Hold) -> int | None:
    """Returns when the last run that the hold waits for must have ended, None if it waits for none any more."""
    return max((part.running[share.run_id].end_us for share in hold.waits_for if share.run_id in part.running), default=None)


def _partitions(placer: Placer) -> dict[str, views.PartitionView]:
    """Returns which policies place where, and their failures."""
    served, faults, found = placer.served, placer.faults, {}
    left_alone, gangs = placer.backoffs.under_way(), placer.gangs.summary()
    for partition in sorted(served.partitions | set(served.problems)):
        policy = served.policies.get(partition, "")
        stages = dict.fromkeys((*served.stage_names(partition), policy))  # a pipeline of plug-ins fails as a whole
        part = placer.partitions.get(partition)
        resting = ((node, left_s) for node, left_s in left_alone.items() if part is not None and placer.names.id(node) in part.nodes)
        found[partition] = views.PartitionView(
            policy=policy,
            passes=placer.passes,
            last_pass_s=placer.last_pass_s,
            faults=tuple((name, faults.counts[name], faults.last[name]) for name in stages if faults.counts.get(name)),
            problem=served.problems.get(partition, ""),
            instead=faults.told(partition),
            is_stopped=faults.is_stopped(partition),
            resting=tuple(resting),
            gang=gangs.get(partition),
        )
    return found


def _ledger(placer: Placer, promised: Mapping[int, int]) -> tuple[views.HeldView, ...]:
    """Returns the cores that are held for waiting jobs."""
    found: list[views.HeldView] = []
    job_table = placer.job_table
    for part in placer.partitions.values():
        for job, hold in sorted(part.holds.items()):
            waiting = job_table.waiting.get(job)
            found += [
                views.HeldView(
                    queue=waiting.queue if waiting is not None else "",
                    job=label(job, job_table.submissions),
                    node=placer.names.name(node),
                    cores=count,
                    since_us=job_table.since.get(job, 0),
                    expected_start_us=promised.get(job, 0),
                )
                for node, count in by_node(share.cores for share in hold.held).items()
            ]
    return tuple(found)


def class_views(placer: Placer, promised: Mapping[int, int]) -> tuple[views.QueueView, ...]:
    """Returns every class of every partition, in the order of its file. Cost: O(jobs).

    promised: job -> promised start (us).
    """
    served, job_table, stages = placer.served, placer.job_table, placer.pipeline[0]
    if not any(served.classes.values()):
        return ()
    waiting = Counter((one.partition, job_table.class_of(job)) for job, one in job_table.waiting.items())
    running = Counter((one.partition, job_table.class_of(job)) for job, one in job_table.placed.items())
    shown = []
    for partition, ladder in sorted(served.classes.items()):
        part, is_open = placer.partitions.get(partition), state_of(partition, placer.term.settings)
        for queue in ladder:
            view = class_view(queue, partition, served.policies.get(partition, ""), is_open)
            assert view.of_class is not None
            told = msgspec.structs.replace(view.of_class, is_known=True, chosen=_chosen(stages, partition, queue))
            if part is not None:
                told = _with_records(job_table, part, queue, told, promised)
            where = (partition, queue.name)
            shown.append(msgspec.structs.replace(view, pending=waiting[where], running=running[where], of_class=told))
    return tuple(shown)


def _with_records(
    job_table: JobTable, part: Partition, queue: QueueClass, view: views.ClassView, expected: Mapping[int, int]
) -> views.ClassView:
    """Adds what the scheduler's records say about a class."""
    records = job_table.submissions
    promised = [
        views.PromiseView(
            job=label(job, records),
            cores=sum(count_of(share.cores) for share in (*hold.held, *hold.waits_for)),
            held=sum(count_of(share.cores) for share in hold.held),
            waits_for=tuple(label(share.run_id, records) for share in hold.waits_for),
            expected_start_us=expected.get(job, 0),
        )
        for job, hold in sorted(part.holds.items())
        if job_table.class_of(job) == queue.name
    ]
    fired = part.notes.get(ConnectionReservation.name, {}).get(fired_in(queue.name), {}).get(0, _NEVER)
    return msgspec.structs.replace(view, promised=tuple(promised), fired=fired)


def _chosen(stages: Iterable[Stage], partition: str, queue: QueueClass) -> str:
    """Returns what chooses this class for a job."""
    for stage in stages:
        policy = stage.policy
        if partition in stage.partitions and isinstance(policy, QueueSelect | ConnectionReservation) and getattr(policy, "select", True):
            affinity = policy.thread_affinity and queue.is_for_threads
            other = ", or, as thread_affinity has it, the one for few processes of many threads" if affinity else ""
            return f"by {policy.name}: the strictest that admits it{other}"
    return "by users only (-q)"


class ClassMetrics:
    """Updates the leader's metrics of queue classes, a moment after a change. In the leader's loop."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._metrics = placer.term.metrics
        self._is_due = False

    def soon(self) -> None:
        """Schedules an update after a change. Costs nothing if there are no classes."""
        if not self._is_due and any(self._placer.served.classes.values()):
            self._is_due = True
            self._placer.term.after(MEASURED_S, self._measure)

    def _measure(self) -> None:
        self._is_due = False
        self.clear()
        metrics, placer = self._metrics, self._placer
        for view in class_views(placer, promised_starts(placer)):
            told, where = view.of_class, (view.partition, view.id)
            assert told is not None
            metrics.class_waiting.labels(*where).set(view.pending)
            metrics.class_running.labels(*where).set(view.running)
            metrics.class_promised.labels(*where).set(sum(promise.cores for promise in told.promised))
            for trigger, count in zip(Trigger, told.fired, strict=True):
                metrics.class_reservations.labels(*where, trigger.name.lower()).set(count)

    def clear(self) -> None:
        """Clears the metrics: nothing is known any more."""
        metrics = self._metrics
        for metric in (metrics.class_waiting, metrics.class_running, metrics.class_promised, metrics.class_reservations):
            metric.clear()


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
    elsewhere: str = ""  #: the deciding policy, if only a process of its own can run it


def copied(scheduler: Placer, submission: Submission) -> WhatIfTrial | None:
    """Copies the state in the leader's loop. Returns None while a pass is running, or everything is being read.

    Raises: ValueError for an invalid request, Infeasible if the named queue class does not admit it.
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


def tried(trial: WhatIfTrial, clock: Callable[[], float] | None = None) -> views.WhatIfView:
    """Plays the copy forward until the job starts, nothing can change any more, or the time is up. Cost: a pass for each event.

    Raises: Infeasible if the policy rejects the job.
    """
    clock = clock or machine.monotonic
    end_s, first = clock() + LIMIT_S, Why("", "")
    route = trial.submission.rigid.queue_class if trial.submission.rigid is not None else ""
    state = ClusterState.restored(trial.snapshot, trial.half_life_us)
    if all(node.closed for node in trial.snapshot.nodes if node.partition == trial.job.partition):
        return views.WhatIfView(reason=f"no node of partition {trial.job.partition} takes work now (rmgr nodes)")
    if trial.elsewhere:
        return views.WhatIfView(reason=f"policy {trial.elsewhere} is a plug-in: when and where it would start a job is not tried out")
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
                nodes = tuple(views.ShareView(node=name, processes=count) for name, count in shares)
                return views.WhatIfView(start_us=now_us, nodes=nodes, at_once=now_us == trial.now_us, reason=said(first), route=route)
        if not first.rule:
            first = plan.why(job.id, job.partition) or first
        if clock() > end_s:
            break
        try:
            state.apply(plan, now_us)
            following = _next_us(state, plan, now_us)
            if following is None:
                break
            causes, now_us = _advance(state, following), following
        except RmgrError:
            break  # these decisions cannot be played here
    return views.WhatIfView(start_us=max(0, job.begin_us), reason=said(first), route=route)


def _next_us(state: ClusterState, plan: Plan, now_us: int) -> int | None:
    """Returns the time of the next event, None if there is none."""
    ends = [max(run.end_us, now_us + 1) for part in state.partitions.values() for run in part.running.values() if run.end_us < UNLIMITED_US]
    wakes = [decision.at_us for decision in plan.decisions if type(decision) is WakeAt]
    begins = [job.begin_us for part in state.partitions.values() for job in part.jobs.values()]
    return min((at_us for at_us in (*ends, *wakes, *begins) if at_us > now_us), default=None)


def _advance(state: ClusterState, at_us: int) -> frozenset[Cause]:
    """Moves the time to `at_us`: runs whose limit is over end."""
    causes = {Cause.TIMER}
    for name, part in list(state.partitions.items()):
        for run in [run for run in part.running.values() if run.end_us <= at_us]:
            state.job_ended(run.job.id, name, now=at_us)
            causes.add(Cause.JOB_ENDED)
    return frozenset(causes)
