"""From one Starter to two hundred: the cost of a task to the leader, ZooKeeper and the Starters; and the cost of a loss of many Starters.

Losses: two thousand Starters that only live, five hundred of them killed at once. The rows show when all are fenced, what that costs the
leader, and whether the others notice.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from rmgr.bench.load.processes import Child, cpu_s
from rmgr.bench.load.silent_starters import SilentStartersSpec
from rmgr.bench.load.virtual_starters import VirtualStartersSpec
from rmgr.bench.measuring import SAME_RUN, MeasuringPlan, Row, connected, row, scratch, zookeeper_counts
from rmgr.bench.tasks import no_op
from rmgr.client.connection import Connection
from rmgr.client.taskqueue import TaskQueue
from rmgr.coord.protocol import paths
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError

_STARTERS, _TASKS = 200, 100_000
#: Divisor of the number of tasks for one Starter: its two slots would take minutes for all.
_ALONE = 20
#: Slots of a Starter, and a task's length: short enough for commits in batches (tasks of 10 ms and more are committed as they end).
_SLOTS, _TASK_S = 2, 0.005
#: Starters in one process.
_TOGETHER = 50
#: Sessions as long as in production, so that no Starter is declared dead because the processor is too slow.
_SESSION_S = 30.0
_PATIENCE_S = 900.0
_SETTLE_S = 1.0
SETUP = "1 ZooKeeper (fsync), SQLite, virtual Starters of 2 slots with a session each, tasks of 5 ms, no credentials"
#: Costs of a task: name -> (unit, factor, counters to add up).
_COSTS: dict[str, tuple[str, float, tuple[str, ...]]] = {
    "processor, in all": ("us/task", 1e6, ("leader", "zookeeper", "starters", "client")),
    "processor of the leader": ("us/task", 1e6, ("leader",)),
    "processor of ZooKeeper": ("us/task", 1e6, ("zookeeper",)),
    "processor of the Starters": ("us/task", 1e6, ("starters",)),
    "processor of the client": ("us/task", 1e6, ("client",)),
    "requests to ZooKeeper": ("per task", 1, ("requests",)),
    "transactions of ZooKeeper": ("per task", 1, ("transactions",)),
    "claims that were made": ("per task", 1, ("claims",)),
    "claims that were refused": ("per task", 1, ("refused",)),  # another Starter was first
    "readings of the queue": ("per task", 1, ("lists",)),  # by Starters
}
#: Sizes of the losses.
_SESSIONS, _KILLED = 2000, 500
LOSS_SESSION_S = 10.0
_LOSS_PATIENCE_S, _READ_S, _LOOK_S = 120.0, 30.0, 5.0
_QUIET = 300
LOSS_SETUP = f"1 ZooKeeper (fsync), SQLite, sessions of {LOSS_SESSION_S:.0f} s on bare sockets, a leader, one Starter that works"


def scale(plan: MeasuringPlan) -> list[Row]:
    """Measures the cost of a task with one Starter and with 200, its growth as the ratio; checks that each task ends exactly once."""
    many = max(2, round(_STARTERS * min(1.0, plan.scale)))
    runs = {1: _measured(plan, 1, plan.count(_TASKS // _ALONE)), many: _measured(plan, many, plan.count(_TASKS))}
    rows = []
    for what, (unit, factor, parts) in _COSTS.items():
        values = {count: [sum(used[part] for part in parts) / used["tasks"] * factor for used in found] for count, found in runs.items()}
        alone = row("1 Starter", SAME_RUN, what, unit, values[1], ratio=1.0)
        grown = row(f"{many} Starters", SETUP, what, unit, values[many])
        rows += [alone, replace(grown, ratio=grown.rate / alone.rate if alone.rate else None)]
    for count, found in runs.items():
        system = f"{count} Starter{'s' if count > 1 else ''}"
        rows.append(row(system, SETUP, "tasks run, submit to last result", "tasks/s", [used["tasks"] / used["lasted_s"] for used in found]))
    return rows + losses(plan)


def _measured(plan: MeasuringPlan, starters: int, tasks: int) -> list[dict[str, float]]:
    """Runs the same tasks again and again on one cluster with so many Starters; returns what each run used. Raises: RmgrError if a task
    did not run exactly once.
    """
    with scratch() as directory:
        plan.progress(f"starting {starters} virtual Starters")
        with (
            DevCluster(directory / "cluster", nodes=0, watchdogs=1, session_timeout_s=_SESSION_S, secured=False) as cluster,
            virtual_starters(cluster, directory, starters) as processes,
            connected(cluster) as connection,
        ):
            found = []
            with TaskQueue(no_op, connection=connection) as queue:
                _run(queue, max(50, tasks // 10))
            ran = max(50, tasks // 10)
            for _ in plan.rounds(f"{tasks} tasks on {starters} Starters"):
                before = _used_so_far(cluster, processes)
                with TaskQueue(no_op, connection=connection) as queue:
                    _run(queue, tasks)
                time.sleep(_SETTLE_S)  # the leader closes the submission, which also counts
                found.append({what: count - before[what] for what, count in _used_so_far(cluster, processes).items()} | {"tasks": tasks})
                ran += tasks
            for process in processes:
                process.finish()
            begun = sum(process.told("ran") for process in processes)
    if begun != ran:
        raise RmgrError(f"{ran} tasks ended, but {begun} were run")
    return found


def _run(queue: TaskQueue, tasks: int) -> None:
    """Runs tasks. Each result is the task's own argument, so none is missing and none is counted twice."""
    results = {future.result() for future in queue.as_completed(queue.map(None, range(tasks)), timeout=_PATIENCE_S)}
    if len(results) != tasks:
        raise RmgrError(f"{tasks} tasks have {len(results)} results")


def _used_so_far(cluster: DevCluster, processes: Sequence[Child]) -> dict[str, float]:
    """Returns all counters up to now: processor seconds by part, requests to ZooKeeper, its transactions, seconds."""
    asked: Counter[str] = Counter()
    for process in processes:
        asked.update(process.asked("asked"))
    requests, transactions = zookeeper_counts(cluster)
    return {
        "leader": cpu_s([cluster.process("w1").pid]),
        "zookeeper": cpu_s([cluster.process("zk1").pid]),
        "starters": cpu_s([process.pid for process in processes]),
        "client": time.process_time(),
        "requests": requests,
        "transactions": transactions,
        "claims": asked["CLAIM Committed"],
        "refused": asked["CLAIM Conflict"],
        "lists": asked["children queues/pending"],
        "lasted_s": time.monotonic(),
    }


# -- processes ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def virtual_starters(cluster: DevCluster, directory: Path, count: int) -> Iterator[list[Child]]:
    """Starts so many Starters in as few processes as possible; yields once all are registered."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_spawn(cluster, directory, first, min(_TOGETHER, count - first))) for first in range(0, count, _TOGETHER)
        ]
        for process in processes:
            process.told("ready")
        yield processes


def _spawn(cluster: DevCluster, directory: Path, first: int, count: int) -> Child:
    state = cluster.state
    spec = VirtualStartersSpec(
        zk=state.zookeeper, store=state.store, session_timeout_s=state.session_timeout_s, directory=str(directory / "virtual"),
        first=first, count=count, slots=_SLOTS, task_s=_TASK_S,
    )  # fmt: skip
    return Child("rmgr.bench.load.virtual_starters", msgspec.json.encode(spec).decode(), log=directory / f"virtual-{first}.log")


# -- losses ---------------------------------------------------------------------------------------------------------------------


def losses(plan: MeasuringPlan) -> list[Row]:
    """Measures the losses. Raises: RmgrError if a session of the others ended, or a loss was not noticed at all."""
    sessions = max(40, round(_SESSIONS * min(1.0, plan.scale)))
    killed = sessions * _KILLED // _SESSIONS
    with scratch() as directory:
        plan.progress(f"starting {sessions} silent Starters")
        with (
            DevCluster(directory / "cluster", nodes=1, watchdogs=1, session_timeout_s=LOSS_SESSION_S, secured=False) as cluster,
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
            if time.monotonic() - killed_s > _LOSS_PATIENCE_S:
                raise RmgrError(f"only {len(fences.seen_s)} of {killed} losses were noticed within {_LOSS_PATIENCE_S:.0f} s")
            meanwhile.append(_one_task(queue, len(meanwhile)))
        usual_s = (before_s - start_s) * len(meanwhile) / _QUIET  # what the leader does for tasks, as measured before
        leader_s = max(0.0, cpu_s([leader]) - before_s - usual_s)
    alive = rest.asked("alive")
    entries = len(cluster.coordinator.children(paths.STARTERS).result(_READ_S) or ())
    if (alive, entries) != (sessions - killed, sessions - killed + 1):
        raise RmgrError(f"{sessions - killed} silent Starters were to live on: {alive} sessions stand, {entries - 1} entries")
    system, seen_s = f"{killed} of {sessions} killed", sorted(fences.seen_s.values())
    meanwhile.sort()
    return [
        row(system, LOSS_SETUP, "first loss fenced after the kill", "s", [seen_s[0] - killed_s]),
        row(system, LOSS_SETUP, "last loss fenced after the kill", "s", [seen_s[-1] - killed_s], asked_for=LOSS_SESSION_S + 4.0),
        row(system, LOSS_SETUP, "processor of the leader until then", "ms/loss", [leader_s / killed * 1e3]),
        row(system, LOSS_SETUP, "sessions of the others that stand", "sessions", [float(alive)]),
        row(system, LOSS_SETUP, "one task at a time, before", "ms", [quiet[len(quiet) // 2] * 1e3], most=quiet[-1] * 1e3),
        row(system, LOSS_SETUP, "one task at a time, meanwhile", "ms", [meanwhile[len(meanwhile) // 2] * 1e3], most=meanwhile[-1] * 1e3),
    ]


class Fences:
    """Times at which nodes were fenced (monotonic), from watches on their records; none of them registers again."""

    def __init__(self, cluster: DevCluster, nodes: list[str]) -> None:
        self.seen_s: dict[str, float] = {}
        self._cluster = cluster
        self._nodes = nodes
        self._looked_s = -math.inf
        self._look()

    @property
    def are_complete(self) -> bool:
        """Whether all nodes are fenced. A watch is only a hint, so the missing ones are read now and then."""
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
    """Returns the seconds from submit to result."""
    start_s = time.monotonic()
    queue.submit_call(number).result(_LOSS_PATIENCE_S)
    return time.monotonic() - start_s


def silent(cluster: DevCluster, directory: Path, prefix: str, count: int, *, cores: int = 1, session_s: float = LOSS_SESSION_S) -> Child:
    """Returns a process of so many Starters that do nothing but live; it says `ready` when all are registered."""
    server, _, root = cluster.state.zookeeper.partition("/")
    host, _, port = server.partition(":")
    spec = SilentStartersSpec(
        host=host, port=int(port), root=f"/{root}", session_timeout_s=session_s, prefix=prefix, first=0, count=count, cores=cores
    )
    return Child("rmgr.bench.load.silent_starters", msgspec.json.encode(spec).decode(), log=directory / f"{prefix}.log")
