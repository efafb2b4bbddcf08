"""Outages of nodes, by the events alone: what a finished run is checked against."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import takewhile
from typing import NamedTuple

from rmgr.sched.job import Node
from rmgr.sim.engine.setting import Setting
from rmgr.sim.workload.events import NodesFail, NodesRepaired, Window


class _Outage(NamedTuple):
    """No job may run on the node in [start, end)."""

    start_us: int
    end_us: int
    node: int


def outages(setting: Setting, nodes: tuple[Node, ...], until_us: int) -> Iterator[_Outage]:
    """Every failure and every window of maintenance that began before `until_us`. Draws failures again; cost O(nodes + events)."""
    known = {node.id for node in nodes}
    listed = sorted((event for event in setting.events if isinstance(event, NodesFail | NodesRepaired)), key=lambda event: event.at_us)
    drawn = setting.failures.of([node.id for node in nodes], setting.seed) if setting.failures is not None else iter(())
    down: dict[int, int] = {}
    for event in merge(listed, takewhile(lambda event: event.at_us < until_us, drawn), key=lambda event: event.at_us):
        for node in (node for first, last in event.nodes for node in range(first, last + 1) if node in known):
            if isinstance(event, NodesFail):
                down.setdefault(node, event.at_us)
            elif node in down:
                yield _Outage(down.pop(node), event.at_us, node)
    for node, start_us in down.items():
        yield _Outage(start_us, max(until_us, start_us), node)
    for other in setting.events:
        if isinstance(other, Window):
            for first, last in other.nodes:
                for node in sorted(known.intersection(range(first, last + 1))):
                    yield _Outage(other.start_us, other.end_us, node)
