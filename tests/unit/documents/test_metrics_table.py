"""The table of all metrics matches the code; no counter has a second row; label sets are bounded."""

from __future__ import annotations

import re
import socket
from contextlib import closing

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from rmgr.daemons.leader.answering import MOST_PAIRS, OTHERS, ClusterMetrics, families
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.service import metrics_http  # noqa: F401 - importing it leaves the second rows out, as in every daemon that answers
from rmgr.daemons.service.metrics_place import MetricsPlace
from rmgr.daemons.starter.node.service import StarterMetrics
from rmgr.errors import Unavailable
from rmgr.model.identity import Role
from rmgr.model.node import NodeState
from rmgr.model.states import State
from rmgr.model.views import JobView, NodeView
from tests.harness.metric_rows import rows
from tests.places import ROOT


def test_the_document_lists_all_metrics_as_the_code_has_them() -> None:
    text = (ROOT / "rmgr/docs/metrics.md").read_text("utf-8")
    listed = [line for line in text.partition("## All metrics")[2].splitlines() if line.startswith("| `")]
    assert listed == rows(), "python -m tests.harness.metric_rows prints the table"
    named = set(re.findall(r"\brmgr_[a-z_]+\b", text.partition("## All metrics")[0]))
    known = {line.split("`")[1] for line in listed}
    assert {name for name in named if name not in known and name != "rmgr_cluster_"} == set()


def test_no_counter_has_a_second_row_for_when_it_was_made() -> None:
    metrics, starter = LeaderMetrics(), StarterMetrics()
    starter.tasks_completed.labels("COMPLETED").inc()
    for registry in (metrics.registry, starter.registry):
        assert "_created" not in generate_latest(registry).decode()


def a_job(user: str, queue: str = "q", *, waiting: int = 1, state: State = State.INITIAL, submitted_us: int = 0) -> JobView:
    counts = {"INITIAL": waiting, "RUNNING": 2}
    return JobView(id=1, name="x", user=user, queue=queue, state=state, counts=counts, submitted_us=submitted_us)


def a_node(name: str, state: NodeState, used: int = 0) -> NodeView:
    return NodeView(id=name, state=state, cores=4, cores_used=used, memory_bytes=1)


def samples(nodes: list[NodeView], jobs: list[JobView], now_us: int = 0) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sample.labels.values()): sample.value for family in families(nodes, jobs, now_us) for sample in family.samples}


def test_cores_nodes_and_waiting_work_are_told() -> None:
    nodes = [a_node("n1", NodeState.UP, 3), a_node("n2", NodeState.UP), a_node("n3", NodeState.FENCED)]
    jobs = [
        a_job("ann", waiting=5, submitted_us=3_000_000),
        a_job("ann", waiting=2, submitted_us=1_000_000),
        a_job("bob", waiting=1, submitted_us=500_000, state=State.RUNNING),  # it has begun
        a_job("bob", "batch", waiting=0, state=State.HELD),
    ]
    found = samples(nodes, jobs, 11_000_000)
    assert (found["rmgr_cluster_cores",], found["rmgr_cluster_cores_busy",]) == (8, 3)
    assert (found["rmgr_cluster_nodes", "up"], found["rmgr_cluster_nodes", "fenced"], found["rmgr_cluster_nodes", "down"]) == (2, 1, 0)
    waiting = {key[1:]: value for key, value in found.items() if key[0] == "rmgr_cluster_waiting_tasks"}
    assert waiting == {("q", "ann"): 7, ("q", "bob"): 1}
    assert {key: value for key, value in found.items() if "oldest" in key[0]} == {("rmgr_cluster_oldest_wait_seconds", "q"): 10.0}


def test_however_many_users_there_are_the_rows_are_bounded_and_no_task_is_missing() -> None:
    jobs = [a_job(f"user{number}", f"q{number % 2}", waiting=number + 1) for number in range(1000)]
    waiting = {key[1:]: value for key, value in samples([], jobs).items() if key[0] == "rmgr_cluster_waiting_tasks"}
    assert len(waiting) == MOST_PAIRS + 2
    assert sum(waiting.values()) == sum(range(1, 1001))
    assert waiting["q1", "user999"] == 1000
    assert waiting["q0", OTHERS] > 0


def test_who_does_not_lead_tells_nothing_of_the_cluster_and_who_asks_often_has_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, asked = CollectorRegistry(), []

    def facts() -> tuple[list[NodeView], list[JobView]]:
        asked.append(1)
        if len(asked) == 1:
            raise Unavailable("this WatchDog does not lead")
        return [a_node("n1", NodeState.UP)], []

    ClusterMetrics(facts, registry)
    assert not asked  # it is registered before there is a leader
    assert "rmgr_cluster" not in generate_latest(registry).decode()
    with monkeypatch.context() as later:
        later.setattr("rmgr.daemons.leader.answering.METRICS_S", 0.0)
        assert "rmgr_cluster_cores 4.0" in generate_latest(registry).decode()
    for _ in range(2):
        assert "rmgr_cluster_cores 4.0" in generate_latest(registry).decode()
    assert len(asked) == 2


class _Ending:
    """Credentials with three days left."""

    def days_left(self) -> float:
        return 3.0


def test_every_daemon_tells_its_release_and_the_days_of_its_certificates() -> None:
    registry = CollectorRegistry()
    place = MetricsPlace("127.0.0.1:0", Role.STARTER)
    end = place.serve(registry, credentials=_Ending())  # type: ignore[arg-type]
    try:
        host, port = place.address.rsplit(":", 1)
        with closing(socket.create_connection((host, int(port)), 10)) as sock:
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            told = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    finally:
        end()
    assert re.search(r'rmgr_build_info\{protocol="\d+",python="3[\d.]+",version="[\w.]+"\} 1\.0', told)
    assert "rmgr_certificate_days_left 3.0" in told
