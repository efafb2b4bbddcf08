"""Metrics of calls that a gateway shows: those of servers that it has, and the names by which the deployment tells of them."""

from __future__ import annotations

import re

from prometheus_client import generate_latest

from rmgr.daemons.gateway.metrics import GatewayMetrics
from rmgr.daemons.leader.metrics import LeaderMetrics
from rmgr.daemons.server.owner import ServerMetrics
from rmgr.v1 import calls_pb2 as pb
from tests.places import ROOT


def test_of_a_server_that_has_gone_nothing_is_shown() -> None:
    metrics = GatewayMetrics()
    for name in ("s1", "s2"):
        metrics.server(name, pb.Load(running=2, waiting=1), 1e6, 3.0)
    metrics.only_servers(["s2"])
    text = generate_latest(metrics.registry).decode()
    assert re.findall(r'^rmgr_call_server_\w+{server="(\w+)"} \S+$', text, re.MULTILINE) == ["s2", "s2"]
    assert 'rmgr_call_server_load{server="s2"} 3.0' in text


def test_the_metrics_that_the_deployment_names_are_there() -> None:
    told = (ROOT / "deploy" / "README.md").read_text()
    named = set(re.findall(r"`(rmgr_[a-z_]*call[a-z_]*)", told))
    assert len(named) > 7
    registries = (GatewayMetrics().registry, LeaderMetrics().registry, ServerMetrics().registry)
    there = {name for registry in registries for metric in registry.collect() for name in (metric.name, f"{metric.name}_total")}
    assert named <= there, named - there
