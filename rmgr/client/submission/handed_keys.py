"""Claims output keys of a block beside its HAND, not before it: a task alone does not wait for two commits in turn.

The keys are left to the node, with all that it needs to claim them if this process dies. It begins nothing before it is told over the
direct line that they are claimed, or has claimed them itself. Lives on the Submitter's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rmgr.client.submission.claiming import LeftBlock, claim, left_by, may_leave, outputs_of
from rmgr.client.submission.packing import Packed
from rmgr.client.values.values import Values
from rmgr.errors import RmgrError, StoreUnavailable, Unavailable
from rmgr.model.base.units import format_duration
from rmgr.model.wire.line import ClaimStage
from rmgr.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from rmgr.client.submission.handle import SubmissionHandle

_RETRY_S = 0.2
#: How long the answer to a claim is waited for that no thread waits for.
_ANSWER_S = 5.0


class HandedKeys:
    """Claims for one submission. The keys of one block at most are left: a HAND is tried when all before it is final."""

    def __init__(self, handle: SubmissionHandle, values: Values) -> None:
        self._handle = handle
        self._loop = handle.loop
        self._values = values
        self._block: Packed | None = None
        self._left: LeftBlock | None = None  #: what is to be claimed of it
        self._begun: object | None = None  #: stands for the claim that nobody waits for

    @property
    def first(self) -> int | None:
        """Index of the first task that may not have its output keys yet; None: no keys are left to a node."""
        return self._block.first if self._block is not None and self._handle.is_open(self._block) else None

    def take(self, packed: list[Packed]) -> list[Packed]:
        """The same blocks with their keys left to the node that they would be handed to; none: their keys are claimed before."""
        block, kept = packed[0], self._handle.kept
        if len(packed) != 1 or block.solid or not block.spec.resubmit or not may_leave(block):
            return []
        if kept is None or block.count > kept.most_left:
            return []
        self._values.seen.add(outputs_of(block))
        self._left = left_by(block, self._values, self._handle.number, self._handle.guid)
        return [self._left.block]

    def claim(self, block: Packed) -> None:
        """Claims its keys while its HAND is on its way."""
        self._block = block
        if not self._begin(block):
            self._claim(block)

    def _begin(self, block: Packed) -> bool:
        """Writes what is to stand under the keys, if they are free and the store can do that without a thread in between."""
        left, self._left = self._left, None
        if left is None or not self._values.begins_writes:
            return False
        begun = self._begun = object()

        def done(error: RmgrError | None) -> None:  # on a thread of the store
            if error is None:
                failpoint("submitter.handed_claimed")
            self._loop.post(lambda: over(error))

        def over(error: RmgrError | None) -> None:
            if self._begun is not begun or self._block is not block:
                return
            self._begun = None
            late.cancel()
            if error is None:
                self._claimed(block, lambda _: {})
            else:
                self._claim(block)

        failpoint("submitter.before_handed_claim")
        silence = StoreUnavailable(f"the data store has not answered for {format_duration(_ANSWER_S)}")
        late = self._loop.after(_ANSWER_S, lambda: over(silence))
        try:
            is_begun = self._values.begin_pointers(left.rows, left.notes, decided=partial(self._decided, block), done=done)
        except RmgrError:
            is_begun = False
        if not is_begun:
            late.cancel()
        return is_begun

    def _claim(self, block: Packed) -> None:
        """The long way: it looks at what stands under the keys."""
        number, guid, values = self._handle.number, self._handle.guid, self._values

        def work() -> dict[int, RmgrError]:
            failpoint("submitter.before_handed_claim")
            refused = claim(values, number, guid, [block], decided=partial(self._decided, block))
            failpoint("submitter.handed_claimed")
            return refused

        asked = self._loop.io(work)
        asked.add_done_callback(lambda _: self._loop.post(lambda: self._claimed(block, asked.result)))

    def _decided(self, block: Packed) -> None:
        """On an IO thread, or one of the store."""
        failpoint("submitter.handed_decided")
        self._loop.post(lambda: self._say(block, ClaimStage.DECIDED))

    def drop(self) -> None:
        """The HAND was refused."""
        self._block = None

    def _say(self, block: Packed, stage: ClaimStage) -> None:
        if self._block is block and self._handle.kept is not None:
            self._handle.kept.claimed(stage)

    def _claimed(self, block: Packed, result: Callable[[float], dict[int, RmgrError]]) -> None:
        if self._block is not block:
            return
        try:
            refused = result(0)
        except Unavailable:
            if self._handle.is_open(block):  # its node tries, too
                self._loop.after(self._loop.jitter(_RETRY_S), lambda: self.claim(block) if self._block is block else None)
            return
        except RmgrError as error:
            refused = dict.fromkeys(range(block.first, block.first + block.count), error)
        self._say(block, ClaimStage.HERE if refused else ClaimStage.MADE)
        self._block = None
        if refused:
            self._handle.refuse(refused, is_early=True)
        self._handle.notify()
