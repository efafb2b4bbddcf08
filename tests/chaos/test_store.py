"""The data store goes away and comes back: rows 14 and 25 to 29 of the fault matrix, on real Cassandra nodes.

Daily one node behind proxies, which many tests share; the ring of three nodes, whose start alone costs a minute of processor, is for
`tests/long.sh`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from breakable import RECOVERY_S, Chaos, T
from keyed import KeyedWork

from rmgr import TaskQueue
from rmgr.adapters.rpc.services import LeaderClient, NodeClient, NodeStats
from rmgr.adapters.stores import open_store
from rmgr.dev.keeper import DevState
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import StoreUnavailable, Unavailable
from rmgr.model.views import StatusView
from rmgr.runtime.secured import credentials_of
from tests.harness.cassandra_nodes import SharedNode
from tests.harness.cassandra_ring import CassandraRing
from tests.harness.fair_time import FairTimer
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

#: Output of a task that does not fit beside its outcome: it needs the store.
PAD = ("--env", "PAD=20000")


@pytest.fixture(scope="module")
def ring(cassandra_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraRing]:
    """Three nodes; a test may break them, `town` mends them."""
    with CassandraRing(tmp_path_factory.mktemp("ring"), die_with_parent=True) as nodes:
        yield nodes


@pytest.fixture
def town(ring: CassandraRing, zookeeper_parts: None, tmp_path: Path, keyspace: str) -> Iterator[Chaos]:
    """A cluster on the whole ring, every value on three nodes."""
    for node in ring.nodes:
        node.resume()
    ring.start()
    chaos = Chaos(tmp_path, store=made(f"cassandra://{ring.contacts}/{keyspace}?replication_factor=3"))
    try:
        yield chaos
    finally:
        for node in ring.nodes:
            node.resume()
        chaos.stop()


def made(url: str) -> str:
    """The URL, after making the schema there."""
    from rmgr.adapters.cassandra.setup import init_store
    from rmgr.adapters.cassandra.url import parse_url

    init_store(parse_url(url), timeout_s=60)
    return url


class Load(threading.Thread):
    """An application that puts values, runs calls with large arguments and results, and writes down how long each round took."""

    def __init__(self, chaos: Chaos) -> None:
        super().__init__(name="load", daemon=True)
        self.rounds: list[tuple[float, float]] = []  # begin by the clock, fair seconds
        self.errors: list[BaseException] = []
        self._chaos = chaos
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with (
                FairTimer() as timer,
                self._chaos.connection() as connection,
                TaskQueue(lambda data: data[::-1], connection=connection) as queue,
            ):
                while not self._over.is_set():
                    begin, granted_s, data = time.monotonic(), timer.elapsed_s, os.urandom(20_000)
                    connection.store.put(f"load/{len(self.rounds)}", data)
                    assert queue.submit_call(data).result(60) == data[::-1]
                    assert connection.store.get(f"load/{len(self.rounds)}") == data
                    self.rounds.append((begin, timer.elapsed_s - granted_s))
        except BaseException as error:
            self.errors.append(error)

    def go_on(self, rounds: int) -> None:
        """Waits for so many more."""
        wanted = len(self.rounds) + rounds
        eventually(lambda: self.errors or len(self.rounds) >= wanted, f"{rounds} more rounds")
        assert self.errors == []

    def end(self) -> None:
        self._over.set()
        self.join(90)
        assert self.errors == []


def status_of(chaos: Chaos) -> StatusView:
    """As the leader tells it; while one is dead that its session does not show yet, its successor is waited for."""
    end_s = time.monotonic() + 60
    while True:
        epoch = chaos.snapshot().epoch
        assert epoch is not None
        try:
            with LeaderClient(epoch.endpoint, timeout_s=3.0, credentials=credentials_of(chaos.config())) as leader:
                return leader.status()
        except Unavailable:
            assert time.monotonic() < end_s, "no leader answers"
            time.sleep(0.1)


def stats_of(chaos: Chaos) -> dict[str, NodeStats]:
    """As the Starters tell them."""
    found: dict[str, NodeStats] = {}
    credentials = credentials_of(chaos.config())
    for record in chaos.snapshot().nodes.values():
        with contextlib.suppress(Unavailable), NodeClient(record.endpoint, timeout_s=3.0, credentials=credentials) as node:
            found |= {stats.node: stats for stats in node.stats()}
    return found


def spooled(chaos: Chaos) -> int:
    return sum(stats.spooled_bytes for stats in stats_of(chaos).values())


def run_one(chaos: Chaos) -> None:
    """A command from the shell, as if nothing had happened."""
    done = chaos.rmgr("submit", "--wait", "--", "echo", "done")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def ails(chaos: Chaos) -> list[str]:
    """What of the cluster has not got its store back, or waits for it."""
    try:
        found = [f"leader: {problem}" for problem in status_of(chaos).problems]
    except Unavailable as error:
        found = [f"leader: {error.message}"]
    stats = stats_of(chaos)
    found += [f"{one.node}: {one.reason}, {one.spooled_bytes} bytes" for one in stats.values() if one.reason or one.spooled_bytes]
    return found + [f"{name} says nothing" for name in chaos.snapshot().nodes if name not in stats]


def wait_whole(chaos: Chaos, within: float) -> float:
    """Waits until every daemon has its store again and nothing waits for it; returns how long that took (fair s)."""
    with FairTimer() as timer:
        while found := ails(chaos):
            assert timer.elapsed_s < within, f"not whole within {within} s: {found}"
            time.sleep(0.05)
    return timer.elapsed_s


def lives_without_its_store(chaos: Chaos, began: int) -> float:
    """Outputs wait, submit is refused soon, views say why, and what was claimed runs on. Returns how long the refusal took (fair s).

    began: executions that had started before the store went away.
    """
    away_s = time.monotonic()
    eventually(lambda: spooled(chaos) > 40_000, "outputs wait on their nodes")
    with FairTimer() as timer:
        refused = chaos.rmgr("submit", "--", "true")
    took_s = timer.elapsed_s
    assert refused.returncode == 5, refused.stderr
    assert "data store is away" in refused.stderr
    assert took_s < 10.0, f"a refusal took {took_s:.1f} s"  # a node that hangs is waited for 4 s; dead ones alone 1.3 s
    eventually(lambda: "store: away since" in (told := chaos.rmgr("status")).stdout and told.returncode == 1, "status says so")
    eventually(lambda: "data store away since" in chaos.rmgr("nodes").stdout, "nodes say so")
    eventually(lambda: chaos.started() > began, "what was claimed runs on")
    eventually(lambda: time.monotonic() > away_s + 2 * T, "2 T are over")
    assert not chaos.ended()
    return took_s


@pytest.mark.long
def test_one_of_three_nodes_killed_and_another_stopped_is_seen_by_no_client(town: Chaos, ring: CassandraRing):
    town.start(nodes=2, cores=2)
    town.submit(40, 0.3, *PAD)
    load = Load(town)
    load.start()
    load.go_on(3)
    killed_s = time.monotonic()
    ring.nodes[2].kill()
    run_one(town)
    load.go_on(3)
    ring.start()  # and waits until the others take it for alive: one more down before that would be two
    load.go_on(3)
    # One that has just begun answers slowly, and from now on no request is answered without it.
    eventually(lambda: max(took for _, took in load.rounds[-3:]) < 1.0, "it answers as the others do")
    stopped_s = time.monotonic()
    ring.nodes[1].pause()
    run_one(town)
    load.go_on(3)
    eventually(lambda: load.rounds[-1][1] < 1.0 or time.monotonic() > stopped_s + 10, "ten seconds with it or calm")
    load.go_on(3)
    ring.nodes[1].resume()
    load.end()
    print(f"slowest round after the kill {max(took for begin, took in load.rounds if killed_s - 2 < begin < stopped_s):.2f} s,", end=" ")
    print(f"after the stop {max(took for begin, took in load.rounds if begin > stopped_s - 2):.2f} s")
    assert load.rounds[-1][1] < 2.0
    town.finish()


@pytest.mark.long
def test_while_two_of_three_are_away_submit_is_refused_and_outputs_wait(town: Chaos, ring: CassandraRing):
    town.start(nodes=2, cores=2)
    number = town.submit(16, 1.0, *PAD)
    eventually(lambda: town.started() >= 4, "work runs")
    began = town.started()
    ring.nodes[1].kill()
    ring.nodes[2].pause()
    refused_s = lives_without_its_store(town, began)
    ring.nodes[2].resume()
    print(f"a refusal took {refused_s:.1f} s; all was well {wait_whole(town, 15):.1f} s after the second node was back")
    town.finish()
    assert {view.attempt for view in town.tasks(number)} == {1}, "an outage of the store is no loss"


@pytest.mark.long
def test_all_restarted_under_load_and_daemons_that_start_meanwhile(town: Chaos, ring: CassandraRing):
    town.start(nodes=2, cores=2)
    number = town.submit(40, 0.5, *PAD)
    eventually(lambda: town.started() >= 4, "work runs")
    ring.kill()
    for name in ("w1", "w2"):
        town.cluster.kill(name)
    town.cluster.start_watchdog("w3")
    town.add_node("n3", cores=2)
    town.cluster.state = without_dead(town)
    town.cluster.wait_healthy(nodes=3, deadline_s=RECOVERY_S + 20)  # a leader and three nodes, none of which has its store
    assert str(status_of(town).store["problem"]).startswith("away since")
    ring.start()
    print(f"all daemons were well {wait_whole(town, 10):.1f} s after the last of three nodes served")
    run_one(town)
    town.finish()
    assert {view.attempt for view in town.tasks(number)} == {1}


@pytest.mark.long
def test_tasks_by_keys_go_on_while_one_of_three_nodes_is_killed_and_another_stopped(town: Chaos, ring: CassandraRing):
    town.start(nodes=2, cores=2)
    with KeyedWork(town, 40, 0.3) as load:
        eventually(lambda: town.started() >= 4, "work runs")
        ring.nodes[2].kill()
        eventually(lambda: town.started() >= 20, "it goes on")
        ring.start()
        ring.nodes[1].pause()
        began = town.started()
        eventually(lambda: town.ended() or town.started() >= began + 20, "it goes on")
        ring.nodes[1].resume()
        assert load.check(town.finish()) == 0


@pytest.mark.long
def test_outputs_by_keys_outlive_20_s_without_a_store_but_for_those_of_a_starter_that_dies_meanwhile(town: Chaos, ring: CassandraRing):
    town.start(nodes=3, cores=2)
    with KeyedWork(town, 20, 0.5) as load:
        eventually(lambda: town.started() >= 6, "work runs")
        for node in ring.nodes:
            node.pause()
        away_s = time.monotonic()
        eventually(lambda: min(one.spooled_bytes for one in stats_of(town).values()) > 20_000, "outputs wait on each node")
        town.cluster.kill("n1")
        eventually(lambda: time.monotonic() > away_s + 20, "20 s are over")
        assert not town.ended()
        for node in ring.nodes:
            node.resume()
        assert load.check(town.finish()) < 20


def without_dead(town: Chaos) -> DevState:
    """The cluster's record without what the test has killed: nobody waits for that."""
    state = town.cluster.state
    return replace(state, processes=tuple(process for process in state.processes if process.find() is not None))


# -- one node, behind a proxy --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fronted(
    cassandra: SharedNode, breakable_zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Chaos, Proxy, str]]:
    """A cluster without nodes, the proxy behind which its store is, and the store's keyspace."""
    keyspace = f"k{uuid.uuid4().hex[:16]}"
    made(f"cassandra://{cassandra.contact}/{keyspace}?replication_factor=1")
    with Proxy(cassandra.contact, framed=False) as proxy:
        chaos = Chaos(
            tmp_path_factory.mktemp("fronted"), store=f"cassandra://{proxy.hosts}/{keyspace}", guest_of=breakable_zookeeper.start()
        )
        try:
            chaos.start(nodes=0, watchdogs=1)
            yield chaos, proxy, keyspace
        finally:
            chaos.stop()


@pytest.fixture
def near(fronted: tuple[Chaos, Proxy, str]) -> Iterator[tuple[Chaos, Proxy, str]]:
    """The same, with nothing of an earlier test."""
    chaos, proxy, _ = fronted
    chaos.heal()
    yield fronted
    flow(proxy)
    chaos.keep_only()


def flow(proxy: Proxy) -> None:
    """All as if nothing had been."""
    proxy.black_hole(to_client=False, to_server=False)
    proxy.refuse(False)


def test_a_node_cut_off_from_the_store_keeps_its_outputs_and_drains_at_its_bound(near: tuple[Chaos, Proxy, str], cassandra: SharedNode):
    chaos, _, keyspace = near
    with Proxy(cassandra.contact, framed=False) as proxy:
        chaos.add_node("n1", cores=2, RMGR_STORE=f"cassandra://{proxy.hosts}/{keyspace}", RMGR_STARTER_SPOOL_CAP_BYTES="150000")
        chaos.cluster.wait_healthy(nodes=1, deadline_s=60)
        number = chaos.submit(60, 0.1, *PAD)
        eventually(lambda: any(view.state.is_final for view in chaos.tasks(number)), "work is committed")
        proxy.black_hole(to_client=True, to_server=False)  # what it writes arrives; it will never know
        eventually(lambda: spooled(chaos) > 60_000, "outputs wait")
        proxy.refuse()
        eventually(lambda: "fill the spool" in stats_of(chaos)["n1"].reason, "it drains at its bound")
        assert spooled(chaos) < 150_000 + 4 * 20_100
        eventually(lambda: "fill the spool" in chaos.rmgr("nodes").stdout, "everybody is told")
        flow(proxy)
        print(f"the node was well {wait_whole(chaos, 10):.1f} s after the heal")
        chaos.finish()
        assert {view.attempt for view in chaos.tasks(number)} == {1}


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "hanging"])
def test_while_the_store_is_away_submit_is_refused_and_outputs_wait(near: tuple[Chaos, Proxy, str], is_dead: bool):
    chaos, proxy, _ = near
    chaos.add_node("n1", cores=4)
    chaos.cluster.wait_healthy(nodes=1, deadline_s=60)
    number = chaos.submit(16, 1.0, *PAD)
    eventually(lambda: chaos.started() >= 4, "work runs")
    began = chaos.started()
    if is_dead:
        proxy.refuse()
    else:
        proxy.black_hole()
    lives_without_its_store(chaos, began)
    flow(proxy)
    wait_whole(chaos, 15)
    chaos.finish()
    assert {view.attempt for view in chaos.tasks(number)} == {1}, "an outage of the store is no loss"


def test_a_write_whose_answers_are_lost_is_written_again_and_is_the_same(cassandra: SharedNode, keyspace: str):
    url = made(f"cassandra://{cassandra.contact}/{keyspace}?replication_factor=1")
    value = os.urandom(16 * 2**20)
    with Proxy(cassandra.contact, framed=False) as proxy:
        far = open_store(f"cassandra://{proxy.hosts}/{keyspace}?request_timeout=0.5")
        near = open_store(url)
        try:
            far.put("in/small", b"s")
            proxy.delay(0.2)  # so that there is a middle to be hit
            before = proxy.sent_bytes

            def write() -> int:
                """As a Starter does: again until it is there."""
                for attempt in range(1, 100):
                    try:
                        far.put("in/large", value, timeout_s=10)
                    except StoreUnavailable:
                        time.sleep(0.1)
                    else:
                        return attempt
                raise AssertionError

            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(write)
                eventually(lambda: proxy.sent_bytes - before > 2**20, "chunks have reached the server")
                proxy.black_hole(to_client=True, to_server=False)
                with contextlib.suppress(TimeoutError):
                    writing.result(1.0)  # longer than a request may last: the coordinator's answers are lost
                assert not writing.done()
                proxy.delay(0.0)
                proxy.black_hole(to_client=False, to_server=False)
                assert writing.result(60) >= 1
            found = near.get("in/large")  # its hash is checked on the way
            assert found is not None
            assert found[0] == value
        finally:
            far.close()
            near.close()
