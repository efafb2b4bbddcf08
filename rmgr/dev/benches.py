"""The table of measurements: what `rmgr bench NAME` runs."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.dev import (
    bench_backlog,
    bench_classes,
    bench_commands,
    bench_idle,
    bench_jobs,
    bench_keyed,
    bench_mixed,
    bench_published,
    bench_reality,
    bench_scale,
    bench_sched,
    bench_store,
    bench_tasks,
)
from rmgr.dev.bench import Plan, Row
from rmgr.errors import UsageError

MEASUREMENTS: dict[str, Callable[[Plan], list[Row]]] = {
    "tasks": bench_tasks.tasks,
    "latency": bench_tasks.latency,
    "shell": bench_tasks.shell,
    "backlog": bench_backlog.backlog,
    "commands": bench_commands.commands,
    "store": bench_store.store,
    "keyed": bench_keyed.keyed,
    "mixed": bench_mixed.mixed,
    "idle": bench_idle.idle,
    "scale": bench_scale.scale,
    "jobs": bench_jobs.jobs,
    "placing": bench_published.published,
    "classes": bench_classes.classes,
    "reality": bench_reality.reality,
    "sim": bench_sched.sim,
    "pass": bench_sched.passes,
}


def run(name: str, plan: Plan) -> list[Row]:
    """Measures `name`. Raises UsageError when there is no such measurement."""
    found = MEASUREMENTS.get(name)
    if found is None:
        raise UsageError(f"there is no measurement {name!r}", hint=f"known: {', '.join(MEASUREMENTS)}")
    return found(plan)
