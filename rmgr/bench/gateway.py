"""What a gateway costs: the same tasks directly and through it, in turns, with the Starter, ZooKeeper and store of both."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from rmgr.bench.load.children import Child
from rmgr.bench.measuring import SETUP, Bench, MeasuringPlan, Row, connected, percentile, row, took_s, two_slots
from rmgr.client.connection import Connection
from rmgr.client.taskqueue import TaskQueue

_TASKS, _SINGLES, _CLIENTS = 5_000, 300, 8
_DIRECT, _THROUGH = "directly", "through a gateway"


@contextmanager
def _both(plan: MeasuringPlan) -> Iterator[tuple[Bench, Connection]]:
    """A cluster with a gateway, and a connection through that."""
    with two_slots(plan) as bench:
        bench.cluster.start_gateway("g1")
        with connected(bench.cluster, through=bench.cluster.state.gateway) as connection:
            yield bench, connection


def tasks(plan: MeasuringPlan) -> list[Row]:
    """No-op tasks by `map` and one future a call, directly and through a gateway; and of eight clients at once."""
    from rmgr.bench import tasks as plain

    count = plan.count(_TASKS)
    rows: list[Row] = []
    with _both(plan) as (bench, through):
        ways: tuple[tuple[str, Callable[[Connection, int], None]], ...] = (
            ("no-op tasks by map", plain.by_map),
            ("no-op tasks, one future a call", plain.by_submit_call),
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


def latency(plan: MeasuringPlan) -> list[Row]:
    """One task at a time, directly and through a gateway."""
    from rmgr.bench.tasks import no_op

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
    for share, what in ((0.5, "p50"), (0.99, "p99")):
        values = {name: [percentile(one, share) * 1e3 for one in runs] for name, runs in samples.items()}
        rows += _compared(f"one task at a time, {what}", "ms", values)
    return rows


def _alone(queue: TaskQueue) -> None:
    queue.submit_call(1).result(timeout=60)


def _crowd(plan: MeasuringPlan, bench: Bench, count: int) -> list[Row]:
    """As many tasks by one direct client, and by eight at once, each a process: directly, and through the gateway."""
    from rmgr.bench.tasks import by_map

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
                stack.enter_context(Child("rmgr.bench.load.mapper", asked, log=bench.cluster.directory / f"map{len(crowds)}{at}.log"))
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
