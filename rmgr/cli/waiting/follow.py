"""Waiting for work: the ends of tasks as they are committed, in the thread of the command.

A follower of the Submitter engine delivers outcomes on its own thread; here they only pass through a queue, so that a
command handles them where Ctrl-C arrives.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rmgr.cli.words.exits import exit_code_of, highest
from rmgr.coord.decisions.dependencies import is_branch_not_taken
from rmgr.errors import NotFound, RmgrError
from rmgr.model.base.states import State
from rmgr.model.tasks.array import Array, parse_array
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Submission
from rmgr.model.views import JobView

if TYPE_CHECKING:
    from rmgr.cli.session.context import Session

#: Waiting threads look up at least so often: Ctrl-C, --timeout, progress.
TICK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedEnd:
    """End of one task."""

    submission: int
    position: int
    index: int  #: the number that people see
    state: State
    reason: str
    exit_code: int | None
    node: str
    attempt: int
    error: str
    started_us: int = 0
    ended_us: int = 0
    max_rss_kib: int = 0
    log: tuple[bytes, bytes] = (b"", b"")
    log_parts: tuple[int, int] = (0, 0)

    @property
    def id(self) -> str:
        """`42_7`."""
        return f"{self.submission}_{self.index}"

    @property
    def code(self) -> int:
        """Exit code for it (cli.md section 6)."""
        return exit_code_of(self.state, self.reason, self.exit_code)


@dataclass(slots=True)
class AwaitedSubmission:
    """One submission that is waited for. wanted: positions, None = all of it. past: it is history, nothing will come."""

    number: int
    wanted: frozenset[int] | None = None
    submission: Submission | None = None
    handle: Any = None
    past: JobView | None = None
    ends: dict[int, FollowedEnd] = field(default_factory=dict)
    dead: RmgrError | None = None
    is_left: bool = False  #: it could grow, but who would add to it has gone

    @property
    def total(self) -> int:
        """Tasks that are waited for, as far as they are submitted."""
        if self.wanted is not None:
            return len(self.wanted)
        return self.past.tasks if self.past is not None else self.handle.progress.total

    @property
    def counts(self) -> dict[State, int]:
        """Ended tasks by state."""
        if self.past is not None:
            return {State(name): count for name, count in self.past.counts.items() if State(name).is_final}
        if self.wanted is None:
            return dict(self.handle.progress.counts)
        states = [end.state for end in self.ends.values()]
        return {state: states.count(state) for state in State if state.is_final}

    @property
    def is_ended(self) -> bool:
        """Nothing that is waited for can still change."""
        if self.past is not None:
            return True
        if self.wanted is not None:
            return len(self.ends) >= len(self.wanted)
        return bool(self.handle.progress.is_ended or (self.is_left and self.is_idle)) and len(self.ends) >= self.handle.progress.final

    @property
    def is_idle(self) -> bool:
        """All that was submitted so far has ended; more may come."""
        return self.past is None and self.wanted is None and self.handle.progress.final >= self.handle.progress.total

    @property
    def state(self) -> State:
        """Of what is waited for, once it has ended."""
        if self.past is not None:
            return self.past.state
        states = {end.state for end in self.ends.values()}
        if State.FAILED in states:
            return State.FAILED
        if State.CANCELLED in states or (not states and self.submission is not None and self.submission.phase == "CANCELLED"):
            return State.CANCELLED
        return State.COMPLETED

    @property
    def worst(self) -> FollowedEnd | None:
        """The end that decides the exit code, None when all is well."""
        bad = [end for end in self.ends.values() if end.code]
        return max(bad, key=lambda end: (end.code, -end.position)) if bad else None

    @property
    def is_not_taken(self) -> bool:
        """It was to run after a failure that did not come."""
        if self.past is not None:
            return is_branch_not_taken(self.past.reason, self.past.detail)
        return self.submission is not None and is_branch_not_taken(self.submission.reason, self.submission.reason_detail)

    @property
    def code(self) -> int:
        """Exit code for it."""
        if self.is_not_taken:
            return 0
        if self.past is not None:
            return exit_code_of(self.past.state, self.past.reason, self.past.exit_code)
        if not self.ends:
            return exit_code_of(self.state, "", None)
        failed = [end.code for end in self.ends.values() if end.state is State.FAILED]
        most = self.submission.max_fails if self.submission is not None else -1
        if self.wanted is None and 0 <= most < len(failed):  # --max-fails has cancelled the others
            return highest(failed)
        return highest(end.code for end in self.ends.values())


class Follow:
    """Follows submissions until they end.

    Raises (`add`): NotFound. Raises (`events`): DeadlineExceeded at `--timeout`; what killed a handle.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._news: queue.SimpleQueue[tuple[AwaitedSubmission, Fragment | None, Sequence[Outcome]]] = queue.SimpleQueue()
        self._engine: Any = None
        self.items: list[AwaitedSubmission] = []

    def add(self, number: int, wanted: Sequence[int] | None = None) -> AwaitedSubmission:
        """Begins to follow a submission, or the tasks at these positions. Ends that are history already come at once."""
        followed = AwaitedSubmission(number, frozenset(wanted) if wanted is not None else None)
        self._session.followed.append(number)
        if self._engine is None:
            self._engine = self._session.submitter()
        try:
            timeout_s = self._session.left_s(10.0) or 10.0
            followed.handle = self._engine.attach(number, _Listener(self._news, followed), own=False, timeout_s=timeout_s)
            followed.submission = followed.handle.submission
        except NotFound:
            from rmgr.client.queries import read_past

            followed.past = read_past(self._session, number)
            if followed.past is None:
                raise
        self.items.append(followed)
        return followed

    @property
    def is_ended(self) -> bool:
        """All of it has ended."""
        return all(item.is_ended for item in self.items)

    def trouble(self) -> str:
        """What is wrong with the cluster at present, "" when nothing is known to be."""
        state = getattr(self._engine, "session_state", "CONNECTED")
        return "" if str(state) == "CONNECTED" else "ZooKeeper does not answer"

    def next(self, wait_s: float = TICK_S) -> list[FollowedEnd]:
        """Ends that have come, waiting at most `wait_s` for the first.

        Raises: DeadlineExceeded when `--timeout` is over; NotFound and others when a submission cannot be followed any more.
        """
        left = self._session.left_s(wait_s)
        ends: list[FollowedEnd] = []
        if self.is_ended:
            wait_s = 0.0
        end = time.monotonic() + min(wait_s, left if left is not None else wait_s)
        while True:
            try:
                item, fragment, outcomes = self._news.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if item.dead is not None and not item.is_ended:
                raise item.dead
            if fragment is not None:
                ends += _ends(item, fragment, outcomes)
            end = -math.inf  # take what else is there, wait no more
        return ends

    def wait_all(self) -> None:
        """Until all has ended."""
        while not self.is_ended:
            self.next()


class _Listener:
    """`ports.Listener`: passes everything on, at once."""

    def __init__(self, news: queue.SimpleQueue[Any], followed: AwaitedSubmission) -> None:
        self._news = news
        self._followed = followed

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        self._news.put((self._followed, fragment, outcomes))

    def on_progress(self) -> None:
        if self._followed.handle is not None:
            self._followed.submission = self._followed.handle.submission
        self._news.put((self._followed, None, ()))

    def on_dead(self, error: RmgrError) -> None:
        self._followed.dead = error
        self._news.put((self._followed, None, ()))


def _ends(item: AwaitedSubmission, fragment: Fragment, outcomes: Sequence[Outcome]) -> list[FollowedEnd]:
    assert item.submission is not None
    array = parse_array(item.submission.array) if item.submission.array else None
    fresh = []
    for outcome in outcomes:
        if item.wanted is None or outcome.index in item.wanted:
            end = item.ends[outcome.index] = _end(item.number, array, fragment, outcome)
            fresh.append(end)
    return fresh


def _end(number: int, array: Array | None, fragment: Fragment, outcome: Outcome) -> FollowedEnd:
    started_us = fragment.base_us + outcome.started_us if fragment.base_us else 0
    return FollowedEnd(
        submission=number,
        position=outcome.index,
        index=array.index_at(outcome.index) if array else outcome.index,
        state=outcome.state,
        reason=str(outcome.reason),
        exit_code=outcome.exit_code,
        node=fragment.node,
        attempt=outcome.attempt or fragment.attempt,
        error=outcome.error,
        started_us=started_us,
        ended_us=started_us + outcome.elapsed_us if started_us else 0,
        max_rss_kib=outcome.max_rss_kib,
        log=outcome.log,
        log_parts=outcome.log_parts,
    )


def read_ends(session: Session, number: int) -> Iterator[FollowedEnd]:
    """How the ended tasks of a submission ended, read once, without following it; in the order of their commits.

    Raises: NotFound, DataLost. Cost: every outcome is read; those of one fragment are in memory at a time.
    """
    from rmgr.coord.decisions.ends import EndFold
    from rmgr.procedures.snapshot import outcomes_of
    from rmgr.submitter.questions import ReadFragments

    ends, first, is_last = EndFold(), 0, False
    while not is_last:
        page = session.ask(ReadFragments(number=number, first=first), 30.0)
        first, is_last = page.next, page.is_last
        array = parse_array(page.record.array) if page.record.array else None
        for fragment in page.fragments:
            store = session.store_or_none() if fragment.row else None
            for outcome in ends.fold(outcomes_of(fragment, store, end=page.total), page.total):
                yield _end(number, array, fragment, outcome)
