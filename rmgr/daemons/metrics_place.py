"""Where a daemon's measurements can be read: Prometheus' text over plain HTTP."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server

from rmgr.adapters.listening import check_place


def serve_metrics(place: str, registry: CollectorRegistry) -> tuple[str, Callable[[], None]]:
    """Serves `registry` at HOST:PORT (port 0: a free one); returns the address with the real port, and what ends it.

    Raises: ConfigError when it is no place, Unavailable when nobody can listen there.
    """
    check_place(place, "metrics: ")
    host, _, port = place.rpartition(":")
    exporter, _ = start_http_server(int(port), addr=host, registry=registry)
    return f"{host}:{exporter.server_port}", exporter.shutdown
