"""Metrics of a gateway for Prometheus, by name and meaning."""

from __future__ import annotations

from prometheus_client.metrics import Counter, Gauge
from prometheus_client.registry import CollectorRegistry


class GatewayMetrics:
    """Metrics of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.sessions = Gauge("rmgr_gateway_sessions", "sessions of clients", registry=registry)
        self.connected = Gauge("rmgr_gateway_zookeeper_connected", "1 while ZooKeeper answers this gateway", registry=registry)
        self.refused_connections = Gauge("rmgr_refused_connections", "connections not let in, of who begins too many", registry=registry)
        self.store_up = Gauge("rmgr_store_up", "1 while the data store serves this daemon", registry=registry)
        self._counters = {
            "sessions": Counter("rmgr_gateway_sessions_events", "sessions by what became of them", ["kind"], registry=registry),
            "asked": Counter("rmgr_gateway_requests", "requests to the coordination service by kind", ["kind"], registry=registry),
            "committed": Counter("rmgr_gateway_commits", "commits by operation and outcome", ["kind"], registry=registry),
            "refused": Counter("rmgr_gateway_refusals", "requests refused, by error", ["kind"], registry=registry),
            "cut": Counter("rmgr_gateway_cuts", "clients cut off, by reason", ["kind"], registry=registry),
            "passed_on": Counter("rmgr_gateway_forwarded", "calls passed on to daemons, by method", ["kind"], registry=registry),
            "stored_bytes": Counter("rmgr_gateway_store_bytes", "bytes of values, put and get", ["kind"], registry=registry),
        }

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """See `rpc_gateway_server.Gate`."""
        self._counters[what].labels(kind).inc(amount)
