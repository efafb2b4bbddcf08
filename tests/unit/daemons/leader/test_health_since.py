"""Since when the cluster is healthy, or is not: as far as this leader has looked, and not longer than it leads."""

from __future__ import annotations

from typing import Any

from rmgr.daemons.leader.term.view import LeaderAnswering
from rmgr.model.views import LeaderView, StatusView
from rmgr.runtime import machine
from tests.harness.memory import MemoryCoordinator
from tests.harness.memory_tree import MemoryTree


def call(_what: object) -> Any:
    raise AssertionError("nothing is asked of the loop")


def seen(*, healthy: bool, epoch: int = 3) -> StatusView:
    leader = LeaderView(id="w1", host="h1", pid=1, epoch=epoch, since_us=epoch * 1000)
    return StatusView(healthy=healthy, leader=leader, zookeeper={}, store={}, counts={}, nodes={})


def test_it_changes_when_health_does_and_begins_with_the_leader() -> None:
    answering = LeaderAnswering(MemoryCoordinator(MemoryTree()), dict, lambda: None, call, cluster_id=str)

    def since_us(view: StatusView) -> int:
        return answering._since(view).healthy_since_us

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
