"""Output keys that a Submitter has left to this node (HAND, protocol.md 5): when their tasks may begin, and when they may be committed.

A client with a direct line claims them itself while the HAND is committed, and says how far it is. No task begins before it is decided
that nobody else can have its keys. None is committed as completed before it has them. When the client does not say so in time, this
node claims them. That is always safe: the pointer of a task is the same, whoever writes it and how often.
"""

from __future__ import annotations

from collections.abc import Callable

from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.daemons.starter.core.io import StoreIO
from rmgr.daemons.starter.staging.claims import Left, OutputClaims
from rmgr.daemons.starter.staging.convoy import Convoy
from rmgr.daemons.starter.staging.inputs import ROWS_TOGETHER
from rmgr.daemons.starter.staging.want import Want
from rmgr.errors import CoordinationUnavailable, StoreUnavailable
from rmgr.model.wire.line import ClaimStage

#: What waits for the claim of a task: told why it cannot have its keys, or None.
Waiting = Callable[[Exception | None], None]


class LeftKeys:
    """Keeps the tasks of one node whose keys were left; the owner's thread.

    Args: claims: None: nobody leaves keys here. told: gets each task whose beginning waits for its claim no more.
    """

    def __init__(self, io: StoreIO, claims: OutputClaims | None, told: Callable[[Want], bool]) -> None:
        self._claims = claims
        self._told = told
        self._open: dict[ClaimedBlock, dict[int, Want]] = {}
        self._waiting: dict[tuple[ClaimedBlock, int], Waiting] = {}
        self._convoy: Convoy[Want] = Convoy(io, self._carry, self._arrived, weight=_weight, most=ROWS_TOGETHER, is_read=True)

    def begin(self, want: Want) -> None:
        """A task is made ready whose keys were left."""
        stage = want.block.claims
        if stage is ClaimStage.MADE:
            return
        self._open.setdefault(want.block, {})[want.index] = want
        want.is_claiming = stage is not ClaimStage.DECIDED
        if stage is ClaimStage.HERE:
            self._convoy.add(want)

    def advance(self, block: ClaimedBlock, stage: ClaimStage) -> bool:
        """How far the claim of a block is, as its client says. HERE: this node claims what is not claimed.

        Returns: something waited for it: a task that has its inputs, or one that has ended.
        """
        if block.claims in (ClaimStage.HERE, ClaimStage.MADE):
            return False
        block.claims = stage
        wants = list(self._open.get(block, {}).values())
        was_awaited = any(want.found is not None or (block, want.index) in self._waiting for want in wants)
        for want in wants:
            if stage is ClaimStage.HERE:
                self._convoy.add(want)
            elif stage is ClaimStage.MADE:
                self._claimed(want, None)
            elif stage is ClaimStage.DECIDED:
                self._may_begin(want)
        return was_awaited

    def has(self, block: ClaimedBlock) -> bool:
        """Keys of its tasks were left, and not all of them were claimed when the first task began."""
        return block in self._open

    def when_claimed(self, block: ClaimedBlock, index: int, then: Waiting) -> None:
        """Calls `then` once the task has its keys, with None; or with the reason why it cannot have them."""
        want = self._open.get(block, {}).get(index)
        if want is None or want.is_claimed:
            then(want.refusal if want is not None else None)
        else:
            self._waiting[block, index] = then

    def forget(self, block: ClaimedBlock) -> None:
        """Nobody waits for it any more."""
        for want in self._open.pop(block, {}).values():
            self._waiting.pop((block, want.index), None)
            self._may_begin(want)

    def _may_begin(self, want: Want) -> None:
        if want.is_claiming:
            want.is_claiming = False
            self._told(want)

    def _claimed(self, want: Want, refusal: Exception | None) -> None:
        if want.is_claimed:
            return
        want.is_claimed, want.refusal = True, refusal
        self._may_begin(want)
        waiting = self._waiting.pop((want.block, want.index), None)
        if waiting is not None:
            waiting(refusal)

    def _carry(self, store: Store, wants: list[Want]) -> dict[tuple[int, int], Exception]:
        """On an IO thread."""
        asks = [Left(want.block, want.index, want.keyed) for want in wants if want.wish.is_wanted]
        try:
            return self._claims.claim(store, asks) if self._claims is not None and asks else {}
        except CoordinationUnavailable as error:  # who has a key cannot be known now: tried again, as without the store
            raise StoreUnavailable(error.message) from error

    def _arrived(self, wants: list[Want], result: dict[tuple[int, int], Exception] | Exception) -> bool:
        for want in wants:
            why = result if isinstance(result, Exception) else result.get((want.block.key.submission, want.index))
            self._claimed(want, why)
        return True


def _weight(want: Want) -> int:
    return 1 + len(want.keyed.outputs)
