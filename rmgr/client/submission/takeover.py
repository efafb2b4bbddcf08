"""Taking a submission over from an owner that died: its record and tail change in one multi, so the old one is fenced.

An owner lives as long as its entry in /submitters exists; a follower that wants the submission waits for that to go.
Lives on the Submitter's thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.coord.decisions.view import Progress
from rmgr.coord.ops.owner import take_ownership, taken_over
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Committed, Stamped
from rmgr.coord.validity import records as validity
from rmgr.errors import NotFound, RmgrError
from rmgr.model.tasks.submission import Phase, Submission, Tail
from rmgr.runtime.failpoint import failpoint


class TakeoverLoop(SubmitterLoop, Protocol):
    """The Submitter's thread, and its look at who is alive."""

    def look_at_owners(self) -> None:
        """Reads the entries of owners again."""
        ...


class FollowedSubmission(Protocol):
    """A submission that is followed, and may become this Submitter's own."""

    number: int
    submission: Submission
    owned: bool
    progress: Progress

    def die(self, error: RmgrError) -> None:
        """Nothing more will come."""
        ...

    def taken_over(self, record: Submission, version: int, tail: Tail, tail_version: int) -> None:
        """It is ours now."""
        ...


class Takeover:
    """How a handle that follows becomes one that owns."""

    def __init__(self, handle: FollowedSubmission, engine: TakeoverLoop) -> None:
        self._handle = handle
        self._engine = engine
        self._busy = False

    def look(self, alive: frozenset[str]) -> None:
        """Acts if the owner is not among the living. A complete submission is left to the leader."""
        handle = self._handle
        if handle.owned or self._busy or handle.submission.owner in alive:
            return
        if handle.progress.tail.complete or handle.submission.phase in {Phase.CANCELLED, Phase.CLOSED}:
            return
        self._busy = True
        coordinator = self._engine.coordinator
        record_read = coordinator.get(paths.sub(handle.number))
        tail_read = coordinator.get(paths.tail(handle.number))
        tail_read.add_done_callback(lambda _: self._engine.post(lambda: self._read(record_read, tail_read)))

    def _read(self, record_read: Future[Stamped | None], tail_read: Future[Stamped | None]) -> None:
        self._busy = False
        handle, engine = self._handle, self._engine
        try:
            record, tail = record_read.result(0), tail_read.result(0)
        except (RmgrError, TimeoutError):
            engine.after(1.0, engine.look_at_owners)
            return
        if record is None or tail is None:
            handle.die(NotFound(f"submission {handle.number} is gone", hint=f"rmgr history {handle.number}"))
            return
        try:
            mine = replace(validity.submission(record.data, handle.number), owner=engine.guid)
            grown = taken_over(validity.tail(tail, handle.number), engine.guid, f"{engine.guid[:12]}-over")
        except RmgrError as error:
            handle.die(error)
            return
        if grown.complete:
            return
        self._busy = True
        failpoint("submitter.before_take_over")
        asked = engine.coordinator.commit(take_ownership(mine, record.version, grown, tail.version))
        asked.add_done_callback(
            lambda answer: engine.post(lambda: self._committed(answer, mine, record.version + 1, grown, tail.version + 1))
        )

    def _committed(self, answer: Future[Any], record: Submission, version: int, tail: Tail, tail_version: int) -> None:
        self._busy = False
        engine = self._engine
        if answer.exception(0) is None and isinstance(answer.result(0), Committed):
            failpoint("submitter.after_take_over")
            self._handle.taken_over(record, version, tail, tail_version)
        else:
            engine.after(engine.jitter(0.2), engine.look_at_owners)
