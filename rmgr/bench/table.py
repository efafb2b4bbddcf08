"""The table of measurements: what `rmgr bench NAME` runs."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.bench import backlog, calls, classes, commands, gang, idle, jobs, keyed, mixed, published, reality, scale, sched, store, tasks
from rmgr.bench.measuring import MeasuringPlan, Row
from rmgr.errors import UsageError

MEASUREMENTS: dict[str, Callable[[MeasuringPlan], list[Row]]] = {
    "tasks": tasks.tasks,
    "latency": tasks.latency,
    "shell": tasks.shell,
    "backlog": backlog.backlog,
    "commands": commands.commands,
    "store": store.store,
    "keyed": keyed.keyed,
    "mixed": mixed.mixed,
    "idle": idle.idle,
    "scale": scale.scale,
    "jobs": jobs.jobs,
    "placing": published.published,
    "classes": classes.classes,
    "gang": gang.gang,
    "calls": calls.calls,
    "reality": reality.reality,
    "sim": sched.sim,
    "pass": sched.passes,
}


def run(name: str, plan: MeasuringPlan) -> list[Row]:
    """Measures `name`. Raises UsageError when there is no such measurement."""
    found = MEASUREMENTS.get(name)
    if found is None:
        raise UsageError(f"there is no measurement {name!r}", hint=f"known: {', '.join(MEASUREMENTS)}")
    return found(plan)
