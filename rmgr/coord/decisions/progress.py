"""Folds a submission's fragments, tail, record and claimed blocks into its state: one fold, used by everyone.

The leader keeps one `Progress` per open submission; a follower keeps one for what it waits for; a command without a
leader builds one from znodes. Nothing here reads a clock or does IO: callers feed it what they read, in any order that
respects fragment numbers.

`EndFold` is the one place where an outcome changes the state of a task, along `TRANSITIONS` alone: leader, follower, commands without a
leader, Starters that look for inputs, and the collection of outputs read fragments through it. An outcome that the table forbids changes
nothing: the first end of a task stands, whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmgr.model.base.states import LOSSES, TRANSITIONS, Reason, State
from rmgr.model.tasks.block import MOST_TASKS, BlockKey, Fragment, Outcome, PastAttempt
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


# -- how each task ended -------------------------------------------------------------------------------------------------------


#: A task is open (0), whatever it waits for or does, or it has ended so.
CODE_OF_END = {state: code for code, state in enumerate((state for state in State if state.is_final), 1)}
END_OF_CODE = {code: state for state, code in CODE_OF_END.items()}


def _edges(code: int) -> dict[State, int]:
    """Ends that the table lets a task of this code come to, with their codes."""
    former = [END_OF_CODE[code]] if code else [state for state in State if not state.is_final]
    return {new: end for new, end in CODE_OF_END.items() if any((old, new) in TRANSITIONS for old in former)}


#: By the task's code. Open: each end that can be reached from some state that is not final. Ended: none, as the table is today.
_EDGES = tuple(_edges(code) for code in range(len(CODE_OF_END) + 1))
_FROM_OPEN = _EDGES[0]
#: Outcomes of one fragment, far more than a commit can have.
MOST_STATED = 100_000
#: The last place of a page of `Codes`.
_PAGE_END = 4095


class EndFold:
    """Ends of the tasks of one submission: one byte a task.

    `strange`: outcomes of tasks that were never submitted, or that are no ends; `duplicates`: outcomes of tasks that were final already.
    Neither changes a state. The protocol makes duplicates impossible: anything but 0 is a defect worth an alarm.
    """

    __slots__ = ("codes", "counts", "duplicates", "strange")

    def __init__(self) -> None:
        self.codes = Codes()
        self.counts: dict[State, int] = dict.fromkeys(CODE_OF_END, 0)
        self.duplicates = 0
        self.strange = 0

    @property
    def refused(self) -> int:
        """Outcomes that changed nothing."""
        return self.duplicates + self.strange

    def state_of(self, index: int) -> State | None:
        """How a task ended, None while it is open."""
        return END_OF_CODE.get(self.codes[index])

    def fold(self, outcomes: Iterable[Outcome], end: int = MOST_TASKS) -> list[Outcome]:
        """Those outcomes that ended a task just now, in their order.

        Args:
            end: tasks that were submitted, where that is known: an outcome of another changes nothing.
        Cost: 0.1 us an outcome.
        """
        codes, counts = self.codes, self.counts
        fresh = []
        number, page = -1, bytearray()
        for outcome in outcomes:
            index, state = outcome.index, outcome.state
            low, code = index & _PAGE_END, _FROM_OPEN.get(state)
            if code is None or not 0 <= index < end:
                self.strange += 1
                continue
            if index >> 12 != number or low >= len(page):
                number, page = index >> 12, codes.room(index)
            if page[low] and state not in _EDGES[page[low]]:
                self.duplicates += 1
                continue
            page[low] = code
            counts[state] += 1
            fresh.append(outcome)
        return fresh

    def fold_ranges(self, ranges: Iterable[tuple[State, int, int]], end: int = MOST_TASKS, most: int = MOST_TASKS) -> bool:
        """As `fold` of what is `stated` by (state, first, count), of the first `most` tasks. Returns: one of them ended just now.

        Cost: 50 us for 4,096 tasks in a row that were open, 0.2 us a task where some had ended.
        """
        ended = sum(self.counts.values())
        for state, first, count in ranges:
            stop = min(first + count, end, first + most)
            if stop <= first:
                continue
            most -= stop - first
            code = _FROM_OPEN.get(state)
            if code is None or first < 0:
                self.strange += stop - first
                continue
            for at in (first, *range((first | _PAGE_END) + 1, stop, _PAGE_END + 1)):
                self._fill(at, min(stop, (at | _PAGE_END) + 1), state, code)
        return sum(self.counts.values()) > ended

    def _fill(self, first: int, stop: int, state: State, code: int) -> None:
        """Tasks of one page end alike."""
        page = self.codes.room(stop - 1)
        low, high = first & _PAGE_END, ((stop - 1) & _PAGE_END) + 1
        if page.count(0, low, high) == high - low:
            page[low:high] = bytes((code,)) * (high - low)
            self.counts[state] += high - low
            return
        for at in range(low, high):
            if page[at] and state not in _EDGES[page[at]]:
                self.duplicates += 1
            else:
                page[at] = code
                self.counts[state] += 1

    def copy(self) -> EndFold:
        """The same at this moment, for another thread. Cost: O(tasks) bytes."""
        twin = EndFold()
        twin.codes, twin.counts = self.codes.copy(), dict(self.counts)
        twin.duplicates, twin.strange = self.duplicates, self.strange
        return twin


def stated(fragment: Fragment, *, end: int = MOST_TASKS, most: int | None = None, error: str = "") -> Iterator[Outcome]:
    """What a fragment whose outcomes lie in a row says of them without it: states by index, below `end`, of the first `most` tasks.

    Where that is not told, of `end` or `MOST_STATED` tasks: anybody could have written the same range a thousand times.
    """
    left = min(end, MOST_STATED) if most is None else most
    for state, first, count in fragment.ranges:
        stop = min(first + count, end, first + left)
        left -= max(0, stop - first)
        for index in range(first, stop):
            yield Outcome(index=index, state=state, error=error)


# -- a byte for each task ------------------------------------------------------------------------------------------------------


#: Tasks of a page, and bytes by which a page grows.
_BITS = 12
_TASKS = 1 << _BITS
_GROWTH = 64
#: Open pages before some are folded, and runs of a folded one at most.
_OPEN, _RUNS = 4, 64
#: One task with each code.
_ONE = tuple(bytes((code,)) for code in range(256))


class Codes:
    """Codes 1..255 by index; 0 = none. Cost: 0.1 us an index; a page is folded or opened in 5 us."""

    __slots__ = ("_most_open", "_open", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray | bytes] = {}  #: open, or folded: (start, code) of each run
        self._open = 0
        self._most_open = _OPEN

    def __getitem__(self, index: int) -> int:
        page = self.pages.get(index >> _BITS)
        low = index & (_TASKS - 1)
        if type(page) is bytes:
            return _code_at(page, low)
        return page[low] if page is not None and low < len(page) else 0

    def __setitem__(self, index: int, code: int) -> None:
        self.room(index)[index & (_TASKS - 1)] = code

    def room(self, index: int) -> bytearray:
        """The page of an index, long enough for it, until the next call. Where in it: the lowest 12 bits of the index."""
        number = index >> _BITS
        page = self.pages.get(number)
        if type(page) is not bytearray:
            if self._open >= self._most_open:
                self._fold()
            page = self.pages[number] = bytearray() if page is None else bytearray(_unfolded(page))
            self._open += 1
        low = index & (_TASKS - 1)
        if low >= len(page):
            page.extend(bytes(min(low + _GROWTH, _TASKS) - len(page)))
        return page

    def copy(self) -> Codes:
        """The same at this moment. Cost: O(bytes)."""
        twin = Codes()
        twin.pages = {number: page[:] for number, page in self.pages.items()}
        twin._open, twin._most_open = self._open, self._most_open
        return twin

    @property
    def count(self) -> int:
        """Indices with a code. Cost: O(bytes)."""
        pages = (_unfolded(page) for page in self.pages.values())
        return sum(len(page) - page.count(0) for page in pages)

    def without(self, start: int, stop: int, most: int) -> list[int]:
        """The first indices from `start` to below `stop` that have no code, at most so many. Cost: O(those, and pages looked through)."""
        found: list[int] = []
        at = start
        while at < stop and len(found) < most:
            end = min(stop, ((at >> _BITS) + 1) << _BITS)
            page, base = _unfolded(self.pages.get(at >> _BITS, b"")), at & -_TASKS
            known = min(end, base + len(page))
            low = page.find(0, at - base, known - base) if at < known else -1
            while low >= 0 and len(found) < most:
                found.append(base + low)
                low = page.find(0, low + 1, known - base)
            found += range(max(at, known), min(end, max(at, known) + most - len(found)))
            at = end
        return found

    def _fold(self) -> None:
        """Open pages that say little; twice as many as then are left may be open before the next time."""
        left = 0
        for number, page in self.pages.items():
            if type(page) is bytearray:
                folded = _folded(page)
                if folded is None:
                    left += 1
                else:
                    self.pages[number] = folded  # a value only: the table stays as it is
        self._open, self._most_open = left, max(_OPEN, 2 * left)


def _folded(page: bytearray) -> bytes | None:
    """Its runs, None where there are too many."""
    runs = bytearray()
    left, at = bytes(page), 0
    while left:
        if len(runs) >= 3 * _RUNS:
            return None
        code = left[0]
        runs += at.to_bytes(2, "big")
        runs.append(code)
        rest = left.lstrip(_ONE[code])
        at += len(left) - len(rest)
        left = rest
    if at < _TASKS:
        runs += at.to_bytes(2, "big") + b"\0"
    return bytes(runs)


def _unfolded(page: bytearray | bytes) -> bytearray | bytes:
    """As it was before, without what has no code at its end."""
    if type(page) is bytearray or not page:
        return page
    starts = [int.from_bytes(page[at : at + 2], "big") for at in range(0, len(page), 3)]
    ends = [*starts[1:], _TASKS if page[-1] else starts[-1]]
    return b"".join([_ONE[code] * (end - start) for start, end, code in zip(starts, ends, page[2::3], strict=True)])


def _code_at(page: bytes, low: int) -> int:
    low_, high = 0, len(page) // 3
    while high - low_ > 1:
        middle = (low_ + high) >> 1
        if int.from_bytes(page[3 * middle : 3 * middle + 2], "big") <= low:
            low_ = middle
        else:
            high = middle
    return page[3 * low_ + 2]
