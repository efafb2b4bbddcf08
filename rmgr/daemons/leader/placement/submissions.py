"""Reads the records of submissions whose jobs wait or run, many in one request. In the leader's loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.daemons.leader.core.doors import LeaderReads
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.records.job_table import JobTable
from rmgr.errors import RmgrError
from rmgr.model.tasks.submission import Submission

#: Records that are read by one request, and decoded in one message.
_TOGETHER = 64
#: A record that was not there, and one that cannot be read: read again after this.
_PAUSE_S, _LONG_PAUSE_S = 1.0, 60.0
#: Errors that are remembered.
_MOST_ODD = 1000


class SubmissionRecords:
    """Records by number, kept in the job table. nobodys: those that were not there, or cannot be read, when they were read last.
    odd: why the latter cannot."""

    def __init__(self, tree: LeaderReads, term: Term, job_table: JobTable, wake: Callable[[], None]) -> None:
        self.nobodys: set[int] = set()
        self._tree = tree
        self._term = term
        self._job_table = job_table
        self._wake = wake
        self._wanted: list[int] = []
        self.odd: dict[int, str] = {}

    def get(self, number: int) -> Submission | None:
        """Its record; None while it is being read, or when it is gone."""
        if number not in self._job_table.submissions:
            self._job_table.submissions[number] = None
            if not self._wanted:
                self._tree.soon(self._read)
            self._wanted.append(number)
        return self._job_table.submissions[number]

    def _read(self) -> None:
        wanted, self._wanted = self._wanted, []
        for at in range(0, len(wanted), _TOGETHER):
            some = wanted[at : at + _TOGETHER]
            self._tree.get_all(
                [paths.sub(number) for number in some], partial(self._on_records, some), failed=partial(self._unread, some)
            )

    def _on_records(self, numbers: list[int], records: list[Stamped | None]) -> None:
        for number, found in zip(numbers, records, strict=True):
            version = None if found is None else found.version
            self._term.aside.run(paths.sub(number), version, partial(self._on_record, number, found))

    def _on_record(self, number: int, found: Stamped | None) -> None:
        try:
            self._job_table.submissions[number] = None if found is None else validity.submission(found.data, number)
        except RmgrError as error:
            if self.odd.get(number) != error.message:  # told once
                self._term.log.error("submission_unreadable", submission=number, error=error.message)
                self.odd = {**dict(islice(self.odd.items(), _MOST_ODD)), number: error.message}
        if self._job_table.submissions.get(number) is None:
            self.nobodys.add(number)
            self._tree.after(_PAUSE_S if found is None else _LONG_PAUSE_S, partial(self._unread, [number]))
        else:
            self.nobodys.discard(number)
        self._wake()

    def _unread(self, numbers: list[int]) -> None:
        for number in numbers:
            self._job_table.submissions.pop(number, None)
        self._wake()
