"""Sends what callers add to one submission: group commit. While one growth is in flight everything added accumulates for the next.

    idle -> rows to the store -> output keys claimed -> grown by the Submitter -> idle again

It lives on the Submitter's thread. The buffer is shared with the callers under the handle's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rmgr.client.identity.signing import Seal, Signer, unsealed
from rmgr.client.submission.claiming import claim
from rmgr.client.submission.handed_keys import HandedKeys
from rmgr.client.submission.packing import MOST_BLOCKS, Buffer, Packed, block_of
from rmgr.client.values import content
from rmgr.client.values.scattered import Part
from rmgr.client.values.values import Values
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.protocol import keys
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.base.resources import MIB
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.amendments import as_signed
from rmgr.model.tasks.block import runs
from rmgr.model.tasks.outcome import Fragment
from rmgr.model.tasks.outcome import Outcome as TaskOutcome
from rmgr.model.tasks.submission import Submission, Tail
from rmgr.runtime import machine
from rmgr.runtime.story import Pause, Story
from rmgr.submitter.port import Grown, Growth

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle

#: What claiming the output keys of one round may take (s): nodes run the tasks of one while those of the next are claimed.
_CLAIM_S = 0.2
#: The first and the longest pause before the store is asked again (s).
_RETRY_S, _LONGEST_S = 0.05, 1.0
#: Outcomes in one fragment: of tasks that were cancelled before they were sent, and of tasks that were refused, with their errors.
_CANCELLED_TASKS, _REFUSED_TASKS = 200, 40
_WHY_CHARACTERS = 300
#: Bytes of arguments written to the store together.
_LOAD_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """What every submission is sent with. signer: of a secured cluster. values: for output keys."""

    signer: Signer | None
    values: Values


class Sender:
    """Sends for one handle.

    Args:
        tail: as it was read, or made.
    """

    def __init__(self, handle: SubmissionHandle, outlet: Outlet, tail: Tail) -> None:
        self.tail = tail
        self.full = 0  #: blocks that its queue may hold, while the present round waits for room there
        self.trouble: RmgrError | None = None  #: why the present round does not get on
        self.buffer = Buffer(tail.next, single=handle.submission.rigid is not None)
        self.dropped: set[int] = set()
        self.want_complete = tail.complete
        self._handle = handle
        self._loop = handle.loop
        self._outlet = outlet
        self._handed_keys = HandedKeys(handle, outlet.values)
        self._round: Round | None = None
        self._rounds = 0
        self._seal: Seal | None = None
        self._claimed_blocks = 1  #: of keyed tasks in a round: as many as are claimed in about `_CLAIM_S`

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

    def rebase(self, tail: Tail) -> None:
        """The tail as it is after this Submitter has taken the submission over."""
        self.tail = tail
        self.buffer = Buffer(tail.next, single=self._handle.submission.rigid is not None)
        self.want_complete = tail.complete

    def send(self) -> None:
        """Starts a round if none is under way and there is something to send."""
        handle = self._handle
        if self._round is not None or handle.kept is None or not handle.owned or handle.dead is not None:
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
            tail = replace(self.tail, next=end, complete=complete, enqueued=f"{handle.guid[:12]}-{self._rounds}")
            self._round = Round(packed, dropped, tail, {item.first: item.row for item in packed if item.row})
        handle.stories.begin(self._send(self._round))

    # -- one round

    def _send(self, current: Round) -> Story[None]:
        kept = self._handle.kept
        assert kept is not None
        try:
            yield from self._store_rows(current)
            yield from self._claim(current)
            while True:
                growing = kept.grow(self._growth(current))
                if current.left:
                    self._handed_keys.claim(current.packed[0])
                answer = yield growing
                if isinstance(answer, Grown):
                    break
                # The node is not as it was thought to be: nothing was committed, the same tasks go into the queue.
                current.growth, current.is_queued, current.left = None, True, []
                self._handed_keys.drop()
                yield from self._claim(current)
        except RmgrError as error:
            self._handle.die(error)
        else:
            self._grown(current, answer.tail)

    def _grown(self, current: Round, tail: Tail) -> None:
        handle = self._handle
        self.trouble = None
        with handle.lock:
            self.tail, self._round = tail, None
            self.want_complete = self.want_complete or tail.complete
            handle.refuse(current.refused)
        handle.sent()
        self.send()

    def _store_rows(self, current: Round) -> Story[None]:
        """Writes what goes to the store, some MiB a time and two at a time."""
        number, store = self._handle.number, self._handle.store

        def put(load: list[Packed]) -> dict[int, str]:
            rows: dict[int, tuple[str, Sequence[Part]]] = {}
            for item in load:
                parts = content.parts_of(item.payloads)
                rows[item.first] = keys.arguments(number, item.first, content.hash_of(parts)), parts
            content.put_rows(store, list(rows.values()))
            return {first: row for first, (row, _) in rows.items()}

        writes = [partial(self._loop.io, partial(put, load)) for load in current.loads()]
        for asked, again in [(write(), write) for write in writes]:
            current.rows |= yield from self._sure(asked, again)

    def _claim(self, current: Round) -> Story[None]:
        """Its output keys are its own, or left to the node that it is handed to; tasks that cannot have theirs are refused."""
        if not current.is_keyed:
            return
        handle, values = self._handle, self._outlet.values
        kept = handle.kept
        assert kept is not None
        if self._is_alone(current) and (left := self._handed_keys.take(current.packed)):
            current.left = left
            return

        def work() -> tuple[dict[int, RmgrError], float]:
            begun_s = machine.monotonic()
            return claim(values, handle.number, handle.guid, current.packed), machine.monotonic() - begun_s

        asked = self._loop.io(work)
        kept.announce(self._growth(current))  # signed meanwhile; a node that it is handed to may read its inputs
        current.refused, took_s = yield from self._sure(asked, lambda: self._loop.io(work))
        if current.refused:
            current.growth = None  # it is made without them
        if took_s < _CLAIM_S / 2:
            self._claimed_blocks = min(MOST_BLOCKS, 2 * self._claimed_blocks)
        elif took_s > 2 * _CLAIM_S:
            self._claimed_blocks = max(1, self._claimed_blocks // 2)

    def _is_alone(self, current: Round) -> bool:
        """It is one block, all before it has ended, and nothing of it ends without being submitted."""
        alone = len(current.packed) == 1 and not (current.is_queued or current.gone)
        return alone and self._handle.progress.final >= current.packed[0].first

    def _growth(self, current: Round) -> Growth:
        if current.growth is None:
            if self._seal is None:
                signer = self._outlet.signer
                self._seal = signer.sealer(self._handle.submission) if signer is not None else unsealed
            current.growth = Growth(
                tail=current.tail,
                blocks=current.blocks(self._handle.submission, self._seal),
                ended=current.ended() if current.gone else (),
                is_alone=self._is_alone(current),
                leaves_keys=bool(current.left),
            )
        return current.growth

    def _sure(self, asked: Future[Any], again: Callable[[], Future[Any]]) -> Story[Any]:
        """The answer, however often nobody gives one."""
        retry_s = _RETRY_S
        while True:
            try:
                return (yield asked)
            except Unavailable as error:
                self.trouble = error
                self._handle.notify()
            yield Pause(self._loop.jitter(retry_s))
            retry_s = min(_LONGEST_S, retry_s * 2)
            asked = again()


@dataclass(slots=True)
class Round:
    """One growth from what was packed to what became of it.

    Args:
        dropped: tasks that were cancelled before they were sent. tail: as the commit leaves it.
        rows: store rows of arguments by the first index of their blocks.
        refused: tasks whose output keys somebody else has taken, and why.
        growth: signed, once it is known. is_queued: no node takes it directly.
        left: the same blocks with their output keys left to the node that they are handed to; none: they are claimed here.
    """

    packed: list[Packed]
    dropped: list[int]
    tail: Tail
    rows: dict[int, str]
    refused: dict[int, RmgrError] = field(default_factory=dict)
    growth: Growth | None = None
    is_queued: bool = False
    left: list[Packed] = field(default_factory=list)

    @property
    def is_keyed(self) -> bool:
        """Output keys are to be claimed."""
        return any(item.spec.keyed for item in self.packed)

    @property
    def gone(self) -> set[int]:
        """Tasks that end with the commit instead of being submitted."""
        return self.refused.keys() | set(self.dropped)

    def loads(self) -> list[list[Packed]]:
        """What goes to the store, in parts of about 4 MiB: the hash of one is taken while another is written."""
        loads: list[list[Packed]] = []
        size = _LOAD_BYTES
        for item in self.packed:
            if not item.to_row:
                continue
            if size >= _LOAD_BYTES:
                loads.append([])
                size = 0
            loads[-1].append(item)
            size += sum(map(len, item.payloads))
        return loads

    def blocks(self, submission: Submission, seal: Seal) -> list[ops.Block]:
        """Its signed blocks, without the tasks that are `gone`; their names say what was sent: the leader knows what was changed since."""
        submission = as_signed(submission)
        memory_mib = -(-submission.request.memory_bytes // MIB)
        blocks = [
            block_of(
                item,
                submission=submission.id,
                priority=submission.priority,
                cores=submission.request.cores,
                memory_mib=memory_mib,
                user=submission.user,
                row=self.rows.get(item.first, ""),
            )
            for item in self.left or self.packed
        ]
        blocks, gone = seal(blocks), self.gone
        return [part for block in blocks for part in _without(block, gone)] if gone else blocks

    def ended(self) -> list[Fragment]:
        """Outcomes of the tasks that are `gone`."""
        dropped = [
            no_outcome(State.CANCELLED, Reason.USER_CANCEL, self.dropped[at : at + _CANCELLED_TASKS])
            for at in range(0, len(self.dropped), _CANCELLED_TASKS)
        ]
        refused = [
            TaskOutcome(index=index, state=State.FAILED, reason=Reason.OUTPUT_EXISTS, error=why.message[:_WHY_CHARACTERS])
            for index, why in sorted(self.refused.items())
            if index not in self.dropped
        ]
        parts = (tuple(refused[at : at + _REFUSED_TASKS]) for at in range(0, len(refused), _REFUSED_TASKS))
        return [*dropped, *(Fragment(attempt=0, outcomes=part) for part in parts)]


def _without(block: ops.Block, gone: Collection[int]) -> list[ops.Block]:
    """A block without the tasks that are gone."""
    key, data = block
    left = runs([index for index in range(key.first, key.end) if index not in gone])
    return [(replace(key, first=first, count=count), ops.cut(data, key.first, first, count)) for first, count in left]
