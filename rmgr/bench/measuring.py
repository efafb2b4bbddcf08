"""`rmgr bench`: figures together with the baseline of the same run, as median and spread of several repetitions.

Absolute rates of a machine vary by a factor of two between runs; ratios hold. So each repetition measures the baseline
and rmgr one after the other, and the ratio is taken pair by pair. Figures are printed; no time makes a bench fail.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rmgr.adapters.zookeeper.server import four_letter
from rmgr.client.connection import Connection, connect
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError, Unavailable

#: Slots of every setup and of every baseline.
SLOTS = 2
SETUP = "1 ZooKeeper (fsync), SQLite, 2 slots"
#: Setup of a baseline.
SAME_RUN = "the same run"
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: median over the repetitions, its spread, and the median ratio to the baseline of the same repetition."""

    system: str
    setup: str
    what: str
    rate: float
    unit: str
    spread: tuple[float, float]
    ratio: float | None = None
    detail: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringPlan:
    """Extent of a measurement."""

    repetitions: int = 3
    scale: float = 1.0  #: of the number of tasks
    progress: Callable[[str], None] = lambda _: None
    trace: str = ""  #: path of a workload for `sim`
    large: bool = False  #: `sim` and `pass` with a million jobs on 100,000 nodes instead
    cassandra: bool = False  #: also run `store` on one Cassandra, `tasks` and `keyed` on three ZooKeepers and one Cassandra
    sizes: tuple[int, ...] = ()  #: sizes of the values of `keyed` (bytes); empty: its default
    gateway: bool = False  #: `tasks` and `latency`: compare direct access with a gateway instead of with the pool
    rows: tuple[str, ...] = ()  #: row names of `calls`; empty: rows that take a few minutes in total

    def count(self, tasks: int) -> int:
        """Returns `tasks` scaled, at least 10."""
        return max(10, round(tasks * self.scale))

    def rounds(self, what: str, more: str = "") -> Iterator[int]:
        """Yields the numbers of the repetitions, from 1, and reports each as progress before it begins."""
        for number in range(1, self.repetitions + 1):
            self.progress(f"{what}: repetition {number} of {self.repetitions}{more}")
            yield number


@dataclass(frozen=True, slots=True)
class Bench:
    """A two-slot cluster of its own, and a connection to it."""

    cluster: DevCluster
    connection: Connection

    def environment(self) -> dict[str, str]:
        """Returns variables by which a command finds the cluster, and byte code as when installed (compiling would cost 0.1 s)."""
        return {**self.cluster.environment(), "PYTHONDONTWRITEBYTECODE": ""}

    def command(self, *words: str, timeout_s: float = 60.0) -> None:
        """Runs `rmgr` on the cluster. Raises: RmgrError if it fails."""
        command = [sys.executable, "-m", "rmgr.cli.main", *words]
        done = subprocess.run(command, env={**os.environ, **self.environment()}, capture_output=True, check=False, timeout=timeout_s)
        if done.returncode:
            raise RmgrError(f"rmgr {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yields a directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def two_slots(plan: MeasuringPlan, *, store: str = "", zookeepers: int = 1) -> Iterator[Bench]:
    """Starts ZooKeeper, two WatchDogs, one Starter with two cores and SQLite (or `store`), in a directory deleted afterwards."""
    with scratch() as where:
        cluster = DevCluster(where / "cluster", nodes=1, cores=SLOTS, store=store, zookeepers=zookeepers)
        plan.progress("starting a cluster")
        try:
            cluster.start(deadline_s=180.0 if store else 60.0)
            with connected(cluster) as connection:
                yield Bench(cluster, connection)
        finally:
            cluster.stop()


@contextlib.contextmanager
def connected(cluster: DevCluster, *, through: str = "") -> Iterator[Connection]:
    """Connects to the cluster as the user who runs it. through: address of a gateway to use."""
    state = cluster.state
    here = ClusterConfig(zk=state.zookeeper, store=state.store, session_timeout_s=state.session_timeout_s)
    me = Config(cluster=ClusterConfig(gateway=through) if through else here, security=SecurityConfig(dir=state.security))
    connection = connect(config=me)
    try:
        yield connection
    finally:
        connection.close()


#: (system, setup, measurement, which returns a rate).
Measured: TypeAlias = tuple[str, str, Callable[[], float]]


def paired(plan: MeasuringPlan, *systems: Measured, what: str, unit: str) -> list[Row]:
    """Measures the systems in turn, the baseline first, and returns their rows."""
    found: dict[tuple[str, str], list[float]] = {(name, setup): [] for name, setup, _ in systems}
    for _ in plan.rounds(what):
        for name, setup, measure in systems:
            found[name, setup].append(measure())
    return compared(what, unit, found)


def compared(what: str, unit: str, found: Mapping[tuple[str, str], Sequence[float]]) -> list[Row]:
    """Returns a row for each (system, setup), from its value in each repetition; the ratios are to the first."""
    base = next(iter(found.values()))
    return [row(system, setup, what, unit, values, ratio=over(values, base)) for (system, setup), values in found.items()]


def over(values: Sequence[float], base: Sequence[float]) -> float:
    """Returns the median of the ratios, each of one repetition."""
    return statistics.median(mine / other for mine, other in zip(values, base, strict=True))


def row(system: str, setup: str, what: str, unit: str, values: Sequence[float], *, ratio: float | None = None, **detail: float) -> Row:
    """Returns a row from the values of all repetitions."""
    return Row(
        system=system,
        setup=setup,
        what=what,
        unit=unit,
        rate=statistics.median(values),
        spread=(min(values), max(values)),
        ratio=ratio,
        detail=detail,
    )


def took_s(work: Callable[[], object]) -> float:
    """Returns the seconds that a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def per_second(count: int, work: Callable[[], object]) -> float:
    """Returns how many things a second `work` does, which does `count`."""
    return count / took_s(work)


def wait_until(what: str, is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Waits for a condition, which does not hold while the question raises RmgrError. Raises: Unavailable."""
    end_s, error = time.monotonic() + within_s, None
    while True:
        try:
            if is_so():
                return
        except RmgrError as raised:
            error = raised
        if time.monotonic() > end_s:
            raise Unavailable(f"not within {within_s:g} s: {what}", hint="the machine may be too busy for this measurement") from error
        time.sleep(_LOOK_S)


def zookeeper_counts(cluster: DevCluster) -> tuple[float, float]:
    """Returns (requests received by the first ZooKeeper server, transactions of the ensemble) since the start."""
    host, _, port = cluster.state.zookeeper.partition("/")[0].split(",")[0].partition(":")
    lines = four_letter(host, int(port), "srvr").splitlines()
    requests = next(float(line.split()[1]) for line in lines if line.startswith("Received:"))
    zxid = next(int(line.split()[1], 16) for line in lines if line.startswith("Zxid:"))
    return requests, float(zxid & 0xFFFFFFFF)
