"""A server with a small heap and full quotas goes on: it accepts writes and reads, and starts again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.protocol import acl
from rmgr.coord.protocol.multi import Committed, Create, Exists, Multi, Outcome, Set
from rmgr.dev.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.xdist_group("zk_full")

HEAP_MIB = 128
#: What a request carries, and a znode's own bytes in it.
_REQUEST, _NAME = 40_000, 40


def commit(zk: ZkCoordinator, *ops: Create | Set) -> Outcome:
    return zk.commit(Multi(name="FILL", ops=ops, proof=Exists(ops[0].path)), timeout_s=60).result(70)


def test_a_server_with_a_small_heap_stands_with_all_quotas_full(zookeeper_parts: None, tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zk", heap_mb=HEAP_MIB, tick_ms=2000) as server:
        with ZkCoordinator.connect(server.hosts, "", session_timeout_s=30) as zk:
            for root, quota in acl.limits(HEAP_MIB).items():
                assert isinstance(commit(zk, Create(root)), Committed)
                size = quota.data_bytes // quota.znodes
                count = max(1, _REQUEST // (size + _NAME))
                names = [f"{root}/n-{at:032d}" for at in range(quota.znodes)]
                for at in range(0, len(names), count):
                    assert isinstance(commit(zk, *(Create(name, os.urandom(size)) for name in names[at : at + count])), Committed), root
            assert isinstance(commit(zk, Create("/last")), Committed)
            for _ in range(600):  # more than it keeps
                assert isinstance(commit(zk, Set("/last", os.urandom(16_000), -1)), Committed)
        server.stop()
        server.start()
        with ZkCoordinator.connect(server.hosts, "", session_timeout_s=30) as zk:
            assert zk.get("/last", timeout_s=60).result(70) is not None
