"""What every test may ask for: a real ZooKeeper server, a fresh chroot in it, a connected coordinator."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rmgr.dev.zookeeper import ZooKeeperServer, missing_parts

if TYPE_CHECKING:
    from rmgr.adapters.zk import ZkCoordinator


@pytest.fixture(scope="session")
def zookeeper_parts() -> None:
    """Java and ZooKeeper's jars: without them the test is skipped, and fails where CI=true."""
    missing = missing_parts()
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def zookeeper(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real server for the whole run, ticks of 500 ms (sessions of 1 to 10 s). Do not stop it: start one of your own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, die_with_parent=True) as server:
        yield server


@pytest.fixture
def chroot() -> str:
    """A path that nobody else uses; `coordinator` has created it."""
    return f"/test/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def coordinator(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[ZkCoordinator]:
    """A connected coordinator in the fresh chroot."""
    from rmgr.adapters.zk import ZkCoordinator  # here, so that unit tests do without kazoo

    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=6.0) as coord:
        coord.ensure(["/"])
        yield coord
