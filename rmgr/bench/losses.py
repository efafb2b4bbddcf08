"""Two thousand Starters, five hundred killed at once: when all are fenced, what that costs the leader, and whether the rest notices."""

from __future__ import annotations

import math
import tempfile
import time
from functools import partial
from pathlib import Path

import msgspec

from rmgr.bench.load.children import Child
from rmgr.bench.load.process_cost import cpu_s
from rmgr.bench.load.silent_starters import SilentStartersSpec
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row
from rmgr.bench.tasks import no_op
from rmgr.client.connection import Connection
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError

_SESSIONS, _KILLED = 2000, 500
SESSION_S = 10.0
_PATIENCE_S = 120.0
_READ_S = 30.0
_LOOK_S = 5.0
_QUIET = 300
SETUP = f"1 ZooKeeper (fsync), SQLite, sessions of {SESSION_S:.0f} s on bare sockets, a leader, one Starter that works"


def losses(plan: MeasuringPlan) -> list[Row]:
    """The rows. Raises: RmgrError when a session of the rest ended, or a loss was not noticed at all."""
    sessions = max(40, round(_SESSIONS * min(1.0, plan.scale)))
    killed = sessions * _KILLED // _SESSIONS
    with tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True) as where:
        directory = Path(where)
        plan.progress(f"starting {sessions} silent Starters")
        with (
            DevCluster(directory / "cluster", nodes=1, watchdogs=1, session_timeout_s=SESSION_S, secured=False) as cluster,
            silent(cluster, directory, "doomed", killed) as doomed,
            silent(cluster, directory, "rest", sessions - killed) as rest,
            connected(cluster) as connection,
        ):
            doomed.told("ready")
            rest.told("ready")
            plan.progress(f"{sessions} sessions stand; killing {killed}")
            return _kill(cluster, connection, doomed, rest, sessions, killed)


def _kill(cluster: DevCluster, connection: Connection, doomed: Child, rest: Child, sessions: int, killed: int) -> list[Row]:
    fences = Fences(cluster, [f"doomed{number}" for number in range(killed)])
    with TaskQueue(no_op, connection=connection) as queue:
        leader = cluster.process("w1").pid
        start_s = cpu_s([leader])
        quiet = sorted(_one_task(queue, number) for number in range(_QUIET))
        before_s = cpu_s([leader])
        doomed.kill()
        killed_s = time.monotonic()
        meanwhile: list[float] = []
        while not fences.are_complete:
            if time.monotonic() - killed_s > _PATIENCE_S:
                raise RmgrError(f"only {len(fences.seen_s)} of {killed} losses were noticed within {_PATIENCE_S:.0f} s")
            meanwhile.append(_one_task(queue, len(meanwhile)))
        usual_s = (before_s - start_s) * len(meanwhile) / _QUIET  # what the leader does for tasks, it did before
        leader_s = max(0.0, cpu_s([leader]) - before_s - usual_s)
    alive = rest.asked("alive")
    entries = len(cluster.coordinator.children(paths.STARTERS).result(_READ_S) or ())
    if (alive, entries) != (sessions - killed, sessions - killed + 1):
        raise RmgrError(f"{sessions - killed} silent Starters were to live on: {alive} sessions stand, {entries - 1} entries")
    system, seen_s = f"{killed} of {sessions} killed", sorted(fences.seen_s.values())
    meanwhile.sort()
    return [
        row(system, SETUP, "first loss fenced after the kill", "s", [seen_s[0] - killed_s]),
        row(system, SETUP, "last loss fenced after the kill", "s", [seen_s[-1] - killed_s], asked_for=SESSION_S + 4.0),
        row(system, SETUP, "processor of the leader until then", "ms/loss", [leader_s / killed * 1e3]),
        row(system, SETUP, "sessions of the others that stand", "sessions", [float(alive)]),
        row(system, SETUP, "one task at a time, before", "ms", [quiet[len(quiet) // 2] * 1e3], most=quiet[-1] * 1e3),
        row(system, SETUP, "one task at a time, meanwhile", "ms", [meanwhile[len(meanwhile) // 2] * 1e3], most=meanwhile[-1] * 1e3),
    ]


class Fences:
    """Times at which nodes were fenced (monotonic): their records are watched, and nobody registers again."""

    def __init__(self, cluster: DevCluster, nodes: list[str]) -> None:
        self.seen_s: dict[str, float] = {}
        self._cluster = cluster
        self._nodes = nodes
        self._looked_s = -math.inf
        self._look()

    @property
    def are_complete(self) -> bool:
        """All are. A watch is a hint: now and then all that are missing are read."""
        if len(self.seen_s) < len(self._nodes) and time.monotonic() > self._looked_s + _LOOK_S:
            self._look()
        return len(self.seen_s) == len(self._nodes)

    def _look(self) -> None:
        coordinator = self._cluster.coordinator
        missing = [name for name in self._nodes if name not in self.seen_s]
        asked = [(name, coordinator.stat(paths.node(name), watch=partial(self._fired, name))) for name in missing]
        for name, future in asked:
            stat = future.result(_READ_S)
            if stat is not None and stat.version > 0:
                self._fired(name)
        self._looked_s = time.monotonic()

    def _fired(self, name: str) -> None:
        self.seen_s.setdefault(name, time.monotonic())


def _one_task(queue: TaskQueue, number: int) -> float:
    """Seconds from submit to result."""
    start_s = time.monotonic()
    queue.submit_call(number).result(_PATIENCE_S)
    return time.monotonic() - start_s


def silent(cluster: DevCluster, directory: Path, prefix: str, count: int, *, cores: int = 1, session_s: float = SESSION_S) -> Child:
    """So many Starters that do nothing but live; it says `ready`."""
    server, _, root = cluster.state.zookeeper.partition("/")
    host, _, port = server.partition(":")
    spec = SilentStartersSpec(
        host=host, port=int(port), root=f"/{root}", session_timeout_s=session_s, prefix=prefix, first=0, count=count, cores=cores
    )
    return Child("rmgr.bench.load.silent_starters", msgspec.json.encode(spec).decode(), log=directory / f"{prefix}.log")
