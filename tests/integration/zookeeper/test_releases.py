"""A whole cluster works on each release of ZooKeeper, on one server and on three (the latter secured, by TLS).

Debian's 3.8 on one server is what every other test runs on, on three servers what tests/chaos/test_ensemble.py runs on: here it is for
`tests/long.sh`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rmgr
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperEnsemble
from tests.conftest import need_zookeeper
from tests.harness.ended_sessions import LONG_S


def square(number: int) -> int:
    return number * number


@pytest.mark.parametrize(("release", "servers"), [pytest.param("3.8", 3, marks=pytest.mark.long), ("3.9", 1), ("3.9", 3)])
def test_work_is_submitted_run_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, servers: int) -> None:
    need_zookeeper(release)
    is_secured = (release, servers) == ("3.9", 3)  # as production runs: TLS to the ensemble, on top of access lists
    options = {"zookeepers": servers, "zookeeper_release": release, "secured": is_secured, "zookeeper_tls": is_secured}
    with DevCluster(tmp_path / "dev", nodes=1, watchdogs=1, heap_mb=96, **options, session_timeout_s=LONG_S) as cluster:
        for name in [name for name in os.environ if name.startswith("RMGR_")]:
            monkeypatch.delenv(name)
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        version = cluster.zookeeper.version() if servers == 1 else cluster.zookeeper.servers[0].version()
        assert version.startswith(release)
        with rmgr.connect(), rmgr.TaskQueue(square) as queue:
            assert [future.result(60) for future in queue.map(None, range(20))] == [number * number for number in range(20)]
            if isinstance(cluster.zookeeper, ZooKeeperEnsemble):  # and without the server that leads
                leader = cluster.zookeeper.leader()
                leader.kill()
                assert [future.result(60) for future in queue.map(None, range(20, 40))] == [number * number for number in range(20, 40)]
