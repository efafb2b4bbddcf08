"""Prometheus metrics of a WatchDog: of its process, and of its cluster while it leads.

The cluster's metrics are computed on demand. Label sets are bounded: beyond `MOST_PAIRS` pairs of queue and user, the smaller pairs of each
queue are merged into one.
"""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from rmgr.errors import RmgrError
from rmgr.model.base.states import State
from rmgr.model.cluster.node import NodeState
from rmgr.model.views import JobView, NodeView
from rmgr.runtime import machine

_PICK_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0)
#: Largest number of pairs of queue and user with a row of their own.
MOST_PAIRS = 100
#: User name of the merged rows.
OTHERS = "(others)"
#: Greatest age of an answer: scrapers that ask more often get the same answer again.
FRESH_S = 5.0
Facts = tuple[Sequence[NodeView], Sequence[JobView]]


class LeaderMetrics:
    """Metrics of one WatchDog process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.leader = Gauge("rmgr_leader", "1 while this WatchDog leads", registry=registry)
        self.epoch = Gauge("rmgr_leader_epoch", "epoch of this WatchDog's leadership, 0 without one", registry=registry)
        self.take_overs = Counter("rmgr_leader_take_overs", "times that this process became the leader", registry=registry)
        self.fenced_writes = Counter("rmgr_leader_fenced_writes", "writes refused because another leader has taken over", registry=registry)
        self.unknown_commits = Counter("rmgr_leader_unknown_commits", "commits whose outcome could not be read back", registry=registry)
        self.fenced_nodes = Counter("rmgr_leader_fenced_nodes", "nodes fenced", registry=registry)
        self.failed_blocks = Counter("rmgr_leader_failed_blocks", "claimed blocks of fenced nodes marked FAILED", registry=registry)
        self.requeued_blocks = Counter("rmgr_leader_requeued_blocks", "failed ranges put back into their queue", registry=registry)
        self.given_up = Counter("rmgr_leader_given_up_tasks", "tasks ended FAILED by the resubmit rule", registry=registry)
        self.swept_blocks = Counter("rmgr_leader_swept_blocks", "waiting blocks set aside, ended or brought back", registry=registry)
        self.closed = Counter("rmgr_leader_closed_submissions", "submissions closed for want of an owner", registry=registry)
        self.collected = Counter("rmgr_leader_collected_submissions", "submissions collected after retention", registry=registry)
        self.pages = Counter("rmgr_leader_pages", "pages of fragments written to the store", registry=registry)
        self.duplicates = Counter(
            "rmgr_leader_duplicate_outcomes", "outcomes of tasks that were final already (always 0)", registry=registry
        )
        self.resync_drift = Counter("rmgr_leader_resync_drift", "differences found by a resync that no watch had told", registry=registry)
        self.mass_loss = Gauge("rmgr_leader_mass_loss", "1 while lost nodes are requeued slowly", registry=registry)
        self.nodes_up = Gauge("rmgr_leader_nodes_up", "nodes whose Starter is alive", registry=registry)
        self.submissions = Gauge("rmgr_leader_submissions", "submissions in memory", registry=registry)
        self.backlog = Gauge("rmgr_leader_commit_backlog", "commits that wait or are on the way", registry=registry)
        self.placed = Counter("rmgr_leader_placed_jobs", "jobs given to nodes", registry=registry)
        self.waiting_jobs = Gauge("rmgr_leader_waiting_jobs", "jobs that wait to be placed", registry=registry)
        self.gang_jobs = Gauge("rmgr_gang_jobs", "jobs that share nodes in time", registry=registry)
        self.gang_max_tqlb = Gauge("rmgr_gang_max_tqlb", "slots at most from one turn of a job to its next", registry=registry)
        where = ["partition", "queue_class"]
        self.class_waiting = Gauge("rmgr_leader_class_waiting_jobs", "jobs that wait in a queue class", where, registry=registry)
        self.class_running = Gauge("rmgr_leader_class_running_jobs", "placed jobs of a queue class", where, registry=registry)
        self.class_promised = Gauge("rmgr_leader_class_promised_cores", "cores promised to its waiting jobs", where, registry=registry)
        self.class_reservations = Gauge(
            "rmgr_leader_class_reservations", "reservations made, by trigger, under any leader", [*where, "trigger"], registry=registry
        )
        self.policy_faults = Counter("rmgr_leader_policy_faults", "decisions of a policy lost to an error of its own", registry=registry)
        self.call_reports = Counter("rmgr_leader_call_reports", "reports of gateways about servers for calls", registry=registry)
        self.call_picks = Counter("rmgr_leader_call_picks", "picks of a server for a call, by outcome", ["outcome"], registry=registry)
        self.call_pick_seconds = Histogram(
            "rmgr_leader_call_pick_seconds", "time of one pick, without its RPC", buckets=_PICK_SECONDS, registry=registry
        )
        self.placing_seconds = Histogram("rmgr_leader_placing_seconds", "time of one scheduling pass", registry=registry)
        self.loop_errors = Counter(
            "rmgr_watchdog_loop_errors", "handlers that raised (always 0); rmgr doctor lists what they handled", registry=registry
        )
        self.pass_seconds = Histogram("rmgr_leader_pass_seconds", "time of one turn of the loop", registry=registry)


class ClusterMetrics(Collector):
    """Collects the cluster's metrics.

    Args: facts: returns all nodes and the open submissions. Raises RmgrError if this WatchDog does not lead, or is busy.
    Cost: O(submissions), at most once in `FRESH_S`.
    """

    def __init__(self, facts: Callable[[], Facts], registry: CollectorRegistry) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._made_s = float("-inf")
        self._made: list[GaugeMetricFamily] = []
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Returns the names; called at the registration, when there are no facts yet."""
        return iter(families((), (), 0))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Returns the current values, nothing if there are none."""
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
    """Builds the metrics from these facts. Pure."""
    up = [node for node in nodes if node.state == NodeState.UP]
    cores = GaugeMetricFamily("rmgr_cluster_cores", "cores of nodes that take work", value=sum(node.cores for node in up))
    busy = GaugeMetricFamily("rmgr_cluster_cores_busy", "cores of these that are in use", value=sum(node.cores_used for node in up))
    states = GaugeMetricFamily("rmgr_cluster_nodes", "nodes by state", labels=["state"])
    counts = Counts(str(node.state) for node in nodes)
    for state in NodeState:
        states.add_metric([str(state)], counts[str(state)])
    waiting = GaugeMetricFamily("rmgr_cluster_waiting_tasks", "tasks that wait, by queue and user", labels=["queue", "user"])
    for (queue, user), tasks in sorted(_count_tasks(jobs).items()):
        waiting.add_metric([queue, user], tasks)
    oldest = GaugeMetricFamily("rmgr_cluster_oldest_wait_seconds", "wait of the oldest submission that has not begun", labels=["queue"])
    first: dict[str, int] = {}
    for job in jobs:
        if job.state is State.INITIAL and job.counts.get(State.INITIAL):
            first[job.queue] = min(first.get(job.queue, job.submitted_us), job.submitted_us)
    for queue, since_us in sorted(first.items()):
        oldest.add_metric([queue], max(0, now_us - since_us) / 1e6)
    return [cores, busy, states, waiting, oldest]


def _count_tasks(jobs: Sequence[JobView]) -> Counts[tuple[str, str]]:
    """Counts waiting tasks by queue and user, smaller pairs merged."""
    tasks: Counts[tuple[str, str]] = Counts()
    for job in jobs:
        if count := job.counts.get(State.INITIAL, 0):
            tasks[job.queue, job.user] += count
    found = Counts(dict(tasks.most_common(MOST_PAIRS)))
    for (queue, user), count in tasks.items():
        if (queue, user) not in found:
            found[queue, OTHERS] += count
    return found
