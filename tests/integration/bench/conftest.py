"""Fixtures for tests of benches: their clusters survive a machine that stands still, and may share the tests' ZooKeeper."""

from __future__ import annotations

import pytest

from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.ended_sessions import LONG_S


@pytest.fixture(autouse=True)
def long_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives long sessions to all clusters whose bench sets no session timeout."""
    monkeypatch.setitem(DevCluster.__init__.__kwdefaults__, "session_timeout_s", LONG_S)


@pytest.fixture
def guests(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets clusters use the shared ZooKeeper: for benches that do not measure it as a process."""
    monkeypatch.setitem(DevCluster.__init__.__kwdefaults__, "guest_of", zookeeper)
