"""Each reason for a drain comes and goes by itself; a node works again when none is left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from rmgr.coord.protocol.records import encode_record
from rmgr.daemons.starter.node.trouble import Drains
from rmgr.model.cluster.node import Drain


@dataclass
class Node:
    name: str
    drains: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """A disk and a spool, as they are set here."""

    why: str = ""
    pending_bytes: int = 0
    starved_since_s: float | None = None
    down_since_s: float | None = None

    def look(self, _now_s: float) -> str:
        return self.why


@dataclass
class Found:
    data: bytes


def made() -> tuple[World, list[Node], Drains]:
    world, nodes = World(), [Node("n1"), Node("n2")]
    return world, nodes, Drains(nodes, world, world, spool_cap=100, log=structlog.get_logger())


def test_a_node_that_was_resumed_takes_work_again() -> None:
    _, (node, _), drains = made()
    drain = Drain(node="n1", reason="fan", user="op", since_us=1)
    for _ in range(2):
        drains.ordered(node, Found(encode_record(drain)))
        assert node.drains == {"operator": "fan"}
        drains.ordered(node, Found(encode_record(replace(drain, is_over=True))))
        assert node.drains == {}


def test_a_full_disk_drains_all_nodes_until_there_is_room() -> None:
    world, nodes, drains = made()
    world.why = "full"
    drains.settle(0.0)
    assert [node.drains for node in nodes] == [{"disk": "full"}] * 2
    world.why = ""
    drains.settle(1.0)
    assert [node.drains for node in nodes] == [{}, {}]


def test_a_store_that_is_away_drains_late_and_a_full_spool_until_half_of_it_is_free() -> None:
    world, (node, _), drains = made()
    world.starved_since_s = 10.0
    drains.settle(12.0)
    assert node.drains == {}
    drains.settle(12.1)
    assert "does not answer" in node.drains["store"]
    world.starved_since_s, world.down_since_s, world.pending_bytes = None, 10.0, 100
    drains.settle(13.0)
    world.pending_bytes = 50
    drains.settle(14.0)
    assert "store" in node.drains, "it is still away"
    world.pending_bytes = 49
    drains.settle(15.0)
    assert node.drains == {}


def test_an_operators_drain_is_the_nodes_own_and_outlasts_the_others() -> None:
    world, (first, second), drains = made()
    found: Any = Found(encode_record(Drain(node="n1", user="op", since_us=1, reason="new memory")))
    drains.ordered(first, found)
    world.why = "full"
    drains.settle(0.0)
    world.why = ""
    drains.settle(1.0)
    assert (first.drains, second.drains) == ({"operator": "new memory"}, {})
    drains.ordered(first, None)
    assert first.drains == {}
    drains.stopping()
    assert set(first.drains) == set(second.drains) == {"stopping"}
