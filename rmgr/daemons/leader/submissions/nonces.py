"""Deletes the znodes of nonces under which nothing can be submitted any more (`coord/nonces.py`), once their submissions have gone.

They are told by their names, which say when they were drawn; those of submissions that are there stay. What time it is says ZooKeeper,
whose clock Starters go by, too: that of `/epoch` when this leadership began, and what has passed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmgr.coord import nonces
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Conflict, Delete, Gone, Multi, Outcome, Stat, Unknown
from rmgr.daemons.leader.core.doors import LeaderCommits
from rmgr.daemons.leader.core.term import Term
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: How often they are looked through.
SWEEP_S = 600.0
#: Deleted together.
_TOGETHER = 180


class NonceSweeper:
    """In the leader's loop.

    Args: used: nonces of all submissions; None: not all of them were read yet.
    """

    def __init__(self, tree: LeaderCommits, term: Term, used: Callable[[], set[str] | None]) -> None:
        self._tree = tree
        self._term = term
        self._used = used
        self._ahead_s: float | None = None  #: so much the clock of ZooKeeper is ahead of the loop's, at least

    def start(self) -> None:
        """Begins to look now and then."""
        self._tree.after(machine.uniform(0.5, 1.0) * SWEEP_S, self._sweep)
        self._tree.stat(paths.EPOCH, self._on_epoch)

    def _on_epoch(self, found: Stat | None) -> None:
        if found is not None and self._ahead_s is None:
            self._ahead_s = found.mtime_ms / 1000 - self._tree.clock()

    def _sweep(self) -> None:
        self._tree.after(machine.uniform(0.8, 1.2) * SWEEP_S, self._sweep)
        if self._ahead_s is None:
            self._tree.stat(paths.EPOCH, self._on_epoch)
        else:
            self._tree.children(paths.NONCES, partial(self._on_names, self._ahead_s + self._tree.clock()))

    def _on_names(self, now_s: float, names: list[str] | None) -> None:
        """Cost: 1 us a name; 2 us a submission where one goes."""
        over = [f"{paths.NONCES}/{name}" for name in names or () if nonces.is_over(name, now_s)]
        used = self._used() if over else None
        if used is not None:
            self._forget([path for path in over if path not in used])

    def _forget(self, gone: Sequence[str]) -> None:
        some = gone[:_TOGETHER]
        if some:
            failpoint("leader.before_forget_nonces")
            multi = Multi(name="FORGET_NONCES", ops=tuple(map(Delete, some)), proof=Gone(some[-1]))
            self._tree.commit(multi, partial(self._forgotten, gone))

    def _forgotten(self, gone: Sequence[str], outcome: Outcome) -> None:
        """Who has made one may have put something below it: it stays, and the others go."""
        match outcome:
            case Committed():
                self._term.log.info("nonces_forgotten", total=min(len(gone), _TOGETHER), epoch=self._term.epoch)
                self._forget(gone[_TOGETHER:])
            case Conflict(path=path):
                self._forget([one for one in gone if one != path])
            case Unknown():
                pass  # looked through again
