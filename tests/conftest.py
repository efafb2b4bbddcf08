"""What every test may ask for: a real ZooKeeper server, a fresh chroot in it, a connected coordinator; a real Cassandra."""

from __future__ import annotations

import gc
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from rmgr.dev import cassandra as cassandra_server
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, missing_parts
from rmgr.runner.host import dispositions
from tests.harness import affected, costs, forked, run_stages, second_goes, standing

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from tests.harness.cassandra_nodes import SharedNode


#: As a program that connects has it: gRPC, which a test may have loaded before, does nothing at a fork. Else it aborts a child at times.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if threading.current_thread() is threading.main_thread():
    # Started by a script's `&` or by nohup this process ignores signals that tests send to their children: those begin with the defaults.
    dispositions.begin(deaf_to=signal.valid_signals())
    forked.install()

#: Everywhere, as Hypothesis has it by itself only where CI is set: an example may take long, the machine may have stood still meanwhile.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: Lines of zoo.cfg of a server that many tests share: a commit takes 1.4 ms instead of 4.9 ms. What a killed server has acknowledged is
#: there all the same, since the machine goes on; a cluster of `rmgr dev` waits for its disk.
UNSYNCED = {"forceSync": "no"}

#: Of bytes and texts that are compared, larger ones are not printed.
_MOST_SHOWN = 20_000


pytest_addoption = affected.pytest_addoption
pytest_ignore_collect = affected.pytest_ignore_collect
pytest_runtest_teardown = standing.pytest_runtest_teardown


def pytest_configure(config: pytest.Config) -> None:
    """Tests of real processes that fail have another go at the end; stages come one after another."""
    second_goes.pytest_configure(config)
    run_stages.pytest_configure(config)
    costs.pytest_configure(config)
    standing.pytest_configure(config)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: searches for cycles leave it out, which is a tenth of a worker's time."""
    gc.collect()
    gc.freeze()


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Large bytes and texts that differ: how long they are and where they part, instead of all of them in the log."""
    if op != "==" or type(left) is not type(right) or not isinstance(left, bytes | str) or not isinstance(right, bytes | str):
        return None
    if max(len(left), len(right)) <= _MOST_SHOWN:
        return None
    at = next((at for at, (mine, other) in enumerate(zip(left, right, strict=False)) if mine != other), min(len(left), len(right)))
    parts = f"{left[at : at + 40]!r} and {right[at : at + 40]!r}"
    return [f"{len(left)} and {len(right)} {type(left).__name__} differ from position {at} on: {parts}"]


def need_zookeeper(release: str = "") -> None:
    """Skips the test where this release of ZooKeeper cannot run; fails it where CI=true."""
    _need(missing_parts(release))


def _need(missing: str | None) -> None:
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def zookeeper_parts() -> None:
    """Java and ZooKeeper's jars, of whatever release."""
    need_zookeeper()


@pytest.fixture(scope="session")
def zookeeper(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real server for the whole run, ticks of 500 ms (sessions of 1 to 60 s). Do not stop it: start one of your own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, config=UNSYNCED, die_with_parent=True) as server:
        yield server


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers of ZooKeeper 3.9 (`zookeeper` is Debian's 3.8), ticks of 500 ms. Do not stop them either."""
    need_zookeeper("3.9")
    where = tmp_path_factory.mktemp("ensemble")
    with ZooKeeperEnsemble(where, tick_ms=500, heap_mb=96, release="3.9", die_with_parent=True) as servers:
        yield servers


@pytest.fixture
def chroot() -> str:
    """A path that nobody else uses; `coordinator` has created it."""
    return f"/test/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def coordinator(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[ZkCoordinator]:
    """A connected coordinator in the fresh chroot."""
    from rmgr.adapters.zookeeper.client import ZkCoordinator  # here, so that unit tests do without kazoo
    from tests.harness.ended_sessions import LONG_S

    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=LONG_S) as coord:
        coord.ensure(["/"])
        yield coord


@pytest.fixture(scope="session")
def cassandra_parts() -> None:
    """Java 17, Cassandra's jars and the driver: without them the test is skipped, and fails where CI=true."""
    _need(cassandra_server.missing_parts())


@pytest.fixture(scope="session")
def cassandra(cassandra_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNode]:
    """One real node for the whole run, without passwords, shared by all workers of it. Do not stop it: start one of your own."""
    from tests.harness.cassandra_nodes import shared_node

    run = tmp_path_factory.getbasetemp()
    with shared_node((run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "cassandra") as node:
        yield node


@pytest.fixture
def keyspace() -> str:
    """A name that no other test uses; who creates the keyspace need not drop it."""
    return f"k{uuid.uuid4().hex[:16]}"
