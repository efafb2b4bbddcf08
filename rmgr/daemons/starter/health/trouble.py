"""Publishes why this Starter takes no work on a node, or none of some users (`/troubles/<node>`): the leader places none there.

What the operator drained, and a Starter that stops, are known from elsewhere and not published.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome, Stat
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import Trouble, TroubleKind
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.core.doors import TreeCommits
    from rmgr.daemons.starter.health.reach import LookedAt
    from rmgr.daemons.starter.health.strikes import Strikes
    from rmgr.runtime.logger import Log

#: Reasons to drain that are published, the one that is shown first.
_KINDS = (TroubleKind.QUARANTINE, TroubleKind.STORE, TroubleKind.DISK, TroubleKind.OTHER)
#: After a refused commit (an older tree has no place for troubles), and between two wordings of the same trouble.
_RETRY_S, _REWORD_S = 5.0, 30.0
_LONGEST = 1000
_MOST_USERS = 32


class TroubledNode(Protocol):
    """The node whose trouble is published. drains: who wants no new work there -> why. fault: why it does nothing, "" = it does."""

    name: str
    incarnation: int
    strikes: Strikes
    drains: dict[str, str]
    fault: str
    log: Log

    @property
    def set_aside(self) -> str:
        """What raised where nothing should, in words, "" = nothing."""
        ...

    @property
    def accounts(self) -> LookedAt | None: ...


class TroubleMark:
    """The published trouble of one node. Owned by the Starter's thread."""

    def __init__(self, node: TroubledNode, shared: TreeCommits) -> None:
        self._node = node
        self._shared = shared
        self._generation = 0
        self.reset()

    def reset(self) -> None:
        """A new registration: whether an older one left a record is looked up before the first change."""
        self._generation += 1
        self._stands: bool | None = None
        self._shown: Trouble | None = None
        self._is_busy = False
        self._next_s = float("-inf")

    def settle(self, now_s: float) -> None:
        """Begins and ends the quarantine; publishes what has changed. Cost: nothing while the node is well."""
        self._quarantine(now_s)
        if self._is_busy or now_s < self._next_s:
            return
        if self._stands is None:
            self._look()
            return
        wanted, shown = self._wanted(now_s), self._shown
        if wanted is None and not self._stands:
            return
        if wanted is not None and shown is not None and self._stands and _are_alike(wanted, shown):
            if wanted.reason == shown.reason:
                return
            if wanted.since_us - shown.since_us < _REWORD_S * 1e6:
                return
        self._is_busy = True
        multi = ops.trouble(self._node.name, self._shared.committer.fence(self._node.name), wanted, stands=self._stands)
        self._shared.committer.commit(multi, partial(self._committed, self._generation, wanted))

    def _quarantine(self, now_s: float) -> None:
        node, kind = self._node, TroubleKind.QUARANTINE
        is_out = node.strikes.is_out(now_s)
        if is_out and kind not in node.drains:
            node.drains[kind] = f"too many failures of the node itself: {node.strikes.last}"
            node.log.error("node_quarantined", why=node.strikes.last)
        elif not is_out and node.drains.pop(kind, None) is not None:
            node.log.info("node_released", why="quarantine is over")

    def _wanted(self, now_s: float) -> Trouble | None:
        node = self._node
        reasons = {**node.drains, TroubleKind.OTHER: node.fault} if node.fault else node.drains
        kind = next((kind for kind in _KINDS if kind in reasons), None)
        refused = dict(list(node.accounts.refused.items())[:_MOST_USERS]) if node.accounts is not None else {}
        aside = node.set_aside
        if kind is None and not refused and not aside:
            return None
        now_us = machine.wall_us()
        until_s = node.strikes.out_until_s if kind is TroubleKind.QUARANTINE else now_s
        return Trouble(
            node=node.name,
            incarnation=node.incarnation,
            kind=kind or (TroubleKind.ASIDE if aside else TroubleKind.USERS),
            reason=(reasons[kind] if kind is not None else "; ".join(filter(None, (aside, *refused.values()))))[:_LONGEST],
            refused={user: why[:_LONGEST] for user, why in refused.items()},
            since_us=now_us,
            until_us=now_us + int((until_s - now_s) * 1e6) if until_s > now_s else 0,
        )

    def _committed(self, generation: int, wanted: Trouble | None, outcome: Outcome) -> None:
        if generation != self._generation:
            return
        self._is_busy = False
        if isinstance(outcome, Committed):
            self._stands, self._shown = wanted is not None, wanted
            return
        assert isinstance(outcome, Conflict)
        self._node.log.warning("trouble_not_published", path=outcome.path, kind=outcome.kind.value)
        self._stands = None
        self._next_s = machine.monotonic() + _RETRY_S

    def _look(self) -> None:
        """Does a record of an older incarnation stand?"""
        self._is_busy = True
        future = self._shared.coordinator.stat(paths.trouble(self._node.name))
        future.add_done_callback(lambda done: self._shared.post(partial(self._seen, self._generation, done)))

    def _seen(self, generation: int, done: Future[Stat | None]) -> None:
        if generation != self._generation:
            return
        self._is_busy = False
        try:
            self._stands = done.result() is not None
        except RmgrError:
            self._next_s = machine.monotonic() + _RETRY_S


def _are_alike(one: Trouble, other: Trouble) -> bool:
    """Only their wording differs, or the moment at which they were made."""
    return abs(one.until_us - other.until_us) < 1_000_000 and replace(one, reason="", since_us=0, until_us=0) == replace(
        other, reason="", since_us=0, until_us=0
    )
