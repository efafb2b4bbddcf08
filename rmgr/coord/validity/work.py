"""Rules for the records of work: submissions, blocks, outcomes, failed attempts. The table behind `coord/validity/records.py`.

Limits are far above what anybody needs who means well (2 million waiting tasks of one user, attempts until the six digits of a
name end), and low enough that nothing which passes makes a daemon raise, or costs it more than its bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rmgr.coord.validity.rules import (
    BOOK,
    FieldFault,
    Rule,
    blob,
    file_name,
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
from rmgr.errors import UsageError
from rmgr.model.base.ids import MAX_NUMBER
from rmgr.model.base.resources import MOST, Capacity, NodeAttributes, Request
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.amendments import MOST_CHANGES, fault_of
from rmgr.model.tasks.array import parse_array
from rmgr.model.tasks.block import (
    MAX_TASKS,
    MOST_ATTEMPTS,
    MOST_TASKS,
    NO_SEQ,
    PRIORITY_RANGE,
    BlockData,
    BlockKey,
    KeyedPayload,
    PastAttempt,
    Seal,
)
from rmgr.model.tasks.outcome import Call, FailedRange, Fragment, FragmentSeal, Outcome
from rmgr.model.tasks.placing import FROM_CHECKPOINT, FROM_START, MPI, ONCE, RANKS, Allocation, NodeHold, Reserved, Rigid
from rmgr.model.tasks.submission import (
    Amendment,
    Command,
    Condition,
    Dependency,
    OnDisconnect,
    Paged,
    Phase,
    PythonEnvironment,
    Submission,
    Tail,
    Terms,
    Upload,
    Work,
)

#: Bytes of one znode.
ZNODE_BYTES = 1 << 20
#: What a name of nine digits can say.
MOST_MIB = 999_999_999
MOST_CORES = 99_999
MOST_PROCESSES = 9_999_999

_COUNT = whole(0, 1 << 31)
_INDEX = whole(0, MOST_TASKS - 1)
_TASKS = whole(0, MOST_TASKS)
SPAN = whole(0, 1 << 57)  # as `model/base/spans.py` says
#: Clocks are set back: what they tell apart may be negative, and counts for people only.
_BETWEEN = whole(-(1 << 57), 1 << 57)
NUMBER = whole(1, MAX_NUMBER)
_CORES = whole(1, MOST_CORES)
_MIB = whole(0, MOST_MIB)
_ATTEMPT = whole(1, MOST_ATTEMPTS)
_ANY_ATTEMPT = whole(0, MOST_ATTEMPTS)
PRIORITY = whole(-PRIORITY_RANGE, PRIORITY_RANGE)
_SEQ = whole(0, NO_SEQ)
_EXIT = optional(whole(-(1 << 31), 1 << 32))
WORD = text(1000)
LINE = text(10_000)
FILE = text(4096)
_PATH = file_name()
#: An answer of the store, or a program's last words, in one line; whole blocks of them fit a znode.
_ERROR = text(64 * 1024)
#: The longest list of names: nodes of a large machine, all ranges of a large cancel.
LONG = 100_000
SHA256 = words(r"[0-9a-f]{64}", "64 lower-case hex digits")
_SHA256 = optional(SHA256, "")
GUID = words(r"[A-Za-z0-9._-]{0,64}", "at most 64 letters, digits, '.', '_' and '-'")
_NAME = r"[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?"  # as `model/base/ids.py` says
NAME = words(_NAME, "a name of letters, digits, '.', '_' and '-', a letter or digit first and last, at most 64")
_NODE = optional(NAME, "")
#: A user's name becomes part of keys.
USER = words(r"[^/\0-\x1f\x7f]{1,255}", "a name of 1 to 255 characters without '/'")
RESOURCES = mapping(words(r"[A-Za-z][A-Za-z0-9._-]{0,63}", "letters, digits and . _ - after the first letter"), whole(0, MOST), 256)
FEATURES = many(text(255, 1), 1000)
_KEY = text(1000, 1)
_ROW = words(r"args/[0-9]{10}/[0-9]{10}/[^/\0]{1,200}", "a key args/NUMBER/FIRST/NAME")
_OUTCOMES_ROW = words(r"frag/[0-9]{10}/[^/\0]{1,200}", "a key frag/NUMBER/NAME")
#: Names below the work directory; whoever makes the file compares it once more with where it leads.
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
    """first and count of a block."""
    if record.first + record.count > MOST_TASKS:
        return FieldFault("count", record.count, f"at most {MOST_TASKS} tasks in all")
    return None


def _runs_something(record: Any) -> FieldFault | None:
    if record.work is Work.COMMAND and record.command is None and not record.spec_sha256:
        return FieldFault("command", None, "a command, in work of that kind")
    return None


def _is_amended(record: Any) -> FieldFault | None:
    return FieldFault("changes", record.changes, why) if (why := fault_of(record)) else None


def _has_words(record: Any) -> FieldFault | None:
    """A command of none, or without a name, is for nobody to start."""
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
        if first + count > MOST_TASKS:
            return FieldFault(f"ranges[{number}]", count, f"at most {MOST_TASKS} tasks in all")
    return None


def _whole_nodes(record: Any) -> FieldFault | None:
    if record.whole and len(record.whole) != len(record.shares):
        return FieldFault("whole", record.whole, f"cores of each of {len(record.shares)} nodes")
    return None


def _pairs(value: Any) -> FieldFault | None:
    """Ranges of tasks."""
    return _RANGES(value) or next(
        (FieldFault(f"[{at}]", item[1], f"at most {MOST_TASKS} tasks in all") for at, item in enumerate(value) if sum(item) > MOST_TASKS),
        None,
    )


_RANGES = many(row(_INDEX, whole(1, MOST_TASKS)), LONG)
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
BOOK.add(Dependency, condition=member(Condition), submission=NUMBER)
BOOK.add(Upload, name=_BELOW, sha256=SHA256, is_dir=flag)
BOOK.add(
    Command,
    _has_words,
    argv=many(text(ZNODE_BYTES), LONG),
    script_sha256=_SHA256,
    script_name=FILE,
    env=mapping(words(r"[^=\0]{1,4096}", "a name without '=' and NUL"), text(ZNODE_BYTES), 10_000),
    cwd=_PATH,
    out=_PATH,
    err=_PATH,
    stdin_sha256=_SHA256,
    uploads=many(BOOK.of(Upload), 10_000),
    input_files=many(row(_KEY, _BELOW), LONG),
    output_files=many(row(_KEY, _BELOW), LONG),
)
BOOK.add(
    PythonEnvironment,
    python=_PATH,
    version=text(64),
    cloudpickle=text(64),
    sys_path=many(FILE, 1000),
    modules=many(SHA256, 1000),
    initializer=_SHA256,
    worker_group=GUID,
    program=text(64),
)
BOOK.add(
    Rigid,
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
    restart=one_of(FROM_CHECKPOINT, FROM_START),
    launch=one_of(ONCE, RANKS, MPI),
    queue_class=WORD,
    checkpoint=flag,
    max_moves=whole(0, MOST_ATTEMPTS),
)
BOOK.add(
    Terms,
    priority=optional(PRIORITY),
    time_limit_us=optional(SPAN),
    memory_bytes=optional(whole(0, MOST_MIB << 20)),
    name=optional(WORD),
    begin_us=optional(SPAN),
    after=optional(many(BOOK.of(Dependency), 10_000)),
    features=optional(FEATURES),
    queue=optional(NAME),
    cores=optional(_CORES),
)
_SIGNATURE = words(r"(?:[0-9a-f]{32}:[0-9a-f]{128})?", "a key id and a signature")
BOOK.add(Amendment, number=_COUNT, by=USER, by_us=SPAN, is_operators=flag, terms=BOOK.of(Terms), signature=_SIGNATURE)
BOOK.add(
    Submission,
    _runs_something,
    _is_amended,
    id=NUMBER,
    name=WORD,
    user=USER,
    queue=NAME,
    work=member(Work),
    request=BOOK.of(Request),
    priority=PRIORITY,
    resubmit=flag,
    retries=_COUNT,
    backoff_us=SPAN,
    on_disconnect=member(OnDisconnect),
    after=many(BOOK.of(Dependency), 10_000),
    phase=member(Phase),
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
    command=optional(BOOK.of(Command)),
    python=optional(BOOK.of(PythonEnvironment)),
    function=_SHA256,
    account=WORD,
    host=WORD,
    grace_us=SPAN,
    rigid=optional(BOOK.of(Rigid)),
    ends_with_owner=flag,
    umask=whole(-1, 0o777),
    by=optional(USER, ""),
    by_us=SPAN,
    spec_sha256=_SHA256,
    entries=_SHA256,
    signature=_SIGNATURE,
    was=optional(BOOK.of(Terms)),
    changes=many(BOOK.of(Amendment), MOST_CHANGES),
)
BOOK.add(Tail, _reigns, next=_TASKS, complete=flag, enqueued=GUID, reigns=many(row(_TASKS, GUID), 10_000))
BOOK.add(Paged, base=_COUNT, counts=mapping(words("COMPLETED|FAILED|CANCELLED", "COMPLETED, FAILED or CANCELLED"), _TASKS, 3))

BOOK.add(
    BlockKey,
    _covers,
    priority=PRIORITY,
    seq=_SEQ,
    submission=NUMBER,
    first=_INDEX,
    count=whole(1, MAX_TASKS),
    attempt=_ATTEMPT,
    cores=_CORES,
    memory_mib=_MIB,
    user=words(r"(?:[a-z2-7]{6})?", "the tag of a user"),
)
BOOK.add(
    PastAttempt,
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
    Seal,
    key_id=text(64, 1),  # whose key, and whether that can be a key's name, says `adapters/identity/trust.py`
    first=_INDEX,
    count=whole(1, MAX_TASKS),
    not_after_s=SPAN,
    signature=blob(4096),
    proof=many(blob(64), 2 * MAX_TASKS),
)
BOOK.add(
    Allocation,
    _whole_nodes,
    shares=many(row(NAME, whole(1, MOST_PROCESSES)), LONG, least=1),
    threads=_CORES,
    memory_mib=_MIB,
    started_us=SPAN,
    planned_us=SPAN,
    whole=many(whole(0, 1 << 31), LONG),
    gang=optional(NAME, ""),
    generation=whole(0, 1 << 31),
    changes=whole(0, MOST_CHANGES),
)
BOOK.add(
    BlockData,
    function=_SHA256,
    resubmit=flag,
    retries=_COUNT,
    losses=_COUNT,
    failures=_COUNT,
    base=_INDEX,
    payloads=many(blob(ZNODE_BYTES), MAX_TASKS),
    row=optional(_ROW, ""),
    done=whole(0, (1 << MAX_TASKS) - 1),
    incarnation=SPAN,
    started=whole(0, MAX_TASKS),
    keyed=flag,
    serial=flag,
    claimed_us=SPAN,
    past=many(BOOK.of(PastAttempt), 64),
    stamp=GUID,
    seal=optional(BOOK.of(Seal)),
    allocation=optional(BOOK.of(Allocation)),
    stopping=LINE,
    story=_STORY,
    awaits=LINE,
    saving=LINE,
    answered=flag,
    moves=whole(0, MOST_ATTEMPTS),
)
BOOK.add(
    KeyedPayload,
    inputs=many(_KEY, LONG),
    outputs=many(_KEY, LONG),
    overwrite=flag,
    trust=many(text(255), LONG),
    claims_by=GUID,
    deeds=many(blob(ZNODE_BYTES), LONG),
)
BOOK.add(Call, function=_SHA256, payload=blob(ZNODE_BYTES), row=optional(_ROW, ""), at=whole(0, MAX_TASKS), keyed=flag)
BOOK.add(
    Outcome,
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
    outputs=whole(0, MOST_ATTEMPTS),
    attempt=_ANY_ATTEMPT,
    past=many(BOOK.of(PastAttempt), 64),
    value_sha256=optional(blob(32, 32)),
    helpers=many(NAME, LONG),
    story=_STORY,
    served_us=SPAN,
    turns=_COUNT,
    call=optional(BOOK.of(Call)),
)
BOOK.add(FragmentSeal, key_id=text(64, 1), signature=blob(64))
BOOK.add(
    Fragment,
    _ranges,
    node=_NODE,
    attempt=_ANY_ATTEMPT,
    base_us=SPAN,
    outcomes=many(BOOK.of(Outcome), LONG),
    row=optional(_OUTCOMES_ROW, ""),
    ranges=many(row(_FINAL, _INDEX, whole(1, MOST_TASKS)), LONG),
    seal=optional(BOOK.of(FragmentSeal)),
)
BOOK.add(
    FailedRange,
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
    Reserved,
    shares=many(row(text(100), whole(0, 1 << 31)), LONG),
    memory_mib=whole(0, 1 << 40),
    resources=many(row(text(255, 1), _COUNT), 1000),
)
BOOK.add(
    NodeHold,
    head=NAME,
    key=text(100, 1),
    cores=whole(0, 1 << 31),
    memory_mib=whole(0, 1 << 40),
    processes=_COUNT,
    whole=flag,
    gang=optional(NAME, ""),
    generation=whole(0, 1 << 31),
)
