"""`rmgr submit --dry-run`: what would be submitted, where and when; nothing is."""

from __future__ import annotations

import sys
from typing import Any

from rmgr.cli.display.render import clock, emit, iso, printable
from rmgr.cli.session.context import Session
from rmgr.client.commands.sending import CheckedRequest, as_tried
from rmgr.model.base.units import counted, format_duration, format_size
from rmgr.model.tasks.placing import Rigid
from rmgr.model.tasks.submission import Phase
from rmgr.model.views import WhatIfView


def tell_dry(session: Session, draft: CheckedRequest) -> None:
    """What would be submitted; and of a placed job who would place it."""
    record = draft.record
    trial = session.query().what_if(as_tried(draft)) if record.rigid is not None and record.phase is Phase.OPEN else None
    if session.json:
        emit({"dry_run": True} | told_dry(draft) | ({"would": _would(trial)} if trial is not None else {}))
    else:
        write_dry(draft, trial)


def told_dry(draft: CheckedRequest) -> dict[str, Any]:
    """What would be submitted, as JSON."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    return {
        "tasks": draft.tasks,
        "name": record.name,
        "queue": record.queue,
        "cores": record.request.cores,
        "mem_bytes": record.request.memory_bytes,
        "time_limit": limit / 1e6 if limit else None,
        "priority": record.priority,
        "state": str(record.phase),
        "command": command_text(record),
        "partition": queue.partition if queue is not None else "",
        "policy": draft.settings.policy_of(queue) if queue is not None else "",
    } | ({"placed": _shape(record.rigid)} if record.rigid is not None else {})


def write_dry(draft: CheckedRequest, trial: WhatIfView | None = None) -> None:
    """What would be submitted, in words; `trial`: where and when."""
    from rmgr.coord.views.answers import command_text

    record = draft.record
    limit = record.request.time_limit_us
    queue = draft.settings.queue(record.queue)
    memory = f", {format_size(record.request.memory_bytes)}" if record.request.memory_bytes else ""
    time = f", at most {format_duration(limit / 1e6)}" if limit else ""
    out = sys.stdout
    out.write(f"would submit {record.name}: {draft.tasks} task{'s' if draft.tasks != 1 else ''} to queue {record.queue}\n")
    rigid = record.rigid
    several = f"{counted(rigid.processes, 'process')} of " if rigid is not None and rigid.processes > 1 else ""
    out.write(
        f"  each: {several}{counted(record.request.cores, 'core')}{memory}{time}, retries {record.retries}, "
        f"resubmit {'yes' if record.resubmit else 'no'}\n"
    )
    if rigid is not None:
        assert queue is not None
        words = [f"on {rigid.nodes} node{'s' if rigid.nodes != 1 else ''}" if rigid.nodes else "wherever they fit"]
        words += ["alone on its nodes"] if rigid.exclusive else []
        words += [f"of {','.join(rigid.nodelist)}"] if rigid.nodelist else []
        words += [f"without {','.join(rigid.exclude)}"] if rigid.exclude else []
        words += [f"not before {clock(rigid.begin_us)}"] if rigid.begin_us else []
        out.write(f"  placed by {draft.settings.policy_of(queue)} in partition {queue.partition}: {', '.join(words)}\n")
    if trial is not None:
        out.write(f"  {_would_text(trial)}\n")
    out.write(f"  runs: {command_text(record)}\n")
    if record.after:
        out.write(f"  after {', '.join(f'{item.condition}:{item.submission}' for item in record.after)}\n")


def _shape(rigid: Rigid) -> dict[str, Any]:
    """Of a placed job, as JSON."""
    return {
        "processes": rigid.processes,
        "nodes": rigid.nodes or None,
        "exclusive": rigid.exclusive,
        "nodelist": list(rigid.nodelist),
        "exclude": list(rigid.exclude),
        "begin": iso(rigid.begin_us),
        "kill_on_bad_exit": rigid.kill_on_bad_exit,
        "checkpoint_every": rigid.checkpoint_every_us / 1e6 or None,
        "checkpoint": rigid.saves(),
        "max_moves": rigid.max_moves or None,
    }


def _would(trial: WhatIfView) -> dict[str, Any]:
    """Where and when, as JSON."""
    return {
        "start": iso(trial.start_us),
        "at_once": trial.at_once,
        "nodes": [{"id": share.node, "processes": share.processes} for share in trial.nodes],
        "why": trial.reason,
        "class": trial.route,
    }


def _would_text(trial: WhatIfView) -> str:
    """Where and when, in a sentence."""
    chosen = f"; queue class {trial.route}" if trial.route else ""
    nodes = ", ".join(f"{share.node} ({share.processes})" for share in trial.nodes)
    if trial.at_once:
        return f"would start at once on {nodes}{chosen}"
    waits = f"would wait: {printable(trial.reason)}" if trial.reason else "would wait"
    if not nodes:
        return f"{waits}; when it could start, nobody can say: that depends on nodes that are away, or on work without a time limit{chosen}"
    return f"{waits}; would start by {clock(trial.start_us)} on {nodes}, when nothing else comes{chosen}"
