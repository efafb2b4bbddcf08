"""The end of a Starter: its nodes take no new work, what runs ends within a grace, what still runs then is killed.

    running --stop--> draining --all nodes empty----------------------> over
                         | grace over: work is killed --all empty-----> over
                         | no contact, or the kills take too long ----> over, with a warning
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from rmgr.model.base.states import Reason

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.blocks import ClaimedBlock
    from rmgr.model.tasks.block import BlockKey
    from rmgr.runtime.logger import Log

#: At the end of the grace: between SIGTERM and SIGKILL of work, and how long its failures may take to be committed.
_KILL_GRACE_S, _LAST_COMMITS_S = 2.0, 5.0
#: What taking the process apart may cost after that.
_CLOSE_S = 8.0
#: Without contact the end waits this long.
_NO_CONTACT_S = 3.0


class EmptyingNode(Protocol):
    """A node that is to become empty. blocks: what it has claimed."""

    @property
    def is_empty(self) -> bool: ...

    @property
    def blocks(self) -> Mapping[BlockKey, ClaimedBlock]: ...

    def stop_tasks(self, block: ClaimedBlock, indices: frozenset[int] | None, reason: Reason, grace_us: int) -> None:
        """Ends live tasks of a block (None: all)."""
        ...


class StarterEnd:
    """Decides when a Starter that stops is over, and kills what runs too long.

    Args: grace_s: how long running work may take to end by itself.
    """

    def __init__(self, nodes: Collection[EmptyingNode], *, grace_s: float, log: Log) -> None:
        self._nodes = nodes
        self._grace_s = grace_s
        self._log = log
        self._kill_s = math.inf  #: when running work is killed (monotonic)
        self._has_begun = False
        self._silent_since_s: float | None = None
        self._killed: set[ClaimedBlock] = set()

    @property
    def has_begun(self) -> bool:
        """Somebody has ordered it."""
        return self._has_begun

    def begin(self, now_s: float) -> None:
        """The first call gives running work its grace, the second one ends it now."""
        self._kill_s = min(self._kill_s, now_s if self._has_begun else now_s + self._grace_s)
        self._has_begun = True
        self._log.info("stopping", deadline_s=round(self._kill_s - now_s, 1))

    def within_s(self, now_s: float) -> float:
        """Seconds until the process is gone at the latest."""
        return self._kill_s - now_s + _KILL_GRACE_S + _LAST_COMMITS_S + _CLOSE_S

    def is_over(self, now_s: float, *, acting: bool, committing: bool) -> bool:
        """Whether the Starter ends now; kills what still runs when its grace is over. acting: its commits are taken."""
        if acting:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = now_s
        if not committing and all(node.is_empty for node in self._nodes):
            return True
        is_silent = self._silent_since_s is not None and now_s - self._silent_since_s > _NO_CONTACT_S
        if is_silent or now_s > self._kill_s + _KILL_GRACE_S + _LAST_COMMITS_S:
            self._log.warning("stopped_with_work", total=sum(len(node.blocks) for node in self._nodes))
            return True
        if now_s >= self._kill_s:
            self._kill()
        return False

    def _kill(self) -> None:
        for node in self._nodes:
            for block in list(node.blocks.values()):
                if block.live and block not in self._killed:
                    self._killed.add(block)
                    node.stop_tasks(block, None, Reason.NODE_LOST, int(_KILL_GRACE_S * 1e6))
