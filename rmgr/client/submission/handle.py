"""One submission in a client: what callers may do with it, and how its parts work together.

    callers ──add──> Sender ──growth──> Submitter ──fragments──> ReadFragments ──outcomes──> the listener

The parts live on the Submitter's thread. Any thread may call `add`, `flush`, `wait_room`, `drop` and `complete`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmgr.client.submission.packing import Packed, TaskSpec
from rmgr.client.submission.sender import Sender
from rmgr.coord.decisions.progress import Progress, stated, was_cancelled
from rmgr.coord.protocol.records import UNREADABLE, decode_outcomes
from rmgr.coord.seal import named_digest
from rmgr.errors import DataLost, DeadlineExceeded, KeyExists, QueueFull, RmgrError, StateConflict, SubmitUnknown, Unavailable
from rmgr.model.block import Fragment, Outcome
from rmgr.model.states import CANCELS, Reason, State
from rmgr.model.submission import Phase, Submission, Tail
from rmgr.model.units import counted
from rmgr.procedures.authentic import LOST, disbelief, doubted
from rmgr.procedures.bounded import MOST_OUTCOMES_BYTES, row_of
from rmgr.procedures.output_keys import HOW_TO_REPLACE
from rmgr.runtime import machine
from rmgr.runtime.story import Stories, Story
from rmgr.submitter.port import Kept, Read, Stored
from rmgr.submitter.thread import sure

if TYPE_CHECKING:
    from rmgr.client.submission.engine import Engine

T = TypeVar("T")
_LOG = logging.getLogger("rmgr.submitter")
#: Unsent tasks, and bytes of their arguments, beyond which callers wait before they add more.
MAX_UNSENT_TASKS = 400_000
MAX_UNSENT_BYTES = 64 * 1024 * 1024
#: Why a submission was cancelled that was interrupted while it was made.
INTERRUPTED = "interrupted while it was submitted"
#: Refused tasks that are remembered, the latest ones.
_KEPT_REFUSALS = 20_000
#: The first and the longest pause before the store, or the source of the keys, is asked again (s).
_PAUSES_S = 0.1, 2.0


class Listener(Protocol):
    """Hears how the tasks of a submission end, on the Submitter's thread: it must neither block nor run code of the user."""

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """Takes tasks that are final now, each once. `fragment` tells where they ran and in which attempt."""

    def on_progress(self) -> None:
        """Is called when counts, tail or record have changed: after `on_outcomes`, and rarely without it."""

    def on_dead(self, error: RmgrError) -> None:
        """Is called when nothing more will come: the submission is gone or was taken over, or the Submitter was closed."""


class SilentListener:
    """A listener for a submission that nothing here waits for."""

    def on_outcomes(self, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """See `Listener`."""

    def on_progress(self) -> None:
        """See `Listener`."""

    def on_dead(self, error: RmgrError) -> None:
        """See `Listener`."""


class SubmissionHandle:
    """A submission that this client owns (and extends) or only follows; a `submitter.port.KeptListener`.

    Args: owned: the record names this client as owner. wants_ownership: takes it over once the owner is gone.
    Attributes: submission: the record as last read. progress: written by the Submitter's thread; any thread may read single fields.
    """

    def __init__(self, engine: Engine, stored: Stored, listener: Listener, *, owned: bool, wants_ownership: bool = False) -> None:
        self.number = stored.submission.id
        self.submission = stored.submission
        self.version = stored.version
        self.listener = listener
        self.owned = owned
        self.wants_ownership = wants_ownership
        self.dead: RmgrError | None = None
        self.progress = progress = Progress()
        progress.tail = stored.tail
        self.lock = threading.RLock()
        self.guid = engine.guid
        self.loop = engine.thread
        self.store = engine.store
        self.stories = Stories(engine.thread)
        self.kept: Kept | None = None  #: from `start` on
        self.engine = engine
        self._stored = stored
        self._refusals = Refusals()
        self._sender = Sender(self, stored.tail)
        self._changed = threading.Condition(self.lock)
        self._fragments = ReadFragments(self)

    # -- from callers

    @property
    def next_index(self) -> int:
        """Index of the next task to be added; stable under `lock`."""
        return self._sender.buffer.next_index

    @property
    def has_unsent(self) -> bool:
        """Whether some added tasks are not known to be durable."""
        return self.owned and self._sender.sent < self.next_index

    @property
    def first_unsent(self) -> int:
        """Index of the first task that is not known to be durable."""
        return self._sender.sent

    @property
    def first_unclaimed(self) -> int:
        """Index below which all tasks are durable and have their output keys."""
        return min(self._sender.claimed, self.progress.tail.next)

    def is_open(self, block: Packed) -> bool:
        """Returns whether some task of the block has not ended."""
        return any(self.progress.ends.state_of(index) is None for index in range(block.first, block.first + block.count))

    def add(self, spec: TaskSpec, payloads: list[bytes], *, solid: bool = False, row: str = "") -> int:
        """Adds tasks; they become durable with one of the next commits (`flush` waits for it). One caller at a time.

        Args:
            payloads: argument bytes, one item per task. The handle owns the list from now on.
            solid: the tasks are one block and run one after another in one slot (at most 256).
            row: the store row that already holds the arguments (then `payloads` are empty, one per task).
            Returns: the first index. Raises: StateConflict if the submission is complete, cancelled or not owned. Cost: O(tasks), no IO.
        """
        sender = self._sender
        with self.lock:
            if self.dead is not None:
                raise self.dead
            if not self.owned or sender.want_complete:
                raise self._refusal()
            first = sender.buffer.add(spec, payloads, solid=solid, row=row)
        self.engine.wake(self)
        return first

    def complete(self) -> None:
        """Marks the submission complete: no task follows. Idempotent; committed in the background (`flush` waits for it)."""
        with self.lock:
            self._sender.want_complete = True
        self.engine.wake(self)

    def drop(self, indices: Sequence[int]) -> list[int]:
        """Cancels those of `indices` that are not sent yet, and returns them; they end CANCELLED."""
        sender = self._sender
        with self.lock:
            unsent = sender.buffer.next_index - sender.buffer.tasks
            held = [index for index in indices if index >= unsent]
            sender.dropped.update(held)
        return held

    def take_refused(self, index: int | None = None) -> dict[int, RmgrError]:
        """Returns tasks refused because of their output keys (all, or this one), each once: index -> why."""
        with self.lock:
            return self._refusals.take(index)

    def _refusal(self) -> RmgrError:
        if was_cancelled(self.submission):
            why = f" ({self.submission.reason_detail})" if self.submission.reason_detail else ""
            return StateConflict(f"submission {self.number} was cancelled{why}; no task can be added")
        if self._sender.want_complete or self.progress.tail.complete:
            return StateConflict(f"submission {self.number} is complete; no task can be added", hint="make a new TaskQueue")
        return StateConflict(
            f"submission {self.number} is looked after by another Submitter, which lives", hint="end that process, or make a new TaskQueue"
        )

    # -- waits of callers: each raises the error that has ended the submission -----------------------------------------------------

    def wait_room(self, timeout_s: float | None) -> None:
        """Waits while too much is unsent, or until this client has taken the submission over from its dead owner (about a session timeout).

        Raises: QueueFull if the queue's cap is the cause, DeadlineExceeded; StateConflict if the owner still lives after `timeout_s`.
        """
        if not self.owned and self.wants_ownership:
            sender, patience_s = self._sender, 2 * self.engine.work.session_timeout_s + 2.0 if timeout_s is None else timeout_s
            self._wait(lambda: self.owned or sender.want_complete or self.progress.tail.complete, patience_s)
            if not self.owned:
                raise self._refusal()
        if not self._has_room() and not self._wait(self._has_room, timeout_s):
            raise self._full_error()

    def flush(self, timeout_s: float | None) -> None:
        """Waits until all added tasks are durable and have their output keys; if the submission is marked complete, until that is, too.

        Raises: SubmitUnknown, QueueFull, CoordinationUnavailable.
        """
        sender = self._sender
        with self.lock:
            goal = sender.buffer.next_index
        self.engine.wake(self)
        if self._wait(lambda: sender.claimed >= goal and (sender.tail.complete or not sender.want_complete), timeout_s):
            return
        if sender.full:
            raise self._full_error()
        whole = f"submission {self.number}"
        what = f"tasks {sender.claimed}..{goal - 1} of {whole} are" if sender.claimed < goal else f"the end of {whole} is"
        raise SubmitUnknown(
            f"{what} not known to be durable: {sender.trouble or 'no answer within the timeout'}",
            token=self.submission.token,
            task_id=f"{self.number}_{sender.claimed}",
            hint="they are sent again in the background while this process lives",
        )

    def wait_sent(self, index: int, timeout_s: float | None) -> bool:
        """Waits until task `index` is durable or refused; False after the timeout. Raises the error that has ended the submission."""
        self.engine.wake(self)
        return self._wait(lambda: self._sender.claimed > index, timeout_s)

    def _has_room(self) -> bool:
        buffer = self._sender.buffer
        return not self._sender.full and buffer.tasks < MAX_UNSENT_TASKS and buffer.bytes < MAX_UNSENT_BYTES

    def _full_error(self) -> RmgrError:
        if self._sender.full:
            return QueueFull(
                f"queue {self.submission.queue} holds its maximum of {counted(self._sender.full, 'waiting block')}",
                hint="wait until some have been taken (timeout=...), or raise max_pending_blocks: rmgr config apply",
            )
        why = self._sender.trouble or "ZooKeeper is slow"
        return DeadlineExceeded(f"submission {self.number}: too much is waiting to be sent ({why})")

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            is_met = False

            def is_over() -> bool:
                nonlocal is_met
                is_met = condition()
                return is_met or self.dead is not None

            machine.wait_for(self._changed, is_over, timeout_s)
            if not is_met and self.dead is not None:
                raise self.dead
            return is_met

    # -- on the Submitter's thread

    def start(self, *, fresh: bool) -> None:
        """Begins to follow the submission, and to look after it if owned."""
        self.kept = self.engine.work.keep(
            self._stored, self, is_owned=self.owned, wants_ownership=self.wants_ownership, is_fresh=fresh
        )  # fmt: skip
        self._sender.send()

    def send(self) -> None:
        """Sends waiting tasks."""
        self._sender.send()

    def sent(self) -> None:
        """Notes that one more ENQUEUE is durable."""
        self.progress.tail = self._sender.tail
        self.notify()
        self._on_progress()

    def refuse(self, refused: Mapping[int, RmgrError], *, is_early: bool = False) -> None:
        """Records tasks that cannot have their output keys. is_early: the node that was handed them will report the same."""
        with self.lock:
            open_ones = {index: why for index, why in refused.items() if self.progress.ends.state_of(index) is None}
            self._refusals.add(open_ones if is_early else refused, is_early=is_early)

    def notify(self) -> None:
        """Wakes waiting callers to check their condition."""
        with self._changed:
            self._changed.notify_all()

    def _leave(self) -> None:
        self._fragments.stop()
        self.stories.stop()
        if self.kept is not None:
            self.kept.leave()
        self.engine.forget(self)

    def read_tail(self) -> Future[Tail]:
        """Reads how many tasks are submitted by now."""
        assert self.kept is not None
        return self.kept.read_tail()

    def deliver(self, number: int, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        """Takes the next fragment, with its outcomes."""
        ends = self.progress.ends
        known = ends.refused
        fresh = self.progress.apply(number, fragment, outcomes)
        if ends.refused and not known:
            _LOG.warning("outcomes_ignored: submission %d, fragment %d: tasks had ended before, or these are no ends", self.number, number)
        if fresh:
            if fragment.attempt and any(outcome.reason is Reason.OUTPUT_EXISTS for outcome in fresh):
                with self.lock:
                    self._refusals.read(fresh)
            self.listener.on_outcomes(fragment, fresh)
        self._on_progress()

    def _on_progress(self) -> None:
        self.listener.on_progress()
        if self.progress.is_ended and self._sender.idle:  # every task is final: nothing is left to do
            self._leave()

    # -- submitter.port.KeptListener

    def on_fragments(self, fragments: Sequence[Read]) -> None:
        """See `KeptListener`."""
        self._fragments.take(fragments)

    def on_full(self, most: int) -> None:
        """See `KeptListener`."""
        self._sender.full = most
        self.notify()

    def on_trouble(self, error: RmgrError) -> None:
        """See `KeptListener`."""
        self._sender.trouble = error
        self.notify()

    def on_dead(self, error: RmgrError) -> None:
        """Ends the handle: nothing more will come."""
        if self.dead is not None:
            return
        with self.lock:
            self.dead = error
        self._leave()
        self.notify()
        self.listener.on_dead(error)

    def on_record(self, record: Submission | None, version: int) -> None:
        """See `KeptListener`."""
        if record is None or version < self.version:
            return
        self.submission, self.version = record, version
        if record.phase is Phase.CANCELLED and self.owned:
            self._end_unsent(record)
        self.listener.on_progress()

    def on_tail(self, tail: Tail) -> None:
        """See `KeptListener`."""
        self.progress.tail = tail
        self._on_progress()

    def _end_unsent(self, record: Submission) -> None:
        """Ends unsent tasks after the submission was cancelled by another client; no task can be added."""
        sender = self._sender
        with self.lock:
            first, last = sender.buffer.next_index - sender.buffer.tasks, sender.buffer.next_index
            sender.buffer.clear()
            sender.want_complete = True
        if last > first:
            recorded = Reason(record.reason)
            reason = recorded if recorded in CANCELS else Reason.USER_CANCEL
            ended = [Outcome(index=index, state=State.CANCELLED, reason=reason) for index in range(first, last)]
            self.listener.on_outcomes(Fragment(attempt=0), ended)
        self.notify()
        sender.send()

    def on_owned(self, stored: Stored) -> None:
        """See `KeptListener`."""
        with self.lock:
            self.owned = True
            self.submission, self.version = stored.submission, stored.version
            self._sender.rebase(stored.tail)
        self.progress.tail = stored.tail
        self.notify()
        self._on_progress()


class Refusals:
    """Keeps tasks refused because of their output keys until a caller takes them. Used under the handle's lock."""

    def __init__(self) -> None:
        self._refused: dict[int, RmgrError] = {}
        self._early: set[int] = set()  #: refused here before their node has reported it

    def add(self, refused: Mapping[int, RmgrError], *, is_early: bool = False) -> None:
        """Adds refused tasks: index -> why. is_early: an outcome that says the same will follow."""
        if is_early:
            refused = {index: why for index, why in refused.items() if index not in self._early}
            self._early.update(refused)
        self._refused.update(refused)
        while len(self._refused) > _KEPT_REFUSALS:  # callers do not take them
            del self._refused[next(iter(self._refused))]

    def read(self, outcomes: Sequence[Outcome]) -> None:
        """Adds tasks that a node has refused. Cost: O(outcomes)."""
        for outcome in outcomes:
            if outcome.reason is not Reason.OUTPUT_EXISTS:
                continue
            if outcome.index in self._early:
                self._early.discard(outcome.index)
            else:
                self.add({outcome.index: KeyExists(outcome.error, hint=HOW_TO_REPLACE)})

    def take(self, index: int | None = None) -> dict[int, RmgrError]:
        """Returns all refused tasks, or this one, each once: index -> why."""
        if index is not None:
            return {index: self._refused.pop(index)} if index in self._refused else {}
        taken, self._refused = self._refused, {}
        return taken


# -- fragments read: which are believed, and outcomes in rows of the store -----------------------------------------------------


@dataclass(slots=True)
class _Arrival:
    """One fragment. outcomes: None until known. lost: why only states will be known; then of the first `end` tasks."""

    number: int
    fragment: Fragment
    outcomes: Sequence[Outcome] | None = None
    lost: str = ""
    end: int = 0


class ReadFragments:
    """The fragments of one submission, from reading to delivery, in order: one story per fragment finds out what is not known of it."""

    def __init__(self, handle: SubmissionHandle) -> None:
        self._handle = handle
        self._submission = handle.number
        self.authenticity = handle.engine.authenticity  #: which fragments to believe (secured clusters), None = all
        self._waiting: deque[_Arrival] = deque()
        self._stories = Stories(handle.loop)
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
            if (one.is_believed or self.authenticity is None) and not one.fragment.row:
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
            self._handle.deliver(arrival.number, arrival.fragment, outcomes)

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
                tail = yield from sure(self._handle.read_tail, pauses_s=_PAUSES_S, silence=(Unavailable, TimeoutError))
                arrival.end, arrival.lost = tail.next, lost
        except RmgrError as error:
            self._handle.on_dead(error)
        else:
            self._hand_over()

    def _doubt(self, one: Read) -> Story[str]:
        """Returns why a fragment is not to be believed, "" if it is."""
        authenticity = self.authenticity
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
            data = yield from self._io(lambda: row_of(self._handle.store, row, MOST_OUTCOMES_BYTES))
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
        return sure(lambda: self._handle.loop.io(job), pauses_s=_PAUSES_S)

    def _is_named(self, row: str, data: bytes) -> bool:
        """Returns whether the row matches its name. Rows of older releases have other names, which are accepted if nothing is signed."""
        digest = named_digest(row)
        return hashlib.sha256(data).hexdigest() == digest if digest is not None else self.authenticity is None
