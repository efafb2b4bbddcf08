"""Folds a submission's fragments, tail, record and claimed blocks into its state: one fold for all readers.

The leader keeps one `Progress` per open submission; a follower keeps one for each submission it waits for; a command without a
leader builds one from znodes. Nothing here reads a clock or does IO: callers feed it what they read, in any order that
respects fragment numbers.

Only `EndFold` lets an outcome change the state of a task, along `TRANSITIONS` alone: leader, follower, commands without a
leader, Starters that look for inputs, and the collection of outputs read fragments through it. An outcome that the table forbids changes
nothing, so the first end of a task stands for every reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmgr.model.block import MOST_TASKS, BlockKey, Fragment, Outcome, PastAttempt
from rmgr.model.states import LOSSES, TRANSITIONS, Reason, State
from rmgr.model.submission import Paged, Phase, Submission, Tail

#: Kinds of failures that are counted apart, and characters of an error that are kept.
_MOST_GROUPS, _ERROR_CHARS = 16, 200
#: Reasons of attempts whose node, or results on it, were lost.
_LOST = LOSSES | {Reason.POISON}


class Progress:
    """Progress of one submission: its final tasks, their ends (`ends`), and sums over their outcomes.

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
        self.run_us = 0  #: of attempts that ended by themselves or were moved; served time if they shared cores
        self.lost_us = 0  #: of lost attempts; each task of a lost block has the time of the block
        self.lost = 0  #: attempts that ended by a loss, not by themselves
        self.max_rss_kib = 0
        self.served_us = self.turns = 0  #: of tasks that shared their cores in time
        self.first_started_us: int | None = None
        self.last_ended_us: int | None = None
        self.again = False  #: some task had an attempt before the reported one
        self.nodes: dict[str, None] = {}  #: nodes where tasks ended, in order of first appearance
        self.reason = Reason.NONE  #: of the first task that ended FAILED
        #: FAILED tasks by reason, exit code and node: their number, and the first error. Only the first groups are kept apart by node.
        self.failed: dict[tuple[Reason, int | None, str], tuple[int, str]] = {}

    @property
    def counts(self) -> dict[State, int]:
        """Number of ended tasks by final state."""
        return self.ends.counts

    @property
    def total(self) -> int:
        """Number of tasks submitted so far."""
        return self.tail.next

    @property
    def final(self) -> int:
        """Number of final tasks."""
        return sum(self.counts.values())

    @property
    def failures(self) -> int:
        """Number of tasks that ended FAILED."""
        return self.counts[State.FAILED]

    @property
    def began(self) -> bool:
        """Whether an attempt of it ran, or was lost."""
        return self.first_started_us is not None or self.again or bool(self.counts[State.COMPLETED] or self.counts[State.FAILED])

    @property
    def is_ended(self) -> bool:
        """Whether the submission is complete and every task is final."""
        return self.tail.complete and self.final >= self.tail.next

    def state_of(self, index: int) -> State | None:
        """Returns the final state of a task, None while it has none."""
        return self.ends.state_of(index)

    def settled(self) -> Codes | None:
        """Returns a copy of the codes of final tasks; None if only counts are known (see `skip_to`). Cost: O(tasks) bytes."""
        codes = self.ends.codes.copy()
        return codes if codes.count == self.final else None

    def unfinished(self) -> Iterable[int]:
        """Yields the indices without a final state, ascending."""
        return (index for index in range(self.tail.next) if not self.ends.codes[index])

    def apply(self, number: int, fragment: Fragment, outcomes: Iterable[Outcome], *, end: int = MOST_TASKS) -> list[Outcome]:
        """Applies fragment `number` (each once, in order).

        Args:
            outcomes: the fragment's own, or those of its row. end: number of submitted tasks, if known: an outcome of a later index
                does not count.
        Returns: the outcomes that just made a task final.
        Raises: ValueError if `number` is not the next one.
        """
        self._begin(number, fragment)
        fresh = self.ends.fold(outcomes, end)
        self.account(fragment, fresh)
        return fresh

    def apply_stated(self, number: int, fragment: Fragment, *, most: int = MOST_TASKS, end: int = MOST_TASKS) -> None:
        """Applies a fragment whose outcomes are in a row, by the states that the fragment itself lists for the first `most` tasks."""
        self._begin(number, fragment)
        if self.ends.fold_ranges(fragment.ranges, end, most):
            self.account(fragment, [Outcome(index=0, state=State.COMPLETED)])  # an outcome without details stands for all

    def _begin(self, number: int, fragment: Fragment) -> None:
        if number != self.next_fragment:
            raise ValueError(f"fragment {number} applied, {self.next_fragment} expected")
        self.next_fragment += 1
        if fragment.node:
            self.nodes.setdefault(fragment.node)

    def skip_to(self, paged: Paged) -> None:
        """Starts after the paged-out fragments: only their counts are known here (the pages have the rest)."""
        if self.next_fragment >= paged.base:
            return
        self.next_fragment = paged.base
        for state in self.counts:
            self.counts[state] = paged.counts.get(state, 0)

    def account(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """Adds the details of outcomes beside their states; of a row's outcomes after only the ranges were applied. Each outcome once."""
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
        """Returns a copy of the current state, for another thread. Cost: O(tasks) bytes."""
        twin = Progress()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.nodes, twin.failed, twin.ends = dict(self.nodes), dict(self.failed), self.ends.copy()
        return twin

    def _account_unusual(self, outcome: Outcome, node: str) -> None:
        """Adds the details that most outcomes lack."""
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
    """Returns the number of claimed tasks without an outcome, over (key, done mask) of claimed blocks."""
    return sum(key.count - done.bit_count() for key, done in blocks)


def claimed_state(*, is_starting: bool = False, is_suspended: bool = False, is_stopping: bool = False) -> State:
    """Returns the state of a claimed block, applying each known fact in turn as far as `TRANSITIONS` allows.

    A block that is asked to give up its nodes is STOPPING, whatever it did before; one that has not begun cannot be suspended.
    """
    state = State.STARTING if is_starting else State.RUNNING
    for is_seen, new in ((is_suspended, State.SUSPENDED), (is_stopping, State.STOPPING)):
        if is_seen and (state, new) in TRANSITIONS:
            state = new
    return state


def state_counts(submission: Submission, progress: Progress, running: int) -> dict[State, int]:
    """Returns the number of tasks in each state; tasks neither final nor running wait (INITIAL or HELD)."""
    counts = dict(progress.counts)
    waiting = max(0, progress.total - progress.final - running)
    counts[State.RUNNING] = running
    counts[State.INITIAL] = 0 if submission.phase is Phase.HELD else waiting
    counts[State.HELD] = waiting if submission.phase is Phase.HELD else 0
    counts[State.SUSPENDED] = 0
    return counts


def was_cancelled(submission: Submission) -> bool:
    """Returns whether the submission was cancelled, even if it was closed since: a closed record keeps its reason."""
    if submission.phase is Phase.CLOSED:
        return submission.reason not in {Reason.NONE, Reason.USER_HOLD, Reason.OPERATOR_HOLD, Reason.DEPENDENCY}
    return submission.phase is Phase.CANCELLED


def overall_state(submission: Submission, progress: Progress, running: int) -> State:
    """Returns one state for a submission, as `rmgr jobs` shows it.

    Ended: FAILED if any task failed, else CANCELLED if any was (a cancel that came too late changes nothing), else
    COMPLETED. Before: RUNNING once any task runs or ran, HELD while none may start, INITIAL otherwise.
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


#: Codes of final states; 0: the task is open, whatever it waits for or does.
CODE_OF_END = {state: code for code, state in enumerate((state for state in State if state.is_final), 1)}
END_OF_CODE = {code: state for state, code in CODE_OF_END.items()}


def _edges(code: int) -> dict[State, int]:
    """Returns the final states, with codes, that the table allows from this code."""
    former = [END_OF_CODE[code]] if code else [state for state in State if not state.is_final]
    return {new: end for new, end in CODE_OF_END.items() if any((old, new) in TRANSITIONS for old in former)}


#: Those by code. From open (0): every end reachable from some state that is not final. From an end: none, by the current table.
_EDGES = tuple(_edges(code) for code in range(len(CODE_OF_END) + 1))
_FROM_OPEN = _EDGES[0]
#: Most outcomes of one fragment, far more than a commit can have.
MOST_STATED = 100_000
#: The last offset in a page of `Codes`.
_PAGE_END = 4095


class EndFold:
    """Ends of the tasks of one submission: one byte per task.

    `strange`: outcomes of tasks that were never submitted, or without a final state; `duplicates`: outcomes of tasks that were final
    already. Neither changes a state. The protocol makes duplicates impossible: anything but 0 is a defect worth an alarm.
    """

    __slots__ = ("codes", "counts", "duplicates", "strange")

    def __init__(self) -> None:
        self.codes = Codes()
        self.counts: dict[State, int] = dict.fromkeys(CODE_OF_END, 0)
        self.duplicates = 0
        self.strange = 0

    @property
    def refused(self) -> int:
        """Number of outcomes that changed nothing."""
        return self.duplicates + self.strange

    def state_of(self, index: int) -> State | None:
        """Returns how a task ended, None while it is open."""
        return END_OF_CODE.get(self.codes[index])

    def fold(self, outcomes: Iterable[Outcome], end: int = MOST_TASKS) -> list[Outcome]:
        """Applies outcomes; returns, in order, those that just ended a task.

        Args:
            end: number of submitted tasks, if known: an outcome of a later index changes nothing.
        Cost: 0.1 us per outcome.
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
        """Applies ranges (state, first, count) of the first `most` tasks, like `fold` of the `stated` outcomes. Returns whether one just
        ended.

        Cost: 50 us for 4,096 consecutive open tasks, 0.2 us per task where some had ended.
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
        """Ends tasks of one page alike."""
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
        """Returns a copy of the current state, for another thread. Cost: O(tasks) bytes."""
        twin = EndFold()
        twin.codes, twin.counts = self.codes.copy(), dict(self.counts)
        twin.duplicates, twin.strange = self.duplicates, self.strange
        return twin


def stated(fragment: Fragment, *, end: int = MOST_TASKS, most: int | None = None, error: str = "") -> Iterator[Outcome]:
    """Yields the outcomes that a fragment itself states of its row's tasks: states by index, below `end`, of the first `most` tasks.

    Without `most`: of at most `end` or `MOST_STATED` tasks, because a false fragment could repeat a range a thousand times.
    """
    left = min(end, MOST_STATED) if most is None else most
    for state, first, count in fragment.ranges:
        stop = min(first + count, end, first + left)
        left -= max(0, stop - first)
        for index in range(first, stop):
            yield Outcome(index=index, state=state, error=error)


# -- one byte per task ---------------------------------------------------------------------------------------------------------


#: Tasks of a page, and bytes by which a page grows.
_BITS = 12
_TASKS = 1 << _BITS
_GROWTH = 64
#: Open pages before some are folded, and most runs of a folded page.
_OPEN, _RUNS = 4, 64
#: A single byte of each code.
_ONE = tuple(bytes((code,)) for code in range(256))


class Codes:
    """Codes 1..255 by index; 0 = none. Cost: 0.1 us per index; 5 us to fold or open a page."""

    __slots__ = ("_most_open", "_open", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, bytearray | bytes] = {}  #: open, or folded into (start, code) of each run
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
        """Returns the page of an index, long enough for it, until the next call. The offset in it is the index's lowest 12 bits."""
        number = index >> _BITS
        page = self.pages.get(number)
        if type(page) is not bytearray:
            if self._open >= self._most_open:
                self._fold()
            page = self.pages[number] = bytearray() if page is None else bytearray(_unfold(page))
            self._open += 1
        low = index & (_TASKS - 1)
        if low >= len(page):
            page.extend(bytes(min(low + _GROWTH, _TASKS) - len(page)))
        return page

    def copy(self) -> Codes:
        """Returns a copy of the current state. Cost: O(bytes)."""
        twin = Codes()
        twin.pages = {number: page[:] for number, page in self.pages.items()}
        twin._open, twin._most_open = self._open, self._most_open
        return twin

    @property
    def count(self) -> int:
        """Number of indices with a code. Cost: O(bytes)."""
        pages = (_unfold(page) for page in self.pages.values())
        return sum(len(page) - page.count(0) for page in pages)

    def without(self, start: int, stop: int, most: int) -> list[int]:
        """Returns the first `most` indices in [`start`, `stop`) without a code. Cost: O(those, and pages looked through)."""
        found: list[int] = []
        at = start
        while at < stop and len(found) < most:
            end = min(stop, ((at >> _BITS) + 1) << _BITS)
            page, base = _unfold(self.pages.get(at >> _BITS, b"")), at & -_TASKS
            known = min(end, base + len(page))
            low = page.find(0, at - base, known - base) if at < known else -1
            while low >= 0 and len(found) < most:
                found.append(base + low)
                low = page.find(0, low + 1, known - base)
            found += range(max(at, known), min(end, max(at, known) + most - len(found)))
            at = end
        return found

    def _fold(self) -> None:
        """Folds open pages with few runs; sets the limit for the next time to twice the number left open."""
        left = 0
        for number, page in self.pages.items():
            if type(page) is bytearray:
                folded = _folded(page)
                if folded is None:
                    left += 1
                else:
                    self.pages[number] = folded  # replaces a value only, so iterating goes on
        self._open, self._most_open = left, max(_OPEN, 2 * left)


def _folded(page: bytearray) -> bytes | None:
    """Returns the page's runs, None if there are too many."""
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


def _unfold(page: bytearray | bytes) -> bytearray | bytes:
    """Returns the open form of a page, without the codeless end."""
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
