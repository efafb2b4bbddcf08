"""The history's retention: summaries of submissions that ended longer ago than the settings say are removed, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.leader.core.doors import LoopTimers, StoreCalls
from rmgr.daemons.leader.core.term import Term
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.procedures.history import ended_before, forget, oldest_end
from rmgr.runtime import machine

#: How often old summaries are looked for.
LOOK_S = 3600.0
#: Summaries removed by one turn of the store thread; between two turns it does other things.
_A_TURN = 100


class HistoryKeeper:
    """Removes what is older than `history_retention`; what fails is tried again at the next look."""

    def __init__(self, loop: LoopTimers, term: Term, calls: StoreCalls, settings: Callable[[], ClusterSettings]) -> None:
        self._loop = loop
        self._term = term
        self._calls = calls
        self._settings = settings

    def start(self) -> None:
        """Begins to look now and then."""
        self._loop.after(machine.uniform(0.5, 1.0) * LOOK_S, self._look)

    def _look(self) -> None:
        self._loop.after(machine.uniform(0.8, 1.2) * LOOK_S, self._look)
        retention_us = self._settings().history_retention_us
        if retention_us:
            self._remove(self._term.wall_us() - retention_us, 0)

    def _remove(self, before_us: int, removed: int) -> None:
        self._calls.store(partial(_remove_some, before_us=before_us), partial(self._removed, before_us, removed), lambda _: None)

    def _removed(self, before_us: int, before: int, count: int) -> None:
        if count == _A_TURN:
            self._remove(before_us, before + count)
        elif before + count:
            self._term.log.info("history_purged", total=before + count)


def _remove_some(store: Store, *, before_us: int) -> int:
    """Removes up to `_A_TURN` summaries; returns how many. On a thread that may wait."""
    old = list(islice(ended_before(store, before_us, after=oldest_end(store, before_us)), _A_TURN))
    for view in old:
        forget(store, view)
    return len(old)
