"""ENQUEUE of one owned submission: group commit. While one is in flight everything submitted accumulates for the next.

    idle -> rows to the store -> room in the queue? -> commit -> Committed: idle again
                                                    -> Unknown, or a conflict: the tail says what happened

It lives on the Submitter's thread. The buffer is shared with the callers under the handle's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rmgr.client.identity.signing import Seal, Signer, unsealed
from rmgr.client.submission.claiming import claim
from rmgr.client.submission.doors import SubmitterLoop
from rmgr.client.submission.gauge import FULL_LOOK_S, Gauge
from rmgr.client.submission.handed_keys import HandedKeys
from rmgr.client.submission.handing import Handing
from rmgr.client.submission.packing import MOST_BLOCKS, Buffer, Packed
from rmgr.client.submission.round import Round, RoundFate, fate_of
from rmgr.client.values import content
from rmgr.client.values.scattered import Part
from rmgr.client.values.values import Values
from rmgr.coord.ops import work as ops
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Committed, Conflict, Multi, Outcome, Stamped, Unknown
from rmgr.coord.validity import records as validity
from rmgr.errors import NotFound, PermissionDenied, RequestTooLarge, RmgrError, StateConflict, Unavailable
from rmgr.model.tasks.submission import Submission, Tail
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: What claiming the output keys of one round may take (s): nodes run the tasks of one while those of the next are claimed.
_CLAIM_S = 0.2
#: How long the answer to one commit is waited for (s).
_COMMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Holds what every submission is sent with. gauge: room in queues. signer: of a secured cluster. values: for output keys."""

    gauge: Gauge
    signer: Signer | None
    values: Values


class SentSubmission(Protocol):
    """A submission that is sent. lock: of all that callers may read, the Sender's buffer too. dead: why nothing more is sent."""

    submission: Submission
    owned: bool
    dead: RmgrError | None

    @property
    def lock(self) -> AbstractContextManager[object]: ...

    def die(self, error: RmgrError) -> None:
        """Nothing more is sent."""
        ...

    def notify(self) -> None:
        """Wakes who waits for a change."""
        ...

    def refuse(self, refused: Mapping[int, RmgrError]) -> None:
        """These tasks were not submitted, because of their output keys."""
        ...

    def sent(self) -> None:
        """A round was committed."""
        ...


class Sender:
    """Sends for one handle.

    Args:
        tail, tail_version: as they were read, or made.
        held: blocks are set aside instead of queued (the submission is held, or has a cap).
        pending_cap: blocks that its queue may hold, 0 = no limit.
    """

    def __init__(
        self,
        handle: SentSubmission,
        loop: SubmitterLoop,
        outlet: Outlet,
        handing: Handing,
        handed_keys: HandedKeys,
        tail: Tail,
        tail_version: int,
        *,
        held: bool,
        pending_cap: int,
    ) -> None:
        self.tail = tail
        self.full = False
        self.held = held
        self.trouble: RmgrError | None = None  #: why the present round does not get on
        self.buffer = Buffer(tail.next, single=handle.submission.rigid is not None)
        self.dropped: set[int] = set()
        self.want_complete = tail.complete
        self._handle = handle
        self._loop = loop
        self._outlet = outlet
        self._handing = handing
        self._handed_keys = handed_keys
        self._pending_cap = pending_cap
        self._version = tail_version
        self._round: Round | None = None
        self._rounds = 0
        self._retry_s = 0.05
        self._seal: Seal | None = None
        self._claimed_blocks = 1  #: of keyed tasks in a round: as many as are claimed in about `_CLAIM_S`

    @property
    def _number(self) -> int:
        return self._handle.submission.id

    @property
    def sent(self) -> int:
        """Indices below are durable."""
        return self.tail.next

    @property
    def claimed(self) -> int:
        """Indices below are durable, and their output keys are their own or refused."""
        first = self._handed_keys.first
        return self.tail.next if first is None else min(first, self.tail.next)

    @property
    def idle(self) -> bool:
        """Nothing waits to be sent (to be read under the handle's lock)."""
        return self._round is None and not self.buffer.tasks and (self.tail.complete or not self.want_complete)

    def rebase(self, tail: Tail, version: int) -> None:
        """The tail as it is after this Submitter has taken the submission over."""
        self.tail, self._version = tail, version
        self.buffer = Buffer(tail.next, single=self._handle.submission.rigid is not None)
        self.want_complete = tail.complete

    # -- one round

    def send(self) -> None:
        """Starts a round if none is under way and there is something to send."""
        handle = self._handle
        if self._round is not None or not handle.owned or handle.dead is not None:
            return
        with handle.lock:
            most = 1 if self.dropped else self._claimed_blocks if self.buffer.begins_keyed else MOST_BLOCKS
            packed = self.buffer.take(max_blocks=most)
            complete = self.want_complete and not self.buffer.tasks
            if not packed and complete == self.tail.complete:
                return
            self._rounds += 1
            end = packed[-1].first + packed[-1].count if packed else self.tail.next
            dropped = sorted(index for index in self.dropped if index < end)
            self.dropped.difference_update(dropped)
            tail = replace(self.tail, next=end, complete=complete, enqueued=f"{self._loop.guid[:12]}-{self._rounds}")
            self._round = Round(packed, dropped, tail, {item.first: item.row for item in packed if item.row})
        if any(item.to_row or item.spec.keyed for item in packed):
            self._store_rows()
        else:
            self._admit()

    def _store_rows(self) -> None:
        """Writes what goes to the store, some MiB a time and two at a time; then outputs are claimed."""
        current = self._round
        assert current is not None
        loads = current.loads()
        current.rows_left = len(loads)
        for load in loads:
            self._store_load(current, load)
        if not loads:
            self._claim()

    def _store_load(self, current: Round, load: list[Packed]) -> None:
        number, store = self._number, self._loop.store

        def write() -> dict[int, str]:
            rows: dict[int, tuple[str, Sequence[Part]]] = {}
            for item in load:
                parts = content.parts_of(item.payloads)
                rows[item.first] = keys.arguments(number, item.first, content.hash_of(parts)), parts
            content.put_rows(store, list(rows.values()))
            return {first: row for first, (row, _) in rows.items()}

        def written(rows: dict[int, str]) -> None:
            current.rows |= rows
            current.rows_left -= 1
            if not current.rows_left:
                self._claim()

        self._step(self._loop.io(write), written, lambda: self._store_load(current, load))

    def _claim(self) -> None:
        current = self._round
        assert current is not None
        if not current.is_keyed:
            self._admit()
            return
        loop, values, number = self._loop, self._outlet.values, self._number
        if not (self.held or current.gone or current.is_queued) and (left := self._handed_keys.take(current.packed)):
            current.left = left
            current.multi = self._multi(current)
            self._admit()
            self._handed_keys.claim(current.packed[0], current.multi)
            return

        def work() -> tuple[dict[int, RmgrError], float]:
            begun_s = machine.monotonic()
            return claim(values, number, loop.guid, current.packed), machine.monotonic() - begun_s

        def claimed(done: tuple[dict[int, RmgrError], float]) -> None:
            current.refused, took_s = done
            if current.refused:
                current.multi = None  # it is made without them
            if took_s < _CLAIM_S / 2:
                self._claimed_blocks = min(MOST_BLOCKS, 2 * self._claimed_blocks)
            elif took_s > 2 * _CLAIM_S:
                self._claimed_blocks = max(1, self._claimed_blocks // 2)
            self._admit()

        self._step(loop.io(work), claimed, self._claim)
        if current.multi is None:  # signed meanwhile; a node that it is handed to may read its inputs
            current.multi = self._multi(current)
            if current.is_handed:
                self._handing.announce(current.multi, is_early=True)

    def _admit(self) -> None:
        current = self._round
        if current is None or self._handle.dead is not None:
            return
        cap = self._pending_cap
        admitted = (
            True
            if self.held or not current.packed
            else self._outlet.gauge.admit(self._handle.submission.queue, len(current.packed), cap, self._admit)
        )
        if admitted is False:
            self.full = True
            self._handle.notify()
            self._loop.after(FULL_LOOK_S, self._admit)
        elif admitted:
            self.full = False
            self._commit()

    def _commit(self) -> None:
        current = self._round
        if current is None or self._handle.dead is not None:
            return
        if current.multi is None:
            current.multi = self._multi(current)
        failpoint("submitter.before_enqueue")
        try:
            asked = self._loop.coordinator.commit(current.multi, timeout_s=_COMMIT_S)
        except RequestTooLarge as error:
            self._handle.die(error)
            return
        self._step(asked, self._answered, self._commit)
        if current.is_handed:
            self._handing.announce(current.multi)

    def _multi(self, current: Round) -> Multi:
        submission = self._handle.submission
        if self._seal is None:
            signer = self._outlet.signer
            self._seal = signer.sealer(submission) if signer is not None else unsealed
        blocks, gone = current.blocks(submission, self._seal), current.gone
        target = None if self.held or gone or current.is_queued else self._handing.target(current.packed)
        if target is not None:
            node, version = target
            (key, data), tail = blocks[0], current.tail
            return ops.hand(submission.id, tail=tail, tail_version=self._version, key=key, data=data, node=node, node_version=version)
        return ops.enqueue(
            submission.id,
            submission.queue,
            tail=current.tail,
            tail_version=self._version,
            blocks=blocks,
            held=self.held,
            ended=current.ended() if gone else (),
        )

    def _answered(self, outcome: Outcome) -> None:
        match outcome:
            case Committed():
                self._committed()
            case Conflict() | Unknown():
                # An earlier sending may have been committed late, by a session that is gone: the tail's bytes say so.
                asked = self._loop.coordinator.get(paths.tail(self._number))
                self._step(asked, lambda found: self._read_back(found, outcome), lambda: self._answered(outcome))

    def _read_back(self, found: Stamped | None, answer: Conflict | Unknown) -> None:
        current = self._round
        if current is None:
            return
        if found is None:
            self._handle.die(NotFound(f"submission {self._number} is gone", hint=f"rmgr history {self._number}"))
            return
        try:
            now = validity.tail(found, self._number)
        except RmgrError as error:
            self._handle.die(error)
            return
        match fate_of(current, before=(self.tail, self._version), now=(now, found.version), answer=answer):
            case RoundFate.COMMITTED:
                self._committed()
            case RoundFate.COMPLETED:
                self._ended_meanwhile(now, found.version)
            case RoundFate.TAKEN_OVER:
                what = f"submission {self._number} was taken over by another Submitter"
                self._handle.die(StateConflict(what, hint="TaskQueue.attach(name) follows it"))
            case RoundFate.NOT_TAKEN:
                self._queue_instead(answer.path if isinstance(answer, Conflict) else None)
            case RoundFate.REFUSED:
                why = f": {answer.kind} at {answer.path}" if isinstance(answer, Conflict) else ""
                what = f"submission {self._number} cannot be extended{why}"
                self._handle.die(StateConflict(what, hint="rmgr doctor"))
            case RoundFate.OPEN:
                self._again(self._commit)

    def _ended_meanwhile(self, now: Tail, version: int) -> None:
        """This program was taken for dead, and its submission declared complete: what was sent before runs, or has run."""
        current, number = self._round, self._number
        assert current is not None
        if current.packed:
            count = current.tail.next - now.next
            self._handle.die(
                StateConflict(
                    f"submission {number} was ended while this program was cut off or stood still: its last {count} task"
                    f"{'s' * (count != 1)} {'were' if count != 1 else 'was'} not submitted",
                    hint=f"make a new one; what was sent before goes on: rmgr tasks {number}",
                )
            )
            return
        current.tail, self._version = now, version - 1
        self.want_complete = True
        self._committed()

    def _committed(self) -> None:
        current = self._round
        assert current is not None
        failpoint("submitter.after_enqueue")
        if current.is_handed:
            self._handing.taken()
        self._version += 1
        self._retry_s = 0.05
        self.trouble = None
        with self._handle.lock:
            self.tail, self._round = current.tail, None
            self._handle.refuse(current.refused)
        self._handle.sent()
        self.send()

    def _queue_instead(self, path: str | None) -> None:
        """The node is not as it was thought to be: nothing was committed, the same tasks go into the queue."""
        current = self._round
        assert current is not None
        self._handing.refused(path)
        current.multi, current.is_queued = None, True
        if current.left:
            current.left = []
            self._handed_keys.drop()
            self._claim()
        else:
            self._commit()

    # -- trouble

    def _step(self, asked: Future[Any], then: Callable[[Any], None], again: Callable[[], None]) -> None:
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._stepped(asked, then, again)))

    def _stepped(self, asked: Future[Any], then: Callable[[Any], None], again: Callable[[], None]) -> None:
        if self._handle.dead is not None:
            return
        try:
            value = asked.result(0)
        except Unavailable as error:
            self.trouble = error
            self._handle.notify()
            self._again(again)
        except RmgrError as error:
            if isinstance(error, PermissionDenied) and self._round is not None and self._round.is_handed:
                self._queue_instead(None)  # an older release, or gateway, knows no such thing
                return
            self._handle.die(error)
        else:
            then(value)

    def _again(self, job: Callable[[], None]) -> None:
        self._loop.after(self._loop.jitter(self._retry_s), job)
        self._retry_s = min(1.0, self._retry_s * 2)
