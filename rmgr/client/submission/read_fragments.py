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

from rmgr.client.identity.authentic import LOST, PAGED, Authenticity, disbelief, doubted
from rmgr.client.submission.doors import SubmitterHost
from rmgr.coord.decisions.ends import stated
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes
from rmgr.coord.seal.work import named_digest
from rmgr.coord.validity import records as validity
from rmgr.errors import DataLost, NotFound, RmgrError, Unavailable
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.procedures.bounded import MOST_OUTCOMES_BYTES, raw_page_at, row_of

_LOG = logging.getLogger("rmgr.submitter")


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
        later: tries again when the store did not answer. fail: the submission cannot be read.
        authenticity: which fragments to believe (secured clusters), None = all.
    """

    def __init__(
        self,
        submission: int,
        host: SubmitterHost,
        deliver: Callable[[int, Fragment, Sequence[Outcome]], None],
        later: Callable[[Callable[[], None]], None],
        fail: Callable[[RmgrError], None],
        *,
        authenticity: Authenticity | None,
    ) -> None:
        self._submission = submission
        self._host = host
        self._deliver = deliver
        self._later = later
        self._fail = fail
        self._authenticity = authenticity
        self._waiting: deque[_Arrival] = deque()
        self._stopped = False

    def stop(self) -> None:
        """Delivers nothing more."""
        self._stopped = True
        self._waiting.clear()

    def believes(self, fragment: Fragment, data: bytes) -> bool:
        """A fragment that is not committed yet would be believed, without asking anybody."""
        return self._authenticity is None or self._authenticity.doubt(self._submission, fragment, 0, data) == ""

    def take(self, number: int, fragment: Fragment, zxid: int, data: bytes) -> None:
        """A fragment that was read; `hand_over` follows when no more was read with it."""
        arrival = _Arrival(number, fragment, None, zxid, data)
        self._waiting.append(arrival)
        self._check(arrival)

    def take_believed(self, number: int, fragment: Fragment) -> None:
        """A fragment with outcomes that `believes` has accepted."""
        self._waiting.append(_Arrival(number, fragment, fragment.outcomes))

    def hand_over(self) -> None:
        """Delivers those whose outcomes are known, up to the first that is not."""
        while self._waiting and self._waiting[0].is_known and not self._stopped:
            arrival = self._waiting.popleft()
            outcomes = arrival.outcomes
            if outcomes is None:  # made now: of many fragments that lie about millions of tasks one at a time is in memory
                outcomes = list(stated(arrival.fragment, end=arrival.end, error=arrival.lost))
            self._deliver(arrival.number, arrival.fragment, outcomes)

    # -- whether it is to be believed

    def _check(self, arrival: _Arrival) -> None:
        authenticity = self._authenticity
        if authenticity is None:
            self._checked(arrival, "")
            return
        why = authenticity.doubt(self._submission, arrival.fragment, arrival.zxid, arrival.data)
        if why is not None:
            self._checked(arrival, why)
            return
        asking = self._host.io(lambda: authenticity.find_doubt(self._submission, arrival.fragment, arrival.zxid, arrival.data))
        asking.add_done_callback(lambda _: self._host.post(lambda: self._known(arrival, asking)))

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
        reading = self._host.io(lambda: row_of(self._host.store, arrival.fragment.row, MOST_OUTCOMES_BYTES))
        reading.add_done_callback(lambda _: self._host.post(lambda: self._fetched(arrival, reading)))

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
        asked = self._host.coordinator.get(paths.tail(self._submission))
        asked.add_done_callback(lambda _: self._host.post(lambda: self._lost(arrival, text, asked)))

    def _lost(self, arrival: _Arrival, text: str, asked: Future[Stamped | None]) -> None:
        if self._stopped:
            return
        try:
            found = asked.result(0)
            if found is None:
                raise NotFound(f"submission {self._submission} is gone", hint=f"rmgr history {self._submission}")
            end = validity.tail(found, self._submission).next
        except (Unavailable, TimeoutError):
            self._later(lambda: self._lose(arrival, text))
            return
        except RmgrError as error:
            self._fail(error)
            return
        arrival.end, arrival.lost = end, text
        self.hand_over()

    def _is_named(self, row: str, data: bytes) -> bool:
        """The row holds what its name says; older ones have other names, which is good enough where nobody signs."""
        digest = named_digest(row)
        return hashlib.sha256(data).hexdigest() == digest if digest is not None else self._authenticity is None


def read_pages(store: Store, submission: int, at: int, base: int) -> list[tuple[int, list[bytes]]]:
    """Pages of fragments that are no longer in ZooKeeper: those that begin at `at` and below `base`. Waits for the store.

    Returns: (number of the first, fragments) a page. Raises: DataLost, StoreUnavailable.
    """
    pages: list[tuple[int, list[bytes]]] = []
    while at < base:
        fragments = raw_page_at(store, submission, at)
        pages.append((at, fragments))
        at += len(fragments)
    return pages
