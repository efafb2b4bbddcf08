"""Packs tasks into blocks: consecutive tasks of one kind, packed as large as the limits of a znode and a multi allow.

Pure: arguments as bytes in, blocks out. Starters claim a block in part, so large blocks cost nothing and keep the
directories of ZooKeeper short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_MULTI_BYTES, MAX_OPS
from rmgr.model.base import MIB
from rmgr.model.block import MAX_INLINE_BYTES, MAX_TASKS, NO_SEQ, BlockData, BlockKey
from rmgr.model.submission import Submission

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle

#: Bytes of arguments of one store row (four of 1 MiB, with what pickle adds); one larger argument has a row of its own.
#: Each block costs the same whatever it holds, and a node that claims a part of it reads the whole row.
MAX_ROW_BYTES = 4 * MIB + 64 * 1024
#: Bytes of arguments that go to rows before one commit: the first tasks run while the rest is written.
MAX_ROUND_BYTES = 16 * MIB
#: Fewer tasks than this inline, with more waiting behind them: the arguments go to a row instead.
FEW_INLINE = 48
#: Room left in a multi for what is not blocks (tail, record, fragments of cancelled tasks).
_OTHER_OPS = 8
_OTHER_BYTES = 24 * 1024
#: Estimate of a block's share of a multi besides its arguments: name, function, and a signature with the longest path.
_BLOCK_BYTES = 700
#: Tasks of a batch that were packed and are still kept, at most (beside half of it).
_FORGET = 4096
#: MessagePack's cost of one argument beside its bytes.
_ITEM_BYTES = 5
#: Blocks of one commit.
MOST_BLOCKS = MAX_OPS - _OTHER_OPS


class TaskSpec(msgspec.Struct, frozen=True, gc=False):
    """Settings that consecutive tasks of a submission share.

    function: sha256 of the function ("" for a command). keyed: their payloads are encoded `KeyedPayload`s.
    """

    function: str = ""
    resubmit: bool = True
    retries: int = 0
    keyed: bool = False


def _ignore_handle(_handle: SubmissionHandle) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTasks:
    """Tasks that are known when their submission is made.

    complete: no more tasks follow. made: called with the handle before the listener hears of its tasks.
    """

    spec: TaskSpec
    payloads: list[bytes]
    complete: bool = False
    made: Callable[[SubmissionHandle], None] = _ignore_handle


@dataclass(slots=True)
class Batch:
    """Consecutive tasks of one kind that are not sent yet: `payloads[i]` belongs to index `first + i`.

    solid: exactly one block, one task after another in one slot. row: where the arguments are stored already.
    """

    spec: TaskSpec
    first: int
    payloads: list[bytes]
    solid: bool = False
    row: str = ""
    taken: int = 0  #: how many from the front were packed already

    def forget(self) -> None:
        """Lets go of what was packed: who submits without a pause adds to the same batch for ever."""
        del self.payloads[: self.taken]
        self.first += self.taken
        self.taken = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """One block to be: `first`, `count`, and its arguments (all empty: none). to_row: they go to a store row."""

    spec: TaskSpec
    first: int
    payloads: tuple[bytes, ...]
    solid: bool
    row: str
    to_row: bool

    @property
    def count(self) -> int:
        """Tasks in it."""
        return len(self.payloads)


class Buffer:
    """Tasks in the order of their indices, on the way into blocks. Not thread-safe. single: a block each, as placed jobs are."""

    def __init__(self, next_index: int = 0, *, single: bool = False) -> None:
        self._most = 1 if single else MAX_TASKS
        self.next_index = next_index
        self.bytes = 0
        self.tasks = 0
        self.batches: deque[Batch] = deque()

    def add(self, spec: TaskSpec, payloads: list[bytes], *, solid: bool = False, row: str = "") -> int:
        """Appends tasks; returns the index of the first. Cost: O(len(payloads))."""
        first = self.next_index
        if not payloads:
            return first
        last = self.batches[-1] if self.batches else None
        if last is not None and last.spec == spec and not (solid or row or last.solid or last.row):
            last.payloads += payloads
        else:
            self.batches.append(Batch(spec, first, payloads, solid, row))
        self.next_index += len(payloads)
        self.tasks += len(payloads)
        self.bytes += sum(map(len, payloads))
        return first

    @property
    def begins_keyed(self) -> bool:
        """The next tasks have keys."""
        return bool(self.batches) and self.batches[0].spec.keyed

    def clear(self) -> None:
        """Forgets what was not taken; its indices are free again."""
        self.batches.clear()
        self.next_index -= self.tasks
        self.tasks = self.bytes = 0

    def take(self, *, max_blocks: int = MOST_BLOCKS, max_bytes: int = MAX_MULTI_BYTES - _OTHER_BYTES) -> list[Packed]:
        """The next blocks, as many as fit one multi; they leave the buffer. Cost: O(tasks taken)."""
        blocks: list[Packed] = []
        room, in_rows = max_bytes, 0
        while self.batches and len(blocks) < max_blocks:
            batch = self.batches[0]
            block, size = _next_block(batch, self._most)
            if blocks and (size > room or in_rows > MAX_ROUND_BYTES):
                break
            room -= size
            blocks.append(block)
            batch.taken += block.count
            self.tasks -= block.count
            bytes_taken = sum(map(len, block.payloads))
            self.bytes -= bytes_taken
            in_rows += bytes_taken if block.to_row else 0
            if batch.taken == len(batch.payloads):
                self.batches.popleft()
            elif block.to_row or batch.taken > max(_FORGET, len(batch.payloads) // 2):
                batch.forget()
        return blocks


def _next_block(batch: Batch, most: int) -> tuple[Packed, int]:
    """The block of at most so many tasks at the front of a batch, and the bytes that it adds to a multi."""
    at = batch.taken
    payloads = batch.payloads
    end = min(len(payloads), at + most)
    first = batch.first + at
    if batch.row:
        return Packed(batch.spec, first, tuple(payloads[at:end]), batch.solid, batch.row, False), _BLOCK_BYTES
    size, stop = 0, at
    while stop < end:
        more = len(payloads[stop]) + _ITEM_BYTES
        if size + more > MAX_INLINE_BYTES:
            break
        size += more
        stop += 1
    if stop == end or (stop - at >= FEW_INLINE and not batch.solid):
        return Packed(batch.spec, first, tuple(payloads[at:stop]), batch.solid, "", False), size + _BLOCK_BYTES
    while stop < end and (size + len(payloads[stop]) <= MAX_ROW_BYTES or stop == at or batch.solid):
        size += len(payloads[stop]) + _ITEM_BYTES
        stop += 1
    return Packed(batch.spec, first, tuple(payloads[at:stop]), batch.solid, "", True), _BLOCK_BYTES


def first_blocks(draft: Submission, spec: TaskSpec, payloads: list[bytes]) -> list[tuple[BlockKey, BlockData]] | None:
    """Blocks of tasks that go with their SUBMIT, still of submission 0; None when they do not fit, or need its number before."""
    if spec.keyed:
        return None
    buffer = Buffer(single=draft.rigid is not None)
    buffer.add(spec, list(payloads))
    packed = buffer.take()
    if buffer.tasks or any(block.to_row for block in packed):
        return None
    memory_mib = -(-draft.request.memory_bytes // MIB)
    words: Any = {"priority": draft.priority, "cores": draft.request.cores, "memory_mib": memory_mib, "user": draft.user}
    return [block_of(block, submission=0, **words) for block in packed]


def block_of(
    packed: Packed, *, submission: int, priority: int, cores: int, memory_mib: int, user: str, row: str = ""
) -> tuple[BlockKey, BlockData]:
    """Key and data of a new block of `user`'s; `row` names the arguments when they are not inline."""
    key = BlockKey(
        priority=priority,
        seq=NO_SEQ,
        submission=submission,
        first=packed.first,
        count=packed.count,
        attempt=1,
        cores=cores,
        memory_mib=memory_mib,
        user=paths.user_tag(user),
    )
    spec = packed.spec
    inline = not row and any(packed.payloads)
    data = BlockData(
        function=spec.function,
        resubmit=spec.resubmit,
        retries=spec.retries,
        base=packed.first,
        payloads=packed.payloads if inline else (),
        row=row,
        keyed=spec.keyed,
        serial=packed.solid,
    )
    return key, data
