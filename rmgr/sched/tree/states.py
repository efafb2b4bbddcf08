"""States of a tree node (figure 2 of the paper: its arrows are lost, its four descriptions are in the text), as a table.

A node is *above the front* when its queue has been served in this round, *below* it when the front is still to come. With tasks a node
above the front is Rounded and one below it is Ready. Under `next_round` a node whose queue was empty is Rounded from the arrival of a task
to the end of the root's round, on either side of the front.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from rmgr.sched.tree.rotation import Rotation


class TreeNodeState(StrEnum):
    """State of a tree node."""

    IDLE = "Idle"
    READY = "Ready"
    ROUNDING = "Rounding"
    ROUNDED = "Rounded"


_I, _Y, _G, _D = TreeNodeState.IDLE, TreeNodeState.READY, TreeNodeState.ROUNDING, TreeNodeState.ROUNDED

#: What each edge means.
EDGES: Mapping[tuple[TreeNodeState, TreeNodeState], str] = MappingProxyType(
    {
        (_I, _Y): "a task came, and the front is still to come",
        (_I, _D): "a task came, and the front has passed; or the task waits for the next round",
        (_Y, _G): "next_turn: the front is here",
        (_Y, _I): "its last task was taken away",
        (_G, _D): "its queue has been served once in this round; the front goes on to the children",
        (_G, _Y): "a sibling of it or of a node above ended the phase; or this round was over and the next begins further up",
        (_G, _I): "its last task has ended",
        (_D, _G): "its subtree's round is over and the next one begins here",
        (_D, _Y): "the next round begins further up",
        (_D, _I): "its last task was taken away, or ended as the round did",
    }
)


def states_of(rotation: Rotation) -> list[TreeNodeState]:
    """The state of every node at the beginning of the present slot. Cost: O(nodes)."""
    tree = rotation.tree
    own = {node: left for node, left, _ in rotation.front()}
    idle = 0 not in own  # no round has begun: the front is still to come everywhere
    late = rotation.late_nodes()
    states: list[TreeNodeState] = []
    heads: list[TreeNodeState] = []  # of each node: what a node below it is that nobody runs
    for node in range(tree.nodes):
        above = heads[(node - 1) // tree.width] if node else _Y if idle else _D
        if node in own:
            heads.append(_Y if own[node] else _D)
            mine = _G if own[node] else _D
        else:
            heads.append(above)
            mine = above
        if rotation.queues[node]:
            states.append(mine)
        else:
            states.append(_D if node in late else _I)
    return states


def diagram() -> str:
    """The table in Mermaid's notation."""
    lines = [f"    {before.value} --> {after.value}: {what}" for (before, after), what in EDGES.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> Idle", *lines])
