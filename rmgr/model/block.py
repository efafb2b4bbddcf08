"""A block: a range of tasks of one submission that waits, moves and is claimed as one znode. And the outcomes of its tasks.

The name of its znode (`BlockKey`) tells what it is and what it needs; its data (`BlockData`) has the arguments. An `Outcome` is the
end of an attempt, a `Fragment` the outcomes in one commit. They are MessagePack structs, because millions of them pass.

A placed job is a task of a submission in a queue with `dispatch = place`: a block of one task that only the leader gives to nodes. The
block's `Allocation` has the nodes of one attempt.

The end has the line that stands in a stored output for its middle, if it is over its cap.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec

from rmgr.model.base import Attempt, BetweenUs, Newer, NodeName, Number, SpanUs, newer
from rmgr.model.states import Reason, State

#: Most tasks of one block, and most bytes of arguments inside it.
MAX_TASKS = 256
MAX_INLINE_BYTES = 12 * 1024
#: Most keys of one keyed task, inputs and outputs together, and their bytes as its arguments: every node that meets it decodes them.
MAX_KEYS, MAX_KEYED_BYTES = 100_000, 8 * 1024 * 1024
#: Most output keys that a Submitter leaves to the node that runs the task: their deeds travel in one znode.
MAX_LEFT_KEYS = 8

PRIORITY_RANGE = 1_000_000
#: Most tasks of one submission: more than possible, because ZooKeeper keeps 100 bytes of each.
MOST_TASKS = 1 << 26
#: Most attempts of one task: the digits for it in keys of the store.
MOST_ATTEMPTS = 99_999

#: Most sentences of `BlockData.story`, and characters of one.
MAX_STORY, STORY_CHARS = 8, 200

#: Most tasks of one submission that fit into a scheduler's job id.
MAX_INDEX = 1 << 20

#: `seq` of a block that was never in `pending` (created held); its release gives it a place in the queue.
NO_SEQ = 9_999_999_999


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The name of a block's znode, in sort order: priority first, then arrival, then index.

    priority: -1,000,000..1,000,000, higher first. seq: the queue's own counter, kept through requeue, return and
    split. attempt: number of the next (or current) attempt of its tasks. memory_mib: 0 = not counted.
    user: tag of the user (`paths.user_tag`), a hint for readers without the record; "" = not in the name.
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
        """Returns the key for the order in which blocks are claimed."""
        return (-self.priority, self.seq, self.first)


class PastAttempt(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An attempt that ended FAILED and was followed by another, as `rmgr show` tells it (only the last 8)."""

    attempt: Attempt
    node: NodeName
    reason: Reason
    exit_code: int | None = None
    started_us: SpanUs = 0
    ended_us: SpanUs = 0
    error: str = ""
    cpu_us: SpanUs = 0  #: this and memory: of attempts that ended by themselves, or gave up their nodes
    max_rss_kib: SpanUs = 0


class Seal(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Signature of a block by the user who submitted it (`coord/seal.py` defines what it covers).

    key_id: of the signer. first, count: the block as signed; its parts keep these. not_after_s: seconds since
    the epoch after which it starts nothing. signature: Ed25519, 64 bytes. proof: what the verification of a part needs.
    """

    key_id: str
    first: int
    count: int
    not_after_s: int
    signature: bytes = b""
    proof: tuple[bytes, ...] = ()


class Allocation(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Nodes of one attempt of a job. shares: (node, processes), the head first; on every node processes x threads cores.

    threads: cores of one process. memory_mib: of one process, 0 = not counted. started_us: when the leader placed it (leader's clock).
    planned_us: planned running time, 0 = no limit. whole: for a job that has its nodes for itself, all cores of each node, in the
    order of `shares`; the job also has their other resources, but only the memory that it asked for. gang: the job runs in its slots of
    `/gangs/<gang>` and is suspended in others; "" = no gang. generation: of that record at the placement: an earlier one may have
    the attempt on other cores. changes: number of amendments in its submission's record at the placement: its node reads that record,
    or a later one.
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
        """Cores on each node, in the order of `shares`."""
        return self.whole or tuple(count * self.threads for _, count in self.shares)

    @property
    def head(self) -> str:
        """The node that runs its script and commits its end."""
        return self.shares[0][0]

    @property
    def helpers(self) -> tuple[tuple[str, int], ...]:
        """The other nodes, with their processes."""
        return self.shares[1:]

    @property
    def processes(self) -> int:
        """Number of processes on all nodes."""
        return sum(count for _, count in self.shares)


class BlockData(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Data of a block, waiting or claimed.

    function: sha256 of the function of all its tasks ("" for a command). payloads[i] belongs to index base + i; empty
    for tasks without arguments. row: store key of the payloads if they do not fit (a MessagePack list of bytes).
    losses, failures: how often its tasks were lost while alone, and failed by themselves (counted by the retry rule).
    done: bit i = the outcome of index first + i is committed (claimed blocks only). incarnation: of the claiming node.
    started: indices below first + started were given to workers (advisory: SPLIT must leave them).
    keyed: payloads are encoded `KeyedPayload`s. serial: its tasks run one after another in one slot, and it is never
    taken in part nor split (a cap on slots in use). claimed_us: wall clock of the claim, for people.
    past: earlier attempts of all its tasks. stamp: random, set by the writer: makes the bytes of each
    change unique, so that they prove it. seal: the user's signature, None in an open cluster. allocation: where the leader
    has put a placed job (claimed blocks of place queues only). stopping: why its attempt is being given up, "" = it is not
    (such blocks only). story: the fate of its checkpoints, for people, over all attempts; the last `MAX_STORY` sentences.
    awaits: for a placed job that has not begun: the nodes that its start waits for, and why; "" = unknown (such blocks only).
    saving: progress of the request to save state that its program has now, "" = none (such blocks only). answered: its program
    has answered such a request once, in any attempt. moves: how often a policy has moved it.
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

    claims_by: guid of the Submitter that left the claim of the output keys to the node that runs the task; "" = they are claimed.
    deeds: in that case, and in a secured cluster: the user's deeds of the pointers under the output keys.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    overwrite: bool = False
    trust: tuple[str, ...] = ()
    claims_by: str = ""
    deeds: tuple[bytes, ...] = ()


def pending_indices(key: BlockKey, done: int) -> list[int]:
    """Returns the block's indices without a committed outcome, ascending. Cost: O(count)."""
    return [key.first + i for i in range(key.count) if not done >> i & 1]


# -- outcomes, and the fragments in which they are committed -------------------------------------------------------------------


#: Most bytes of outcomes inside a fragment's znode; more go to a store row.
MAX_INLINE_OUTCOMES = 12 * 1024
#: Size above which a single value goes to a store row of its own, however small its fragment is.
MAX_INLINE_VALUE = 8 * 1024
#: Store key of outcomes (`coord/protocol/keys.py`), "" = they are inline.
Row: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A(?:frag/[0-9]{1,10}/[^/\0]{1,200})?\Z")]
#: Begin of the error of a START_FAILED outcome if the worker's initializer raised.
INITIALIZER_FAILED = "initializer"


class Call(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A call that FAILED, kept for running it again. function: its sha256. payload: its arguments, if they came with its block.

    row, at: else the row of the store, and their position in it. keyed: they are an encoded `KeyedPayload`.
    """

    function: str
    payload: bytes = b""
    row: str = ""
    at: Number = 0
    keyed: bool = False


class Outcome(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """End of one attempt of one task; trailing defaults may be left out (`coord.protocol.records.brief`).

    started_us: since the fragment's `base_us`. elapsed_us: run time. value: inline bytes of the result (empty: none, or in a
    row). pickled: encoding of the value (else raw bytes). value_size: bytes of the value in its row, -1 = inline.
    error: "Type: message" in one line. log: the last part of its output, inline, (stdout, stderr) tails.
    log_parts: number of parts of (stdout, stderr) in the store before the inline rest.
    outputs: number of keyed output values in rows. value_sha256: of the value's bytes in its row.
    helpers: for a placed job: its nodes beside the reporting one. story: of its checkpoints (`BlockData.story`).
    served_us, turns: for a job that shared its cores in time: how long it had them, and in how many turns.
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
    """Returns whether the attempt ran, as far as known: one cancelled on its node before it began took no time."""
    return outcome.state is not State.CANCELLED or outcome.elapsed_us > 0 or bool(outcome.past)


class FragmentSeal(msgspec.Struct, frozen=True, array_like=True):
    """Signature of a fragment by the Starter that made it (`coord/seal.py` defines what it covers): key id, and 64 bytes of Ed25519."""

    key_id: str
    signature: bytes


class Fragment(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Outcomes committed by one multi: data of `/subs/../done/r-<seq>`.

    node: where they ran ("" for outcomes decided by a Submitter or the leader). attempt: of all its tasks unless an
    outcome says otherwise. base_us: microseconds since the epoch, 0 = none of them began. row: store key of the encoded outcomes if they do
    not fit; its name ends in the SHA-256 of its bytes, and `ranges` ((state, first, count) runs) list the states in it.
    seal: of the Starter, over everything written before it: it stays the last field; new facts go into the outcomes.
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

    queue, seq, priority, cores, memory_mib: of their block. block: the block's data (arguments, counters).
    backoff_us: how long to wait before the next attempt (counted from when the owner or leader sees the record).
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


# -- placed jobs: holds and promises, requests about running ones, names ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHold:
    """`/holds/<node>/<submission>.<index>.<attempt>`: cores here of a job whose head is elsewhere; this Starter never pulls work into them.

    head: the node that runs the job. key: name of its block there. The hold goes when that block is gone.
    cores: of its processes; whole: it has all cores of the node, and all other resources. gang, generation: as in the job's
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
    """`/holds/<node>/r-<submission>.<index>`: cores promised to a waiting job here; the Starter starts nothing else on them.

    shares: (run, cores): the cores become the waiting job's with the commit that ends this run (`<submission>.<index>.<attempt>`); ""
    stands for a run that had ended when this was written. Nothing is written when the run ends: its missing block shows it. memory_mib,
    resources (name, pieces): what the waiting job will use on these cores. The record goes with the commit that places the job, or
    withdraws its promise.
    """

    shares: tuple[tuple[str, int], ...] = ()
    memory_mib: int = 0
    resources: tuple[tuple[str, int], ...] = ()
    newer: Newer = newer()


def story_line(words: str) -> str:
    """Returns words as a sentence of a story; cuts the middle of a long one, because its end tells why."""
    half = STORY_CHARS // 2
    return words if len(words) <= STORY_CHARS else f"{words[: half - 3]}...{words[-half:]}"


def run_label(submission: int, index: int, attempt: int) -> str:
    """Returns the label of one attempt of a job in `Reserved.shares` and in names of holds."""
    return f"{submission}.{index}.{attempt}"


def job_id(submission: int, index: int) -> int:
    """Returns the scheduler's id of a task: ids ascend in the order of submission. Raises: ValueError for an index too large."""
    if not 0 <= index < MAX_INDEX:
        raise ValueError(f"task {submission}_{index}: a placed submission has at most {MAX_INDEX} tasks")
    return submission * MAX_INDEX + index


def job_label(submission: int, index: int) -> str:
    """Returns `42`, or `42_7` for tasks after the first."""
    return f"{submission}_{index}" if index else str(submission)


def task_of(job: int) -> tuple[int, int]:
    """Returns (submission, index) of a scheduler's id."""
    return divmod(job, MAX_INDEX)


class StopKind(StrEnum):
    """Kind of a request about placed jobs."""

    CHECKPOINT = "checkpoint"  #: to save its state and go on
    MIGRATE = "migrate"  #: to save its state and go on elsewhere
    VACATE = "vacate"  #: as MIGRATE, for every job with a part on a drained node


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """`/requests/<guid>`: a request about a running placed job (`submission`, `index`), or about all those on `node`.

    attempt: the one seen running, 0 = any; if it is over, the job has moved already. to: node of the next start, "" = any other.
    grace_us: 0 = the job's own. detail: text for the job.
    done: (submission, index, what became of it); left: (submission, index, why it goes on). error, code, hint: of the whole request.
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
    """Returns ascending indices as (first, count) runs. Cost: O(n)."""
    out: list[tuple[int, int]] = []
    for index in indices:
        if out and out[-1][0] + out[-1][1] == index:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((index, 1))
    return out


def ranges_of(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns indices, in any order, as ranges: 3 4 5 9 -> (3, 3), (9, 1)."""
    return tuple(runs(sorted(set(indices))))


class TaskRanges:
    """Positions of requested tasks: those of `ranges` (first, count) below `end`, at the cost of the ranges."""

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
        """Returns (first, count) ranges in order, none adjacent to another."""
        return [(first, stop - first) for first, stop in zip(self._firsts, self._stops, strict=True)]

    def within(self, first: int, end: int) -> list[int]:
        """Returns the positions from `first` to below `end`. Cost: O(log ranges + end - first)."""
        found: list[int] = []
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] < end:
            found += range(max(first, self._firsts[at]), min(end, self._stops[at]))
            at += 1
        return found

    def covers(self, first: int, end: int) -> bool:
        """Returns whether the ranges have all positions from `first` to below `end`. Cost: O(log ranges)."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and end <= self._stops[at]


def indices_of(ranges: Iterable[tuple[int, int]], end: int) -> list[int]:
    """Returns the indices of ranges below `end`: (3, 3), (9, 1) -> 3 4 5 9. Cost: O(ranges + end), whatever the ranges are."""
    found: list[int] = []
    at = 0
    for first, count in sorted(ranges):
        stop = min(first + count, end)
        found += range(max(first, at), stop)
        at = max(at, stop)
    return found


# -- the line in place of the middle of an output over its cap -----------------------------------------------------------------


#: A program may print such a line itself, so its numbers are bounded by a file's size.
_LINE = re.compile(rb"\n\[rmgr: (\d{1,15}) bytes of output dropped here, the limit is (\d{1,15})\]\n")
_LONGEST = 100  #: most bytes of the line


def gap_line(dropped: int, cap: int) -> bytes:
    """Returns the line in place of `dropped` bytes of an output that may keep `cap` bytes."""
    return f"\n[rmgr: {dropped} bytes of output dropped here, the limit is {cap}]\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A piece of output and its place in the output as written: bytes `start` to `end`; a gap (`dropped` > 0) has a line for them."""

    data: bytes
    start: int
    end: int
    dropped: int = 0
    cap: int = 0

    def fresh(self, shown: int) -> bytes:
        """Returns what is new to a reader of the first `shown` bytes as written; for a gap, a line that counts the missing bytes."""
        if shown <= self.start:
            return self.data
        if self.dropped:
            return gap_line(self.end - shown, self.cap) if shown < self.end else b""
        return self.data[shown - self.start :]


def place(pieces: Iterable[bytes]) -> Iterator[Placed]:
    """Yields pieces of a stored output, in order, with their places. Cost: holds one piece and 100 bytes."""
    at, data = 0, b""
    for piece in pieces:
        data += piece
        while (found := _LINE.search(data)) is not None:
            if found.start():
                yield Placed(data=data[: found.start()], start=at, end=at + found.start())
            at += found.start()
            dropped = int(found[1])
            yield Placed(data=found[0], start=at, end=at + dropped, dropped=dropped, cap=int(found[2]))
            at += dropped
            data = data[found.end() :]
        if len(data) > _LONGEST:
            yield Placed(data=data[:-_LONGEST], start=at, end=at + len(data) - _LONGEST)
            at += len(data) - _LONGEST
            data = data[-_LONGEST:]
    if data:
        yield Placed(data=data, start=at, end=at + len(data))
