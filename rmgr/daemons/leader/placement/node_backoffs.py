"""Nodes that gave a job back without having begun it are left alone for a while.

A Starter takes nothing new while its disk is full, its store is away, or too much went wrong on it; it says so in its log, and the leader
sees only that jobs come back. Such a node is the emptiest of all: every waiting job would go there, and come back, again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rmgr.daemons.leader.core.doors import LoopTimers
from rmgr.daemons.leader.records.job_table import PlacedJob
from rmgr.model.tasks.block import BlockKey
from rmgr.runtime.logger import Log

#: The first back-off of a node, and the longest; each one that follows closely on the last is twice as long.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: A job that waits again later than this after it left its node was released by somebody, not given back.
_SOON_S = 10.0
#: Jobs that have left their nodes last; most of them have ended.
_KEPT = 1_000


@dataclass(slots=True)
class _Backoff:
    length_s: float
    until_s: float


class NodeBackoffs:
    """Knows which nodes are left alone, and for how long. In the leader's loop.

    Args:
        over: called when the back-off of a node is over.
    """

    def __init__(self, loop: LoopTimers, log: Log, over: Callable[[], None]) -> None:
        self._loop = loop
        self._log = log
        self._over = over
        self._left: OrderedDict[int, tuple[BlockKey, str, float]] = OrderedDict()  # job -> its block, its node, when it had left
        self._backoffs: dict[str, _Backoff] = {}

    def left(self, job: int, placed: PlacedJob) -> None:
        """The job is not on its node any more: it has ended, or comes back."""
        if len(placed.allocation.shares) > 1:
            return  # nobody knows which of its nodes was not ready
        self._left[job] = (placed.key, placed.node, self._loop.clock())
        if len(self._left) > _KEPT:
            self._left.popitem(last=False)

    def came(self, job: int, key: BlockKey) -> bool:
        """The job waits; the same attempt as before was not begun. True: its node is left alone from now on."""
        before = self._left.pop(job, None)
        if before is None or before[0] != key or self._loop.clock() - before[2] > _SOON_S:
            return False
        return self._back_off(before[1])

    def _back_off(self, node: str) -> bool:
        now_s, last = self._loop.clock(), self._backoffs.get(node)
        if last is not None and now_s < last.until_s:
            return False  # it was given several jobs at once
        is_again = last is not None and now_s < last.until_s + max(_SOON_S, last.length_s)
        length_s = min(_LONGEST_S, last.length_s * 2) if last is not None and is_again else _FIRST_S
        self._backoffs[node] = _Backoff(length_s, now_s + length_s)
        self._log.warning("node_backs_off", node=node, seconds=length_s, why="it gave a job back that it had not begun")
        self._loop.after(length_s, self._over)
        return True

    def under_way(self) -> dict[str, float]:
        """Node -> seconds until it is tried again."""
        now_s = self._loop.clock()
        return {node: backoff.until_s - now_s for node, backoff in self._backoffs.items() if backoff.until_s > now_s}

    def is_left_alone(self, node: str) -> bool:
        """Whether nothing is to be placed there now."""
        backoff = self._backoffs.get(node)
        return backoff is not None and self._loop.clock() < backoff.until_s
