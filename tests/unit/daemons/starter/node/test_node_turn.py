"""The order in which a node acts, the steps omitted in each mode, and when a stopping Starter has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import structlog

from rmgr.config import StarterConfig
from rmgr.daemons.starter.node.loop import StarterEnd
from rmgr.daemons.starter.node.node import NodeAgent
from rmgr.runtime import machine

#: Of each pair the first comes before the second, in every turn that has both.
BEFORE = [
    ("giving.return_barred", "dispatch.run"),
    ("giving.return_refused", "dispatch.run"),
    ("ends.reopening.settle", "dispatch.run"),
    ("jobs.gangs.settle", "dispatch.run"),
    ("jobs.settle", "dispatch.run"),
    ("jobs.settle", "lanes.grant"),
    ("dispatch.run", "puller.run"),
    ("puller.run", "completing.settle"),
    ("completing.settle", "marking.settle"),
    ("completing.settle", "giving.split"),
    ("dispatch.run", "giving.split"),
]
#: What every turn does.
ALWAYS = {"hands.settle", "giving.return_barred", "giving.return_refused", "ends.reopening.settle", "lanes.charge_blocked"}
ALWAYS |= {"completing.settle", "deleted.settle", "marking.settle", "dispatch.level", "logs.flush", "lanes.dismiss"}
ALWAYS |= {"jobs.gangs.settle", "giving.split", "orders.settle"}


class Turn:
    """A node whose parts write down that they were called, and raise where `bad` says so."""

    def __init__(self, *, drains: bool = False, full: bool = False, behind: bool = False, bad: frozenset[str] = frozenset()) -> None:
        self.steps: list[str] = []
        self.bad = bad
        agent: Any = NodeAgent.__new__(NodeAgent)
        self.agent = agent
        for name in ("hands", "giving", "ends", "lanes", "jobs", "dispatch", "puller", "completing", "deleted", "marking", "logs"):
            setattr(agent, name, self.part(name))
        agent.orders = self.part("orders")
        agent.lanes.cores, agent.lanes.free_cores, agent.lanes.overdrawn, agent.cores_shown = 2, 2, 0, 0
        agent.hands.due_s = agent.puller.retry_s = math.inf
        agent.puller.is_hungry = True
        agent.drains = {"operator": "fan"} if drains else {}
        agent.trouble, agent.aside, agent.failing_since_s, agent.fault = MagicMock(), MagicMock(), math.inf, ""
        io = SimpleNamespace(pending_bytes=100 if behind else 0)
        config, home = StarterConfig(spool_cap_bytes=100), SimpleNamespace(generation=0)
        agent.shared = SimpleNamespace(rows=SimpleNamespace(is_full=full), io=io, config=config, home=home)
        agent.settle((), frozenset({"n2"}), machine.monotonic())

    def part(self, name: str) -> Any:
        return _Part(self, name)


class _Part:
    def __init__(self, turn: Turn, name: str) -> None:
        self._turn, self._name = turn, name

    def __getattr__(self, name: str) -> Any:
        made = _Part(self._turn, f"{self._name}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self._name in self._turn.bad:
            raise ValueError(self._name)
        self._turn.steps.append(self._name)
        return False if self._name == "dispatch.level" else math.inf


MODES = list(product((False, True), repeat=3))


@pytest.mark.parametrize(("drains", "full", "behind"), MODES)
def test_the_order_holds_in_each_mode(drains: bool, full: bool, behind: bool) -> None:
    steps = Turn(drains=drains, full=full, behind=behind).steps
    assert len(set(steps)) == len(steps), "each step has one place"
    for first, second in BEFORE:
        if first in steps and second in steps:
            assert steps.index(first) < steps.index(second), (first, second)


@pytest.mark.parametrize(("drains", "full", "behind"), MODES)
def test_each_turn_begins_work_or_lets_it_go_on_and_claims_or_rests(drains: bool, full: bool, behind: bool) -> None:
    turn = Turn(drains=drains, full=full, behind=behind)
    steps = set(turn.steps)
    assert steps >= ALWAYS, "what has ended is always told, and orders are always obeyed"
    assert ("dispatch.run" in steps) == (not (drains or full))
    assert ("lanes.grant" in steps) == (drains or full)
    assert ("puller.run" in steps) == (not (drains or full or behind))
    assert turn.agent.puller.is_hungry == ("puller.run" in steps), "who claims nothing is not hungry"


@pytest.mark.parametrize("bad", sorted(ALWAYS))
def test_a_step_that_raises_costs_no_other_but_those_that_would_begin_what_may_not(bad: str) -> None:
    turn = Turn(bad=frozenset({bad}))
    says_what_may_not_begin = bad in {"giving.return_barred", "giving.return_refused", "ends.reopening.settle"}
    skipped = {"dispatch.run", "jobs.settle", "puller.run"} if says_what_may_not_begin else set()
    assert set(Turn().steps) - set(turn.steps) == {bad} | skipped
    assert turn.agent.aside.add.called
    assert turn.agent.next_s < math.inf, "it is tried again"


GRACE_S = 10.0


@dataclass(eq=False)
class Block:
    live: int = 1


@dataclass
class Node:
    blocks: dict[Any, Any] = field(default_factory=lambda: {"one": Block()})
    killed: list[Any] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.blocks

    def stop_tasks(self, block: Any, *_: Any) -> None:
        self.killed.append(block)


def ending(node: Node) -> StarterEnd:
    end = StarterEnd([node], grace_s=GRACE_S, log=structlog.get_logger())
    assert not end.has_begun
    end.begin(100.0)
    assert end.has_begun
    return end


def is_over(end: StarterEnd, now_s: float, *, acting: bool = True, committing: bool = False) -> bool:
    return end.is_over(now_s, acting=acting, committing=committing)


def test_it_ends_when_the_nodes_are_empty_and_nothing_waits_for_a_commit() -> None:
    node = Node()
    end = ending(node)
    assert not is_over(end, 101.0)
    node.blocks.clear()
    assert not is_over(end, 102.0, committing=True)
    assert is_over(end, 102.0)
    assert node.killed == []


def test_what_runs_at_the_end_of_the_grace_is_killed_once_and_waited_for_a_little() -> None:
    node = Node()
    end = ending(node)
    assert not is_over(end, 109.9)
    assert node.killed == []
    assert not is_over(end, 110.0)
    assert not is_over(end, 110.1)
    assert node.killed == list(node.blocks.values())
    assert not is_over(end, 117.0)
    assert is_over(end, 117.1)


def test_a_second_order_takes_the_grace_away() -> None:
    node = Node()
    end = ending(node)
    assert end.within_s(100.0) == GRACE_S + 15.0
    end.begin(101.0)
    assert end.within_s(101.0) == 15.0
    assert not is_over(end, 101.0)
    assert len(node.killed) == 1


def test_without_contact_nothing_is_waited_for_longer_than_a_moment() -> None:
    end = ending(Node())
    assert not is_over(end, 101.0, acting=False)
    assert not is_over(end, 103.0, acting=True)
    assert not is_over(end, 104.0, acting=False)
    assert not is_over(end, 107.0, acting=False)
    assert is_over(end, 107.1, acting=False)
