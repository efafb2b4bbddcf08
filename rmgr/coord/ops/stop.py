"""STOP: an attempt of a job is given up by its Starter, without fault of anybody, and the job waits again as the next attempt.

What RETURN is for tasks that have not started this is for one that ran: it was checkpointed to go on elsewhere (MIGRATED), or had to make
room (PREEMPTED). No back-off and no count; what there is to be restored lies in the store before this is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rmgr.coord.ops.rules import MAX_PAST
from rmgr.coord.ops.work import fence_check
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import Create, Delete, Gone, GoneOrHolds, Multi, Op, Set
from rmgr.coord.protocol.records import encode_block
from rmgr.model.tasks.block import BlockData, BlockKey, PastAttempt


def stop(
    node: str,
    node_version: int,
    queue: str,
    key: BlockKey,
    data: BlockData,
    version: int,
    *,
    past: PastAttempt,
    stamp: str,
    held: bool = False,
    moved: bool = False,
    orders: Sequence[str] = (),
) -> tuple[Multi, BlockKey]:
    """STOP: the claimed block goes, and waits again in its place with the next attempt, `past` behind it.

    Args:
        node_version: the fence of the Starter. data, version: of the running znode; no task of it may be done.
        past: the attempt that ends here; its reason says why. held: the submission has no gate: set aside instead.
        moved: by a policy, which is counted. orders: inbox guids obeyed by this.
    Returns: the multi, and the key under which it waits.
    Raises: ValueError when a task of it is done.
    """
    if data.done:
        raise ValueError(f"{paths.block_name(key)} cannot be given up: tasks of it are done")
    path = paths.running_block(node, key)
    fence = fence_check(node, node_version)
    following = replace(key, attempt=key.attempt + 1)
    target = paths.held_block(queue, following) if held else paths.pending_block(queue, following)
    again = msgspec.structs.replace(
        data,
        incarnation=0,
        claimed_us=0,
        started=0,
        allocation=None,
        stopping="",
        saving="",
        moves=data.moves + moved,
        past=(*data.past, past)[-MAX_PAST:],
        stamp=stamp,
    )
    ops: list[Op] = [fence, Delete(path, version), Create(target, encode_block(again))]
    ops += [Delete(paths.inbox(node, guid)) for guid in orders]
    return Multi(name="STOP", ops=tuple(ops), proof=Gone(path), guard=fence), following


def note(node: str, node_version: int, key: BlockKey, data: BlockData, version: int, *, orders: Sequence[str] = ()) -> Multi:
    """NOTE: the claimed block stays, and says what became of its checkpoints; with it orders are crossed off that are done, or refused.

    data: as it is from now on, stamped.
    """
    path = paths.running_block(node, key)
    fence = fence_check(node, node_version)
    encoded = encode_block(data)
    ops: list[Op] = [fence, Set(path, encoded, version), *(Delete(paths.inbox(node, guid)) for guid in orders)]
    return Multi(name="NOTE", ops=tuple(ops), proof=GoneOrHolds(path, encoded), guard=fence)
