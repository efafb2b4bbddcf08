"""Metrics of a WatchDog for Prometheus, by name and meaning."""

from __future__ import annotations

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

_PICK_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0)


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
        self.refused_connections = Gauge("rmgr_refused_connections", "connections refused to callers with too many", registry=registry)
        self.store_up = Gauge("rmgr_store_up", "1 while the data store serves this daemon", registry=registry)
        self.loop_errors = Counter(
            "rmgr_watchdog_loop_errors", "handlers that raised (always 0); rmgr doctor lists what they handled", registry=registry
        )
        self.pass_seconds = Histogram("rmgr_leader_pass_seconds", "time of one turn of the loop", registry=registry)
