"""One round of a Sender: what was packed for one ENQUEUE, and what the tail says became of it. No IO."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from rmgr.client.identity.signing import Seal
from rmgr.client.submission.packing import Packed, block_of
from rmgr.coord.ops import work as ops
from rmgr.coord.ops.leader import no_outcome
from rmgr.coord.protocol.multi import Conflict, Multi, Unknown
from rmgr.errors import RmgrError
from rmgr.model.base.resources import MIB
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.amendments import as_signed
from rmgr.model.tasks.block import runs
from rmgr.model.tasks.outcome import Fragment
from rmgr.model.tasks.outcome import Outcome as TaskOutcome
from rmgr.model.tasks.submission import Submission, Tail

#: Outcomes in one fragment: of tasks that were cancelled before they were sent, and of tasks that were refused, with their errors.
_CANCELLED_TASKS, _REFUSED_TASKS = 200, 40
_WHY_CHARACTERS = 300
#: Bytes of arguments written to the store together.
_LOAD_BYTES = 4 * MIB


@dataclass(slots=True)
class Round:
    """One ENQUEUE from what was packed to what became of it.

    Args:
        dropped: tasks that were cancelled before they were sent. tail: as the commit leaves it.
        rows: store rows of arguments by the first index of their blocks.
        rows_left: writes of rows that have not ended. refused: tasks whose output keys somebody else has taken, and why.
        multi: the commit, once it is known. is_queued: no node takes it directly.
        left: the same blocks with their output keys left to the node that they are handed to; none: the Submitter claims them.
    """

    packed: list[Packed]
    dropped: list[int]
    tail: Tail
    rows: dict[int, str]
    rows_left: int = 0
    refused: dict[int, RmgrError] = field(default_factory=dict)
    multi: Multi | None = None
    is_queued: bool = False
    left: list[Packed] = field(default_factory=list)

    @property
    def is_keyed(self) -> bool:
        """Output keys are to be claimed."""
        return any(item.spec.keyed for item in self.packed)

    @property
    def is_handed(self) -> bool:
        """It goes straight to a node."""
        return self.multi is not None and self.multi.name == "HAND"

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


class RoundFate(Enum):
    """Says what became of a round whose commit was refused, or not answered."""

    COMMITTED = auto()  #: by an earlier sending, whose answer was lost
    COMPLETED = auto()  #: the leader took this process for dead, and completed the submission without the round
    TAKEN_OVER = auto()  #: another Submitter extends the submission
    NOT_TAKEN = auto()  #: the node does not take it: it is queued instead
    REFUSED = auto()  #: nothing explains it
    OPEN = auto()  #: not committed so far: it is sent again


def fate_of(current: Round, *, before: tuple[Tail, int], now: tuple[Tail, int], answer: Conflict | Unknown) -> RoundFate:
    """Reads a round's fate from the tail and its version: `before` the round, and `now`."""
    (old, old_version), (tail, version) = before, now
    if tail == current.tail:
        return RoundFate.COMMITTED
    if tail.complete and tail.next == old.next and tail.reigns == old.reigns:
        return RoundFate.COMPLETED
    if version != old_version:
        return RoundFate.TAKEN_OVER
    if isinstance(answer, Unknown):
        return RoundFate.OPEN
    return RoundFate.NOT_TAKEN if current.is_handed else RoundFate.REFUSED
