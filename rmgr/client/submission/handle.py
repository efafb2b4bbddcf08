"""One submission in the Submitter: what callers may do with it, and what holds its parts together.

    callers --add--> Sender --ENQUEUE--> ZooKeeper --fragments--> Follower --outcomes--> the listener
                                                   --failed/----> Repair (the resubmit rule)
Parts live on the Submitter's thread; `add`, `flush`, `wait_room`, `drop` and `complete` may be called from any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from rmgr.client.identity.authentic import Authenticity
from rmgr.client.ports import Listener, TaskSpec
from rmgr.client.submission.follower import Follower
from rmgr.client.submission.handing import Handing, HintLines
from rmgr.client.submission.repair import Repair, RepairLoop
from rmgr.client.submission.sender import Sender, SendingLoop
from rmgr.client.submission.takeover import Takeover, TakeoverLoop
from rmgr.coord.decisions.view import Progress
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.validity import records as validity
from rmgr.errors import DeadlineExceeded, QueueFull, RmgrError, StateConflict, SubmitUnknown, Unavailable
from rmgr.model.base.states import Reason, State
from rmgr.model.base.units import counted
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail
from rmgr.model.wire.line import Ahead, Told
from rmgr.runtime import machine

_LOG = logging.getLogger("rmgr.submitter")
#: More than this unsent and `wait_room` waits.
MAX_UNSENT_TASKS = 400_000
MAX_UNSENT_BYTES = 64 * 1024 * 1024
#: A submission that is not over after this is watched for changes of its record: what was just read, or made, is known.
_RECORD_S = 0.5
#: Refused tasks that are kept until somebody asks for them, the latest.
_REFUSED_KEPT = 20_000


class HandleEngine(SendingLoop, RepairLoop, TakeoverLoop, Protocol):
    """The engine that a submission belongs to. lines: to Starters, where there are any."""

    @property
    def lines(self) -> HintLines | None: ...

    authenticity: Authenticity | None

    def wake(self, handle: SubmissionHandle) -> None:
        """It has something to send."""
        ...

    def forget(self, handle: SubmissionHandle) -> None:
        """It is over."""
        ...


class SubmissionHandle:
    """A submission that is owned (extended, repaired) or only followed.

    Args:
        owned: this Submitter is the owner that the record names.
        held: its blocks are set aside instead of queued.
    """

    def __init__(
        self,
        engine: HandleEngine,
        submission: Submission,
        version: int,
        tail: Tail,
        tail_version: int,
        listener: Listener,
        *,
        owned: bool,
        held: bool = False,
        pending_cap: int = 0,
    ) -> None:
        self.engine = engine
        self.number = submission.id
        self.submission = submission
        self.listener = listener
        self.owned = owned
        self.wants_ownership = False
        self.dead: RmgrError | None = None
        self.pending_cap = pending_cap
        self.progress = Progress()
        self.progress.tail = tail
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.version = version
        self._refused: dict[int, RmgrError] = {}  #: tasks that were not submitted because of their output keys, not told of yet
        self.handing = Handing(self, engine, engine.lines)
        is_held = held or submission.phase is Phase.HELD
        self._sender = Sender(self, engine, self.handing, tail, tail_version, held=is_held, pending_cap=pending_cap)
        unfinished = lambda: self.progress.total - self.progress.final  # noqa: E731
        may_end = lambda: self.progress.tail.complete and self.progress.total - self.progress.final <= MAX_TASKS  # noqa: E731
        judge = engine.authenticity
        self._follower = Follower(
            self.number, engine, self._on_fragment, self.die, authenticity=judge, unfinished=unfinished, may_end=may_end
        )
        self._repair = Repair(self, engine)
        self._takeover = Takeover(self, engine)
        self._over = False

    # -- from callers

    @property
    def next_index(self) -> int:
        """Index that the next added task gets; stable under `lock`."""
        return self._sender.buffer.next_index

    @property
    def has_unsent(self) -> bool:
        """Not all that was added is known to be durable."""
        return self.owned and self._sender.sent < self.next_index

    @property
    def first_unsent(self) -> int:
        """Index of the first task that is not known to be durable."""
        return self._sender.sent

    @property
    def reign(self) -> str:
        """Guid under which tasks are submitted now."""
        return self.engine.guid

    def add(self, spec: TaskSpec, payloads: list[bytes], *, solid: bool = False, row: str = "") -> int:
        """See `ports.HandlePort`. Cost: O(len(payloads)), no IO."""
        sender = self._sender
        with self.lock:
            if self.dead is not None:
                raise self.dead
            if not self.owned or sender.want_complete:
                raise self._refusal()
            first = sender.buffer.add(spec, payloads, solid=solid, row=row)
        self.engine.wake(self)
        return first

    def wait_room(self, timeout_s: float | None) -> None:
        """See `ports.HandlePort`."""
        sender = self._sender
        if not self.owned and self.wants_ownership:
            self._wait_owned(timeout_s)
        if not sender.full and sender.buffer.tasks < MAX_UNSENT_TASKS and sender.buffer.bytes < MAX_UNSENT_BYTES:
            return
        room = lambda: not sender.full and sender.buffer.tasks < MAX_UNSENT_TASKS and sender.buffer.bytes < MAX_UNSENT_BYTES  # noqa: E731
        if not self._wait(room, timeout_s):
            raise self._full_error()

    def flush(self, timeout_s: float | None) -> None:
        """See `ports.HandlePort`."""
        sender = self._sender
        with self.lock:
            goal = sender.buffer.next_index
        self.engine.wake(self)
        durable = lambda: sender.sent >= goal and (sender.tail.complete or not sender.want_complete)  # noqa: E731
        if not self._wait(durable, timeout_s):
            if sender.full:
                raise self._full_error()
            raise SubmitUnknown(
                f"tasks {sender.sent}..{goal - 1} of submission {self.number} are not known to be durable: "
                f"{sender.trouble or 'no answer within the timeout'}",
                token=self.submission.token,
                task_id=f"{self.number}_{sender.sent}",
                hint="they are sent again in the background while this process lives",
            )

    def wait_sent(self, index: int, timeout_s: float | None) -> bool:
        """See `ports.HandlePort`."""
        self.engine.wake(self)
        return self._wait(lambda: self._sender.sent > index, timeout_s)

    def take_refused(self, index: int | None = None) -> dict[int, RmgrError]:
        """See `ports.HandlePort`."""
        with self.lock:
            if index is not None:
                return {index: self._refused.pop(index)} if index in self._refused else {}
            taken, self._refused = self._refused, {}
        return taken

    def complete(self) -> None:
        """See `ports.HandlePort`."""
        with self.lock:
            self._sender.want_complete = True
        self.engine.wake(self)

    def drop(self, indices: Sequence[int]) -> list[int]:
        """See `ports.HandlePort`."""
        sender = self._sender
        with self.lock:
            unsent = sender.buffer.next_index - sender.buffer.tasks
            mine = [index for index in indices if index >= unsent]
            sender.dropped.update(mine)
        return mine

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

    def _full_error(self) -> RmgrError:
        if self._sender.full:
            return QueueFull(
                f"queue {self.submission.queue} holds its maximum of {counted(self.pending_cap, 'waiting block')}",
                hint="wait until some have been taken (timeout=...), or raise max_pending_blocks: rmgr config apply",
            )
        return DeadlineExceeded(f"submission {self.number}: too much is waiting to be sent ({self._sender.trouble or 'ZooKeeper is slow'})")

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
        self._follower.start(fresh=fresh)
        self.engine.after(self.engine.jitter(_RECORD_S), self._watch_record)
        if self.owned:
            self._repair.start(fresh=fresh)
            self._sender.send()
        else:
            self._watch_tail()

    def send(self) -> None:
        """Sends what waits."""
        self._sender.send()

    def sent(self) -> None:
        """One more ENQUEUE is durable."""
        self.progress.tail = self._sender.tail
        self.notify()
        self._tell_progress()

    def refuse(self, refused: Mapping[int, RmgrError]) -> None:
        """These tasks ended with the commit that submitted the others. Under the lock."""
        self._refused.update(refused)
        while len(self._refused) > _REFUSED_KEPT:  # nobody asks
            del self._refused[next(iter(self._refused))]

    def notify(self) -> None:
        """Wakes who waits in `flush` or `wait_room`."""
        with self._changed:
            self._changed.notify_all()

    def heard(self, message: Ahead | Told) -> None:
        """A Starter says what it commits of this submission."""
        self._follower.heard(message)

    def reconnected(self) -> None:
        """A session is there (again): look at everything, hints may have been lost."""
        if self.dead is None:
            self._follower.nudge()
            self._repair.look()
            self._sender.send()

    def die(self, error: RmgrError) -> None:
        """Nothing more will come."""
        if self.dead is not None:
            return
        with self.lock:
            self.dead = error
        self._follower.stop()
        self._repair.stop()
        self.engine.forget(self)
        self.notify()
        self.listener.on_dead(error)

    def _on_fragment(self, number: int, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        ends = self.progress.ends
        known = ends.refused
        fresh = self.progress.apply(number, fragment, outcomes)
        if ends.refused and not known:
            _LOG.warning("outcomes_ignored: submission %d, fragment %d: tasks had ended before, or these are no ends", self.number, number)
        self.handing.ran_on = fragment.node
        if fresh:
            self.listener.on_outcomes(fragment, fresh)
        self._tell_progress()

    def _tell_progress(self) -> None:
        self.listener.on_progress()
        if self.progress.is_ended and self._sender.idle:
            self._finish()

    def _finish(self) -> None:
        """Every task is final: nothing is left to do here."""
        self._over = True
        self._follower.stop()
        self._repair.stop()
        self.engine.forget(self)

    # -- the record

    def _watch_record(self) -> None:
        if self._over or self.dead is not None:
            return
        asked = self.engine.coordinator.get(paths.sub(self.number), watch=lambda: self.engine.post(self._watch_record))
        self._ask(asked, self._on_record, self._watch_record)

    def _on_record(self, found: Stamped | None) -> None:
        if found is None:
            self._follower.nudge()  # collected: whatever is left to read is in pages
            return
        try:
            record = validity.submission(found.data, self.number)
        except RmgrError as error:
            self.die(error)
            return
        if found.version < self.version:
            return
        self.submission, self.version = record, found.version
        if record.phase is Phase.CANCELLED and self.owned:
            self._end_unsent(record)
        elif self.owned and not self._over and record.owner not in {self.engine.guid, ""}:
            self.die(StateConflict(f"submission {self.number} was taken over by another Submitter"))
        self.listener.on_progress()

    def _end_unsent(self, record: Submission) -> None:
        """Somebody cancelled the submission: what was not sent never will be, and nothing can be added."""
        sender = self._sender
        with self.lock:
            first, last = sender.buffer.next_index - sender.buffer.tasks, sender.buffer.next_index
            sender.buffer.clear()
            sender.want_complete = True
        if last > first:
            told = Reason(record.reason)
            reason = told if told in {Reason.DEPENDENCY_FAILED, Reason.MAX_FAILS} else Reason.USER_CANCEL
            ended = [Outcome(index=index, state=State.CANCELLED, reason=reason) for index in range(first, last)]
            self.listener.on_outcomes(Fragment(attempt=0), ended)
        self.notify()
        sender.send()

    def _watch_tail(self) -> None:
        """Only of a submission that somebody else extends."""
        if self.owned or self._over or self.dead is not None or self.progress.tail.complete:
            return
        asked = self.engine.coordinator.get(paths.tail(self.number), watch=lambda: self.engine.post(self._watch_tail))
        self._ask(asked, self._on_tail, self._watch_tail)

    def _on_tail(self, found: Stamped | None) -> None:
        if found is not None and not self.owned:
            try:
                self.progress.tail = validity.tail(found, self.number)
            except RmgrError as error:
                self.die(error)
                return
            self._tell_progress()

    # -- taking over

    def _wait_owned(self, timeout_s: float | None) -> None:
        """Waits until this Submitter may extend the submission: for an owner that died, about the session timeout."""
        sender, progress = self._sender, self.progress
        patience_s = 2 * self.engine.coordinator.session_timeout_s + 2.0 if timeout_s is None else timeout_s
        if not self._wait(lambda: self.owned or sender.want_complete or progress.tail.complete, patience_s) or not self.owned:
            raise self._refusal()

    def look_at_owner(self, alive: frozenset[str]) -> None:
        """The Submitters that live have changed."""
        if self.wants_ownership and self.dead is None and not self._over:
            self._takeover.look(alive)

    def taken_over(self, record: Submission, version: int, tail: Tail, tail_version: int) -> None:
        """The submission is this Submitter's from here."""
        with self.lock:
            self.owned = True
            self.submission, self.version = record, version
            self._sender.rebase(tail, tail_version)
        self.progress.tail = tail
        self._repair.start()
        self.notify()
        self._tell_progress()

    def _ask(self, asked: Future[Stamped | None], then: Callable[[Stamped | None], None], again: Callable[[], None]) -> None:
        asked.add_done_callback(lambda _: self.engine.post(lambda: self._asked(asked, then, again)))

    def _asked(self, asked: Future[Stamped | None], then: Callable[[Stamped | None], None], again: Callable[[], None]) -> None:
        if self.dead is not None:
            return
        try:
            value = asked.result(0)
        except (Unavailable, TimeoutError):
            self.engine.after(self.engine.jitter(1.0), again)
        except RmgrError as error:
            self.die(error)
        else:
            then(value)
