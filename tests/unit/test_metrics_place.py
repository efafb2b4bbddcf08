"""Measurements over HTTP: answered while the daemon lives, and the port is free when it has ended."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from rmgr.daemons.metrics_place import serve_metrics
from rmgr.errors import ConfigError


@pytest.mark.parametrize("place", ["127.0.0.1:0", "localhost:0"])
def test_measurements_are_read_often_and_the_port_is_given_back(place: str) -> None:
    registry = CollectorRegistry()
    counter = Counter("rounds", "of the test", registry=registry)
    address, end = serve_metrics(place, registry)
    for number in range(1, 4):
        counter.inc()
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            assert f"rounds_total {number}.0" in answer.read().decode()
    end()
    end()
    with pytest.raises(OSError, match=r"."), socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2])), 30):
        pass


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="metrics"):
        serve_metrics("nowhere", CollectorRegistry())
