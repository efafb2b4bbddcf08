"""Fragments of one submission that have been read: whether they are believed, and their outcomes when these are in a row of the store.

They are handed over in their order, however long each takes. Lives on the Submitter's thread.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rmgr.coord.decisions.ends import stated
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes
from rmgr.coord.seal.work import named_digest
from rmgr.errors import DataLost, RmgrError, Unavailable
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Tail
from rmgr.procedures.authentic import LOST, Authenticity, disbelief, doubted
from rmgr.procedures.bounded import MOST_OUTCOMES_BYTES, row_of
from rmgr.submitter.port import PAGED, Read
from rmgr.submitter.thread import SubmitterThread

_LOG = logging.getLogger("rmgr.submitter")
#: The first and the longest pause before the store is asked again (s).
_RETRY_S, _LONGEST_S = 0.1, 2.0


@dataclass(slots=True)
class _Arrival:
    number: int
    fragment: Fragment
    outcomes: Sequence[Outcome] | None  #: None: it is being checked, or its row is being read
    zxid: int = PAGED
    data: bytes = b""  #: what it was read from, while it is being checked
    lost: str = ""  #: why nothing but states is known of it, of the first `end` tasks
    end: int = 0

    @property
    def is_known(self) -> bool:
        return self.outcomes is not None or bool(self.lost)


class ReadFragments:
    """The fragments of one submission from where they are read to where they are delivered.

    Args:
        deliver: called with (number, fragment, outcomes) for each fragment, in order.
        read_tail: asks how many tasks were submitted by now. fail: the submission cannot be read.
        authenticity: which fragments to believe (secured clusters), None = all.
    """

    def __init__(
        self,
        submission: int,
        loop: SubmitterThread,
        store: Store,
        deliver: Callable[[int, Fragment, Sequence[Outcome]], None],
        *,
        read_tail: Callable[[], Future[Tail]],
        fail: Callable[[RmgrError], None],
        authenticity: Authenticity | None,
    ) -> None:
        self._submission = submission
        self._loop = loop
        self._store = store
        self._deliver = deliver
        self._read_tail = read_tail
        self._fail = fail
        self._authenticity = authenticity
        self._waiting: deque[_Arrival] = deque()
        self._retry_s = _RETRY_S
        self._stopped = False

    def stop(self) -> None:
        """Delivers nothing more."""
        self._stopped = True
        self._waiting.clear()

    def take(self, fragments: Sequence[Read]) -> None:
        """The next ones: what is known of them is delivered now."""
        for one in fragments:
            is_known = one.is_believed or self._authenticity is None
            arrival = _Arrival(one.number, one.fragment, None, one.zxid, b"" if is_known else one.data)
            self._waiting.append(arrival)
            if is_known:
                self._checked(arrival, "")
            else:
                self._check(arrival)
        self.hand_over()

    def hand_over(self) -> None:
        """Delivers those whose outcomes are known, up to the first that is not."""
        while self._waiting and self._waiting[0].is_known and not self._stopped:
            self._retry_s = _RETRY_S
            arrival = self._waiting.popleft()
            outcomes = arrival.outcomes
            if outcomes is None:  # made now: of many fragments that lie about millions of tasks one at a time is in memory
                outcomes = list(stated(arrival.fragment, end=arrival.end, error=arrival.lost))
            self._deliver(arrival.number, arrival.fragment, outcomes)

    # -- whether it is to be believed

    def _check(self, arrival: _Arrival) -> None:
        authenticity = self._authenticity
        assert authenticity is not None
        why = authenticity.doubt(self._submission, arrival.fragment, arrival.zxid, arrival.data)
        if why is not None:
            self._checked(arrival, why)
            return
        asking = self._loop.io(lambda: authenticity.find_doubt(self._submission, arrival.fragment, arrival.zxid, arrival.data))
        asking.add_done_callback(lambda _: self._loop.post(lambda: self._known(arrival, asking)))

    def _known(self, arrival: _Arrival, asking: Future[str]) -> None:
        if self._stopped:
            return
        try:
            why = asking.result(0)
        except Unavailable:
            self._later(lambda: self._check(arrival))
            return
        self._checked(arrival, why)
        self.hand_over()

    def _checked(self, arrival: _Arrival, why: str) -> None:
        fragment = arrival.fragment
        arrival.data = b""
        if why:
            _LOG.warning("outcomes_not_believed: submission %d, fragment %d: %s", self._submission, arrival.number, why)
            if fragment.row:
                self._lose(arrival, disbelief(why))
            else:
                arrival.outcomes = doubted(fragment.outcomes, why)
        elif fragment.row:
            self._fetch(arrival)
        else:
            arrival.outcomes = fragment.outcomes

    # -- outcomes in rows

    def _fetch(self, arrival: _Arrival) -> None:
        reading = self._loop.io(lambda: row_of(self._store, arrival.fragment.row, MOST_OUTCOMES_BYTES))
        reading.add_done_callback(lambda _: self._loop.post(lambda: self._fetched(arrival, reading)))

    def _fetched(self, arrival: _Arrival, reading: Future[bytes | None]) -> None:
        if self._stopped:
            return
        row = arrival.fragment.row
        try:
            data = reading.result(0)
            if data is None:
                self._lose(arrival, f"{LOST}: the results in row {row} are missing from the data store")
            elif not self._is_named(row, data):
                self._lose(arrival, disbelief(f"row {row} is not what its name says"))
            else:
                arrival.outcomes = decode_outcomes(data)
        except Unavailable:
            self._later(lambda: self._fetch(arrival))
            return
        except DataLost as error:
            self._lose(arrival, f"{LOST}: {error.message}")
        except UNREADABLE as error:
            self._lose(arrival, f"{LOST}: row {row} does not hold outcomes: {error}")
        self.hand_over()

    def _lose(self, arrival: _Arrival, text: str) -> None:
        """Nothing but states is known of it, of tasks that were submitted: how many these are by now is asked first."""
        asked = self._read_tail()
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._lost(arrival, text, asked)))

    def _lost(self, arrival: _Arrival, text: str, asked: Future[Tail]) -> None:
        if self._stopped:
            return
        try:
            end = asked.result(0).next
        except (Unavailable, TimeoutError):
            self._later(lambda: self._lose(arrival, text))
            return
        except RmgrError as error:
            self._fail(error)
            return
        arrival.end, arrival.lost = end, text
        self.hand_over()

    def _later(self, job: Callable[[], None]) -> None:
        """Tries again when the store, or who knows the keys, did not answer; what is known then is handed over."""

        def again() -> None:
            if not self._stopped:
                job()
                self.hand_over()

        self._loop.after(self._loop.jitter(self._retry_s), again)
        self._retry_s = min(_LONGEST_S, 2 * self._retry_s)

    def _is_named(self, row: str, data: bytes) -> bool:
        """The row holds what its name says; older ones have other names, which is good enough where nobody signs."""
        digest = named_digest(row)
        return hashlib.sha256(data).hexdigest() == digest if digest is not None else self._authenticity is None
