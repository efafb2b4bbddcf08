"""One submission in the Submitter: what callers may do with it, and how its parts work together.

    callers --add--> Sender --ENQUEUE--> ZooKeeper --fragments--> Follower --outcomes--> the listener
                                                   --failed/----> Repair (the resubmit rule)

The parts live on the Submitter's thread. `add`, `flush`, `wait_room`, `drop` and `complete` may be called from any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Protocol

from rmgr.client.identity.authentic import Authenticity
from rmgr.client.ports import Listener, TaskSpec
from rmgr.client.submission.doors import SubmitterLoop
from rmgr.client.submission.follower import Follower
from rmgr.client.submission.handed_keys import HandedKeys
from rmgr.client.submission.handing import Handing, HintLines
from rmgr.client.submission.packing import Packed
from rmgr.client.submission.record_watch import RecordWatch
from rmgr.client.submission.refusals import Refusals
from rmgr.client.submission.repair import Repair, SettingsReader
from rmgr.client.submission.sender import Outlet, Sender
from rmgr.client.submission.stored import StoredSubmission
from rmgr.client.submission.takeover import Takeover
from rmgr.client.submission.waits import CallerWaits
from rmgr.coord.decisions.view import Progress
from rmgr.errors import RmgrError, StateConflict
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import MAX_TASKS
from rmgr.model.tasks.outcome import Fragment, Outcome
from rmgr.model.tasks.submission import Phase, Submission, Tail
from rmgr.model.wire.line import Ahead, Told

_LOG = logging.getLogger("rmgr.submitter")


class HandleKeeper(Protocol):
    """Knows the handles of this Submitter."""

    def wake(self, handle: SubmissionHandle) -> None:
        """It has something to send. From any thread."""
        ...

    def forget(self, handle: SubmissionHandle) -> None:
        """It is over."""
        ...

    def look_at_owners(self) -> None:
        """Looks again which Submitters live: `look_at_owner` of those that wait for an owner's end."""
        ...


class SubmissionHandle:
    """A submission that is owned (extended, repaired) or only followed.

    Args:
        owned: this Submitter is the owner that the record names.
        held: its blocks are set aside instead of queued.
        pending_cap: blocks that may wait in its queue, 0 = no limit.
        outlet, lines: its tasks are sent with them. settings: of the cluster, for what failed. authenticity: whose outcomes are believed.
    """

    def __init__(
        self,
        loop: SubmitterLoop,
        keeper: HandleKeeper,
        stored: StoredSubmission,
        listener: Listener,
        *,
        owned: bool,
        held: bool = False,
        pending_cap: int = 0,
        outlet: Outlet,
        settings: SettingsReader,
        lines: HintLines | None,
        authenticity: Authenticity | None,
    ) -> None:
        self.number = stored.submission.id
        self.submission = stored.submission
        self.version = stored.version
        self.listener = listener
        self.owned = owned
        self.wants_ownership = False
        self.dead: RmgrError | None = None
        self.progress = progress = Progress()
        progress.tail = stored.tail
        self.lock = threading.RLock()
        self._loop = loop
        self._keeper = keeper
        self._refusals = Refusals()
        self._handing = Handing(self, loop, lines)
        handed_keys = HandedKeys(self, loop, outlet.values, self._handing)
        is_held = held or stored.submission.phase is Phase.HELD
        self._sender = Sender(
            self, loop, outlet, self._handing, handed_keys, stored.tail, stored.tail_version, held=is_held, pending_cap=pending_cap
        )  # fmt: skip
        self._waits = CallerWaits(self, self._sender, self.lock, pending_cap=pending_cap)
        self._follower = Follower(
            self.number,
            loop,
            self._on_fragment,
            self.die,
            authenticity=authenticity,
            unfinished=lambda: progress.total - progress.final,
            may_end=lambda: progress.tail.complete and progress.total - progress.final <= MAX_TASKS,
        )
        self._repair = Repair(self, loop, settings)
        self._takeover = Takeover(self, loop, keeper.look_at_owners)
        self._records = RecordWatch(self, loop)
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
        return self._loop.guid

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
        self._keeper.wake(self)
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
        self._keeper.wake(self)
        self._waits.durable(goal, timeout_s)

    def wait_sent(self, index: int, timeout_s: float | None) -> bool:
        """See `ports.HandlePort`."""
        self._keeper.wake(self)
        return self._waits.sent(index, timeout_s)

    def take_refused(self, index: int | None = None) -> dict[int, RmgrError]:
        """See `ports.HandlePort`."""
        with self.lock:
            return self._refusals.take(index)

    def complete(self) -> None:
        """See `ports.HandlePort`."""
        with self.lock:
            self._sender.want_complete = True
        self._keeper.wake(self)

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
        self._follower.start(fresh=fresh)
        self._records.start()
        if self.owned:
            self._repair.start(fresh=fresh)
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

    def heard(self, message: Ahead | Told) -> None:
        """Takes what a Starter says that it commits of this submission."""
        self._follower.heard(message)

    def reconnected(self) -> None:
        """Looks at everything in a new session: hints may have been lost."""
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
        self._keeper.forget(self)
        self.notify()
        self.listener.on_dead(error)

    def _on_fragment(self, number: int, fragment: Fragment, outcomes: Sequence[Outcome]) -> None:
        ends = self.progress.ends
        known = ends.refused
        fresh = self.progress.apply(number, fragment, outcomes)
        if ends.refused and not known:
            _LOG.warning("outcomes_ignored: submission %d, fragment %d: tasks had ended before, or these are no ends", self.number, number)
        self._handing.ran_on = fragment.node
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
        self._follower.stop()
        self._repair.stop()
        self._keeper.forget(self)

    # -- the record

    def on_record(self, record: Submission | None, version: int) -> None:
        """The record has changed, or is gone (None)."""
        if record is None:
            self._follower.nudge()  # collected: whatever is left to read is in pages
            return
        if version < self.version:
            return
        self.submission, self.version = record, version
        if record.phase is Phase.CANCELLED and self.owned:
            self._end_unsent(record)
        elif self.owned and not self._is_finished and record.owner not in {self._loop.guid, ""}:
            self.die(StateConflict(f"submission {self.number} was taken over by another Submitter"))
        self.listener.on_progress()

    def on_tail(self, tail: Tail) -> None:
        """Its owner has extended it, or completed it."""
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
        patience_s = 2 * self._loop.coordinator.session_timeout_s + 2.0 if timeout_s is None else timeout_s
        if not self._waits.owned(patience_s):
            raise self._refusal()

    def look_at_owner(self, alive: frozenset[str]) -> None:
        """The Submitters that live have changed."""
        if self.wants_ownership and not self.is_over:
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
        self._progressed()
