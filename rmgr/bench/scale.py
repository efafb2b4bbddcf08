"""From one Starter to two hundred: what a task costs the leader, ZooKeeper and the Starters themselves."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rmgr.bench.load.children import Child
from rmgr.bench.load.process_cost import cpu_s
from rmgr.bench.load.virtual_starters import VirtualStartersSpec
from rmgr.bench.losses import losses
from rmgr.bench.measuring import MeasuringPlan, Row, connected, row, zookeeper_counts
from rmgr.bench.tasks import no_op
from rmgr.client.taskqueue import TaskQueue
from rmgr.dev.cluster import DevCluster
from rmgr.errors import RmgrError

_STARTERS, _TASKS = 200, 100_000
#: Tasks of the one Starter are fewer: its two slots would take minutes for as many.
_ALONE = 20
#: Tasks that a Starter commits in batches: those of 10 ms and more are committed as they end, whatever the number of Starters.
_SLOTS, _TASK_S = 2, 0.005
#: Starters of one process.
_TOGETHER = 50
#: Sessions as long as in production: nobody is to be declared dead because the processor is too small.
_SESSION_S = 30.0
_PATIENCE_S = 900.0
_SETTLE_S = 1.0
SETUP = "1 ZooKeeper (fsync), SQLite, virtual Starters of 2 slots with a session each, tasks of 5 ms, no credentials"


@dataclass(frozen=True, slots=True)
class _Used:
    """Of one run, all of it: seconds of the processor by part, requests that ZooKeeper got, transactions it made, seconds."""

    leader_s: float
    zookeeper_s: float
    starters_s: float
    client_s: float
    requests: float
    transactions: float
    lists: float  #: readings of the queue by Starters
    claims: float
    refused: float  #: claims that somebody else made first
    lasted_s: float
    tasks: int

    def __sub__(self, other: _Used) -> _Used:
        return _Used(
            self.leader_s - other.leader_s,
            self.zookeeper_s - other.zookeeper_s,
            self.starters_s - other.starters_s,
            self.client_s - other.client_s,
            self.requests - other.requests,
            self.transactions - other.transactions,
            self.lists - other.lists,
            self.claims - other.claims,
            self.refused - other.refused,
            self.lasted_s - other.lasted_s,
            self.tasks - other.tasks,
        )

    def per_task(self) -> dict[str, tuple[str, float]]:
        """(unit, value) of what a task costs, by what it is."""
        all_s = self.leader_s + self.zookeeper_s + self.starters_s + self.client_s
        return {
            "processor, in all": ("us/task", all_s / self.tasks * 1e6),
            "processor of the leader": ("us/task", self.leader_s / self.tasks * 1e6),
            "processor of ZooKeeper": ("us/task", self.zookeeper_s / self.tasks * 1e6),
            "processor of the Starters": ("us/task", self.starters_s / self.tasks * 1e6),
            "processor of the client": ("us/task", self.client_s / self.tasks * 1e6),
            "requests to ZooKeeper": ("per task", self.requests / self.tasks),
            "transactions of ZooKeeper": ("per task", self.transactions / self.tasks),
            "claims that were made": ("per task", self.claims / self.tasks),
            "claims that were refused": ("per task", self.refused / self.tasks),
            "readings of the queue": ("per task", self.lists / self.tasks),
        }


def scale(plan: MeasuringPlan) -> list[Row]:
    """The cost of a task with one Starter and with 200, its growth as the ratio; every task is run and ends exactly once."""
    many = max(2, round(_STARTERS * min(1.0, plan.scale)))
    runs = {1: _measured(plan, 1, plan.count(_TASKS // _ALONE)), many: _measured(plan, many, plan.count(_TASKS))}
    rows = []
    for what in runs[1][0].per_task():
        unit, _ = runs[1][0].per_task()[what]
        values = {count: [used.per_task()[what][1] for used in found] for count, found in runs.items()}
        alone = row("1 Starter", "the same run", what, unit, values[1], ratio=1.0)
        grown = row(f"{many} Starters", SETUP, what, unit, values[many])
        growth = grown.rate / alone.rate if alone.rate else None
        rows += [alone, row(f"{many} Starters", SETUP, what, unit, values[many], ratio=growth)]
    for count, found in runs.items():
        system = f"{count} Starter{'s' if count > 1 else ''}"
        rows.append(row(system, SETUP, "tasks run, submit to last result", "tasks/s", [used.tasks / used.lasted_s for used in found]))
    return rows + losses(plan)


def _measured(plan: MeasuringPlan, starters: int, tasks: int) -> list[_Used]:
    """One cluster with so many Starters; the same tasks again and again. Raises: RmgrError when a task did not run exactly once."""
    with tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True) as where:
        directory = Path(where)
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
                before = _used(cluster, processes, 0)
                with TaskQueue(no_op, connection=connection) as queue:
                    _run(queue, tasks)
                time.sleep(_SETTLE_S)  # the leader closes the submission: its cost too
                used = _used(cluster, processes, tasks) - before
                found.append(used)
                ran += tasks
            for process in processes:
                process.finish()
            begun = sum(process.told("ran") for process in processes)
    if begun != ran:
        raise RmgrError(f"{ran} tasks ended, but {begun} were run")
    return found


def _run(queue: TaskQueue, tasks: int) -> None:
    """Each result is the task's own argument, so none is missing and none stands for two."""
    results = {future.result() for future in queue.as_completed(queue.map(None, range(tasks)), timeout=_PATIENCE_S)}
    if len(results) != tasks:
        raise RmgrError(f"{tasks} tasks have {len(results)} results")


def _used(cluster: DevCluster, processes: Sequence[Child], tasks: int) -> _Used:
    """All counters up to now."""
    asked: Counter[str] = Counter()
    for process in processes:
        asked.update(process.asked("asked"))
    requests, transactions = zookeeper_counts(cluster)
    client = time.process_time()
    return _Used(
        cpu_s([cluster.process("w1").pid]),
        cpu_s([cluster.process("zk1").pid]),
        cpu_s([process.pid for process in processes]),
        client,
        requests,
        transactions,
        asked["children queues/pending"],
        asked["CLAIM Committed"],
        asked["CLAIM Conflict"],
        time.monotonic(),
        tasks,
    )


# -- processes ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def virtual_starters(cluster: DevCluster, directory: Path, count: int) -> Iterator[list[Child]]:
    """So many Starters in as few processes as will do, all registered."""
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
