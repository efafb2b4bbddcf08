"""What every test may ask for: a real ZooKeeper server, a fresh chroot in it, a connected coordinator; a real Cassandra."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from rmgr.dev import cassandra as cassandra_server
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, missing_parts
from rmgr.runner.host import dispositions
from tests.harness.second_goes import pytest_configure, pytest_sessionfinish, pytest_terminal_summary  # noqa: F401 - hooks

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from tests.harness.cassandra_nodes import SharedNode


if threading.current_thread() is threading.main_thread():
    # Started by a script's `&` or by nohup this process ignores signals that tests send to their children: those begin with the defaults.
    dispositions.begin(deaf_to=signal.valid_signals())

#: Everywhere, as Hypothesis has it by itself only where CI is set: an example may take long, the machine may have stood still meanwhile.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

#: Tests of real processes against real clocks. Beside two other workers, on a machine that may stand still for seconds, one of thousands
#: misses its time now and then; run again by itself it is a verdict on rmgr. The end of the run counts and names each of them
#: (tests/harness/second_goes.py); what fails twice fails the run.
_REAL = ("tests/chaos/", "tests/integration/")


#: The files that take longest, and then the trees: so no worker is left alone with a long file at the end, and files that wait for
#: processes run beside files that compute. A file that is missing here costs time, nothing else.
_LONGEST = (
    "tests/chaos/test_store.py",
    "tests/chaos/test_starters.py",
    "tests/chaos/test_zookeeper.py",
    "tests/chaos/test_leaders.py",
    "tests/integration/leader/test_watchdog.py",
    "tests/chaos/test_submitters.py",
    "tests/chaos/test_ensemble.py",
    "tests/chaos/test_applications.py",
    "tests/chaos/test_placed.py",
    "tests/integration/store/test_cassandra_outage.py",
    "tests/integration/cli/test_cluster.py",
    "tests/papers/test_reference_schedules.py",
    "tests/integration/gateway/test_live.py",
    "tests/integration/runner/test_containment.py",
    "tests/integration/security/test_secured_cluster.py",
    "tests/integration/starter/test_resources_live.py",
    "tests/property/test_placing_failover.py",
    "tests/chaos/",
    "tests/integration/",
    "tests/property/",
    "tests/test_house.py",
    "tests/papers/",
)

#: Of bytes and texts that are compared, larger ones are not printed.
_MOST_SHOWN = 20_000


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Real processes get a second go; what is computed never does. Several workers take the longest files first."""
    for item in items:
        if item.nodeid.startswith(_REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: next((at for at, name in enumerate(_LONGEST) if item.nodeid.startswith(name)), len(_LONGEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A second go has its own time limit: the timer of the first has fired, and a test that hangs would hang the run."""
    if getattr(item, "execution_count", 1) > 1:  # of pytest-rerunfailures
        settings = pytest_timeout._get_item_settings(item)
        if settings.timeout and not settings.func_only:
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)


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
    """One real server for the whole run, ticks of 500 ms (sessions of 1 to 10 s). Do not stop it: start one of your own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, die_with_parent=True) as server:
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

    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=6.0) as coord:
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
