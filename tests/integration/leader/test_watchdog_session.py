"""A WatchDog with a broken session: expired, cut off, in doubt, with a wiped ensemble; and its answers over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from rmgr.adapters.rpc.server import RpcServer
from rmgr.adapters.rpc.services import LeaderClient, leader_handler
from rmgr.adapters.zookeeper.client import ZkCoordinator
from rmgr.coord.ops.leader import stand, take_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Delete, Gone, Multi
from rmgr.coord.protocol.records import decode_record
from rmgr.daemons.leader.answering import LeaderAnswering
from rmgr.daemons.leader.term import LeaderMetrics
from rmgr.daemons.leader.watchdog import Watchdog
from rmgr.dev.zookeeper import ZooKeeperServer
from rmgr.errors import NotFound, Unavailable, WrongCluster
from rmgr.model.node import EpochRecord
from rmgr.model.queue import ClusterSettings
from rmgr.model.states import State
from rmgr.procedures.bootstrap import bootstrap
from rmgr.runtime import machine
from rmgr.runtime.supervision import Lease
from rmgr.runtime.zookeeper_clock import ZooKeeperClock
from tests.harness import ended_sessions
from tests.harness.ended_sessions import LONG_S
from tests.harness.fair_time import FairTimer, undisturbed
from tests.harness.leader_bench import Starter, Submitter, committed
from tests.harness.memory_store import MemoryStore
from tests.harness.metric_rows import value_of
from tests.harness.waiting import PATIENCE_S, eventually


class WatchdogThread:
    """A WatchDog with its gRPC server."""

    def __init__(
        self,
        hosts: str,
        chroot: str,
        *,
        session_timeout_s: float = LONG_S,
        store: MemoryStore | None = None,
        settings: ClusterSettings | None = None,
    ) -> None:
        self.coordinator = ZkCoordinator.connect(hosts, chroot, session_timeout_s=session_timeout_s)
        self.store = store or MemoryStore(f"watchdog-{chroot}")
        self.metrics = LeaderMetrics()
        self.log: list[dict[str, Any]] = []
        self.meta = bootstrap(self.coordinator, settings=settings)
        self.server = RpcServer("127.0.0.1:0", threads=8)
        self.watchdog = Watchdog(
            self.coordinator, self.store, self.meta, endpoint=self.server.endpoint, resync_s=20.0,
            log=structlog.wrap_logger(None, processors=[self._logged]), metrics=self.metrics,
        )
        self.server.add_generic(leader_handler(LeaderAnswering(self.watchdog, lambda: {"ok": True})))
        self.server.start()
        self.client = LeaderClient(self.server.endpoint)
        self._thread = threading.Thread(target=self.watchdog.serve, name="watchdog")
        self._thread.start()

    def _logged(self, _logger: Any, level: str, event: dict[str, Any]) -> Any:
        self.log.append({"level": level, **event})
        raise structlog.DropEvent

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    def wait_event(self, name: str, *, count: int = 1) -> dict[str, Any]:
        eventually(lambda: len(self.events(name)) >= count, f"{name} in {self.log}")
        return self.events(name)[count - 1]

    def epoch(self) -> EpochRecord:
        found = self.coordinator.get(paths.EPOCH).result(60)
        return EpochRecord() if found is None else decode_record(found.data, EpochRecord)

    def wait_ended(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.watchdog.stop()
        self._thread.join(PATIENCE_S)
        self.watchdog.close()
        self.client.close()
        self.server.stop(0.1)
        assert not self._thread.is_alive()
        assert [line for line in self.log if line["event"] == "set_aside"] == []


@pytest.fixture
def watchdog(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[WatchdogThread]:
    one = WatchdogThread(zookeeper.hosts, chroot)
    yield one
    one.close()


def usurp(other: ZkCoordinator) -> None:
    """Somebody else stands for election, and takes over out of turn."""
    committed(other, stand("usurper", EpochRecord()))
    name = next(item for item in other.children(paths.WATCHDOGS).result(60) or [] if "usurper" in item)
    committed(other, take_over(name, EpochRecord(epoch=2, leader="usurper"), 0))


def test_an_expired_leader_steps_down_and_stands_again(watchdog: WatchdogThread, zookeeper: ZooKeeperServer) -> None:
    first = watchdog.wait_event("leadership_began")
    session = watchdog.coordinator.session_id
    ended_sessions.expire(zookeeper.hosts, watchdog.coordinator.session_id)
    second = watchdog.wait_event("leadership_began", count=2)
    assert watchdog.wait_event("leadership_ended")["why"] == "the session was lost"
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert watchdog.coordinator.session_id != session
    line = watchdog.coordinator.children(paths.WATCHDOGS).result(60)
    assert line == [second["candidate"]]


def test_a_leadership_goes_on_after_a_broken_connection_once_the_fence_was_read(watchdog: WatchdogThread) -> None:
    watchdog.wait_event("leadership_began")
    watchdog.coordinator.drop_link()
    watchdog.wait_event("leadership_continued")
    assert watchdog.events("leadership_suspended") == [{"level": "warning", "event": "leadership_suspended", "epoch": 1}]
    assert watchdog.epoch().epoch == 1
    assert value_of(watchdog.metrics.leader) == 1


def test_a_leadership_ends_when_the_epoch_has_moved_while_the_session_was_in_doubt(
    watchdog: WatchdogThread, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    watchdog.wait_event("leadership_began")
    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=LONG_S) as other:
        usurp(other)
    watchdog.coordinator.drop_link()
    ended = watchdog.wait_event("leadership_ended")
    assert ended["why"] == "the epoch has moved while the session was in doubt"
    assert watchdog.wait_event("leadership_began", count=2)["epoch"] == 3, "it is the first in line again"


def test_a_write_after_another_has_taken_over_is_fenced_and_ends_the_leadership(
    watchdog: WatchdogThread, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    watchdog.wait_event("leadership_began")
    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=LONG_S) as other:
        usurp(other)
        starter = Starter(other, "n1")
    ended = watchdog.wait_event("leadership_ended")
    assert ended["why"] == "FENCE was refused by the leader fence"
    assert value_of(watchdog.metrics.fenced_writes) == 1
    assert starter.versions == {"n1": 0}
    watchdog.wait_event("node_fenced")


def test_a_leader_that_is_cut_off_steps_down_within_its_lease(tmp_path: Path, chroot: str, zookeeper_parts: None) -> None:
    @undisturbed
    def steps_down(server: ZooKeeperServer) -> None:
        watchdog = WatchdogThread(server.hosts, chroot, session_timeout_s=3.0)
        try:
            before = watchdog.wait_event("leadership_began")["epoch"]
            server.pause()
            try:
                with FairTimer() as timer:
                    ended = watchdog.wait_event("leadership_ended")
                with pytest.raises(Unavailable, match="does not lead"):  # before it can be elected again
                    watchdog.client.status()
            finally:
                server.resume()
            assert ended["why"] == "the lease is over"
            assert timer.elapsed_s <= 3.0
            assert watchdog.wait_event("leadership_began", count=2)["epoch"] == before + 1
        finally:
            watchdog.close()

    with ZooKeeperServer(tmp_path / "zk", tick_ms=500, die_with_parent=True) as server:
        steps_down(server)


def test_a_leader_takes_over_anew_once_when_a_clock_was_set(watchdog: WatchdogThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper may be on the same machine: it must be heard again, or the whole term goes by a time that is not even ZooKeeper's."""
    watchdog.wait_event("leadership_began")
    wall_s = machine.wall_s
    monkeypatch.setattr(machine, "wall_s", lambda: wall_s() + 86_400)
    assert watchdog.wait_event("leadership_ended")["why"] == "a clock was set"
    assert watchdog.wait_event("leadership_began", count=2)["epoch"] == 2
    assert "1d ahead of ZooKeeper's" in watchdog.wait_event("clock_is_wrong")["why"]
    leader = watchdog.watchdog.leader
    assert leader is not None
    assert not leader.term.wall.is_outdated()


def test_clocks_that_are_set_back_and_forth_end_a_term_every_five_minutes_at_most(
    watchdog: WatchdogThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no term lasts: what a leader does once a minute is never done."""
    monkeypatch.setattr(Lease, "length_s", 1.0)  # how often it looks follows from that
    monkeypatch.setattr(Lease, "is_valid", lambda _: True)
    watchdog.wait_event("leadership_began")
    wall_s, boottime_ns = machine.wall_s, machine.boottime_ns
    monkeypatch.setattr(machine, "wall_s", lambda: wall_s() + 86_400)
    watchdog.wait_event("leadership_began", count=2)
    looks: list[bool] = []
    is_outdated = ZooKeeperClock.is_outdated

    def looked(clock: ZooKeeperClock) -> bool:
        looks.append(is_outdated(clock))
        return looks[-1]

    monkeypatch.setattr(ZooKeeperClock, "is_outdated", looked)
    monkeypatch.setattr(machine, "wall_s", wall_s)
    eventually(lambda: sum(looks) >= 2, "it has seen that the clock was set back")
    assert watchdog.epoch().epoch == 2
    monkeypatch.setattr(machine, "boottime_ns", lambda: boottime_ns() + 310 * 10**9)
    assert watchdog.wait_event("leadership_began", count=3)["epoch"] == 3
    assert [line["why"] for line in watchdog.events("leadership_ended")] == 2 * ["a clock was set"]


def test_a_wiped_ensemble_ends_the_process_with_a_clear_error(watchdog: WatchdogThread, zookeeper: ZooKeeperServer) -> None:
    watchdog.wait_event("leadership_began")
    committed(watchdog.coordinator, Multi(name="WIPE", ops=(Delete(paths.META),), proof=Gone(paths.META)))
    ended_sessions.expire(zookeeper.hosts, watchdog.coordinator.session_id)
    watchdog.wait_ended()
    assert isinstance(watchdog.watchdog.failure, WrongCluster)
    assert "was wiped" in watchdog.watchdog.failure.message


def test_answers_show_what_the_asker_has_just_done(watchdog: WatchdogThread, zookeeper: ZooKeeperServer, chroot: str) -> None:
    watchdog.wait_event("leadership_began")
    client = watchdog.client
    with ZkCoordinator.connect(zookeeper.hosts, chroot, session_timeout_s=LONG_S) as user:
        submitter, starter = Submitter(user), Starter(user, "n1")
        submitter.enter()
        for round_ in range(5):
            number = submitter.submit(2, owner=submitter.guid)
            (job,) = client.jobs((number,))
            assert (job.state, job.counts["INITIAL"]) == (State.INITIAL, 2)
            key = starter.claim("n1", take=1)
            eventually(lambda number=number: client.jobs((number,))[0].counts["RUNNING"] == 1)
            starter.complete("n1", key)
            (job,) = client.jobs((number,))
            assert (job.counts["COMPLETED"], job.counts["INITIAL"], job.counts["RUNNING"]) == (1, 1, 0), round_
            starter.complete("n1", starter.claim("n1"))
            (job,) = client.jobs((number,), ended=True)
            assert job.state is State.COMPLETED, round_
        (node,) = client.nodes()
        assert (node.id, node.state) == ("n1", "up")
        queue = next(queue for queue in client.queues() if queue.id == "default")
        assert (queue.id, queue.pending, queue.running) == ("default", 0, 0)
        status = client.status()
        assert status.healthy
        assert status.leader is not None
        assert (status.leader.epoch, status.cluster_id) == (1, watchdog.meta.cluster_id)
        assert client.explain(number).state is State.COMPLETED
        with pytest.raises(NotFound):
            client.explain(999)
