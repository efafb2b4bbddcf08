"""A block: a range of tasks of one submission that waits, moves and is claimed as one znode.

The name of its znode (`BlockKey`) says what it is and what it needs; its data (`BlockData`) carries the arguments.
MessagePack structs, because millions of them pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rmgr.model.base.spans import Attempt, NodeName, SpanUs
from rmgr.model.base.states import Reason
from rmgr.model.tasks.placing import Allocation

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


def runs(indices: list[int]) -> list[tuple[int, int]]:
    """Ascending indices as (first, count) runs. Cost: O(n)."""
    out: list[tuple[int, int]] = []
    for index in indices:
        if out and out[-1][0] + out[-1][1] == index:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((index, 1))
    return out
