"""Why a node takes no work, or none of some users: reasons to drain, failures of its own, and what of it the leader is told.

`/troubles/<node>` says it, and the leader places none there. What the operator drained, and a Starter that stops, are known from elsewhere
and not published.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Outcome
from rmgr.coord.protocol.records import decode_record
from rmgr.errors import RmgrError
from rmgr.model.base.units import format_size
from rmgr.model.cluster.node import Drain, Trouble, TroubleKind
from rmgr.runtime import machine
from rmgr.runtime.story import Story

if TYPE_CHECKING:
    from rmgr.coord.protocol.multi import Stamped
    from rmgr.daemons.starter.core.home import DiskWatch
    from rmgr.daemons.starter.core.io import StoreIO
    from rmgr.daemons.starter.node.node import NodeAgent
    from rmgr.runtime.logger import Log

#: Reasons to drain that are published, the one that is shown first.
_KINDS = (TroubleKind.QUARANTINE, TroubleKind.STORE, TroubleKind.DISK, TroubleKind.OTHER)
#: After a refused commit (an older tree has no place for troubles), and between two wordings of the same trouble.
_RETRY_S, _REWORD_S = 5.0, 30.0
_LONGEST = 1000
_MOST_USERS = 32
#: The node is drained when inputs have waited for the store for so long.
_STARVED_S = 2.0
#: Failures of slots, files, spool within the window that put the node out.
OWN = 5
#: Of these, as many at most count of one user.
OF_ONE_USER = 2
#: Work that could not be started, of this many different submissions: one bad submission puts no node out.
SUBMISSIONS = 4
WINDOW_S = 60.0
#: How long the node stays out.
OUT_S = 60.0


class TroubleMark:
    """The published trouble of one node. Owned by the Starter's thread."""

    def __init__(self, node: NodeAgent) -> None:
        self._node = node
        self._shared = node.shared
        self.reset()

    def reset(self) -> None:
        """A new registration: whether an older one left a record is looked up before the first change."""
        self._stands: bool | None = None
        self._shown: Trouble | None = None
        self._next_s = -math.inf

    def settle(self, now_s: float) -> None:
        """Begins and ends the quarantine; publishes what has changed. Cost: nothing while the node is well."""
        self._quarantine(now_s)
        if now_s < self._next_s:
            return
        if self._stands is None:
            self._node.stories.begin(self._look(), key="trouble")
        elif self._is_news(wanted := self._wanted(now_s)):
            self._node.stories.begin(self._publish(wanted, stands=self._stands), key="trouble")

    def _look(self) -> Story[None]:
        """Does a record of an older incarnation stand?"""
        try:
            self._stands = (yield self._shared.coordinator.stat(paths.trouble(self._node.name))) is not None
        except RmgrError:
            self._next_s = machine.monotonic() + _RETRY_S

    def _publish(self, wanted: Trouble | None, *, stands: bool) -> Story[None]:
        multi = ops.trouble(self._node.name, self._shared.committer.fence(self._node.name), wanted, stands=stands)
        outcome: Outcome = yield self._shared.committer.outcome_of(multi)
        if isinstance(outcome, Committed):
            self._stands, self._shown = wanted is not None, wanted
            return
        assert isinstance(outcome, Conflict)
        self._node.log.warning("trouble_not_published", path=outcome.path, kind=outcome.kind.value)
        self._stands = None
        self._next_s = machine.monotonic() + _RETRY_S

    def _is_news(self, wanted: Trouble | None) -> bool:
        shown = self._shown
        if wanted is None:
            return bool(self._stands)
        if shown is None or not self._stands or not _are_alike(wanted, shown):
            return True
        return wanted.reason != shown.reason and wanted.since_us - shown.since_us >= _REWORD_S * 1e6

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
        aside = node.aside.words
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

def _are_alike(one: Trouble, other: Trouble) -> bool:
    """Only their wording differs, or the moment at which they were made."""
    return abs(one.until_us - other.until_us) < 1_000_000 and replace(one, reason="", since_us=0, until_us=0) == replace(
        other, reason="", since_us=0, until_us=0
    )


# -- reasons to drain ------------------------------------------------------------------------------------------------------
# Reasons for which the nodes of a Starter take no new work: an operator, a full disk, a data store that is away, or the Starter's end. Each
# reason comes and goes by itself; a node works again when none is left.


class Drains:
    """Drains the nodes of one Starter, and resumes them.

    Args: spool_cap: bytes of finished outputs that may wait for the store.
    """

    def __init__(self, nodes: Collection[NodeAgent], disk: DiskWatch, spool: StoreIO, *, spool_cap: int, log: Log) -> None:
        self._nodes = nodes
        self._disk = disk
        self._spool = spool
        self._spool_cap = spool_cap
        self._log = log

    def settle(self, now_s: float) -> None:
        """Looks at the disk and at the store."""
        self._set("disk", self._disk.look(now_s), over="there is room on the disk again")
        self._set("store", self._store_trouble(now_s), over="the data store answers again")

    def ordered(self, node: NodeAgent, found: Stamped | None) -> None:
        """An operator drains the node, or has resumed it."""
        drain = decode_record(found.data, Drain, paths.drain(node.name)) if found is not None else None
        if drain is None or drain.is_over:
            if node.drains.pop("operator", None) is not None:
                self._log.info("node_resumed", node=node.name, by=drain.user if drain is not None else "")
        elif node.drains.get("operator") != drain.reason:
            node.drains["operator"] = drain.reason
            self._log.info("node_drained", node=node.name, why=drain.reason)

    def stopping(self) -> None:
        """The Starter stops."""
        for node in self._nodes:
            node.drains["stopping"] = "the Starter stops"

    def _store_trouble(self, now_s: float) -> str:
        """A store that is away: running work goes on. Nothing new begins when inputs cannot come or outputs find no room."""
        starved_s, pending = self._spool.starved_since_s, self._spool.pending_bytes
        is_drained = any("store" in node.drains for node in self._nodes)
        if pending >= (self._spool_cap // 2 if is_drained and self._spool.down_since_s is not None else self._spool_cap):
            return f"outputs that wait for the data store fill the spool ({format_size(pending)} of {format_size(self._spool_cap)})"
        if starved_s is not None and now_s - starved_s > _STARVED_S:
            return "the data store does not answer, so inputs of work cannot be read"
        return ""

    def _set(self, who: str, why: str, *, over: str) -> None:
        for node in self._nodes:
            if why and who not in node.drains:
                self._log.error("node_drained", node=node.name, why=why)
                node.drains[who] = why
            elif not why and node.drains.pop(who, None) is not None:
                self._log.info("node_resumed", node=node.name, why=over)


# -- failures of its own ---------------------------------------------------------------------------------------------------
# Failures that are the node's own: enough of them in a row and it takes no work for a while (no black hole eats the queue). Pure. What
# fails in slots of one user alone may be that user's doing (processes, disk quota, memory are used up): only his work stays out then.


class Strikes:
    """Recent failures of the node."""

    def __init__(self) -> None:
        self.last = ""
        self._own: deque[float] = deque(maxlen=OWN)
        self._users: dict[str, deque[float]] = {}
        self._starts: dict[str, float] = {}
        self.out_until_s = -math.inf  #: the node takes no work before this (monotonic)

    def add(self, what: str, detail: str, now_s: float, *, user: str = "") -> bool:
        """The node failed at `what`; for `start_failed` the detail begins with the submission and a colon.

        user: whose slot it was in, "" = it was the Starter's own doing. Returns: no more work of this user should run here for a while.
        """
        self.last = f"{what}: {detail}"
        if what == "start_failed":
            self._starts[detail.partition(":")[0]] = now_s
            self._starts = {one: at for one, at in self._starts.items() if now_s - at < WINDOW_S}
            if len(self._starts) >= SUBMISSIONS:
                self._out(now_s)
            return False
        his = self._of(user, now_s) if user else 0
        if his <= OF_ONE_USER:
            self._own.append(now_s)
            if len(self._own) == OWN and now_s - self._own[0] < WINDOW_S:
                self._out(now_s)
        if his < OWN:
            return False
        del self._users[user]
        return True

    def _of(self, user: str, now_s: float) -> int:
        """How many there are of this user with this one."""
        self._users = {one: seen for one, seen in self._users.items() if now_s - seen[-1] < WINDOW_S}
        mine = self._users.setdefault(user, deque())
        mine.append(now_s)
        while now_s - mine[0] >= WINDOW_S:
            mine.popleft()
        return len(mine)

    def success(self) -> None:
        """Work ran well here."""
        self._starts.clear()

    def is_out(self, now_s: float) -> bool:
        """The node takes no work at present."""
        return now_s < self.out_until_s

    def _out(self, now_s: float) -> None:
        self.out_until_s = now_s + OUT_S
        self._own.clear()
        self._users.clear()
        self._starts.clear()
