"""Policy files and plug-ins on real daemons: limits hold, and a costly plug-in delays nothing else, under two leaders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.cluster import DevCluster
from rmgr.model.node import EpochRecord
from tests.harness.waiting import eventually
from tests.integration.commands import Lend, Shell, new_watchdogs, watchdogs

SETTINGS = '[queues.default]\n[queues.batch]\ndispatch = "place"\n[queues.far]\ndispatch = "place"\npartition = "far"\n'
#: A stage for another partition, which must not apply, and a limit, which must.
LIMITED = """
[[stage]]
policy = "first_fit"
partitions = ["elsewhere"]
[[stage]]
policy = "fcfs"
partitions = ["far"]
[[partition]]
name = "far"
max_jobs_per_user = 1
"""
LOOPS = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True, slots=True)
class Loops:
    name: ClassVar[str] = "loops"

    def plan(self, draft, causes):
        while draft.waiting_count:
            pass
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which a program finds the plug-in, as if it were installed."""
    plugin = tmp_path_factory.mktemp("plugin")
    plugin.joinpath("plug_loops.py").write_text(LOOPS)
    info = plugin / "plug_loops-1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: plug-loops\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[rmgr.policies]\nloops = plug_loops:Loops\n")
    return {"PYTHONPATH": os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def cluster(lend_secured: Lend, plugin: dict[str, str]) -> Iterator[DevCluster]:
    """Two WatchDogs with the plug-in, a node in each of two partitions."""
    with lend_secured() as lent:
        new_watchdogs(lent, **plugin)
        lent.start_starter("n1")
        lent.start_starter("f1", options=["--partition", "far"])
        lent.wait_healthy(nodes=2, deadline_s=60)
        yield lent


@pytest.fixture(scope="module")
def sh(cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    sh = Shell(tmp_path_factory.mktemp("user"), cluster.environment())
    sh.directory.joinpath("settings.toml").write_text(SETTINGS)
    sh.ok("config", "apply", "--remove", "settings.toml")
    yield sh
    for partition in ("default", "far"):
        sh("policy", "set", "easy", "--partition", partition)


@pytest.fixture(scope="module")
def operator(cluster: DevCluster, plugin: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Who has the plug-in, too."""
    return Shell(tmp_path_factory.mktemp("operator"), cluster.environment() | plugin)


def runs(cluster: DevCluster, node: str, number: str) -> bool:
    names = cluster.coordinator.children(paths.running_node(node)).result(60)
    return any(key.submission == int(number) for _, key in paths.blocks_in(names))


def epoch(cluster: DevCluster) -> EpochRecord:
    return decode_record(cluster.coordinator.get(paths.EPOCH).result(60).data, EpochRecord)


def leaders_log(cluster: DevCluster) -> str:
    """What the leader has told since it leads; before that, its file is that of an earlier WatchDog of this name."""
    pid = epoch(cluster).pid
    file = cluster.log_file(next(name for name in watchdogs(cluster) if cluster.process(name).pid == pid))
    return file.read_text().rpartition("leadership_began")[2]


def test_a_limit_of_a_policy_file_holds_and_its_stage_for_another_partition_does_not_apply(sh: Shell, cluster: DevCluster) -> None:
    sh.directory.joinpath("limited.toml").write_text(LIMITED)
    sh.ok("policy", "set", "limited.toml", "--partition", "far")
    first, second = (sh.submit("-q", "far", "--", "sleep", "600") for _ in range(2))
    eventually(lambda: runs(cluster, "f1", first), lambda: sh("explain", first))
    eventually(lambda: "may run 1 job at once and does" in sh.ok("explain", second).out, lambda: sh("explain", second))
    assert not runs(cluster, "f1", second)  # the other core is free
    sh.ok("cancel", first)
    eventually(lambda: runs(cluster, "f1", second), lambda: sh("explain", second))
    sh.ok("cancel", second)
    refused = sh("submit", "-q", "far", "--dry-run", "-n", "3", "--", "true")
    assert refused.code == 2, refused
    sh.directory.joinpath("machine.toml").write_text(f"{LIMITED}nodes = 3\n")
    refused = sh("policy", "set", "machine.toml", "--partition", "far")
    assert (refused.code, "only the simulator obeys nodes" in refused.err) == (2, True), refused


def test_an_endless_plug_in_is_replaced_and_stops_nobody_else_under_two_leaders(sh: Shell, operator: Shell, cluster: DevCluster) -> None:
    sh.ok("policy", "set", "fcfs", "--partition", "far")
    operator.ok("policy", "set", "loops", "--partition", "default")
    for turn in range(2):
        here = sh.submit("-q", "batch", "--", "sleep", "0.1")
        there = sh.submit("-q", "far", "--", "sleep", "600")
        eventually(lambda there=there: runs(cluster, "f1", there), lambda: sh("status"))
        assert sh("wait", here).code == 0  # FCFS has placed it
        told = leaders_log(cluster)
        assert 0 <= told.find(f"{there}_0@f1") < told.find("policy_failed"), f"it has not waited for the plug-in's end: {told[-4000:]}"
        sh.ok("cancel", there)
        status = sh.ok("status")
        assert "partition default: policy loops failed (did not end within" in status.out
        assert "fcfs places jobs in its place until" in status.out
        assert json.loads(sh.ok("queues", "--json").out)["queues"][0]["policy"] == "loops (failed)"
        assert "policy loops failed" in sh("doctor").out
        if not turn:
            before = epoch(cluster)
            cluster.kill(next(name for name in watchdogs(cluster) if cluster.process(name).pid == before.pid))

            eventually(lambda: epoch(cluster).epoch > before.epoch, lambda: sh("status"))  # noqa: B023 - called at once
