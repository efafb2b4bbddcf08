"""Many queued tasks: how fast they are accepted, what one of them takes while it waits, and whether the cluster is slower with them."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rmgr.bench.load.processes import children_of, cpu_s, live_heap_bytes, pss_bytes
from rmgr.bench.measuring import SETUP, Bench, MeasuringPlan, Row, row, two_slots
from rmgr.bench.tasks import no_op
from rmgr.client.taskqueue import TaskQueue

_TASKS = 1_000_000
_FEW = 5
#: Many small submissions: each has its record, gate, claim and end.
_SMALL_TASKS, _SMALL = 100_000, 2_000
_EMPTY = 100_000
#: Whole backlogs may take minutes on a busy machine.
_PATIENCE_S = 1800.0


@dataclass(slots=True)
class _Spent:
    """Seconds, and seconds of the processor by who spent them."""

    lasted_s: float = 0.0
    client_s: float = 0.0
    cluster_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """What one repetition measured. ratio: to the rate with an empty queue of the same repetition."""

    what: str
    unit: str
    value: float
    ratio: float | None = None
    detail: dict[str, float] = field(default_factory=dict)


def backlog(plan: MeasuringPlan) -> list[Row]:
    """1,000,000 no-op tasks queued while the node is drained, then run; 100,000 in 2,000 submissions; and an empty queue beside them.

    The processor's time a task stands beside each rate: it tells more on a busy machine. Each repetition has a cluster of its own:
    memory that earlier tasks have left behind would hide what these take (and so the client's is measured by the first alone).
    """
    found: dict[str, list[_Figure]] = {}
    for number in plan.rounds("backlog"):
        with two_slots(plan) as bench:
            for figure in _figures(plan, bench, is_first=number == 1):
                found.setdefault(figure.what, []).append(figure)
    return [_row(figures) for figures in found.values()]


def _row(figures: list[_Figure]) -> Row:
    one = figures[0]
    ratio = None if one.ratio is None else statistics.median(figure.ratio or 0.0 for figure in figures)
    detail = {name: statistics.median(figure.detail[name] for figure in figures) for name in one.detail}
    return row("rmgr", SETUP, one.what, one.unit, [figure.value for figure in figures], ratio=ratio, **detail)


def _figures(plan: MeasuringPlan, bench: Bench, *, is_first: bool) -> list[_Figure]:
    """Of one repetition. is_first: of this process."""
    _run(_fill(bench, 1, 2_000))
    # First: memory that earlier tasks have left behind would hide what these take.
    many, drained = _queued(plan, bench, _FEW, plan.count(_TASKS), weighs=True, weighs_client=is_first)
    count = plan.count(_EMPTY)
    plan.progress(f"{count} tasks, empty queue")
    with _spending(bench) as spent:
        _run(_fill(bench, 1, count))
    empty = _Figure(what="run with an empty queue", unit="tasks/s", value=count / spent.lasted_s, ratio=1.0, detail=_each(spent, count))
    small, slow = _queued(plan, bench, min(_SMALL, plan.count(_SMALL_TASKS)), plan.count(_SMALL_TASKS))
    return [empty, *many, _against(drained, empty), *small, _against(slow, empty)]


def _queued(
    plan: MeasuringPlan, bench: Bench, submissions: int, total: int, *, weighs: bool = False, weighs_client: bool = False
) -> tuple[list[_Figure], _Figure]:
    """Fills the queue of a drained node, and runs it: (what it took to fill it, how it ran). weighs: the memory, too."""
    what = f"{total} tasks in {submissions} submissions"
    plan.progress(what)
    _command(bench, "drain", "n1", "--reason", "bench")
    zookeeper, client = _zookeeper_bytes(bench), _client_bytes()
    with _spending(bench) as spent:
        queues = _fill(bench, submissions, total)
    figures = [_Figure(what=f"submit {what}", unit="tasks/s", value=total / spent.lasted_s, detail=_each(spent, total))]
    if weighs:
        heap = (_zookeeper_bytes(bench) - zookeeper) / total
        figures.append(_Figure(what=f"{what}, ZooKeeper's heap in use", unit="B/task", value=heap))
    if weighs_client:
        memory = (_client_bytes() - client) / total
        figures.append(_Figure(what=f"{what}, client's memory", unit="B/future", value=memory))
    with _spending(bench) as spent:
        _command(bench, "resume", "n1")
        _run(queues)
    return figures, _Figure(what=f"run {what}", unit="tasks/s", value=total / spent.lasted_s, detail=_each(spent, total))


def _against(drained: _Figure, empty: _Figure) -> _Figure:
    """With its ratio to the rate with an empty queue, and that of the processor's time (above 1: less of it with a backlog)."""
    cpu = sum(empty.detail.values()) / max(1e-9, sum(drained.detail.values()))
    return replace(drained, ratio=drained.value / empty.value, detail={**drained.detail, "cpu_ratio": cpu})


def _fill(bench: Bench, submissions: int, tasks: int) -> list[TaskQueue]:
    """Submits `tasks` in so many submissions; returns when all are durable."""
    queues = []
    for number in range(submissions):
        queue = TaskQueue(no_op, connection=bench.connection)
        queue.map(None, range(tasks // submissions + (number < tasks % submissions)))
        queues.append(queue)
    for queue in queues:
        queue.close(timeout=_PATIENCE_S)
    return queues


def _run(queues: list[TaskQueue]) -> None:
    """Waits for the end of all."""
    for queue in queues:
        queue.wait_all(timeout=_PATIENCE_S)


def _command(bench: Bench, *words: str) -> None:
    command = [sys.executable, "-m", "rmgr.cli.main", *words]
    subprocess.run(command, env={**os.environ, **bench.environment()}, capture_output=True, check=True, timeout=60)


# -- what it takes ----------------------------------------------------------------------------------------------------------------


@contextmanager
def _spending(bench: Bench) -> Iterator[_Spent]:
    """What this process and those of the cluster use of the processor while it lasts."""
    spent = _Spent()
    pids = sorted({pid for process in bench.cluster.state.processes for pid in (process.pid, *children_of(process.pid))})
    client, cluster = cpu_s([os.getpid()]), cpu_s(pids)
    started = time.perf_counter()
    yield spent
    spent.lasted_s = time.perf_counter() - started
    spent.client_s, spent.cluster_s = cpu_s([os.getpid()]) - client, cpu_s(pids) - cluster


def _each(spent: _Spent, tasks: int) -> dict[str, float]:
    return {"client_cpu_us": spent.client_s / tasks * 1e6, "cluster_cpu_us": spent.cluster_s / tasks * 1e6}


def _client_bytes() -> float:
    gc.collect()
    return float(pss_bytes(os.getpid()))


def _zookeeper_bytes(bench: Bench) -> float:
    """What ZooKeeper holds on to, after a full collection: nodes of its tree, its log of committed requests, watches."""
    servers = [process for process in bench.cluster.state.processes if process.role == "zookeeper"]
    return statistics.mean(live_heap_bytes(process.pid) for process in servers)
