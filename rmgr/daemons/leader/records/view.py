"""Shows the placing leader's knowledge: why each job waits and until when, its place, what is kept for whom, how policies do.

Called in the leader's loop. Reasons are those of the last pass, with ids and times as people know them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Protocol, TypeAlias

from rmgr.coord.protocol import paths
from rmgr.coord.views.placing import STOPPING, SUSPENDED
from rmgr.daemons.leader.core.facts import NOTHING_KNOWN, Names
from rmgr.daemons.leader.records.gangs import MemberTurn
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.daemons.leader.records.served import ServedPartitions
from rmgr.model.base.units import utc
from rmgr.model.tasks.array import shown_index
from rmgr.model.tasks.placing import MAX_INDEX, job_label, task_of
from rmgr.model.tasks.submission import Submission
from rmgr.model.views import GangSummary, HeldView, PartitionView, PlacedView
from rmgr.sched.capacity.holds import by_node
from rmgr.sched.job import UNLIMITED_US, Job
from rmgr.sched.pipeline import fair_share_of
from rmgr.sched.plan import Plan, Reserve, Why
from rmgr.sched.policies.migration import Migration
from rmgr.sched.policy import Stage
from rmgr.sched.records import Hold
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition

_PLACE = re.compile(r"(?P<before>\bjobs? |\brun |\bruns |)\{\}(?P<us> us)?")
#: Of submissions, as far as they are known: the arrays of their tasks.
Records: TypeAlias = Mapping[int, Submission | None]
Stages: TypeAlias = Iterable[Stage]
_NO_RECORDS: Records = {}
_NO_POLICY = Why("policy", "nobody places in this partition", ())
_NOT_YET = Why("pass", "the next scheduling pass will look at it", ())


class AskedJob(Protocol):
    """A job that was asked to give its nodes up. is_refused: it goes on. is_taken_back: it has not begun, where another still is."""

    is_refused: bool
    is_taken_back: bool


class PolicyFaults(Protocol):
    """Knows which policies failed, and who places instead."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Policy -> how often it failed."""
        ...

    @property
    def last(self) -> Mapping[str, str]:
        """Policy -> its last error."""
        ...

    def told(self, partition: str) -> str:
        """Who places there instead of whom, until when and why, "" = its own pipeline does."""
        ...

    def is_stopped(self, partition: str) -> bool:
        """Nobody places there."""
        ...


def jobs_view(
    state: ClusterState | None,
    plan: Plan,
    promised: Mapping[int, int],
    job_table: JobTable,
    asked: Mapping[int, AskedJob],
    problems: Container[str],
    stages: Stages,
    turns: Mapping[int, MemberTurn],
) -> dict[tuple[int, int], PlacedView]:
    """Where each job stands, and what it waits for. Cost: O(jobs).

    Args:
        plan: of the last pass. promised: see `promised_starts`. asked: jobs that were asked to stop.
        problems: partitions in which nobody places. stages: that place now. turns: of jobs that share nodes in time.
    """
    jobs: dict[tuple[int, int], PlacedView] = {}
    records = job_table.submissions
    for job, waiting in job_table.waiting.items():
        why = _NO_POLICY if waiting.partition in problems else plan.why(job, waiting.partition) or _NOT_YET
        saves, moves = job_table.known.get(job, NOTHING_KNOWN)
        jobs[task_of(job)] = PlacedView(
            state="waiting",
            what=why.rule,
            blocker=_blocker(why, records),
            reason=said(why, records) + _next_start(job_table.marks.get(job, "")),
            expected_start_us=promised.get(job, 0),
            route=job_table.class_of(job),
            saves=saves,
            moves=moves,
        )
    for name, reason in job_table.odd.items():
        for _, key in paths.blocks_in((name,)):
            told = f"it is set aside and not tried again: {reason}; rmgr cancel {key.submission} takes it away"
            jobs.setdefault((key.submission, key.first), PlacedView(state="waiting", what="set aside", reason=told))
    for job, placed in job_table.placed.items():
        stop, part = asked.get(job), state.partitions.get(placed.partition) if state is not None else None
        turn = turns.get(job)
        stands = (part is not None and job in part.suspended) or (turn is not None and not turn.runs)
        doing = SUSPENDED if stands else "running"
        if stop is not None and not stop.is_refused and not stop.is_taken_back:  # which has not begun, and is shown so
            doing = STOPPING
        run = part.running.get(job) if part is not None else None
        jobs[task_of(job)] = PlacedView(
            state=doing,
            reason="" if run is None else _stays(run.job, stages),
            nodes=placed.allocation.shares,
            route=job_table.class_of(job),
            turns="" if turn is None else turn.told,
            slots="" if turn is None else turn.slots,
            served_us=0 if turn is None else turn.served_us,
        )
    return jobs


def shares_view(state: ClusterState | None, stages: Stages, now_us: int) -> dict[tuple[str, str, str], tuple[float, float]]:
    """What those who have jobs have used against their shares, where one of these stages places by that."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for stage in stages if state is not None else ():
        fair = fair_share_of(stage.policy)
        for name in stage.partitions if fair is not None else ():
            if state is not None and fair is not None and name in state.partitions:
                for (account, user), (all_us, own_us) in fair.standing(state.partitions[name], now_us).items():
                    found.setdefault((name, account, user), (all_us / 1e6, own_us / 1e6))
    return found


def _stays(job: Job, stages: Stages) -> str:
    """Why the policies that would move jobs of its partition do not move this one, "" = they may, or there are none."""
    mine = (stage.policy for stage in stages if not stage.partitions or job.partition in stage.partitions)
    return next(filter(None, (policy.stays(job) for policy in mine if isinstance(policy, Migration))), "")


def _next_start(mark: str) -> str:
    """Where a job that was moved may start next."""
    only, _, never = mark[1:].partition(";")
    if only:
        return f"; it is to go on on {only}"
    return f"; it was asked to leave {never.replace(',', ', ')}, and starts elsewhere" if never else ""


def said(why: Why, records: Records = _NO_RECORDS) -> str:
    """The sentence of a reason. Ids of jobs are those that people know, times have a date."""
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
    """`42`; of a task of an array, or behind the first, `42_7`, where 7 is its number in the array, as far as that is known."""
    submission, index = task_of(job)
    record = records.get(submission)
    if record is not None and record.array:
        return f"{submission}_{shown_index(record.array, index)}"
    return job_label(submission, index)


def _shown(fact: str, records: Records) -> str:
    return label(int(fact), records) if fact.isdigit() and int(fact) >= MAX_INDEX else fact


def _blocker(why: Why, records: Records = _NO_RECORDS) -> str:
    """The id of the job that it waits for, where it is one."""
    found = re.search(r"\bjobs? \{\}", why.text)
    if found is None or not why.facts:
        return ""
    at = why.text[: found.start()].count("{}")
    return ", ".join(_shown(part, records) for part in str(why.facts[at]).split(", "))


def promised_starts(state: ClusterState | None, plan: Plan) -> Mapping[int, int]:
    """Job -> the start that it was promised (us); not behind a run without a limit, of which nobody knows when it ends."""
    found: dict[int, int | None] = {decision.job_id: decision.start_us for decision in plan.decisions if type(decision) is Reserve}
    for part in state.partitions.values() if state is not None else ():
        found |= {job: held.start_us for job, held in part.reservations.items()}
        found |= {job: _complete_us(part, hold) for job, hold in part.holds.items()}
    return {job: at_us for job, at_us in found.items() if at_us is not None and at_us < UNLIMITED_US}


def _complete_us(part: Partition, hold: Hold) -> int | None:
    """When the last run that it waits for must have ended, None when it waits for none any more."""
    return max((part.running[share.run_id].end_us for share in hold.waits_for if share.run_id in part.running), default=None)


def partitions_view(
    state: ClusterState | None,
    served: ServedPartitions,
    faults: PolicyFaults,
    names: Names,
    left_alone: Mapping[str, float],
    passes: tuple[int, float],
    gangs: Mapping[str, GangSummary],
) -> dict[str, PartitionView]:
    """Who places where, and how often it failed. left_alone: node -> seconds left. passes: how many, seconds of the last one."""
    found = {}
    for partition in sorted(served.partitions | set(served.problems)):
        policy = served.policies.get(partition, "")
        stages = dict.fromkeys((*served.stage_names(partition), policy))  # a pipeline of plug-ins fails as a whole
        part = state.partitions.get(partition) if state is not None else None
        found[partition] = PartitionView(
            policy=policy,
            passes=passes[0],
            last_pass_s=passes[1],
            faults=tuple((name, faults.counts[name], faults.last[name]) for name in stages if faults.counts.get(name)),
            problem=served.problems.get(partition, ""),
            instead=faults.told(partition),
            is_stopped=faults.is_stopped(partition),
            resting=tuple((node, left_s) for node, left_s in left_alone.items() if part is not None and names.id(node) in part.nodes),
            gang=gangs.get(partition),
        )
    return found


def ledger_view(state: ClusterState | None, promised: Mapping[int, int], job_table: JobTable, names: Names) -> tuple[HeldView, ...]:
    """Cores that are held for jobs that wait."""
    found: list[HeldView] = []
    for part in state.partitions.values() if state is not None else ():
        for job, hold in sorted(part.holds.items()):
            waiting = job_table.waiting.get(job)
            found += [
                HeldView(
                    queue=waiting.queue if waiting is not None else "",
                    job=label(job, job_table.submissions),
                    node=names.name(node),
                    cores=count,
                    since_us=job_table.since.get(job, 0),
                    expected_start_us=promised.get(job, 0),
                )
                for node, count in by_node(share.cores for share in hold.held).items()
            ]
    return tuple(found)
