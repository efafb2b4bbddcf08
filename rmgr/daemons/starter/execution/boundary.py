"""The boundary of one attempt: what raises while its end is handled ends that attempt, and no other.

What a slot tells comes from a user's processes: a defect that one of them finds costs the others nothing, and leaves nothing RUNNING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmgr.daemons.starter.core.blocks import ClaimedBlock
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import Outcome
from rmgr.runtime.aside import Aside


class Boundary:
    """Owner's thread only.

    Args:
        aside: counts and tells what raised, each place in the code once. on_end: counts (state, how many, seconds of each).
    """

    def __init__(self, aside: Aside, node: str, on_end: Callable[[State | None, int, float], None]) -> None:
        self._aside = aside
        self._node = node
        self._on_end = on_end

    def run(self, block: ClaimedBlock, index: int, live: int, writing: int, reason: Reason, do: Callable[[], object], now_s: float) -> None:
        """Handles the end of an attempt.

        Args: live, writing: what the block counts once it has ended. reason: why it ends should `do` raise.
        """
        if (error := self._aside.attempt(do)) is not None:
            block.live, block.writing = live, writing
            self.end(block, (index,), reason, error, now_s)

    def end(self, block: ClaimedBlock, indices: Iterable[int], reason: Reason, error: Exception, now_s: float) -> None:
        """Those of them that have no outcome yet end for good: tried again they would meet the same."""
        there = {outcome.index for outcome in block.arrived} | {index for index, _ in block.failed}
        left = [index for index in indices if index not in there]
        words = f"node {self._node} could not take in how it ended: {type(error).__name__}: {error}"[:300]
        block.settle([_outcome(block, index, reason, words) for index in left], now_s)
        if left:
            self._on_end(State.FAILED, len(left), 0.0)


def _outcome(block: ClaimedBlock, index: int, reason: Reason, words: str) -> Outcome:
    cancelled = block.cancel_words(index)
    if cancelled is not None:
        return Outcome(index=index, state=State.CANCELLED, reason=block.cancel_reason(index), error=cancelled)
    return Outcome(index=index, state=State.FAILED, reason=reason, error=words)
