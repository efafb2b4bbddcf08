"""A block: a range of tasks of one submission that waits, moves and is claimed as one znode. And what became of its tasks.

The name of its znode (`BlockKey`) says what it is and what it needs; its data (`BlockData`) carries the arguments. An `Outcome` is what
became of an attempt, a `Fragment` what one commit says of many. MessagePack structs, because millions of them pass.

A placed job is a task of a submission in a queue with `dispatch = place`: a block of one task that only the leader may give to nodes. Where
it has put one attempt is the block's `Allocation`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from rmgr.model.base.ids import Attempt, BetweenUs, Newer, NodeName, Number, SpanUs, newer
from rmgr.model.base.states import Reason, State

#: Most tasks of one block, and most bytes of arguments that ride inside it.
MAX_TASKS = 256
MAX_INLINE_BYTES = 12 * 1024
#: Keys of one keyed task, inputs and outputs together, and bytes that they have as its arguments: every node that meets it decodes them.
MAX_KEYS, MAX_KEYED_BYTES = 100_000, 8 * 1024 * 1024
#: Output keys that a Submitter leaves to the node that runs their task: their deeds travel in one znode.
MAX_LEFT_KEYS = 8

PRIORITY_RANGE = 1_000_000
#: Tasks of one submission: more than any can have, since ZooKeeper keeps 100 bytes of each.
MOST_TASKS = 1 << 26
#: Attempts of one task: keys of the store have digits for so many.
MOST_ATTEMPTS = 99_999

#: Sentences of `BlockData.story`, and characters of one.
MAX_STORY, STORY_CHARS = 8, 200

#: Tasks of one submission that a scheduler's job id has room for.
MAX_INDEX = 1 << 20

#: `seq` of a block that has not stood in `pending` yet (created held); releasing it gives it a place in the queue.
NO_SEQ = 9_999_999_999


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The name of a block's znode, in its sort order: (priority first, then arrival, then index).

    priority: -1,000,000..1,000,000, higher first. seq: the queue's own counter, kept through requeue, return and
    split. attempt: the number that the next (or present) attempt of its tasks has. memory_mib: 0 = not counted.
    user: tag of the user (`paths.user_tag`), a hint for who has not read the record; "" = the name does not say it.
    """

    priority: int
    seq: int
    submission: int
    first: int
    count: int
    attempt: int
    cores: int
    memory_mib: int
    user: str = ""

    @property
    def end(self) -> int:
        """One past the last index."""
        return self.first + self.count

    def sort_key(self) -> tuple[int, int, int]:
        """Order in which blocks are claimed."""
        return (-self.priority, self.seq, self.first)


class PastAttempt(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An attempt that ended FAILED and was followed by another: what `rmgr show` tells of it (bounded, last 8)."""

    attempt: Attempt
    node: NodeName
    reason: Reason
    exit_code: int | None = None
    started_us: SpanUs = 0
    ended_us: SpanUs = 0
    error: str = ""
    cpu_us: SpanUs = 0  #: and memory: of attempts that ended by themselves, or gave their nodes up
    max_rss_kib: SpanUs = 0


class Seal(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Signature of a block by the user who submitted it (`coord/seal.py` says of what).

    key_id: of the signer. first, count: the block as it was signed; a part of it keeps them. not_after_s: seconds since
    the epoch after which it starts nothing. signature: Ed25519, 64 bytes. proof: what a part needs to be recognised.
    """

    key_id: str
    first: int
    count: int
    not_after_s: int
    signature: bytes = b""
    proof: tuple[bytes, ...] = ()


class Allocation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Nodes of one attempt of a job. shares: (node, processes), the head first; on every node processes x threads cores.

    threads: cores of one process. memory_mib: of one process, 0 = not counted. started_us: when the leader placed it (its clock).
    planned_us: how long it was planned for, 0 = no limit. whole: of a job that has its nodes for itself: all cores of each node, in the
    order of `shares`; it has their other resources, too, but of the memory what it asked for. gang: it runs in the slots that
    `/gangs/<gang>` gives it, and stands still in others; "" = in none. generation: of that record, by which it was placed: an earlier
    one may have the attempt on other cores. changes: amendments of its submission's record, by which it was placed: its node reads that
    one, or a later one.
    """

    shares: tuple[tuple[str, int], ...]
    threads: int
    memory_mib: int = 0
    started_us: int = 0
    planned_us: int = 0
    whole: tuple[int, ...] = ()
    gang: str = ""
    generation: int = 0
    changes: int = 0

    @property
    def cores(self) -> tuple[int, ...]:
        """On each node, in the order of `shares`."""
        return self.whole or tuple(count * self.threads for _, count in self.shares)

    @property
    def head(self) -> str:
        """The node that runs its script and commits its end."""
        return self.shares[0][0]

    @property
    def helpers(self) -> tuple[tuple[str, int], ...]:
        """The other nodes."""
        return self.shares[1:]

    @property
    def processes(self) -> int:
        """On all nodes."""
        return sum(count for _, count in self.shares)


class BlockData(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Data of a block, waiting or claimed.

    function: sha256 of the function of all its tasks ("" for a command). payloads[i] belongs to index base + i; empty
    for tasks without arguments. row: store key of the payloads when they do not fit (a MessagePack list of bytes).
    losses, failures: how often its tasks were lost while alone, and failed by themselves (the retry rule counts).
    done: bit i = index first + i has its outcome committed (claimed blocks only). incarnation: of the claiming node.
    started: indices below first + started were handed to workers (advisory: what SPLIT must leave).
    keyed: payloads are encoded `KeyedPayload`s. serial: its tasks run one after another in one slot and it is never
    taken in part nor split (a cap on slots in flight). claimed_us: wall clock of the claim, for people.
    past: attempts that all its tasks have behind them. stamp: random, set by the writer: makes the bytes of each
    change unique, so that they prove it. seal: the user's signature, None in an open cluster. allocation: where the leader
    has put a placed job (claimed blocks of place queues only). stopping: why its attempt is being given up, "" = it is not
    (such blocks only). story: what became of its checkpoints, for people, of all attempts; the last `MAX_STORY`.
    awaits: of a placed job that has not begun: the nodes that its start waits for, and why; "" = nothing was said of it (such blocks only).
    saving: how far the request to save its state is that its program has now, "" = it has none (such blocks only). answered: its program
    has answered such a request once, in whatever attempt. moves: how often a policy has moved it.
    """

    function: str = ""
    resubmit: bool = True
    retries: int = 0
    losses: int = 0
    failures: int = 0
    base: int = 0
    payloads: tuple[bytes, ...] = ()
    row: str = ""
    done: int = 0
    incarnation: int = 0
    started: int = 0
    keyed: bool = False
    serial: bool = False
    claimed_us: int = 0
    past: tuple[PastAttempt, ...] = ()
    stamp: str = ""
    seal: Seal | None = None
    allocation: Allocation | None = None
    stopping: str = ""
    story: tuple[str, ...] = ()
    awaits: str = ""
    saving: str = ""
    answered: bool = False
    moves: int = 0


class KeyedPayload(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of a task in the keyed form: keys in the data store, in order. trust: users whose pickles it loads.

    claims_by: guid of the Submitter that has left the claim of the output keys to whoever runs the task; "" = they are claimed.
    deeds: then, in a secured cluster: of the pointer under each output key, made by the user.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    overwrite: bool = False
    trust: tuple[str, ...] = ()
    claims_by: str = ""
    deeds: tuple[bytes, ...] = ()


def pending_indices(key: BlockKey, done: int) -> list[int]:
    """Indices of the block without a committed outcome, ascending. Cost: O(count)."""
    return [key.first + i for i in range(key.count) if not done >> i & 1]


# -- outcomes, and the fragments in which they are committed -------------------------------------------------------------------


#: Bytes of outcomes that ride inside a fragment's znode; above, they are one store row.
MAX_INLINE_OUTCOMES = 12 * 1024
#: A single value above this goes to a store row of its own, however small its fragment is.
MAX_INLINE_VALUE = 8 * 1024
#: Store key of outcomes (`coord/protocol/keys.py`), "" = they are inline.
Row: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(?:frag/[0-9]{1,10}/[^/\0]{1,200})?\Z")]
#: Begins the error of a START_FAILED outcome whose worker could not be made because its initializer raised.
INITIALIZER_FAILED = "initializer"


class Call(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a call was that FAILED, for who runs it again. function: its sha256. payload: its arguments, where they came with its block.

    row, at: else the row of the store, and which of those in it. keyed: they are an encoded `KeyedPayload`.
    """

    function: str
    payload: bytes = b""
    row: str = ""
    at: Number = 0
    keyed: bool = False


class Outcome(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """End of one attempt of one task; trailing defaults may be left out (`coord.records.brief`).

    started_us: since the fragment's `base_us`. elapsed_us: run time. value: result bytes inline (empty: none or in a
    row). pickled: encoding of the value (else raw bytes). value_size: bytes of the value in its row, -1 = inline.
    error: "Type: message" in one line. log: the last part of its output, inline, (stdout, stderr) tails.
    log_parts: how many parts of (stdout, stderr) lie in the store before the inline rest.
    outputs: number of keyed output values in rows. value_sha256: of the bytes of the value in its row.
    helpers: of a placed job: its nodes beside the one that tells this. story: of its checkpoints (`BlockData.story`).
    served_us, turns: of one that shared its cores in time: for how long it had them, in how many turns.
    call: of a function that FAILED on a node.
    """

    index: Number
    state: State = State.COMPLETED
    started_us: BetweenUs = 0
    elapsed_us: BetweenUs = 0
    value: bytes = b""
    pickled: bool = True
    cpu_us: SpanUs = 0
    max_rss_kib: SpanUs = 0
    reason: Reason = Reason.NONE
    exit_code: int | None = None
    value_size: BetweenUs = -1
    error: str = ""
    log: tuple[bytes, bytes] = (b"", b"")
    log_parts: tuple[Number, Number] = (0, 0)
    outputs: Attempt = 0
    attempt: Attempt = 0  #: 0 = the fragment's
    past: tuple[PastAttempt, ...] = ()
    value_sha256: bytes | None = None
    helpers: tuple[NodeName, ...] = ()
    story: tuple[str, ...] = ()
    served_us: SpanUs = 0
    turns: Number = 0
    call: Call | None = None


def has_begun(outcome: Outcome) -> bool:
    """Its attempt ran, as far as that is known: one that was cancelled in its node's hands took no time."""
    return outcome.state is not State.CANCELLED or outcome.elapsed_us > 0 or bool(outcome.past)


class FragmentSeal(msgspec.Struct, frozen=True, array_like=True):
    """Signature of a fragment by the Starter that made it (`coord/seal.py` says of what): key id, and 64 bytes of Ed25519."""

    key_id: str
    signature: bytes


class Fragment(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Outcomes committed by one multi: data of `/subs/../done/r-<seq>`.

    node: where they ran ("" for outcomes decided by a Submitter or the leader). attempt: of all its tasks unless an
    outcome says otherwise. base_us: microseconds since the epoch, 0 = none of it began. row: store key of the encoded outcomes when they do
    not fit, whose name ends in the SHA-256 of its bytes; `ranges` ((state, first, count) runs) then say what is in it.
    seal: of the Starter, over all that is written before it: it stays the last field, new facts go into the outcomes.
    """

    node: NodeName = ""
    attempt: Attempt = 1
    base_us: SpanUs = 0
    outcomes: tuple[Outcome, ...] = ()
    row: Row = ""
    ranges: tuple[tuple[State, Number, Number], ...] = ()
    seal: FragmentSeal | None = None


class FailedRange(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Attempts that ended FAILED and wait for the resubmit rule: data of `/subs/../failed/<first>.<count>.<attempt>`.

    queue, seq, priority, cores, memory_mib: where its block stood. data: the block's data (arguments, counters).
    backoff_us: how long to wait before it runs again (counted by whoever acts, from when it sees the record).
    outcome fields: reason, exit_code, error, node, times of the attempt, for `rmgr show`.
    """

    queue: str
    seq: int
    priority: int
    cores: int
    memory_mib: int
    reason: Reason
    block: bytes  #: encoded BlockData
    node: str = ""
    backoff_us: int = 0
    exit_code: int | None = None
    error: str = ""
    started_us: int = 0
    ended_us: int = 0
    log: tuple[bytes, bytes] = (b"", b"")
    log_parts: tuple[int, int] = (0, 0)
    cpu_us: int = 0
    max_rss_kib: int = 0
    alone: bool = True


# -- placed jobs: holds and promises, requests about those that run, names ---------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHold:
    """`/holds/<node>/<submission>.<index>.<attempt>`: a job that runs elsewhere has these cores here; its Starter never pulls into them.

    head: the node that runs the job. key: name of its block there. The hold goes when that block is gone.
    cores: of its processes; whole: it has all of the node's, and all other resources. gang, generation: as those of the job's
    allocation.
    """

    head: str
    key: str
    cores: int
    memory_mib: int = 0
    processes: int = 0
    whole: bool = False
    gang: str = ""
    generation: int = 0
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """`/holds/<node>/r-<submission>.<index>`: cores that a waiting job was promised here; the Starter starts nothing else on them.

    shares: (run, cores): they are the waiting job's from the commit on that ends this run (`<submission>.<index>.<attempt>`); "" in place
    of a run that had ended when this was written. Nothing is written when it ends: that its block is gone says it. memory_mib, resources
    (name, pieces): what the waiting job will use on these cores. The record goes with the commit that places the job, or when its promise
    does.
    """

    shares: tuple[tuple[str, int], ...] = ()
    memory_mib: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    newer: Newer = newer()


def story_line(words: str) -> str:
    """Words as a sentence of a story: of what is too long the middle is left out, because its end says why."""
    half = STORY_CHARS // 2
    return words if len(words) <= STORY_CHARS else f"{words[: half - 3]}...{words[-half:]}"


def run_label(submission: int, index: int, attempt: int) -> str:
    """One attempt of a job, as `Reserved.shares` and the names of holds have it."""
    return f"{submission}.{index}.{attempt}"


def job_id(submission: int, index: int) -> int:
    """The scheduler's id of a task: ids ascend in the order of submission. Raises: ValueError for an index too large."""
    if not 0 <= index < MAX_INDEX:
        raise ValueError(f"task {submission}_{index}: a placed submission has at most {MAX_INDEX} tasks")
    return submission * MAX_INDEX + index


def job_label(submission: int, index: int) -> str:
    """`42`, or `42_7` of the tasks behind its first."""
    return f"{submission}_{index}" if index else str(submission)


def task_of(job: int) -> tuple[int, int]:
    """(submission, index) of a scheduler's id."""
    return divmod(job, MAX_INDEX)


class StopKind(StrEnum):
    """Kind of a request about placed jobs."""

    CHECKPOINT = "checkpoint"  #: to save its state, and go on
    MIGRATE = "migrate"  #: to save its state, and to go on elsewhere
    VACATE = "vacate"  #: the same, of every job with a part on a drained node


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """`/requests/<guid>`: something is asked of a placed job that runs (`submission`, `index`), or of all those on `node`.

    attempt: that was seen to run, 0 = whichever does; one that is over has moved already. to: node of the next start, "" = any other.
    grace_us: 0 = as the job says. detail: told by it.
    done: (submission, index, what became of it); left: (submission, index, why it goes on). error, code, hint: of the request as a whole.
    """

    format: int = 1
    kind: StopKind
    submission: int = 0
    index: int = 0
    attempt: int = 0
    to: str = ""
    node: str = ""
    grace_us: int = 0
    detail: str = ""
    answered: bool = False
    done: tuple[tuple[int, int, str], ...] = ()
    left: tuple[tuple[int, int, str], ...] = ()
    error: str = ""
    code: str = ""
    hint: str = ""


# -- ranges of tasks ---------------------------------------------------------------------------------------------------------


def runs(indices: list[int]) -> list[tuple[int, int]]:
    """Ascending indices as (first, count) runs. Cost: O(n)."""
    out: list[tuple[int, int]] = []
    for index in indices:
        if out and out[-1][0] + out[-1][1] == index:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((index, 1))
    return out


def ranges_of(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """3 4 5 9, in whatever order -> (3, 3), (9, 1)."""
    return tuple(runs(sorted(set(indices))))


class TaskRanges:
    """Positions of tasks that are asked for: those of `ranges` (first, count) below `end`, at the cost of the ranges."""

    __slots__ = ("_firsts", "_stops", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]], end: int) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        at = 0
        for first, count in sorted(ranges):
            start, stop = max(first, at), min(first + count, end)
            if start >= stop:
                continue
            if self._stops and start == at:
                self._stops[-1] = stop
            else:
                self._firsts.append(start)
                self._stops.append(stop)
            at = stop
        self.count = sum(self._stops) - sum(self._firsts)

    def ranges(self) -> list[tuple[int, int]]:
        """(first, count), in order, none beside another."""
        return [(first, stop - first) for first, stop in zip(self._firsts, self._stops, strict=True)]

    def within(self, first: int, end: int) -> list[int]:
        """Those from `first` to below `end`. Cost: O(log ranges + end - first)."""
        found: list[int] = []
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] < end:
            found += range(max(first, self._firsts[at]), min(end, self._stops[at]))
            at += 1
        return found

    def covers(self, first: int, end: int) -> bool:
        """All from `first` to below `end` are among them. Cost: O(log ranges)."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and end <= self._stops[at]


def indices_of(ranges: Iterable[tuple[int, int]], end: int) -> list[int]:
    """(3, 3), (9, 1) -> 3 4 5 9: those below `end`. Cost: O(ranges + end), whatever stands there."""
    found: list[int] = []
    at = 0
    for first, count in sorted(ranges):
        stop = min(first + count, end)
        found += range(max(first, at), stop)
        at = max(at, stop)
    return found
