"""Fixtures of the chaos tests: clusters that a test may break, each new or shared by the run and healed before the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from breakable import TICK, Chaos, T

from rmgr.client.connection import Connection
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.queue import UserLimits
from tests.conftest import UNSYNCED
from tests.harness.attacker import Scene
from tests.harness.besieged import Besieged
from tests.harness.flooded import Flooded


@pytest.fixture(scope="session")
def breakable_zookeeper(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for all chaos tests; a test may kill or pause it, but not remove its data."""
    where = tmp_path_factory.mktemp("breakable")
    with ZooKeeperServer(where, tick_ms=round(TICK * 1000), config=UNSYNCED, die_with_parent=True) as server:
        yield server


@pytest.fixture
def chaos(breakable_zookeeper: ZooKeeperServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """A cluster below its own path in the shared ZooKeeper; the test itself starts its processes.

    Parameter: session timeout (s), for tests that let ZooKeeper itself end sessions.
    """
    made = Chaos(tmp_path, guest_of=breakable_zookeeper.start(), session_timeout_s=getattr(request, "param", 0.0))
    try:
        yield made
    finally:
        breakable_zookeeper.resume()
        made.stop()


@pytest.fixture(scope="session")
def cluster_of_run(breakable_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    """One cluster for all tests of a worker that take `pair`, `led`, `three_nodes`, `wide_pair` or `keys_town`, or heal it themselves."""
    yield from _started(tmp_path_factory.mktemp("shared"), breakable_zookeeper)


@pytest.fixture(scope="session")
def brief_of_run(breakable_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    """One cluster for all tests of a worker that take `brief`."""
    yield from _started(tmp_path_factory.mktemp("brief"), breakable_zookeeper, session_timeout_s=T)


def _started(where: Path, zookeeper: ZooKeeperServer, *, session_timeout_s: float = 0.0) -> Iterator[Chaos]:
    made = Chaos(where, guest_of=zookeeper.start(), session_timeout_s=session_timeout_s)
    try:
        made.start(nodes=2, cores=2, watchdogs=1)
        yield made
    finally:
        made.stop()


@pytest.fixture
def pair(cluster_of_run: Chaos, breakable_zookeeper: ZooKeeperServer) -> Iterator[Chaos]:
    """Two idle nodes of two cores each, n1 and n2; the test may add others."""
    cluster_of_run.heal(n1=2, n2=2)
    yield cluster_of_run
    breakable_zookeeper.resume()


@pytest.fixture
def led(pair: Chaos) -> Chaos:
    """The pair of nodes, with two WatchDogs."""
    return pair.with_two_watchdogs()


@pytest.fixture
def three_nodes(cluster_of_run: Chaos) -> Chaos:
    """Three idle nodes of two cores each, n1 to n3."""
    cluster_of_run.heal(n1=2, n2=2, n3=2)
    return cluster_of_run


@pytest.fixture
def wide_pair(cluster_of_run: Chaos, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """Two idle nodes, n1 and n2, and two WatchDogs. Parameter: cores of each node (4). The test may set another policy."""
    cores = getattr(request, "param", 4)
    cluster_of_run.heal(n1=cores, n2=cores)
    yield cluster_of_run.with_two_watchdogs()
    cluster_of_run.rmgr("policy", "set", "easy")


@pytest.fixture
def keys_town(cluster_of_run: Chaos) -> Iterator[tuple[Chaos, Connection]]:
    """One idle node of two cores, n1, and a connection to its cluster."""
    cluster_of_run.heal(n1=2)
    with cluster_of_run.connection() as connection:
        yield cluster_of_run, connection


@pytest.fixture
def brief(brief_of_run: Chaos, breakable_zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """As `led`, but ZooKeeper itself ends sessions after T: for tests about T, or about a ZooKeeper that is away for longer.

    Parameter: cores of each node.
    """
    cores = getattr(request, "param", 2)
    brief_of_run.heal(n1=cores, n2=cores)
    yield brief_of_run.with_two_watchdogs()
    breakable_zookeeper.resume()


@pytest.fixture
def lone(zookeeper_parts: None, tmp_path: Path) -> Iterator[Chaos]:
    """As `chaos`, but with its own ZooKeeper, whose data the test may remove."""
    made = Chaos(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def attacked(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One secured cluster for all tests that take `scene` or `flooded`."""
    with closing(Scene(tmp_path_factory.mktemp("attacks"))) as made:
        made.outcomes(made.submit())  # ann is known from here on
        yield made


@pytest.fixture
def scene(attacked: Scene) -> Iterator[Scene]:
    """The secured cluster, with the canary file absent, which a successful attack would leave."""
    attacked.canary.unlink(missing_ok=True)
    yield attacked
    attacked.canary.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def sieges() -> Iterator[Callable[[], Besieged]]:
    """Returns the shared cluster for attacks with validly signed work, or a new one if an attack has succeeded."""
    made: list[Besieged] = []

    def get() -> Besieged:
        if made and made[-1].broken:
            made.pop().__exit__(None, None, None)
        if not made:
            made.append(Besieged().__enter__())
        return made[-1]

    yield get
    for one in made:
        one.__exit__(None, None, None)


@pytest.fixture(scope="session")
def gateways(attacked: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Flooded]]:
    """Returns the shared gateway of the secured cluster, or a new one if a test has broken it."""
    made: list[Flooded] = []

    def get() -> Flooded:
        if made and made[-1].broken:
            made.pop().close()
        if not made:
            made.append(Flooded(attacked, tmp_path_factory.mktemp("bounds")))
        return made[-1]

    yield get
    for one in made:
        one.close()


@pytest.fixture
def flooded(gateways: Callable[[], Flooded]) -> Iterator[Flooded]:
    """The shared gateway; checks that it answers after the test."""
    made = gateways()
    yield made
    if not made.broken:
        made.until_told("the gateway answers after the test", lambda told: not told.problem)


@pytest.fixture
def limited(flooded: Flooded) -> Iterator[Callable[..., Flooded]]:
    """Sets limits of users by name, for one test."""

    def made(**limits: int) -> Flooded:
        flooded.set_limits(UserLimits(**limits))
        return flooded

    yield made
    if not flooded.broken:
        flooded.set_limits(UserLimits())
