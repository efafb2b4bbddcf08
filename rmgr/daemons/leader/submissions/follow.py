"""One submission in the memory of the leader: record, tail, outcome fragments, failed ranges; kept fresh by watches.

Works like a client's follower, with two differences: it reads at its own pace (no caller waits for a result here), and outcomes in a row
of the store are applied by the ranges of the fragment, so that no decision waits for the store; `rows` remembers them for the summary.

    LISTED ──> TO_READ ──> READING ──> FOLLOWED          the keeper (`subs.py`) decides which one is read next
     └─────> YOUNG ──────────┴─────> OVER              a submission that is over at the first glance is read no further
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeVar

from rmgr.coord import validity
from rmgr.coord.decisions.keeping import Bar, Facts, FailedSeen, ReconcileAction, SubmissionEnd
from rmgr.coord.decisions.progress import MOST_STATED, Progress
from rmgr.coord.nonces import place_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Store
from rmgr.coord.protocol.records import read_fragment
from rmgr.daemons.leader.term import Term, WatchedCache
from rmgr.errors import CoordinationUnavailable, InvalidRecord, PermissionDenied, RmgrError
from rmgr.model.block import Fragment
from rmgr.model.submission import Paged, Phase, Submission, Tail
from rmgr.procedures.bounded import page_at, pages
from rmgr.runtime.mailbox import Timer
from rmgr.runtime.story import Pause, Story

if TYPE_CHECKING:
    from rmgr.daemons.leader.submissions.subs import SubmissionKeeper

T = TypeVar("T")

#: Fragments requested at once.
WINDOW = 64
_MOMENT_S, _PAUSE_S = 0.05, 0.01  #: Longest stretch of applying fragments, and the pause after it in which other work runs.
#: Longest time between a commit's watch event and its answer; later, the answer is lost.
_ANSWER_S = 1.0
#: Pause after a failed read.
_RETRY_S = 1.0


class Stage(Enum):
    """How much of a submission is in memory."""

    LISTED = auto()  #: its directory was seen
    TO_READ = auto()  #: its record is known; the rest waits for its turn
    YOUNG = auto()  #: as TO_READ, but created a moment ago by a live owner: it may be over when its turn comes
    READING = auto()  #: tail, fragments and failed ranges are being read
    FOLLOWED = auto()  #: everything was read once; watches keep it fresh
    OVER = auto()  #: everything was read at a glance, and nothing will change
    STOPPED = auto()  #: forgotten


class Followed:
    """The leader's knowledge about submission `number`.

    Attributes besides the facts: doing: actions under way. retry_s: when a failed action is due again.
    held_tasks: tasks that stood aside at the last look at its blocks. endings: ends of submissions that it waits for
    and that are no longer in memory. record_bytes: size of its record.
    """

    def __init__(self, keeper: SubmissionKeeper, number: int) -> None:
        self._keeper = keeper
        self._term = keeper.term
        self.stage = Stage.LISTED
        self.number = number
        self.submission: Submission | None = None
        self.version = -1
        self.made = 0  #: transaction that created the record
        self.nonce: tuple[str, Stamped | None] = "", None  #: a path, and what a glance found there
        self.tail_version = -1
        self.paged = Paged()
        self.done_version = -1
        self.progress = Progress()
        self.failed: dict[str, FailedSeen] = {}
        self.rows: list[Fragment] = []
        self.active_s = self._term.clock()
        self.ended_s: float | None = None
        self.swept = True
        self.sweep_s = -math.inf
        self.held_tasks = 0
        self.told = 0  #: number of amendments that were passed on to its nodes
        self.doing: set[ReconcileAction] = set()
        self.retry_s: dict[ReconcileAction, tuple[float, float]] = {}
        self.timer: Timer | None = None
        self.endings: dict[int, SubmissionEnd] = {}
        self.record_bytes = 0
        self._sizes = FragmentSizes()
        self._faults: set[str] = set()  # paths of its parts with invalid content
        self._record = WatchedCache(self._term, self._term.get, paths.sub(number), self._on_record)
        self._tail = WatchedCache(self._term, self._term.get, paths.tail(number), self._on_tail)
        self._failed = WatchedCache(self._term, self._term.children, paths.failed(number), self._on_failed)
        self._is_grown = False  # a glance found its tail complete
        self._pace_s = 0.0
        self._watched = -1  # the missing fragment on which a watch is set
        self._reads = False  # a story reads fragments
        self._again = False  # that story must look once more
        self._caught_up = False  # all fragments were read, at least once
        self._has_news = False
        self._looked_s = -math.inf
        self._look_timer: Timer | None = None

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that differs after any change in ZooKeeper."""
        return (self.version, self.tail_version, self.done_version, len(self.failed))

    # -- life cycle

    def start(self) -> None:
        """Reads the record; `load` reads the rest."""
        self._record.refresh()

    def load(self) -> None:
        """Reads tail, fragments and failed ranges; of a closed submission only once and without watches."""
        self._read(self._load())

    def stop(self) -> None:
        """Stops its caches, stories and timers. Idempotent."""
        self.stage = Stage.STOPPED
        self._term.stories.end(self)
        for cache in (self._record, self._tail, self._failed):
            cache.stop()
        for timer in (self.timer, self._look_timer):
            if timer is not None:
                timer.cancel()

    def refresh(self) -> None:
        """Reads everything again, watched or not."""
        self._record.pace_s = 0.0
        self._record.refresh()
        if self.stage is Stage.READING or self.stage is Stage.FOLLOWED:
            self._tail.refresh()
            self._failed.refresh()
            self._look()

    def refresh_failed(self) -> None:
        """Reads the failed ranges again, because they differ from memory."""
        self._failed.refresh()

    def set_pace(self, pace_s: float) -> None:
        """Sets the least time between two reads of the same part."""
        self._pace_s = pace_s
        self._tail.pace_s = self._failed.pace_s = pace_s

    def hurry(self) -> bool:
        """Sends the reads that the pace put off. Returns whether anything is being read."""
        reading = [cache.hurry() for cache in (self._record, self._tail, self._failed)]
        if self._look_timer is not None:
            self._look()
        return any(reading) or self._reads

    # -- what the leader's own commits changed, known before it is read

    def will_change(self) -> None:
        """Announces a commit of the leader to the record, so that its watch event, which comes first, causes no read."""
        self._record.pace_s = self._term.clock() - self._record.asked_s + _ANSWER_S

    def put_record(self, submission: Submission, version: int) -> None:
        """Takes over the committed record, unless a newer one was read before the answer came; CLOSED is its last state."""
        self._record.pace_s = 0.0
        if version < self.version:
            return
        if submission.phase is Phase.CLOSED:
            self._record.stop()
        old, self.submission, self.version = self.submission, submission, version
        if old is None or old.phase is not submission.phase:
            self.swept, self.sweep_s = submission.phase is Phase.CLOSED, -math.inf
        self._touch()

    def put_tail(self, tail: Tail, version: int) -> None:
        """Takes over the committed tail."""
        if version < self.tail_version:
            return
        self.progress.tail, self.tail_version = tail, version
        self._touch()

    def put_paged(self, paged: Paged, version: int) -> None:
        """Takes over the committed content of /done."""
        if version < self.done_version:
            return
        self.paged, self.done_version = paged, version
        self._sizes.drop_below(self.paged.base)
        self._touch()

    # -- what is known

    @property
    def fragment_bytes(self) -> int:
        """Bytes of its fragments in ZooKeeper, as far as they were read."""
        return self._sizes.total

    @property
    def is_closed(self) -> bool:
        """Whether its record is CLOSED."""
        return self.submission is not None and self.submission.phase is Phase.CLOSED

    @property
    def is_loaded(self) -> bool:
        """Whether everything was read once, so that its facts can be judged."""
        return self.stage is Stage.FOLLOWED or self.stage is Stage.OVER

    @property
    def is_ended(self) -> bool:
        """Whether every task is final and none will follow."""
        known, submission = self.progress, self.submission
        is_over = submission is not None and submission.phase in {Phase.CANCELLED, Phase.CLOSED}
        return submission is not None and (known.is_ended or (is_over and known.final >= known.total))

    @property
    def is_spoilt(self) -> bool:
        """Whether a part of it has invalid content: then nothing is done for it, and nothing waits for it."""
        return bool(self._faults)

    def facts(self, *, owner_alive: bool, bar: Bar | None = None, gone_s: float | None = None) -> Facts:
        """Returns the facts that decide about it. Only when `is_loaded`."""
        assert self.submission is not None
        return Facts(
            submission=self.submission,
            tail=self.progress.tail,
            final=self.progress.final,
            failures=self.progress.failures,
            failed=tuple(self.failed.values()),
            applied=self.progress.next_fragment,
            base=self.paged.base,
            fragment_bytes=self.fragment_bytes,
            owner_alive=owner_alive,
            active_s=self.active_s,
            ended_s=self.ended_s,
            swept=self.swept,
            sweep_s=self.sweep_s,
            gone_s=gone_s,
            bar=bar,
        )

    # -- record, tail, failed ranges

    def _on_record(self) -> None:
        found = self._record.value
        if found is None:
            self._keeper.forget(self)
            return
        submission = self._read_part(paths.sub(self.number), lambda: validity.submission(found.data, self.number))
        self.record_bytes = len(found.data)
        if found.version < self.version:
            return  # older than a commit of this leader
        old, self.submission, self.version, self.made = self.submission, submission, found.version, found.stat.czxid
        if old is None:
            # The blocks of a record that was never changed are where SUBMIT put them.
            self.swept = submission.phase is Phase.CLOSED or (
                submission.phase is Phase.OPEN and not found.version and not submission.max_running
            )
        elif old.phase is not submission.phase or len(old.changes) != len(submission.changes):
            self.swept, self.sweep_s = False, -math.inf
        self._touch()

    def _on_tail(self) -> None:
        found = self._tail.value
        if found is None:
            self._is_missing(paths.tail(self.number))
        elif found.version >= self.tail_version:
            self._read_tail(found)
            if self.submission is not None and (self.submission.max_running or self.version):
                self.swept = False  # new blocks of a held, released or capped submission may have been set aside
            self._touch()

    def _on_failed(self) -> None:
        if self._failed.value is None:
            self._is_missing(paths.failed(self.number))
            return
        now_s = self._term.clock()
        ranges = sorted(paths.failed_in(self._failed.value))
        self.failed = {name: self.failed.get(name) or FailedSeen(*numbers, seen_s=now_s) for name, numbers in ranges}
        if self.submission is not None and (self.submission.max_running or self.submission.changes):
            self.swept = False  # a failure leaves room, and a block that is put back waits aside or under its old name
        self._touch()

    def _is_missing(self, path: str) -> None:
        """Handles a part that SUBMIT makes but that is missing. (If it went with the record, the record is gone in a moment, too.)"""
        if self.submission is not None and not self.is_closed:
            self._spoil(path)
            raise InvalidRecord(f"{path} is missing: what made this submission was no SUBMIT")

    def _read_tail(self, found: Stamped) -> None:
        self.progress.tail = self._read_part(paths.tail(self.number), lambda: validity.tail(found, self.number))
        self.tail_version = found.version

    def _read_part(self, path: str, read: Callable[[], T]) -> T:
        """Reads a part. Raises RmgrError if its content is invalid: the part is set aside and the submission is spoilt."""
        try:
            found = read()
        except RmgrError:
            self._spoil(path)
            raise
        self._faults.discard(path)
        return found

    def _spoil(self, path: str) -> None:
        self._faults.add(path)
        self._keeper.changed(self)

    def _touch(self) -> None:
        is_known = (self._tail.is_known or self._is_grown) and self._failed.is_known and self._caught_up
        if self.stage is Stage.READING and is_known:
            self.stage = Stage.FOLLOWED
        self.active_s = self._term.clock()
        if self.progress.is_ended and self.is_loaded:
            self.ended_s = self.active_s if self.ended_s is None else self.ended_s
        else:
            self.ended_s = None
        self._keeper.changed(self)

    # -- fragments

    def _look(self) -> None:
        """Reads the new fragments; if a story already reads them, it looks once more afterwards."""
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if self.stage is not Stage.STOPPED and not self._read(self._catch_up()):
            self._again = True

    def _on_watch(self, number: int) -> None:
        if self._watched == number:
            self._watched = -1
        if self.stage is Stage.STOPPED or self._look_timer is not None:
            return
        wait_s = self._looked_s + self._pace_s - self._term.clock()
        if wait_s > 0:
            self._look_timer = self._term.after(wait_s, self._look)
        elif self._reads or number != self.progress.next_fragment:
            self._look()
        else:  # the first after a pause: hardly more than this one
            self._looked_s = self._term.clock()
            self._read(self._catch_up(number + 1))

    def _read(self, story: Story[None]) -> bool:
        """Starts a story that reads fragments. Returns False if one is under way."""
        return self._term.tell(self._reading(story), paths.done(self.number), key=self)

    def _reading(self, story: Story[None]) -> Story[None]:
        self._reads = True
        try:
            yield from story
        except (CoordinationUnavailable, PermissionDenied):
            self._watched = -1
            if self._look_timer is None:
                self._look_timer = self._term.after(_RETRY_S, self._look)
            raise
        finally:
            self._reads = False

    def _load(self) -> Story[None]:
        """Reads everything the first time. A young submission is glanced at: if it is over, it has no failed ranges and will not change."""
        end = None
        if self.stage is Stage.YOUNG:
            with suppress(CoordinationUnavailable, PermissionDenied):  # then everything is read
                end = yield from self._glance()
            if end is None and self._is_grown and self.progress.is_ended:
                self.stage = Stage.OVER
                self._touch()
                return
        self.stage = Stage.READING
        self._tail.is_watched = self._failed.is_watched = not self.is_closed
        if not self._is_grown:
            self._tail.refresh()
        self._failed.refresh()
        yield from self._catch_up(end)

    def _glance(self) -> Story[int | None]:
        """Reads tail, outcomes and nonce at once. Returns the number of fragments, or None if it is over, or if that is unknown."""
        assert self.submission is not None
        nonce = place_of(self.submission)
        tail, done, there = yield self._term.get_all([paths.tail(self.number), paths.done(self.number), nonce])
        self.nonce = nonce, there
        if tail is None or done is None:
            return None
        try:
            self.progress.tail, self.tail_version = validity.tail(tail, self.number), tail.version
        except RmgrError:
            return None  # the full read finds the same error, and reports it
        self._is_grown = self.progress.tail.complete
        if self._is_grown and done.stat.creates:
            numbers = range(min(done.stat.creates, WINDOW))
            found = yield self._term.get_all([paths.fragment(self.number, number) for number in numbers])
            if None in found:
                return None  # paged out
            yield from self._take_in([read_fragment(item.data) for item in found], [len(item.data) for item in found])
            if self.progress.is_ended:
                return None
        return (yield from self._take_paged(done))

    def _catch_up(self, end: int | None = None) -> Story[None]:
        """Reads up to the first missing fragment, and leaves a watch on it.

        end: the number of fragments, None = ask for it.
        """
        while True:
            self._again = False
            if end is None:
                self._looked_s = self._term.clock()
                done = yield self._term.get(paths.done(self.number))
                if done is None:
                    self._is_missing(paths.done(self.number))
                    return
                end = yield from self._take_paged(done)
            yield from self._take_new(end)
            is_there = yield from self._watch(end)
            if not (is_there or self._again):
                break
            end = None
        if self._caught_up and not self._has_news:
            return
        self._caught_up, self._has_news = True, False
        if self.held_tasks and self.submission is not None and self.submission.max_running:
            self.swept = False  # what ended leaves room
        self._touch()

    def _take_paged(self, done: Stamped) -> Story[int]:
        """Takes in fragments from pages of the store, which /done records. Returns the number of fragments."""
        if done.version >= self.done_version:
            path = paths.done(self.number)
            self.paged = self._read_part(path, lambda: validity.decode(done.data, Paged, path) if done.data else Paged())
            self.done_version = done.version
            self._sizes.drop_below(self.paged.base)
        base, start = self.paged.base, self.progress.next_fragment
        if base > start:
            try:
                pages = yield self._term.in_store(read_pages, number=self.number, start=start, base=base)
            except RmgrError as error:  # the store is away: the counts are enough to go on
                self._term.log.warning("pages_unreadable", submission=self.number, error=error.message)
                self.progress.skip_to(self.paged)
                self._has_news = True
            else:
                yield from self._take_in([fragment for number, fragment in pages if number >= self.progress.next_fragment])
        return done.stat.creates

    def _take_new(self, end: int) -> Story[None]:
        """Takes in the next fragments, below `end`. Raises: CoordinationUnavailable if some were paged out meanwhile."""
        while (first := self.progress.next_fragment) < end:
            wanted = [paths.fragment(self.number, number) for number in range(first, min(end, first + WINDOW))]
            batch = yield self._term.get_all(wanted)
            there = list(takewhile(lambda item: item is not None, batch))
            yield from self._take_in([read_fragment(item.data) for item in there], [len(item.data) for item in there])
            if len(there) < len(batch):
                raise CoordinationUnavailable(f"fragment {first + len(there)} of submission {self.number} is not there any more")

    def _take_in(self, fragments: list[Fragment], sizes: Sequence[int] = ()) -> Story[None]:
        """Applies fragments. If outcomes belong to tasks that the tail does not count yet, the tail is read again first: it then shows
        what was committed before them, and tasks that it still does not count were never submitted.

        Pauses after each `_MOMENT_S` to let others run: a user may have made each fragment as costly as possible.
        """
        if any(reaches(fragment, self.progress.tail.next) for fragment in fragments):
            tail = yield self._term.get(paths.tail(self.number))
            if tail is not None and tail.version > self.tail_version:
                self._read_tail(tail)
        until_s = self._term.clock() + _MOMENT_S
        for at, fragment in enumerate(fragments):
            if at and self._term.clock() > until_s:
                yield Pause(_PAUSE_S)
                until_s = self._term.clock() + _MOMENT_S
            if sizes:
                self._sizes.add(self.progress.next_fragment, sizes[at])
            if fragment.row:
                self.rows.append(fragment)
            self._has_news = True
            apply(fragment, self.progress, self.number, self._term)

    def _watch(self, number: int) -> Story[bool]:
        """Whether the first missing fragment exists by now; otherwise sets a watch. (A `get` would take two requests.)"""
        if self.progress.is_ended:  # none will come
            return False
        watch = None if self._watched == number or self.is_closed else lambda: self._on_watch(number)
        self._watched = number if watch is not None else self._watched
        return (yield self._term.stat(paths.fragment(self.number, number), watch=watch)) is not None


class FragmentSizes:
    """Adds up the bytes of the fragments in ZooKeeper."""

    def __init__(self) -> None:
        self.total = 0
        self._each: deque[tuple[int, int]] = deque()  # (number, bytes)

    def add(self, number: int, size: int) -> None:
        """Adds the size of the next fragment."""
        self._each.append((number, size))
        self.total += size

    def drop_below(self, base: int) -> None:
        """Drops fragments before `base`, which lie in pages of the store."""
        while self._each and self._each[0][0] < base:
            self.total -= self._each.popleft()[1]


def reaches(fragment: Fragment, end: int) -> bool:
    """Whether the fragment contains outcomes of tasks from `end` on. Cost: O(outcomes)."""
    if fragment.row:
        return any(first + count > end for _, first, count in fragment.ranges)
    return bool(fragment.outcomes) and max([outcome.index for outcome in fragment.outcomes]) >= end


def read_pages(store: Store, *, number: int, start: int, base: int) -> list[tuple[int, Fragment]]:
    """Returns paged fragments from `start` to below `base`; a page is named by its first fragment. On a thread that may block."""
    return [(place, one) for at, page in pages(store, number, 0, base, page_at) for place, one in enumerate(page, at) if place >= start]


def apply(fragment: Fragment, progress: Progress, number: int, term: Term) -> None:
    """Applies the next fragment of submission `number` to its progress. Implausible outcomes are logged and counted, but ignored."""
    ends, end = progress.ends, progress.tail.next
    known, strange = ends.duplicates, ends.strange
    if fragment.row:
        progress.apply_stated(progress.next_fragment, fragment, most=MOST_STATED, end=end)
    else:
        progress.apply(progress.next_fragment, fragment, islice(fragment.outcomes, MOST_STATED), end=end)
    if ends.strange > strange and not strange:
        term.log.warning("outcomes_ignored", submission=number, why="of tasks that were never submitted, or no ends")
    if ends.duplicates > known:
        term.metrics.duplicates.inc(ends.duplicates - known)
        if not known:  # once for each submission: the metric counts them all
            term.log.error("outcome_committed_twice", submission=number, node=fragment.node, total=ends.duplicates)
