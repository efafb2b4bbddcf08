"""`rmgr admin init --close-root` closes the root of a foreign server, and the cluster notices nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.tree import look_at_root
from rmgr.cli.main import run
from rmgr.config import ClusterConfig, Config, SecurityConfig
from rmgr.coord.protocol import acl, paths
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import PermissionDenied
from rmgr.procedures.bootstrap import bootstrap, verify
from rmgr.runtime.secured import zookeeper_options

CHROOT = "/rmgr/lab"


@pytest.fixture
def server(zookeeper_parts: None, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """One of its own: what is closed stays closed."""
    with ZooKeeperServer(tmp_path / "zk", tick_ms=500, heap_mb=64, die_with_parent=True) as started:
        yield started


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RMGR_SECURITY_DIR", "RMGR_CONFIG", "RMGR_ZK", "RMGR_STORE", "RMGR_GATEWAY", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def connected(server: ZooKeeperServer, bundle: Path) -> ZkCoordinator:
    config = Config(cluster=ClusterConfig(zk=f"{server.hosts}{CHROOT}"), security=SecurityConfig(dir=str(bundle)))
    return ZkCoordinator.connect(server.hosts, CHROOT, **zookeeper_options(config, Credentials.load(bundle)))


def test_a_root_is_closed_by_the_admin_and_the_cluster_lives_on_below_it(
    server: ZooKeeperServer, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    close = ["admin", "init", "--dir", str(home / "ca"), "--user", "ops", "--json", "--close-root", "--zookeeper-heap", "64M"]
    assert run(close) == 5  # which ZooKeeper?
    assert "--zk HOSTS" in json.loads(capsys.readouterr().out)["error"]["hint"]
    close += ["--zk", f"{server.hosts}{CHROOT}"]
    with connected(server, home / "ca" / "bundles" / "watchdog") as first:
        bootstrap(first)  # a cluster that was there before
    assert look_at_root(server.hosts, CHROOT, None).is_open
    assert run(close) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["closed"] == ["/", "/rmgr", "/zookeeper", "/zookeeper/quota"]
    assert told["quotas"] == [f"{CHROOT}{root}" for root in acl.SHARES]
    assert run(close) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["closed"], told["quotas"]) == ([], [])
    seen = look_at_root(server.hosts, CHROOT, None)
    assert not seen.is_open
    assert seen.used[paths.QUEUES][0].znodes >= 4  # itself, a queue, its two directories
    assert {place: limit for place, (_, limit) in seen.used.items()} == acl.limits(64)
    with ZkCoordinator.connect(server.hosts, "") as stranger:
        outcome = stranger.commit(Multi(name="T", ops=(Create("/mine"),), proof=Exists("/mine")))
        assert isinstance(outcome.exception(60), PermissionDenied)
    with connected(server, home / "ca" / "bundles" / "watchdog") as leader:
        bootstrap(leader)
        leader.ensure([paths.pending("late")])
        answer = leader.commit(Multi(name="T", ops=(Create("/subs/0"),), proof=Exists("/subs/0"))).result(60)
        assert isinstance(answer, Committed)
    with connected(server, home / "ca" / "bundles" / "starter") as starter:
        verify(starter)
    capsys.readouterr()
    other = ["admin", "init", "--dir", str(home / "two"), "--user", "eve", "--close-root", "--zk", f"{server.hosts}{CHROOT}"]
    assert run(other) == 4
    assert "the access list of / in ZooKeeper belongs to others" in capsys.readouterr().err
