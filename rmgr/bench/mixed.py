"""Uneven work on two slots against the shortest time it can take, and how soon a Starter that joins late has work."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.bench.load.offered import timed_sleep
from rmgr.bench.measuring import SETUP, SLOTS, Bench, MeasuringPlan, Row, row, two_slots
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.errors import DeadlineExceeded, RmgrError

_LONG, _LONG_S = 200, (0.2, 2.0)
_SHORT, _SHORT_S = 10_000, 0.001
_PATIENCE_S = 900.0
#: What a late Starter finds: (scene, durations of tasks that come first, durations of those it may get).
_TEACHING, _HOARD, _HOARD_S = 40, 60, 1.0  # more than is looked at: what is left is cancelled
_WAITING, _WAITING_S = 600, 0.1


def mixed(plan: MeasuringPlan) -> list[Row]:
    """Long and short tasks of one function in one queue, in two orders, beside a pool at the same time; then late Starters."""
    rows: list[Row] = []
    with two_slots(plan) as bench, ProcessPoolExecutor(SLOTS) as pool:
        list(pool.map(timed_sleep, [0.01] * 4))
        _run_ours(bench, [0.01] * 4)
        for name, order in (("in any order", _shuffled), ("short ones first", sorted)):
            rows += _uneven(plan, bench, pool, name, order)
        rows += _late(plan, bench)
    return rows


# -- uneven work -----------------------------------------------------------------------------------------------------------------


def shortest_s(durations: Sequence[float], slots: int) -> float:
    """No schedule of `durations` on `slots` slots is shorter."""
    return max(*durations, sum(durations) / slots)


@dataclass(frozen=True, slots=True)
class Ran:
    """Seconds from the first submit to the last result, and how long each task itself took (s)."""

    lasted_s: float
    durations: tuple[float, ...]

    @property
    def over_ideal(self) -> float:
        """1: no schedule is shorter; what it takes to submit and to collect counts."""
        return self.lasted_s / shortest_s(self.durations, SLOTS)


def _durations(plan: MeasuringPlan) -> list[float]:
    rng = random.Random(1)
    return [rng.uniform(*_LONG_S) for _ in range(plan.count(_LONG))] + [_SHORT_S] * plan.count(_SHORT)


def _shuffled(durations: list[float]) -> list[float]:
    return random.Random(2).sample(durations, len(durations))


def _uneven(
    plan: MeasuringPlan, bench: Bench, pool: ProcessPoolExecutor, name: str, order: Callable[[list[float]], list[float]]
) -> list[Row]:
    """Both sleep, so neither takes anything from the other; each is held against the ideal of its own tasks as they were."""
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
    return [_row(what, "ProcessPoolExecutor(2).submit", "beside it", theirs), _row(what, "rmgr TaskQueue.map", SETUP, ours)]


def _last_end(futures: Sequence[object], started: float) -> float:
    """Seconds from `started` (perf_counter) to the end of the last task, which may have been a while ago."""
    last = max(future.result()[2] for future in futures)  # type: ignore[attr-defined]
    return float(last - time.time() + time.perf_counter() - started)


def _row(what: str, system: str, setup: str, ran: Sequence[Ran]) -> Row:
    ideal = statistics.median(shortest_s(one.durations, SLOTS) for one in ran)
    ratio = statistics.median(one.over_ideal for one in ran)
    return row(system, setup, what, "s", [one.lasted_s for one in ran], ratio=ratio, ideal_s=ideal)


def _run_ours(bench: Bench, durations: Sequence[float]) -> Ran:
    started = time.perf_counter()
    with TaskQueue(timed_sleep, connection=bench.connection) as queue:
        ended = [future.result(timeout=_PATIENCE_S) for future in queue.map(None, durations)]
    return Ran(time.perf_counter() - started, tuple(end - start for _, start, end in ended))


# -- a Starter that joins late -----------------------------------------------------------------------------------------------------


def _late(plan: MeasuringPlan, bench: Bench) -> list[Row]:
    """From its entry in ZooKeeper (the server's clock, the same machine's) to the start of its first task."""
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
    return [row("the process itself", "the same run", "late Starter: exec to entry", "s", starts), *rows]


def _join_late(bench: Bench, name: str, durations: Sequence[float], first: int) -> tuple[float, float]:
    """(exec to entry, entry to first task) in s of a new Starter; it is gone again when this returns.

    first: so many tasks have ended before it is started. The tasks that are left after its first are cancelled.
    Raises: RmgrError when it got nothing to do.
    """
    cluster = bench.cluster
    with TaskQueue(timed_sleep, connection=bench.connection) as queue:
        futures = queue.map(None, durations)
        for future in futures[: max(1, first)]:
            future.result(timeout=60)
        started = time.time()
        cluster.start_starter(name)
        try:
            # The first of its results that is seen is of its first two tasks: it has two slots, and they end in turn.
            done = (future.result() for future in queue.as_completed(futures[first:], timeout=_PATIENCE_S))
            mine = next((start for node, start, _ in done if node == name), None)
            entry = _entered(cluster.coordinator, name)
            queue.cancel("the late Starter was seen at work")
        finally:
            cluster.kill(name, signal.SIGTERM)
            _wait_gone(bench, name)
    if mine is None:
        raise RmgrError(f"{name} got nothing to do: the work was over too soon for this machine", hint="repeat it on a quieter one")
    return entry - started, mine - entry


def _entered(coordinator: ZkCoordinator, node: str) -> float:
    """When the new node was registered (s since 1970)."""
    found = coordinator.stat(paths.node(node)).result(10)
    if found is None:
        raise RmgrError(f"{node} did not register in time")
    return found.mtime_ms / 1000


def _wait_gone(bench: Bench, name: str) -> None:
    process, end = bench.cluster.process(name), time.monotonic() + 30
    while process.find() is not None:
        if time.monotonic() > end:
            raise DeadlineExceeded(f"{name} does not end")
        time.sleep(0.05)
