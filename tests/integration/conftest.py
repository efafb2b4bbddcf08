"""A whole cluster of real processes for tests of the client: 1 ZooKeeper, 1 WatchDog, 3 Starters of 2 cores each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rmgr.client.connection import Connection
    from rmgr.dev.cluster import DevCluster


@pytest.fixture(scope="session")
def live_cluster(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Shared by the whole run: tests leave it as they found it (three Starters up)."""
    from rmgr.dev.cluster import DevCluster

    with DevCluster(tmp_path_factory.mktemp("live"), nodes=3, cores=2, watchdogs=1, heap_mb=128) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def live(live_cluster: DevCluster) -> Iterator[DevCluster]:
    """The shared cluster, found by `rmgr.connect()` and by every program started here."""
    old = {name: value for name, value in os.environ.items() if name.startswith("RMGR_")}
    mine = live_cluster.environment()
    os.environ.update(mine)
    try:
        yield live_cluster
    finally:
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(old)


@pytest.fixture
def connection(live: DevCluster) -> Iterator[Connection]:
    """A connection of this test's own."""
    import rmgr

    with rmgr.connect() as connection:
        yield connection
