"""One submission in the memory of the leader: record, tail, outcome fragments, failed ranges; kept fresh by watches.

As a client's follower, with two differences: it reads at its own pace (nobody waits for a result here), and outcomes that lie in a row of
the store are applied by the ranges of the fragment, so that no decision waits for the store; `rows` remembers them for the summary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import TypeVar

from rmgr.coord import validity
from rmgr.coord.decisions.keeping import Bar, Facts, FailedSeen, ReconcileAction, SubmissionEnd
from rmgr.coord.decisions.progress import Progress
from rmgr.coord.nonces import place_of
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped, Stat
from rmgr.coord.protocol.records import read_fragment
from rmgr.daemons.leader.core.doors import LeaderReads, StoreCalls, Thunk
from rmgr.daemons.leader.core.term import Term
from rmgr.daemons.leader.core.watched_cache import data_of, names_below
from rmgr.daemons.leader.submissions.fragments import FragmentSizes, apply, reaches, read_pages
from rmgr.errors import InvalidRecord, RmgrError
from rmgr.model.tasks.block import Fragment
from rmgr.model.tasks.submission import Paged, Phase, Submission, Tail
from rmgr.runtime.mailbox import Timer

T = TypeVar("T")

#: Fragments asked for at once.
WINDOW = 64
_MOMENT_S, _PAUSE_S = 0.05, 0.01  #: for which fragments are taken in, and others have their turn
#: The answer to a commit comes within this after what its watches tell, or it is lost.
_ANSWER_S = 1.0


class Followed:
    """Knowledge of the leader about submission `number`.

    Args:
        changed: called with this after each change. gone: called when its record does not exist.
    Attributes besides the facts: doing: actions under way. retry_s: when an action that did not succeed is due again.
    held_tasks: set aside, when its blocks were last looked at. endings: of submissions that it waits for and that are
    no longer in memory. is_loading: its turn to be read has come. is_brief: it may be over already when it is read.
    record_bytes: of its record.
    """

    def __init__(
        self,
        tree: LeaderReads,
        term: Term,
        calls: StoreCalls,
        number: int,
        changed: Callable[[Followed], None],
        gone: Callable[[Followed], None],
    ) -> None:
        self.number = number
        self.submission: Submission | None = None
        self.version = -1
        self.made = 0  #: transaction that created the record
        self.nonce: tuple[str, Stamped | None] = "", None  #: a path, and what a glance has found there
        self.tail_version = -1
        self.paged = Paged()
        self.done_version = -1
        self.progress = Progress()
        self.failed: dict[str, FailedSeen] = {}
        self.rows: list[Fragment] = []
        self.active_s = tree.clock()
        self.ended_s: float | None = None
        self.swept = True
        self.sweep_s = -math.inf
        self.held_tasks = 0
        self.told = 0  #: amendments of which the nodes that run it were told
        self.doing: set[ReconcileAction] = set()
        self.retry_s: dict[ReconcileAction, tuple[float, float]] = {}
        self.timer: Timer | None = None
        self.endings: dict[int, SubmissionEnd] = {}
        self.is_loading = False
        self.is_brief = False
        self.record_bytes = 0
        self._sizes = FragmentSizes()
        self._faults: set[str] = set()  # paths of its parts that hold what they may not hold
        self._tree = tree
        self._term = term
        self._calls = calls
        self._changed = changed
        self._gone = gone
        self._record = data_of(tree, paths.sub(number), self._on_record)
        self._tail = data_of(tree, paths.tail(number), self._on_tail)
        self._failed = names_below(tree, paths.failed(number), self._on_failed)
        self._pace_s = 0.0
        self._is_reading_on = False
        self._watched = -1  # the missing fragment on which a watch of ours is set
        self._reading = False
        self._stale = False
        self._stopped = False
        self._caught_up = False
        self._is_over = self._is_grown = False  # as a glance has found it: everything is final; the tail is complete
        self._has_news = False
        self._looked_s = float("-inf")
        self._look_timer: Timer | None = None

    @property
    def mark(self) -> tuple[object, ...]:
        """Another one when anything of it has changed in ZooKeeper."""
        return (self.version, self.tail_version, self.done_version, len(self.failed))

    # -- life

    def start(self) -> None:
        """Reads the record; `load` reads the rest."""
        self._record.refresh()

    def load(self) -> None:
        """Reads tail, fragments and failed ranges; of a closed submission once and without watches: they do not change."""
        if self.is_brief and self.submission is not None:
            self.is_brief, self._reading = False, True
            nonce = place_of(self.submission)
            wanted = [paths.tail(self.number), paths.done(self.number), nonce]
            self._tree.get_all(wanted, partial(self._on_glance, nonce), failed=self._load_all)
            return
        self._is_reading_on = True
        self._tail.is_watched = self._failed.is_watched = not self.is_closed
        if not self._is_grown:
            self._tail.refresh()
        self._failed.refresh()
        self._look()

    def _on_glance(self, nonce: str, found: list[Stamped | None]) -> None:
        tail, done, there = found
        self.nonce = nonce, there
        if self._stopped or tail is None or done is None:
            self._load_all()
            return
        try:
            self.progress.tail, self.tail_version = validity.tail(tail, self.number), tail.version
        except RmgrError:
            self._load_all()  # it will find the same, and say so
            return
        self._is_grown = self.progress.tail.complete
        if not self._is_grown or not done.stat.creates:
            self._load_rest(done)
            return
        wanted = [paths.fragment(self.number, number) for number in range(min(done.stat.creates, WINDOW))]
        self._tree.get_all(wanted, partial(self._on_glanced, done), failed=self._load_all)

    def _on_glanced(self, done: Stamped, found: list[Stamped | None]) -> None:
        fragments = [read_fragment(item.data) for item in found if item is not None]
        if self._stopped or len(fragments) < len(found):
            self._load_all()
            return
        self._take_in(fragments, partial(self._glanced, done), found)

    def _glanced(self, done: Stamped) -> None:
        if self.progress.is_ended:  # all are final: there are no failed ranges, and nothing will change
            self._reading, self._is_over = False, True
            self._touch()
        else:
            self._load_rest(done)

    def _load_rest(self, done: Stamped) -> None:
        """What was not read yet, and watches."""
        self.load()
        self._stale = False
        self._on_done(done)

    def _load_all(self) -> None:
        self._reading = False
        if not self._stopped:
            self.load()

    def stop(self) -> None:
        """Forgets its watches; nothing follows. Idempotent."""
        self._stopped = True
        for cache in (self._record, self._tail, self._failed):
            cache.stop()
        for timer in (self.timer, self._look_timer):
            if timer is not None:
                timer.cancel()

    def refresh(self) -> None:
        """Reads everything again, watches or not."""
        self._record.pace_s = 0.0
        self._record.refresh()
        if self._is_reading_on:
            self._tail.refresh()
            self._failed.refresh()
            self._look()

    def refresh_failed(self) -> None:
        """Its failed ranges are not what was thought."""
        self._failed.refresh()

    def set_pace(self, pace_s: float) -> None:
        """Least time between two readings of the same thing."""
        self._pace_s = pace_s
        self._tail.pace_s = self._failed.pace_s = pace_s

    def hurry(self) -> bool:
        """What the pace has put off is read now. Returns: something is being read."""
        reading = [cache.hurry() for cache in (self._record, self._tail, self._failed)]
        if self._look_timer is not None:
            self._look()
        return any(reading) or self._reading

    # -- what our own commits have made: known before it is read

    def will_change(self) -> None:
        """A commit of ours is about to change the record: its watch, which is told first, leads to no reading."""
        self._record.pace_s = self._tree.clock() - self._record.asked_s + _ANSWER_S

    def put_record(self, submission: Submission, version: int) -> None:
        """The record is `submission` now; CLOSED is its last state."""
        self._record.pace_s = 0.0
        if submission.phase is Phase.CLOSED:
            self._record.stop()
        old, self.submission, self.version = self.submission, submission, version
        if old is None or old.phase is not submission.phase:
            self.swept, self.sweep_s = submission.phase is Phase.CLOSED, -math.inf
        self._touch()

    def put_tail(self, tail: Tail, version: int) -> None:
        """The tail is `tail` now."""
        self.progress.tail, self.tail_version = tail, version
        self._touch()

    def put_paged(self, paged: Paged, version: int) -> None:
        """/done says `paged` now."""
        self.paged, self.done_version = paged, version
        self._sizes.drop_below(self.paged.base)
        self._touch()

    @property
    def fragment_bytes(self) -> int:
        """Of its fragments in ZooKeeper, as far as they were read."""
        return self._sizes.total

    @property
    def is_closed(self) -> bool:
        """Its record says CLOSED."""
        return self.submission is not None and self.submission.phase is Phase.CLOSED

    @property
    def is_loaded(self) -> bool:
        """Everything was read once: its facts can be judged."""
        known = self._is_over or ((self._tail.is_known or self._is_grown) and self._failed.is_known and self._caught_up)
        return self.submission is not None and known

    @property
    def is_ended(self) -> bool:
        """Every task is final and none will follow."""
        known, submission = self.progress, self.submission
        is_over = submission is not None and submission.phase in {Phase.CANCELLED, Phase.CLOSED}
        return submission is not None and (known.is_ended or (is_over and known.final >= known.total))

    def facts(self, *, owner_alive: bool, bar: Bar | None = None, gone_s: float | None = None) -> Facts:
        """What decides about it. Only when `is_loaded`."""
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
            self._gone(self)
            return
        submission = self._believed(paths.sub(self.number), lambda: validity.submission(found.data, self.number))
        self.record_bytes = len(found.data)
        if found.version < self.version:
            return  # older than what a commit of ours has made
        old, self.submission, self.version, self.made = self.submission, submission, found.version, found.stat.czxid
        if old is None:
            # A record that was never changed has its blocks where SUBMIT put them.
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
        if found is None or found.version < self.tail_version:
            return
        self._read_tail(found)
        if self.submission is not None and (self.submission.max_running or self.version):
            self.swept = False  # new blocks of a held, released or capped one may have been set aside
        self._touch()

    def _is_missing(self, path: str) -> None:
        """A part that SUBMIT makes is not there. (It goes with the record: then that is gone in a moment, too.)"""
        if self.submission is not None and not self.is_closed:
            self._spoil(path)
            raise InvalidRecord(f"{path} is missing: what made this submission was no SUBMIT")

    def _on_failed(self) -> None:
        if self._failed.value is None:
            self._is_missing(paths.failed(self.number))
            return
        now_s = self._tree.clock()
        ranges = sorted(paths.failed_in(self._failed.value))
        self.failed = {name: self.failed.get(name) or FailedSeen(*numbers, seen_s=now_s) for name, numbers in ranges}
        if self.submission is not None and (self.submission.max_running or self.submission.changes):
            self.swept = False  # what failed leaves room, and waits aside (or under its old name) when it is put back
        self._touch()

    @property
    def is_spoilt(self) -> bool:
        """Something of it holds what it may not hold: nothing is done for it, and nobody waits for it."""
        return bool(self._faults)

    def _believed(self, path: str, read: Callable[[], T]) -> T:
        """What stands there. Raises RmgrError, which sets it aside, when it is not what may stand there: then the whole is spoilt."""
        try:
            found = read()
        except RmgrError:
            self._spoil(path)
            raise
        self._faults.discard(path)
        return found

    def _spoil(self, path: str) -> None:
        self._reading = False
        self._faults.add(path)
        self._changed(self)

    def _read_tail(self, found: Stamped) -> None:
        self.progress.tail = self._believed(paths.tail(self.number), lambda: validity.tail(found, self.number))
        self.tail_version = found.version

    def _touch(self) -> None:
        self.active_s = self._tree.clock()
        if self.progress.is_ended and self.is_loaded:
            self.ended_s = self.active_s if self.ended_s is None else self.ended_s
        else:
            self.ended_s = None
        self._changed(self)

    # -- fragments

    def _fired(self, number: int) -> None:
        if self._watched == number:
            self._watched = -1
        if self._stopped or self._look_timer is not None:
            return
        wait_s = self._looked_s + self._pace_s - self._tree.clock()
        if wait_s > 0:
            self._look_timer = self._tree.after(wait_s, self._look)
        elif self._reading or number != self.progress.next_fragment:
            self._look()
        else:  # the first after a pause: hardly more than this one
            self._reading = True
            self._looked_s = self._tree.clock()
            self._read_on(number + 1)

    def _look(self) -> None:
        """Asks how many fragments there are; reads the new ones; watches the first missing one."""
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if self._stopped:
            return
        if self._reading:
            self._stale = True
            return
        self._reading = True
        self._looked_s = self._tree.clock()
        self._tree.get(paths.done(self.number), self._on_done, failed=self._failed_to_read)

    def _failed_to_read(self) -> None:
        self._reading = False
        self._watched = -1
        if self._look_timer is None:
            self._look_timer = self._tree.after(1.0, self._look)

    def _on_done(self, found: Stamped | None) -> None:
        if self._stopped or found is None:
            self._reading = False
            if not self._stopped:
                self._is_missing(paths.done(self.number))
            return
        if found.version >= self.done_version:
            path = paths.done(self.number)
            self.paged = self._believed(path, lambda: validity.decode(found.data, Paged, path) if found.data else Paged())
            self.done_version = found.version
            self._sizes.drop_below(self.paged.base)
        if self.paged.base > self.progress.next_fragment:
            base, start = self.paged.base, self.progress.next_fragment
            self._calls.store(
                partial(read_pages, number=self.number, start=start, base=base),
                partial(self._on_pages, found),
                partial(self._on_no_pages, found),
            )
            return
        self._read_on(found.stat.creates)

    def _on_pages(self, found: Stamped, pages: list[tuple[int, Fragment]]) -> None:
        if self._stopped:
            return
        fragments = [fragment for number, fragment in pages if number >= self.progress.next_fragment]
        self._take_in(fragments, partial(self._read_on, found.stat.creates))

    def _on_no_pages(self, found: Stamped, error: RmgrError) -> None:
        """The store is away: counts are enough to go on."""
        if self._stopped:
            return
        self._term.log.warning("pages_unreadable", submission=self.number, error=error.message)
        self.progress.skip_to(self.paged)
        self._has_news = True
        self._read_on(found.stat.creates)

    def _read_on(self, end: int) -> None:
        first = self.progress.next_fragment
        if first >= end:
            self._watch(end)
            return
        wanted = [paths.fragment(self.number, number) for number in range(first, min(end, first + WINDOW))]
        self._tree.get_all(wanted, partial(self._on_batch, end), failed=self._failed_to_read)

    def _on_batch(self, end: int, batch: list[Stamped | None]) -> None:
        if self._stopped:
            return
        fragments = [read_fragment(item.data) for item in takewhile(lambda item: item is not None, batch) if item is not None]
        then = partial(self._read_on, end) if len(fragments) == len(batch) else self._failed_to_read  # else: paged out meanwhile
        self._take_in(fragments, then, batch)

    def _take_in(self, fragments: list[Fragment], then: Thunk, items: Sequence[Stamped | None] = ()) -> None:
        """Applies them. Outcomes of tasks that the tail does not count yet wait until it has been read again: what was committed before
        them is seen then, and what it still does not count was never submitted."""
        end = self.progress.tail.next
        if any(reaches(fragment, end) for fragment in fragments):
            self._tree.get(paths.tail(self.number), partial(self._on_fresh_tail, fragments, then, items), failed=self._failed_to_read)
        else:
            self._apply_all(fragments, then, items)

    def _on_fresh_tail(self, fragments: list[Fragment], then: Thunk, items: Sequence[Stamped | None], found: Stamped | None) -> None:
        if self._stopped:
            return
        if found is not None and found.version > self.tail_version:
            self._read_tail(found)
        self._apply_all(fragments, then, items)

    def _apply_all(self, fragments: list[Fragment], then: Thunk, items: Sequence[Stamped | None]) -> None:
        """What takes a moment; the others after what else the loop has to do: a user may have made each as costly as can be."""
        until_s = self._tree.clock() + _MOMENT_S
        for at, fragment in enumerate(fragments if not self._stopped else ()):
            if at and self._tree.clock() > until_s:
                self._tree.after(_PAUSE_S, partial(self._apply_all, fragments[at:], then, items[at:]))
                return
            if items and (item := items[at]) is not None:
                self._sizes.add(self.progress.next_fragment, len(item.data))
            self._apply(fragment)
        if not self._stopped:
            then()

    def _watch(self, number: int) -> None:
        """Looks whether the first missing fragment is missing still, to be told when it comes. (A `get` would be two questions.)"""
        if self.progress.is_ended:  # none will come
            self._on_next(None)
            return
        watch = None if self._watched == number or self.is_closed else partial(self._fired, number)
        self._watched = number if watch is not None else self._watched
        self._tree.stat(paths.fragment(self.number, number), self._on_next, watch=watch, failed=self._failed_to_read)

    def _on_next(self, found: Stat | None) -> None:
        self._reading = False
        if self._stopped:
            return
        if found is not None or self._stale:
            self._stale = False
            self._look()
            return
        if self._caught_up and not self._has_news:
            return
        self._caught_up, self._has_news = True, False
        if self.held_tasks and self.submission is not None and self.submission.max_running:
            self.swept = False  # what ended leaves room
        self._touch()

    def _apply(self, fragment: Fragment) -> None:
        if fragment.row:
            self.rows.append(fragment)
        self._has_news = True
        apply(fragment, self.progress, self.number, self._term)
