"""Sends what callers add to one submission, as group commits: while one growth is in flight, added tasks gather for the next one.

    idle -> rows to the store -> output keys claimed -> grown by the Submitter -> idle again

It lives on the Submitter's thread. Callers share the buffer under the handle's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rmgr.client import content
from rmgr.client.content import Part
from rmgr.client.identity import Seal, unsealed
from rmgr.client.submission.packing import MOST_BLOCKS, Buffer, Packed, block_of
from rmgr.client.values import Values
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.records import decode_keyed, encode_keyed
from rmgr.errors import RmgrError, Unavailable
from rmgr.model.base import MIB
from rmgr.model.block import MAX_LEFT_KEYS, Fragment, KeyedPayload, runs
from rmgr.model.block import Outcome as TaskOutcome
from rmgr.model.line import ClaimStage
from rmgr.model.states import Reason, State
from rmgr.model.submission import Submission, Tail, as_signed
from rmgr.procedures.output_keys import Wanted
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.story import Bell, Pause, Story
from rmgr.submitter.port import Grown, Growth
from rmgr.submitter.thread import sure

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle

T = TypeVar("T")

#: Goal for the time that claiming the output keys of one round takes (s): nodes run tasks of one round while the next is claimed.
CLAIM_S = 0.2
#: The first and the longest pause before the store is asked again (s).
_PAUSES_S = 0.05, 1.0
#: How long a claim beside a HAND waits for an answer of a store that needs no thread, and the pause before it is tried again (s).
_ANSWER_S, _CLAIM_AGAIN_S = 5.0, 0.2
#: Most bytes of arguments of a block whose output keys are left to a node.
_LEFT_BYTES = 8 * 1024
#: Outcomes in one fragment: of tasks cancelled before they were sent, and of refused tasks, which carry their errors.
_CANCELLED_TASKS, _REFUSED_TASKS = 200, 40
_WHY_CHARACTERS = 300
#: Bytes of arguments in one write to the store.
_LOAD_BYTES = 4 * MIB


class Sender:
    """Sends for one handle.

    Args:
        tail: as it was read or made.
    """

    def __init__(self, handle: SubmissionHandle, tail: Tail) -> None:
        self.tail = tail
        self.full = 0  #: blocks that the queue may hold, while the current round waits for room; else 0
        self.trouble: Exception | None = None  #: why the current round makes no progress
        self.buffer = Buffer(tail.next, single=handle.submission.rigid is not None)
        self.dropped: set[int] = set()
        self.want_complete = tail.complete
        self._handle = handle
        self._loop = handle.loop
        self._handed_keys = HandedKeys(handle, handle.engine.values)
        self._round: Round | None = None
        self._rounds = 0
        self._seal: Seal | None = None
        self._claimed_blocks = 1  #: blocks of keyed tasks in a round: as many as are claimed in about `CLAIM_S`

    @property
    def sent(self) -> int:
        """Index below which all tasks are durable."""
        return self.tail.next

    @property
    def claimed(self) -> int:
        """Index below which all tasks are durable and have claimed their output keys, or were refused."""
        first = self._handed_keys.first
        return self.tail.next if first is None else min(first, self.tail.next)

    @property
    def idle(self) -> bool:
        """Whether no task waits to be sent (read it under the handle's lock)."""
        return self._round is None and not self.buffer.tasks and (self.tail.complete or not self.want_complete)

    def rebase(self, tail: Tail) -> None:
        """Takes over the tail as it is after this Submitter became the owner."""
        self.tail = tail
        self.buffer = Buffer(tail.next, single=self._handle.submission.rigid is not None)
        self.want_complete = tail.complete

    def send(self) -> None:
        """Starts a round if none is under way and there are tasks to send."""
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
            yield from self._renew()
            yield from self._store_rows(current)
            yield from self._claim(current)
            while True:
                growing = kept.grow(self._growth(current))
                if current.left:
                    self._handed_keys.claim(current.packed[0])
                answer = yield growing
                if isinstance(answer, Grown):
                    break
                # The node is not in the expected state: nothing was committed, so the same tasks go into the queue.
                current.growth, current.is_queued, current.left = None, True, []
                self._handed_keys.drop()
                yield from self._claim(current)
        except RmgrError as error:
            self._handle.on_dead(error)
        else:
            self._take_grown(current, answer.tail)

    def _take_grown(self, current: Round, tail: Tail) -> None:
        handle = self._handle
        self.trouble = None
        with handle.lock:
            self.tail, self._round = tail, None
            self.want_complete = self.want_complete or tail.complete
            handle.refuse(current.refused)
        handle.sent()
        self.send()

    def _renew(self) -> Story[None]:
        """Signs with a renewed bundle from now on, if the certificate in use is about to end. Raises: PermissionDenied if it has ended."""
        signer, asks = self._handle.engine.signer, self._handle.engine.asks
        if signer is not None and signer.must_look:
            look = partial(self._loop.io, partial(signer.publish, asks))
            yield from self._sure(look, look())
            signer.check()

    def _store_rows(self, current: Round) -> Story[None]:
        """Writes arguments that belong in the store, in loads of some MiB, all begun at once."""
        number, store = self._handle.number, self._handle.store

        def put(load: list[Packed]) -> dict[int, str]:
            rows: dict[int, tuple[str, Sequence[Part]]] = {}
            for item in load:
                parts = content.parts_of(item.payloads)
                rows[item.first] = keys.arguments(number, item.first, content.hash_of(parts)), parts
            content.put_rows(store, list(rows.values()))
            return {first: row for first, (row, _) in rows.items()}

        writes = [partial(self._loop.io, partial(put, load)) for load in current.loads()]
        for asked, write in [(write(), write) for write in writes]:
            current.rows |= yield from self._sure(write, asked)

    def _claim(self, current: Round) -> Story[None]:
        """Claims output keys, or leaves them to the node that gets the block; refuses tasks whose keys are taken."""
        if not current.is_keyed:
            return
        handle, values = self._handle, self._handle.engine.values
        kept = handle.kept
        assert kept is not None
        if self._is_alone(current) and (left := self._handed_keys.take(current.packed)):
            current.left = left
            return

        def work() -> tuple[dict[int, RmgrError], float]:
            begun_s = machine.monotonic()
            return claim(values, handle.number, handle.guid, current.packed), machine.monotonic() - begun_s

        asked = self._loop.io(work)
        kept.announce(self._growth(current))  # signed meanwhile; the node may begin to read inputs
        current.refused, took_s = yield from self._sure(lambda: self._loop.io(work), asked)
        if current.refused:
            current.growth = None  # it must be made without the refused tasks
        if took_s < CLAIM_S / 2:
            self._claimed_blocks = min(MOST_BLOCKS, 2 * self._claimed_blocks)
        elif took_s > 2 * CLAIM_S:
            self._claimed_blocks = max(1, self._claimed_blocks // 2)

    def _is_alone(self, current: Round) -> bool:
        """Returns whether the round is one block, all earlier tasks have ended, and no task of it ends unsubmitted."""
        alone = len(current.packed) == 1 and not (current.is_queued or current.gone)
        return alone and self._handle.progress.final >= current.packed[0].first

    def _growth(self, current: Round) -> Growth:
        if current.growth is None:
            if self._seal is None:
                signer = self._handle.engine.signer
                self._seal = signer.sealer(self._handle.submission) if signer is not None else unsealed
            current.growth = Growth(
                tail=current.tail,
                blocks=current.blocks(self._handle.submission, self._seal),
                ended=current.ended() if current.gone else (),
                is_alone=self._is_alone(current),
                leaves_keys=bool(current.left),
            )
        return current.growth

    def _sure(self, ask: Callable[[], Future[T]], asked: Future[T]) -> Story[T]:
        return sure(ask, asked, pauses_s=_PAUSES_S, troubled=self._note_trouble)

    def _note_trouble(self, error: Exception) -> None:
        self.trouble = error
        self._handle.notify()


@dataclass(slots=True)
class Round:
    """One growth, from packing to its result.

    Args:
        dropped: tasks cancelled before they were sent. tail: as the commit leaves it.
        rows: store rows of arguments, by the first index of their blocks.
        refused: tasks whose output keys are taken, and why.
        growth: the signed growth, once made. is_queued: no node takes it directly.
        left: the same blocks with their output keys left to the node that gets them; empty if the keys are claimed here.
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
        """Whether some task has output keys to claim."""
        return any(item.spec.keyed for item in self.packed)

    @property
    def gone(self) -> set[int]:
        """Tasks that the commit ends instead of submitting them."""
        return self.refused.keys() | set(self.dropped)

    def loads(self) -> list[list[Packed]]:
        """Returns blocks for the store in loads of about 4 MiB, so that one load is hashed while another is written."""
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
        """Returns the signed blocks without `gone` tasks. Their names have the terms as submitted; the leader knows later changes."""
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
        return [part for block in blocks for part in _without_tasks(block, gone)] if gone else blocks

    def ended(self) -> list[Fragment]:
        """Returns the outcomes of the `gone` tasks."""
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


def _without_tasks(block: ops.Block, gone: Collection[int]) -> list[ops.Block]:
    """Returns a block, in parts, without the tasks that are gone."""
    key, data = block
    left = runs([index for index in range(key.first, key.end) if index not in gone])
    return [(replace(key, first=first, count=count), ops.cut(data, key.first, first, count)) for first, count in left]


# -- output keys ---------------------------------------------------------------------------------------------------------------


def claim(
    values: Values, number: int, reign: str, blocks: Iterable[Packed], *, decided: Callable[[], None] | None = None
) -> dict[int, RmgrError]:
    """Writes the pointers of all keyed tasks in `blocks`. Returns refused tasks: index -> why. Raises: StoreUnavailable.

    decided: see `claim_pointers`.
    """
    fresh: list[Wanted] = []
    anew: list[Wanted] = []
    for block in blocks:
        for index, payload in enumerate(block.payloads, block.first) if block.spec.keyed else ():
            keyed = decode_keyed(payload)
            (anew if keyed.overwrite else fresh).extend(_pointers(keyed, number, index, reign))
    return values.claim_pointers(fresh, overwrite=False, decided=decided) | values.claim_pointers(anew, overwrite=True)


def _pointers(keyed: KeyedPayload, number: int, index: int, reign: str) -> list[Wanted]:
    return [(key, Pointer(sub=number, index=index, n=n, by=reign)) for n, key in enumerate(keyed.outputs)]


class HandedKeys:
    """Claims the output keys of a block while its HAND is under way, so that a task alone does not wait for two commits in turn.

    The keys are left to the node, with all that it needs to claim them if this process dies. The node starts the task only once it hears
    over the direct line that the keys are claimed, or has claimed them itself. Only new keys are left to a node: a key that is overwritten
    is claimed when its task is submitted and never again, because a later task may have overwritten it. The keys of at most one block are
    left at a time: a HAND is tried only when all earlier tasks are final.
    """

    def __init__(self, handle: SubmissionHandle, values: Values) -> None:
        self._handle = handle
        self._loop = handle.loop
        self._values = values
        self._block: Packed | None = None
        self._left: LeftBlock | None = None  #: the pointers still to claim for the block

    @property
    def first(self) -> int | None:
        """Index of the first task that may lack its output keys; None if no keys are left to a node."""
        return self._block.first if self._block is not None and self._handle.is_open(self._block) else None

    def take(self, packed: list[Packed]) -> list[Packed]:
        """Returns the blocks with their keys left to the node that would get them; [] if the keys must be claimed first."""
        block, kept = packed[0], self._handle.kept
        if len(packed) != 1 or block.solid or not block.spec.resubmit or not may_leave(block):
            return []
        if kept is None or block.count > kept.most_left:
            return []
        self._values.seen.add(outputs_of(block))
        self._left = left_by(block, self._values, self._handle.number, self._handle.guid)
        return [self._left.block]

    def claim(self, block: Packed) -> None:
        """Claims the block's keys while its HAND is under way."""
        self._block = block
        self._handle.stories.begin(self._claim(block))

    def drop(self) -> None:
        """Forgets the block, because its HAND was refused."""
        self._block = None

    def _claim(self, block: Packed) -> Story[None]:
        left, self._left = self._left, None
        refused: Mapping[int, RmgrError] = {}
        if left is None or not (yield from self._write(block, left)):
            while self._block is block:
                try:
                    refused = yield self._loop.io(lambda: self._look_and_claim(block))
                    break
                except Unavailable:
                    if not self._handle.is_open(block):
                        return  # its node has claimed the keys
                    yield Pause(self._loop.jitter(_CLAIM_AGAIN_S))
                except RmgrError as error:
                    refused = dict.fromkeys(range(block.first, block.first + block.count), error)
                    break
        if self._block is not block:
            return
        self._say(block, ClaimStage.HERE if refused else ClaimStage.MADE)
        self._block = None
        if refused:
            self._handle.refuse(refused, is_early=True)
        self._handle.notify()

    def _write(self, block: Packed, left: LeftBlock) -> Story[bool]:
        """Writes pointers if the keys are free and the store can write without a thread in between. Returns whether they are written."""
        if not self._values.begins_writes:
            return False
        answer: list[RmgrError | None] = []
        bell = Bell(self._loop)

        def done(error: RmgrError | None) -> None:  # on a thread of the store
            if error is None:
                failpoint("submitter.handed_claimed")
            answer.append(error)
            bell.ring()

        failpoint("submitter.before_handed_claim")
        try:
            if not self._values.begin_pointers(left.rows, left.notes, decided=partial(self._tell_decided, block), done=done):
                return False
        except RmgrError:
            return False
        yield bell.heard(_ANSWER_S)
        return answer == [None] or self._block is not block

    def _look_and_claim(self, block: Packed) -> dict[int, RmgrError]:
        """Looks at what is under the keys and claims them; slower, on an IO thread."""
        failpoint("submitter.before_handed_claim")
        refused = claim(self._values, self._handle.number, self._handle.guid, [block], decided=partial(self._tell_decided, block))
        failpoint("submitter.handed_claimed")
        return refused

    def _tell_decided(self, block: Packed) -> None:
        """Tells the node that the claim is decided. Called on an IO thread, or one of the store."""
        failpoint("submitter.handed_decided")
        self._loop.post(lambda: self._say(block, ClaimStage.DECIDED))

    def _say(self, block: Packed, stage: ClaimStage) -> None:
        if self._block is block and self._handle.kept is not None:
            self._handle.kept.claimed(stage)


def may_leave(block: Packed) -> bool:
    """Returns whether the node that runs the block may claim its output keys."""
    if not block.spec.keyed or block.row or block.to_row or block.count > MAX_LEFT_KEYS:
        return False
    if sum(map(len, block.payloads)) > _LEFT_BYTES:
        return False
    keyed = list(map(decode_keyed, block.payloads))
    return not any(one.overwrite for one in keyed) and sum(len(one.outputs) for one in keyed) <= MAX_LEFT_KEYS


def outputs_of(block: Packed) -> list[str]:
    """Returns the output keys of the block's tasks."""
    return [key for one in block.payloads for key in decode_keyed(one).outputs]


@dataclass(frozen=True, slots=True)
class LeftBlock:
    """A block with its output keys left unclaimed, and the pointers to write under them.

    notes: deeds of the pointers; none in an open cluster.
    """

    block: Packed
    rows: tuple[tuple[str, bytes], ...]
    notes: tuple[bytes, ...]


def left_by(block: Packed, values: Values, number: int, reign: str) -> LeftBlock:
    """Returns the block as the Submitter with guid `reign` leaves it, with signed deeds of what the node writes for the user."""
    payloads = []
    rows: list[tuple[str, bytes]] = []
    notes: list[bytes] = []
    for index, payload in enumerate(block.payloads, block.first):
        keyed = decode_keyed(payload)
        some = [(keys.named(key), keys.encode_pointer(pointer)) for key, pointer in _pointers(keyed, number, index, reign)]
        deeds = values.pointer_notes(some)
        payloads.append(encode_keyed(msgspec.structs.replace(keyed, claims_by=reign, deeds=deeds)))
        rows += some
        notes += deeds
    return LeftBlock(replace(block, payloads=tuple(payloads)), tuple(rows), tuple(notes))
