"""Fixtures for every test: a real ZooKeeper server, a fresh chroot in it, a connected coordinator, and a real Cassandra node."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from rmgr.dev import cassandra as cassandra_server
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, missing_parts
from rmgr.runner.host import dispositions
from tests.harness import affected, costs, forked, left_behind, run_stages, second_goes, standing

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from tests.harness.cassandra_nodes import SharedNode


with pytest.MonkeyPatch.context() as patch:
    # Without rich, structlog writes plain tracebacks: one with all local values, as rich draws it, takes up to ten seconds of processor.
    patch.setitem(sys.modules, "rich", None)
    import structlog  # noqa: F401

#: gRPC, which a test may already have loaded, must do nothing at a fork, or it sometimes aborts the child. Connecting programs do the same.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if threading.current_thread() is threading.main_thread():
    # A process started by a script's `&` or by nohup ignores signals, and its children would too. Tests send them, so restore the defaults.
    dispositions.begin(deaf_to=signal.valid_signals())
    forked.install()

#: Examples may take long, because the machine may stand still meanwhile. Hypothesis itself chooses these settings only where CI is set.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: Lines of zoo.cfg for a server that many tests share: a commit takes 1.4 ms instead of 4.9 ms. A killed server still keeps what it
#: has acknowledged, because the machine goes on running. Clusters of `rmgr dev` do wait for the disk.
UNSYNCED = {"forceSync": "no"}

#: Longest bytes or text that a failed comparison prints whole.
_MOST_SHOWN = 20_000


pytest_addoption = affected.pytest_addoption
pytest_ignore_collect = affected.pytest_ignore_collect
pytest_runtest_teardown = standing.pytest_runtest_teardown


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugins of the harness: second goes of tests that failed, stages of a run, costs, stopped and left processes."""
    second_goes.pytest_configure(config)
    run_stages.pytest_configure(config)
    costs.pytest_configure(config)
    standing.pytest_configure(config)
    left_behind.pytest_configure(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Lets the garbage collector rest meanwhile: collected tests live on, and to search them again and again takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freezes the collected tests, which live until the end: the garbage collector skips them, which saves a tenth of a worker's time."""
    gc.collect()
    gc.freeze()


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explains how large bytes or texts differ by their lengths and the first difference, instead of printing them whole."""
    if op != "==" or type(left) is not type(right) or not isinstance(left, bytes | str) or not isinstance(right, bytes | str):
        return None
    if max(len(left), len(right)) <= _MOST_SHOWN:
        return None
    at = next((at for at, (mine, other) in enumerate(zip(left, right, strict=False)) if mine != other), min(len(left), len(right)))
    parts = f"{left[at : at + 40]!r} and {right[at : at + 40]!r}"
    return [f"{len(left)} and {len(right)} {type(left).__name__} differ from position {at} on: {parts}"]


def need_zookeeper(release: str = "") -> None:
    """Skips the test if this release of ZooKeeper cannot run here; fails it if CI=true."""
    _need(missing_parts(release))


def _need(missing: str | None) -> None:
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def zookeeper_parts() -> None:
    """Java and ZooKeeper's jars, of any release; the test is skipped without them."""
    need_zookeeper()


@pytest.fixture(scope="session")
def zookeeper(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One real server for the whole run, with ticks of 500 ms (sessions of 1 to 60 s). Do not stop it; start your own instead."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, config=UNSYNCED, die_with_parent=True) as server:
        yield server


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers of ZooKeeper 3.9 (`zookeeper` is Debian's 3.8) with ticks of 500 ms, for the whole run. Do not stop them."""
    need_zookeeper("3.9")
    where = tmp_path_factory.mktemp("ensemble")
    with ZooKeeperEnsemble(where, tick_ms=500, heap_mb=96, release="3.9", die_with_parent=True) as servers:
        yield servers


@pytest.fixture
def chroot() -> str:
    """A path that no other test uses; `coordinator` creates it."""
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
    """Java, Cassandra's jars and the driver; without them the test is skipped, or fails if CI=true."""
    _need(cassandra_server.missing_parts())


@pytest.fixture(scope="session")
def cassandra(cassandra_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNode]:
    """One real node without passwords, shared by all workers of the run. Do not stop it; start your own instead."""
    from tests.harness.cassandra_nodes import shared_node

    run = tmp_path_factory.getbasetemp()
    with shared_node((run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "cassandra") as node:
        yield node


@pytest.fixture
def keyspace() -> str:
    """A name that no other test uses; a test that creates the keyspace need not drop it."""
    return f"k{uuid.uuid4().hex[:16]}"
