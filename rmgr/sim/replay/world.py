"""A recorded run as a workload, a machine and events that another policy can be tried on, and as a result to compare with.

Jobs that had not ended when the log did are left out: nobody knows how long they run. A job that moved counts with all the work it kept.
Nodes that were drained or failed, windows, limits and cancellations happen again at their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmgr.errors import UsageError
from rmgr.sched import job as sched
from rmgr.sched.job import Node
from rmgr.sched.policy import Stage
from rmgr.sched.records import Limits, Maintenance
from rmgr.sched.state.event_log import AT_ONCE, Fact
from rmgr.sim.engine.outcome import JobOutcome, Result, Setting, Spell
from rmgr.sim.replay.replay import History
from rmgr.sim.workload.events import Cancel, Event, LimitsChange, NodesDrain, NodesFail, NodesRepaired, NodesUndrain, Window
from rmgr.sim.workload.jobs import Workload, WorkloadJob


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The recorded run. left_out: jobs whose end the log does not know."""

    workload: Workload
    result: Result
    setting: Setting
    left_out: int


def recorded(history: History, *, name: str) -> _Recorded:
    """Workload, machine, events and result of a log. name: of the workload.

    Raises: UsageError when no job of it has ended, or when jobs shared cores in time: it does not say in which slots each ran.
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


def under(run: _Recorded, pipeline: tuple[Stage, ...], policy: str, usage_half_life_us: int) -> Setting:
    """The same world under another policy."""
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
    """Those of the beginning, and those that came later; all open: what closes them are events."""
    nodes = {node.id: node for node in history.opening.state.nodes}
    for fact in history.facts:
        if fact.name == "node_changed":
            nodes.setdefault(fact.arguments["node"].id, fact.arguments["node"])
    return tuple(replace(nodes[node], closed=False) for node in sorted(nodes))


def _events(history: History, numbers: Mapping[int, int], zero_us: int) -> Iterator[Event]:
    """What happened beside the jobs, in order of time."""
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
