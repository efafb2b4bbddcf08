"""A submission: what one `rmgr submit` or one TaskQueue creates, as recorded in its znode; for placed jobs with its shape (`Rigid`).

Array expressions, `1-100:2%8` and `1,3,5-9`, are read at the end: dense positions inside, the expression's numbers for people.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import chain, islice
from math import gcd
from typing import Any

from rmgr.errors import UsageError
from rmgr.model.base import MAX_NUMBER, MIB, Newer, Request, SpanUs, newer
from rmgr.model.block import BlockKey
from rmgr.model.units import counted

#: `Rigid.launch`: how the function of a TaskQueue is called.
ONCE, RANKS, MPI = "", "ranks", "mpi"
#: `Rigid.restart`.
FROM_CHECKPOINT, FROM_START = "checkpoint", "start"


class Phase(StrEnum):
    """State of a submission's record (the state of its tasks is derived)."""

    OPEN = "OPEN"
    HELD = "HELD"  #: no gate: none of its blocks may be claimed
    CANCELLED = "CANCELLED"
    CLOSED = "CLOSED"  #: complete, every task final, summary in the store


class Work(StrEnum):
    """Kind of the submission's tasks."""

    PYTHON = "python"
    COMMAND = "command"


class Condition(StrEnum):
    """Condition under which a dependency is met."""

    OK = "ok"  #: all of it COMPLETED
    ANY = "any"  #: ended in any way
    FAIL = "fail"  #: a task FAILED or was lost, or it was CANCELLED after a task began


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A wait for the end of another submission."""

    condition: Condition
    submission: int
    newer: Newer = newer()


class OnDisconnect(StrEnum):
    """What happens to running work while its node has no contact."""

    KEEP = "keep"  #: runs on; its COMPLETE decides
    EXCLUSIVE = "exclusive"  #: killed before it can run elsewhere


#: Most bytes of one upload (each node that runs the work keeps it), and most files and directories in it.
MAX_UPLOAD_BYTES = 256 * 1024 * 1024
MAX_UPLOAD_MEMBERS = 100_000
#: Most bytes of one function with all that it holds: each worker that runs it loads it. Larger data are arguments.
MAX_FUNCTION_BYTES = 256 * 1024 * 1024
#: Most bytes of an initializer with its arguments, which are in a message to each worker.
MAX_INITIALIZER_BYTES = 60 * 1024 * 1024
#: Most bytes of a packed module.
MAX_MODULE_BYTES = 64 * 1024 * 1024
#: Most bytes of a file's whole path, and of one part of it: limits of Linux.
MAX_PATH_BYTES, MAX_STEP_BYTES = 4095, 255
#: Most bytes of a script, as for sbatch.
MAX_SCRIPT_BYTES = 4 * 1024 * 1024


def path_fault(path: str) -> str:
    """Returns why no file can have this name, as the end of a sentence; "" if one can."""
    if "\0" in path:
        return "has a NUL character"
    try:
        data = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(data) > MAX_PATH_BYTES:
        return f"has {len(data)} bytes, and at most {MAX_PATH_BYTES} are possible"
    longest = max(map(len, data.split(b"/")))
    return f"has a step of {longest} bytes, and at most {MAX_STEP_BYTES} are possible" if longest > MAX_STEP_BYTES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file or directory shipped into the work directory: `sha256` of a stored archive, unpacked as `name`."""

    name: str
    sha256: str
    is_dir: bool = False
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A shell command or script; the same for every task of the submission.

    Either `argv`, or `script_sha256` (a stored script, executed by its #! line or /bin/sh) with `argv` as its
    arguments. `out`/`err`: file names on the node, with placeholders. `named_only`: a node without their directories fails the work; else
    its output goes to the data store alone, and may be fetched. `stdin_sha256`: stored bytes, else /dev/null.
    """

    argv: tuple[str, ...] = ()
    script_sha256: str = ""
    script_name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    out: str = ""
    err: str = ""
    named_only: bool = False
    stdin_sha256: str = ""
    uploads: tuple[Upload, ...] = ()
    input_files: tuple[tuple[str, str], ...] = ()  #: (key in the data store, file name in the work directory)
    output_files: tuple[tuple[str, str], ...] = ()  #: (key, file name)
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEnvironment:
    """Requirements on a worker process for the functions of a submission: one key, one kind of worker."""

    python: str = ""  #: interpreter; empty = the Starter's own
    version: str = ""  #: client's Python "3.11", checked by the worker (bytecode travels)
    cloudpickle: str = ""  #: client's "3.1.1", checked by the worker
    sys_path: tuple[str, ...] = ()  #: client directories that nodes may have, too; "" = its installed ones
    argv: tuple[str, ...] = ()  #: the client's `sys.argv`, which its functions find
    #: The client's filters of warnings (`runner/filters.py`), () = as an interpreter begins.
    warnings: tuple[tuple[str, str, str, str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()  #: what the client has set of its interpreter (`runner/settings.py`)
    modules: tuple[str, ...] = ()  #: sha256 of shipped zip archives (store family mod/)
    initializer: str = ""  #: sha256 of a stored (function, args) pickle, run once per worker (Executor)
    worker_group: str = ""  #: workers are shared only within the group (an Executor with an initializer)
    program: str = ""  #: client process of its functions: a worker serves only one program
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rigid:
    """Shape of a placed request; cores and memory of `Request` are those of one process.

    nodes: exact number of nodes, with processes spread evenly; 0 = wherever they fit. exclusive: no other job on its nodes. nodelist: only
    on these nodes; exclude: on none of these. begin_us: not before this time (us since the epoch), 0 = at once.
    kill_on_bad_exit: all ranks end when one of them fails. checkpoint_every_us: 0 = only on request. checkpoint_grace_us: how long saving
    its state may take, unless the request says otherwise. restart: an attempt begins with the contents of the last checkpoint
    (`FROM_CHECKPOINT`), or always from the start (`FROM_START`: nothing is stored). launch, for functions: called once, on
    the first node (`ONCE`), in each process, with the variables of a rank (`RANKS`), or in each process of an MPI program (`MPI`).
    queue_class: the queue class that its user named; "" = the policy chooses.
    checkpoint: its program saves its state on request, so policies may move it. max_moves: how often they may, 0 = without
    limit.
    """

    processes: int = 1
    nodes: int = 0
    exclusive: bool = False
    nodelist: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    begin_us: SpanUs = 0
    kill_on_bad_exit: bool = False
    checkpoint_every_us: SpanUs = 0
    checkpoint_grace_us: SpanUs = 30_000_000
    restart: str = "checkpoint"
    launch: str = ONCE
    queue_class: str = ""
    checkpoint: bool = False
    max_moves: int = 0
    newer: Newer = newer()

    def saves(self, answered: bool = False) -> bool:
        """Returns whether a move loses nothing. answered: its program has answered a request to save its state before."""
        return self.restart != FROM_START and (self.checkpoint or self.checkpoint_every_us > 0 or answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms that may change after the submission (`rmgr update`); None = no change.

    time_limit_us, begin_us: 0 = none. after: () = it no longer waits for others.
    """

    priority: int | None = None
    time_limit_us: SpanUs | None = None
    memory_bytes: int | None = None
    name: str | None = None
    begin_us: SpanUs | None = None
    after: tuple[Dependency, ...] | None = None
    features: tuple[str, ...] | None = None
    queue: str | None = None
    cores: int | None = None
    newer: Newer = newer()

    def said(self) -> dict[str, Any]:
        """Returns the given terms, in the order of the fields."""
        return {one: value for one in TERMS if (value := getattr(self, one)) is not None}


#: Names of the terms.
TERMS = tuple(one.name for one in fields(Terms) if one.name != "newer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """One change of a submission's terms, beside what its user signed (`coord/decisions/changing.py`).

    number: 1, 2, ... in its submission, so that amendments cannot be exchanged. is_operators: made by an operator, who may change
    only priority and time limit. signature: secured clusters: "key id:hex" of its maker.
    """

    number: int
    by: str
    by_us: SpanUs
    is_operators: bool = False
    terms: Terms
    signature: str = ""
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The record of `/subs/<id//1000>/<id>`: written at SUBMIT, changed only by GATE (phase), UPDATE (terms) and CLOSE.

    Times are microseconds since the epoch (shown to people, never used in a decision).
    Per-block overrides of `resubmit` and `retries` are in the blocks.
    """

    format: int = 1
    id: int
    name: str
    user: str
    queue: str
    work: Work
    request: Request = Request()
    priority: int = 0
    resubmit: bool = True
    retries: int = 0
    backoff_us: SpanUs = 0
    on_disconnect: OnDisconnect = OnDisconnect.KEEP
    after: tuple[Dependency, ...] = ()
    phase: Phase = Phase.OPEN
    reason: str = ""  #: of the phase: USER_HOLD, OPERATOR_HOLD, DEPENDENCY, USER_CANCEL, ...
    reason_detail: str = ""  #: the user's words with a cancel
    owner: str = ""  #: guid of the Submitter that looks after it; empty = the leader does
    token: str = ""  #: from the user: the same token gives the same submission again; "" = none
    nonce: str = ""  #: 32 hexadecimal digits, drawn for this submission: its user signs them in place of `id`
    signed_s: int = 0  #: time of signing by the user's clock (s since the epoch)
    submitted_us: int = 0
    closed_us: int = 0
    array: str = ""  #: array expression; empty = indices are shown unchanged
    max_running: int = 0  #: `%8` of an array, `max_workers` of an Executor: most slots in use; 0 = no cap
    max_fails: int = -1  #: once more tasks than this have FAILED, the rest is cancelled; -1 = never
    command: Command | None = None
    python: PythonEnvironment | None = None
    function: str = ""  #: sha256 of a TaskQueue's function, for clients that attach; blocks have their own
    account: str = ""
    host: str = ""  #: where it was submitted
    grace_us: SpanUs = 5_000_000  #: between SIGTERM and SIGKILL at the time limit
    rigid: Rigid | None = None  #: of placed jobs
    ends_with_owner: bool = False  #: an Executor: nobody can attach, so the leader declares it complete soon after its owner is gone
    umask: int = -1  #: of the submitting process, for files that its work creates; -1 = of the node's spawners, 0o022
    by: str = ""  #: who held or cancelled it, if not its user
    by_us: SpanUs = 0  #: when that was
    spec_sha256: str = ""  #: reserved: never written, and refused if present
    entries: str = ""  #: sha256 of the stored lines of `--each-line`, for running tasks again
    signature: str = ""  #: secured clusters: "key id:hex" of the submitter, over all that may run again (`coord/seal.py`)
    was: Terms | None = None  #: signed values of the terms that were changed; None = all terms are as signed
    changes: tuple[Amendment, ...] = ()  #: later changes, oldest first: the fields above have their result
    newer: Newer = newer()

    @property
    def is_raised(self) -> bool:
        """Whether an operator set its current priority above its user's. Cost: 0.1 us without changes."""
        if not self.changes:
            return False
        last = next((one for one in reversed(self.changes) if one.terms.priority is not None), None)
        mine = self.was.priority if self.was is not None and self.was.priority is not None else self.priority
        return last is not None and last.is_operators and self.priority > mine

    @property
    def queues(self) -> tuple[str, ...]:
        """The current queue and the former ones, where waiting blocks may still be until the leader has moved them."""
        if not self.changes:
            return (self.queue,)
        return tuple(dict.fromkeys((self.queue, *self._ever("queue"))))

    @property
    def memories(self) -> tuple[int, ...]:
        """Bytes of memory that it has ever asked for, the current first: names of its blocks have one of these."""
        return (self.request.memory_bytes, *self._ever("memory_bytes"))

    def _ever(self, name: str) -> list[Any]:
        """Returns all values of a term, as signed and by amendments; [] if it was never changed."""
        said = [getattr(one, name) for one in (self.was, *(change.terms for change in self.changes)) if one is not None]
        return [value for value in said if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """`/subs/../tail`: how far the submission has grown; its version is the fence of ENQUEUE, used only by the owner."""

    next: int = 0
    complete: bool = False
    enqueued: str = ""  #: guid of the last ENQUEUE: makes the bytes unique, so that they prove it
    reigns: tuple[tuple[int, str], ...] = ()  #: (first index, owner's guid): which owner submitted what, one entry per owner
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """Data of `/subs/../done`: fragments below `base` are in store pages; counts of the paged outcomes, by state."""

    base: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    newer: Newer = newer()


# -- terms as submitted, and as amended ----------------------------------------------------------------------------------------


#: Most amendments of one submission: each is in its record, and raises the version of its gate by one.
MOST_CHANGES = 20
#: Terms that an operator may change of others' work.
OF_OPERATORS = frozenset({"priority", "time_limit_us"})


def terms_of(record: Submission) -> Terms:
    """Returns all terms of a record as they are. begin_us: None if no leader places it, because it cannot wait for a time."""
    request, rigid = record.request, record.rigid
    return Terms(
        priority=record.priority,
        time_limit_us=request.time_limit_us,
        memory_bytes=request.memory_bytes,
        name=record.name,
        begin_us=rigid.begin_us if rigid is not None else None,
        after=record.after,
        features=request.features,
        queue=record.queue,
        cores=request.cores,
    )


def with_terms(record: Submission, terms: Terms) -> Submission:
    """Returns the record with these terms in place of its own, otherwise unchanged."""
    said = terms.said()
    request = {name: said.pop(name) for name in ("time_limit_us", "memory_bytes", "features", "cores") if name in said}
    begin_us = said.pop("begin_us", None)
    rigid = record.rigid if record.rigid is None or begin_us is None else replace(record.rigid, begin_us=begin_us)
    return replace(record, request=replace(record.request, **request) if request else record.request, rigid=rigid, **said)


def as_signed(record: Submission) -> Submission:
    """Returns the record with the terms that its user submitted. Cost: nothing without changes."""
    if record.was is None and not record.changes:
        return record
    return replace(with_terms(record, record.was or Terms()), was=None, changes=())


def history_of(record: Submission) -> Iterator[tuple[Amendment, Submission, Submission]]:
    """Yields each amendment with the record before and after it, as far as terms are concerned; oldest first."""
    before = as_signed(record)
    for change in record.changes:
        after = with_terms(before, change.terms)
        yield change, before, after
        before = after


def as_started(record: Submission, number: int) -> Submission:
    """Returns the record for work started when it had `number` amendments: with the queue, cores and memory of then."""
    if number >= len(record.changes):
        return record
    _, then, _ = next(islice(history_of(record), number, None))
    request = then.request
    return with_terms(record, Terms(queue=then.queue, cores=request.cores, memory_bytes=request.memory_bytes))


def key_now(key: BlockKey, record: Submission) -> BlockKey:
    """Returns the key of a waiting block with its submission's current priority, cores and memory; its name has the original ones."""
    if not record.changes:
        return key
    cores, memory_mib = record.request.cores, -(-record.request.memory_bytes // MIB)
    if (key.priority, key.cores, key.memory_mib) == (record.priority, cores, memory_mib):
        return key
    return replace(key, priority=record.priority, cores=cores, memory_mib=memory_mib)


def fault_of(record: Submission) -> str:
    """Returns why the changes in a record are inconsistent, "" if not: its terms must be what they make of the signed ones.

    Cost: 0.2 us without changes, else 10 us per amendment.
    """
    if record.was is None and not record.changes:
        return ""
    if [change.number for change in record.changes] != list(range(1, len(record.changes) + 1)):
        return "amendments are numbered 1, 2, ..."
    last = as_signed(record)
    names: set[str] = set()
    for change, _, after in history_of(record):
        last = after
        names |= change.terms.said().keys()
        if change.is_operators and change.by != record.user and not change.terms.said().keys() <= OF_OPERATORS:
            return "an operator changes priority and time limit alone"
        if not change.is_operators and change.by != record.user:
            return "who changes others' work does so as an operator"
    if record.was is None or record.was.said().keys() != names or not names:
        return "what was signed of the terms that were changed stands beside them"
    return "" if terms_of(last) == terms_of(record) else "terms are those that the amendments make"


# -- names of output files: %j job, %a array index, %t attempt, %x name, %N node, %% a percent sign -----------------------------

# The node that runs a task expands them, and so does the command that fetches its files.
_PLACEHOLDER = re.compile(r"%([jatxN%])")
#: What other systems have as placeholders, too: %A, %4j.
_ANY = re.compile(r"%\d*[A-Za-z%]")


def expand_output_name(pattern: str, *, job: int, index: int, attempt: int, name: str, node: str) -> str:
    """Returns `pattern` for one attempt of one task, with its placeholders replaced. index: the array index."""
    if "%" not in pattern:
        return pattern
    values = {"j": str(job), "a": str(index), "t": str(attempt), "x": name.replace("/", "_"), "N": node, "%": "%"}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], pattern)


def has_own_name(pattern: str) -> bool:
    """Returns whether each task of a submission has a file of its own."""
    return any(match[1] == "a" for match in _PLACEHOLDER.finditer(pattern))


def unknown_placeholder(pattern: str) -> str:
    """Returns the first placeholder of another system, which stays as it is here; "" if there is none."""
    return next((match[0] for match in _ANY.finditer(pattern) if not _PLACEHOLDER.fullmatch(match[0])), "")


# -- arrays of tasks -----------------------------------------------------------------------------------------------------------


#: Most tasks of one array.
MAX_TASKS = 10_000_000

_RANGE = re.compile(r"^(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?$")
#: Most pairs of ranges whose bounds overlap.
_MOST_PAIRS = 50_000
_HINT = "arrays look like 1-100, 0-99:2, 1,3,5-9, with %8 at the end for at most 8 at a time"


@dataclass(frozen=True, slots=True)
class Array:
    """Parts of an array expression as ranges, in the order written, without repeated numbers.

    max_running: most slots in use (`%8`), 0 = no cap.
    """

    parts: tuple[range, ...]
    starts: tuple[int, ...]  #: position of the first number of each part
    max_running: int = 0

    def __len__(self) -> int:
        return self.starts[-1] + len(self.parts[-1])

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers, in the order written."""
        return chain.from_iterable(self.parts)

    def index_at(self, position: int) -> int:
        """Returns the number of the task at dense `position`. Raises IndexError. Cost: O(log parts)."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of an array of {len(self)}")
        part = bisect_right(self.starts, position) - 1
        return self.parts[part][position - self.starts[part]]

    def position_of(self, index: int) -> int | None:
        """Returns the dense position of task number `index`, None if the array lacks it. Cost: O(parts)."""
        for start, part in zip(self.starts, self.parts, strict=True):
            if index in part:
                return start + part.index(index)
        return None


def parse_array(text: str) -> Array:
    """Parses an array expression. Raises UsageError for a malformed, empty or too large one, or one with a repeated number."""
    body, percent, cap = text.strip().partition("%")
    if percent and (not cap.isascii() or not cap.isdigit() or int(cap) < 1):
        raise UsageError(f"{text!r} is not an array: {cap!r} after % is not a number from 1", hint=_HINT)
    parts = tuple(_part(text, piece.strip()) for piece in body.split(","))
    starts, total = [], 0
    for part in parts:
        starts.append(total)
        total += len(part)
    if total > MAX_TASKS:
        raise UsageError(f"{text!r} has {counted(total, 'task')}; the limit is {MAX_TASKS:,}", hint="submit it in parts")
    _refuse_repeats(text, parts)
    return Array(parts, tuple(starts), int(cap) if percent else 0)


def shown_index(array: str, position: int) -> int:
    """Returns the number that people see for the task at `position` of a submission with this array expression ("" = none)."""
    return parse_array(array).index_at(position) if array else position


def _part(text: str, piece: str) -> range:
    match = _RANGE.match(piece) if piece.isascii() else None
    if match is None:
        raise UsageError(f"{text!r} is not an array: {piece!r} is not a number or a range", hint=_HINT)
    first, last = int(match[1]), int(match[2] or match[1])
    step = int(match[3] or 1)
    if last < first:
        raise UsageError(f"{text!r} is not an array: the range {piece!r} runs backwards", hint=_HINT)
    if step < 1:
        raise UsageError(f"{text!r} is not an array: the step of {piece!r} is 0", hint=_HINT)
    if last > MAX_NUMBER:
        raise UsageError(f"{text!r} is not an array: {last} is larger than {MAX_NUMBER}", hint=_HINT)
    return range(first, last + 1, step)


def _refuse_repeats(text: str, parts: tuple[range, ...]) -> None:
    """Raises UsageError for repeated numbers. Cost: O(parts log parts), plus 1 us per overlapping pair: anybody may send an array."""
    ordered = sorted(parts, key=lambda part: (part[0], part[-1]))
    pairs = 0
    for at, part in enumerate(ordered):
        for behind in range(at + 1, len(ordered)):
            other = ordered[behind]
            if other[0] > part[-1]:
                break
            pairs += 1
            if pairs > _MOST_PAIRS:
                raise UsageError(f"{text[:80]!r} is not an array: too many of its ranges overlap", hint="submit it in parts")
            twice = _common(part, other)
            if twice is not None:
                raise UsageError(f"{text!r} is not an array: {twice} stands in it twice", hint=_HINT)


def _common(one: range, other: range) -> int | None:
    """Returns the first number in both ranges, None if there is none."""
    shared = gcd(one.step, other.step)
    if (other[0] - one[0]) % shared:
        return None
    turns = other.step // shared
    steps = (other[0] - one[0]) // shared * pow(one.step // shared, -1, turns) % turns if turns > 1 else 0
    found, every = one[0] + steps * one.step, one.step * turns
    if found < other[0]:
        found += -(-(other[0] - found) // every) * every
    return found if found <= min(one[-1], other[-1]) else None
