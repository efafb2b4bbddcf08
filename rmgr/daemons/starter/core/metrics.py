"""Metrics of a Starter for Prometheus, by name and meaning."""

from __future__ import annotations

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from rmgr.model.base.states import State

_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_800)


class StarterMetrics:
    """Metrics of one Starter process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.tasks_completed = Counter("rmgr_starter_tasks_completed", "attempts that ended, by how", ["state"], registry=registry)
        self.task_seconds = Histogram("rmgr_starter_task_seconds", "run time of attempts", buckets=_BUCKETS, registry=registry)
        self.outcomes_committed = Counter("rmgr_starter_outcomes_committed", "final outcomes committed", registry=registry)
        self.failures_committed = Counter(
            "rmgr_starter_failures_committed", "failed attempts committed that may run again", registry=registry
        )
        self.claims = Counter("rmgr_starter_claims", "blocks claimed", registry=registry)
        self.claim_conflicts = Counter("rmgr_starter_claim_conflicts", "claims that somebody else or a gate forestalled", registry=registry)
        self.given_back = Counter("rmgr_starter_tasks_given_back", "tasks split off or returned unstarted", registry=registry)
        self.fenced_writes = Counter("rmgr_starter_fenced_writes", "commits refused because the node was fenced", registry=registry)
        self.ambiguous_commits = Counter("rmgr_starter_ambiguous_commits", "commits whose answer was lost and read back", registry=registry)
        self.lease_kills = Counter("rmgr_starter_lease_kills", "exclusive work killed because contact was lost", registry=registry)
        self.registrations = Counter("rmgr_starter_registrations", "incarnations registered by this process", registry=registry)
        self.resyncs = Counter("rmgr_starter_resyncs", "blocks read again because a commit met something unexpected", registry=registry)
        self.surprises = Counter("rmgr_starter_surprises", "unusual things that slots reported", ["kind"], registry=registry)
        self.checkpoints = Counter("rmgr_starter_checkpoints", "checkpoints, by what became of them", ["outcome"], registry=registry)
        self.slots_busy = Gauge("rmgr_starter_slots_busy", "cores in use", ["node"], registry=registry)
        self.spooled_bytes = Gauge("rmgr_starter_spooled_bytes", "results that wait for the data store", registry=registry)
        self.disk_bytes = Gauge("rmgr_starter_disk_bytes", "size of the disk that has the work directory", registry=registry)
        self.disk_free_bytes = Gauge("rmgr_starter_disk_free_bytes", "bytes of it that are free", registry=registry)
        self.staged_bytes = Gauge("rmgr_starter_staged_bytes", "disk that uploads and staged files take", registry=registry)
        held = "memory of values of keyed tasks: read ahead, or on their way to the data store"
        self.values_bytes = Gauge("rmgr_starter_values_bytes", held, registry=registry)
        self.gang_switches = Counter("rmgr_gang_switches", "boundaries at which parts of gangs stop or go on", registry=registry)
        late = "boundaries at which a part did not stop at once, or ran out of its turn"
        self.gang_late = Counter("rmgr_gang_late_switches", late, registry=registry)
        self.gang_out_of_turn = Counter("rmgr_gang_out_of_turn_seconds", "for how long parts ran out of their turn", registry=registry)
        self.gang_clock_error = Gauge("rmgr_gang_clock_error_seconds", "error of the clock by which slots are counted", registry=registry)
        self.refused_connections = Gauge("rmgr_refused_connections", "connections refused to callers with too many", registry=registry)
        self.store_up = Gauge("rmgr_store_up", "1 while the data store serves this daemon", registry=registry)
        self.loop_errors = Counter("rmgr_starter_loop_errors", "messages whose handling raised (always 0)", registry=registry)
        self.pass_seconds = Histogram("rmgr_starter_pass_seconds", "time of one turn of the loop", registry=registry)
        self._by_state = {state: self.tasks_completed.labels(state.value) for state in State if state.is_final}
        self._again = self.tasks_completed.labels("FAILED_AGAIN")

    def ended(self, state: State | None, count: int, seconds: float) -> None:
        """`count` attempts ended, of `seconds` each; state None: FAILED, and may run again."""
        (self._by_state[state] if state is not None else self._again).inc(count)
        self.task_seconds.observe(seconds)

    def surprised(self, what: str) -> None:
        """A slot reported something unusual."""
        self.surprises.labels(what).inc()
        if what == "lease_kill":
            self.lease_kills.inc()

    def claimed(self, *, won: bool) -> None:
        """A claim was answered."""
        (self.claims if won else self.claim_conflicts).inc()

    def committed(self, outcomes: int, failures: int) -> None:
        """A COMPLETE was committed."""
        self.outcomes_committed.inc(outcomes)
        if failures:
            self.failures_committed.inc(failures)

    def count(self, event: str) -> None:
        """An event of the committer."""
        (self.fenced_writes if event == "fenced_writes" else self.ambiguous_commits).inc()
