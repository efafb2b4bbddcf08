"""Starters that a leader does not reach: told after the second time, forgotten once they answer, and nobody waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
import structlog

from rmgr.coord.views.health import unreached
from rmgr.coord.views.snapshot import ClusterSnapshot
from rmgr.daemons.leader.answering import StarterReach
from rmgr.model.base.resources import Capacity
from rmgr.model.cluster.node import NodeRecord, NodeState
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.model.views import Level

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
    begun_s = time.monotonic()
    assert reach.unreached(snapshot(*nodes)) == {"n99": dead}
    assert time.monotonic() - begun_s < 0.5
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
