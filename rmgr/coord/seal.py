"""Builds the signed statements about work and results, which receivers recompute. Pure: bytes in, bytes out.

A Submitter signs each block that it makes: a *statement* of everything that makes code run or limits it,

    where     format, cluster id, first index and count of the block as signed; the submission by the nonce in its record,
              in place of its number, which is assigned later (`coord/nonces.py`)
    who       the user, who must be the holder of the signing key
    limits    not-after (from then on the signature starts nothing), resubmit, retries
    what      function hash, keyed, serial, and `spec_digest` of the submission's record: command, script hash, arguments,
              environment, working directory, uploads, input and output files, standard input, Python environment (modules,
              initializer, sys.path, interpreter), cores, memory, time limit, features, name, dependencies, nonce, time of signing, ...
              (as sent: an amendment has a signature of its own, `amendment_statement`)
    with      the arguments of every task and the index of each

The receiver hashes again everything that the statement names by SHA-256. Not signed are the fields of `RECORD_UNSIGNED`,
`BLOCK_UNSIGNED` and `KEY_UNSIGNED`, each with the reason; a test enumerates all fields, so a new one must be put on one
side. Cores and memory in a block's name are compared with the record.

Processes without the user's key cut blocks (claim a part, split, retry in halves). So arguments are signed
as the root of a hash tree: the leaves are the arguments, sixteen leaves make a group, the groups make the root. A part
keeps the groups and leaves beside it (`Seal.proof`), which replace arguments at least as long, so a part is never larger
than the block that it was cut from. For arguments in a store row, the row's name ends in the SHA-256 of its bytes.

Blocks sent together share one signature, of the root of a hash tree over their statements:

    a block alone                 signature                                             64 bytes, of its statement
    one of several                signature, place, count, path to the root             64 + 4 + 32 a level, of `_signed`

              root                A leaf is the hash of a whole statement, so everything that a seal covers is covered,
             /    \\               and any block can be verified without the others. Leaves, nodes and signed roots begin differently,
          node     \\              and a signed root has the number of leaves, which fixes the length of every path: a node cannot
         /    \\     \\             pass for a leaf, nor a leaf for a node. A node without a neighbour goes up unchanged.
        0      1     2

Cutting a block keeps its seal unchanged, because the statement has nothing that differs between the parts of a block.

A Starter signs each fragment of outcomes, which names values in the store with their SHA-256. A seal is required wherever
a task COMPLETED or a value could be unpickled; outcomes that a Submitter decides (cancelled, given up) have neither.

A Starter signs each checkpoint. Its row is JSON whose last field is always its seal. The signature covers the bytes before the seal, with
the hash of every file and piece, and also the cluster and the checkpoint's own key: it is worthless under another key or in another
cluster.

This file only builds bytes to sign. Keys and signatures are in `rmgr.adapters.identity` and with the signers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum

import msgspec

from rmgr.coord.protocol.keys import Checkpoint
from rmgr.model.base import MIB
from rmgr.model.block import MAX_TASKS, Allocation, BlockData, BlockKey, Fragment, FragmentSeal, Outcome, Seal
from rmgr.model.identity import Identity, Role
from rmgr.model.states import State
from rmgr.model.submission import Amendment, Submission, as_signed
from rmgr.model.units import counted

#: Fields of a submission's record that are not signed, and why.
RECORD_UNSIGNED = {
    "format": "how the record is written down",
    "id": "given after the signing; the nonce stands for it, which leads to one number only",
    "phase": "changed by hold, release, cancel, close",
    "reason": "of the phase",
    "reason_detail": "of the phase",
    "by": "of the phase",
    "by_us": "of the phase",
    "owner": "changed when another Submitter takes over",
    "priority": "only the order; an operator may change it",
    "closed_us": "written at the end",
    "ends_with_owner": "only when nothing more can be added; a release that does not know it still runs the work",
    "max_fails": "the leader ends work by it, and it may at any time",
    "newer": "unknown to this release; see `spec_digest`",
    "entries": "runs nothing of it; signed with the record, for who runs it again (`record_statement`)",
    "signature": "the record's own",
    "token": "names nothing that runs",
    "was": "the signed terms in place of those that were changed: without it the signature does not fit",
    "changes": "each amendment has its own signature (`amendment_statement`)",
}
#: Fields of a block that are not signed, and why.
BLOCK_UNSIGNED = {
    "losses": "counted by whoever looks after the submission",
    "failures": "as losses",
    "base": "checked against the tree of arguments: a wrong one fits no root",
    "done": "written by the node",
    "incarnation": "written by the node",
    "started": "written by the node",
    "claimed_us": "written by the node",
    "past": "told to people only",
    "stamp": "random",
    "seal": "the signature itself",
    "allocation": "written by the leader, as only daemons write there; its cores and memory are compared with the record",
    "stopping": "told to people and the leader only",
    "story": "told to people only",
    "awaits": "told to people only",
    "saving": "told to people only",
    "answered": "only whether a policy may move it, to whom it is a hint",
    "moves": "as answered",
}
#: Parts of a block's name that are not signed, and why. `cores` and `memory_mib` must be the record's.
KEY_UNSIGNED = {
    "priority": "only the order",
    "seq": "only the order",
    "submission": "the nonce in its record stands for it",
    "attempt": "counts up",
    "first": "any range inside the signed one",
    "count": "any range inside the signed one",
    "user": "only whose turn it is, and compared with the record's",
}

Sign = Callable[[bytes], bytes]

_WORK = "rmgr work 2"
_RESULT = "rmgr result 1"
_RECORD = "rmgr record 2"
_AMENDMENT = "rmgr amendment 1"
_CHECKPOINT = "rmgr checkpoint 1"
_GROUP = b"rmgr group\0"
_ROOT = b"rmgr root\0"
#: Encoding of "no seal": always the last field of a fragment.
_NIL = b"\xc0"
#: Leaves of one group.
_WIDTH = 16
#: Arguments shorter than this are their own leaf; longer ones are hashed.
_SHORT = 32
_ROW = re.compile(r"args/\d+/\d+/([0-9a-f]{64})\Z")
_ANY_ROW = re.compile(r"[a-z]+/[^\0]*/([0-9a-f]{64})\Z")

_pack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder(order="sorted")


# -- the record ----------------------------------------------------------------------------------------------------------------


def spec_digest(record: Submission) -> bytes:
    """Returns the SHA-256 of the signed part of a record, as it is in ZooKeeper. Cost: 0.05 ms.

    Leaves out fields at their defaults, so that releases with and without a field agree as long as it is not used; a release
    that does not know a used field refuses the record.
    """
    signed = {name: value for name, value in _signed_fields(as_signed(record)).items() if name not in RECORD_UNSIGNED}
    return hashlib.sha256(_json.encode(signed)).digest()


def record_statement(record: Submission, cluster_id: str) -> bytes:
    """Returns the bytes that a record's signature must cover: the user's request, under its nonce. Reruns check it. Cost: 0.05 ms."""
    return _pack.encode((_RECORD, cluster_id, record.user, spec_digest(record), record.entries))


def amendment_statement(number: int, change: Amendment, cluster_id: str) -> bytes:
    """Returns the bytes that an amendment's signature must cover: submission, number, user, time, role, and the changes."""
    fields_signed = (change.number, change.by, change.by_us, change.is_operators, _json.encode(_signed_fields(change.terms)))
    return _pack.encode((_AMENDMENT, cluster_id, number, *fields_signed))


def amendment_fault(
    number: int, change: Amendment, cluster_id: str, signer: Identity, verify: Callable[[bytes, bytes], bool], *, operators: Sequence[str]
) -> str:
    """Returns why the amendment is not valid, "" if it is.

    Args:
        signer: holder of the key that the signature names. verify: (signature, statement), by that key.
        operators: users whom the settings make operators.
    """
    if not signer.is_person or signer.name != change.by:
        return f"it was signed by {signer.role} {signer.name}"
    if change.is_operators and signer.role not in {Role.OPERATOR, Role.ADMIN} and signer.name not in operators:
        return f"{signer.name} is no operator"
    signature = bytes.fromhex(change.signature.partition(":")[2])
    return "" if verify(signature, amendment_statement(number, change, cluster_id)) else "it is not what was signed"


def _signed_fields(item: object) -> dict[str, object]:
    """Returns the fields of a record that are not at their defaults."""
    assert is_dataclass(item)
    told = {}
    for field in fields(item):
        if field.name == "newer":  # unknown to this release: see `spec_digest`
            continue
        value = getattr(item, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default:
            told[field.name] = _plain(value)
    return told


def _plain(value: object) -> object:
    if is_dataclass(value):
        return _signed_fields(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


# -- the tree of arguments -------------------------------------------------------------------------------------------------------


class _Tree:
    """Arguments `low`..`low + len(payloads)` of `total`, with a proof for the others. Raises NotSealed if they do not fit."""

    def __init__(self, payloads: Sequence[bytes], low: int, total: int, proof: Sequence[bytes]) -> None:
        high = low + len(payloads)
        if not (0 <= low < high <= total <= MAX_TASKS):
            raise NotSealed(f"its arguments {low}..{high - 1} are not inside the {total} that were signed")
        self._total = total
        self._start = low // _WIDTH  # the first group that is (partly) here
        self._stop = -(-high // _WIDTH)
        before = self._start * _WIDTH
        behind = min(self._stop * _WIDTH, total)
        groups = -(-total // _WIDTH)
        at = [self._start, low - before, behind - high, groups - self._stop]
        if len(proof) != sum(at):
            raise NotSealed(f"its proof has {counted(len(proof), 'part')} where {sum(at)} are needed")
        self._left = list(proof[: at[0]])
        inner = [b"\0" + text if len(text) < _SHORT else b"\1" + hashlib.sha256(text).digest() for text in payloads]
        self._leaves = [*proof[at[0] : at[0] + at[1]], *inner, *proof[at[0] + at[1] : at[0] + at[1] + at[2]]]
        self._right = list(proof[len(proof) - at[3] :]) if at[3] else []

    def group(self, number: int) -> bytes:
        """Returns the hash of a group."""
        if number < self._start:
            return self._left[number]
        if number >= self._stop:
            return self._right[number - self._stop]
        at = (number - self._start) * _WIDTH
        return hashlib.sha256(_GROUP + _pack.encode(self._leaves[at : at + _WIDTH])).digest()

    def root(self) -> bytes:
        """Returns the hash of everything."""
        groups = [self.group(number) for number in range(-(-self._total // _WIDTH))]
        return hashlib.sha256(_ROOT + _pack.encode((self._total, groups))).digest()

    def proof(self, low: int, high: int) -> tuple[bytes, ...]:
        """Returns the proof that arguments `low`..`high`, a part of those here, need."""
        start, stop = low // _WIDTH, -(-high // _WIDTH)
        first = self._start * _WIDTH
        behind = min(stop * _WIDTH, self._total)
        return (
            *(self.group(number) for number in range(start)),
            *self._leaves[start * _WIDTH - first : low - first],
            *self._leaves[high - first : behind - first],
            *(self.group(number) for number in range(stop, -(-self._total // _WIDTH))),
        )


def narrowed(seal: Seal | None, payloads: Sequence[bytes], base: int, first: int, count: int) -> Seal | None:
    """Returns the seal of a part: `count` tasks from `first` on, out of `payloads` from `base` on.

    A seal that does not fit its block stays unchanged: verification refuses it. Cost: 0.2 us per argument cut off, 0.5 us more
    for each of 32 bytes or more.
    """
    if seal is None or not payloads or count < 1 or (first == base and count == len(payloads)):
        return seal
    low = first - seal.first
    if not (base <= first and first + count <= base + len(payloads)):
        return seal
    try:
        proof = _Tree(payloads, base - seal.first, seal.count, seal.proof).proof(low, low + count)
    except NotSealed:
        return seal
    return msgspec.structs.replace(seal, proof=proof)


# -- blocks ----------------------------------------------------------------------------------------------------------------------


def seal_blocks(
    blocks: Sequence[tuple[BlockKey, BlockData]], *, cluster_id: str, user: str, spec: bytes, key_id: str, not_after_s: int, sign: Sign
) -> list[tuple[BlockKey, BlockData]]:
    """Returns new blocks of one submission with their seals, which share a signature. `spec`: see `spec_digest`.

    Cost: 0.05 ms, plus 0.02 ms per block.
    """
    seals = [Seal(key_id=key_id, first=key.first, count=key.count, not_after_s=not_after_s) for key, _ in blocks]
    statements = [
        block_statement(key, data, seal=seal, payloads=data.payloads, base=data.base, cluster_id=cluster_id, user=user, spec=spec)
        for (key, data), seal in zip(blocks, seals, strict=True)
    ]
    return [
        (key, msgspec.structs.replace(data, seal=msgspec.structs.replace(seal, signature=signature)))
        for (key, data), seal, signature in zip(blocks, seals, sign_together(statements, sign), strict=True)
    ]


def block_statement(
    key: BlockKey, data: BlockData, *, seal: Seal, payloads: Sequence[bytes], base: int, cluster_id: str, user: str, spec: bytes
) -> bytes:
    """Returns the bytes that a block's seal must sign, recomputed from the block as it is now.

    Args:
        payloads, base: the arguments that will be used (in a row: not read, the row's name has their hash).
    Raises: NotSealed if no signature could fit. Cost: 0.2 us per argument, 0.5 us more for each of 32 bytes or more.
    """
    if not (seal.first <= key.first and key.end <= seal.first + seal.count):
        raise NotSealed(f"tasks {key.first}..{key.end - 1} are not among {seal.first}..{seal.first + seal.count - 1}, which were signed")
    if data.row:
        digest = row_digest(data.row)  # the rest of the row's name has a number, which may be assigned later
        if digest is None or base != seal.first:
            raise NotSealed(f"its arguments lie in a row that is not named by its content: {data.row[:120]}")
        arguments: tuple[str, object] = ("row", digest)
    elif payloads:
        if not (base <= key.first and key.end <= base + len(payloads)):
            raise NotSealed("it does not hold the arguments of all its tasks")
        arguments = ("tree", _Tree(payloads, base - seal.first, seal.count, seal.proof).root())
    else:
        arguments = ("none", b"")
    return _pack.encode(
        (
            _WORK,
            cluster_id,
            seal.first,
            seal.count,
            user,
            spec,
            seal.not_after_s,
            data.function,
            data.resubmit,
            data.retries,
            data.keyed,
            data.serial,
            arguments,
        )
    )


def check_shape(key: BlockKey, record: Submission, allocation: Allocation | None = None) -> None:
    """Raises NotSealed unless the block's cores and memory are those of the signed record, current or before an amendment."""
    asked = [_shape(record, -(-size // MIB), allocation) for size in record.memories]
    if (key.cores, key.memory_mib) not in asked:
        message = f"{asked[0][0]} and {asked[0][1]}"
        raise NotSealed(f"it asks for {counted(key.cores, 'core')} and {key.memory_mib} MiB, its submission for {message}")


def _shape(record: Submission, memory_mib: int, allocation: Allocation | None) -> tuple[int, int]:
    """Returns cores and MiB in the names of a record's blocks."""
    if allocation is not None and allocation.gang and not memory_mib:
        memory_mib = allocation.memory_mib  # the share of its nodes' memory that the leader gives it
    if allocation is not None and record.rigid is not None and allocation.processes == record.rigid.processes:
        here = allocation.shares[0][1]  # its processes on the head, whose cores the name has
        return record.request.cores * here, memory_mib * here
    return record.request.cores, memory_mib


def row_digest(row: str) -> str | None:
    """Returns the SHA-256 (hex) in the name of a row of arguments; None if the name has another form."""
    match = _ROW.match(row)
    return match[1] if match is not None else None


def named_digest(row: str) -> str | None:
    """Returns the same for any row whose name ends in the SHA-256 of its bytes (arguments, outcomes)."""
    match = _ANY_ROW.match(row)
    return match[1] if match is not None else None


# -- fragments -------------------------------------------------------------------------------------------------------------------


def seal_fragment(fragment: Fragment, *, cluster_id: str, submission: int, key_id: str, sign: Sign) -> Fragment:
    """Returns a fragment with the seal of the Starter that made it. Cost: 0.05 ms."""
    bare = msgspec.structs.replace(fragment, seal=None)
    signature = sign(fragment_statement(bare, cluster_id=cluster_id, submission=submission))
    return msgspec.structs.replace(bare, seal=FragmentSeal(key_id=key_id, signature=signature))


def fragment_statement(fragment: Fragment, *, cluster_id: str, submission: int, data: bytes = b"") -> bytes:
    """Returns the bytes that a fragment's seal must sign: everything before the seal, as written.

    data: the bytes that `fragment` was read from, so that elements of a newer release are not lost;
    without them the fragment is encoded again, as by this release. Cost: 10 us with `data`, else 0.1 ms.
    """
    seal = b"" if fragment.seal is None else _pack.encode(fragment.seal)
    if seal and data.endswith(seal):
        told = memoryview(data)[: -len(seal)]
    else:
        bare = fragment if fragment.seal is None else msgspec.structs.replace(fragment, seal=None)
        told = memoryview(_pack.encode(bare))[: -len(_NIL)]
    return _pack.encode((_RESULT, cluster_id, submission, hashlib.sha256(told).digest()))


def needs_seal(fragment: Fragment) -> bool:
    """Returns whether an outcome says that a task completed, or holds something to be unpickled. Cost: O(outcomes)."""
    return bool(fragment.row) or any(map(is_precious, fragment.outcomes))


def is_precious(outcome: Outcome) -> bool:
    """Returns whether this outcome needs a seal; see `needs_seal`."""
    has_value = bool(outcome.value) or outcome.value_size >= 0 or outcome.outputs > 0
    return outcome.state is State.COMPLETED or has_value or outcome.call is not None


# -- one signature for several blocks ------------------------------------------------------------------------------------------


#: Most blocks per signature: 8 levels, 324 bytes beside each.
MAX_LEAVES = 256

_SIGNED = "rmgr works 1"
_LEAF = b"rmgr leaf\0"
_NODE = b"rmgr node\0"
_HASH = 32
#: Bytes of an Ed25519 signature; and of one with place and count.
_ALONE = 64
_HEAD = _ALONE + 4


class NotSealed(Exception):
    """Says in a sentence why a block or a fragment cannot be what was signed."""


def sign_together(statements: Sequence[bytes], sign: Callable[[bytes], bytes]) -> list[bytes]:
    """Returns a signature for each statement. Cost: one `sign` per `MAX_LEAVES` statements, and two hashes each."""
    signatures: list[bytes] = []
    for at in range(0, len(statements), MAX_LEAVES):
        some = statements[at : at + MAX_LEAVES]
        signatures += _signed_tree(some, sign) if len(some) > 1 else [sign(some[0])]
    return signatures


def opened(signature: bytes, statement: bytes) -> tuple[bytes, bytes]:
    """Returns the Ed25519 signature inside a block's `signature`, and the bytes that it must sign, for the block's statement.

    Raises: NotSealed if it does not have the form of a signature. Cost: for one of several blocks, a hash plus one per level.
    """
    if len(signature) == _ALONE:
        return signature, statement
    place, count = int.from_bytes(signature[_ALONE : _ALONE + 2], "big"), int.from_bytes(signature[_ALONE + 2 : _HEAD], "big")
    if not (len(signature) > _HEAD and 2 <= count <= MAX_LEAVES and place < count):
        raise NotSealed(f"its signature has {len(signature)} bytes, and no form that one can have")
    found, at, left = hashlib.sha256(_LEAF + statement).digest(), _HEAD, count
    while left > 1:
        if place ^ 1 < left:
            beside = signature[at : at + _HASH]
            at += _HASH
            found = hashlib.sha256(_NODE + beside + found if place & 1 else _NODE + found + beside).digest()
        place, left = place >> 1, (left + 1) >> 1
    if at != len(signature):  # missing bytes count as if they were there, so this finds short paths, too
        raise NotSealed(f"its path has {len(signature) - _HEAD} bytes where {at - _HEAD} are needed")
    return signature[:_ALONE], _message(count, found)


def _signed_tree(statements: Sequence[bytes], sign: Callable[[bytes], bytes]) -> list[bytes]:
    level = [hashlib.sha256(_LEAF + statement).digest() for statement in statements]
    levels = []
    while len(level) > 1:
        levels.append(level)
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(_NODE + left + right).digest() for left, right in pairs] + level[len(level) & ~1 :]
    beside = [b""]  # the path from each node of a level to the root, from the top down
    for nodes in reversed(levels):
        beside = [b"".join(nodes[at ^ 1 : (at ^ 1) + 1]) + beside[at >> 1] for at in range(len(nodes))]
    count = len(statements)
    head = sign(_message(count, level[0]))
    size = count.to_bytes(2, "big")
    return [head + place.to_bytes(2, "big") + size + path for place, path in enumerate(beside)]


def _message(count: int, root: bytes) -> bytes:
    return _pack.encode((_SIGNED, count, root))


# -- checkpoints ---------------------------------------------------------------------------------------------------------------


class CheckpointSeal(msgspec.Struct, frozen=True, kw_only=True):
    """key_id: of the Starter that took the checkpoint."""

    key_id: str
    signature: bytes


def checkpoint_statement(told: bytes, checkpoint: Checkpoint, *, cluster_id: str) -> bytes:
    """Returns the bytes that a checkpoint's seal must sign. told: the row before its seal, see `before_seal`. Cost: 2 ms per MiB."""
    where = (checkpoint.sub, checkpoint.index, checkpoint.attempt, checkpoint.n)
    return _pack.encode((_CHECKPOINT, cluster_id, where, hashlib.sha256(told).digest()))


def before_seal(row: bytes, seal: CheckpointSeal | None) -> bytes | None:
    """Returns the row without its last field, which must be this seal; None if it is not."""
    end = b',"seal":' + msgspec.json.encode(seal) + b"}"
    return row[: -len(end)] if row.endswith(end) else None
