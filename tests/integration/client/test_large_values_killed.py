"""Transfers above 256 MiB whose client, gateway or Starter is killed halfway stay invisible, and the sweep removes all rows."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cloudpickle
import pytest

import rmgr
from rmgr.adapters import store_rules
from rmgr.adapters.cassandra.store import SWEPT
from rmgr.adapters.store_rules import CHUNK_BYTES, now_ms
from rmgr.adapters.stores import open_store
from rmgr.bench.measuring import connected
from rmgr.dev.cluster import DevCluster
from rmgr.dev.zookeeper import ZooKeeperServer
from tests.harness.cassandra_keyspaces import behind
from tests.harness.ended_sessions import LONG_S
from tests.harness.gateway_process import GatewayProcess
from tests.harness.waiting import eventually
from tests.integration.commands import Lend

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 2**20
SIZE, HALF = 300 * MIB, 100 * MIB
HOURS_MS = 3 * 3_600_000
#: Of a partition of Cassandra's.
BUCKET_BYTES = 16 * CHUNK_BYTES


@dataclass
class Place:
    """A cluster with a gateway. bytes_by_writing: what lies in the store of large values, of whichever writing, seen or not."""

    cluster: DevCluster
    gateway: GatewayProcess
    bytes_by_writing: Callable[[], Counter[str]]
    forget_sweeps: Callable[[], None] = lambda: None

    def environment(self, way: str) -> dict[str, str]:
        mine = self.cluster.environment()
        return {**mine, "RMGR_ZK": "", "RMGR_STORE": "", "RMGR_GATEWAY": self.gateway.endpoint} if way == "gateway" else mine

    def more_than(self, before: Counter[str]) -> int:
        """Bytes that came since."""
        return (self.bytes_by_writing() - before).total()

    def sweep(self) -> None:
        """As it happens some hours later, whatever was swept so far."""
        self.forget_sweeps()
        with pytest.MonkeyPatch.context() as patch, open_store(self.cluster.environment()["RMGR_STORE"]) as store:
            patch.setattr(store_rules, "now_ms", lambda: now_ms() + HOURS_MS)
            store.sweep(timeout_s=60.0)


def in_files(directory: Path) -> Callable[[], Counter[str]]:
    """Of a SQLite store: its files."""

    def look() -> Counter[str]:
        found: Counter[str] = Counter()
        for path in directory.iterdir() if directory.exists() else ():
            try:
                found[path.name] = path.stat().st_size
            except FileNotFoundError:
                continue
        return found

    return look


def in_chunks(run: Callable[..., Any]) -> Callable[[], Counter[str]]:
    """Of a Cassandra store: its rows of pieces."""

    def look() -> Counter[str]:
        found: Counter[str] = Counter()
        for generation, _ in run("SELECT DISTINCT generation, bucket FROM {ks}.chunk"):  # no more is read for that
            found[str(generation)] += BUCKET_BYTES
        return found

    return look


@pytest.fixture
def place(whole: Place) -> Iterator[Place]:
    yield whole
    whole.gateway.kill()  # for what it was about to write was swept before its time
    whole.gateway.start()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("cassandra", marks=pytest.mark.long)])
def whole(
    request: pytest.FixtureRequest, lend_secured: Lend, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if request.param == "cassandra":
        request.getfixturevalue("cassandra_parts")
    directory = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "sqlite":
            cluster = stack.enter_context(lend_secured())
        else:
            own = DevCluster(directory, nodes=0, watchdogs=1, store="cassandra", guest_of=zookeeper, session_timeout_s=LONG_S)
            cluster = stack.enter_context(own)
        cluster.start_starter("n1")
        cluster.wait_healthy(nodes=1, deadline_s=120)
        url = cluster.environment()["RMGR_STORE"]
        gateway = stack.enter_context(GatewayProcess(cluster.daemon_environment("submitter", "g1"), directory))
        if request.param == "sqlite":
            place = Place(cluster, gateway, in_files(Path(url.removeprefix("sqlite:") + ".values")))
            place.sweep()  # what earlier borrowers have left
            yield place
            return
        run = stack.enter_context(behind(url))
        yield Place(cluster, gateway, in_chunks(run), lambda: run("DELETE FROM {ks}.info WHERE name = %s", SWEPT))


class Transfer:
    """`rmgr store put KEY -`, which has had half of its value and waits for the rest."""

    def __init__(self, place: Place, way: str, key: str) -> None:
        words = [sys.executable, "-m", "rmgr.cli.main", "store", "put", key, "-"]
        self.process = subprocess.Popen(words, env=place.environment(way), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None
        before = place.bytes_by_writing()
        for _ in range(SIZE // 2 // MIB):
            self.process.stdin.write(b"h" * MIB)
        self.process.stdin.flush()
        eventually(lambda: place.more_than(before) >= HALF, "half of it is in the store")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """(exit code, stderr) once it had the rest."""
        assert self.process.stdin is not None
        try:
            for _ in range(SIZE // 2 // MIB):
                self.process.stdin.write(b"h" * MIB)
        except BrokenPipeError:
            pass
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told.decode()


def is_absent(place: Place, key: str) -> bool:
    with connected(place.cluster) as connection:
        return not connection.store.exists(key)


@pytest.mark.parametrize("way", ["direct", "gateway"])
def test_a_client_that_is_killed_leaves_nothing(place: Place, way: str) -> None:
    before = place.bytes_by_writing()
    with Transfer(place, way, f"killed/{way}") as transfer:
        transfer.process.kill()
        transfer.process.wait(60)
    assert is_absent(place, f"killed/{way}")

    def is_clean() -> bool:
        place.sweep()
        return place.bytes_by_writing() == before

    eventually(is_clean, "the sweep leaves what was there before")


def test_a_gateway_that_is_killed_leaves_nothing_and_its_client_is_told(place: Place) -> None:
    before = place.bytes_by_writing()
    with Transfer(place, "gateway", "killed/there") as transfer:
        place.gateway.kill()
        code, told = transfer.end()
    place.gateway.start()
    assert code != 0
    assert told.startswith("rmgr: ")
    assert "Traceback" not in told
    assert is_absent(place, "killed/there")

    def is_clean() -> bool:
        place.sweep()
        return place.bytes_by_writing() == before

    eventually(is_clean, "the sweep leaves what was there before")


def grow(size: int) -> bytes:
    return b"g" * size


def test_a_starter_that_is_killed_leaves_the_result_of_the_next_attempt_alone(place: Place) -> None:
    before = place.bytes_by_writing()
    with connected(place.cluster) as connection, rmgr.TaskQueue(grow, connection=connection, resubmit=True) as queue:
        future = queue.submit_call(SIZE)
        eventually(lambda: place.more_than(before) >= 8 * MIB, "it writes its result")
        place.cluster.kill("n1")
        place.cluster.start_starter("n1", environment={"RMGR_SECURITY_RUN_AS": "self"})
        assert len(future.result(120)) == SIZE

        def is_clean() -> bool:
            place.sweep()
            return len(place.bytes_by_writing() - before) == 1

        eventually(is_clean, "the sweep leaves one result")
