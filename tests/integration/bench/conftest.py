"""Clusters that benches start here outlive a machine that stands still, and may be guests of the ZooKeeper that tests share."""

from __future__ import annotations

import pytest

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S


@pytest.fixture(autouse=True)
def long_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all clusters whose bench does not say how long sessions last."""
    monkeypatch.setitem(DevCluster.__init__.__kwdefaults__, "session_timeout_s", LONG_S)


@pytest.fixture
def guests(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters share a ZooKeeper: for benches that do not look at it as a process."""
    monkeypatch.setitem(DevCluster.__init__.__kwdefaults__, "guest_of", zookeeper)
