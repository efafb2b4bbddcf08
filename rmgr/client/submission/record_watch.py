"""The record of one submission, and the tail of one that somebody else extends: read again whenever they change.

Lives on the Submitter's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from rmgr.client.submission.doors import SubmitterLoop
from rmgr.coord.decisions.view import Progress
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.validity import records as validity
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.tasks.submission import Submission, Tail

#: The record is watched only of a submission that is not over after this (s): what was just read, or made, is known.
_RECORD_S = 0.5


class ChangingSubmission(Protocol):
    """A submission that others change, too. dead: why nothing more will come. is_over: it, or nothing is left to do."""

    number: int
    owned: bool
    dead: RmgrError | None
    progress: Progress

    @property
    def is_over(self) -> bool: ...

    def on_record(self, record: Submission | None, version: int) -> None:
        """The record as it is now; None: the leader has collected the submission."""
        ...

    def on_tail(self, tail: Tail) -> None:
        """The tail as its owner has left it."""
        ...

    def die(self, error: RmgrError) -> None:
        """They cannot be read."""
        ...


class RecordWatch:
    """Watches the record of a submission, and its tail until it is complete or this Submitter's own."""

    def __init__(self, handle: ChangingSubmission, loop: SubmitterLoop) -> None:
        self._handle = handle
        self._loop = loop

    def start(self) -> None:
        """Begins, with the record a little later."""
        self._loop.after(self._loop.jitter(_RECORD_S), self.look)
        if not self._handle.owned:
            self._look_at_tail()

    def look(self) -> None:
        """Reads the record, and again whenever it changes."""
        if not self._handle.is_over:
            self._read(paths.sub(self._handle.number), self._on_record, self.look)

    def _look_at_tail(self) -> None:
        handle = self._handle
        if not (handle.owned or handle.is_over or handle.progress.tail.complete):
            self._read(paths.tail(handle.number), self._on_tail, self._look_at_tail)

    def _on_record(self, found: Stamped | None) -> None:
        if found is None:
            self._handle.on_record(None, 0)
            return
        try:
            record = validity.submission(found.data, self._handle.number)
        except RmgrError as error:
            self._handle.die(error)
        else:
            self._handle.on_record(record, found.version)

    def _on_tail(self, found: Stamped | None) -> None:
        if found is None or self._handle.owned:
            return
        try:
            tail = validity.tail(found, self._handle.number)
        except RmgrError as error:
            self._handle.die(error)
        else:
            self._handle.on_tail(tail)

    def _read(self, path: str, then: Callable[[Stamped | None], None], again: Callable[[], None]) -> None:
        asked = self._loop.coordinator.get(path, watch=lambda: self._loop.post(again))
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._arrived(asked, then, again)))

    def _arrived(self, asked: Future[Stamped | None], then: Callable[[Stamped | None], None], again: Callable[[], None]) -> None:
        if self._handle.dead is not None:
            return
        try:
            found = asked.result(0)
        except (Unavailable, TimeoutError):
            self._loop.after(self._loop.jitter(1.0), again)
        except RmgrError as error:
            self._handle.die(error)
        else:
            then(found)
