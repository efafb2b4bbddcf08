"""A Starter that stops is over when its nodes are empty, and at the latest a while after its work was killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import structlog

from rmgr.daemons.starter.node.loop import StarterEnd

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
