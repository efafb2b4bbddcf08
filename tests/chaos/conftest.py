"""Fixtures of the chaos tests: clusters that a test may break, each new or shared by the run and healed before the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from breakable import TICK, Chaos, T, eventually

from rmgr.client.connection import Connection
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.model.cluster.queue import UserLimits
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
def cluster_of_run(breakable_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Chaos]]:
    """Starts a cluster of nodes with two cores each, which ends with the run."""
    with ExitStack() as ends:

        def make(name: str, *, nodes: int = 2, watchdogs: int = 1, session_timeout_s: float = 0.0) -> Chaos:
            made = Chaos(tmp_path_factory.mktemp(name), guest_of=breakable_zookeeper.start(), session_timeout_s=session_timeout_s)
            ends.callback(made.stop)
            made.start(nodes=nodes, cores=2, watchdogs=watchdogs)
            return made

        yield make


@pytest.fixture(scope="session")
def pair_of_run(cluster_of_run: Callable[..., Chaos]) -> Chaos:
    """One cluster for all tests that take `pair`."""
    return cluster_of_run("pair")


@pytest.fixture
def pair(pair_of_run: Chaos, breakable_zookeeper: ZooKeeperServer) -> Iterator[Chaos]:
    """Two idle nodes of two cores each, n1 and n2; the test may add others."""
    pair_of_run.heal(n1=2, n2=2)
    yield pair_of_run
    breakable_zookeeper.resume()


@pytest.fixture
def led(pair: Chaos) -> Chaos:
    """The pair of nodes, with two WatchDogs."""
    return with_two_watchdogs(pair)


@pytest.fixture(scope="session")
def brief_of_run(cluster_of_run: Callable[..., Chaos]) -> Chaos:
    """One cluster for all tests that take `brief`."""
    return cluster_of_run("brief", watchdogs=2, session_timeout_s=T)


@pytest.fixture
def brief(brief_of_run: Chaos, breakable_zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """As `led`, but ZooKeeper itself ends sessions after T: for tests about T, or about a ZooKeeper that is away for longer.

    Parameter: cores of each node.
    """
    cores = getattr(request, "param", 2)
    brief_of_run.heal(n1=cores, n2=cores)
    yield with_two_watchdogs(brief_of_run)
    breakable_zookeeper.resume()


def with_two_watchdogs(made: Chaos) -> Chaos:
    """Returns the cluster with two live WatchDogs; those that earlier tests have killed are replaced under new names."""
    living = [process for process in made.cluster.state.processes if process.role == "watchdog" and process.state != "dead"]
    for process in living[2:]:
        made.cluster.kill(process.id)
    for _ in range(2 - len(living)):
        made.new_watchdog()
    eventually("two WatchDogs stand for election", lambda: made.snapshot().watchdogs == 2 and made.leader(), within=60)
    return made


@pytest.fixture(scope="session")
def three_of_run(cluster_of_run: Callable[..., Chaos]) -> Chaos:
    """One cluster for all tests that take `three_nodes`."""
    return cluster_of_run("three", nodes=3)


@pytest.fixture
def three_nodes(three_of_run: Chaos) -> Chaos:
    """Three idle nodes of two cores each, n1 to n3."""
    three_of_run.heal(n1=2, n2=2, n3=2)
    return three_of_run


@pytest.fixture
def wide_pair(three_of_run: Chaos, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """Two idle nodes, n1 and n2, and two WatchDogs. Parameter: cores of each node (4). The test may set another policy."""
    cores = getattr(request, "param", 4)
    three_of_run.heal(n1=cores, n2=cores)
    yield with_two_watchdogs(three_of_run)
    three_of_run.rmgr("policy", "set", "easy")


@pytest.fixture(scope="session")
def keys_of_run(cluster_of_run: Callable[..., Chaos]) -> Iterator[tuple[Chaos, Connection]]:
    """One cluster for all tests that take `keys_town`, and a connection to it."""
    made = cluster_of_run("keys", nodes=1)
    with made.connection() as connection:
        yield made, connection


@pytest.fixture
def keys_town(keys_of_run: tuple[Chaos, Connection]) -> tuple[Chaos, Connection]:
    """One idle node of two cores, n1, and a connection to its cluster."""
    keys_of_run[0].heal(n1=2)
    return keys_of_run


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
    """One secured cluster for all tests that take `scene`."""
    with closing(Scene(tmp_path_factory.mktemp("attacks"))) as made:
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
def scenes(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Flooded]]:
    """Returns the shared scene with a gateway, or a new one if a test has broken it."""
    made: list[Flooded] = []

    def get() -> Flooded:
        if made and made[-1].broken:
            made.pop().close()
        if not made:
            made.append(Flooded(tmp_path_factory.mktemp("bounds")))
        return made[-1]

    yield get
    for one in made:
        one.close()


@pytest.fixture
def flooded(scenes: Callable[[], Flooded]) -> Iterator[Flooded]:
    """The shared scene with a gateway; checks that the gateway answers after the test."""
    scene = scenes()
    yield scene
    if not scene.broken:
        scene.until_told("the gateway answers after the test", lambda told: not told.problem)


@pytest.fixture
def limited(flooded: Flooded) -> Iterator[Callable[..., Flooded]]:
    """Sets limits of users by name, for one test."""

    def made(**limits: int) -> Flooded:
        flooded.set_limits(UserLimits(**limits))
        return flooded

    yield made
    if not flooded.broken:
        flooded.set_limits(UserLimits())
