"""Asks Starters for the load of their nodes, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rmgr.errors import Unavailable
from rmgr.model.views import NodeView
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

#: How long a Starter may take to answer.
ASK_S = 1.0


def with_stats(nodes: list[NodeView], via: str, credentials: Credentials | None) -> list[NodeView]:
    """`nodes` with load, memory and running tasks, where their Starters answer in time; a node whose session lives was seen just now."""
    from rmgr.adapters.rpc.server import NodeClient, NodeStats

    def ask(endpoint: str) -> dict[str, NodeStats]:
        try:
            with NodeClient(endpoint, timeout_s=ASK_S, via=via, credentials=credentials) as client:
                return {item.node: item for item in client.stats()}
        except Unavailable:
            return {}

    endpoints = sorted({node.endpoint for node in nodes if node.endpoint})
    answers: dict[str, NodeStats] = {}
    if endpoints:
        with machine.pool(min(32, len(endpoints)), "stats") as pool:
            for answer in pool.map(ask, endpoints):
                answers |= answer
    now = machine.wall_us()
    measured = []
    for node in nodes:
        stats = answers.get(node.id) if node.endpoint else None
        if stats is not None:
            reason = node.reason or stats.reason
            node = msgspec.structs.replace(  # noqa: PLW2901 - the same node, better known
                node,
                load=stats.load,
                running=stats.running,
                cores_used=stats.cores_used,
                memory_used_bytes=stats.memory_used_bytes,
                resources_used=stats.resources_used or node.resources_used,
                reason=reason,
                freezer=stats.freezer,
                clock_error_us=stats.clock_error_us,
                switches=stats.switches,
                late_switches=stats.late_switches,
            )
        measured.append(msgspec.structs.replace(node, seen_us=now) if node.endpoint else node)
    return measured
