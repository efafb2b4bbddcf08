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
from dataclasses import dataclass

from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.bench import SETUP, Bench, Plan, Row, row, two_slots
from rmgr.dev.bench_tasks import no_op
from rmgr.dev.jvm_heap import live_heap_bytes
from rmgr.dev.process_cost import children_of, cpu_s, pss_bytes

_TASKS = 1_000_000
_FEW = 5
#: Many small submissions: each has its record, gate, claim and end.
_SMALL_TASKS, _SMALL = 100_000, 2_000
_EMPTY = 100_000
#: Whole backlogs may take minutes on a busy machine.
_PATIENCE_S = 1800.0


@dataclass(slots=True)
class _Spent:
    """Seconds of the processor, by who spent them."""

    client_s: float = 0.0
    cluster_s: float = 0.0


def backlog(plan: Plan) -> list[Row]:
    """1,000,000 no-op tasks queued while the node is drained, then run; 100,000 in 2,000 submissions; and an empty queue beside them.

    The processor's time a task stands beside each rate: it tells more on a busy machine.
    """
    with two_slots(plan) as bench:
        _run(_fill(bench, 1, 2_000))
        # First: memory that earlier tasks have left behind would hide what these take.
        many, drained = _queued(plan, bench, _FEW, plan.count(_TASKS), is_first=True)
        rates = []
        for number in range(1, plan.repetitions + 1):
            plan.progress(f"empty queue: repetition {number} of {plan.repetitions}")
            count = plan.count(_EMPTY)
            started = time.perf_counter()
            with _spending(bench) as spent:
                _run(_fill(bench, 1, count))
            rates.append(count / (time.perf_counter() - started))
        empty = row("rmgr", SETUP, "run with an empty queue", "tasks/s", rates, ratio=1.0, **_each(spent, plan.count(_EMPTY)))
        small, slow = _queued(plan, bench, min(_SMALL, plan.count(_SMALL_TASKS)), plan.count(_SMALL_TASKS))
    return [empty, *many, _against(drained, empty), *small, _against(slow, empty)]


def _queued(plan: Plan, bench: Bench, submissions: int, total: int, *, is_first: bool = False) -> tuple[list[Row], Row]:
    """Fills the queue of a drained node, and runs it: (rows of what it took to fill it, the row of running it)."""
    what = f"{total} tasks in {submissions} submissions"
    plan.progress(what)
    _command(bench, "drain", "n1", "--reason", "bench")
    zookeeper, client = _zookeeper_bytes(bench), _client_bytes()
    started = time.perf_counter()
    with _spending(bench) as spent:
        queues = _fill(bench, submissions, total)
    accepted = total / (time.perf_counter() - started)
    rows = [row("rmgr", SETUP, f"submit {what}", "tasks/s", [accepted], **_each(spent, total))]
    if is_first:  # later on there is garbage of earlier tasks that new ones take the place of
        heap, memory = (_zookeeper_bytes(bench) - zookeeper) / total, (_client_bytes() - client) / total
        rows += [
            row("rmgr", SETUP, f"{what}, ZooKeeper's heap in use", "B/task", [heap]),
            row("rmgr", SETUP, f"{what}, client's memory", "B/future", [memory]),
        ]
    started = time.perf_counter()
    with _spending(bench) as spent:
        _command(bench, "resume", "n1")
        _run(queues)
    rate = total / (time.perf_counter() - started)
    return rows, row("rmgr", SETUP, f"run {what}", "tasks/s", [rate], **_each(spent, total))


def _against(drained: Row, empty: Row) -> Row:
    """The row with its ratio to the rate with an empty queue, and that of the processor's time (above 1: less of it with a backlog)."""
    ratio, cpu = drained.rate / empty.rate, sum(empty.detail.values()) / max(1e-9, sum(drained.detail.values()))
    return row(drained.system, drained.setup, drained.what, drained.unit, [drained.rate], ratio=ratio, **drained.detail, cpu_ratio=cpu)


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
    yield spent
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
