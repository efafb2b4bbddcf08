"""A partition in the cluster state: its nodes, what waits for them, what runs on them, what is promised; kept ready for a pass."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TypeAlias

from rmgr.sched.horizon import Ending
from rmgr.sched.job import Job, Node, Reservation, Running
from rmgr.sched.policy import KeyedOrder
from rmgr.sched.pool_node import NodePool
from rmgr.sched.pool_unit import UnitPool
from rmgr.sched.waiting import SortedJobs

Pool: TypeAlias = UnitPool | NodePool


def arrival(job: Job) -> tuple[int, ...]:
    """The key every order falls back to."""
    return (job.submit_us, job.id)


class Partition:
    """Read it from a draft; only `ClusterState` changes it, one fact at a time. What is derived can be derived again."""

    __slots__ = ("_views", "endings", "infeasible", "jobs", "name", "nodes", "pool", "reservations", "running", "waiting")

    def __init__(self, name: str, nodes: Iterable[Node]) -> None:
        self.name = name
        self.nodes: dict[int, Node] = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
        self.jobs: dict[int, Job] = {}  #: waiting, by id
        self.infeasible: dict[int, Job] = {}  #: waiting for a cluster that can run it; in no order
        self.waiting = SortedJobs(arrival)
        self.running: dict[int, Running] = {}
        self.reservations: dict[int, Reservation] = {}
        self.endings: list[Ending] = []  #: of what runs, sorted
        self._views: dict[KeyedOrder, SortedJobs] = {}
        self.pool = self._pool()

    def sorted_by(self, order: KeyedOrder) -> SortedJobs:
        """The feasible waiting jobs in this order, kept up to date from now on. First use: O(n log n)."""
        view = self._views.get(order)
        if view is None:
            view = self._views[order] = SortedJobs(order.key, self.waiting)
        elif view.postponed:
            del self._views[order]  # a key that raises costs its policy this pass, and nothing else
            view.settle()
            self._views[order] = view
        return view

    # -- facts, called by ClusterState ------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        if not self.pool.feasible(job):
            self.infeasible[job.id] = job
            return
        self.waiting.add(job)
        for view in self._views.values():
            view.postpone(job)

    def drop_job(self, job: Job) -> None:
        del self.jobs[job.id]
        self.reservations.pop(job.id, None)
        if self.infeasible.pop(job.id, None) is None:
            self.waiting.remove(job)
            for view in self._views.values():
                view.remove(job)

    def add_running(self, run: Running) -> None:
        self.running[run.job.id] = run
        self.pool.take(run.job, run.placement)
        insort(self.endings, (run.end_us, run.job.id, self.pool.returns(run.job, run.placement)))

    def drop_running(self, run: Running) -> None:
        del self.running[run.job.id]
        self.pool.give(run.job, run.placement)
        del self.endings[bisect_left(self.endings, (run.end_us, run.job.id))]  # sorts before the one of that job

    def set_node(self, node: Node) -> None:
        """Adds, closes, opens or resizes a node. O(everything): rare."""
        self.nodes[node.id] = node
        self.nodes = dict(sorted(self.nodes.items()))
        self._rebuild()

    def drop_node(self, node_id: int) -> None:
        del self.nodes[node_id]
        self._rebuild()

    def _rebuild(self) -> None:
        self.pool = self._pool()
        runs, self.running, self.endings = self.running, {}, []
        for run in runs.values():
            self.add_running(run)
        jobs, self.jobs, self.infeasible = self.jobs, {}, {}
        self.waiting, self._views = SortedJobs(arrival), {}
        for job in jobs.values():
            self.add_job(job)

    def _pool(self) -> Pool:
        nodes = self.nodes.values()
        return UnitPool(nodes) if UnitPool.serves(nodes) else NodePool(nodes)
