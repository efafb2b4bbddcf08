"""Reads the outcome fragments of one submission in their order, by number, and watches the first missing one.

Used by clients and gateways. Level-triggered: a watch is a hint, a slow resync makes up for lost ones. It lives
on its owner's thread: every method is called there, and answers come back through `post`. Only the read that follows a
watch is sent from the thread that brings the watch: for who waits for one task it is a switch of threads less. A Starter
with a direct line says which fragment it has committed as which number: that one is not read, and while such news keeps
coming the next one is not watched either. Of a dense stream of small fragments several are read together (`submitter/pacing.py`).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from rmgr.client.identity.authentic import LOST, PAGED, Authenticity, doubted
from rmgr.client.submission.doors import SubmitterHost
from rmgr.client.submission.pacing import Pace
from rmgr.coord.decisions.ends import stated
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import decode_outcomes, read_fragment, split_page
from rmgr.coord.seal.work import named_digest
from rmgr.coord.validity import records as validity
from rmgr.errors import DataLost, NotFound, RmgrError, Unavailable
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Paged
from rmgr.model.wire.line import Ahead, Told
from rmgr.runtime import machine

_LOG = logging.getLogger("rmgr.submitter")
#: Fragments asked for at once while they come faster than they are read.
MAX_WINDOW = 64
#: So many in a row were there already when the one before was read: how many there are is asked, instead of one after another.
_STREAK = 3
#: So many came while they were let gather: others will.
_DENSE = 2
#: What is being committed is said to be so at most this long after the watch tells; and when news on a direct line have
#: stopped for so long, the next fragment is watched again.
_TOLD_S, _REST_S = 0.005, 0.03


@dataclass(slots=True)
class _Arrival:
    number: int
    fragment: Fragment
    outcomes: Sequence[Outcome] | None  #: None: it is being checked, or its row is being read
    zxid: int = PAGED
    data: bytes = b""  #: what it was read from, while it is being checked


class Follower:
    """Fragments of one submission.

    Args:
        deliver: called with (number, fragment, outcomes) for each fragment, in order, on the owner's thread.
        gone: called once when the submission is no longer there, or cannot be read.
        resync_s: how often to look without a hint.
        authenticity: which fragments to believe (secured clusters), None = all.
        unfinished: how many tasks that were submitted have not ended; 0: fragments are read as they come.
        may_end: whether the next fragment may be the last: then what is behind it is asked for only when it was not.
    """

    def __init__(
        self,
        number: int,
        host: SubmitterHost,
        deliver: Callable[[int, Fragment, Sequence[Outcome]], None],
        gone: Callable[[RmgrError], None],
        *,
        resync_s: float = 20.0,
        authenticity: Authenticity | None = None,
        unfinished: Callable[[], int] = int,
        may_end: Callable[[], bool] = bool,
    ) -> None:
        self._authenticity = authenticity
        self._may_end = may_end
        self.number = number
        self._host = host
        self._deliver = deliver
        self._gone = gone
        self._resync_s = resync_s
        self._next = 0  # the first fragment not read yet
        self._page_at = 0  # a page begins here, at or below `_next`
        self._window = 0
        self._streak = 0
        self._flying = False  # a look is under way, or the next one has its time
        self._again = False
        self._stopped = False
        self._pace = Pace(unfinished)
        self._is_paced = False  # what the watch tells of will not be read at once
        self._retry_s = 0.1
        self._arrived: deque[_Arrival] = deque()
        self._timer: Any = None
        self._watched = -1  # this fragment's watch stands
        self._ahead: tuple[Ahead, Fragment] | None = None  # what a Starter is committing, and would be believed
        self._told_s = -math.inf
        self._resting = False

    # -- the owner's side

    def start(self, *, fresh: bool) -> None:
        """Begins. fresh: the submission has just been made, there is nothing to catch up with."""
        if fresh:
            self._look()
        else:
            self._look(check=True)
        self._schedule()

    def stop(self) -> None:
        """Delivers nothing more."""
        self._stopped = True
        self._arrived.clear()
        if self._timer is not None:
            self._timer.cancel()

    def nudge(self) -> None:
        """Looks now: a hint from elsewhere (a new session, somebody who waits)."""
        self._announced(-1, None)

    def heard(self, message: Ahead | Told) -> None:
        """What a Starter says of this submission on a direct line. Cost: that of believing a fragment."""
        if self._stopped:
            return
        if isinstance(message, Ahead):
            fragment = read_fragment(message.fragment)
            judge = self._authenticity
            doubt = judge.doubt(self.number, fragment, 0, message.fragment) if judge is not None else ""
            self._ahead = (message, fragment) if doubt == "" and not fragment.row else None  # else it is read as ever
            return
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0].serial != message.serial or message.number != self._next:
            if message.number >= self._next:
                self._announced(message.number, None)
            return
        self._arrived.append(_Arrival(self._next, ahead[1], ahead[1].outcomes))
        self._next += 1
        self._hand_over()
        self._rest()

    # -- reading

    def _rest(self) -> None:
        """The last fragment was not read: the next one is watched when no more news come this way."""
        self._told_s = machine.monotonic()
        if not self._resting:
            self._resting = True
            self._host.after(_REST_S, self._rested)

    def _rested(self) -> None:
        left_s = self._told_s + _REST_S - machine.monotonic()
        if left_s > _REST_S / 10 and not self._stopped:
            self._host.after(left_s, self._rested)
            return
        self._resting = False
        if self._watched != self._next:
            self._window = 0
            self._look()

    def _schedule(self) -> None:
        self._timer = self._host.after(self._host.jitter(self._resync_s), self._resync)

    def _resync(self) -> None:
        if not self._stopped:
            self._schedule()
            if not self._flying:
                self._look(check=True)

    def _look(self, *, check: bool = False, asked: Future[Stamped | None] | None = None) -> None:
        """Asks for the next `_window` fragments, and watches the one behind them.

        check: also reads how many there are, and whether the next one was paged out. asked: the next one is under way.
        """
        if self._stopped or self._flying:
            return
        self._flying, self._again = True, False
        coordinator, first, window = self._host.coordinator, self._next, self._window
        gets = [coordinator.get(paths.fragment(self.number, first + i)) for i in range(window)] if asked is None else [asked]
        done = coordinator.get(paths.done(self.number)) if check else None
        if window == 1 and not check and self._may_end():
            gets[0].add_done_callback(lambda _: self._host.post(lambda: self._answered(first, gets, None, None)))
            return
        self._watched = watched = first + window
        self._is_paced = self._pace.wait_s() > 0
        probe = coordinator.stat(paths.fragment(self.number, watched), watch=lambda: self._on_watch(watched))
        if window == 1:  # somebody may wait for just this one
            gets[0].add_done_callback(lambda _: self._host.post(lambda: self._arrived_alone(first, gets[0])))
        # Answers come in the order of the questions: when the last is there, all are.
        probe.add_done_callback(lambda _: self._host.post(lambda: self._answered(first, gets, done, probe)))

    def _on_watch(self, number: int) -> None:
        """On the thread that brings it. The fragment is asked for at once, unless others are being read."""
        # Told for certain on the owner's thread.
        may_ask = number == self._next and self._ahead is None and not (self._flying or self._stopped or self._is_paced)
        asked = self._host.coordinator.get(paths.fragment(self.number, number)) if may_ask else None
        self._host.post(lambda: self._announced(number, asked))

    def _announced(self, number: int, asked: Future[Stamped | None] | None) -> None:
        if number == self._watched:
            self._watched = -1
        if 0 <= number < self._next:
            self._rest()
        elif self._flying:
            self._again = True
        elif self._ahead is not None and number == self._next:
            self._host.after(_TOLD_S, lambda: self._overdue(number))
        elif not self._stopped and not self._gather():
            self._window = max(1, self._window)
            self._look(asked=asked if number == self._next and self._window == 1 else None)

    def _overdue(self, number: int) -> None:
        """Its Starter has not said which it is."""
        if number == self._next:
            self._ahead = None
            self._announced(number, None)

    def _arrived_alone(self, number: int, asked: Future[Stamped | None]) -> None:
        """What was asked for is there; what lies behind it, and whatever went wrong, comes with `_answered`."""
        if self._stopped or self._next != number or asked.exception(0) is not None:
            return
        found = asked.result(0)
        if found is not None:
            self._take(read_fragment(found.data), found.stat.mzxid, found.data)
            self._hand_over()

    def _answered(
        self, first: int, gets: list[Future[Stamped | None]], done: Future[Stamped | None] | None, probe: Future[Stat | None] | None
    ) -> None:
        self._flying = False
        if self._stopped:
            return
        try:
            found = [get.result(0) for get in gets]
            counted = done.result(0) if done is not None else None
            more = probe.result(0) if probe is not None else None
        except (Unavailable, TimeoutError):
            self._later(lambda: self._look(check=done is not None))
            return
        except RmgrError as error:
            self._fail(error)
            return
        self._retry_s = 0.1
        present = self._take_run(first, found)
        if done is not None and not self._count(counted):
            return
        if present < len(found):  # the end of a wide window; or, when not even the announced one is there, paged out
            self._window = 0
            self._look(check=not present)
        elif probe is None:  # it was not the last, or is still being judged
            self._window = 0
            self._look()
        elif more is not None and self._gather():
            self._streak = 0
        elif more is not None and first + len(found) >= self._next:
            self._window = 1  # what is not there yet is not asked for: each question costs ZooKeeper as much as an answer
            self._streak += 1
            self._look(check=self._streak >= _STREAK)
        else:
            self._window = min(1, self._window)
            self._streak = 0
            if self._again:
                self.nudge()
            elif more is not None:
                self._rest()  # what it told of came over a direct line meanwhile

    # -- a dense stream

    def _gather(self) -> bool:
        """Lets fragments gather before they are read, if that is worth it; until then nothing else is looked for."""
        wait_s = self._pace.wait_s()
        if wait_s:
            self._flying = True
            self._host.after(wait_s, self._read_gathered)
        return wait_s > 0

    def _read_gathered(self, *, is_more: bool = False) -> None:
        """is_more: all that were asked for were there."""
        if self._stopped:
            return
        first = self._next
        asked = self._host.coordinator.get_many([paths.fragment(self.number, first + at) for at in range(self._pace.window)])
        asked.add_done_callback(lambda _: self._host.post(lambda: self._gathered(first, asked, is_more)))

    def _gathered(self, first: int, asked: Future[list[Stamped | None]], is_more: bool) -> None:
        if self._stopped:
            return
        try:
            found = asked.result(0)
        except (Unavailable, TimeoutError):
            self._flying = False
            self._later(lambda: self._look(check=True))
            return
        except RmgrError as error:
            self._fail(error)
            return
        present = self._take_run(first, found)
        self._pace.came(present)
        if self._stopped:
            return
        if present == len(found):
            self._read_gathered(is_more=True)
        elif (present < _DENSE and not is_more) or not self._gather():  # the next one is watched
            self._flying, self._window = False, 0
            self._look(check=not present and not is_more)

    def _count(self, counted: Stamped | None) -> bool:
        """What `/done` says. False: something else was begun because of it."""
        if counted is None:
            self._fail(NotFound(f"submission {self.number} is gone", hint=f"rmgr history {self.number}"))
            return False
        base = validity.decode(counted.data, Paged, paths.done(self.number)).base if counted.data else 0
        if base > self._next:
            self._flying = True
            reading = self._host.io(lambda: self._read_pages(base))
            reading.add_done_callback(lambda _: self._host.post(lambda: self._paged(reading)))
            return False
        if counted.stat.creates > self._next:
            self._window = min(MAX_WINDOW, counted.stat.creates - self._next)
            self._look()
            return False
        return True

    def _take_run(self, first: int, found: Sequence[Stamped | None]) -> int:
        """Takes and hands over what was read from fragment `first` on, up to the first that is missing; returns how many there are."""
        present = next((at for at, item in enumerate(found) if item is None), len(found))
        for item in found[self._next - first : present]:
            assert item is not None
            self._take(read_fragment(item.data), item.stat.mzxid, item.data)
        self._hand_over()
        return present

    def _take(self, fragment: Fragment, zxid: int = PAGED, data: bytes = b"") -> None:
        arrival = _Arrival(self._next, fragment, None, zxid, data)
        self._next += 1
        self._pace.note(fragment)
        self._arrived.append(arrival)
        self._check(arrival)

    def _hand_over(self) -> None:
        while self._arrived and self._arrived[0].outcomes is not None and not self._stopped:
            arrival = self._arrived.popleft()
            assert arrival.outcomes is not None
            self._deliver(arrival.number, arrival.fragment, arrival.outcomes)

    # -- whether it is to be believed

    def _check(self, arrival: _Arrival) -> None:
        authenticity = self._authenticity
        if authenticity is None:
            self._checked(arrival, "")
            return
        why = authenticity.doubt(self.number, arrival.fragment, arrival.zxid, arrival.data)
        if why is not None:
            self._checked(arrival, why)
            return
        asking = self._host.io(lambda: authenticity.find_doubt(self.number, arrival.fragment, arrival.zxid, arrival.data))
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
        self._hand_over()

    def _checked(self, arrival: _Arrival, why: str) -> None:
        fragment = arrival.fragment
        arrival.data = b""
        if why:
            _LOG.warning("outcomes_not_believed: submission %d, fragment %d: %s", self.number, arrival.number, why)
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
        self._hand_over()

    def _is_named(self, row: str, data: bytes) -> bool:
        """The row holds what its name says; older ones have other names, which is good enough where nobody signs."""
        digest = named_digest(row)
        return hashlib.sha256(data).hexdigest() == digest if digest is not None else self._authenticity is None

    # -- pages

    def _read_pages(self, base: int) -> list[tuple[int, list[bytes]]]:
        """Pages from the one that holds the next fragment up to `base`. On an IO thread."""
        pages: list[tuple[int, list[bytes]]] = []
        at = self._page_at
        while at < base:
            found = self._host.store.get(keys.page(self.number, at))
            if found is None:
                raise DataLost(f"page {at} of submission {self.number} is missing from the store", hint="rmgr doctor")
            fragments = split_page(found[0])
            pages.append((at, fragments))
            at += len(fragments)
        return pages

    def _paged(self, reading: Future[list[tuple[int, list[bytes]]]]) -> None:
        self._flying = False
        if self._stopped:
            return
        try:
            pages = reading.result(0)
        except Unavailable:
            self._later(lambda: self._look(check=True))
            return
        except RmgrError as error:
            self._fail(error)
            return
        for at, fragments in pages:
            for data in fragments[max(0, self._next - at) :]:
                self._take(read_fragment(data), PAGED, data)
            self._page_at = at + len(fragments)
        self._hand_over()
        self._look(check=True)

    # -- trouble

    def _later(self, job: Callable[[], None]) -> None:
        self._host.after(self._host.jitter(self._retry_s), job)
        self._retry_s = min(2.0, self._retry_s * 2)

    def _fail(self, error: RmgrError) -> None:
        self.stop()
        self._gone(error)


def lost_outcomes(fragment: Fragment) -> list[Outcome]:
    """What is still known of a fragment whose row is gone: the states, without results."""
    text = f"{LOST}: the results in row {fragment.row} are missing from the data store"
    return list(stated(fragment, error=text))
