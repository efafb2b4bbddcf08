"""Small tasks against the standard library's pool, one task at a time, and shell commands against `xargs`; tasks through a gateway.

What a gateway costs is measured in turns: the same tasks directly and through it, with the Starter, ZooKeeper and store of both.
"""

from __future__ import annotations

import json
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from rmgr.bench.load.processes import Child, say
from rmgr.bench.measuring import (
    SETUP,
    SLOTS,
    Bench,
    MeasuringPlan,
    Row,
    connected,
    paired,
    row,
    took_s,
    two_slots,
    zookeeper_counts,
)
from rmgr.client.connection import Connection, connect
from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.dev.cluster import OWN_CASSANDRA
from rmgr.model.base.units import percentile

_REPLICATED = "3 ZooKeepers (fsync), 1 Cassandra, 2 slots"
_TASKS = 5_000
_SINGLES = 300
#: Many, for the rate; and few, of whose time the start of `rmgr submit` is a good part.
_COMMANDS = (5_000, 1_000)
#: Beside one client, so many at once; the two ways to the cluster.
_CLIENTS = 8
_DIRECT, _THROUGH = "directly", "through a gateway"

#: The task: returns its argument, and its module is no load for a worker.
no_op = operator.index


def tasks(plan: MeasuringPlan) -> list[Row]:
    """No-op Python tasks, results read back: `map` and one future a call, durable, against `ProcessPoolExecutor(2)`.

    With `plan.cassandra` on three ZooKeepers and one Cassandra of this machine as well.
    """
    if plan.gateway:
        return _tasks_both_ways(plan)
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
        return _latency_both_ways(plan)
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
        for percent in (50, 99):
            values = [percentile(one, percent) * 1e3 for one in runs]
            rows.append(row(system, SETUP if system == "rmgr" else "the same run", f"one task at a time, p{percent}", "ms", values))
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


# -- directly and through a gateway --------------------------------------------------------------------------------------------


@contextmanager
def _both(plan: MeasuringPlan) -> Iterator[tuple[Bench, Connection]]:
    """A cluster with a gateway, and a connection through that."""
    with two_slots(plan) as bench:
        bench.cluster.start_gateway("g1")
        with connected(bench.cluster, through=bench.cluster.state.gateway) as connection:
            yield bench, connection


def _tasks_both_ways(plan: MeasuringPlan) -> list[Row]:
    """No-op tasks by `map` and one future a call, directly and through a gateway; and of eight clients at once."""
    count = plan.count(_TASKS)
    rows: list[Row] = []
    with _both(plan) as (bench, through):
        ways: tuple[tuple[str, Callable[[Connection, int], None]], ...] = (
            ("no-op tasks by map", by_map),
            ("no-op tasks, one future a call", by_submit_call),
        )
        for what, work in ways:
            rates: dict[str, list[float]] = {_DIRECT: [], _THROUGH: []}
            for connection in (bench.connection, through):
                work(connection, 500)
            for _ in plan.rounds(f"{what}, {_THROUGH}"):
                rates[_DIRECT].append(count / took_s(partial(work, bench.connection, count)))
                rates[_THROUGH].append(count / took_s(partial(work, through, count)))
            rows += _compared(what, "tasks/s", rates)
        rows += _crowd(plan, bench, count)
    return rows


def _latency_both_ways(plan: MeasuringPlan) -> list[Row]:
    """One task at a time, directly and through a gateway."""
    count = plan.count(_SINGLES)
    with _both(plan) as (bench, through), ExitStack() as stack:
        queues = {
            name: stack.enter_context(TaskQueue(no_op, connection=connection))
            for name, connection in ((_DIRECT, bench.connection), (_THROUGH, through))
        }
        samples: dict[str, list[list[float]]] = {name: [] for name in queues}
        for _ in plan.rounds(f"latency, {_THROUGH}"):
            for name, queue in queues.items():
                for _ in range(20):
                    queue.submit_call(1).result(timeout=60)
                samples[name].append([took_s(partial(_alone, queue)) for _ in range(count)])
    rows: list[Row] = []
    for percent in (50, 99):
        values = {name: [percentile(one, percent) * 1e3 for one in runs] for name, runs in samples.items()}
        rows += _compared(f"one task at a time, p{percent}", "ms", values)
    return rows


def _alone(queue: TaskQueue) -> None:
    queue.submit_call(1).result(timeout=60)


def _crowd(plan: MeasuringPlan, bench: Bench, count: int) -> list[Row]:
    """As many tasks by one direct client, and by eight at once, each a process: directly, and through the gateway."""
    alone: list[float] = []
    rates: dict[str, list[float]] = {_DIRECT: [], _THROUGH: []}
    state = bench.cluster.state
    ways: dict[str, dict[str, str | float]] = {
        _DIRECT: {"zk": state.zookeeper, "store": state.store, "session_timeout_s": state.session_timeout_s},
        _THROUGH: {"gateway": state.gateway},
    }
    with ExitStack() as stack:
        crowds: dict[str, list[Child]] = {}
        for name, cluster in ways.items():
            asked = json.dumps({"cluster": cluster, "security": state.security, "tasks": count})
            crowds[name] = [
                stack.enter_context(Child("rmgr.bench.tasks", asked, log=bench.cluster.directory / f"map{len(crowds)}{at}.log"))
                for at in range(_CLIENTS)
            ]
            for child in crowds[name]:
                child.told("ready")
        for _ in plan.rounds(f"{_CLIENTS} clients at once"):
            alone.append(count / took_s(partial(by_map, bench.connection, count)))
            for name, crowd in crowds.items():
                for child in crowd:
                    child.ask()
                spans = [child.told("span") for child in crowd]
                rates[name].append(count * _CLIENTS / (max(end for _, end in spans) - min(begin for begin, _ in spans)))
    what = f"no-op tasks by map, {_CLIENTS} clients at once, each a process"
    one = statistics.median(alone)
    return [
        row(f"rmgr {_DIRECT}", SETUP, "no-op tasks by map, one client", "tasks/s", alone, ratio=1.0),
        *(row(f"rmgr {name}", SETUP, what, "tasks/s", values, ratio=statistics.median(values) / one) for name, values in rates.items()),
    ]


def _compared(what: str, unit: str, values: dict[str, list[float]]) -> list[Row]:
    direct, through = values[_DIRECT], values[_THROUGH]
    ratio = statistics.median(b / a for a, b in zip(direct, through, strict=True))
    return [
        row(f"rmgr {_DIRECT}", SETUP, what, unit, direct, ratio=1.0),
        row(f"rmgr {_THROUGH}", SETUP, what, unit, through, ratio=ratio),
    ]


def _map_when_asked(argument: str) -> None:
    """One of the eight clients: `python -m rmgr.bench.tasks JSON` ({"cluster": {...}, "security": DIR, "tasks": N}, `cluster` as
    `ClusterConfig` has it) says {"ready": 1}, and for each line that it gets {"span": [begin, end]}. Ends with its standard input.
    """
    asked = json.loads(argument)
    config = Config(cluster=ClusterConfig(**asked["cluster"]), security=SecurityConfig(dir=asked["security"]))
    with connect(config=config) as connection:
        by_map(connection, 100)
        say({"ready": 1})
        for _ in sys.stdin:
            begun_s = time.monotonic()
            by_map(connection, asked["tasks"])
            say({"span": [begun_s, time.monotonic()]})


if __name__ == "__main__":
    _map_when_asked(sys.argv[1])
