"""Ownership of submissions: the entry that shows that an owner is alive, and taking over a submission whose owner is gone.

An owner is alive as long as its entry in /submitters exists; the leader leaves its submissions alone until then. A Submitter that
wants a submission waits until that entry is gone, then takes over: record and tail change in one multi, which fences the old owner.
Lives on the Submitter's thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rmgr.coord import validity
from rmgr.coord.ops import membership
from rmgr.coord.ops.membership import is_owner, take_ownership, taken_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed
from rmgr.coord.protocol.ports import SessionState
from rmgr.errors import NotFound, RmgrError
from rmgr.model.cluster.node import SubmitterEntry
from rmgr.model.tasks.submission import Phase
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Bell, Pause, Stories, Story
from rmgr.submitter.port import Stored

if TYPE_CHECKING:
    from rmgr.submitter.direct import Submitter
    from rmgr.submitter.upkeep import Upkeep

_AGAIN_S = 1.0


def entry_of(guid: str) -> SubmitterEntry:
    """Returns the entry of an owner in this process."""
    return SubmitterEntry(guid=guid, host=socket.gethostname(), pid=os.getpid(), since_us=machine.wall_us())


class OwnerEntry:
    """The ephemeral znode of one owner, made with its first submission and again in each new session; two with one guid do no harm."""

    def __init__(self, submitter: Submitter, entry: SubmitterEntry) -> None:
        self._submitter = submitter
        self._entry = entry
        self._stories = Stories(submitter.loop)
        self._wanted = False
        self._session = 0  #: session in which the entry was made
        self._path = ""

    def want(self) -> None:
        """Keeps an entry from now on."""
        self._wanted = True
        self.keep()

    def keep(self) -> None:
        """Makes the entry if this session has none."""
        if self._wanted:
            self._stories.begin(self._make(), key="make")

    def drop(self) -> None:
        """Removes the entry while the session goes on: the leader, or a Submitter that wants them, may have the submissions."""
        self._wanted = False
        if self._path and self._session == self._submitter.coordinator.session_id:
            self._submitter.coordinator.commit(membership.leave(self._path))
        self._path = ""

    def _make(self) -> Story[None]:
        coordinator = self._submitter.coordinator
        while self._wanted and self._submitter.session_state is SessionState.CONNECTED:
            session = coordinator.session_id
            if session == self._session:
                return
            try:
                outcome = yield coordinator.commit(membership.enter(self._entry), timeout_s=5.0)
            except RmgrError:
                outcome = None
            if isinstance(outcome, Committed):
                self._session, self._path = session, outcome.paths[0]
                if not self._wanted:  # dropped meanwhile
                    self.drop()
                return
            yield Pause(self._submitter.jitter(0.5))


class OwnerWatch:
    """Watches which Submitters are alive, once some submission waits for the end of one."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._bell = Bell(submitter.loop)
        self._stories = Stories(submitter.loop)

    def begin(self) -> None:
        """Begins to watch, or looks again."""
        if not self._stories.begin(self._watch(), key="watch"):
            self._bell.ring()

    def look(self) -> None:
        """Reads the entries again, if some submission waits."""
        self._bell.ring()

    def _watch(self) -> Story[None]:
        submitter = self._submitter
        while True:
            try:
                names = yield submitter.coordinator.children(paths.SUBMITTERS, watch=self._bell.ring)
                waiting = [one for one in submitter.upkeeps() if one.wants_ownership]
                wanted = {one.submission.owner for one in waiting}
                there = [f"{paths.SUBMITTERS}/{name}" for name in names or () if paths.entry_guid(name) in wanted]
                found = (yield submitter.coordinator.get_many(there)) if there else ()
            except RmgrError:
                yield Pause(submitter.jitter(_AGAIN_S))
                continue
            # Entries prove which submissions a Submitter owns; a guid alone proves nothing, because everybody can read it.
            living: list[SubmitterEntry] = []
            for path, item in zip(there, found, strict=True):
                with contextlib.suppress(RmgrError):  # not a valid entry
                    living += [validity.decode(item.data, SubmitterEntry, path)] if item is not None else []
            for one in waiting:
                self._decide(one, living)
            yield self._bell.heard()

    def _decide(self, upkeep: Upkeep, living: Sequence[SubmitterEntry]) -> None:
        """Takes a submission over if its owner is gone and it is not complete: the leader ends complete ones."""
        if upkeep.is_over or upkeep.is_owned or any(is_owner(entry, upkeep.submission) for entry in living):
            return
        if upkeep.tail.complete or upkeep.submission.phase in {Phase.CANCELLED, Phase.CLOSED}:
            return
        upkeep.stories.begin(self._take_over(upkeep), key="takeover")

    def _take_over(self, upkeep: Upkeep) -> Story[None]:
        submitter, number, guid = self._submitter, upkeep.number, upkeep.guid
        try:
            record, tail = yield submitter.coordinator.get_many([paths.sub(number), paths.tail(number)])
            if record is None or tail is None:
                upkeep.die(NotFound(f"submission {number} is gone", hint=f"rmgr history {number}"))
                return
            owned = replace(validity.submission(record.data, number), owner=guid)
            grown = taken_over(validity.tail(tail, number), guid, f"{guid[:12]}-over")
            if grown.complete:
                return
            failpoint("submitter.before_take_over")
            outcome = yield submitter.coordinator.commit(take_ownership(owned, record.version, grown, tail.version))
        except RmgrError:
            outcome = None
        if isinstance(outcome, Committed):
            failpoint("submitter.after_take_over")
            upkeep.taken_over(Stored(submission=owned, version=record.version + 1, tail=grown, tail_version=tail.version + 1))
        else:
            submitter.loop.after(submitter.jitter(0.2), self.look)
