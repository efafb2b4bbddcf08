"""A leader's answers about the cluster: since when it is healthy or not, and which Starters the leader cannot reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rmgr.coord.views.health import unreached
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader import answering as place
from rmgr.daemons.leader.answering import LeaderAnswering, StarterReach
from rmgr.errors import CoordinationUnavailable
from rmgr.model.base.resources import Capacity
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.views import LeaderView, Level, StatusView
from rmgr.runtime import machine
from tests.harness.fair_time import FairTimer
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree


def call(_what: object) -> Any:
    raise AssertionError("nothing is asked of the loop")


def seen(*, healthy: bool, epoch: int = 3) -> StatusView:
    leader = LeaderView(id="w1", host="h1", pid=1, epoch=epoch, since_us=epoch * 1000)
    return StatusView(healthy=healthy, leader=leader, zookeeper={}, store={}, counts={}, nodes={})


class Hour(Exception):
    """It is over."""


def test_a_look_follows_each_change_of_the_nodes_within_two_seconds_and_an_idle_cluster_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = SimpleNamespace(node_changes=0)
    clock, looks, fails = [0.0], list[float](), [1000.0]

    def sleep(pause_s: float) -> None:
        for change_s in (100.4, 100.9, 1000.0, 2000.0):
            leader.node_changes += clock[0] < change_s <= clock[0] + pause_s
        clock[0] += pause_s
        if clock[0] > 3600:
            raise Hour

    class Answering(LeaderAnswering):
        def status(self, **_: Any) -> Any:
            looks.append(clock[0])
            if clock[0] == 2000.0:
                clock[0] += 0.5  # a large cluster
            if fails and clock[0] >= fails[0]:
                fails.clear()
                raise CoordinationUnavailable("not now")

    monkeypatch.setattr(place, "machine", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0], wall_us=machine.wall_us))
    answering: Any = Answering(MemoryCoordinator(MemoryTree()), dict, lambda: leader, call, cluster_id=str)  # type: ignore[arg-type]
    with pytest.raises(Hour):
        answering.watch_health(SimpleNamespace())
    for change_s in (100.4, 1000.0, 2000.0):
        assert any(0 <= at - change_s <= 1.0 for at in looks), looks
    assert any(1000.0 < at <= 1002.0 for at in looks), "what has failed is looked at again soon"
    assert not any(2000.5 < at < 2010 for at in looks), "one that takes long is not made again at once"
    assert len(looks) <= 3600 / place.LOOK_S + 6, looks


def test_it_changes_when_health_does_and_begins_with_the_leader() -> None:
    answering = LeaderAnswering(MemoryCoordinator(MemoryTree()), dict, lambda: None, call, cluster_id=str)

    def since_us(view: StatusView) -> int:
        return answering.since(view).healthy_since_us

    assert since_us(seen(healthy=True)) == 3000
    before_us = machine.wall_us()
    fell_us = since_us(seen(healthy=False))
    assert fell_us >= before_us
    assert since_us(seen(healthy=False)) == fell_us, "it is as it was"
    rose_us = since_us(seen(healthy=True))
    assert fell_us <= rose_us <= machine.wall_us()
    assert since_us(seen(healthy=True)) == rose_us
    assert since_us(seen(healthy=True, epoch=4)) == 4000, "another leader has seen nothing of that"
    nobody = StatusView(healthy=False, leader=None, zookeeper={}, store={}, counts={}, nodes={})
    assert since_us(nobody) == 0


@pytest.mark.parametrize(("took_s", "anew"), [(0.01, [True, True, True]), (0.1, [True, False, True])])
def test_claimed_blocks_are_as_new_as_the_question_where_reading_them_is_quick(
    took_s: float, anew: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, readings = [0.0], list[float]()

    def claimed_blocks(*_: object, **__: object) -> tuple[()]:
        readings.append(clock[0])
        clock[0] += took_s
        return ()

    monkeypatch.setattr(place, "machine", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(place, "claimed_blocks", claimed_blocks)
    leader: Any = SimpleNamespace(node_names=())
    answering: Any = LeaderAnswering(MemoryCoordinator(MemoryTree()), dict, lambda: leader, call, cluster_id=str)
    found = list[bool]()
    for at_s in (10.0, 10.2, 10.6):
        clock[0], before = at_s, len(readings)
        answering._read_claimed()
        found.append(len(readings) > before)
    assert found == anew


HERE = socket.gethostname()


def record(name: str, endpoint: str, host: str = HERE) -> NodeRecord:
    capacity = Capacity(cores=2, memory_bytes=0)
    return NodeRecord(node=name, incarnation=1, state=NodeState.UP, guid=f"g-{name}", capacity=capacity, endpoint=endpoint, host=host)


def snapshot(*records: NodeRecord, without: str = "") -> ClusterSnapshot:
    alive = frozenset(one.guid for one in records if one.node != without)
    return ClusterSnapshot(settings=ClusterSettings(), nodes={one.node: one for one in records}, alive=alive)


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        yield server


def test_of_a_hundred_nodes_the_dead_one_is_told(door: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        dead = f"127.0.0.1:{other.getsockname()[1]}"
    nodes = [record(f"n{number}", f"127.0.0.1:{door.getsockname()[1]}") for number in range(99)] + [record("n99", dead)]
    reach = StarterReach(lambda: nodes, structlog.get_logger())
    reach.look()
    assert reach.unreached(snapshot(*nodes)) == {}  # it may be starting anew
    reach.look()
    with FairTimer() as timer:
        assert reach.unreached(snapshot(*nodes)) == {"n99": dead}
    assert timer.elapsed_s < 0.5
    assert reach.unreached(snapshot(*nodes, without="n99")) == {}  # it is lost: told otherwise
    nodes[-1] = record("n99", f"127.0.0.1:{door.getsockname()[1]}")
    assert reach.unreached(snapshot(*nodes)) == {}
    reach.look()
    assert reach.unreached(snapshot(*nodes)) == {}


def test_loopback_is_no_address_where_there_are_several_machines(door: socket.socket) -> None:
    endpoint = f"127.0.0.1:{door.getsockname()[1]}"  # something else listens there, on the leader's machine
    nodes = [record("n1", endpoint, "elsewhere")]
    reach = StarterReach(lambda: nodes, structlog.get_logger())
    for _ in range(2):
        reach.look()
    assert reach.unreached(snapshot(*nodes)) == {"n1": endpoint}
    nodes[:] = []
    reach.look()
    assert reach.unreached(snapshot()) == {}


def test_one_sentence_says_it_of_all() -> None:
    assert unreached({}) == ()
    (part,) = unreached({f"n{number}": f"10.0.0.{number}:7072" for number in range(1, 10)})
    assert part.level == Level.WARNING
    assert part.reason.startswith("the leader does not reach nodes n1 at 10.0.0.1:7072, n2 at 10.0.0.2:7072, ")
    assert ", and 1 more: their output comes late" in part.reason
    assert "[starter] listen" in part.fix
