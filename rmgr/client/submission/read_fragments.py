"""Fragments read of one submission: checks whether to believe each one, and fetches outcomes that are in a row of the store.

One story per fragment finds these out; fragments are delivered in order, however long each story takes. Lives on the Submitter's
thread.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from rmgr.coord.decisions.progress import stated
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes
from rmgr.coord.seal import named_digest
from rmgr.errors import DataLost, RmgrError, Unavailable
from rmgr.model.tasks.block import Fragment, Outcome
from rmgr.model.tasks.submission import Tail
from rmgr.procedures.authentic import LOST, Authenticity, disbelief, doubted
from rmgr.procedures.bounded import MOST_OUTCOMES_BYTES, row_of
from rmgr.runtime.story import Stories, Story
from rmgr.submitter.port import Read
from rmgr.submitter.thread import SubmitterThread, sure

T = TypeVar("T")
_LOG = logging.getLogger("rmgr.submitter")
#: The first and the longest pause before the store, or the source of the keys, is asked again (s).
_PAUSES_S = 0.1, 2.0


@dataclass(slots=True)
class _Arrival:
    """One fragment. outcomes: None until known. lost: why only states will be known; then of the first `end` tasks."""

    number: int
    fragment: Fragment
    outcomes: Sequence[Outcome] | None = None
    lost: str = ""
    end: int = 0


class ReadFragments:
    """The fragments of one submission, from reading to delivery.

    Args:
        deliver: called with (number, fragment, outcomes) for each fragment, in order.
        read_tail: reads how many tasks are submitted by now. fail: called if the submission cannot be read.
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
        self._stories = Stories(loop)
        self._stopped = False

    def stop(self) -> None:
        """Stops all deliveries."""
        self._stopped = True
        self._waiting.clear()
        self._stories.stop()

    def take(self, fragments: Sequence[Read]) -> None:
        """Takes the next fragments, and delivers those whose outcomes are known."""
        for one in fragments:
            if self._stopped:
                return
            arrival = _Arrival(one.number, one.fragment)
            self._waiting.append(arrival)
            if (one.is_believed or self._authenticity is None) and not one.fragment.row:
                arrival.outcomes = one.fragment.outcomes
            else:
                self._stories.begin(self._learn(arrival, one))
        self._hand_over()

    def _hand_over(self) -> None:
        """Delivers fragments whose outcomes are known, up to the first one without."""
        while self._waiting and not self._stopped:
            outcomes, lost = self._waiting[0].outcomes, self._waiting[0].lost
            if outcomes is None and not lost:
                return
            arrival = self._waiting.popleft()
            if outcomes is None:  # made only now: many false fragments about millions of tasks would fill the memory
                outcomes = list(stated(arrival.fragment, end=arrival.end, error=lost))
            self._deliver(arrival.number, arrival.fragment, outcomes)

    def _learn(self, arrival: _Arrival, one: Read) -> Story[None]:
        """Learns a fragment's outcomes, or that they are lost; then only its states count, for the tasks submitted by now."""
        fragment, lost = one.fragment, ""
        try:
            why = yield from self._doubt(one)
            if why:
                _LOG.warning("outcomes_not_believed: submission %d, fragment %d: %s", self._submission, one.number, why)
            if not fragment.row:
                arrival.outcomes = doubted(fragment.outcomes, why) if why else fragment.outcomes
            elif why:
                lost = disbelief(why)
            else:
                found = yield from self._row(fragment.row)
                arrival.outcomes, lost = (None, found) if isinstance(found, str) else (found, "")
            if lost:
                tail = yield from sure(self._read_tail, pauses_s=_PAUSES_S, silence=(Unavailable, TimeoutError))
                arrival.end, arrival.lost = tail.next, lost
        except RmgrError as error:
            self._fail(error)
        else:
            self._hand_over()

    def _doubt(self, one: Read) -> Story[str]:
        """Returns why a fragment is not to be believed, "" if it is."""
        authenticity = self._authenticity
        if one.is_believed or authenticity is None:
            return ""
        about = self._submission, one.fragment, one.zxid, one.data
        if (why := authenticity.doubt(*about)) is not None:
            return why

        def judge() -> str:
            why = authenticity.doubt(*about)
            return authenticity.find_doubt(*about) if why is None else why

        return (yield from self._io(judge))

    def _row(self, row: str) -> Story[Sequence[Outcome] | str]:
        """Returns the outcomes in a row of the store, or why they are lost."""
        try:
            data = yield from self._io(lambda: row_of(self._store, row, MOST_OUTCOMES_BYTES))
            if data is None:
                return f"{LOST}: the results in row {row} are missing from the data store"
            if not self._is_named(row, data):
                return disbelief(f"row {row} is not what its name says")
            return decode_outcomes(data)
        except DataLost as error:
            return f"{LOST}: {error.message}"
        except UNREADABLE as error:
            return f"{LOST}: row {row} does not hold outcomes: {error}"

    def _io(self, job: Callable[[], T]) -> Story[T]:
        return sure(lambda: self._loop.io(job), pauses_s=_PAUSES_S)

    def _is_named(self, row: str, data: bytes) -> bool:
        """Returns whether the row matches its name. Rows of older releases have other names, which are accepted if nothing is signed."""
        digest = named_digest(row)
        return hashlib.sha256(data).hexdigest() == digest if digest is not None else self._authenticity is None
