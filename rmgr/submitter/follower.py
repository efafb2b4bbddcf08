"""Reads the outcome fragments of one submission in their order, by number, and watches the first missing one.

Level-triggered: a watch is a hint, and a slow resync makes up for lost ones. It lives on its owner's thread: every method
is called there, and answers come back through `post`. Only the read that follows a watch is sent from the thread that
brings the watch; that saves a switch of threads. A Starter with a direct line says which fragment it has committed as
which number. That one is not read, and while such news keeps coming the next one is not watched.
In a dense stream several small fragments are read together (`Pace`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import NotFound, RmgrError, Unavailable
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.submission import Paged
from rmgr.model.wire.line import Ahead, Told
from rmgr.procedures.bounded import raw_page_at
from rmgr.runtime import machine
from rmgr.submitter.port import PAGED, Read

if TYPE_CHECKING:
    from rmgr.submitter.direct import Submitter

#: Whether a fragment would be believed that is not committed yet: (submission, fragment, what it was read from).
Believes = Callable[[int, Fragment, bytes], bool]

#: Fragments asked for at once while they come faster than they are read.
MAX_WINDOW = 64
#: When so many in a row were there already, their number is asked for, and they are read together.
_STREAK = 3
#: When at least so many have gathered, others are expected.
_DENSE = 2
#: How long after the watch of a fragment its news on a direct line are waited for (s). Without any news for the second time the
#: next fragment is watched again.
_NEWS_S, _REST_S = 0.005, 0.03
#: Waited for each task that has not ended, to let fragments gather; in all at most, and at least: less is not worth a timer (s).
_TASK_S, _MOST_S, _LEAST_S = 50e-6, 0.02, 0.002
#: Outcomes of a small fragment.
_SMALL = 8
#: Fragments asked for together: so many more than came the last time.
_MORE, _MOST = 3, 64


class Follower:
    """Reads the fragments of one submission as they are committed.

    Args:
        deliver: called with the next fragments, in order, on the owner's thread.
        gone: called once when the submission is no longer there, or cannot be read.
        resync_s: how often to look without a hint.
        believes: None = all (an open cluster).
        unfinished: how many tasks that were submitted have not ended; 0: fragments are read as they come.
        may_end: whether the next fragment may be the last: then what is behind it is asked for only when it was not.
    """

    def __init__(
        self,
        number: int,
        host: Submitter,
        deliver: Callable[[list[Read]], None],
        gone: Callable[[RmgrError], None],
        *,
        resync_s: float = 20.0,
        believes: Believes | None = None,
        unfinished: Callable[[], int] = int,
        may_end: Callable[[], bool] = bool,
    ) -> None:
        self._may_end = may_end
        self.number = number
        self._host = host
        self._deliver = deliver
        self._believes = believes
        self._taken: list[Read] = []  # read, and not delivered yet
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
        self._is_paced = False  # the watched fragment will not be read at once
        self._retry_s = 0.1
        self._timer: Any = None
        self._watched = -1  # this fragment's watch stands
        self._ahead: tuple[Ahead, Fragment] | None = None  # what a Starter is committing, and would be believed
        self._heard_s = -math.inf
        self._resting = False
        self._is_resting = False  # nothing is read for the moment

    # -- the owner's side

    def start(self, *, fresh: bool, first: int = 0) -> None:
        """Begins with fragment `first`. fresh: the submission has just been made, there is nothing to catch up with."""
        self._next = first
        if fresh:
            self._look()
        else:
            self._look(check=True)
        self._schedule()

    def stop(self) -> None:
        """Delivers nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def rest(self, *, is_resting: bool) -> None:
        """Reads nothing more until it is told to go on: who hears of it has enough for now."""
        was, self._is_resting = self._is_resting, is_resting
        if was and not is_resting and not self._flying:
            self._look(check=True)

    def nudge(self) -> None:
        """Looks now, because of a hint from elsewhere (a new session, a caller that waits)."""
        self._announced(-1, None)

    def heard(self, message: Ahead | Told) -> None:
        """Takes what a Starter says of this submission on a direct line. Cost: that of believing a fragment."""
        if self._stopped:
            return
        if isinstance(message, Ahead):
            fragment = read_fragment(message.fragment)
            believed = not fragment.row and (self._believes is None or self._believes(self.number, fragment, message.fragment))
            self._ahead = (message, fragment) if believed else None  # else it is read as ever
            return
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0].serial != message.serial or message.number != self._next:
            if message.number >= self._next:
                self._announced(message.number, None)
            return
        self._taken.append(Read(self._next, ahead[1], 0, ahead[0].fragment, True))
        self._next += 1
        self._hand_over()
        self._rest()

    # -- reading

    def _rest(self) -> None:
        """The last fragment was not read. The next one is watched when no more news come this way."""
        self._heard_s = machine.monotonic()
        if not self._resting:
            self._resting = True
            self._host.after(_REST_S, self._rested)

    def _rested(self) -> None:
        left_s = self._heard_s + _REST_S - machine.monotonic()
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
        if self._stopped or self._flying or self._is_resting:
            return
        self._flying, self._again = True, False
        coordinator, first, window = self._host.coordinator, self._next, self._window
        probe = done = None
        if window != 1 or check or not self._may_end():
            # Before what it stands behind is read: when that is still there afterwards, this one was not paged out, it is yet to come.
            self._watched = watched = first + window
            self._is_paced = self._pace.wait_s() > 0
            probe = coordinator.stat(paths.fragment(self.number, watched), watch=lambda: self._on_watch(watched))
        if asked is None:
            gets = [coordinator.get(paths.fragment(self.number, first + i)) for i in range(window)]
            questions: list[Future[Any]] = [probe, *gets] if probe is not None else [*gets]
        else:
            gets = [asked]
            questions = [asked, probe] if probe is not None else [asked]
            if probe is not None:  # somebody may wait for just this one
                asked.add_done_callback(lambda _: self._host.post(lambda: self._arrived_alone(first, asked)))
        if check:
            done = coordinator.get(paths.done(self.number))
            questions.append(done)
        # Answers come in the order of the questions: when the last is there, all are.
        questions[-1].add_done_callback(lambda _: self._host.post(lambda: self._answered(first, gets, done, probe)))

    def _on_watch(self, number: int) -> None:
        """Runs on the thread that brings the watch. The fragment is asked for at once, unless others are being read."""
        # A guess: the owner's thread decides.
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
            self._host.after(_NEWS_S, lambda: self._overdue(number))
        elif not self._stopped and not self._gather():
            self._window = max(1, self._window)
            self._look(asked=asked if number == self._next and self._window == 1 else None)

    def _overdue(self, number: int) -> None:
        """Its Starter has not said which it is."""
        if number == self._next:
            self._ahead = None
            self._announced(number, None)

    def _arrived_alone(self, number: int, asked: Future[Stamped | None]) -> None:
        """Delivers the one fragment that was asked for. What lies behind it, and every error, comes with `_answered`."""
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
        if present < len(found):  # paged out meanwhile
            self._window = 0
            self._look(check=True)
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
                self._rest()  # the watched fragment came over a direct line meanwhile

    # -- a dense stream

    def _gather(self) -> bool:
        """Lets fragments gather before they are read, if that is worth it. Until then nothing else is looked for."""
        wait_s = self._pace.wait_s()
        if wait_s:
            self._flying = True
            self._host.after(wait_s, self._read_gathered)
        return wait_s > 0

    def _read_gathered(self, *, is_more: bool = False) -> None:
        """is_more: all that were asked for were there."""
        if self._stopped:
            return
        if self._is_resting:
            self._flying = False
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
            self._look(check=is_more or present != 1)  # the rest is not there yet, or was paged out meanwhile

    def _count(self, counted: Stamped | None) -> bool:
        """Acts on what `/done` says. False: another reading has begun."""
        if counted is None:
            self._fail(NotFound(f"submission {self.number} is gone", hint=f"rmgr history {self.number}"))
            return False
        base = validity.decode(counted.data, Paged, paths.done(self.number)).base if counted.data else 0
        if base > self._next:
            self._flying = True
            store, at = self._host.store, self._page_at
            reading = self._host.io(lambda: read_pages(store, self.number, at, base))
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
        number = self._next
        self._next += 1
        self._pace.note(fragment)
        self._taken.append(Read(number, fragment, zxid, data))

    def _hand_over(self) -> None:
        taken, self._taken = self._taken, []
        if taken and not self._stopped:
            self._deliver(taken)

    # -- pages

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


class Pace:
    """Lets small fragments gather before they are read: several are then read by one request, and none of them is watched.

    Jobs that end one by one make a fragment for every two or three of them. To watch and read each alone costs two requests,
    a watch and three switches of threads, here and again at ZooKeeper. Gathering delays results by a fiftieth of the time that the
    unfinished tasks take (at 400 tasks a second), and by at most 20 ms. Where few tasks are unfinished nothing is delayed.

    Args: unfinished: how many tasks that were submitted have not ended.
    """

    def __init__(self, unfinished: Callable[[], int]) -> None:
        self.window = _MORE
        self._unfinished = unfinished
        self._is_small = False

    def note(self, fragment: Fragment) -> None:
        """Notes a fragment that was read."""
        self._is_small = not fragment.row and len(fragment.outcomes) <= _SMALL

    def wait_s(self) -> float:
        """How long to let fragments gather before the next are read (s); 0: each is read as it comes."""
        if not self._is_small:
            return 0.0
        wait_s = min(_MOST_S, self._unfinished() * _TASK_S)
        return wait_s if wait_s >= _LEAST_S else 0.0

    def came(self, count: int) -> None:
        """Notes that so many of `window` were there."""
        self.window = min(_MOST, max(count + _MORE, self.window - 1) if count < self.window else 2 * self.window)
