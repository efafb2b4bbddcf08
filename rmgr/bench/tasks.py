"""Small tasks against the standard library's pool, one task at a time, and shell commands against `xargs`."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from rmgr.bench.measuring import SETUP, SLOTS, Bench, MeasuringPlan, Row, paired, percentile, row, took_s, two_slots, zookeeper_counts
from rmgr.client.connection import Connection
from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.cluster import OWN_CASSANDRA

_REPLICATED = "3 ZooKeepers (fsync), 1 Cassandra, 2 slots"
_TASKS = 5_000
_SINGLES = 300
#: Many, for the rate; and few, of whose time the start of `rmgr submit` is a good part.
_COMMANDS = (5_000, 1_000)


#: The task: returns its argument, and its module is no load for a worker.
no_op = operator.index


def tasks(plan: MeasuringPlan) -> list[Row]:
    """No-op Python tasks, results read back: `map` and one future a call, durable, against `ProcessPoolExecutor(2)`.

    With `plan.cassandra` on three ZooKeepers and one Cassandra of this machine as well.
    """
    if plan.gateway:
        from rmgr.bench import gateway

        return gateway.tasks(plan)
    with two_slots(plan) as bench:
        rows = _tasks(plan, bench, SETUP)
    if plan.cassandra:
        with two_slots(plan, store=OWN_CASSANDRA, zookeepers=3) as bench:
            rows += _tasks(plan, bench, _REPLICATED)
    return rows


def _tasks(plan: MeasuringPlan, bench: Bench, setup: str) -> list[Row]:
    count = plan.count(_TASKS)
    connection = bench.connection
    transactions: list[float] = []

    def mapped() -> float:
        _, before = zookeeper_counts(bench.cluster)
        rate = _rate(count, lambda: by_map(connection, count))
        transactions.append((zookeeper_counts(bench.cluster)[1] - before) / count)
        return rate

    with ProcessPoolExecutor(SLOTS) as pool:
        list(pool.map(no_op, range(100)))
        by_map(connection, 500)
        rows = paired(
            plan,
            what="no-op tasks by map",
            unit="tasks/s",
            baseline=("ProcessPoolExecutor(2).map", lambda: _rate(count, lambda: list(pool.map(no_op, range(count))))),
            ours=("rmgr TaskQueue.map", setup, mapped),
            also=("rmgr Executor.map", setup, lambda: _rate(count, lambda: by_executor_map(connection, count))),
        )
        rows.append(row("rmgr TaskQueue.map", setup, "ZooKeeper transactions of no-op tasks by map", "per task", transactions))
        rows += paired(
            plan,
            what="no-op tasks, one future a call",
            unit="tasks/s",
            baseline=(
                "ProcessPoolExecutor(2).submit",
                lambda: _rate(count, lambda: [f.result() for f in [pool.submit(no_op, i) for i in range(count)]]),
            ),
            ours=("rmgr Executor.submit", setup, lambda: _rate(count, lambda: by_submit(connection, count))),
            also=("rmgr TaskQueue.submit_call", setup, lambda: _rate(count, lambda: by_submit_call(connection, count))),
        )
    return rows


def _rate(count: int, work: Callable[[], object]) -> float:
    return count / took_s(work)


def by_map(connection: Connection, count: int) -> None:
    """So many by `TaskQueue.map`, with their results."""
    with TaskQueue(no_op, connection=connection) as queue:
        results = [future.result(timeout=300) for future in queue.map(no_op, range(count))]
    if results != list(range(count)):
        raise AssertionError("wrong results")


def by_executor_map(connection: Connection, count: int) -> None:
    """So many by `Executor.map`."""
    with Executor(connection=connection) as executor:
        if list(executor.map(no_op, range(count), timeout=300)) != list(range(count)):
            raise AssertionError("wrong results")


def by_submit_call(connection: Connection, count: int) -> None:
    """So many by `TaskQueue.submit_call`, a future each."""
    with TaskQueue(no_op, connection=connection) as queue:
        results = [future.result(timeout=300) for future in [queue.submit_call(value) for value in range(count)]]
    if results != list(range(count)):
        raise AssertionError("wrong results")


def by_submit(connection: Connection, count: int) -> None:
    """So many by `Executor.submit`."""
    with Executor(connection=connection) as executor:
        results = [future.result(timeout=300) for future in [executor.submit(no_op, value) for value in range(count)]]
    if results != list(range(count)):
        raise AssertionError("wrong results")


def latency(plan: MeasuringPlan) -> list[Row]:
    """One task at a time, from submit to result: the next one begins when the last one's result is there."""
    if plan.gateway:
        from rmgr.bench import gateway

        return gateway.latency(plan)
    count = plan.count(_SINGLES)
    rows = []
    with two_slots(plan) as bench, ProcessPoolExecutor(SLOTS) as pool, TaskQueue(no_op, connection=bench.connection) as queue:
        pool.submit(no_op, 0).result()
        for value in range(20):
            queue.submit_call(value).result(timeout=60)
        samples: dict[str, list[list[float]]] = {"ProcessPoolExecutor(2)": [], "rmgr": []}
        for _ in plan.rounds("latency"):
            samples["ProcessPoolExecutor(2)"].append([took_s(lambda: pool.submit(no_op, 1).result()) for _ in range(count)])
            samples["rmgr"].append([took_s(lambda: queue.submit_call(1).result(timeout=60)) for _ in range(count)])
    for system, runs in samples.items():
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            values = [percentile(one, share) * 1e3 for one in runs]
            rows.append(row(system, SETUP if system == "rmgr" else "the same run", f"one task at a time, {name}", "ms", values))
    return rows


def shell(plan: MeasuringPlan) -> list[Row]:
    """Shell commands with captured output, whole `rmgr submit --array --wait`, against `xargs -P2` beside it."""
    rows: list[Row] = []
    with two_slots(plan) as bench:
        _submit_array(bench, 20)
        for count in map(plan.count, _COMMANDS):
            rows += paired(
                plan,
                what=f"{count:,} commands with captured output",
                unit="commands/s",
                baseline=("xargs -P2 /bin/true", partial(_rate_of, count, _xargs)),
                ours=("rmgr submit --array -- /bin/true", SETUP, partial(_rate_of, count, partial(_submit_array, bench))),
            )
    return rows


def _rate_of(count: int, work: Callable[[int], None]) -> float:
    return _rate(count, lambda: work(count))


def _xargs(count: int) -> None:
    lines = "".join(f"{number}\n" for number in range(count))
    subprocess.run(["xargs", "-P2", "-n1", "/bin/true"], input=lines.encode(), check=True, timeout=600)


def _submit_array(bench: Bench, count: int) -> None:
    command = [sys.executable, "-m", "rmgr.cli.main", "submit", "--array", f"1-{count}", "--wait", "--", "/bin/true"]
    done = subprocess.run(command, env={**os.environ, **bench.environment()}, capture_output=True, check=False, timeout=600)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
