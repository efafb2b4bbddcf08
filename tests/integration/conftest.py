"""Fixtures of the integration tests: a whole cluster (1 ZooKeeper, 1 WatchDog, 3 Starters of 2 cores each), and parts of clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.run_stages import INTEGRATION, stage_of
from tests.harness.store_adapters import ADAPTERS, Adapter, open_adapter, ready

if TYPE_CHECKING:
    from rmgr.adapters.host.accounts import Account
    from rmgr.adapters.host.process import Slot
    from rmgr.adapters.host.slot import Worker
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.client.connection import Connection
    from rmgr.coord.protocol.ports import Store
    from rmgr.dev.cluster import DevCluster
    from rmgr.dev.zookeeper import ZooKeeperServer
    from tests.harness.local_accounts import LocalAccounts
    from tests.harness.starter_rig import Rig
    from tests.harness.work_node import WorkNode
    from tests.integration.commands import Lend, Shell


#: The clusters of the run that only integration tests use.
_clusters = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ends the clusters after a worker's last integration test: idle ones take 2 % of a processor each, which chaos needs."""
    if nextitem is None or stage_of(nextitem.nodeid) != INTEGRATION:
        _clusters.close()


@pytest.fixture(scope="session")
def live_cluster(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """The cluster shared by the whole run; tests leave it as they found it (three Starters up)."""
    from rmgr.dev.cluster import DevCluster
    from tests.harness.ended_sessions import LONG_S, expiring

    where = tmp_path_factory.mktemp("live")
    cluster = _clusters.enter_context(DevCluster(where, nodes=3, cores=2, watchdogs=1, heap_mb=128, session_timeout_s=LONG_S))
    _clusters.enter_context(expiring(cluster))
    yield cluster
    _clusters.close()


def end_work(cluster: DevCluster) -> None:
    """Cancels all work of a cluster, which would take the cores that the next test, or the second go of a failed test, needs."""
    _tell(cluster, "cancel", "--state", "INITIAL,HELD,STARTING,RUNNING,SUSPENDED")


def _tell(cluster: DevCluster, *words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RMGR_")} | cluster.environment()
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-m", "rmgr.cli.main", *words], env=environment, timeout=60, check=False, capture_output=True)


@pytest.fixture(autouse=True)
def nothing_left_by_what_failed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancels the work that a failed test has left in its cluster, after the test's own fixtures: its second go uses the same cluster."""
    yield
    if not getattr(request.node, "has_failed", False):
        return
    from rmgr.dev.cluster import DevCluster

    found = [value for one in request.node.funcargs.values() for value in (one if isinstance(one, tuple) else (one,))]
    for cluster in {id(value): value for value in found if isinstance(value, DevCluster)}.values():
        end_work(cluster)


def pytest_exception_interact(node: pytest.Item) -> None:
    """Marks the test as failed."""
    node.has_failed = True  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def live(live_cluster: DevCluster) -> Iterator[DevCluster]:
    """The shared cluster, in whose environment `rmgr.connect()` and all programs of the test run."""
    old = {name: value for name, value in os.environ.items() if name.startswith("RMGR_")}
    mine = live_cluster.environment()
    os.environ.update(mine)
    try:
        yield live_cluster
    finally:
        end_work(live_cluster)
        for name in mine:
            os.environ.pop(name, None)
        os.environ.update(old)


@pytest.fixture(scope="session")
def lend_secured(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lend]:
    """Lends one secured cluster of the run, with a WatchDog and no node, to one borrower at a time.

    With the loan end the borrower's processes other than WatchDogs, its work and its settings.
    Nodes of earlier loans stay listed as stopped.
    """
    from rmgr.dev.cluster import DevCluster
    from rmgr.dev.keeper import stop_processes
    from tests.harness.cluster_settings import read_settings, write_settings
    from tests.harness.ended_sessions import LONG_S, expiring

    @contextmanager
    def lend() -> Iterator[DevCluster]:
        usual = read_settings(cluster.coordinator)
        try:
            yield cluster
        finally:
            borrowed = [process for process in cluster.state.processes if process.role != "watchdog"]
            if borrowed:
                end_work(cluster)
            if drained := cluster.snapshot(submissions=False).drains:
                _tell(cluster, "resume", *drained)
            stop_processes(replace(cluster.state, processes=tuple(borrowed)))
            watchdogs = tuple(one for one in cluster.state.processes if one not in borrowed and one.state != "dead")
            cluster.state = replace(cluster.state, processes=watchdogs, gateway="")
            for process in borrowed:
                cluster.log_file(process.id).unlink()
            write_settings(cluster.coordinator, usual)

    where = tmp_path_factory.mktemp("secured")
    made = DevCluster(where, nodes=0, watchdogs=1, secured=True, guest_of=zookeeper, session_timeout_s=LONG_S)
    cluster = _clusters.enter_context(made)
    _clusters.enter_context(expiring(cluster))
    yield lend
    _clusters.close()


@pytest.fixture(scope="session")
def calls_cluster(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """One open cluster of the run, with a WatchDog and no node: for `Called`, which adds a gateway and servers."""
    from tests.harness.called import cluster_for_calls

    yield _clusters.enter_context(cluster_for_calls(tmp_path_factory.mktemp("calls"), zookeeper))
    _clusters.close()


@pytest.fixture
def secured(lend_secured: Lend) -> Iterator[DevCluster]:
    """The lent cluster, for one test."""
    with lend_secured() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sh(live_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A user of the shared cluster, with one home for each test file."""
    from tests.integration.commands import Shell

    return Shell(tmp_path_factory.mktemp("user"), live_cluster.environment())


@pytest.fixture
def connection(live: DevCluster) -> Iterator[Connection]:
    """A connection for this test alone."""
    import rmgr

    with rmgr.connect() as connection:
        yield connection


# -- Starters without a leader, and accounts on the machine ------------------------------------------------------------------


@pytest.fixture
def rig(coordinator: ZkCoordinator, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path) -> Iterator[Rig]:
    from tests.harness.starter_rig import Rig

    with Rig(coordinator, zookeeper.hosts, chroot, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def accounts() -> Iterator[LocalAccounts]:
    from tests.harness.local_accounts import LocalAccounts
    from tests.harness.reachable import work_that_users_reach

    with LocalAccounts() as made, work_that_users_reach():
        yield made


@pytest.fixture(scope="module")
def group(accounts: LocalAccounts) -> str:
    return accounts.make_group("g")


@pytest.fixture(scope="module")
def anna(accounts: LocalAccounts, group: str) -> Account:
    return accounts.make("a", group=group)


@pytest.fixture(scope="module")
def ben(accounts: LocalAccounts) -> Account:
    return accounts.make("b")


@pytest.fixture(scope="module")
def place(accounts: LocalAccounts) -> Iterator[Path]:
    from tests.harness.reachable import open_place

    with open_place() as directory:
        yield directory


# -- data stores of each kind ---------------------------------------------------------------------------------------------


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ready(request)


@pytest.fixture
def store(adapter: Adapter, tmp_path: Path) -> Iterator[Store]:
    opened = open_adapter(adapter, tmp_path)
    yield opened
    opened.close()


# -- the runner's side of a node without a cluster, one per module ---------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkNode]:
    from tests.harness.work_node import WorkNode

    with WorkNode(tmp_path_factory.mktemp("node") / "run") as node:
        yield node


@pytest.fixture(scope="module")
def slot(node: WorkNode) -> Slot:
    return node.slot(0)


@pytest.fixture(scope="module")
def shared_workers(node: WorkNode, slot: Slot) -> list[Worker]:
    return []


@pytest.fixture
def worker(node: WorkNode, slot: Slot, shared_workers: list[Worker]) -> Iterator[Worker]:
    """One worker for all tests of a file, replaced when a test leaves work in it."""
    if not shared_workers:
        shared_workers.append(node.worker(slot))
    worker = shared_workers[0]
    yield worker
    if worker.load or worker.is_leaving:
        worker.stop(grace_us=0)
        shared_workers.clear()


@pytest.fixture
def fresh(node: WorkNode, slot: Slot) -> Iterator[Worker]:
    """A worker that the test may break."""
    worker = node.worker(slot)
    yield worker
    worker.stop(grace_us=0)
