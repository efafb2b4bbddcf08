"""Metrics of a server of calls for Prometheus, by name and meaning."""

from __future__ import annotations

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry


class ServerMetrics:
    """Metrics of one server process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.gateways = Gauge("rmgr_server_gateways", "gateways that have its stream", registry=registry)
        self.running = Gauge("rmgr_server_running", "calls in slots", registry=registry)
        self.waiting = Gauge("rmgr_server_waiting", "calls without a slot yet", registry=registry)
        self.spool_bytes = Gauge("rmgr_server_spool_bytes", "arguments and answers on disk", registry=registry)
        self._counters = {
            "offers": Counter("rmgr_server_offers", "offered calls by what was said", ["kind"], registry=registry),
            "calls": Counter("rmgr_server_calls", "calls that ended, by outcome", ["kind"], registry=registry),
        }

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """One more."""
        self._counters[what].labels(kind).inc(amount)
