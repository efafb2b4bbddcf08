"""Folds a submission's fragments, tail, record and claimed blocks into its state: one fold, used by everyone.

The leader keeps one `Progress` per open submission; a follower keeps one for what it waits for; a command without a
leader builds one from znodes. Nothing here reads a clock or does IO: callers feed it what they read, in any order that
respects fragment numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmgr.coord.decisions.codes import Codes
from rmgr.coord.decisions.ends import EndFold
from rmgr.model.base.states import LOSSES, TRANSITIONS, Reason, State
from rmgr.model.tasks.block import MOST_TASKS, BlockKey, PastAttempt
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Paged, Phase, Submission, Tail

#: Kinds of failures that are told apart, and characters that are kept of an error.
_MOST_GROUPS, _ERROR_CHARS = 16, 200
#: Ends of attempts whose node, or what they had of it, was lost.
_LOST = LOSSES | {Reason.POISON}


class Progress:
    """Progress of one submission: final tasks, their ends (`ends`), and what their outcomes add.

    `next_fragment`: the first fragment not applied yet.
    """

    __slots__ = (
        "again",
        "cpu_us",
        "ends",
        "exit_code",
        "failed",
        "first_started_us",
        "last_ended_us",
        "lost",
        "lost_us",
        "max_rss_kib",
        "next_fragment",
        "nodes",
        "reason",
        "run_us",
        "served_us",
        "tail",
        "turns",
    )

    def __init__(self) -> None:
        self.tail = Tail()
        self.next_fragment = 0
        self.ends = EndFold()
        self.exit_code: int | None = None  #: highest exit code of its tasks that were not cancelled
        self.cpu_us = 0
        self.run_us = 0  #: of all attempts that ended by themselves, or were moved; served time of those that shared their cores
        self.lost_us = 0  #: of those that were lost; each task of a lost block has the time of the block
        self.lost = 0  #: attempts that ended by a loss, not by themselves
        self.max_rss_kib = 0
        self.served_us = self.turns = 0  #: of those that shared their cores in time
        self.first_started_us: int | None = None
        self.last_ended_us: int | None = None
        self.again = False  #: some task had an attempt before the one that is told of
        self.nodes: dict[str, None] = {}  #: where tasks ended, in order of first appearance
        self.reason = Reason.NONE  #: of the first task that ended FAILED
        #: Tasks that FAILED, by reason, exit code and node: how many, and the error of the first. Nodes of the first groups are told apart.
        self.failed: dict[tuple[Reason, int | None, str], tuple[int, str]] = {}

    @property
    def counts(self) -> dict[State, int]:
        """Tasks that ended, by how."""
        return self.ends.counts

    @property
    def total(self) -> int:
        """Tasks submitted so far."""
        return self.tail.next

    @property
    def final(self) -> int:
        """Tasks that are final."""
        return sum(self.counts.values())

    @property
    def failures(self) -> int:
        """Tasks that FAILED for good."""
        return self.counts[State.FAILED]

    @property
    def began(self) -> bool:
        """An attempt of it ran, or was lost."""
        return self.first_started_us is not None or self.again or bool(self.counts[State.COMPLETED] or self.counts[State.FAILED])

    @property
    def is_ended(self) -> bool:
        """The submission is complete and every task is final."""
        return self.tail.complete and self.final >= self.tail.next

    def state_of(self, index: int) -> State | None:
        """Final state of a task, None while it has none."""
        return self.ends.state_of(index)

    def settled(self) -> Codes | None:
        """A code for each task that is final, as of now; None where only counts are known (see `skip_to`). Cost: O(tasks) bytes."""
        codes = self.ends.codes.copy()
        return codes if codes.count == self.final else None

    def unfinished(self) -> Iterable[int]:
        """Indices without a final state, ascending."""
        return (index for index in range(self.tail.next) if not self.ends.codes[index])

    def apply(self, number: int, fragment: Fragment, outcomes: Iterable[Outcome], *, end: int = MOST_TASKS) -> list[Outcome]:
        """Takes in fragment `number` (each once, in order).

        Args:
            outcomes: the fragment's own, or those of its row. end: tasks that were submitted, where that is known: an outcome of another
                counts nowhere.
        Returns: the outcomes that made a task final just now.
        Raises: ValueError if `number` is not the next one.
        """
        self._begin(number, fragment)
        fresh = self.ends.fold(outcomes, end)
        self.account(fragment, fresh)
        return fresh

    def apply_stated(self, number: int, fragment: Fragment, *, most: int = MOST_TASKS, end: int = MOST_TASKS) -> None:
        """The same of a fragment whose outcomes lie in a row, by what it says itself of the first `most` tasks: their states."""
        self._begin(number, fragment)
        if self.ends.fold_ranges(fragment.ranges, end, most):
            self.account(fragment, [Outcome(index=0, state=State.COMPLETED)])  # one that tells nothing else stands for all

    def _begin(self, number: int, fragment: Fragment) -> None:
        if number != self.next_fragment:
            raise ValueError(f"fragment {number} applied, {self.next_fragment} expected")
        self.next_fragment += 1
        if fragment.node:
            self.nodes.setdefault(fragment.node)

    def skip_to(self, paged: Paged) -> None:
        """Starts behind what was paged out: only its counts are known here (the pages hold the rest)."""
        if self.next_fragment >= paged.base:
            return
        self.next_fragment = paged.base
        for state in self.counts:
            self.counts[state] = paged.counts.get(state, 0)

    def account(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """Adds what outcomes tell beside their states; those of a row when only the fragment's ranges were applied. Each once."""
        if not outcomes:
            return
        self.cpu_us += sum([outcome.cpu_us for outcome in outcomes])
        self.run_us += sum([outcome.elapsed_us for outcome in outcomes])
        self.max_rss_kib = max(self.max_rss_kib, *[outcome.max_rss_kib for outcome in outcomes])
        self.again = self.again or fragment.attempt > 1
        if fragment.base_us:
            first_us = fragment.base_us + min([outcome.started_us for outcome in outcomes])
            self.first_started_us = first_us if self.first_started_us is None else min(self.first_started_us, first_us)
            last_us = fragment.base_us + max([outcome.started_us + outcome.elapsed_us for outcome in outcomes])
            self.last_ended_us = last_us if self.last_ended_us is None else max(self.last_ended_us, last_us)
        for outcome in outcomes:
            if outcome.reason or outcome.exit_code is not None or outcome.past or outcome.helpers or outcome.turns:
                self._account_unusual(outcome, fragment.node)

    def copy(self) -> Progress:
        """The same at this moment, for another thread. Cost: O(tasks) bytes."""
        twin = Progress()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.nodes, twin.failed, twin.ends = dict(self.nodes), dict(self.failed), self.ends.copy()
        return twin

    def _account_unusual(self, outcome: Outcome, node: str) -> None:
        """What most outcomes have nothing of."""
        self.served_us += outcome.served_us
        self.turns += outcome.turns
        had_us = outcome.served_us if outcome.turns else outcome.elapsed_us
        self.run_us += had_us - outcome.elapsed_us
        if outcome.reason in _LOST:
            self.lost += 1
            self.lost_us += had_us
            self.run_us -= had_us
        for attempt in outcome.past:
            self._account_past(attempt)
        for name in outcome.helpers:
            self.nodes.setdefault(name)
        if outcome.state is State.FAILED:
            self.reason = self.reason or outcome.reason
            self._account_failure(outcome, node)
        if outcome.exit_code is not None and outcome.state is not State.CANCELLED:
            self.exit_code = max(self.exit_code or 0, outcome.exit_code)

    def _account_failure(self, outcome: Outcome, node: str) -> None:
        key = (outcome.reason, outcome.exit_code, node)
        if key not in self.failed and len(self.failed) >= _MOST_GROUPS:
            key = (outcome.reason, None, "")
            if key not in self.failed and len(self.failed) >= 2 * _MOST_GROUPS:
                return
        count, error = self.failed.get(key, (0, outcome.error[:_ERROR_CHARS]))
        self.failed[key] = count + 1, error

    def _account_past(self, attempt: PastAttempt) -> None:
        ran_us = max(0, attempt.ended_us - attempt.started_us) if attempt.started_us else 0
        if attempt.reason in _LOST:
            self.lost += 1
            self.lost_us += ran_us
        else:
            self.run_us += ran_us
        self.cpu_us += attempt.cpu_us
        self.max_rss_kib = max(self.max_rss_kib, attempt.max_rss_kib)
        if attempt.started_us:
            first_us = attempt.started_us
            self.first_started_us = first_us if self.first_started_us is None else min(self.first_started_us, first_us)


def running_count(blocks: Iterable[tuple[BlockKey, int]]) -> int:
    """Tasks that are claimed and have no outcome: over (key, done mask) of claimed blocks."""
    return sum(key.count - done.bit_count() for key, done in blocks)


def claimed_state(*, is_starting: bool = False, is_suspended: bool = False, is_stopping: bool = False) -> State:
    """What a claimed block does, of what is known of it: each in its turn, as far as `TRANSITIONS` leads there.

    One that is asked to give its nodes up is STOPPING, whatever it did before; one that has not begun cannot stand still.
    """
    state = State.STARTING if is_starting else State.RUNNING
    for is_seen, new in ((is_suspended, State.SUSPENDED), (is_stopping, State.STOPPING)):
        if is_seen and (state, new) in TRANSITIONS:
            state = new
    return state


def state_counts(submission: Submission, progress: Progress, running: int) -> dict[State, int]:
    """How many tasks are in which state; what is neither final nor running waits (INITIAL or HELD)."""
    counts = dict(progress.counts)
    waiting = max(0, progress.total - progress.final - running)
    counts[State.RUNNING] = running
    counts[State.INITIAL] = 0 if submission.phase is Phase.HELD else waiting
    counts[State.HELD] = waiting if submission.phase is Phase.HELD else 0
    counts[State.SUSPENDED] = 0
    return counts


def was_cancelled(submission: Submission) -> bool:
    """It was cancelled, whether or not it has been closed since: a closed record keeps the reason that it had."""
    if submission.phase is Phase.CLOSED:
        return submission.reason not in {Reason.NONE, Reason.USER_HOLD, Reason.OPERATOR_HOLD, Reason.DEPENDENCY}
    return submission.phase is Phase.CANCELLED


def overall_state(submission: Submission, progress: Progress, running: int) -> State:
    """One word for a submission: what `rmgr jobs` shows.

    Ended: FAILED if any task failed, else CANCELLED if any was (a cancel that came too late changes nothing), else
    COMPLETED. Before: RUNNING once anything of it runs or ran, HELD while it may not start, INITIAL otherwise.
    """
    if progress.is_ended:
        if progress.counts[State.FAILED]:
            return State.FAILED
        is_cancelled = progress.counts[State.CANCELLED] or (was_cancelled(submission) and not progress.total)
        return State.CANCELLED if is_cancelled else State.COMPLETED
    if running:
        return State.RUNNING
    if submission.phase is Phase.HELD:
        return State.HELD
    return State.RUNNING if progress.final else State.INITIAL
