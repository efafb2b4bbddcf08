"""Measures an idle cluster: its share of a core and its memory, by process and in total."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from rmgr.bench.load.processes import MIB, Cost, children_of, cost_of, pss_bytes
from rmgr.bench.measuring import SAME_RUN, MeasuringPlan, Row, connected, row, scratch
from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.cluster import DevCluster
from rmgr.errors import Unavailable

_NODES, _CORES, _WATCHDOGS = 3, 2, 2
SETUP = f"1 ZooKeeper, {_WATCHDOGS} WatchDogs, {_NODES} Starters of {_CORES} slots, workers warm, SQLite"
#: Length of a sample (s), and how long the cluster is left alone before the first (s).
_WINDOW_S, _REST_S = 20.0, 5.0
#: Tasks that make every worker warm: as many at a time as there are slots, each of this length (s).
_WARM_S, _WARM_ROUNDS, _WARM_TRIES = 0.3, 3, 20
_ALL = "in all"

#: A program that keeps a pool of N workers, all started; it ends with its standard input.
_POOL = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(int(sys.argv[1])) as pool:
    list(pool.map(time.sleep, [0.1] * 4 * int(sys.argv[1])))
    print("warm", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that are counted together."""

    name: str
    pids: tuple[int, ...]


def idle(plan: MeasuringPlan) -> list[Row]:
    """Measures a fresh cluster with warm workers and a `ProcessPoolExecutor` of as many workers, idle side by side."""
    window_s = max(0.5, _WINDOW_S * min(1.0, plan.scale))
    with (
        scratch() as where,
        _pool(_NODES * _CORES) as pool,
        DevCluster(where / "cluster", nodes=_NODES, cores=_CORES, watchdogs=_WATCHDOGS) as cluster,
    ):
        plan.progress("making all workers warm")
        _warm(cluster)
        cluster.look_away()  # an idle cluster has no client
        time.sleep(min(_REST_S, window_s))
        theirs, ours = [ProcessGroup("ProcessPoolExecutor(6)", (pool, *children_of(pool)))], parts_of(cluster)
        samples: list[dict[str, Cost]] = []
        memory: list[dict[str, float]] = []
        for _ in plan.rounds("idle", f", {window_s:g} s"):
            before = {part.name: _cost(part) for part in [*theirs, *ours]}
            started_s = time.monotonic()
            time.sleep(window_s)
            lasted_s = time.monotonic() - started_s
            after = {part.name: _cost(part) for part in [*theirs, *ours]}
            samples.append({name: _per_second(after[name] - before[name], lasted_s) for name in after})
            memory.append({part.name: sum(pss_bytes(pid) for pid in part.pids) / MIB for part in [*theirs, *ours]})
    return [*_rows(theirs, ours, samples), *_memory_rows(theirs, ours, memory)]


def parts_of(cluster: DevCluster) -> list[ProcessGroup]:
    """Returns ZooKeeper, each daemon, and separately the spawners and workers of each Starter."""
    parts = []
    for process in cluster.state.processes:
        parts.append(ProcessGroup(f"{process.role} {process.id}", (process.pid,)))
        if process.role == "starter":
            parts.append(ProcessGroup(f"spawners and workers of {process.id}", tuple(children_of(process.pid))))
    return parts


def _warm(cluster: DevCluster) -> None:
    """Runs tasks until each slot of each Starter has a warm worker. Raises: Unavailable."""
    with connected(cluster) as connection, TaskQueue(time.sleep, connection=connection) as queue:
        for _ in range(_WARM_TRIES):
            for _ in range(_WARM_ROUNDS):
                for future in queue.map(None, [_WARM_S] * _NODES * _CORES):
                    future.result(timeout=60)
            starters = [process.pid for process in cluster.state.processes if process.role == "starter"]
            if all(len(children_of(pid)) >= 2 * _CORES for pid in starters):  # a spawner and a worker for each slot
                return
    raise Unavailable("not every slot has a warm worker", hint="the machine is too busy for this measurement")


def _cost(part: ProcessGroup) -> Cost:
    total = Cost(0.0, 0)
    for pid in part.pids:
        with contextlib.suppress(ProcessLookupError):
            total += cost_of(pid)
    return total


def _per_second(cost: Cost, seconds: float) -> Cost:
    return Cost(cost.cpu_s / seconds, round(cost.wakeups / seconds))


def _rows(theirs: Sequence[ProcessGroup], ours: Sequence[ProcessGroup], samples: Sequence[dict[str, Cost]]) -> list[Row]:
    def one(system: str, setup: str, what: str, parts: Sequence[ProcessGroup], ratio: float | None = None) -> Row:
        cpu = [100 * sum(sample[part.name].cpu_s for part in parts) for sample in samples]
        wakeups = sorted(sum(sample[part.name].wakeups for part in parts) for sample in samples)[len(samples) // 2]
        return row(system, setup, f"idle, {what}", "% of a core", cpu, ratio=ratio, wakeups_per_s=wakeups)

    rows = [one(part.name, SAME_RUN, _ALL, [part], ratio=1.0) for part in theirs]
    rows.append(one("rmgr", SETUP, _ALL, ours))
    return rows + [one("rmgr", SETUP, part.name, [part]) for part in ours]


def _memory_rows(theirs: Sequence[ProcessGroup], ours: Sequence[ProcessGroup], memory: Sequence[dict[str, float]]) -> list[Row]:
    def one(system: str, setup: str, what: str, parts: Sequence[ProcessGroup], ratio: float | None = None) -> Row:
        values = [sum(sample[part.name] for part in parts) for sample in memory]
        return row(system, setup, f"memory, {what}", "MiB PSS", values, ratio=ratio, processes=sum(len(part.pids) for part in parts))

    rows = [one(part.name, SAME_RUN, _ALL, [part], ratio=1.0) for part in theirs]
    rows.append(one("rmgr", SETUP, _ALL, ours))
    rows[-1] = one("rmgr", SETUP, _ALL, ours, ratio=rows[-1].rate / rows[0].rate)
    return rows + [one("rmgr", SETUP, part.name, [part]) for part in ours]


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[int]:
    """Starts a warm pool of the standard library in a process of its own; yields its pid."""
    child = subprocess.Popen([sys.executable, "-c", _POOL, str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline() != b"warm\n":
            raise Unavailable("a pool of the standard library did not start")
        yield child.pid
    finally:
        workers_of_it = psutil.Process(child.pid).children() if child.poll() is None else []
        child.stdin.close()
        try:
            child.wait(10.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(10.0)
            for worker in workers_of_it:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
        child.stdout.close()
