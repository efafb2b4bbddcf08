"""Shows in ZooKeeper (`/idle/<node>`) whether a node wants work: with a COMPLETE or CLAIM where there is one, else alone after a moment."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol.multi import Conflict, Outcome

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.commits import Committer, IdleMark
    from rmgr.daemons.starter.pull.hands import Hands
    from rmgr.daemons.starter.pull.pull import Puller

#: How long a hungry node waits for a COMPLETE that could carry its mark, and a sated one for a CLAIM that removes it.
_IDLE_DELAY_S, _SATED_DELAY_S = 0.01, 0.5


class IdleNode(Protocol):
    """The node that wants work, or does not."""

    name: str
    idle: IdleMark
    puller: Puller
    hands: Hands

    @property
    def is_draining(self) -> bool: ...


class IdleMarking:
    """Creates and deletes the idle marker of one node. In the loop."""

    def __init__(self, node: IdleNode, committer: Committer) -> None:
        self._node = node
        self._committer = committer
        self._wrong_s: float | None = None

    def reset(self) -> None:
        """A new registration."""
        self._wrong_s = None

    def settle(self, now_s: float) -> float:
        """Commits the change that no other commit has made. Returns: when to call again (monotonic), inf = when something changes."""
        node, idle = self._node, self._node.idle
        hungry = node.puller.is_hungry
        if hungry == idle.present:
            self._wrong_s = None
            return math.inf
        if idle.changing or node.puller.in_flight:
            return math.inf
        self._wrong_s = now_s if self._wrong_s is None else self._wrong_s
        at_s = self._wrong_s + (_IDLE_DELAY_S if hungry or node.is_draining else _SATED_DELAY_S)
        if now_s < at_s:
            return at_s
        idle.changing = True
        multi = ops.mark_idle(node.name, self._committer.fence(node.name), idle=hungry)
        self._committer.commit(multi, partial(self._marked, hungry))
        return math.inf

    def _marked(self, idle: bool, outcome: Outcome) -> None:
        mark = self._node.idle
        mark.changing = False
        mark.present = idle  # a Conflict says that it was so already
        if not idle and isinstance(outcome, Conflict):
            self._node.hands.look()
