"""Tasks of a TaskQueue: small ones against the standard library's pool, one at a time, shell commands against `xargs`; through a gateway.

The cost of a gateway is measured in turns: the same tasks directly and through it, with the same Starter, ZooKeeper and store.

Backlogs (`bench backlog`): how fast many queued tasks are accepted, what a waiting task takes, and whether a backlog slows the cluster
down. Uneven work (`bench mixed`) on two slots compared with the shortest possible time, and how soon a Starter that joins late gets
work.
"""

from __future__ import annotations

import gc
import json
import operator
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.bench.load.offered import timed_sleep
from rmgr.bench.load.processes import Child, children_of, cpu_s, live_heap_bytes, pss_bytes, say
from rmgr.bench.measuring import (
    SAME_RUN,
    SETUP,
    SLOTS,
    Bench,
    MeasuringPlan,
    Row,
    compared,
    connected,
    paired,
    per_second,
    row,
    took_s,
    two_slots,
    wait_until,
    zookeeper_counts,
)
from rmgr.client.connection import Connection, connect
from rmgr.client.executor import Executor
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import paths
from rmgr.dev.cluster import OWN_CASSANDRA
from rmgr.errors import RmgrError
from rmgr.model.units import percentile

_REPLICATED = "3 ZooKeepers (fsync), 1 Cassandra, 2 slots"
_TASKS = 5_000
_SINGLES = 300
#: Many commands, for the rate; and few, where the start of `rmgr submit` is a good part of the time.
_COMMANDS = (5_000, 1_000)
_COMMANDS_PATIENCE_S = 600.0
#: Clients at once, compared with one; the two ways to the cluster.
_CLIENTS = 8
_DIRECT, _THROUGH = ("rmgr directly", SETUP), ("rmgr through a gateway", SETUP)

#: The task: returns its argument, and its module costs a worker nothing to import.
no_op = operator.index


def tasks(plan: MeasuringPlan) -> list[Row]:
    """Measures no-op Python tasks with results: `map` and one future a call, durable, against `ProcessPoolExecutor(2)`.

    With `plan.cassandra` also on three ZooKeepers and one Cassandra of this machine.
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
        rate = per_second(count, lambda: by_map(connection, count))
        transactions.append((zookeeper_counts(bench.cluster)[1] - before) / count)
        return rate

    with ProcessPoolExecutor(SLOTS) as pool:
        list(pool.map(no_op, range(100)))
        by_map(connection, 500)
        rows = paired(
            plan,
            ("ProcessPoolExecutor(2).map", SAME_RUN, lambda: per_second(count, lambda: list(pool.map(no_op, range(count))))),
            ("rmgr TaskQueue.map", setup, mapped),
            ("rmgr Executor.map", setup, lambda: per_second(count, lambda: by_executor_map(connection, count))),
            what="no-op tasks by map",
            unit="tasks/s",
        )
        rows.append(row("rmgr TaskQueue.map", setup, "ZooKeeper transactions of no-op tasks by map", "per task", transactions))
        rows += paired(
            plan,
            (
                "ProcessPoolExecutor(2).submit",
                SAME_RUN,
                lambda: per_second(count, lambda: [f.result() for f in [pool.submit(no_op, i) for i in range(count)]]),
            ),
            ("rmgr Executor.submit", setup, lambda: per_second(count, lambda: by_submit(connection, count))),
            ("rmgr TaskQueue.submit_call", setup, lambda: per_second(count, lambda: by_submit_call(connection, count))),
            what="no-op tasks, one future a call",
            unit="tasks/s",
        )
    return rows


def by_map(connection: Connection, count: int) -> None:
    """Runs so many tasks by `TaskQueue.map` and checks their results."""
    with TaskQueue(no_op, connection=connection) as queue:
        results = [future.result(timeout=300) for future in queue.map(no_op, range(count))]
    _check(results, count)


def by_executor_map(connection: Connection, count: int) -> None:
    """Runs so many tasks by `Executor.map` and checks their results."""
    with Executor(connection=connection) as executor:
        _check(list(executor.map(no_op, range(count), timeout=300)), count)


def by_submit_call(connection: Connection, count: int) -> None:
    """Runs so many tasks by `TaskQueue.submit_call`, each with a future, and checks their results."""
    with TaskQueue(no_op, connection=connection) as queue:
        results = [future.result(timeout=300) for future in [queue.submit_call(value) for value in range(count)]]
    _check(results, count)


def by_submit(connection: Connection, count: int) -> None:
    """Runs so many tasks by `Executor.submit` and checks their results."""
    with Executor(connection=connection) as executor:
        results = [future.result(timeout=300) for future in [executor.submit(no_op, value) for value in range(count)]]
    _check(results, count)


def _check(results: list[int], count: int) -> None:
    if results != list(range(count)):
        raise AssertionError("wrong results")


def latency(plan: MeasuringPlan) -> list[Row]:
    """Measures one task at a time, from submit to result: each begins after the result of the one before."""
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
            rows.append(row(system, SETUP if system == "rmgr" else SAME_RUN, f"one task at a time, p{percent}", "ms", values))
    return rows


def shell(plan: MeasuringPlan) -> list[Row]:
    """Measures shell commands with captured output by whole `rmgr submit --array --wait` commands, against `xargs -P2`."""
    rows: list[Row] = []
    with two_slots(plan) as bench:

        def submit_array(count: int) -> None:
            bench.command("submit", "--array", f"1-{count}", "--wait", "--", "/bin/true", timeout_s=_COMMANDS_PATIENCE_S)

        submit_array(20)
        for count in map(plan.count, _COMMANDS):
            rows += paired(
                plan,
                ("xargs -P2 /bin/true", SAME_RUN, partial(per_second, count, partial(_xargs, count))),
                ("rmgr submit --array -- /bin/true", SETUP, partial(per_second, count, partial(submit_array, count))),
                what=f"{count:,} commands with captured output",
                unit="commands/s",
            )
    return rows


def _xargs(count: int) -> None:
    lines = "".join(f"{number}\n" for number in range(count))
    subprocess.run(["xargs", "-P2", "-n1", "/bin/true"], input=lines.encode(), check=True, timeout=_COMMANDS_PATIENCE_S)


# -- directly and through a gateway --------------------------------------------------------------------------------------------


@contextmanager
def _with_gateway(plan: MeasuringPlan) -> Iterator[tuple[Bench, Connection]]:
    """Yields a cluster with a gateway, and a connection through the gateway."""
    with two_slots(plan) as bench:
        bench.cluster.start_gateway("g1")
        with connected(bench.cluster, through=bench.cluster.state.gateway) as connection:
            yield bench, connection


def _tasks_both_ways(plan: MeasuringPlan) -> list[Row]:
    """Measures no-op tasks by `map` and one future a call, directly and through a gateway; and eight clients at once."""
    count = plan.count(_TASKS)
    rows: list[Row] = []
    with _with_gateway(plan) as (bench, through):
        ways: tuple[tuple[str, Callable[[Connection, int], None]], ...] = (
            ("no-op tasks by map", by_map),
            ("no-op tasks, one future a call", by_submit_call),
        )
        for what, work in ways:
            for connection in (bench.connection, through):
                work(connection, 500)
            rows += paired(
                plan,
                (*_DIRECT, partial(per_second, count, partial(work, bench.connection, count))),
                (*_THROUGH, partial(per_second, count, partial(work, through, count))),
                what=what,
                unit="tasks/s",
            )
        rows += _measure_crowd(plan, bench, count)
    return rows


def _latency_both_ways(plan: MeasuringPlan) -> list[Row]:
    """Measures one task at a time, directly and through a gateway."""
    count = plan.count(_SINGLES)
    with _with_gateway(plan) as (bench, through), ExitStack() as stack:
        queues = {
            way: stack.enter_context(TaskQueue(no_op, connection=connection))
            for way, connection in ((_DIRECT, bench.connection), (_THROUGH, through))
        }
        samples: dict[tuple[str, str], list[list[float]]] = {way: [] for way in queues}
        for _ in plan.rounds("latency, directly and through a gateway"):
            for way, queue in queues.items():
                for _ in range(20):
                    queue.submit_call(1).result(timeout=60)
                samples[way].append([took_s(partial(_measure_alone, queue)) for _ in range(count)])
    rows: list[Row] = []
    for percent in (50, 99):
        values = {way: [percentile(one, percent) * 1e3 for one in runs] for way, runs in samples.items()}
        rows += compared(f"one task at a time, p{percent}", "ms", values)
    return rows


def _measure_alone(queue: TaskQueue) -> None:
    queue.submit_call(1).result(timeout=60)


def _measure_crowd(plan: MeasuringPlan, bench: Bench, count: int) -> list[Row]:
    """Measures one direct client, and eight at once with as many tasks each, a process each: directly, and through the gateway."""
    alone: list[float] = []
    rates: dict[tuple[str, str], list[float]] = {_DIRECT: [], _THROUGH: []}
    state = bench.cluster.state
    ways: dict[tuple[str, str], dict[str, str | float]] = {
        _DIRECT: {"zk": state.zookeeper, "store": state.store, "session_timeout_s": state.session_timeout_s},
        _THROUGH: {"gateway": state.gateway},
    }
    with ExitStack() as stack:
        crowds: dict[tuple[str, str], list[Child]] = {}
        for way, cluster in ways.items():
            asked = json.dumps({"cluster": cluster, "security": state.security, "tasks": count})
            crowds[way] = [
                stack.enter_context(Child("rmgr.bench.tasks", asked, log=bench.cluster.directory / f"map{len(crowds)}{at}.log"))
                for at in range(_CLIENTS)
            ]
            for child in crowds[way]:
                child.told("ready")
        for _ in plan.rounds(f"{_CLIENTS} clients at once"):
            alone.append(per_second(count, partial(by_map, bench.connection, count)))
            for way, crowd in crowds.items():
                for child in crowd:
                    child.ask()
                spans = [child.told("span") for child in crowd]
                rates[way].append(count * _CLIENTS / (max(end for _, end in spans) - min(begin for begin, _ in spans)))
    what = f"no-op tasks by map, {_CLIENTS} clients at once, each a process"
    one = statistics.median(alone)
    return [
        row(*_DIRECT, "no-op tasks by map, one client", "tasks/s", alone, ratio=1.0),
        *(row(*way, what, "tasks/s", values, ratio=statistics.median(values) / one) for way, values in rates.items()),
    ]


def _map_when_asked(argument: str) -> None:
    """Runs one of the eight clients: `python -m rmgr.bench.tasks JSON` ({"cluster": {...}, "security": DIR, "tasks": N}, `cluster` with the
    fields of `ClusterConfig`) says {"ready": 1}, and {"span": [begin, end]} for each line that it gets. It ends with its standard input.
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


# -- backlogs ----------------------------------------------------------------------------------------------------------------

_QUEUED = 1_000_000
_FEW = 5
#: Many small submissions, each with its record, gate, claim and end.
_SMALL_TASKS, _SMALL = 100_000, 2_000
_EMPTY = 100_000
#: A whole backlog may take minutes on a busy machine.
_BACKLOG_PATIENCE_S = 1800.0


@dataclass(slots=True)
class _Spent:
    """Seconds, and processor seconds of the client and of the cluster."""

    lasted_s: float = 0.0
    client_s: float = 0.0
    cluster_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of one repetition. ratio: to the rate with an empty queue in the same repetition."""

    what: str
    unit: str
    value: float
    ratio: float | None = None
    detail: dict[str, float] = field(default_factory=dict)


def backlog(plan: MeasuringPlan) -> list[Row]:
    """Measures 1,000,000 no-op tasks queued while the node is drained, then run; 100,000 in 2,000 submissions; and an empty queue.

    Each rate comes with the processor time per task, which tells more on a busy machine. Each repetition has a cluster of its own:
    memory left behind by earlier tasks would hide what these take (for the same reason only the first repetition measures the client's
    memory).
    """
    found: dict[str, list[_Figure]] = {}
    for number in plan.rounds("backlog"):
        with two_slots(plan) as bench:
            for figure in _figures(plan, bench, is_first=number == 1):
                found.setdefault(figure.what, []).append(figure)
    return [_figure_row(figures) for figures in found.values()]


def _figure_row(figures: list[_Figure]) -> Row:
    one = figures[0]
    ratio = None if one.ratio is None else statistics.median(figure.ratio or 0.0 for figure in figures)
    detail = {name: statistics.median(figure.detail[name] for figure in figures) for name in one.detail}
    return row("rmgr", SETUP, one.what, one.unit, [figure.value for figure in figures], ratio=ratio, **detail)


def _figures(plan: MeasuringPlan, bench: Bench, *, is_first: bool) -> list[_Figure]:
    """Returns the figures of one repetition. is_first: the first of this process."""
    _run(fill(bench, 1, 2_000))
    # First, because memory left behind by earlier tasks would hide what these take.
    many, drained = _measure_backlog(plan, bench, _FEW, plan.count(_QUEUED), weighs=True, weighs_client=is_first)
    count = plan.count(_EMPTY)
    plan.progress(f"{count} tasks, empty queue")
    with _spending(bench) as spent:
        _run(fill(bench, 1, count))
    empty = _Figure(what="run with an empty queue", unit="tasks/s", value=count / spent.lasted_s, ratio=1.0, detail=_of_each(spent, count))
    small, slow = _measure_backlog(plan, bench, min(_SMALL, plan.count(_SMALL_TASKS)), plan.count(_SMALL_TASKS))
    return [empty, *many, _with_ratios(drained, empty), *small, _with_ratios(slow, empty)]


def _measure_backlog(
    plan: MeasuringPlan, bench: Bench, submissions: int, total: int, *, weighs: bool = False, weighs_client: bool = False
) -> tuple[list[_Figure], _Figure]:
    """Fills the queue of a drained node, then runs it; returns (figures of filling it, rate of running it). weighs: measure memory, too."""
    what = f"{total} tasks in {submissions} submissions"
    plan.progress(what)
    bench.command("drain", "n1", "--reason", "bench")
    zookeeper, client = _zookeeper_bytes(bench), _client_bytes()
    with _spending(bench) as spent:
        queues = fill(bench, submissions, total)
    figures = [_Figure(what=f"submit {what}", unit="tasks/s", value=total / spent.lasted_s, detail=_of_each(spent, total))]
    if weighs:
        heap = (_zookeeper_bytes(bench) - zookeeper) / total
        figures.append(_Figure(what=f"{what}, ZooKeeper's heap in use", unit="B/task", value=heap))
    if weighs_client:
        memory = (_client_bytes() - client) / total
        figures.append(_Figure(what=f"{what}, client's memory", unit="B/future", value=memory))
    with _spending(bench) as spent:
        bench.command("resume", "n1")
        _run(queues)
    return figures, _Figure(what=f"run {what}", unit="tasks/s", value=total / spent.lasted_s, detail=_of_each(spent, total))


def _with_ratios(drained: _Figure, empty: _Figure) -> _Figure:
    """Adds the ratio to the rate with an empty queue, and that of the processor time (above 1: less of it with a backlog)."""
    cpu = sum(empty.detail.values()) / max(1e-9, sum(drained.detail.values()))
    return replace(drained, ratio=drained.value / empty.value, detail={**drained.detail, "cpu_ratio": cpu})


def fill(bench: Bench, submissions: int, tasks: int) -> list[TaskQueue]:
    """Submits `tasks` tasks in so many submissions; returns when all are durable."""
    queues = []
    for number in range(submissions):
        queue = TaskQueue(no_op, connection=bench.connection)
        queue.map(None, range(tasks // submissions + (number < tasks % submissions)))
        queues.append(queue)
    for queue in queues:
        queue.close(timeout=_BACKLOG_PATIENCE_S)
    return queues


def _run(queues: list[TaskQueue]) -> None:
    """Waits until all tasks have ended."""
    for queue in queues:
        queue.wait_all(timeout=_BACKLOG_PATIENCE_S)


# -- cost -------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _spending(bench: Bench) -> Iterator[_Spent]:
    """Measures the processor time of this process and of the cluster's while the context lasts."""
    spent = _Spent()
    pids = sorted({pid for process in bench.cluster.state.processes for pid in (process.pid, *children_of(process.pid))})
    client, cluster = cpu_s([os.getpid()]), cpu_s(pids)
    started = time.perf_counter()
    yield spent
    spent.lasted_s = time.perf_counter() - started
    spent.client_s, spent.cluster_s = cpu_s([os.getpid()]) - client, cpu_s(pids) - cluster


def _of_each(spent: _Spent, tasks: int) -> dict[str, float]:
    return {"client_cpu_us": spent.client_s / tasks * 1e6, "cluster_cpu_us": spent.cluster_s / tasks * 1e6}


def _client_bytes() -> float:
    gc.collect()
    return float(pss_bytes(os.getpid()))


def _zookeeper_bytes(bench: Bench) -> float:
    """Returns ZooKeeper's heap after a full collection: nodes of its tree, its log of committed requests, watches."""
    servers = [process for process in bench.cluster.state.processes if process.role == "zookeeper"]
    return statistics.mean(live_heap_bytes(process.pid) for process in servers)


# -- uneven work -------------------------------------------------------------------------------------------------------------

_LONG, _LONG_S = 200, (0.2, 2.0)
_SHORT, _SHORT_S = 10_000, 0.001
_PATIENCE_S = 900.0
#: What a late Starter finds: short tasks that teach the length, then long ones that another Starter holds; or waiting tasks.
_TEACHING, _HOARD, _HOARD_S = 40, 60, 1.0  # more than are observed; the rest is cancelled
_WAITING, _WAITING_S = 600, 0.1


def mixed(plan: MeasuringPlan) -> list[Row]:
    """Measures long and short tasks of one function in one queue, in two orders, while a pool runs the same; then late Starters."""
    rows: list[Row] = []
    with two_slots(plan) as bench, ProcessPoolExecutor(SLOTS) as pool:
        list(pool.map(timed_sleep, [0.01] * 4))
        _run_ours(bench, [0.01] * 4)
        for name, order in (("in any order", _shuffled), ("short ones first", sorted)):
            rows += _measure_uneven(plan, bench, pool, name, order)
        rows += _measure_late_node(plan, bench)
    return rows


def shortest_s(durations: Sequence[float], slots: int) -> float:
    """Returns a lower bound of the length of any schedule of `durations` on `slots` slots."""
    return max(*durations, sum(durations) / slots)


@dataclass(frozen=True, slots=True)
class Ran:
    """Seconds from the first submit to the last result, and how long each task itself took (s)."""

    lasted_s: float
    durations: tuple[float, ...]

    @property
    def over_ideal(self) -> float:
        """Ratio to the shortest schedule, 1 at best; the time to submit and to collect counts."""
        return self.lasted_s / shortest_s(self.durations, SLOTS)


def _durations(plan: MeasuringPlan) -> list[float]:
    rng = random.Random(1)
    return [rng.uniform(*_LONG_S) for _ in range(plan.count(_LONG))] + [_SHORT_S] * plan.count(_SHORT)


def _shuffled(durations: list[float]) -> list[float]:
    return random.Random(2).sample(durations, len(durations))


def _measure_uneven(
    plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor, name: str, order: Callable[[list[float]], list[float]]
) -> list[Row]:
    """Runs both at once: they sleep, so neither slows the other; each is compared with the ideal for its own tasks as they were."""
    durations = order(_durations(plan))
    long = sum(1 for one in durations if one > _SHORT_S)
    what = f"{long} tasks of 0.2-2 s and {len(durations) - long} of 1 ms, {name}"
    theirs: list[Ran] = []
    ours: list[Ran] = []
    for _ in plan.rounds(what, f", about {shortest_s(durations, SLOTS):.0f} s"):
        started = time.perf_counter()
        futures = [pool.submit(timed_sleep, one) for one in durations]
        ours.append(_run_ours(bench, durations))
        slept = tuple(end - start for _, start, end in (future.result() for future in futures))
        theirs.append(Ran(_last_end(futures, started), slept))
    return [_uneven_row(what, "ProcessPoolExecutor(2).submit", "beside it", theirs), _uneven_row(what, "rmgr TaskQueue.map", SETUP, ours)]


def _last_end(futures: Sequence[object], started: float) -> float:
    """Returns the seconds from `started` (perf_counter) to the end of the last task, which may be some time ago."""
    last = max(future.result()[2] for future in futures)  # type: ignore[attr-defined]
    return float(last - time.time() + time.perf_counter() - started)


def _uneven_row(what: str, system: str, setup: str, ran: Sequence[Ran]) -> Row:
    ideal = statistics.median(shortest_s(one.durations, SLOTS) for one in ran)
    ratio = statistics.median(one.over_ideal for one in ran)
    return row(system, setup, what, "s", [one.lasted_s for one in ran], ratio=ratio, ideal_s=ideal)


def _run_ours(bench: Bench, durations: Sequence[float]) -> Ran:
    started = time.perf_counter()
    with TaskQueue(timed_sleep, connection=bench.connection) as queue:
        ended = [future.result(timeout=_PATIENCE_S) for future in queue.map(None, durations)]
    return Ran(time.perf_counter() - started, tuple(end - start for _, start, end in ended))


# -- a Starter that joins late -----------------------------------------------------------------------------------------------------


def _measure_late_node(plan: MeasuringPlan, bench: Bench) -> list[Row]:
    """Measures from the Starter's entry in ZooKeeper (by the server's clock, the same machine's) to the start of its first task."""
    scenes = {
        "tasks of 0.1 s wait": ([_WAITING_S] * _WAITING, 0),
        "everything is claimed by another": ([_SHORT_S] * _TEACHING + [_HOARD_S] * _HOARD, _TEACHING),
    }
    rows = []
    starts: list[float] = []
    for scene, (durations, first) in scenes.items():
        waits = []
        for _ in plan.rounds(f"a Starter joins late, {scene}"):
            start_s, wait_s = _join_late(bench, f"late{len(starts) + 1}", durations, first)
            starts.append(start_s)
            waits.append(wait_s)
        rows.append(row("rmgr", SETUP, f"late Starter, {scene}: entry to first task", "s", waits))
    return [row("the process itself", SAME_RUN, "late Starter: exec to entry", "s", starts), *rows]


def _join_late(bench: Bench, name: str, durations: Sequence[float], first: int) -> tuple[float, float]:
    """Starts a new Starter; returns (exec to entry, entry to first task) in s. The Starter is gone when this returns.

    first: number of tasks that have ended before it starts. Tasks left after its first one are cancelled.
    Raises: RmgrError if it got no task.
    """
    cluster = bench.cluster
    with TaskQueue(timed_sleep, connection=bench.connection) as queue:
        futures = queue.map(None, durations)
        for future in futures[: max(1, first)]:
            future.result(timeout=60)
        started = time.time()
        cluster.start_starter(name)
        try:
            # The first of its results to be seen comes from its first two tasks: it has two slots, whose tasks end in turn.
            done = (future.result() for future in queue.as_completed(futures[first:], timeout=_PATIENCE_S))
            mine = next((start for node, start, _ in done if node == name), None)
            entry = _entered(cluster.coordinator, name)
            queue.cancel("the late Starter was seen at work")
        finally:
            cluster.kill(name, signal.SIGTERM)
            process = cluster.process(name)
            wait_until(f"{name} ends", lambda: process.find() is None, within_s=30.0)
    if mine is None:
        raise RmgrError(f"{name} got nothing to do: the work was over too soon for this machine", hint="repeat it on a quieter one")
    return entry - started, mine - entry


def _entered(coordinator: ZkCoordinator, node: str) -> float:
    """Returns when the new node was registered (s since 1970)."""
    found = coordinator.stat(paths.node(node)).result(10)
    if found is None:
        raise RmgrError(f"{node} did not register in time")
    return found.mtime_ms / 1000


if __name__ == "__main__":
    _map_when_asked(sys.argv[1])
