"""Replays a recorded log: verifies each decision under the same policy, or turns the recorded run into a world for another policy.

`verify` feeds the facts of the log to a fresh state, runs each of its passes and compares the decisions; it returns the recorded run
(`History`). `recorded` turns that into a workload, a machine, events and a result to compare with. Jobs that had not ended by the end of
the log are left out, because their run time is unknown. A job that moved counts with all the work it kept. Drains and failures of nodes,
maintenance windows, limits and cancellations happen again at their recorded times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rmgr.errors import RmgrError, UsageError
from rmgr.model.states import State
from rmgr.sched import job as sched
from rmgr.sched.engine import run_pass
from rmgr.sched.job import Node, Placement, Running
from rmgr.sched.plan import Decision, GangSet, Migrate, Preempt, Reject, Resume, Send, Start, Suspend
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Answered, Limits, Maintenance
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import AT_ONCE, Entry, Fact, Opening, Passed, decision, described
from rmgr.sim.engine.outcome import JobOutcome, Parting, Result, Setting, Spell
from rmgr.sim.workload.events import Cancel, Event, LimitsChange, NodesDrain, NodesFail, NodesRepaired, NodesUndrain, Window
from rmgr.sim.workload.jobs import Workload, WorkloadJob

#: Reasons (`because` of a fact) for which a job loses its nodes.
_LOSSES = frozenset({"failed", "maintenance"})


def verify(entries: Iterable[Entry], pipeline: tuple[Stage, ...] | None) -> History:
    """Replays the log and returns the recorded run.

    Args:
        pipeline: the policies that made the log; each pass must decide what it decided then. None follows the recorded decisions.
    Raises: RmgrError naming the first pass whose decisions differ; UsageError if the entries cannot be read.
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
                _replay_pass(entry, history, state, pipeline)
    if history is None:
        raise RmgrError("the log is empty")
    return history


def _replay_pass(entry: Passed, history: History, state: ClusterState, pipeline: tuple[Stage, ...] | None) -> None:
    history.passes += 1
    history.decided += len(entry.decisions)
    if pipeline is not None:
        causes = frozenset(map(Cause, entry.causes))
        plan = run_pass(state, causes, now=entry.at_us, seed=history.opening.seed, pipeline=pipeline)
        ours = described(plan.decisions)
        if ours != entry.decisions:
            raise RmgrError(_told_and_ours(entry, ours), hint="another release, another policy of this name, or a changed file of policies")
        decisions = plan.decisions
    elif history.opening.carried_out == AT_ONCE:
        decisions = tuple(map(decision, entry.decisions))
    if history.opening.carried_out == AT_ONCE:
        for one in decisions:
            history.decision(one, state.carried_out(one, entry.at_us), entry.at_us)


def _told_and_ours(entry: Passed, ours: tuple[Mapping[str, Any], ...]) -> str:
    """Describes the first difference between two passes."""
    for number, (theirs, mine) in enumerate(zip(entry.decisions, ours, strict=False), 1):
        if theirs != mine:
            return f"pass {entry.number} at {entry.at_us} us: decision {number} was {dict(theirs)}, and is {dict(mine)}"
    extra = (*entry.decisions[len(ours) :], *ours[len(entry.decisions) :])
    which = "was, and is no more" if len(entry.decisions) > len(ours) else "is, and was not"
    number = min(len(entry.decisions), len(ours)) + 1
    return f"pass {entry.number} at {entry.at_us} us: decision {number}, {dict(extra[0])}, {which}"


class History:
    """What happened to the jobs of a log. Times as recorded.

    jobs: every request as first submitted. stretches: in order of their ends. ran_us: work of each completed job: of its last stay plus
    what it had kept before. states: of finished jobs. shared: whether jobs shared cores in time, as a gang.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.jobs: dict[int, sched.Job] = {job.id: job for job in opening.state.waiting}
        self.stretches: list[Stretch] = []
        self.ran_us: dict[int, int] = {}
        self.states: dict[int, State] = {}
        self.facts: list[Fact] = []  #: on nodes, windows and limits, and cancellations
        self.passes = self.decided = self.told = 0
        self.shared = bool(opening.state.gangs)
        self._lost = {"job_preempted": 0, "job_ended": 0}  # number of jobs that lost a node, by what became of them
        self._on: dict[int, Running] = {}
        self._kept: dict[int, int] = {}
        for run in opening.state.running:
            self.jobs[run.job.id] = run.job
            self._on[run.job.id] = run
        for run in opening.state.stopping:
            self.jobs[run.job.id] = run.job

    @property
    def requeued(self) -> bool:
        """Whether jobs that lost a node were requeued (a job that lost too many fails in any case)."""
        return bool(self._lost["job_preempted"]) or not self._lost["job_ended"]

    def fact(self, fact: Fact, answer: Any) -> None:
        """Records a fact, and the state's answer to it."""
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
        """Records a decision, which was carried out at once."""
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


class Stretch(NamedTuple):
    """An uninterrupted stretch of a run, with the scheduler's ids."""

    job_id: int
    start_us: int
    end_us: int
    placement: Placement
    parting: Parting


def recorded(history: History, *, name: str) -> _Recorded:
    """Returns workload, machine, events and result of a log. name: of the workload.

    Raises: UsageError if no job ended, or if jobs shared cores in time: the log does not say in which slots each ran.
    """
    opening = history.opening
    if history.shared:
        hint = "rmgr sim run with the same trace and another --policy; rmgr sim replay LOG alone checks the decisions"
        raise UsageError(f"{name}: its jobs shared cores in time, and a log does not say how long each of them ran", hint=hint)
    known = sorted((job for job in history.jobs.values() if job.id in history.states), key=lambda job: (job.submit_us, job.id))
    if not known:
        raise UsageError(f"{name}: no job of the log has ended", hint="nothing can be compared")
    zero_us = 0 if opening.carried_out == AT_ONCE else known[0].submit_us
    numbers = {job.id: number for number, job in enumerate(known, 1)}
    nodes = _nodes(history)
    spells: dict[int, list[Spell]] = {}
    for stretch in history.stretches:
        if stretch.end_us > stretch.start_us:
            spell = Spell(stretch.start_us - zero_us, stretch.end_us - zero_us, (), stretch.parting)
            spells.setdefault(stretch.job_id, []).append(spell)
    jobs, outcomes = [], []
    for job in known:
        own = tuple(spells.get(job.id, ()))
        ran_us = history.ran_us.get(job.id, 0) or max(sum(spell.end_us - spell.start_us for spell in own), job.limit_us, 1)
        jobs.append(_as_drawn(job, numbers[job.id], job.submit_us - zero_us, ran_us))
        outcomes.append(JobOutcome(job=jobs[-1], spells=own, state=history.states[job.id], queue=job.queue))
    processors = sum(node.cores for node in nodes)
    workload = Workload(name=name, jobs=tuple(jobs), processors=processors)
    requests = {numbers[job.id]: replace(job, after=tuple(numbers[before] for before in job.after if before in numbers)) for job in known}
    setting = Setting(
        nodes=nodes,
        pipeline=(),
        policy=opening.policy,
        seed=opening.seed,
        tick_us=round(float(opening.about.get("tick_seconds", 0)) * 1_000_000),
        events=tuple(_events(history, numbers, zero_us)),
        requeue=history.requeued,
        usage_half_life_us=opening.half_life_us,
        requests=requests,
    )
    result = Result(
        outcomes=tuple(outcomes),
        processors=processors,
        policy=opening.policy,
        seed=opening.seed,
        passes=history.passes,
        wall_seconds=0.0,
    )
    return _Recorded(workload=workload, result=result, setting=setting, left_out=len(history.jobs) - len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The recorded run. left_out: number of jobs whose end is not in the log."""

    workload: Workload
    result: Result
    setting: Setting
    left_out: int


def under(run: _Recorded, pipeline: tuple[Stage, ...], policy: str, usage_half_life_us: int) -> Setting:
    """Returns the same world under another policy."""
    return replace(run.setting, pipeline=pipeline, policy=policy, usage_half_life_us=usage_half_life_us)


def _as_drawn(job: sched.Job, number: int, submit_us: int, ran_us: int) -> WorkloadJob:
    return WorkloadJob(
        number=number,
        submit_us=max(submit_us, 0),
        run_us=ran_us,
        estimate_us=max(job.limit_us, ran_us),
        processors=job.cpus,
        processes=job.processes,
        threads=job.threads,
        user=job.user,
        account=job.account,
        queue=job.queue,
        source=job.id,
        memory_bytes=job.memory_bytes,
    )


def _nodes(history: History) -> tuple[Node, ...]:
    """Returns all nodes, including those that came later, all open: events close them."""
    nodes = {node.id: node for node in history.opening.state.nodes}
    for fact in history.facts:
        if fact.name == "node_changed":
            nodes.setdefault(fact.arguments["node"].id, fact.arguments["node"])
    return tuple(replace(nodes[node], closed=False) for node in sorted(nodes))


def _events(history: History, numbers: Mapping[int, int], zero_us: int) -> Iterator[Event]:
    """Yields everything that happened besides jobs, in order of time."""
    first = {node.id: node for node in history.opening.state.nodes}
    late = {fact.arguments["node"].id for fact in history.facts if fact.name == "node_changed"} - set(first)
    for node in sorted(late | {node.id for node in first.values() if node.closed}):
        yield NodesDrain(0, ((node, node),))
    for partition, limits in history.opening.state.limits:
        yield LimitsChange(0, partition, limits)
    for window in history.opening.state.windows:
        yield _window(0, window, zero_us)
    for fact in history.facts:
        yield from _event(fact, numbers, zero_us)


def _event(fact: Fact, numbers: Mapping[int, int], zero_us: int) -> Iterator[Event]:
    at_us, given = max(fact.at_us - zero_us, 0), fact.arguments
    match fact.name:
        case "node_changed":
            node: Node = given["node"]
            failed = fact.because in {"failed", "repaired"}
            kind: Any = (NodesFail if failed else NodesDrain) if node.closed else (NodesRepaired if failed else NodesUndrain)
            yield kind(at_us, ((node.id, node.id),))
        case "node_removed":
            yield NodesDrain(at_us, ((given["node_id"], given["node_id"]),))
        case "limits_changed":
            yield LimitsChange(at_us, given["partition"], given["limits"] or Limits())
        case "maintenance_planned":
            yield _window(at_us, given["window"], zero_us)
        case "job_ended" | "job_withdrawn" if given["job_id"] in numbers:
            yield Cancel(at_us, numbers[given["job_id"]])


def _window(at_us: int, window: Maintenance, zero_us: int) -> Window:
    nodes = tuple((node, node) for node in window.nodes)
    start_us = max(window.start_us - zero_us, at_us)
    return Window(at_us, start_us, max(window.end_us - zero_us, start_us + 1), nodes, window.name)


# -- a log of picks: which server another policy would have chosen for the same calls, measurements and answers ----------------


@dataclass(slots=True)
class Picks:
    """For each call the recorded server, the server that the other policy picks, their predictions (s), and the answer.

    The log cannot say where the other choice would have led: servers and links were measured under the recorded policy. So picks and
    predictions are compared; the recorded answers show how good the recorded predictions were.
    """

    policy: str = ""
    recorded: dict[int, Send] = field(default_factory=dict)
    replayed: dict[int, Send] = field(default_factory=dict)
    answered: dict[int, Answered] = field(default_factory=dict)

    @property
    def same(self) -> int:
        """Number of calls that both policies send to the same server."""
        return sum(call in self.replayed and self.replayed[call].to == sent.to for call, sent in self.recorded.items())

    @staticmethod
    def shares(sends: Mapping[int, Send]) -> dict[str, int]:
        """Returns the number of calls by server, ordered by name."""
        return dict(sorted(Counter(send.to for send in sends.values()).items()))

    @staticmethod
    def predicted_s(sends: Mapping[int, Send]) -> float:
        """Returns the mean prediction (s), or 0 without predictions."""
        known = [send.predicted_us for send in sends.values() if send.predicted_us]
        return sum(known) / len(known) / 1e6 if known else 0.0

    @property
    def answered_s(self) -> float:
        """Recorded mean time until the answer (s)."""
        return sum(one.took_us for one in self.answered.values()) / len(self.answered) / 1e6 if self.answered else 0.0


def picks(entries: Iterable[Entry], pipeline: tuple[Stage, ...]) -> Picks:
    """Runs every pass of the log under this pipeline, on a fresh state that gets the recorded facts.

    Raises: RmgrError if the policy raises or the log is empty. Cost: one pass for each pass of the log.
    """
    found, state, seed = Picks(), None, 0
    for entry in entries:
        match entry:
            case Opening(policy, _, seed, records):
                state, found.policy = ClusterState.restored(records), policy
            case Fact() if state is not None:
                _tell_state(entry, state, found)
            case Passed(at_us, _, causes, decisions) if state is not None:
                for one in map(decision, decisions):
                    if isinstance(one, Send):
                        found.recorded[one.job_id] = one
                plan = run_pass(state, frozenset(map(Cause, causes)), now=at_us, seed=seed, pipeline=pipeline)
                if plan.faults:
                    raise RmgrError(f"policy {plan.faults[0].policy} failed at {at_us} us: {plan.faults[0].error}")
                for one in plan.decisions:
                    state.carried_out(one, at_us)
                    if isinstance(one, Send):
                        found.replayed[one.job_id] = one
    if state is None:
        raise RmgrError("the log is empty")
    return found


def _tell_state(fact: Fact, state: ClusterState, found: Picks) -> None:
    """Tells the state a fact. A call that was sent or withdrawn may already have left this state."""
    if fact.name == "call_answered":
        found.answered[fact.arguments["answered"].call_id] = fact.arguments["answered"]
    if fact.name == "call_left":
        waits = state.partitions.get(fact.arguments.get("partition", "default"))
        if waits is None or fact.arguments["call_id"] not in waits.calls:
            return
    fact.tell(state)
