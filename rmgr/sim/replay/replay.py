"""A recorded log again: the same passes under the same policy, decision by decision; what was recorded as a result and as a world.

`verify` tells the facts of the log to a state of its own, runs each of its passes, and compares decisions. What it sees meanwhile
(`History`) is the recorded run, and everything that another policy needs to be tried on it (replay/world.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmgr.errors import RmgrError
from rmgr.model.base.states import State
from rmgr.sched import job as sched
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Placement, Running
from rmgr.sched.plan import Decision, GangSet, Migrate, Preempt, Reject, Resume, Start, Suspend
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import AT_ONCE, Entry, Fact, Opening, Passed, decision, described
from rmgr.sim.engine.outcome import Parting

#: Why a job has lost its nodes (`because` of a fact).
_LOSSES = frozenset({"failed", "maintenance"})


class Stretch(NamedTuple):
    """One stretch of running, by the scheduler's ids."""

    job_id: int
    start_us: int
    end_us: int
    placement: Placement
    parting: Parting


class History:
    """Fates of the jobs of a log. Times as recorded.

    jobs: every request, as it was first submitted. stretches: in order of their ends. ran_us: work of each job that completed: what
    its last stay did, and what it had kept before. states: of jobs that are over. shared: jobs shared cores in time, as a gang.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.jobs: dict[int, sched.Job] = {job.id: job for job in opening.state.waiting}
        self.stretches: list[Stretch] = []
        self.ran_us: dict[int, int] = {}
        self.states: dict[int, State] = {}
        self.facts: list[Fact] = []  #: that are about no job: nodes, windows, limits; and cancellations
        self.passes = self.decided = self.told = 0
        self.shared = bool(opening.state.gangs)
        self._lost = {"job_preempted": 0, "job_ended": 0}  # jobs that lost a node, by what came of it
        self._on: dict[int, Running] = {}
        self._kept: dict[int, int] = {}
        for run in opening.state.running:
            self.jobs[run.job.id] = run.job
            self._on[run.job.id] = run
        for run in opening.state.stopping:
            self.jobs[run.job.id] = run.job

    @property
    def requeued(self) -> bool:
        """Jobs that lost a node waited again (one that lost too many has failed, whatever the setting)."""
        return bool(self._lost["job_preempted"]) or not self._lost["job_ended"]

    def fact(self, fact: Fact, answer: Any) -> None:
        """The state was told this, and answered that."""
        self.told += 1
        job_id, at_us = fact.arguments.get("job_id", 0), fact.at_us
        match fact.name:
            case "job_submitted":
                job = fact.arguments["job"]
                self.jobs[job.id] = job
            case "job_started" | "job_resumed" | "job_went_on":
                self._on[job_id] = answer
            case "job_stopping":
                self._off(fact.arguments["run"].job.id, at_us, Parting.MIGRATED)
            case "job_migrated":
                self._off(job_id, at_us, Parting.MIGRATED)
            case "job_preempted":
                self._off(job_id, at_us, Parting.LOST if fact.because else Parting.PREEMPTED)
            case "job_suspended":
                self._off(job_id, at_us, Parting.SUSPENDED)
            case "job_ended":
                self._end(job_id, at_us, fact.because)
            case "job_withdrawn":
                self.states[job_id] = State.CANCELLED if fact.because == "cancelled" else State.FAILED
        if fact.because in _LOSSES and fact.name in self._lost:
            self._lost[fact.name] += 1
        if not fact.name.startswith("job_") or fact.because == "cancelled":
            self.facts.append(fact)

    def decision(self, decision: Decision, run: Running | None, at_us: int) -> None:
        """It was carried out at once."""
        match decision:
            case Start(job_id) | Resume(job_id) if run is not None:
                self._on[job_id] = run
            case Migrate(job_id):
                self._off(job_id, at_us, Parting.MIGRATED)
            case Preempt(job_id):
                self._off(job_id, at_us, Parting.PREEMPTED)
            case Suspend(job_id):
                self._off(job_id, at_us, Parting.SUSPENDED)
            case Reject(job_id):
                self.states[job_id] = State.FAILED
            case GangSet():
                self.shared = True

    def _end(self, job_id: int, at_us: int, because: str) -> None:
        if not because:
            self.states[job_id] = State.COMPLETED
            self._off(job_id, at_us, Parting.ENDED)
            self.ran_us[job_id] = self._kept.pop(job_id)
        elif because == "cancelled":
            self.states[job_id] = State.CANCELLED
            self._off(job_id, at_us, Parting.CANCELLED)
        else:
            self.states[job_id] = State.FAILED
            self._off(job_id, at_us, Parting.LOST)

    def _off(self, job_id: int, at_us: int, parting: Parting) -> None:
        run = self._on.pop(job_id, None)
        if run is not None:
            self.stretches.append(Stretch(job_id, run.start_us, at_us, run.placement, parting))
        lost = parting in {Parting.LOST, Parting.PREEMPTED}
        self._kept[job_id] = 0 if lost else self._kept.get(job_id, 0) + (at_us - run.start_us if run is not None else 0)


def verify(entries: Iterable[Entry], pipeline: tuple[Stage, ...] | None) -> History:
    """Replays the log; the recorded run.

    Args:
        pipeline: the policies that made the log: each pass must decide what it decided then. None: the recorded decisions are followed.
    Raises: RmgrError with the first pass whose decisions differ; UsageError as reading the entries does.
    """
    history: History | None = None
    for entry in entries:
        match entry:
            case Opening():
                history, state = History(entry), ClusterState.restored(entry.state, entry.half_life_us)
            case Fact():
                assert history is not None
                try:
                    answer = entry.tell(state)
                except RmgrError as error:
                    raise RmgrError(f"the log tells at {entry.at_us} us what cannot be: {entry.name}: {error.message}") from error
                history.fact(entry, answer)
            case Passed():
                assert history is not None
                _pass(entry, history, state, pipeline)
    if history is None:
        raise RmgrError("the log is empty")
    return history


def _pass(entry: Passed, history: History, state: ClusterState, pipeline: tuple[Stage, ...] | None) -> None:
    history.passes += 1
    history.decided += len(entry.decisions)
    if pipeline is not None:
        causes = frozenset(map(Cause, entry.causes))
        plan = run_pass(state, causes, now=entry.at_us, seed=history.opening.seed, pipeline=pipeline)
        ours = described(plan.decisions)
        if ours != entry.decisions:
            raise RmgrError(_told(entry, ours), hint="another release, another policy of this name, or a changed file of policies")
        decisions = plan.decisions
    elif history.opening.carried_out == AT_ONCE:
        decisions = tuple(map(decision, entry.decisions))
    if history.opening.carried_out == AT_ONCE:
        for one in decisions:
            history.decision(one, state.carried_out(one, entry.at_us), entry.at_us)


def _told(entry: Passed, ours: tuple[Mapping[str, Any], ...]) -> str:
    """The first difference of two passes."""
    for number, (theirs, mine) in enumerate(zip(entry.decisions, ours, strict=False), 1):
        if theirs != mine:
            return f"pass {entry.number} at {entry.at_us} us: decision {number} was {dict(theirs)}, and is {dict(mine)}"
    extra = (*entry.decisions[len(ours) :], *ours[len(entry.decisions) :])
    which = "was, and is no more" if len(entry.decisions) > len(ours) else "is, and was not"
    number = min(len(entry.decisions), len(ours)) + 1
    return f"pass {entry.number} at {entry.at_us} us: decision {number}, {dict(extra[0])}, {which}"
