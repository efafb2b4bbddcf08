"""`rmgr bench`: figures with the baseline of the same run beside them, median and spread of several repetitions.

Absolute rates of a machine move by a factor of two between runs; ratios hold. So each repetition measures the baseline
and rmgr one after the other, and the ratio is taken pair by pair. Figures are printed; nothing fails on time.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmgr.adapters.zookeeper.server import four_letter
from rmgr.client.connection import Connection, connect
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.dev.cluster import DevCluster

#: Slots of every setup: what the baselines use too.
SLOTS = 2
SETUP = "1 ZooKeeper (fsync), SQLite, 2 slots"


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
    trace: str = ""  #: a workload of one's own for `sim`
    large: bool = False  #: `sim` and `pass` with a million jobs on 100,000 nodes instead
    cassandra: bool = False  #: `store` through one Cassandra too, `tasks` and `keyed` on three ZooKeepers and one Cassandra
    sizes: tuple[int, ...] = ()  #: of the values of `keyed` (bytes); none: its own
    gateway: bool = False  #: `tasks` and `latency`: directly and through a gateway, in place of the pool
    rows: tuple[str, ...] = ()  #: of `calls`, by name; none: those that take a few minutes in all

    def count(self, tasks: int) -> int:
        """`tasks`, scaled."""
        return max(10, round(tasks * self.scale))

    def rounds(self, what: str, more: str = "") -> Iterator[int]:
        """The numbers of the repetitions, from 1; tells each before it begins."""
        for number in range(1, self.repetitions + 1):
            self.progress(f"{what}: repetition {number} of {self.repetitions}{more}")
            yield number


@dataclass(frozen=True, slots=True)
class Bench:
    """A cluster of its own with two slots, and a connection to it."""

    cluster: DevCluster
    connection: Connection

    def environment(self) -> dict[str, str]:
        """Variables with which a command finds the cluster, and its own byte code as one that is installed (compiling costs it 0.1 s)."""
        return {**self.cluster.environment(), "PYTHONDONTWRITEBYTECODE": ""}


@contextlib.contextmanager
def scratch(where: Path | None = None) -> Iterator[Path]:
    """A directory that goes afterwards, in `where` or with the system's temporary files."""
    with tempfile.TemporaryDirectory(prefix="rmgr-bench-", dir=where, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def two_slots(plan: MeasuringPlan, *, directory: Path | None = None, store: str = "", zookeepers: int = 1) -> Iterator[Bench]:
    """One Starter with two cores, two WatchDogs, ZooKeeper, SQLite (or `store`), in a directory that goes afterwards."""
    with scratch(directory) as where:
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
    """A connection to it as who runs it; through: a gateway."""
    state = cluster.state
    here = ClusterConfig(zk=state.zookeeper, store=state.store, session_timeout_s=state.session_timeout_s)
    me = Config(cluster=ClusterConfig(gateway=through) if through else here, security=SecurityConfig(dir=state.security))
    connection = connect(config=me)
    try:
        yield connection
    finally:
        connection.close()


Measured = tuple[str, str, Callable[[], float]]


def paired(
    plan: MeasuringPlan, *, what: str, unit: str, baseline: tuple[str, Callable[[], float]], ours: Measured, also: Measured | None = None
) -> list[Row]:
    """Measures baseline and rmgr in turn and makes their rows.

    Args:
        baseline: (name, measurement). ours, also: (name, setup, measurement). A measurement returns a rate.
    """
    theirs: list[float] = []
    systems = [ours] if also is None else [ours, also]
    mine: list[list[float]] = [[] for _ in systems]
    for _ in plan.rounds(what):
        theirs.append(baseline[1]())
        for (_, _, measure), values in zip(systems, mine, strict=True):
            values.append(measure())
    rows = [row(baseline[0], "the same run", what, unit, theirs, ratio=1.0)]
    for (name, setup, _), values in zip(systems, mine, strict=True):
        rows.append(row(name, setup, what, unit, values, ratio=statistics.median(a / b for a, b in zip(values, theirs, strict=True))))
    return rows


def row(system: str, setup: str, what: str, unit: str, values: Sequence[float], *, ratio: float | None = None, **detail: float) -> Row:
    """A row from the values of all repetitions."""
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
    """Seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def zookeeper_counts(cluster: DevCluster) -> tuple[float, float]:
    """(requests that came to its first server, transactions of all) since its start."""
    host, _, port = cluster.state.zookeeper.partition("/")[0].split(",")[0].partition(":")
    lines = four_letter(host, int(port), "srvr").splitlines()
    requests = next(float(line.split()[1]) for line in lines if line.startswith("Received:"))
    zxid = next(int(line.split()[1], 16) for line in lines if line.startswith("Zxid:"))
    return requests, float(zxid & 0xFFFFFFFF)
