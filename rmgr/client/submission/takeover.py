"""Taking a submission over from an owner that died: its record and tail change in one multi, so the old one is fenced.

An owner lives as long as its entry in /submitters exists; a follower that wants the submission waits for that to go.
Lives on the Submitter's thread.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Makes a submission that is followed this Submitter's own.

    Args: look_again: reads again which owners live, and leads to `look`.
    """

    def __init__(self, handle: FollowedSubmission, loop: SubmitterLoop, look_again: Callable[[], None]) -> None:
        self._handle = handle
        self._loop = loop
        self._look_again = look_again
        self._busy = False

    def look(self, alive: frozenset[str]) -> None:
        """Acts if the owner is not among the living. A complete submission is left to the leader."""
        handle = self._handle
        if handle.owned or self._busy or handle.submission.owner in alive:
            return
        if handle.progress.tail.complete or handle.submission.phase in {Phase.CANCELLED, Phase.CLOSED}:
            return
        self._busy = True
        coordinator = self._loop.coordinator
        record_read = coordinator.get(paths.sub(handle.number))
        tail_read = coordinator.get(paths.tail(handle.number))
        tail_read.add_done_callback(lambda _: self._loop.post(lambda: self._read(record_read, tail_read)))

    def _read(self, record_read: Future[Stamped | None], tail_read: Future[Stamped | None]) -> None:
        self._busy = False
        handle, loop = self._handle, self._loop
        try:
            record, tail = record_read.result(0), tail_read.result(0)
        except (RmgrError, TimeoutError):
            loop.after(1.0, self._look_again)
            return
        if record is None or tail is None:
            handle.die(NotFound(f"submission {handle.number} is gone", hint=f"rmgr history {handle.number}"))
            return
        try:
            mine = replace(validity.submission(record.data, handle.number), owner=loop.guid)
            grown = taken_over(validity.tail(tail, handle.number), loop.guid, f"{loop.guid[:12]}-over")
        except RmgrError as error:
            handle.die(error)
            return
        if grown.complete:
            return
        self._busy = True
        failpoint("submitter.before_take_over")
        asked = loop.coordinator.commit(take_ownership(mine, record.version, grown, tail.version))
        asked.add_done_callback(
            lambda answer: loop.post(lambda: self._committed(answer, mine, record.version + 1, grown, tail.version + 1))
        )

    def _committed(self, answer: Future[Any], record: Submission, version: int, tail: Tail, tail_version: int) -> None:
        self._busy = False
        if answer.exception(0) is None and isinstance(answer.result(0), Committed):
            failpoint("submitter.after_take_over")
            self._handle.taken_over(record, version, tail, tail_version)
        else:
            self._loop.after(self._loop.jitter(0.2), self._look_again)
