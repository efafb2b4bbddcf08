"""Rules for the records of the cluster: nodes, settings, orders, requests, invitations. The second half of the table of
`coord/validity/records.py`; what work leaves behind is in `validity/work.py`."""

from __future__ import annotations

from typing import Any

from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.validity.rules import (
    BOOK,
    FieldFault,
    at,
    blob,
    flag,
    many,
    mapping,
    member,
    one_of,
    optional,
    real,
    row,
    text,
    whole,
    words,
)
from rmgr.coord.validity.work import (
    GUID,
    LINE,
    LONG,
    NAME,
    NUMBER,
    PRIORITY,
    SPAN,
    USER,
    WORD,
    ZNODE_BYTES,
)
from rmgr.model.base.ids import MAX_NUMBER
from rmgr.model.base.resources import Capacity, NodeAttributes
from rmgr.model.cluster.gang import LEAST_QUANTUM_US, MOST_LEAVES, MOST_QUANTUM_US, GangClock, GangRecord
from rmgr.model.cluster.identity import Role
from rmgr.model.cluster.joining import AclRecord, Invitation, Revocation, SealedSecret
from rmgr.model.cluster.limits import BOUNDS, CappedUse, UserLimits
from rmgr.model.cluster.node import (
    Drain,
    EpochRecord,
    InboxOrder,
    Meta,
    NodeRecord,
    NodeState,
    OrderKind,
    StarterEntry,
    SubmitterEntry,
    Trouble,
)
from rmgr.model.cluster.queue import FAIR, FIFO, PRIVATE, SHARED, ClusterSettings, Dispatch, PipelineSpec, QueueSpec
from rmgr.model.tasks.block import MOST_ATTEMPTS, MOST_TASKS, PRIORITY_RANGE
from rmgr.model.tasks.request import StopKind, StopRequest
from rmgr.model.wire.line import Ahead, Claimed, ClaimStage, Hint, Told

_COUNT = whole(0, 1 << 62)
_GANG_TIME = whole(-(1 << 57), 1 << 57)
_TREE_NODE = whole(0, 4 * MOST_LEAVES)
_PID = whole(0, 1 << 32)
_PROTOCOL = whole(0, 1 << 16)
_NODE = optional(NAME, "")
_INDEX = whole(0, MOST_TASKS - 1)
_ATTEMPT = whole(0, MOST_ATTEMPTS)
_WHY = text(64 * 1024)
_SEALED = text(ZNODE_BYTES)
_KEY_ID = words(r"[0-9a-f]{32}", "32 lower-case hex digits")
_TOLD = many(row(whole(0, MAX_NUMBER), _INDEX, _WHY), LONG)


#: Ranges of tasks as people ask for them: what of it there is, is looked for (`model/tasks/request.py`).


def _counts_leaves(record: Any) -> FieldFault | None:
    leaves = sum(cores for _, cores in record.leaves)
    return FieldFault("leaves", leaves, f"at most {MOST_LEAVES} in all") if leaves > MOST_LEAVES else None


def _is_bounded(record: Any) -> FieldFault | None:
    """Of an order to a node: which block is meant must be sayable, and how long it may take a span of time."""
    block = record.extra.get("block", "")
    if len(block) > 100:
        return FieldFault("extra['block']", block, "the name of a block")
    grace_us = record.extra.get("grace_us", "0")
    is_number = grace_us.isascii() and grace_us.isdigit() and len(grace_us) <= 20  # else `int` fails, or takes long
    fault = SPAN(int(grace_us)) if is_number else FieldFault("", grace_us, "microseconds in digits")
    return at("extra['grace_us']", fault) if fault is not None else None


BOOK.add(
    NodeRecord,
    node=NAME,
    incarnation=_COUNT,
    state=member(NodeState),
    guid=GUID,
    capacity=BOOK.of(Capacity),
    attributes=BOOK.of(NodeAttributes),
    endpoint=WORD,
    host=WORD,
    pid=_PID,
    registered_us=SPAN,
    reason=LINE,
    version=WORD,
    key_id=optional(_KEY_ID, ""),
    protocol=_PROTOCOL,
    life=GUID,
    takes_handed=flag,
    takes_left=flag,
    line=WORD,
    metrics=WORD,
    leaves=flag,
    freezer=text(16),
    forgotten=flag,
)
BOOK.add(GangClock, node=NAME, incarnation=_COUNT, offset_us=_GANG_TIME)
BOOK.add(
    GangRecord,
    _counts_leaves,
    format=_COUNT,
    policy=text(255),
    slot_us=whole(LEAST_QUANTUM_US, MOST_QUANTUM_US),
    origin_us=_GANG_TIME,
    slot=_COUNT,
    width=whole(2, 64),
    leaves=many(row(NAME, whole(1, MOST_LEAVES)), MOST_LEAVES),
    clock=BOOK.of(GangClock),
    queues=many(row(_TREE_NODE, many(row(_COUNT, whole(1, 64)), LONG)), LONG),
    front=many(row(_TREE_NODE, _COUNT, flag), LONG),
    late=many(row(_COUNT, _TREE_NODE, whole(1, 64)), LONG),
    next_round=flag,
    attempts=many(row(_COUNT, whole(1, MOST_ATTEMPTS), _COUNT), LONG),
    set_us=_GANG_TIME,
    memory_share=whole(0, 1_000_000),
)
BOOK.add(StarterEntry, guid=GUID, nodes=many(NAME, LONG), endpoint=WORD, host=WORD, pid=_PID)
BOOK.add(SubmitterEntry, guid=GUID, host=WORD, pid=_PID, since_us=SPAN, user=optional(USER, ""))
BOOK.add(Drain, node=NAME, reason=LINE, user=USER, since_us=SPAN, is_over=flag)
BOOK.add(
    Trouble,
    node=NAME,
    incarnation=_COUNT,
    kind=text(64),
    reason=_WHY,
    since_us=SPAN,
    until_us=SPAN,
    refused=mapping(text(255), _WHY, LONG),
)
BOOK.add(
    EpochRecord,
    epoch=_COUNT,
    leader=GUID,
    endpoint=WORD,
    host=WORD,
    pid=_PID,
    since_us=SPAN,
    candidate=text(128),
    version=WORD,
    protocol=_PROTOCOL,
    metrics=WORD,
)
BOOK.add(Meta, cluster_id=GUID, created_us=SPAN, protocol=_PROTOCOL, oldest=_PROTOCOL, store_bound_us=SPAN)
BOOK.add(
    InboxOrder,
    _is_bounded,
    order=member(OrderKind),
    submission=NUMBER,
    index=whole(-1, MOST_TASKS - 1),
    reason=WORD,
    detail=LINE,
    signal=whole(0, 64),
    extra=mapping(text(64), WORD, 32),
)
BOOK.add(
    QueueSpec,
    name=NAME,
    partition=text(255, 1),
    dispatch=member(Dispatch),
    policy=WORD,
    state=one_of("open", "closed", "stopped"),
    default_time_us=SPAN,
    max_time_us=SPAN,
    max_cores=_COUNT,
    max_memory_bytes=_COUNT,
    default_memory_bytes=_COUNT,
    default_priority=PRIORITY,
    max_priority=whole(-PRIORITY_RANGE, 1 << 31),
    max_pending_blocks=_COUNT,
    rank=whole(-(1 << 31), 1 << 31),
    backfill_pull=flag,
    order=one_of(FAIR, FIFO),
    users=many(text(255), LONG),
)
_BY_USER = mapping(USER, _COUNT, LONG)
BOOK.add(UserLimits, **dict.fromkeys((bound.name for bound in BOUNDS), _COUNT), cores_of=_BY_USER, jobs_of=_BY_USER)
BOOK.add(CappedUse, cores=_BY_USER, nodes=_BY_USER, jobs=_BY_USER, free=_COUNT)
BOOK.add(PipelineSpec, partition=text(255, 1), document=text(ZNODE_BYTES), name=WORD)
BOOK.add(
    ClusterSettings,
    queues=many(BOOK.of(QueueSpec), LONG),
    default_queue=text(64),
    retention_us=SPAN,
    grace_us=SPAN,
    mass_loss_share=real(0.0, 1e9),
    mass_requeue_per_s=real(0.0, 1e12),
    max_losses=_COUNT,
    max_fragments=_COUNT,
    log_retention_us=SPAN,
    history_retention_us=SPAN,
    operators=many(text(255), LONG),
    pipelines=many(BOOK.of(PipelineSpec), LONG),
    barrier_us=SPAN,
    values=one_of(PRIVATE, SHARED),
    limits=BOOK.of(UserLimits),
    extra=mapping(text(1000), text(ZNODE_BYTES), 1000),
    changed_by=optional(USER, ""),
    changed_us=SPAN,
)
BOOK.add(
    StopRequest,
    kind=member(StopKind),
    submission=whole(0, MAX_NUMBER),
    index=_INDEX,
    attempt=_ATTEMPT,
    to=_NODE,
    node=_NODE,
    grace_us=SPAN,
    detail=LINE,
    answered=flag,
    done=_TOLD,
    left=_TOLD,
    error=_WHY,
    code=text(64),
    hint=_WHY,
)
BOOK.add(
    Invitation,
    id=GUID,
    name=USER,
    role=member(Role),
    key_id=_KEY_ID,
    expires_us=SPAN,
    sealed=_SEALED,
    redeemed=text(128),
)
BOOK.add(
    Revocation,
    key_id=_KEY_ID,
    name=USER,
    role=member(Role),
    by=text(255),
    since_us=SPAN,
    reason=LINE,
    work=text(16),
    before=text(16),
    others=flag,
)
BOOK.add(AclRecord, generation=_COUNT, roles=mapping(text(64), many(text(255), 16), 32))
BOOK.add(SealedSecret, generation=_COUNT, sealed=_SEALED)
BOOK.add(Pointer, sub=NUMBER, index=whole(0, MAX_NUMBER), n=whole(0, 99_999), by=GUID)
BOOK.add(Hint, node=NAME, block=text(100, 1), data=blob(ZNODE_BYTES), is_early=flag)
BOOK.add(Claimed, node=NAME, block=text(100, 1), stage=member(ClaimStage, *ClaimStage))
BOOK.add(Ahead, serial=_COUNT, submission=NUMBER, fragment=blob(ZNODE_BYTES))
BOOK.add(Told, serial=_COUNT, submission=NUMBER, number=_COUNT)

#: The whole table.
FILLED = BOOK
