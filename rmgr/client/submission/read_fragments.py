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
from typing import Any

import msgspec

from rmgr.client.identity.authentic import LOST, PAGED, Authenticity, doubted
from rmgr.client.submission.doors import SubmitterHost
from rmgr.coord.decisions.ends import stated
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import decode_outcomes, split_page
from rmgr.coord.seal.work import named_digest
from rmgr.errors import DataLost, Unavailable
from rmgr.model.tasks.outcome import Fragment, Outcome

_LOG = logging.getLogger("rmgr.submitter")


@dataclass(slots=True)
class _Arrival:
    number: int
    fragment: Fragment
    outcomes: Sequence[Outcome] | None  #: None: it is being checked, or its row is being read
    zxid: int = PAGED
    data: bytes = b""  #: what it was read from, while it is being checked


class ReadFragments:
    """The fragments of one submission from where they are read to where they are delivered.

    Args:
        deliver: called with (number, fragment, outcomes) for each fragment, in order.
        later: tries again when the store did not answer.
        authenticity: which fragments to believe (secured clusters), None = all.
    """

    def __init__(
        self,
        submission: int,
        host: SubmitterHost,
        deliver: Callable[[int, Fragment, Sequence[Outcome]], None],
        later: Callable[[Callable[[], None]], None],
        *,
        authenticity: Authenticity | None,
    ) -> None:
        self._submission = submission
        self._host = host
        self._deliver = deliver
        self._later = later
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
        while self._waiting and self._waiting[0].outcomes is not None and not self._stopped:
            arrival = self._waiting.popleft()
            assert arrival.outcomes is not None
            self._deliver(arrival.number, arrival.fragment, arrival.outcomes)

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
            arrival.outcomes = doubted(fragment, fragment.outcomes, why)
        elif fragment.row:
            self._fetch(arrival)
        else:
            arrival.outcomes = fragment.outcomes

    # -- outcomes in rows

    def _fetch(self, arrival: _Arrival) -> None:
        reading = self._host.io(lambda: self._host.store.get(arrival.fragment.row))
        reading.add_done_callback(lambda _: self._host.post(lambda: self._fetched(arrival, reading)))

    def _fetched(self, arrival: _Arrival, reading: Future[Any]) -> None:
        if self._stopped:
            return
        try:
            row = reading.result(0)
            if row is not None and not self._is_named(arrival.fragment.row, row[0]):
                arrival.outcomes = doubted(arrival.fragment, (), f"row {arrival.fragment.row} is not what its name says")
            else:
                arrival.outcomes = decode_outcomes(row[0]) if row is not None else lost_outcomes(arrival.fragment)
        except Unavailable:
            self._later(lambda: self._fetch(arrival))
            return
        except (DataLost, msgspec.DecodeError):
            arrival.outcomes = lost_outcomes(arrival.fragment)
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
        found = store.get(keys.page(submission, at))
        if found is None:
            raise DataLost(f"page {at} of submission {submission} is missing from the store", hint="rmgr doctor")
        fragments = split_page(found[0])
        pages.append((at, fragments))
        at += len(fragments)
    return pages


def lost_outcomes(fragment: Fragment) -> list[Outcome]:
    """What is still known of a fragment whose row is gone: the states, without results."""
    text = f"{LOST}: the results in row {fragment.row} are missing from the data store"
    return list(stated(fragment, error=text))
