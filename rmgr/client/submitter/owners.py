"""Watches which Submitters live, for submissions that wait for the end of their owner.

An owner lives as long as its entry in /submitters exists (`entry.py`). Lives on the Submitter's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.coord.ops.owner import is_owner
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.validity import records as validity
from rmgr.errors import RmgrError
from rmgr.model.cluster.node import SubmitterEntry
from rmgr.model.tasks.submission import Submission


class OwnedSubmission(Protocol):
    """A submission that somebody owns. wants_ownership: this Submitter takes it over when its owner is gone."""

    submission: Submission
    wants_ownership: bool

    def look_at_owner(self, alive: frozenset[str]) -> None:
        """Acts if its owner's guid is not in `alive`."""
        ...


class OwnerWatch:
    """Watches the entries of Submitters, once somebody waits for the end of one.

    Args: submissions: all of this Submitter's.
    """

    def __init__(self, loop: SubmitterLoop, submissions: Callable[[], Iterable[OwnedSubmission]]) -> None:
        self._loop = loop
        self._submissions = submissions
        self._is_watching = False

    def begin(self) -> None:
        """Watches from now on, and looks."""
        self._is_watching = True
        self.look()

    def reconnected(self) -> None:
        """Watches again in a new session, if anybody waits."""
        if self._is_watching:
            self.look()

    def look(self) -> None:
        """Reads which Submitters live, and again whenever one comes or goes."""
        asked = self._loop.coordinator.children(paths.SUBMITTERS, watch=lambda: self._loop.post(self.look))
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._listed(asked)))

    def _listed(self, asked: Future[list[str] | None]) -> None:
        try:
            names = asked.result(0) or []
        except RmgrError:
            self._look_again()
            return
        wanted = {one.submission.owner for one in self._submissions() if one.wants_ownership}
        there = [f"{paths.SUBMITTERS}/{name}" for name in names if paths.entry_guid(name) in wanted]
        if not there:
            self._decide([])
            return
        read = self._loop.coordinator.get_many(there)
        read.add_done_callback(lambda _: self._loop.post(lambda: self._read(there, read)))

    def _read(self, there: Sequence[str], read: Future[list[Stamped | None]]) -> None:
        """The entries say whose submissions each Submitter looks after: a guid alone proves nothing, for everybody can read it."""
        try:
            found = read.result(0)
        except RmgrError:
            self._look_again()
            return
        entries = []
        for path, item in zip(there, found, strict=True):
            with contextlib.suppress(RmgrError):  # what stands there is no entry
                entries += [validity.decode(item.data, SubmitterEntry, path)] if item is not None else []
        self._decide(entries)

    def _decide(self, living: Sequence[SubmitterEntry]) -> None:
        for one in list(self._submissions()):
            one.look_at_owner(frozenset(entry.guid for entry in living if is_owner(entry, one.submission)))

    def _look_again(self) -> None:
        self._loop.after(self._loop.jitter(1.0), self.look)
