"""What a leader tells Prometheus of its cluster, made when somebody asks: cores, nodes by state, work that waits, by user and queue.

A WatchDog that does not lead tells nothing of it. Label sets are bounded: beyond `MOST_PAIRS` pairs of queue and user, the smaller ones
are one of each queue.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from rmgr.errors import RmgrError
from rmgr.model.base.states import State
from rmgr.model.cluster.node import NodeState
from rmgr.model.views import JobView, NodeView
from rmgr.runtime import machine

#: Pairs of queue and user that have a row of their own.
MOST_PAIRS = 100
#: Whose tasks the rest are.
OTHERS = "(others)"
#: The answer is at most so old: scrapers that ask more often get it again.
FRESH_S = 5.0

Facts = tuple[Sequence[NodeView], Sequence[JobView]]


class ClusterMetrics(Collector):
    """Collects them.

    Args: facts: all nodes, and the submissions that have not ended. Raises RmgrError where this WatchDog does not lead, or is busy.
    Cost: O(submissions), at most once in `FRESH_S`.
    """

    def __init__(self, facts: Callable[[], Facts], registry: CollectorRegistry) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._made_s = float("-inf")
        self._made: list[GaugeMetricFamily] = []
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names, asked for at the registration, when there are no facts yet."""
        return iter(families((), (), 0))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The present values; nothing where there are none."""
        with self._lock:
            if machine.monotonic() - self._made_s >= FRESH_S:
                try:
                    nodes, jobs = self._facts()
                    self._made = families(nodes, jobs, machine.wall_us())
                except RmgrError:
                    self._made = []
                self._made_s = machine.monotonic()
            return iter(self._made)


def families(nodes: Sequence[NodeView], jobs: Sequence[JobView], now_us: int) -> list[GaugeMetricFamily]:
    """The metrics of these facts. Pure."""
    up = [node for node in nodes if node.state == NodeState.UP]
    cores = GaugeMetricFamily("rmgr_cluster_cores", "cores of nodes that take work", value=sum(node.cores for node in up))
    busy = GaugeMetricFamily("rmgr_cluster_cores_busy", "cores of these that are in use", value=sum(node.cores_used for node in up))
    states = GaugeMetricFamily("rmgr_cluster_nodes", "nodes by state", labels=["state"])
    counts = Counter(str(node.state) for node in nodes)
    for state in NodeState:
        states.add_metric([str(state)], counts[str(state)])
    waiting = GaugeMetricFamily("rmgr_cluster_waiting_tasks", "tasks that wait, by queue and user", labels=["queue", "user"])
    for (queue, user), tasks in sorted(_bounded(jobs).items()):
        waiting.add_metric([queue, user], tasks)
    oldest = GaugeMetricFamily("rmgr_cluster_oldest_wait_seconds", "wait of the oldest submission that has not begun", labels=["queue"])
    first: dict[str, int] = {}
    for job in jobs:
        if job.state is State.INITIAL and job.counts.get(State.INITIAL):
            first[job.queue] = min(first.get(job.queue, job.submitted_us), job.submitted_us)
    for queue, since_us in sorted(first.items()):
        oldest.add_metric([queue], max(0, now_us - since_us) / 1e6)
    return [cores, busy, states, waiting, oldest]


def _bounded(jobs: Sequence[JobView]) -> Counter[tuple[str, str]]:
    """Waiting tasks by queue and user."""
    tasks: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if count := job.counts.get(State.INITIAL, 0):
            tasks[job.queue, job.user] += count
    found = Counter(dict(tasks.most_common(MOST_PAIRS)))
    for (queue, user), count in tasks.items():
        if (queue, user) not in found:
            found[queue, OTHERS] += count
    return found
