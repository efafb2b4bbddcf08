"""The table of all metrics in rmgr/docs/metrics.md: `python -m tests.harness.metric_rows` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from rmgr.daemons.gateway.calls import GatewayMetrics
from rmgr.daemons.leader.answering import families
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.server.owner import ServerMetrics
from rmgr.daemons.service.metrics_place import ClusterDaemonMetrics, CommonMetrics
from rmgr.daemons.starter.node.service import StarterMetrics

#: Name of a daemon in the table -> class of its metrics.
KINDS = {"WatchDog": LeaderMetrics, "Starter": StarterMetrics, "gateway": GatewayMetrics, "server": ServerMetrics}


class _Credentials:
    def days_left(self) -> float:
        return 1.0


def of_registry(registry: CollectorRegistry) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Yields (Prometheus name, type, labels, meaning) of each metric."""
    collectors: Any = registry
    for collector in list(collectors._collector_to_names):
        described: list[Metric] = list(collector.describe())
        for metric in described:
            name = metric.name + ("_total" if metric.type == "counter" else "")
            yield name, metric.type, tuple(collector._labelnames), metric.documentation


def value_of(metric: Any) -> float:
    """Returns the value of a counter or gauge, or of one of its label sets."""
    (family,) = metric.collect()
    return float(next(sample.value for sample in family.samples if not sample.name.endswith("_created")))


def rows() -> list[str]:
    """Returns the lines of the table, sorted by name."""
    found: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for daemon, make in KINDS.items():
        registry = make().registry  # type: ignore[attr-defined]
        if daemon != "server":
            ClusterDaemonMetrics(registry, bool, int)
        for row in of_registry(registry):
            found.setdefault(row, []).append(daemon)
    common = CollectorRegistry()
    CommonMetrics(common, _Credentials())  # type: ignore[arg-type]
    for row in of_registry(common):
        found[row] = ["all"]
    for family in families((), (), 0):
        labels = tuple(re.findall(r"state|queue|user", str(_LABELS.get(family.name, ""))))
        found[family.name, family.type, labels, family.documentation] = ["WatchDog that leads"]
    return [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} | {', '.join(daemons)} |"
        for (name, kind, labels, meaning), daemons in sorted(found.items())
    ]


_LABELS = {"rmgr_cluster_nodes": "state", "rmgr_cluster_waiting_tasks": "queue user", "rmgr_cluster_oldest_wait_seconds": "queue"}


if __name__ == "__main__":
    print("\n".join(rows()))
