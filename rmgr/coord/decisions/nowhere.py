"""Tasks that are nowhere: not final, and covered by no block and no failed range. Pure.

In the protocol every task is in exactly one of these places at any moment, and moves by one multi. So of what was read at one
moment, a task that is in none of them has lost its znode: somebody deleted it, or ZooKeeper was restored from an older state.
That is for good: every multi that could bring the task forward (CLAIM, COMPLETE, RETURN, RESUBMIT, ...) needs the znode that is
gone, so a late COMPLETE of its old claim conflicts. Its arguments and signature went with the block, so nobody can make it again;
it ends DATA_LOST. A Starter that still has the block puts its claim back before (PUT_BACK), while no task of the submission has
been ended this way: NOWHERE raises the version of `/subs/../failed`, which PUT_BACK checks, so only one of them is ever committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmgr.coord.decisions.codes import Codes
from rmgr.coord.decisions.keeping import cancel_reason
from rmgr.coord.ops.leader import OUTCOMES_PER_FRAGMENT, epoch_check, no_outcome
from rmgr.coord.ops.work import fence_check
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Check, Create, Exists, Holds, Multi, Op, Set
from rmgr.coord.protocol.records import encode_block, encode_fragment
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import BlockData, BlockKey
from rmgr.model.tasks.submission import Phase, Submission

#: Fragments of one multi: together far below the limit of its size.
FRAGMENTS = 12
#: Tasks that are looked at in one round, of all submissions, far more than one multi ends.
MOST_MISSING = 100_000
#: How the sentence begins that a claim which was put back leaves in the story of its block.
CLAIM_WAS_GONE = "its claim was nowhere in ZooKeeper"
#: How a task that was ended this way explains itself.
ERROR = (
    "it was nowhere in ZooKeeper: not final, and no block of it waited or ran (its znode was deleted, or ZooKeeper was restored from "
    "an older state)"
)


def missing(total: int, settled: Codes, ranges: Iterable[tuple[int, int]], most: int = MOST_MISSING) -> list[int]:
    """Indices below `total` that are nowhere, ascending, the first `most` of them.

    Args:
        settled: a code for each task that is final. ranges: (first, count) of all blocks and failed ranges.
    Cost: O(tasks that are nowhere or final, ranges); nothing for the size of `total`, which its owner may have made up.
    """
    found: list[int] = []
    at = 0
    for first, count in [*sorted(ranges), (total, 0)]:
        if at < min(first, total):
            found += settled.without(at, min(first, total), most - len(found))
        if len(found) >= most:
            break
        at = max(at, first + count)
    return found


def end(
    submission: Submission,
    indices: Sequence[int],
    *,
    epoch_version: int,
    version: int,
    tail_version: int,
    failed_version: int,
    stamp: str,
) -> Multi:
    """NOWHERE: the first of `indices` end DATA_LOST (with the rest of a cancelled submission: CANCELLED).

    Args:
        version, tail_version, failed_version: of the record, its tail and its `failed`, read at the moment at which they were nowhere.
        stamp: fresh random text, so that the bytes prove it.
    """
    state, reason, error = State.FAILED, Reason.DATA_LOST, ERROR
    if submission.phase is Phase.CANCELLED:
        state, reason, error = State.CANCELLED, cancel_reason(submission), ""
    number, data = submission.id, stamp.encode()
    ops: list[Op] = [
        epoch_check(epoch_version),
        Check(paths.sub(number), version),
        Check(paths.tail(number), tail_version),
        Set(paths.failed(number), data, failed_version),
    ]
    for start in range(0, min(len(indices), FRAGMENTS * OUTCOMES_PER_FRAGMENT), OUTCOMES_PER_FRAGMENT):
        fragment = no_outcome(state, reason, indices[start : start + OUTCOMES_PER_FRAGMENT], error)
        ops.append(Create(paths.fragment_prefix(number), encode_fragment(fragment), sequence=True))
    return Multi(name="NOWHERE", ops=tuple(ops), proof=Holds(paths.failed(number), data))


def put_back(node: str, node_version: int, key: BlockKey, data: BlockData) -> Multi:
    """PUT_BACK: the claim of a Starter that still has the block stands again. `data`: with a fresh stamp."""
    path, encoded, fence = paths.running_block(node, key), encode_block(data), fence_check(node, node_version)
    ops = (fence, Check(paths.failed(key.submission), 0), Create(path, encoded))
    return Multi(name="PUT_BACK", ops=ops, proof=Exists(path, encoded), guard=fence)
