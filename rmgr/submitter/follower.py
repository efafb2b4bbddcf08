"""Reads the outcome fragments of one submission in order, by number, and watches the first missing one.

Level-triggered: a watch is a hint, and a slow resync makes up for lost ones. It lives on its owner's thread: every method
is called there, and answers come back through `post`. Only the read that follows a watch is sent from the thread that
brings the watch, which saves a switch of threads. A Starter with a direct line reports which fragment it has committed under
which number. That fragment is not read, and as long as such news keep coming, the next one is not watched.
In a dense stream several fragments are read together (`Pace`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from rmgr.coord import validity
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.records import read_fragment
from rmgr.errors import NotFound, RmgrError, Unavailable
from rmgr.model.block import MAX_TASKS, Fragment
from rmgr.model.line import Ahead, Told
from rmgr.model.submission import Paged
from rmgr.procedures.bounded import raw_page_at
from rmgr.runtime import machine
from rmgr.runtime.machine import Backoff
from rmgr.runtime.story import Bell, Pause, Stories, Story, each
from rmgr.submitter.port import PAGED, Read

if TYPE_CHECKING:
    from rmgr.submitter.direct import Submitter

#: Whether to accept a fragment that is not committed yet: (submission, fragment, its bytes).
Believes = Callable[[int, Fragment, bytes], bool]

#: Fragments requested at once while they come faster than they are read.
MAX_WINDOW = 64
#: Fragments in a row that were there already, after which their number is read, and they are read together.
_STREAK = 3
#: Gathered fragments from which more are expected.
_DENSE = 2
#: How long news on a direct line may follow the watch of a fragment (s); and the silence on direct lines after which the next fragment
#: is watched again (s).
_NEWS_S, _REST_S = 0.005, 0.03
#: The first and the longest pause before an unanswered request is repeated (s).
_RETRY_S, _LONGEST_S = 0.1, 2.0
#: Time per unfinished task to let fragments gather, the most, and the least: less is not worth a timer (s).
_TASK_S, _MOST_S, _LEAST_S = 50e-6, 0.02, 0.002
#: The same for tasks so quick that they fill fragments.
_QUICK_TASK_S, _QUICK_MOST_S = 5e-6, 0.01
#: Most outcomes of a small fragment, and least of a full one.
_SMALL, _FULL = 8, MAX_TASKS // 2
#: Fragments requested together: this many more than came last, and the most.
_MORE, _MOST = 3, 64
#: Interval of looks without a hint (s).
_RESYNC_S = 20.0


class Follower:
    """Reads the fragments of one submission as they are committed.

    Args:
        deliver: called with the next fragments, in order, on the owner's thread.
        gone: called once if the submission no longer exists, or cannot be read.
        believes: None = all (an open cluster).
        decode: decodes a fragment; `glance_fragment` where outcomes are not needed.
        unfinished: number of submitted tasks that have not ended; 0: fragments are read as they come.
        may_end: whether the next fragment may be the last; then the one after it is requested only if it was not.
    """

    def __init__(
        self,
        number: int,
        host: Submitter,
        deliver: Callable[[list[Read]], None],
        gone: Callable[[RmgrError], None],
        *,
        believes: Believes | None = None,
        decode: Callable[[bytes], Fragment] = read_fragment,
        unfinished: Callable[[], int] = int,
        may_end: Callable[[], bool] = bool,
    ) -> None:
        self._may_end = may_end
        self.number = number
        self._host = host
        self._deliver = deliver
        self._believes = believes
        self._decode = decode
        self._taken: list[Read] = []  # read but not delivered yet
        self._gone = gone
        self._next = 0  # the first fragment not read yet
        self._page_at = 0  # number of the first fragment of a page, at or below `_next`
        self._streak = 0
        self._stopped = False
        self._stories = Stories(host)
        self._bell = Bell(host)
        self._hint: tuple[int, Future[Stamped | None] | None] | None = None  # an announced fragment
        self._due: Look | None = None
        self._is_looking = False
        self._pace = Pace(unfinished)
        self._is_paced = False  # the watched fragment will not be read at once
        self._watched = -1  # number of the fragment with a watch
        self._ahead: tuple[Ahead, Fragment] | None = None  # announced by a Starter that is committing it, and accepted
        self.heard_s = -math.inf
        self._awaits_silence = False
        self._is_resting = False  # reading pauses

    # -- the owner's side

    def start(self, *, fresh: bool, first: int = 0) -> None:
        """Begins with fragment `first`. fresh: the submission was made just now, so there is nothing to catch up with."""
        self._next = first
        self._stories.begin(self._follow(Look(check=not fresh)))
        self._stories.begin(self._resync())

    def stop(self) -> None:
        """Stops all deliveries."""
        self._stopped = True
        self._stories.stop()

    def rest(self, *, is_resting: bool) -> None:
        """Pauses or resumes reading, as the listener has room."""
        was, self._is_resting = self._is_resting, is_resting
        if was and not is_resting:
            self._is_due(Look(check=True))

    def nudge(self) -> None:
        """Looks now, because of a hint from elsewhere (a new session, a waiting caller)."""
        self._note_fragment(-1, None)

    def heard(self, message: Ahead | Told) -> None:
        """Takes a Starter's message about this submission from a direct line. Cost: that of verifying a fragment."""
        if self._stopped:
            return
        if isinstance(message, Ahead):
            fragment = read_fragment(message.fragment)
            believed = not fragment.row and (self._believes is None or self._believes(self.number, fragment, message.fragment))
            self._ahead = (message, fragment) if believed else None  # else it is read as usual
            return
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0].serial != message.serial or message.number != self._next:
            if message.number >= self._next:
                self._note_fragment(message.number, None)
            return
        self._taken.append(Read(self._next, ahead[1], 0, ahead[0].fragment, True))
        self._next += 1
        self._hand_over()
        self._rest()

    # -- hints

    def _on_watch(self, number: int) -> None:
        """Runs on the thread that brings the watch. Requests the fragment at once, unless others are being read."""
        # A guess: the owner's thread decides.
        may_ask = number == self._next and self._ahead is None and not (self._is_looking or self._stopped or self._is_paced)
        asked = self._host.coordinator.get(paths.fragment(self.number, number)) if may_ask else None
        self._host.post(lambda: self._note_fragment(number, asked))

    def _note_fragment(self, number: int, asked: Future[Stamped | None] | None) -> None:
        """Notes that a fragment is there; -1: perhaps. asked: a request under way."""
        if number == self._watched:
            self._watched = -1
        if number >= 0 or self._hint is None:
            self._hint = number, asked
        self._bell.ring_here()

    def _is_due(self, look: Look) -> None:
        if self._due is None or look.check:
            self._due = look
        self._bell.ring_here()

    def _resync(self) -> Story[None]:
        """Looks regularly, to make up for lost hints."""
        while True:
            yield Pause(self._host.jitter(_RESYNC_S))
            self._is_due(Look(check=True))

    def _rest(self) -> None:
        """Puts off watching the next fragment until direct lines bring no more news: the last fragment did not need a read."""
        self.heard_s = machine.monotonic()
        if not self._awaits_silence:
            self._awaits_silence = True
            self._stories.begin(self._await_silence())

    def _await_silence(self) -> Story[None]:
        left_s = _REST_S
        while left_s > _REST_S / 10:
            yield Pause(left_s)
            left_s = self.heard_s + _REST_S - machine.monotonic()
        self._awaits_silence = False
        self._is_due(Look())

    # -- reading

    def _follow(self, look: Look | None) -> Story[None]:
        pauses = Backoff(_RETRY_S, _LONGEST_S)
        while not self._stopped:
            try:
                self._is_looking = look is not None
                look = (yield from self._request_fragments(look)) if look is not None else (yield from self._due_look())
                pauses.reset()
            except (Unavailable, TimeoutError):
                yield Pause(pauses.next_s())
                look = Look(check=True)
            except RmgrError as error:
                self.stop()
                self._gone(error)

    def _due_look(self) -> Story[Look | None]:
        """Waits for a hint and returns the look that it asks for, None if the hint is used up."""
        due, self._due = self._due, None
        hint, self._hint = self._hint, None
        if self._is_resting:
            yield self._bell.heard()
        elif due is not None and (due.check or self._watched != self._next):
            return due
        elif hint is None:
            yield self._bell.heard()
        elif 0 <= (number := hint[0]) < self._next:
            self._rest()
        elif self._ahead is not None and number == self._next:
            yield Pause(_NEWS_S)
            if number == self._next:  # its Starter has not reported the number
                self._ahead, self._hint = None, (number, None)
        elif self._pace.wait_s():
            return (yield from self._read_gathered())
        else:
            return Look(1, asked=hint[1] if number == self._next else None)
        return None

    def _request_fragments(self, look: Look) -> Story[Look | None]:
        """Requests the next fragments and watches the one after them. Returns the next look, None if nothing is due."""
        if self._is_resting:
            return None
        self._hint = None
        coordinator, first = self._host.coordinator, self._next
        probe = done = None
        if look.window != 1 or look.check or not self._may_end():
            # Requested before the fragments in front of it: if those are still there, this one was not paged out but is yet to come.
            self._watched = watched = first + look.window
            self._is_paced = self._pace.wait_s() > 0
            probe = coordinator.stat(paths.fragment(self.number, watched), watch=lambda: self._on_watch(watched))
        if look.asked is None:
            gets = [coordinator.get(paths.fragment(self.number, first + at)) for at in range(look.window)]
        else:
            gets = [look.asked]
        if look.check:
            done = coordinator.get(paths.done(self.number))
        if look.asked is not None and probe is not None:  # a caller may wait for just this one
            self._take_run(first, [(yield look.asked)])
        asked: list[Future[Any]] = [one for one in (probe, *gets, done) if one is not None]
        yield from each(asked)
        found = [get.result(0) for get in gets]
        present = self._take_run(first, found)
        if done is not None and (told := (yield from self._take_paged(look, done.result(0)))) is not None:
            return told
        if present < len(found):  # paged out meanwhile
            return Look(check=True)
        if probe is None:  # it was not the last, or is still being verified
            return Look()
        is_more = probe.result(0) is not None
        if is_more and self._pace.wait_s():
            self._streak = 0
            return (yield from self._read_gathered())
        if is_more and first + len(found) >= self._next:
            # Fragments that may not exist yet are not requested: each request costs ZooKeeper as much as an answer.
            self._streak += 1
            return Look(1, check=self._streak >= _STREAK)
        self._streak = 0
        if is_more and self._hint is None:
            self._rest()  # a direct line brought the watched fragment meanwhile
        return None

    def _take_paged(self, look: Look, counted: Stamped | None) -> Story[Look | None]:
        """Returns the look that `/done` calls for, None if none, after taking the fragments that are in pages."""
        if counted is None:
            raise NotFound(f"submission {self.number} is gone", hint=f"rmgr history {self.number}")
        base = validity.decode(counted.data, Paged, paths.done(self.number)).base if counted.data else 0
        if base > self._next:
            # Page by page: a listener without room gets no more, however long its submissions are, and however many.
            while self._next < base and not self._stopped and (yield from self._take_page()):
                pass
            return look._replace(check=True, asked=None)
        if counted.stat.creates > self._next:
            return Look(min(MAX_WINDOW, counted.stat.creates - self._next))
        return None

    def _take_page(self) -> Story[bool]:
        """Hands the next page over. Returns False if reading pauses, or there is none. Raises DataLost."""
        store, at = self._host.store, self._page_at
        yield from self._host.pages.acquire()
        try:
            page = [] if self._is_resting else (yield self._host.io(lambda: raw_page_at(store, self.number, at)))
            for data in page[max(0, self._next - at) :]:
                self._take(self._decode(data), PAGED, data)
            self._page_at += len(page)
            self._hand_over()
        finally:
            self._host.pages.release()
        return bool(page)

    def _read_gathered(self) -> Story[Look | None]:
        """Lets fragments of a dense stream gather and reads them together, as long as that pays. Nothing is watched meanwhile."""
        is_more, wait_s = False, self._pace.wait_s()  # is_more: all requested ones were there
        while True:
            if wait_s:
                yield Pause(wait_s)
            if self._is_resting:
                return None
            first = self._next
            names = [paths.fragment(self.number, first + at) for at in range(self._pace.window)]
            found = yield self._host.coordinator.get_many(names)
            present = self._take_run(first, found)
            self._pace.came(present)
            if self._stopped:
                return None
            if present == len(found):
                is_more, wait_s = True, 0.0
                continue
            wait_s = self._pace.wait_s()
            if not wait_s or (present < _DENSE and not is_more):
                return Look(check=is_more or present != 1)  # the rest is yet to come, or was paged out
            is_more = False

    def _take_run(self, first: int, found: Sequence[Stamped | None]) -> int:
        """Takes and delivers fragments read from `first` on, up to the first missing one; returns how many there are."""
        present = next((at for at, item in enumerate(found) if item is None), len(found))
        for item in found[self._next - first : present]:
            assert item is not None
            self._take(self._decode(item.data), item.stat.mzxid, item.data)
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


class Look(NamedTuple):
    """One request: the next `window` fragments.

    check: also reads how many there are, and whether the next one was paged out. asked: the next one, requested already.
    """

    window: int = 0
    check: bool = False
    asked: Future[Stamped | None] | None = None


class Pace:
    """Lets fragments gather before they are read: one request then reads several, and none of them is watched.

    Jobs that end one by one make a fragment for every two or three of them. Watching and reading each alone costs two requests,
    a watch and three switches of threads, here and again at ZooKeeper. Gathering delays results by 1/50 of the time that the
    unfinished tasks take (at 400 tasks a second), by at most 20 ms; with few unfinished tasks there is no delay.

    Tasks that take no time fill a fragment every few milliseconds. Their delay is a quarter of the time that the unfinished ones
    take (at 50,000 a second), at most 10 ms. Fragments of sizes in between are read as they come: a caller may wait, and it is cheap.

    Args: unfinished: number of submitted tasks that have not ended.
    """

    def __init__(self, unfinished: Callable[[], int]) -> None:
        self.window = _MORE
        self._unfinished = unfinished
        self._task_s, self._most_s = 0.0, 0.0

    def note(self, fragment: Fragment) -> None:
        """Notes a fragment that was read."""
        count = len(fragment.outcomes)
        if fragment.row or _SMALL < count < _FULL:
            self._task_s, self._most_s = 0.0, 0.0
        else:
            self._task_s, self._most_s = (_TASK_S, _MOST_S) if count <= _SMALL else (_QUICK_TASK_S, _QUICK_MOST_S)

    def wait_s(self) -> float:
        """Returns how long to let fragments gather before the next read (s); 0: read each as it comes."""
        if not self._most_s:
            return 0.0
        wait_s = min(self._most_s, self._unfinished() * self._task_s)
        return wait_s if wait_s >= _LEAST_S else 0.0

    def came(self, count: int) -> None:
        """Notes that `count` of `window` were there."""
        self.window = min(_MOST, max(count + _MORE, self.window - 1) if count < self.window else 2 * self.window)
