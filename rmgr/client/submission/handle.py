"""One submission in a client: what callers may do with it, and how its parts work together.

    callers ──add──> Sender ──growth──> Submitter ──fragments──> ReadFragments ──outcomes──> the listener

The parts live on the Submitter's thread. `add`, `flush`, `wait_room`, `drop` and `complete` may be called from any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rmgr.client.ports import Listener, TaskSpec
from rmgr.client.submission.packing import Packed
from rmgr.client.submission.read_fragments import ReadFragments
from rmgr.client.submission.refusals import Refusals
from rmgr.client.submission.sender import Sender
from rmgr.client.submission.waits import CallerWaits
from rmgr.coord.decisions.view import Progress
from rmgr.errors import RmgrError, StateConflict
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail
from rmgr.runtime.story import Stories
from rmgr.submitter.port import Kept, Read, Stored

if TYPE_CHECKING:
    from rmgr.client.submission.engine import Engine

_LOG = logging.getLogger("rmgr.submitter")


class SubmissionHandle:
    """A submission that is owned (extended) or only followed: `ports.HandlePort`, and a `submitter.port.KeptListener`.

    Args: owned: this client is the owner that the record names. wants_ownership: it becomes that once the owner is gone.
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
        self._engine = engine
        self._stored = stored
        self._refusals = Refusals()
        self._sender = Sender(self, engine.outlet, stored.tail)
        self._waits = CallerWaits(self, self._sender, self.lock)
        self._fragments = ReadFragments(
            self.number,
            engine.thread,
            engine.store,
            self._on_fragment,
            read_tail=self._read_tail,
            fail=self.die,
            authenticity=engine.authenticity,
        )
        self._is_finished = False

    # -- from callers

    @property
    def view(self) -> SubmissionHandle:
        """See `ports.HandlePort`."""
        return self

    @property
    def next_index(self) -> int:
        """Index that the next added task gets; stable under `lock`."""
        return self._sender.buffer.next_index

    @property
    def has_unsent(self) -> bool:
        """Tasks were added that are not known to be durable."""
        return self.owned and self._sender.sent < self.next_index

    @property
    def first_unsent(self) -> int:
        """Index of the first task that is not known to be durable."""
        return self._sender.sent

    @property
    def first_unclaimed(self) -> int:
        """Tasks below it are durable, and their output keys are their own."""
        return min(self._sender.claimed, self.progress.tail.next)

    def is_open(self, block: Packed) -> bool:
        """Tasks of it have not ended."""
        return any(self.progress.ends.state_of(index) is None for index in range(block.first, block.first + block.count))

    @property
    def reign(self) -> str:
        """Guid under which tasks are submitted now."""
        return self.guid

    @property
    def is_over(self) -> bool:
        """Nothing is left to do, or nothing more will come."""
        return self._is_finished or self.dead is not None

    def add(self, spec: TaskSpec, payloads: list[bytes], *, solid: bool = False, row: str = "") -> int:
        """See `ports.HandlePort`. Cost: O(len(payloads)), no IO."""
        sender = self._sender
        with self.lock:
            if self.dead is not None:
                raise self.dead
            if not self.owned or sender.want_complete:
                raise self._refusal()
            first = sender.buffer.add(spec, payloads, solid=solid, row=row)
        self._engine.wake(self)
        return first

    def wait_room(self, timeout_s: float | None) -> None:
        """See `ports.HandlePort`."""
        if not self.owned and self.wants_ownership:
            self._wait_owned(timeout_s)
        self._waits.room(timeout_s)

    def flush(self, timeout_s: float | None) -> None:
        """See `ports.HandlePort`."""
        with self.lock:
            goal = self._sender.buffer.next_index
        self._engine.wake(self)
        self._waits.durable(goal, timeout_s)

    def wait_sent(self, index: int, timeout_s: float | None) -> bool:
        """See `ports.HandlePort`."""
        self._engine.wake(self)
        return self._waits.sent(index, timeout_s)

    def take_refused(self, index: int | None = None) -> dict[int, RmgrError]:
        """See `ports.HandlePort`."""
        with self.lock:
            return self._refusals.take(index)

    def complete(self) -> None:
        """See `ports.HandlePort`."""
        with self.lock:
            self._sender.want_complete = True
        self._engine.wake(self)

    def drop(self, indices: Sequence[int]) -> list[int]:
        """See `ports.HandlePort`."""
        sender = self._sender
        with self.lock:
            unsent = sender.buffer.next_index - sender.buffer.tasks
            mine = [index for index in indices if index >= unsent]
            sender.dropped.update(mine)
        return mine

    def _refusal(self) -> RmgrError:
        if self.submission.phase is Phase.CANCELLED:
            return StateConflict(f"submission {self.number} was cancelled; no task can be added")
        if self._sender.want_complete or self.progress.tail.complete:
            return StateConflict(f"submission {self.number} is complete; no task can be added", hint="make a new TaskQueue")
        return StateConflict(
            f"submission {self.number} is looked after by another Submitter, which lives", hint="end that process, or make a new TaskQueue"
        )

    # -- on the Submitter's thread

    def start(self, *, fresh: bool) -> None:
        """Begins to follow, and to look after it if it is owned."""
        self.kept = self._engine.work.keep(
            self._stored, self, is_owned=self.owned, wants_ownership=self.wants_ownership, is_fresh=fresh
        )  # fmt: skip
        self._sender.send()

    def send(self) -> None:
        """Sends what waits."""
        self._sender.send()

    def sent(self) -> None:
        """One more ENQUEUE is durable."""
        self.progress.tail = self._sender.tail
        self.notify()
        self._progressed()

    def refuse(self, refused: Mapping[int, RmgrError], *, is_early: bool = False) -> None:
        """These tasks cannot have their output keys. is_early: the node that they were handed to will say so, too."""
        with self.lock:
            open_ones = {index: why for index, why in refused.items() if self.progress.ends.state_of(index) is None}
            self._refusals.add(open_ones if is_early else refused, is_early=is_early)

    def notify(self) -> None:
        """Lets callers that wait look again."""
        self._waits.notify()

    def die(self, error: RmgrError) -> None:
        """Nothing more will come."""
        if self.dead is not None:
            return
        with self.lock:
            self.dead = error
        self._leave()
        self.notify()
        self.listener.on_dead(error)

    def _leave(self) -> None:
        self._fragments.stop()
        self.stories.stop()
        if self.kept is not None:
            self.kept.leave()
        self._engine.forget(self)

    def _read_tail(self) -> Future[Tail]:
        assert self.kept is not None
        return self.kept.read_tail()

    def _on_fragment(self, number: int, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
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
        self._progressed()

    def _progressed(self) -> None:
        self.listener.on_progress()
        if self.progress.is_ended and self._sender.idle:
            self._finish()

    def _finish(self) -> None:
        """Every task is final: nothing is left to do here."""
        self._is_finished = True
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
        """See `KeptListener`."""
        self.die(error)

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
        self._progressed()

    def _end_unsent(self, record: Submission) -> None:
        """Somebody cancelled the submission: what was not sent never will be, and nothing can be added."""
        sender = self._sender
        with self.lock:
            first, last = sender.buffer.next_index - sender.buffer.tasks, sender.buffer.next_index
            sender.buffer.clear()
            sender.want_complete = True
        if last > first:
            recorded = Reason(record.reason)
            reason = recorded if recorded in {Reason.DEPENDENCY_FAILED, Reason.MAX_FAILS, Reason.OPERATOR_CANCEL} else Reason.USER_CANCEL
            ended = [Outcome(index=index, state=State.CANCELLED, reason=reason) for index in range(first, last)]
            self.listener.on_outcomes(Fragment(attempt=0), ended)
        self.notify()
        sender.send()

    # -- taking over

    def _wait_owned(self, timeout_s: float | None) -> None:
        """Waits until this Submitter may extend the submission: for an owner that died, about the session timeout."""
        patience_s = 2 * self._engine.work.session_timeout_s + 2.0 if timeout_s is None else timeout_s
        if not self._waits.owned(patience_s):
            raise self._refusal()

    def on_owned(self, stored: Stored) -> None:
        """See `KeptListener`."""
        with self.lock:
            self.owned = True
            self.submission, self.version = stored.submission, stored.version
            self._sender.rebase(stored.tail)
        self.progress.tail = stored.tail
        self.notify()
        self._progressed()
