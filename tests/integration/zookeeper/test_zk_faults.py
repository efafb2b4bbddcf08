"""ZooKeeper dies, hangs, comes back or stays silent: the coordinator notices and returns early, and never hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.adapters.zookeeper.server import four_letter
from rmgr.coord.protocol.multi import Committed, Create, Delete, Exists, Multi, Unknown
from rmgr.coord.protocol.ports import SessionState
from rmgr.dev.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, free_port
from rmgr.errors import CoordinationUnavailable, NotConnected, Unavailable
from tests.harness import ended_sessions
from tests.harness.coordinators import States
from tests.harness.fair_time import FairTimer, undisturbed
from tests.harness.proxy import Proxy
from tests.harness.waiting import eventually

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


def enqueue(number: int) -> Multi:
    name = f"/names/{number}"
    return Multi(name="ENQUEUE", ops=(Create("/queue/k-", sequence=True), Create(name)), proof=Exists(name))


@pytest.fixture
def server(zookeeper_parts: None, tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zk", tick_ms=200, heap_mb=64, words=("srvr", "ruok", "mntr"), die_with_parent=True) as started:
        yield started


@pytest.fixture
def coord(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[ZkCoordinator]:
    """Parameter: session timeout (s), where the session may end by itself: short ones also end while the machine stands still."""
    session_timeout_s = getattr(request, "param", ended_sessions.LONG_S)
    with ZkCoordinator.connect(server.hosts, "/t", session_timeout_s=session_timeout_s) as coordinator:
        coordinator.ensure(["/queue", "/names"])
        yield coordinator


@pytest.fixture
def proxied(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[tuple[ZkCoordinator, Proxy]]:
    with Proxy(zookeeper.hosts) as proxy, ZkCoordinator.connect(proxy.hosts, chroot, session_timeout_s=3.0) as coordinator:
        coordinator.ensure(["/queue", "/names"])
        yield coordinator, proxy


class Load(threading.Thread):
    """Commits one multi after the other until stopped, a hundred a second at most; keeps every outcome."""

    def __init__(self, coordinator: ZkCoordinator) -> None:
        super().__init__(daemon=True)
        self.coordinator = coordinator
        self.outcomes: list[object] = []
        self.times_s: list[float] = []  #: fair
        self._halt = threading.Event()

    def run(self) -> None:
        with FairTimer() as timer:
            while not self._halt.wait(0.01):
                self.outcomes.append(self.coordinator.commit(enqueue(len(self.outcomes)), timeout_s=90).result(100))
                self.times_s.append(timer.elapsed_s)

    def stop(self) -> list[object]:
        self._halt.set()
        self.join(100)
        return self.outcomes


def test_a_server_killed_and_started_again_under_load_loses_and_doubles_nothing(server: ZooKeeperServer, coord: ZkCoordinator) -> None:
    session, states, load = coord.session_id, States(coord), Load(coord)
    load.start()
    for round_ in (1, 2):
        seen = len(load.outcomes)
        eventually(lambda seen=seen: len(load.outcomes) > seen + 20)
        server.restart()
        states.wait(SUSPENDED, CONNECTED)
        assert states.seen.count(SUSPENDED) >= round_
    seen = len(load.outcomes)
    eventually(lambda: len(load.outcomes) > seen + 20)
    outcomes = load.stop()
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert len(coord.children("/queue").result(60) or []) == len(outcomes)
    assert LOST not in states.seen
    assert coord.session_id == session


@pytest.mark.parametrize("coord", [2.0], indirect=True)
def test_after_an_outage_longer_than_the_session_it_is_back_within_three_seconds(server: ZooKeeperServer, coord: ZkCoordinator) -> None:
    states = States(coord)
    server.kill()
    states.wait(SUSPENDED)
    time_down = threading.Event()
    assert not time_down.wait(2 * coord.session_timeout_s)  # the outage itself
    assert coord.state is SUSPENDED  # nobody has said that the session is gone
    server.start()
    with FairTimer() as timer:
        # A standalone server counts sessions from its start: this one may have lived on, or not. Either way it is usable.
        first = coord.commit(enqueue(1), timeout_s=60).result(70)
        if isinstance(first, Unknown):
            states.wait(LOST, CONNECTED)
            first = coord.commit(enqueue(2), timeout_s=60).result(70)
        assert isinstance(first, Committed)
    assert timer.elapsed_s < 3.0
    assert states.seen[-1] is CONNECTED


def test_a_session_that_expired_behind_a_cut_is_lost_on_return(proxied: tuple[ZkCoordinator, Proxy], zookeeper: ZooKeeperServer) -> None:
    coord, proxy = proxied
    states, session = States(coord), coord.session_id
    proxy.refuse()
    states.wait(SUSPENDED)
    ended_sessions.expire(zookeeper.hosts, coord.session_id)
    waiting = coord.commit(enqueue(1), timeout_s=20)
    proxy.refuse(False)
    states.wait(SUSPENDED, LOST, CONNECTED)
    assert coord.session_id != session
    assert isinstance(waiting.result(60), Unknown)


def test_a_server_that_falls_silent_is_noticed_within_half_a_session(proxied: tuple[ZkCoordinator, Proxy]) -> None:
    coord, proxy = proxied
    states = States(coord)
    proxy.black_hole()
    with FairTimer() as timer:
        states.wait(SUSPENDED)
    assert timer.elapsed_s < coord.session_timeout_s / 2 + 0.5


def test_silence_is_noticed_while_requests_keep_going_out(proxied: tuple[ZkCoordinator, Proxy]) -> None:
    # kazoo takes every request for a ping and then waits for no answer: with steady traffic it would never notice.
    coord, proxy = proxied
    states = States(coord)
    proxy.black_hole(to_client=True, to_server=False)
    with FairTimer() as timer:
        while states.seen[-1] is CONNECTED:
            coord.get("/names", timeout_s=1.0)
            threading.Event().wait(0.02)
            assert timer.elapsed_s < coord.session_timeout_s / 2 + 0.5


def test_the_lease_stands_still_when_answers_do_not_come(proxied: tuple[ZkCoordinator, Proxy]) -> None:
    coord, proxy = proxied
    first = coord.last_answer_s()
    eventually(lambda: coord.last_answer_s() > first)  # idle: pings count
    proxy.black_hole(to_client=True, to_server=False)
    cut_s = time.monotonic()
    assert not threading.Event().wait(1.5)
    assert coord.last_answer_s() <= cut_s


def test_thousands_of_calls_in_an_outage_block_nobody_and_end_at_their_deadlines(proxied: tuple[ZkCoordinator, Proxy]) -> None:
    # kazoo#577: its wake-up pipe fills up after some hundred queued calls, and the caller hangs in send().
    coord, proxy = proxied
    proxy.refuse()
    States(coord).wait(SUSPENDED)
    commits, took_s = [], []
    with FairTimer() as timer:
        for number in range(5000):
            begun_s = time.monotonic()
            commits.append(coord.commit(enqueue(number), timeout_s=0.5))
            took_s.append(time.monotonic() - begun_s)
    assert sorted(took_s)[4500] < 0.02  # one in ten may find the processors taken
    assert timer.elapsed_s < 10.0
    assert all(isinstance(commit.result(60), Unknown) for commit in commits)
    proxy.refuse(False)
    # Where the machine was slow the session has ended meanwhile: then one more is unknown, and the next tells what is there.
    eventually(lambda: not isinstance(coord.commit(enqueue(0), timeout_s=60.0).result(90), Unknown))
    assert coord.children("/names").result(60) == ["0"]


def test_the_connection_comes_back_when_its_thread_died(coord: ZkCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    states, session = States(coord), coord.session_id

    def fail(*_args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(coord.link._connection, "_read_frames", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)  # the thread dies on purpose
    assert isinstance(coord.commit(enqueue(1), timeout_s=60).result(70), Committed)
    states.wait(CONNECTED)
    assert coord.session_id == session


@undisturbed
def test_nobody_listening_is_told_apart_from_nobody_answering() -> None:
    with pytest.raises(NotConnected) as refused:
        ZkCoordinator.connect(f"127.0.0.1:{free_port()}", "/t", connect_timeout_s=0.5)
    assert "it refuses connections" in refused.value.message
    assert refused.value.hint
    with pytest.raises(NotConnected, match="the name does not resolve"):
        ZkCoordinator.connect("nowhere.invalid:2181", "/t", connect_timeout_s=0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(CoordinationUnavailable, match="it does not answer"):
        ZkCoordinator.connect(f"127.0.0.1:{mute.getsockname()[1]}", "/t", connect_timeout_s=0.5)


def test_closing_does_not_wait_for_a_server_that_is_away(proxied: tuple[ZkCoordinator, Proxy]) -> None:
    coord, proxy = proxied
    proxy.refuse()
    with FairTimer() as timer:
        coord.close(timeout_s=2.0)
    assert timer.elapsed_s < 2.5


def test_a_coordinator_may_be_made_before_the_server_is_up(zookeeper_parts: None, tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zk", tick_ms=200, heap_mb=64, die_with_parent=True)
    with ZkCoordinator(server.hosts, "/t", session_timeout_s=ended_sessions.LONG_S) as coord:
        first = coord.commit(Multi(name="X", ops=(Create("/t2"),), proof=Exists("/t2")), timeout_s=0.2)
        assert isinstance(first.result(60), Unknown)
        with server:
            coord.ensure(["/queue", "/names"])
            assert isinstance(coord.commit(enqueue(1)).result(60), Committed)
            coord.close()


# -- three servers ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_ensemble_loses_single_servers_and_no_session(zookeeper_parts: None, tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path / "zk", tick_ms=500, heap_mb=64, words=("srvr", "mntr"), die_with_parent=True)
    with ensemble, ZkCoordinator.connect(ensemble.hosts, "/t", session_timeout_s=ended_sessions.LONG_S) as coord:
        coord.ensure(["/queue", "/names"])
        states, load = States(coord), Load(coord)
        load.start()
        eventually(lambda: len(load.outcomes) > 20)
        leader = ensemble.leader()
        leader.kill()
        seen = len(load.outcomes)
        eventually(lambda: len(load.outcomes) > seen + 20)
        leader.start(wait_s=60)
        eventually(ensemble.is_whole)
        for server in ensemble.servers:  # whichever the client is on falls silent, and is left for another
            server.pause()
            seen = len(load.outcomes)
            eventually(lambda seen=seen: len(load.outcomes) > seen + 20)
            server.resume()
            server.wait_ready(60)
            eventually(ensemble.is_whole)
        outcomes = load.stop()
        gaps = [later - earlier for earlier, later in zip(load.times_s, load.times_s[1:], strict=False)]
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        assert len(coord.children("/queue").result(60) or []) == len(outcomes)
        assert LOST not in states.seen
        # Until the client leaves a silent server; 2.5 s until its followers leave a silent leader, and an election, which may fail once.
        assert max(gaps) < coord.session_timeout_s / 2 + 8.0


# -- the server itself ------------------------------------------------------------------------------------------------------


def test_a_server_tells_about_itself_and_a_dead_one_says_so(server: ZooKeeperServer) -> None:
    assert four_letter(server.host, server.port, "ruok") == "imok"
    assert "zk_znode_count" in four_letter(server.host, server.port, "mntr")
    assert server.mode() == "standalone"
    server.kill()
    with pytest.raises(Unavailable, match="does not answer"):
        four_letter(server.host, server.port, "ruok", timeout_s=0.5)
    assert (server.mode(), server.pid, server.running) == ("", None, False)


def test_a_server_that_cannot_start_shows_its_log(zookeeper_parts: None, tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, config={"tickTime": "soon"})
    with pytest.raises(Unavailable, match=r"soon|Invalid config"):
        server.start()
    assert not server.running


def test_missing_jars_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMGR_ZOOKEEPER_LIB", str(tmp_path))
    with pytest.raises(Unavailable, match="RMGR_ZOOKEEPER_LIB"):
        ZooKeeperServer(tmp_path / "zk").start()
    monkeypatch.delenv("RMGR_ZOOKEEPER_LIB")
    monkeypatch.setattr("rmgr.dev.zookeeper._DEBIAN_DIR", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable) as missing:
        ZooKeeperServer(tmp_path / "zk").start()
    assert "zookeeper-jute.jar" in missing.value.message
    assert "libzookeeper-java" in missing.value.hint


def test_deleting_what_is_gone_is_a_conflict_also_after_a_restart(server: ZooKeeperServer, coord: ZkCoordinator) -> None:
    coord.commit(enqueue(1)).result(60)
    server.restart()
    gone = Multi(name="DELETE", ops=(Delete("/names/1", 0),), proof=Exists("/never"))
    assert isinstance(coord.commit(gone, timeout_s=60).result(70), Committed)
    assert coord.children("/names").result(60) == []
