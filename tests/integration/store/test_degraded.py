"""A cluster without its data store: daemons start and report it, configuration errors end them, `rmgr dev` starts a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.stores import open_store
from rmgr.dev.cluster import DevCluster
from rmgr.dev.keeper import read_state
from rmgr.dev.zookeeper import ZooKeeperServer, free_port
from rmgr.errors import Unavailable
from tests.harness.cassandra_nodes import SharedNode
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually
from tests.integration.commands import Ended, Shell


@pytest.fixture(scope="module")
def storeless(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster that has never seen its store."""
    pytest.importorskip("cassandra")
    store = f"cassandra://127.0.0.1:{free_port()}/rmgr"
    where = tmp_path_factory.mktemp("storeless")
    with DevCluster(where, nodes=1, watchdogs=1, store=store, guest_of=zookeeper, session_timeout_s=LONG_S) as cluster:
        yield cluster


@pytest.fixture
def sh(storeless: DevCluster, tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home", storeless.environment())


def test_daemons_start_without_the_store_and_every_view_says_so(sh: Shell) -> None:
    def told() -> Ended | None:
        """A WatchDog that has just started may still be at its first question to the store."""
        status = sh("status", "--json")
        return status if status.json["store"]["problem"].startswith("away since ") else None

    status = eventually(told, lambda: sh("status"))
    assert status.code == 1
    assert status.json["healthy"] is False
    assert status.json["store"]["since"].endswith("Z")

    def nodes() -> list[tuple[str, str]]:
        return [(node["state"], node["reason"].partition(" since")[0]) for node in sh.ok("nodes", "--json").json["nodes"]]

    eventually(lambda: nodes() == [("up", "data store away")], nodes)
    doctor = sh("doctor", "--json")
    check = next(check for check in doctor.json["checks"] if check["name"] == "store")
    assert (doctor.code, check["ok"]) == (1, False)
    assert "comes back by itself" in check["fix"]
    assert sh.ok("jobs", "--json").json["jobs"] == []


def test_submit_is_refused_at_once_and_nothing_is_left_of_it(sh: Shell) -> None:
    refused = sh("submit", "--json", "--", "true")
    assert (refused.code, refused.error["code"]) == (5, "UNAVAILABLE")
    assert "the data store is away" in refused.error["message"]
    assert "Cassandra at 127.0.0.1" in refused.error["message"]
    assert sh.ok("jobs", "--json").json["jobs"] == []


def test_the_python_api_is_refused_likewise(sh: Shell) -> None:
    script = "import rmgr\nwith rmgr.TaskQueue(print) as queue:\n    queue.submit_call(1)\n"
    words = [sys.executable, "-c", script]
    ended = subprocess.run(words, env=sh.environment, cwd=sh.directory, capture_output=True, text=True, timeout=60, check=False)
    assert "StoreUnavailable" in ended.stderr


def test_a_gateway_starts_without_the_store_and_measures_that(storeless: DevCluster, tmp_path: Path) -> None:
    with GatewayProcess(storeless.daemon_environment("submitter", "g1"), tmp_path) as gateway:
        text = urllib.request.urlopen(f"http://{gateway.metrics}/metrics", timeout=60).read().decode()
        assert "rmgr_store_up 0.0" in text
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            urllib.request.urlopen(f"http://{gateway.metrics}/healthz", timeout=60)
        assert "data store: " in refused.value.read().decode()


def refusal(cluster: DevCluster, store: str) -> Unavailable:
    """Why a daemon of the cluster does not start with another store."""
    cluster.start_watchdog("w2", environment={"RMGR_STORE": store})
    eventually(lambda: cluster.process("w2").find() is None, "it ends")
    with pytest.raises(Unavailable) as caught:
        cluster.wait_healthy(nodes=1, deadline_s=60)
    return caught.value


def test_a_keyspace_without_tables_ends_a_daemon_with_what_to_type(storeless: DevCluster, cassandra: SharedNode, keyspace: str) -> None:
    refused = refusal(storeless, f"cassandra://{cassandra.contact}/{keyspace}")
    assert keyspace in refused.message
    assert "rmgr admin init-store" in refused.hint


def test_the_store_of_another_cluster_ends_a_daemon(storeless: DevCluster, cassandra: SharedNode, keyspace: str) -> None:
    from rmgr.adapters.cassandra.setup import init_store
    from rmgr.adapters.cassandra.url import parse_url

    url = f"cassandra://{cassandra.contact}/{keyspace}?replication_factor=1"
    init_store(parse_url(url), timeout_s=60)
    store = open_store(url)
    store.bind_cluster("0" * 32)
    store.close()
    assert "0" * 32 in refusal(storeless, url).message


@pytest.mark.slow
def test_rmgr_dev_brings_its_own_cassandra_and_takes_it_away(cassandra_parts: None, zookeeper_parts: None, tmp_path: Path) -> None:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # where the jars are
    sh = Shell(tmp_path / "home", {"XDG_CACHE_HOME": cache})
    try:
        up = sh("--store", "cassandra", "dev", "--nodes", "1", "--watchdogs", "1", "--detach", timeout_s=120)
        assert up.code == 0, up.err
        assert "1 Cassandra node" in up.out
        state = json.loads(sh.ok("dev", "status", "--json").out)
        assert state["store"].startswith("cassandra://127.0.0.1:")
        assert {process["role"]: process["state"] for process in state["processes"]}["cassandra"] == "running"
        assert sh.ok("submit", "--wait", "--", "echo", "hello").out == "hello\n"
    finally:
        recorded = read_state(tmp_path / "home" / ".rmgr" / "dev")
        sh("dev", "stop")
    assert recorded is not None
    assert [process.id for process in recorded.processes if process.find() is not None] == []


def test_rmgr_dev_says_what_is_missing_for_cassandra(zookeeper_parts: None, tmp_path: Path) -> None:
    sh = Shell(tmp_path / "home", {"RMGR_CASSANDRA_LIB": str(tmp_path)})
    ended = sh("--store", "cassandra", "dev", "--detach")
    assert ended.code == 5
    assert "unset it: rmgr dev --store cassandra fetches them into" in ended.err
