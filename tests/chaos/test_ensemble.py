"""An ensemble of three loses servers, its quorum, and its data: rows 16, 17, 19 and 22 of the fault matrix."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from breakable import LONG_T, RECOVERY_S, TICK, Chaos, T
from ledger import read_ledger

from rmgr.coord.protocol import paths
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.harness.ended_sessions import sessions as entries
from tests.harness.fair_time import FairTimer
from tests.harness.waiting import eventually

pytestmark = pytest.mark.chaos
NODES, CORES = 2, 2


@pytest.fixture(scope="module")
def three(zookeeper_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers of ZooKeeper; a test may break them, `trio` mends them."""
    where = tmp_path_factory.mktemp("three")
    with ZooKeeperEnsemble(where, tick_ms=round(TICK * 1000), words=("srvr", "mntr"), die_with_parent=True) as servers:
        yield servers


@pytest.fixture
def trio(three: ZooKeeperEnsemble, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    """A cluster on the whole ensemble. Parameter: T."""
    made = Chaos(tmp_path, guest_of=three.start(), session_timeout_s=request.param)
    try:
        made.start(nodes=NODES, cores=CORES)
        yield made
    finally:
        made.stop()


def servers(chaos: Chaos) -> ZooKeeperEnsemble:
    assert isinstance(chaos.cluster.zookeeper, ZooKeeperEnsemble)
    return chaos.cluster.zookeeper


def leading(chaos: Chaos) -> ZooKeeperServer:
    found = eventually(servers(chaos).leader, "a server leads")
    assert isinstance(found, ZooKeeperServer)
    return found


def sessions(chaos: Chaos) -> tuple[set[int], dict[str, int]]:
    """What changes when a daemon loses its session. (A leader that steps down for a moment keeps it: that is not counted.)"""
    coordinator = chaos.cluster.coordinator
    daemons = {owner for path, owner in entries(coordinator).items() if not path.startswith(paths.SUBMITTERS)}
    return daemons, {name: record.incarnation for name, record in chaos.cluster.snapshot().nodes.items()}


def running(chaos: Chaos) -> int:
    """Executions that have begun and neither ended nor fallen silent."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return sum(not span.ended and now - span.last < 0.5 for span in read_ledger(chaos.ledger))


def longest_gap_s(chaos: Chaos) -> float:
    """The longest time in which nothing started."""
    return max(later.start - earlier.start for earlier, later in pairwise(read_ledger(chaos.ledger)))


@pytest.mark.parametrize("trio", [LONG_T], indirect=True, ids=["long sessions"])
def test_a_killed_follower_and_a_killed_leader_cost_no_session_and_no_attempt(trio: Chaos):
    before = eventually(lambda: len((now := sessions(trio))[0]) == NODES + 2 and now, "both WatchDogs stand")
    number = trio.submit(100, 0.3)
    with FairTimer() as timer:
        kill_each(trio)
        trio.finish()
    assert {view.attempt for view in trio.tasks(number)} == {1}, "no attempt failed"
    eventually(lambda: sessions(trio) == before, "the sessions are those of before: none was lost")
    assert longest_gap_s(trio) <= 5.0 + timer.withheld_s


def kill_each(trio: Chaos) -> None:
    """A follower and the leader of the ensemble, one after the other; each comes back."""
    for pick in ("follower", "leader"):
        chief = leading(trio)
        victim = chief if pick == "leader" else next(server for server in servers(trio).servers if server is not chief)
        ran = trio.started()
        victim.kill()
        eventually(lambda: trio.started() >= ran + 12 or trio.ended(), f"work goes on without the {pick}")  # noqa: B023
        victim.start(wait_s=60)
        eventually(servers(trio).is_whole, "the ensemble is whole again")


@pytest.mark.parametrize("trio", [T], indirect=True, ids=["short sessions"])
def test_a_lost_quorum_stops_decisions_and_not_work(trio: Chaos):
    with FairTimer() as timer:
        before = eventually(lambda: len((now := sessions(trio))[0]) == NODES + 2 and now, "both WatchDogs stand")
        number = trio.submit(40, 600.0)  # each goes on until it may end
        eventually(lambda: running(trio) == NODES * CORES, "every core works")
        gone = [server for server in servers(trio).servers if server is not leading(trio)]
        for server in gone:
            server.kill()
        ran = trio.started()
        end = time.monotonic() + 2 * T
        while time.monotonic() < end:  # the outage itself
            threading.Event().wait(0.2)
        eventually(lambda: running(trio) == NODES * CORES, "kept work runs on")
        for server in gone:
            server.start(wait_s=0)
        trio.let_end()
        eventually(lambda: trio.started() > ran, "claims go on", within_s=10 + TICK)
        trio.finish()
        if timer.stood_still:  # for longer than T: with a quorum, that ends every session
            return
        assert {view.attempt for view in trio.tasks(number)} == {1}, "nothing was requeued"
        eventually(lambda: sessions(trio) == before, "nobody was fenced, no session was lost")


@pytest.mark.long
@pytest.mark.parametrize("trio", [LONG_T], indirect=True, ids=["long sessions"])
def test_five_rolling_restarts_lose_no_session(trio: Chaos):
    before = eventually(lambda: len((now := sessions(trio))[0]) == NODES + 2 and now, "both WatchDogs stand")
    number = trio.submit(160, 0.3)
    for _ in range(5):
        for server in servers(trio).servers:
            server.stop()
            server.start(wait_s=60)
            eventually(servers(trio).is_whole, "the ensemble is whole again")
    trio.finish()
    assert {view.attempt for view in trio.tasks(number)} == {1}, "no attempt failed"
    eventually(lambda: sessions(trio) == before, "the sessions are those of before: none was lost")


def test_wiped_servers_are_refused_by_everybody(lone: Chaos):
    lone.start(nodes=1, watchdogs=1)
    assert lone.rmgr("submit", "--wait", "--", "true").returncode == 0
    server = lone.cluster.zookeeper
    assert isinstance(server, ZooKeeperServer)
    server.kill()
    shutil.rmtree(server.data_dir / "data")
    server.start()
    for name in ("w1", "n1"):
        process = lone.cluster.process(name)
        eventually(lambda: process.find() is None, f"{name} refuses and ends", within_s=RECOVERY_S + 20)  # noqa: B023
        assert "wiped" in lone.cluster.log_tail(name, 4000)
    late = lone.rmgr("submit", "--", "true")
    assert late.returncode == 5, late.stderr
    assert "no rmgr cluster" in late.stderr or "is expected" in late.stderr
