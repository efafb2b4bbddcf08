"""Makes what the parts of a leader work with: its term, ZooKeeper under its fence, calls that wait, seals of placements.

Each part gets those that it needs; only those who make parts know the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from rmgr.adapters.identity.credentials import Credentials
from rmgr.coord.protocol.ports import Coordinator, Store
from rmgr.daemons.leader.core.calls import WaitingCalls
from rmgr.daemons.leader.core.doors import Thunk
from rmgr.daemons.leader.core.metrics import LeaderMetrics
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.tree import LeaderTree
from rmgr.runtime import machine
from rmgr.runtime.aside import Aside
from rmgr.runtime.logger import Log
from rmgr.runtime.mailbox import Mailbox


class LeaderContext:
    """One leadership: from TAKE-OVER until the fence is lost.

    Args:
        epoch_version: E, checked by every commit. epoch: the number shown to people.
        mailbox: of the loop; its messages are thunks.
        io: where store calls run (they block).
        deposed: called once, in the loop, when the leadership has ended by itself.
        may_act: the lease is valid; asked before each commit.
        credentials: of this WatchDog, None in an open cluster.
        clock: monotonic seconds. wall_us: microseconds since the epoch, for people and retention only.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: Store,
        mailbox: Mailbox[Thunk],
        *,
        epoch_version: int,
        epoch: int,
        io: Executor,
        deposed: Callable[[str], None],
        may_act: Callable[[], bool],
        log: Log,
        metrics: LeaderMetrics,
        clock: Callable[[], float] | None = None,
        wall_us: Callable[[], int] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.credentials = credentials
        aside = Aside(log, metrics.loop_errors.inc)
        self.term = Term(epoch, epoch_version, log, metrics, wall_us or machine.wall_us, aside)
        self.tree = LeaderTree(coordinator, mailbox, self.term, deposed=deposed, may_act=may_act, clock=clock or machine.monotonic)
        self.calls = WaitingCalls(coordinator, store, io, self.tree.soon, self.term)
