"""Prometheus metrics of a gateway, by name and meaning."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

_BUCKETS = (0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600)


class GatewayMetrics:
    """Metrics of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.sessions = Gauge("rmgr_gateway_sessions", "clients that have a stream", registry=registry)
        self.connected = Gauge("rmgr_gateway_zookeeper_connected", "1 while ZooKeeper answers this gateway", registry=registry)
        self._counters = {
            "asked": Counter("rmgr_gateway_requests", "what clients asked, and said of their work, by kind", ["kind"], registry=registry),
            "committed": Counter("rmgr_gateway_commits", "what was committed for clients, by operation", ["kind"], registry=registry),
            "refused": Counter("rmgr_gateway_refusals", "requests refused, by error", ["kind"], registry=registry),
            "cut": Counter("rmgr_gateway_cuts", "clients cut off, by reason", ["kind"], registry=registry),
            "passed_on": Counter("rmgr_gateway_forwarded", "calls passed on to daemons, by method", ["kind"], registry=registry),
            "stored_bytes": Counter("rmgr_gateway_store_bytes", "bytes of values, put and get", ["kind"], registry=registry),
        }

        self.calls = Counter("rmgr_calls", "calls of functions on servers by outcome", ["outcome"], registry=registry)
        self.call_bytes = Counter("rmgr_call_argument_bytes", "bytes of arguments passed on to servers", registry=registry)
        self.call_seconds = Histogram(
            "rmgr_call_seconds", "seconds of calls by part: in, waited, ran, out", ["part"], buckets=_BUCKETS, registry=registry
        )
        self.picks = Counter("rmgr_call_picks", "servers picked, by leader or (where none answers) gateway", ["by"], registry=registry)
        self._server_load = Gauge("rmgr_call_server_load", "calls that run and wait, and other work", ["server"], registry=registry)
        self._server_link = Gauge("rmgr_call_link_bytes_per_second", "bytes/s of the way to a server", ["server"], registry=registry)
        self._server_age = Gauge("rmgr_call_server_age_seconds", "age of a server's load", ["server"], registry=registry)

    def server(self, name: str, load: Any, bytes_per_s: float, age_s: float) -> None:
        """Shows what was measured of a server for calls (`pb.Load`)."""
        self._server_load.labels(name).set(load.running + load.waiting + load.other)
        self._server_link.labels(name).set(bytes_per_s)
        self._server_age.labels(name).set(age_s)

    def only_servers(self, names: Collection[str]) -> None:
        """Removes the rows of all other servers."""
        for gauge in (self._server_load, self._server_link, self._server_age):
            for metric in gauge.collect():
                for name in {sample.labels["server"] for sample in metric.samples} - set(names):
                    gauge.remove(name)

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """Counts an event of one kind: `asked`, `committed`, `refused`, `cut`, `stored_bytes`, `passed_on`."""
        self._counters[what].labels(kind).inc(amount)
