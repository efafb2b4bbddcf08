"""Checks every field of every record that anybody can write into ZooKeeper before it is believed. Pure.

Every reader of what a client could have written calls it: the gateway, which refuses a bad record, and Starters, the leader and followers,
which set it aside (it concerns only its owner). First comes the table, for records of work and of the cluster, then the checks. Rules
are defined in `field_rules.py`; a field without a rule fails a test. The parsers of `coord/protocol/paths.py` refuse names of znodes:
they accept only what their builders make.

Limits are far above any honest need (2 million waiting tasks of one user, attempts up to the six digits of a
name), and low enough that nothing which passes makes a daemon raise, or costs it more than its bytes.

What depends on the caller is a parameter: a submission's record belongs to the number in its path (`submission`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from rmgr.coord.field_rules import (
    BOOK,
    FieldFault,
    Rule,
    at,
    blob,
    blobs,
    file_name,
    flag,
    many,
    mapping,
    member,
    one_of,
    optional,
    real,
    row,
    shown,
    text,
    whole,
    words,
)
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.keys import Pointer
from rmgr.coord.protocol.multi import MAX_OPS, Stamped
from rmgr.coord.protocol.records import cut, decode_block, decode_failed, decode_fragment, decode_keyed, decode_record
from rmgr.errors import InvalidRecord, UsageError, WrongCluster
from rmgr.model import block, identity, node, queue
from rmgr.model import submission as submissions
from rmgr.model.base import MAX_NUMBER, MOST, Capacity, NodeAttributes, Request
from rmgr.model.line import Ahead, Claimed, ClaimStage, Hint, Told
from rmgr.model.states import Reason, State
from rmgr.model.submission import parse_array

#: Most bytes of one znode.
ZNODE_BYTES = 1 << 20
#: Most MiB, cores and processes that fit into the digits of names.
MOST_MIB = 999_999_999
MOST_CORES = 99_999
MOST_PROCESSES = 9_999_999

_COUNT = whole(0, 1 << 31)
_INDEX = whole(0, block.MOST_TASKS - 1)
_TASKS = whole(0, block.MOST_TASKS)
SPAN = whole(0, 1 << 57)  # as `model/base.py` says
#: Time spans for people: negative after a clock was set back.
_BETWEEN = whole(-(1 << 57), 1 << 57)
NUMBER = whole(1, MAX_NUMBER)
_CORES = whole(1, MOST_CORES)
_MIB = whole(0, MOST_MIB)
_ATTEMPT = whole(1, block.MOST_ATTEMPTS)
_ANY_ATTEMPT = whole(0, block.MOST_ATTEMPTS)
PRIORITY = whole(-block.PRIORITY_RANGE, block.PRIORITY_RANGE)
_SEQ = whole(0, block.NO_SEQ)
_EXIT = optional(whole(-(1 << 31), 1 << 32))
WORD = text(1000)
LINE = text(10_000)
FILE = text(4096)
_PATH = file_name()
#: One line: an answer of the store, or a program's last words; whole blocks of them fit a znode.
_ERROR = text(64 * 1024)
#: Longest list of names: nodes of a large machine, or all ranges of a large cancel.
LONG = 100_000
SHA256 = words(r"[0-9a-f]{64}", "64 lower-case hex digits")
_SHA256 = optional(SHA256, "")
GUID = words(r"[A-Za-z0-9._-]{0,64}", "at most 64 letters, digits, '.', '_' and '-'")
_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?"  # as `model/base.py` says
NAME = words(_NAME, "a name of letters, digits, '.', '_' and '-', a letter or digit first and last, at most 64")
_NODE = optional(NAME, "")
#: A user's name is part of keys.
USER = words(r"[^/\0-\x1f\x7f]{1,255}", "a name of 1 to 255 characters without '/'")
RESOURCES = mapping(words(r"[A-Za-z][A-Za-z0-9._-]{0,63}", "letters, digits and . _ - after the first letter"), whole(0, MOST), 256)
FEATURES = many(text(255, 1), 1000)
_KEY = text(1000, 1)
_ROW = words(r"args/[0-9]{10}/[0-9]{10}/[^/\0]{1,200}", "a key args/NUMBER/FIRST/NAME")
_OUTCOMES_ROW = words(r"frag/[0-9]{10}/[^/\0]{1,200}", "a key frag/NUMBER/NAME")
#: Names below the work directory; the creator of the file checks once more where they lead.
_BELOW = file_name(1)
_LOG = row(blob(ZNODE_BYTES), blob(ZNODE_BYTES))
_LOG_PARTS = row(whole(0, MAX_NUMBER), whole(0, MAX_NUMBER))
_STORY = many(text(4096), 64)
_FINAL = member(State, State.COMPLETED, State.FAILED, State.CANCELLED)


@lru_cache(64)
def _array_fault(expression: str) -> bool:
    try:
        parse_array(expression)
    except UsageError:
        return True
    return False


def _array(value: Any) -> FieldFault | None:
    if type(value) is not str or len(value) > 256 * 1024 or (value and _array_fault(value)):
        return FieldFault("", value, "an array like 1-100, 0-99:2 or 1,3,5-9%8")
    return None


def _covers(record: Any) -> FieldFault | None:
    """Checks first and count of a block."""
    if record.first + record.count > block.MOST_TASKS:
        return FieldFault("count", record.count, f"at most {block.MOST_TASKS} tasks in all")
    return None


def _runs_something(record: Any) -> FieldFault | None:
    if record.work is submissions.Work.COMMAND and record.command is None and not record.spec_sha256:
        return FieldFault("command", None, "a command, in work of that kind")
    return None


def _is_amended(record: Any) -> FieldFault | None:
    return FieldFault("changes", record.changes, why) if (why := submissions.fault_of(record)) else None


def _has_words(record: Any) -> FieldFault | None:
    """Refuses a command without a program: nothing could start it."""
    if not record.script_sha256 and not (record.argv and record.argv[0]):
        return FieldFault("argv", record.argv, "a program, or script_sha256")
    return None


def _spread(record: Any) -> FieldFault | None:
    if record.nodes > record.processes:
        return FieldFault("nodes", record.nodes, f"at most as many nodes as processes ({record.processes})")
    return None


def _reigns(record: Any) -> FieldFault | None:
    before = -1
    for number, (first, _) in enumerate(record.reigns):
        if first <= before or first > record.next:
            return FieldFault(f"reigns[{number}]", first, f"an index above {before} and up to {record.next}")
        before = first
    return None


def _ranges(record: Any) -> FieldFault | None:
    for number, (_, first, count) in enumerate(record.ranges):
        if first + count > block.MOST_TASKS:
            return FieldFault(f"ranges[{number}]", count, f"at most {block.MOST_TASKS} tasks in all")
    return None


def _whole_nodes(record: Any) -> FieldFault | None:
    if record.whole and len(record.whole) != len(record.shares):
        return FieldFault("whole", record.whole, f"cores of each of {len(record.shares)} nodes")
    return None


def _pairs(value: Any) -> FieldFault | None:
    """Checks ranges of tasks."""
    most = block.MOST_TASKS
    return _RANGES(value) or next(
        (FieldFault(f"[{at}]", item[1], f"at most {most} tasks in all") for at, item in enumerate(value) if sum(item) > most), None
    )


_RANGES = many(row(_INDEX, whole(1, block.MOST_TASKS)), LONG)
RANGES: Rule = _pairs

BOOK.add(
    Request,
    cores=_CORES,
    memory_bytes=whole(0, MOST_MIB << 20),
    time_limit_us=SPAN,
    features=FEATURES,
    resources=RESOURCES,
)
BOOK.add(Capacity, cores=whole(0, 1 << 31), memory_bytes=whole(0, 1 << 62), resources=mapping(text(255, 1), _COUNT, 1000))
BOOK.add(NodeAttributes, partition=text(255, 1), site=WORD, speed=real(0.0, 1e12), features=FEATURES, call_cores=whole(0, 1 << 31))
BOOK.add(submissions.Dependency, condition=member(submissions.Condition), submission=NUMBER)
BOOK.add(submissions.Upload, name=_BELOW, sha256=SHA256, is_dir=flag)
BOOK.add(
    submissions.Command,
    _has_words,
    argv=many(text(ZNODE_BYTES), LONG),
    script_sha256=_SHA256,
    script_name=FILE,
    env=mapping(words(r"[^=\0]{1,4096}", "a name without '=' and NUL"), text(ZNODE_BYTES), 10_000),
    cwd=_PATH,
    out=_PATH,
    err=_PATH,
    named_only=flag,
    stdin_sha256=_SHA256,
    uploads=many(BOOK.of(submissions.Upload), 10_000),
    input_files=many(row(_KEY, _BELOW), LONG),
    output_files=many(row(_KEY, _BELOW), LONG),
)
BOOK.add(
    submissions.PythonEnvironment,
    python=_PATH,
    version=text(64),
    cloudpickle=text(64),
    sys_path=many(FILE, 1000),
    argv=many(text(ZNODE_BYTES), LONG),
    warnings=many(row(WORD, *3 * [text(ZNODE_BYTES)], words("[0-9]{1,9}", "a line")), 1000),
    settings=many(row(WORD, text(ZNODE_BYTES)), 1000),
    modules=many(SHA256, 1000),
    initializer=_SHA256,
    worker_group=GUID,
    program=text(64),
)
BOOK.add(
    submissions.Rigid,
    _spread,
    processes=whole(1, MOST_PROCESSES),
    nodes=whole(0, MOST_PROCESSES),
    exclusive=flag,
    nodelist=many(NAME, LONG),
    exclude=many(NAME, LONG),
    begin_us=SPAN,
    kill_on_bad_exit=flag,
    checkpoint_every_us=SPAN,
    checkpoint_grace_us=SPAN,
    restart=one_of(submissions.FROM_CHECKPOINT, submissions.FROM_START),
    launch=one_of(submissions.ONCE, submissions.RANKS, submissions.MPI),
    queue_class=WORD,
    checkpoint=flag,
    max_moves=whole(0, block.MOST_ATTEMPTS),
)
BOOK.add(
    submissions.Terms,
    priority=optional(PRIORITY),
    time_limit_us=optional(SPAN),
    memory_bytes=optional(whole(0, MOST_MIB << 20)),
    name=optional(WORD),
    begin_us=optional(SPAN),
    after=optional(many(BOOK.of(submissions.Dependency), 10_000)),
    features=optional(FEATURES),
    queue=optional(NAME),
    cores=optional(_CORES),
)
_SIGNATURE = words(r"(?:[0-9a-f]{32}:[0-9a-f]{128})?", "a key id and a signature")
BOOK.add(
    submissions.Amendment,
    number=_COUNT,
    by=USER,
    by_us=SPAN,
    is_operators=flag,
    terms=BOOK.of(submissions.Terms),
    signature=_SIGNATURE,
)
BOOK.add(
    submissions.Submission,
    _runs_something,
    _is_amended,
    id=NUMBER,
    name=WORD,
    user=USER,
    queue=NAME,
    work=member(submissions.Work),
    request=BOOK.of(Request),
    priority=PRIORITY,
    resubmit=flag,
    retries=_COUNT,
    backoff_us=SPAN,
    on_disconnect=member(submissions.OnDisconnect),
    after=many(BOOK.of(submissions.Dependency), 10_000),
    phase=member(submissions.Phase),
    reason=text(64),
    reason_detail=LINE,
    owner=GUID,
    token=LINE,
    nonce=words(r"(?:[0-9a-f]{32})?", "a nonce of 32 hexadecimal digits"),
    signed_s=SPAN,
    submitted_us=SPAN,
    closed_us=SPAN,
    array=_array,
    max_running=_COUNT,
    max_fails=whole(-1, 1 << 31),
    command=optional(BOOK.of(submissions.Command)),
    python=optional(BOOK.of(submissions.PythonEnvironment)),
    function=_SHA256,
    account=WORD,
    host=WORD,
    grace_us=SPAN,
    rigid=optional(BOOK.of(submissions.Rigid)),
    ends_with_owner=flag,
    umask=whole(-1, 0o777),
    by=optional(USER, ""),
    by_us=SPAN,
    spec_sha256=_SHA256,
    entries=_SHA256,
    signature=_SIGNATURE,
    was=optional(BOOK.of(submissions.Terms)),
    changes=many(BOOK.of(submissions.Amendment), submissions.MOST_CHANGES),
)
BOOK.add(submissions.Tail, _reigns, next=_TASKS, complete=flag, enqueued=GUID, reigns=many(row(_TASKS, GUID), 10_000))
BOOK.add(submissions.Paged, base=_COUNT, counts=mapping(words("COMPLETED|FAILED|CANCELLED", "COMPLETED, FAILED or CANCELLED"), _TASKS, 3))

BOOK.add(
    block.BlockKey,
    _covers,
    priority=PRIORITY,
    seq=_SEQ,
    submission=NUMBER,
    first=_INDEX,
    count=whole(1, block.MAX_TASKS),
    attempt=_ATTEMPT,
    cores=_CORES,
    memory_mib=_MIB,
    user=words(r"(?:[a-z2-7]{6})?", "the tag of a user"),
)
BOOK.add(
    block.PastAttempt,
    attempt=_ANY_ATTEMPT,
    node=_NODE,
    reason=member(Reason),
    exit_code=_EXIT,
    started_us=SPAN,
    ended_us=SPAN,
    error=_ERROR,
    cpu_us=SPAN,
    max_rss_kib=SPAN,
)
BOOK.add(
    block.Seal,
    key_id=text(64, 1),  # whose key, and whether that can be a key's name, says `adapters/identity/trust.py`
    first=_INDEX,
    count=whole(1, block.MAX_TASKS),
    not_after_s=SPAN,
    signature=blob(4096),
    proof=many(blob(64), 2 * block.MAX_TASKS),
)
BOOK.add(
    block.Allocation,
    _whole_nodes,
    shares=many(row(NAME, whole(1, MOST_PROCESSES)), LONG, least=1),
    threads=_CORES,
    memory_mib=_MIB,
    started_us=SPAN,
    planned_us=SPAN,
    whole=many(whole(0, 1 << 31), LONG),
    gang=optional(NAME, ""),
    generation=whole(0, 1 << 31),
    changes=whole(0, submissions.MOST_CHANGES),
)
BOOK.add(
    block.BlockData,
    function=_SHA256,
    resubmit=flag,
    retries=_COUNT,
    losses=_COUNT,
    failures=_COUNT,
    base=_INDEX,
    payloads=blobs(ZNODE_BYTES, block.MAX_TASKS),
    row=optional(_ROW, ""),
    done=whole(0, (1 << block.MAX_TASKS) - 1),
    incarnation=SPAN,
    started=whole(0, block.MAX_TASKS),
    keyed=flag,
    serial=flag,
    claimed_us=SPAN,
    past=many(BOOK.of(block.PastAttempt), 64),
    stamp=GUID,
    seal=optional(BOOK.of(block.Seal)),
    allocation=optional(BOOK.of(block.Allocation)),
    stopping=LINE,
    story=_STORY,
    awaits=LINE,
    saving=LINE,
    answered=flag,
    moves=whole(0, block.MOST_ATTEMPTS),
)
BOOK.add(
    block.KeyedPayload,
    inputs=many(_KEY, LONG),
    outputs=many(_KEY, LONG),
    overwrite=flag,
    trust=many(text(255), LONG),
    claims_by=GUID,
    deeds=many(blob(ZNODE_BYTES), LONG),
)
BOOK.add(block.Call, function=_SHA256, payload=blob(ZNODE_BYTES), row=optional(_ROW, ""), at=whole(0, block.MAX_TASKS), keyed=flag)
BOOK.add(
    block.Outcome,
    index=_INDEX,
    state=_FINAL,
    started_us=_BETWEEN,
    elapsed_us=_BETWEEN,
    value=blob(ZNODE_BYTES),
    pickled=flag,
    cpu_us=SPAN,
    max_rss_kib=SPAN,
    reason=member(Reason),
    exit_code=_EXIT,
    value_size=whole(-1, 1 << 40),
    error=_ERROR,
    log=_LOG,
    log_parts=_LOG_PARTS,
    outputs=whole(0, block.MOST_ATTEMPTS),
    attempt=_ANY_ATTEMPT,
    past=many(BOOK.of(block.PastAttempt), 64),
    value_sha256=optional(blob(32, 32)),
    helpers=many(NAME, LONG),
    story=_STORY,
    served_us=SPAN,
    turns=_COUNT,
    call=optional(BOOK.of(block.Call)),
)
BOOK.add(block.FragmentSeal, key_id=text(64, 1), signature=blob(64))
BOOK.add(
    block.Fragment,
    _ranges,
    node=_NODE,
    attempt=_ANY_ATTEMPT,
    base_us=SPAN,
    outcomes=many(BOOK.of(block.Outcome), LONG),
    row=optional(_OUTCOMES_ROW, ""),
    ranges=many(row(_FINAL, _INDEX, whole(1, block.MOST_TASKS)), LONG),
    seal=optional(BOOK.of(block.FragmentSeal)),
)
BOOK.add(
    block.FailedRange,
    queue=NAME,
    seq=_SEQ,
    priority=PRIORITY,
    cores=_CORES,
    memory_mib=_MIB,
    reason=member(Reason),
    block=blob(ZNODE_BYTES, 1),
    node=_NODE,
    backoff_us=SPAN,
    exit_code=_EXIT,
    error=_ERROR,
    started_us=SPAN,
    ended_us=SPAN,
    log=_LOG,
    log_parts=_LOG_PARTS,
    cpu_us=SPAN,
    max_rss_kib=SPAN,
    alone=flag,
)
BOOK.add(
    block.Reserved,
    shares=many(row(text(100), whole(0, 1 << 31)), LONG),
    memory_mib=whole(0, 1 << 40),
    resources=many(row(text(255, 1), _COUNT), 1000),
)
BOOK.add(
    block.NodeHold,
    head=NAME,
    key=text(100, 1),
    cores=whole(0, 1 << 31),
    memory_mib=whole(0, 1 << 40),
    processes=_COUNT,
    whole=flag,
    gang=optional(NAME, ""),
    generation=whole(0, 1 << 31),
)


# -- records of the cluster: nodes, settings, orders, requests, invitations ----------------------------------------------------


_WIDE_COUNT = whole(0, 1 << 62)
_GANG_TIME = whole(-(1 << 57), 1 << 57)
_TREE_NODE = whole(0, 4 * node.MOST_LEAVES)
_PID = whole(0, 1 << 32)
_PROTOCOL = whole(0, 1 << 16)
_WHY = text(64 * 1024)
_SEALED = text(ZNODE_BYTES)
_KEY_ID = words(r"[0-9a-f]{32}", "32 lower-case hex digits")
_TOLD = many(row(whole(0, MAX_NUMBER), _INDEX, _WHY), LONG)


def _counts_leaves(record: Any) -> FieldFault | None:
    leaves = sum(cores for _, cores in record.leaves)
    return FieldFault("leaves", leaves, f"at most {node.MOST_LEAVES} in all") if leaves > node.MOST_LEAVES else None


def _is_bounded(record: Any) -> FieldFault | None:
    """Checks the extras of an order to a node: the name of a block, and a time span."""
    block = record.extra.get("block", "")
    if len(block) > 100:
        return FieldFault("extra['block']", block, "the name of a block")
    grace_us = record.extra.get("grace_us", "0")
    is_number = grace_us.isascii() and grace_us.isdigit() and len(grace_us) <= 20  # else `int` fails, or takes long
    fault = SPAN(int(grace_us)) if is_number else FieldFault("", grace_us, "microseconds in digits")
    return at("extra['grace_us']", fault) if fault is not None else None


BOOK.add(
    node.NodeRecord,
    node=NAME,
    incarnation=_WIDE_COUNT,
    state=member(node.NodeState),
    guid=GUID,
    capacity=BOOK.of(Capacity),
    attributes=BOOK.of(NodeAttributes),
    endpoint=WORD,
    host=WORD,
    pid=_PID,
    born=WORD,
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
BOOK.add(node.GangClock, node=NAME, incarnation=_WIDE_COUNT, offset_us=_GANG_TIME)
BOOK.add(
    node.GangRecord,
    _counts_leaves,
    format=_WIDE_COUNT,
    policy=text(255),
    slot_us=whole(node.LEAST_QUANTUM_US, node.MOST_QUANTUM_US),
    origin_us=_GANG_TIME,
    slot=_WIDE_COUNT,
    width=whole(2, 64),
    leaves=many(row(NAME, whole(1, node.MOST_LEAVES)), node.MOST_LEAVES),
    clock=BOOK.of(node.GangClock),
    queues=many(row(_TREE_NODE, many(row(_WIDE_COUNT, whole(1, 64)), LONG)), LONG),
    front=many(row(_TREE_NODE, _WIDE_COUNT, flag), LONG),
    late=many(row(_WIDE_COUNT, _TREE_NODE, whole(1, 64)), LONG),
    next_round=flag,
    attempts=many(row(_WIDE_COUNT, whole(1, block.MOST_ATTEMPTS), _WIDE_COUNT), LONG),
    set_us=_GANG_TIME,
    memory_share=whole(0, 1_000_000),
)
BOOK.add(node.StarterEntry, guid=GUID, nodes=many(NAME, LONG), endpoint=WORD, host=WORD, pid=_PID)
BOOK.add(node.SubmitterEntry, guid=GUID, host=WORD, pid=_PID, since_us=SPAN, user=optional(USER, ""))
BOOK.add(node.Drain, node=NAME, reason=LINE, user=USER, since_us=SPAN, is_over=flag)
BOOK.add(
    node.Trouble,
    node=NAME,
    incarnation=_WIDE_COUNT,
    kind=text(64),
    reason=_WHY,
    since_us=SPAN,
    until_us=SPAN,
    refused=mapping(text(255), _WHY, LONG),
    barred=many(text(255), LONG),
)
BOOK.add(
    node.EpochRecord,
    epoch=_WIDE_COUNT,
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
BOOK.add(node.Meta, cluster_id=GUID, created_us=SPAN, protocol=_PROTOCOL, oldest=_PROTOCOL, store_bound_us=SPAN)
BOOK.add(
    node.InboxOrder,
    _is_bounded,
    order=member(node.OrderKind),
    submission=NUMBER,
    index=whole(-1, block.MOST_TASKS - 1),
    reason=WORD,
    detail=LINE,
    signal=whole(0, 64),
    extra=mapping(text(64), WORD, 32),
)
BOOK.add(
    queue.QueueSpec,
    name=NAME,
    partition=text(255, 1),
    dispatch=member(queue.Dispatch),
    policy=WORD,
    state=one_of("open", "closed", "stopped"),
    default_time_us=SPAN,
    max_time_us=SPAN,
    max_cores=_WIDE_COUNT,
    max_memory_bytes=_WIDE_COUNT,
    default_memory_bytes=_WIDE_COUNT,
    default_priority=PRIORITY,
    max_priority=whole(-block.PRIORITY_RANGE, 1 << 31),
    max_pending_blocks=_WIDE_COUNT,
    rank=whole(-(1 << 31), 1 << 31),
    backfill_pull=flag,
    order=one_of(queue.FAIR, queue.FIFO),
    users=many(text(255), LONG),
)
_BY_USER = mapping(USER, _WIDE_COUNT, LONG)
BOOK.add(queue.UserLimits, **dict.fromkeys((bound.name for bound in queue.BOUNDS), _WIDE_COUNT), cores_of=_BY_USER, jobs_of=_BY_USER)
BOOK.add(queue.CappedUse, cores=_BY_USER, nodes=_BY_USER, jobs=_BY_USER, free=_WIDE_COUNT)
BOOK.add(queue.PipelineSpec, partition=text(255, 1), document=text(ZNODE_BYTES), name=WORD)
BOOK.add(
    queue.ClusterSettings,
    queues=many(BOOK.of(queue.QueueSpec), LONG),
    default_queue=text(64),
    retention_us=SPAN,
    grace_us=SPAN,
    mass_loss_share=real(0.0, 1e9),
    mass_requeue_per_s=real(0.0, 1e12),
    max_losses=_WIDE_COUNT,
    max_fragments=_WIDE_COUNT,
    log_retention_us=SPAN,
    history_retention_us=SPAN,
    operators=many(text(255), LONG),
    pipelines=many(BOOK.of(queue.PipelineSpec), LONG),
    barrier_us=SPAN,
    values=one_of(queue.PRIVATE, queue.SHARED),
    limits=BOOK.of(queue.UserLimits),
    extra=mapping(text(1000), text(ZNODE_BYTES), 1000),
    changed_by=optional(USER, ""),
    changed_us=SPAN,
)
BOOK.add(
    block.StopRequest,
    kind=member(block.StopKind),
    submission=whole(0, MAX_NUMBER),
    index=_INDEX,
    attempt=_ANY_ATTEMPT,
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
    identity.Invitation,
    id=GUID,
    name=USER,
    role=member(identity.Role),
    key_id=_KEY_ID,
    expires_us=SPAN,
    sealed=_SEALED,
    redeemed=text(128),
)
BOOK.add(
    identity.Revocation,
    key_id=_KEY_ID,
    name=USER,
    role=member(identity.Role),
    by=text(255),
    since_us=SPAN,
    reason=LINE,
    work=text(16),
    before=text(16),
    others=flag,
)
BOOK.add(identity.AclRecord, generation=_WIDE_COUNT, roles=mapping(text(64), many(text(255), 16), 32))
BOOK.add(identity.SealedSecret, generation=_WIDE_COUNT, sealed=_SEALED)
BOOK.add(Pointer, sub=NUMBER, index=whole(0, MAX_NUMBER), n=whole(0, 99_999), by=GUID)
BOOK.add(Hint, node=NAME, block=text(100, 1), data=blob(ZNODE_BYTES), is_early=flag)
BOOK.add(Claimed, node=NAME, block=text(100, 1), stage=member(ClaimStage, *ClaimStage))
BOOK.add(Ahead, serial=_WIDE_COUNT, submission=NUMBER, fragment=blob(ZNODE_BYTES))
BOOK.add(Told, serial=_WIDE_COUNT, submission=NUMBER, number=_WIDE_COUNT)


# -- checks --------------------------------------------------------------------------------------------------------------------


#: Tasks that one ENQUEUE can add.
_MOST_IN_A_MULTI = MAX_OPS * block.MAX_TASKS
#: Records of submissions up to this size are cached for a moment (bytes).
_REMEMBERED_BYTES = 4096

T = TypeVar("T")

_HINT = "only rmgr's own commands and library write such records; rmgr version"
#: Decoders of records that are not JSON.
PACKED: dict[type, Any] = {
    block.BlockData: decode_block,
    block.Fragment: decode_fragment,
    block.FailedRange: decode_failed,
    block.KeyedPayload: decode_keyed,
}


def kinds() -> dict[type, frozenset[str]]:
    """Returns every record that has rules, and its fields with a rule."""
    return BOOK.kinds()


def check(record: object, *, where: str) -> None:
    """Raises InvalidRecord, naming `where`, the field and its allowed values, unless every field has an allowed value.

    Cost: 6 us for a plain submission, 1.3 us for a block's data and 0.2 us per argument; builds nothing.
    """
    fault = BOOK.fault(record)
    if fault is not None:
        raise invalid(where, fault)


def decode(data: bytes, kind: type[T], where: str) -> T:
    """Decodes and checks the bytes of a znode or a row. Raises InvalidRecord; WrongCluster if a newer release wrote them."""
    packed = PACKED.get(kind)
    try:
        record: T = packed(data) if packed is not None else decode_record(data, kind, where)
    except WrongCluster as error:
        if isinstance(error.__cause__, Exception):  # unreadable, as opposed to newer
            raise InvalidRecord(error.message, hint=_HINT) from error
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidRecord(f"{where}: what stands there is no {kind.__name__}: {cut(error)}", hint=_HINT) from None
    if kind is int:
        if not 0 <= record <= MAX_NUMBER:  # type: ignore[operator]
            raise invalid(where, FieldFault("", record, f"a number from 0 to {MAX_NUMBER}"))
        return record
    check(record, where=where)
    return record


def submission(data: bytes, number: int) -> submissions.Submission:
    """Reads the record of submission `number`. Raises: as `decode`, also if the record names another number.

    Cost: 15 us for a plain one, 1 us for the same bytes again a moment later: leader and Starter read a record twice.
    """
    return _remembered(data, number) if len(data) <= _REMEMBERED_BYTES else _submission(data, number)


def _submission(data: bytes, number: int) -> submissions.Submission:
    where = paths.sub(number)
    record = decode(data, submissions.Submission, where)
    if record.id != number:
        raise invalid(where, FieldFault("id", record.id, f"{number}"))
    return record


#: Records are frozen, so callers may share them; refused bytes are checked again each time.
_remembered = lru_cache(256)(_submission)


def tail(found: Stamped, number: int) -> submissions.Tail:
    """Reads the tail of submission `number`. Raises: as `decode`, also for more tasks than its number of changes can have added.

    One multi adds a bounded number of tasks, so a tail that claims millions must have been written thousands of times.
    """
    where = paths.tail(number)
    record = decode(found.data, submissions.Tail, where)
    most = (found.stat.version + 1) * _MOST_IN_A_MULTI
    if record.next > most:
        raise invalid(where, FieldFault("next", record.next, f"what {found.stat.version + 1} changes can bring, {most} at most,"))
    return record


def check_block(key: block.BlockKey, data: block.BlockData, *, where: str = "", pulled: bool = False) -> None:
    """Checks that a waiting block's (valid) data fit its name: no task is done, and it has the arguments of all its tasks.

    pulled: it waits where Starters take it, so no leader has placed it. Raises InvalidRecord.
    """
    if data.done:
        fault = FieldFault("done", data.done, "0, as long as it waits,")
    elif pulled and data.allocation is not None:
        fault = FieldFault("allocation", data.allocation, "nothing, for only the leader places jobs,")
    elif data.payloads and not (data.base <= key.first and key.end <= data.base + len(data.payloads)):
        fault = FieldFault("payloads", len(data.payloads), f"arguments of all tasks from {key.first} to {key.end - 1}")
    else:
        return
    raise invalid(where or paths.block_name(key), fault)


def check_failed(failed: block.FailedRange, submission: submissions.Submission, first: int, count: int, *, where: str) -> None:
    """Checks that a (valid) failed range belongs to that submission's work: its queue, and a block for its tasks. Raises InvalidRecord."""
    if failed.queue != submission.queue:
        raise invalid(where, FieldFault("queue", failed.queue, submission.queue))
    data = decode(failed.block, block.BlockData, f"{where}: block")
    if data.payloads and not (data.base <= first and first + count <= data.base + len(data.payloads)):
        raise invalid(
            where, FieldFault("block.payloads", len(data.payloads), f"arguments of all tasks from {first} to {first + count - 1}")
        )


def invalid(where: str, fault: FieldFault) -> InvalidRecord:
    """Returns the error for a fault."""
    field = f" {fault.path}" if fault.path else ""
    return InvalidRecord(f"{where}:{field} is {shown(fault.value)}, where only {fault.what} may stand", hint=_HINT)
