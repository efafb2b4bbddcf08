"""Protocols of one submission in the leader's memory, as those who act on it see it. Who only counts or sweeps has one beside itself."""

from __future__ import annotations

from typing import Protocol

from rmgr.coord.decisions.keeping import FailedSeen
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.protocol.multi import Stamped
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.submission import Paged, Submission, Tail


class KnownSubmission(Protocol):
    """A submission and its record; None: it was not read yet."""

    number: int
    submission: Submission | None


class FailedRanges(KnownSubmission, Protocol):
    """Has ranges of tasks that failed. failed: by name. swept: nothing is set aside of it that could go on."""

    failed: dict[str, FailedSeen]
    swept: bool

    def refresh_failed(self) -> None:
        """Reads again which there are."""
        ...


class ChangingRecord(KnownSubmission, Protocol):
    """Has a record that is about to be changed. version: of its znode."""

    version: int
    progress: Progress

    def put_record(self, submission: Submission, version: int) -> None:
        """A commit of ours has made it so."""
        ...

    def refresh(self) -> None:
        """Reads everything again."""
        ...


class EndingSubmission(ChangingRecord, Protocol):
    """Is about to be closed. rows: fragments whose outcomes lie in rows of the store.

    made: transaction that made its record. nonce: a path, and what was found there.
    """

    rows: list[Fragment]
    made: int
    nonce: tuple[str, Stamped | None]

    def will_change(self) -> None:
        """A commit of ours is on its way: its answer says more than the watch."""
        ...


class EndingTail(Protocol):
    """Has a tail to which nothing will be added any more. tail_version: of its znode."""

    number: int
    progress: Progress
    tail_version: int

    def put_tail(self, tail: Tail, version: int) -> None:
        """A commit of ours has made it so."""
        ...

    def refresh(self) -> None:
        """Reads everything again."""
        ...


class PagedFragments(Protocol):
    """Has fragments, the first of which lie in pages of the store. done_version: of the znode that says so."""

    number: int
    paged: Paged
    done_version: int

    def put_paged(self, paged: Paged, version: int) -> None:
        """A commit of ours has made it so."""
        ...

    def refresh(self) -> None:
        """Reads everything again."""
        ...
