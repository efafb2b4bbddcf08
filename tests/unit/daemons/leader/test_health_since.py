"""Since when the cluster is healthy, or is not: as far as this leader has looked, and not longer than it leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmgr.daemons.leader import answering as place
from rmgr.daemons.leader.answering import LeaderAnswering
from rmgr.errors import CoordinationUnavailable
from rmgr.model.views import LeaderView, StatusView
from rmgr.runtime import machine
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
