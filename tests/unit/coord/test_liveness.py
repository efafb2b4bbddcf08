"""Lost nodes, mass loss and its rate limit."""

from __future__ import annotations

import pytest

from rmgr.coord.decisions import liveness
from rmgr.coord.decisions.liveness import LossWindow, MassLoss, Meter
from rmgr.coord.ops.leader import epoch_check, tidy_node
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Delete
from rmgr.model.base import Capacity
from rmgr.model.node import NodeRecord, NodeState


def a_node(name: str, guid: str, state: NodeState = NodeState.UP) -> NodeRecord:
    return NodeRecord(node=name, incarnation=1, state=state, guid=guid, capacity=Capacity(cores=2, memory_bytes=0))


def test_a_node_without_the_entry_of_its_starter_is_lost() -> None:
    records = {"a": a_node("a", "g1"), "b": a_node("b", "g2"), "c": a_node("c", "g1")}
    assert liveness.lost(records, liveness.guids(["s-g2-0000000001"])) == ["a", "c"]


def test_a_fenced_node_is_not_lost_again() -> None:
    assert liveness.lost({"a": a_node("a", "g1", NodeState.FENCED)}, frozenset()) == []


def test_an_entry_of_an_older_starter_of_the_same_node_does_not_keep_it_alive() -> None:
    assert liveness.lost({"a": a_node("a", "new")}, liveness.guids(["s-old-0000000001"])) == ["a"]


def test_a_node_with_nothing_claimed_is_down_not_broken() -> None:
    assert liveness.fence_reason(0) == "stopped"
    assert liveness.fence_reason(1) != "stopped"


def test_losing_most_starters_in_one_window_is_a_mass_loss() -> None:
    window = LossWindow(0.5, 10.0)
    for number in range(5):
        window.note(f"g{number}", 100.0 + number)
    assert window.verdict(alive=4, now_s=105.0) == MassLoss(lost=5, known=9)
    assert window.verdict(alive=5, now_s=105.0) is None


def test_two_losses_are_never_a_mass_loss() -> None:
    window = LossWindow(0.5, 10.0)
    window.note("a", 1.0)
    window.note("b", 1.0)
    assert window.verdict(alive=0, now_s=1.0) is None
    window.note("c", 1.0)
    assert window.verdict(alive=0, now_s=1.0) == MassLoss(lost=3, known=3)


def test_losses_leave_the_window_and_returns_are_forgotten() -> None:
    window = LossWindow(0.5, 10.0)
    for guid in ("a", "b", "c"):
        window.note(guid, 1.0)
        window.note(guid, 2.0)
    assert window.verdict(alive=1, now_s=5.0) == MassLoss(lost=3, known=4)
    assert window.verdict(alive=1, now_s=11.0) is None
    for guid in ("d", "e", "f"):
        window.note(guid, 20.0)
    window.returned("e")
    assert window.verdict(alive=1, now_s=21.0) is None


def test_a_meter_lets_a_seconds_worth_pass_at_once_and_then_its_rate() -> None:
    meter = Meter(2.0, 0.0)
    assert [meter.take(0.0), meter.take(0.0)] == [0.0, 0.0]
    assert meter.take(0.0) == pytest.approx(0.5)
    assert meter.take(0.25) == pytest.approx(0.25)
    assert meter.take(0.5) == 0.0
    assert meter.take(100.0) == 0.0
    assert meter.take(100.0) == 0.0
    assert meter.take(100.0) > 0


def test_a_meter_below_one_a_second_still_lets_the_first_pass() -> None:
    meter = Meter(0.1, 0.0)
    assert meter.take(0.0) == 0.0
    assert meter.take(1.0) == pytest.approx(9.0)


def test_tidying_a_fenced_node_checks_both_fences_and_stays_below_the_caps() -> None:
    multi = tidy_node(5, "a", 3, orders=[f"{n:03d}" for n in range(300)], idle=True)
    assert multi.ops[:2] == (epoch_check(5), Check(paths.node("a"), 3))
    assert len(multi.ops) == 193
    assert multi.ops[-1] == Delete(paths.idle("a"))
    assert tidy_node(5, "a", 3, orders=[], idle=False) is None
