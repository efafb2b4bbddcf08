"""Outcomes of attempts and the fragments in which they are committed (MessagePack structs: millions of them pass)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from rmgr.model.base.spans import Attempt, BetweenUs, NodeName, Number, SpanUs
from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.block import PastAttempt

#: Bytes of outcomes that ride inside a fragment's znode; above, they are one store row.
MAX_INLINE_BYTES = 12 * 1024
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
