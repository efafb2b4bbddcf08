"""Views -> the JSON shapes of cli.md section 5. Strings without a value are empty, times and numbers are null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmgr.cli.display.failures import Failure
from rmgr.cli.display.render import iso
from rmgr.coord.views.asked import USUAL
from rmgr.model.base.states import State
from rmgr.model.views import (
    AttemptView,
    ExplainView,
    FailureView,
    HeldView,
    JobView,
    LeaderView,
    MovingView,
    NodeView,
    PartView,
    PolicyView,
    QueueView,
    StatusView,
    TaskView,
)

#: `counts` has these in this order, always all of them.
COUNTED = tuple(str(s) for s in ("INITIAL", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "HELD", "SUSPENDED"))


def counts(known: Mapping[str, int]) -> dict[str, int]:
    """`counts`; with STARTING (placed, and not begun) while there is any."""
    starting = known.get(State.STARTING, 0)
    return {name: known.get(name, 0) for name in COUNTED} | ({str(State.STARTING): starting} if starting else {})


def attempt(view: AttemptView) -> dict[str, Any]:
    """An element of `attempts`."""
    return {
        "attempt": view.attempt,
        "node": view.node,
        "state": str(view.state),
        "reason": str(view.reason),
        "started": iso(view.started_us),
        "ended": iso(view.ended_us),
        "exit_code": view.exit_code,
        "error": view.error,
    }


def job(view: JobView) -> dict[str, Any]:
    """An element of `jobs`: what `show` says, without attempts."""
    return {
        "id": str(view.id),
        "name": view.name,
        "user": view.user,
        "queue": view.queue,
        "state": str(view.state),
        "reason": str(view.reason),
        "submitted": iso(view.submitted_us),
        "started": iso(view.started_us),
        "ended": iso(view.ended_us),
        "exit_code": view.exit_code,
        "counts": counts(view.counts),
        "nodes": list(view.nodes),
        "detail": view.detail,
        "tasks": view.tasks,
        "priority": view.priority,
        "work": str(view.work),
        "command": view.command,
        "cores": view.cores,
        "mem_bytes": view.memory_bytes,
        "after": list(view.after),
        "cpu_seconds": view.cpu_us / 1e6,
        "max_rss_bytes": view.max_rss_kib * 1024,
        **_served(view),
        "processes": max(1, view.processes),
        "expected_start": iso(view.expected_start_us),
        "account": view.account,
        **_shares(view),
        **USUAL,
        **view.asked,
        "begin": iso(int(view.asked.get("begin") or 0)),
        **({"resources": dict(sorted(view.resources.items()))} if view.resources else {}),
        **({"class": view.route} if view.route else {}),
        **_moving(view.moving),
        **({"failures": [_failed(item) for item in view.failures]} if view.failures else {}),
    }


def _failed(view: FailureView) -> dict[str, Any]:
    """An element of `failures`."""
    return {"reason": view.reason, "exit_code": view.exit_code, "node": view.node, "tasks": view.tasks, "error": view.error}


def failures(found: Sequence[Failure], steps: Sequence[str]) -> dict[str, Any]:
    """`failures` of `show` and `explain`, read from the ends themselves, and `next`; nothing where nothing failed."""
    if not found:
        return {}
    told = [
        {
            "reason": item.reason,
            "exit_code": item.exit_code,
            "node": node,
            "tasks": count,
            "error": item.error,
            "task": item.task,
            "stderr": item.stderr,
        }
        for item in found
        for node, count in item.nodes.items()
    ]
    return {"failures": told, "next": list(steps)}


def shown_job(view: JobView, attempts: Iterable[AttemptView], story: Sequence[str] = ()) -> dict[str, Any]:
    """The answer of `show ID`. story: of its checkpoints, left out where there are none."""
    told = job(view)
    rest = {key: told.pop(key) for key in list(told)[list(told).index("counts") :]}
    return {**told, "attempts": [attempt(item) for item in attempts], **rest, **_checkpoints(story)}


def _moving(view: MovingView | None) -> dict[str, Any]:
    """Of placed jobs that have not ended. max_moves: null = no cap of its own."""
    return {} if view is None else {"saves": view.saves, "moves": view.moves, "max_moves": view.most or None}


def _checkpoints(story: Sequence[str]) -> dict[str, Any]:
    return {"checkpoints": list(story)} if story else {}


def shown_task(view: TaskView, of: JobView) -> dict[str, Any]:
    """The answer of `show 42_7`: the same fields, of one task."""
    return {
        "id": view.id,
        "name": of.name,
        "user": of.user,
        "queue": of.queue,
        "state": str(view.state),
        "reason": str(view.reason),
        "submitted": iso(of.submitted_us),
        "started": iso(view.started_us),
        "ended": iso(view.ended_us),
        "exit_code": view.exit_code,
        "attempts": [attempt(item) for item in view.attempts],
        "counts": counts({view.state: 1}),
        "nodes": [view.node] if view.node else [],
        "index": view.index,
        "attempt": view.attempt,
        "error": view.error,
        "command": of.command,
        "cores": of.cores,
        "mem_bytes": of.memory_bytes,
        "priority": of.priority,
        "after": list(of.after),
        "account": of.account,
        **USUAL,
        **of.asked,
        "begin": iso(int(of.asked.get("begin") or 0)),
        **({"resources": dict(sorted(of.resources.items()))} if of.resources else {}),
        "cpu_seconds": view.cpu_us / 1e6,
        "max_rss_bytes": view.max_rss_kib * 1024,
        **_served(view),
        **_checkpoints(view.story),
        **_moving(view.moving),
        **({"saving": view.saving} if view.saving else {}),
    }


def _served(view: JobView | TaskView) -> dict[str, Any]:
    """Of work that shared its cores in time."""
    told: dict[str, Any] = {"served_seconds": view.served_us / 1e6, "turns": view.turns} if view.turns or view.served_us else {}
    return told | ({"slots": view.slots} if isinstance(view, JobView) and view.slots else {})


def task(view: TaskView) -> dict[str, Any]:
    """An element of `tasks`."""
    return {
        "id": view.id,
        "index": view.index,
        "state": str(view.state),
        "reason": str(view.reason),
        "attempt": view.attempt,
        "node": view.node,
        "started": iso(view.started_us),
        "ended": iso(view.ended_us),
        "exit_code": view.exit_code,
        "error": view.error,
        "cpu_seconds": view.cpu_us / 1e6,
        "max_rss_bytes": view.max_rss_kib * 1024,
        **_served(view),
    }


def node(view: NodeView) -> dict[str, Any]:
    """An element of `nodes`."""
    return {
        "id": view.id,
        "state": str(view.state),
        "cores": view.cores,
        "cores_used": view.cores_used,
        "mem_bytes": view.memory_bytes,
        "load": view.load,
        "incarnation": view.incarnation,
        "pid": view.pid,
        "reason": view.reason,
        "mem_used_bytes": view.memory_used_bytes,
        "running": view.running,
        "host": view.host,
        "partition": view.partition,
        "site": view.site,
        "speed": view.speed,
        "features": list(view.features),
        "resources": dict(sorted(view.resources.items())),
        "resources_used": {name: view.resources_used.get(name, 0) for name in sorted(view.resources)},
        "seen": iso(view.seen_us),
        "endpoint": view.endpoint,
        "version": view.version,
        "trouble": view.trouble,
        "until": iso(view.until_us),
        "metrics": view.metrics,
        "fix": view.fix,
        "level": str(view.level),
        "freezer": view.freezer,
        "clock_error_us": view.clock_error_us,
        "switches": view.switches,
        "late_switches": view.late_switches,
        "call_cores": view.call_cores,
        "by": view.by,
        "since": iso(view.since_us),
    }


def queue(view: QueueView) -> dict[str, Any]:
    """An element of `queues`."""
    return {
        "id": view.id,
        "partition": view.partition,
        "dispatch": str(view.dispatch),
        "policy": view.policy,
        "state": view.state,
        "pending": view.pending,
        "running": view.running,
        "limits": dict(view.limits),
        "held": [held(item) for item in view.held],
        "held_tasks": view.held_tasks,
    }


def queue_class(view: QueueView) -> dict[str, Any]:
    """An element of `classes`; null is what only the leader knows, and it does not answer."""
    found = view.of_class
    assert found is not None
    priority, head, no_waiter = found.fired
    return {
        "id": view.id,
        "partition": view.partition,
        "policy": view.policy,
        "state": view.state,
        "pending": view.pending if found.is_known else None,
        "running": view.running if found.is_known else None,
        "limits": dict(view.limits),
        "threshold": found.threshold if found.max_reservations else None,
        "max_reservations": found.max_reservations,
        "head_trigger": found.head_trigger,
        "fired": {"priority": priority, "head": head, "no_waiter": no_waiter} if found.is_known else None,
        "promised": [
            {
                "for": promise.job,
                "cores": promise.cores,
                "held": promise.held,
                "waits_for": list(promise.waits_for),
                "expected_start": iso(promise.expected_start_us),
            }
            for promise in found.promised
        ],
        "chosen": found.chosen,
    }


def held(view: HeldView) -> dict[str, Any]:
    """A line of the ledger: an element of `held`."""
    return {
        "for": view.job,
        "node": view.node,
        "cores": view.cores,
        "since": iso(view.since_us),
        "expected_start": iso(view.expected_start_us),
    }


def policy(view: PolicyView) -> dict[str, Any]:
    """An element of `status.policies`."""
    return {
        "partition": view.partition,
        "policy": view.policy,
        "passes": view.passes,
        "last_pass": view.last_pass_s,
        "faults": [{"policy": fault.policy, "count": fault.count, "error": fault.error} for fault in view.faults],
        "problem": view.problem,
        **({"generation": view.generation, "max_tqlb": view.max_tqlb} if view.generation is not None else {}),
        **({"servers": view.servers, "age": view.age_s, "degraded": view.degraded} if view.servers is not None else {}),
    }


def leader(view: LeaderView | None) -> dict[str, Any] | None:
    """`status.leader`."""
    if view is None:
        return None
    return {
        "id": view.id,
        "host": view.host,
        "pid": view.pid,
        "epoch": view.epoch,
        "since": iso(view.since_us),
        "endpoint": view.endpoint,
        "version": view.version,
        "metrics": view.metrics,
    }


def status(view: StatusView) -> dict[str, Any]:
    """The answer of `status`."""
    return {
        "healthy": view.healthy,
        "leader": leader(view.leader),
        "zookeeper": dict(view.zookeeper),
        "store": dict(view.store),
        "counts": counts(view.counts),
        "nodes": {"up": 0, "draining": 0, "fenced": 0, **view.nodes},
        "cluster_id": view.cluster_id,
        "problems": list(view.problems),
        "watchdogs": view.watchdogs,
        "uptime": view.uptime_s,
        "policies": [policy(item) for item in view.policies],
        "warnings": list(view.warnings),
        "parts": [part(item) for item in view.parts],
    }


def part(view: PartView) -> dict[str, str]:
    """An element of `status.parts`: what is not well."""
    return {
        "kind": view.kind,
        "id": view.id,
        "state": view.state,
        "reason": view.reason,
        "fix": view.fix,
        "level": str(view.level),
    }


def explain(view: ExplainView) -> dict[str, Any]:
    """The answer of `explain`."""
    return {
        "id": view.id,
        "state": str(view.state),
        "why": [{"what": item.what, "id": item.id, "detail": item.detail} for item in view.why],
        "expected_start": iso(view.expected_start_us),
        "reason": str(view.reason),
        "priority": view.priority,
        "account": view.account,
        **_shares(view),
    }


def _shares(view: JobView | ExplainView) -> dict[str, Any]:
    """Core time used against the shares of user and account, null = its policy does not order by that."""
    return {"share_core_seconds": view.share, "account_share_core_seconds": view.account_share}


def history(view: JobView) -> dict[str, Any]:
    """An element of `history`."""
    began = view.started_us or view.submitted_us
    return {
        "id": str(view.id),
        "name": view.name,
        "user": view.user,
        "state": str(view.state),
        "reason": str(view.reason),
        "exit_code": view.exit_code,
        "submitted": iso(view.submitted_us),
        "started": iso(view.started_us),
        "ended": iso(view.ended_us),
        "elapsed": max(0, view.ended_us - began) / 1e6 if view.ended_us else 0.0,
        "cpu_seconds": view.cpu_us / 1e6,
        "max_rss_bytes": view.max_rss_kib * 1024,
        **_served(view),
        "nodes": list(view.nodes),
        "queue": view.queue,
        "tasks": view.tasks,
        "counts": counts(view.counts),
        "command": view.command,
        "account": view.account,
    }


def item(id_: str, state: State, reason: str, exit_code: int | None) -> dict[str, Any]:
    """An element of `wait`'s items."""
    return {"id": id_, "state": str(state), "reason": str(reason), "exit_code": exit_code}
