"""The multis of submitters and Starters (protocol.md section 3): what is committed together, as pure functions.

N = version of `/nodes/<n>` (the Starter fence), v = version of the znode that is changed. `stamp` arguments are new
random strings: they make the bytes of a change unique, so that its proof cannot be mistaken. The leader's multis are
in `coord/ops/leader.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from rmgr.coord import nonces
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import MAX_OPS_OF_ONE_JOB, Check, Create, Delete, Exists, Gone, GoneOrHolds, Holds, Multi, Op, Proof, Set
from rmgr.coord.protocol.records import encode_block, encode_failed, encode_fragment, encode_record
from rmgr.coord.seal import narrowed
from rmgr.model.block import NO_SEQ, BlockData, BlockKey, FailedRange, Fragment, runs
from rmgr.model.node import NodeRecord, NodeState, StarterEntry, Trouble
from rmgr.model.submission import Phase, Submission, Tail

Block = tuple[BlockKey, BlockData]
#: Sequence number of a block that was handed over: it was never in the queue, which was empty.
HANDED_SEQ = 0


# -- submitters ---------------------------------------------------------------------------------------------------------------


def token_digest(user: str, token: str) -> str:
    """Returns the name of the token's record."""
    return hashlib.sha256(f"{user}\0{token}".encode()).hexdigest()


def submit(
    submission: Submission,
    *,
    ids_version: int,
    tail: Tail,
    blocks: Sequence[Block],
    make_bucket: bool,
    held: bool | None = None,
) -> Multi:
    """SUBMIT: the record, its directories and its first blocks appear together; the nonce proves it.

    Args:
        submission: its `id` is the number that `/ids` held at `ids_version`; its nonce was drawn for it, its token may name it later.
        tail: already counts `blocks`.
        blocks: `seq` is ignored; phase OPEN puts them into `pending` (S), else they are set aside without a place.
        make_bucket: the thousand's directory does not exist yet.
        held: sets blocks aside although the submission is open (a cap on running tasks).
    """
    number = submission.id
    nonce = Create(nonces.place_of(submission), encode_record(number))
    ops: list[Op] = [Set(paths.IDS, encode_record(number + 1), ids_version), nonce]
    if submission.token:
        ops.append(Create(paths.token(token_digest(submission.user, submission.token)), nonce.data))
    if make_bucket:
        ops.append(Create(paths.subs_bucket(number)))
    ops += [
        Create(paths.sub(number), encode_record(submission)),
        Create(paths.tail(number), encode_record(tail)),
        Create(paths.done(number)),
        Create(paths.failed(number)),
    ]
    if submission.phase is Phase.OPEN:
        ops.append(Create(paths.gate(number)))
    aside = submission.phase is not Phase.OPEN if held is None else held
    ops += [enter(submission.queue, key, data, held=aside) for key, data in blocks]
    return Multi(name="SUBMIT", ops=tuple(ops), proof=Exists(nonce.path, nonce.data))


def enter(queue: str, key: BlockKey, data: BlockData, *, held: bool) -> Create:
    """Returns the create of a new block: at the end of `pending` (S), or set aside without a place."""
    return _enter(queue, key, encode_block(data), held=held)


def _enter(queue: str, key: BlockKey, data: bytes, *, held: bool) -> Create:
    if held:
        return Create(paths.held_block(queue, replace(key, seq=NO_SEQ)), data)
    return Create(f"{paths.pending(queue)}/{paths.block_prefix(key)}", data, sequence=True)


def enqueue(
    submission: int,
    queue: str,
    *,
    tail: Tail,
    tail_version: int,
    blocks: Sequence[Block],
    held: bool,
    ended: Sequence[Fragment] = (),
) -> Multi:
    """ENQUEUE: the submission grows. Only one per submission is in flight, so the tail's bytes prove it.

    ended: outcomes of tasks that end here, before they were queued.
    """
    data = encode_record(tail)
    ops: list[Op] = [Set(paths.tail(submission), data, tail_version)]
    ops += [enter(queue, key, block, held=held) for key, block in blocks]
    ops += [Create(paths.fragment_prefix(submission), encode_fragment(fragment), sequence=True) for fragment in ended]
    return Multi(name="ENQUEUE", ops=tuple(ops), proof=Holds(paths.tail(submission), data))


def hand(submission: int, *, tail: Tail, tail_version: int, key: BlockKey, data: BlockData, node: str, node_version: int) -> Multi:
    """HAND: the submission grows by one block, which goes straight to a node with an idle marker (protocol.md 5).

    The marker is deleted with it, so that a node gets only one such block; the Starter notices that, and finds the block. After a conflict
    anywhere but at the tail, ENQUEUE the block instead; an amendment is one such conflict, which the Submitter need not know of. If the
    block is given back or fails later, it stands at the front of its priority.

    Args:
        key: `seq` is ignored: the block never had a place in the queue.
        data: only signed; the Starter that gets it adds a stamp with its first change.
        node_version: of the node's record, read from an incarnation that takes such blocks.
    """
    encoded = encode_record(tail)
    ops: tuple[Op, ...] = (
        Set(paths.tail(submission), encoded, tail_version),
        Check(paths.gate(submission), 0),
        fence_check(node, node_version),
        Delete(paths.idle(node)),
        Create(paths.running_block(node, replace(key, seq=HANDED_SEQ)), encode_block(data)),
    )
    return Multi(name="HAND", ops=ops, proof=Holds(paths.tail(submission), encoded))


def set_record(submission: Submission, *, version: int, gate: bool | None, name: str = "GATE") -> Multi:
    """GATE (hold, release, cancel) and other changes of the record; `gate`: True creates it, False deletes it, None leaves it."""
    data = encode_record(submission)
    ops: list[Op] = [Set(paths.sub(submission.id), data, version)]
    if gate is True:
        ops += _gate_ops(submission)
    elif gate is False:
        ops.append(Delete(paths.gate(submission.id)))
    return Multi(name=name, ops=tuple(ops), proof=Holds(paths.sub(submission.id), data))


def _gate_ops(submission: Submission) -> list[Op]:
    """Returns ops that create a gate whose version is the number of amendments: a start by an older record meets another version."""
    path = paths.gate(submission.id)
    return [Create(path), *(Set(path, b"", version) for version in range(len(submission.changes)))]


def update(submission: Submission, *, version: int, gate: bool | None, waiting: Sequence[str] = ()) -> Multi:
    """UPDATE: an amendment of a submission's terms. Started work keeps the old terms, work that starts later has the new ones.

    Args:
        gate: as in `set_record`; None for an open submission: the gate is created anew, at the next version.
        waiting: paths of blocks that must still wait: of this and the start of any of them, at most one is committed.
    """
    path = paths.sub(submission.id)
    data = encode_record(submission)
    ops: list[Op] = [Set(path, data, version)]
    if gate is False or (gate is None and submission.phase is Phase.OPEN):
        ops.append(Delete(paths.gate(submission.id)))
    if submission.phase is Phase.OPEN:
        ops += _gate_ops(submission)
    ops += map(Check, waiting)
    return Multi(name="UPDATE", ops=tuple(ops), proof=Holds(path, data), most_ops=MAX_OPS_OF_ONE_JOB)


def rename(submission: Submission, queue: str, old: BlockKey, new: BlockKey, data: bytes, version: int, *, held: bool) -> Multi:
    """RENAME: a waiting block gets the current priority, cores and memory of its submission, and keeps its place.

    queue: where the block is; if its submission is now in another queue, the block goes to the end of that one.
    """
    where = paths.held_block if held else paths.pending_block
    source = where(queue, old)
    if queue == submission.queue:
        target = Create(where(queue, new), data)
    else:
        target = _enter(submission.queue, new, data, held=held or submission.phase is not Phase.OPEN)
    return Multi(name="RENAME", ops=(Delete(source, version), target), proof=Gone(source))


def set_aside(queue: str, key: BlockKey, data: bytes, version: int) -> Multi:
    """SET_ASIDE: a waiting block of a submission without a gate leaves `pending`, keeping its place."""
    source = paths.pending_block(queue, key)
    return Multi(name="SET_ASIDE", ops=(Delete(source, version), Create(paths.held_block(queue, key), data)), proof=Gone(source))


def bring_back(queue: str, key: BlockKey, data: BlockData, version: int, *, take: int = 0) -> Multi:
    """BRING_BACK: a block that was set aside waits again: in its old place, or at the end if it never had one.

    take: only its first `take` tasks (> 0); the rest stays aside.
    """
    source = paths.held_block(queue, key)
    ops: list[Op] = [Delete(source, version), Check(paths.gate(key.submission))]
    head = replace(key, count=take) if 0 < take < key.count else key
    part = cut(data, key.first, head.first, head.count)
    if paths.has_place(key):
        ops.append(Create(paths.pending_block(queue, head), encode_block(part)))
    else:
        ops.append(enter(queue, head, part, held=False))
    if head is not key:
        rest = replace(key, first=head.end, count=key.count - take)
        ops.append(Create(paths.held_block(queue, rest), encode_block(cut(data, key.first, rest.first, rest.count))))
    return Multi(name="BRING_BACK", ops=tuple(ops), proof=Gone(source))


def take_out(
    queue: str, key: BlockKey, data: BlockData, version: int, *, indices: Sequence[int], fragment: Fragment, held: bool = False
) -> Multi:
    """TAKE_OUT: cancels some tasks of a waiting block, which its remainders and a fragment replace."""
    source = paths.held_block(queue, key) if held else paths.pending_block(queue, key)
    ops: list[Op] = [Delete(source, version)]
    gone = frozenset(indices)
    for first, count in runs([index for index in range(key.first, key.end) if index not in gone]):
        left = replace(key, first=first, count=count)
        target = paths.held_block(queue, left) if held else paths.pending_block(queue, left)
        ops.append(Create(target, encode_block(cut(data, key.first, first, count))))
    ops.append(Create(paths.fragment_prefix(key.submission), encode_fragment(fragment), sequence=True))
    return Multi(name="TAKE_OUT", ops=tuple(ops), proof=Gone(source))


def cut(data: BlockData, old_first: int, first: int, count: int) -> BlockData:
    """Returns the part of a block that covers `count` tasks from `first`: payloads sliced, mask shifted, seal narrowed."""
    payloads = data.payloads[first - data.base : first - data.base + count] if data.payloads else ()
    mask = (data.done >> (first - old_first)) & ((1 << count) - 1)
    started = min(max(data.started - (first - old_first), 0), count)
    seal = narrowed(data.seal, data.payloads, data.base, first, count) if data.seal is not None else None
    return msgspec.structs.replace(data, payloads=payloads, base=first if payloads else data.base, done=mask, started=started, seal=seal)


# -- Starters -------------------------------------------------------------------------------------------------------------------


def register(records: Sequence[tuple[NodeRecord, int | None]], entry: StarterEntry) -> Multi:
    """REGISTER: new incarnations of all nodes of a Starter, and its entry.

    Args:
        records: (record with raised incarnation, version of the old record or None if there is none).
    Once committed, the fence N of each node is the version in the answer (old version + 1, or 0).
    """
    ops: list[Op] = []
    for record, version in records:
        path = paths.node(record.node)
        data = encode_record(record)
        ops.append(Create(path, data) if version is None else Set(path, data, version))
        if version is None:
            ops += [Create(paths.running_node(record.node)), Create(paths.inbox_node(record.node))]
    ops.append(Create(paths.starter(entry.guid), encode_record(entry), ephemeral=True, sequence=True))
    first = records[0][0]
    return Multi(name="REGISTER", ops=tuple(ops), proof=Holds(paths.node(first.node), encode_record(first)))


def fence_check(node: str, version: int) -> Check:
    """Returns the condition of every multi of a Starter: the node was neither fenced nor registered again."""
    return Check(paths.node(node), version)


def of_node(name: str, node: str, node_version: int, *ops: Op, proof: Proof) -> Multi:
    """Returns a multi of a Starter, which nothing but the same incarnation can commit, or prove."""
    fence = fence_check(node, node_version)
    return Multi(name=name, ops=(fence, *ops), proof=proof, guard=fence)


def claim(
    node: str,
    node_version: int,
    queue: str,
    key: BlockKey,
    data: BlockData,
    version: int,
    *,
    take: int,
    was_idle: bool = False,
    gate: int = 0,
    named: BlockKey | None = None,
) -> tuple[Multi, BlockKey]:
    """CLAIM: takes the first `take` tasks of a waiting block; the rest stays in the queue in its place.

    Args:
        data: as read from the block, with `incarnation`, `claimed_us` and `stamp` set for the claim.
        take: 1..key.count.
        was_idle: `/idle/<node>` exists and must go.
        gate: number of amendments in the record used for the claim: no further one may have come.
        named: the key with its submission's current priority and memory, if the block's name has others.
    Returns: the multi, and the key under which the claimed part runs.
    """
    if not 0 < take <= key.count:
        raise ValueError(f"take {take} of a block of {key.count}")
    source = paths.pending_block(queue, key)
    mine = replace(named or key, count=take)
    target = paths.running_block(node, mine)
    ops: list[Op] = [
        Check(paths.gate(key.submission), gate),
        Delete(source, version),
        Create(target, encode_block(cut(data, key.first, mine.first, take))),
    ]
    if take < key.count:
        rest = replace(key, first=mine.end, count=key.count - take)
        left = cut(msgspec.structs.replace(data, incarnation=0, claimed_us=0), key.first, rest.first, rest.count)
        ops.append(Create(paths.pending_block(queue, rest), encode_block(left)))
    if was_idle:
        ops.append(Delete(paths.idle(node)))
    return of_node("CLAIM", node, node_version, *ops, proof=Exists(target)), mine


def complete(
    node: str,
    node_version: int,
    key: BlockKey,
    data: BlockData,
    version: int,
    *,
    fragment: Fragment | None,
    failed: Sequence[tuple[int, int, FailedRange]] = (),
    orders: Sequence[str] = (),
    go_idle: bool = False,
) -> Multi:
    """COMPLETE: ends a part of a claimed block, or all that was left of it.

    Args:
        data: `done` covers everything committed so far and this part; with all bits set the block goes away.
        version: of the running znode. One COMPLETE (or SPLIT) of a block is in flight at a time.
        fragment: final outcomes; None if every task of this part may run again.
        failed: (first, count, record) of attempts that may run again.
        orders: inbox guids that this obeys.
        go_idle: also create the idle marker.
    """
    path = paths.running_block(node, key)
    encoded = encode_block(data)
    whole = data.done == (1 << key.count) - 1
    ops: list[Op] = [Delete(path, version) if whole else Set(path, encoded, version)]
    if fragment is not None:
        ops.append(Create(paths.fragment_prefix(key.submission), encode_fragment(fragment), sequence=True))
    ops += [Create(paths.failed_range(key.submission, first, count, key.attempt), encode_failed(record)) for first, count, record in failed]
    ops += [Delete(paths.inbox(node, guid)) for guid in orders]
    if go_idle:
        ops.append(Create(paths.idle(node)))
    return of_node("COMPLETE", node, node_version, *ops, proof=Gone(path) if whole else GoneOrHolds(path, encoded))


def give_back(
    node: str,
    node_version: int,
    queue: str,
    key: BlockKey,
    data: BlockData,
    version: int,
    *,
    first: int,
    end: int | None = None,
    name: str = "SPLIT",
    held: bool = False,
) -> tuple[Multi, BlockKey]:
    """SPLIT (for hungry nodes) or RETURN (drain, hold, lease lost): tasks from `first` on go back to the queue, unstarted.

    Args:
        data: of the shortened block (stamped), its mask still over the old count; no task in first..end may be done.
        end: one past the last task to go back (default: the block's end); tasks behind it were given back before.
        held: the submission has no gate: set the tasks aside instead.
    Returns: the multi, and the key under which the returned tasks wait. The running znode keeps its name; the bits of the returned tasks
        are set in its `done`, because it does not own them any more.
    """
    stop = key.end if end is None else end
    if not key.first <= first < stop <= key.end:
        raise ValueError(f"cannot give back {first}..{stop} of {key.first}..{key.end}")
    path = paths.running_block(node, key)
    rest = replace(key, first=first, count=stop - first)
    left = cut(msgspec.structs.replace(data, incarnation=0, claimed_us=0), key.first, rest.first, rest.count)
    target = paths.held_block(queue, rest) if held else paths.pending_block(queue, rest)
    kept = msgspec.structs.replace(data, done=data.done | (((1 << rest.count) - 1) << (first - key.first)))
    whole = kept.done == (1 << key.count) - 1
    encoded = encode_block(kept)
    mine: Op = Delete(path, version) if whole else Set(path, encoded, version)
    proof: Proof = Gone(path) if whole else GoneOrHolds(path, encoded)
    return of_node(name, node, node_version, mine, Create(target, encode_block(left)), proof=proof), rest


def discard(node: str, node_version: int, key: BlockKey) -> Multi:
    """DISCARD: removes a claimed block whose submission has no place for outcomes: nothing waits for them."""
    path = paths.running_block(node, key)
    return of_node("DISCARD", node, node_version, Delete(path), proof=Gone(path))


#: Beginning of the sentence that a claim which was put back adds to its block's story.
CLAIM_WAS_GONE = "its claim was nowhere in ZooKeeper"


def put_back(node: str, node_version: int, key: BlockKey, data: BlockData) -> Multi:
    """PUT_BACK: restores the claim of a Starter that still has the block. `data`: with a new stamp."""
    path, encoded = paths.running_block(node, key), encode_block(data)
    is_open = Check(paths.failed(key.submission), 0)
    return of_node("PUT_BACK", node, node_version, is_open, Create(path, encoded), proof=Exists(path, encoded))


def adopt(node: str, node_version: int, key: BlockKey, data: BlockData, version: int) -> Multi:
    """ADOPT: a Starter that re-registered continues work that it still has; `data.incarnation` is the new one, stamped."""
    path, encoded = paths.running_block(node, key), encode_block(data)
    return of_node("ADOPT", node, node_version, Set(path, encoded, version), proof=Holds(path, encoded))


def mark_idle(node: str, node_version: int, *, idle: bool) -> Multi:
    """IDLE: sets or removes the idle marker alone, when no CLAIM or COMPLETE can carry it."""
    path = paths.idle(node)
    op: Op = Create(path) if idle else Delete(path)
    return of_node("IDLE", node, node_version, op, proof=Exists(path) if idle else Gone(path))


def trouble(node: str, node_version: int, record: Trouble | None, *, stands: bool) -> Multi:
    """TROUBLE: records why the node takes no work, or (None) that it does again. stands: an old record exists and is removed."""
    path = paths.trouble(node)
    gone: list[Op] = [Delete(path)] if stands else []
    if record is None:
        return of_node("TROUBLE", node, node_version, *gone, proof=Gone(path))
    data = encode_record(record)
    return of_node("TROUBLE", node, node_version, *gone, Create(path, data), proof=Holds(path, data))


def leave(records: Sequence[tuple[NodeRecord, int]], reason: str) -> Multi:
    """LEAVE: a Starter that ends in good order fences its own nodes, so that they do not count as lost.

    Args: records: (record, version) of nodes without claimed work. reason: `liveness.STOPPED`.
    """
    ended = [
        (paths.node(record.node), encode_record(replace(record, state=NodeState.FENCED, reason=reason)), version)
        for record, version in records
    ]
    path, data, _ = ended[0]
    return Multi(name="LEAVE", ops=tuple(Set(*op) for op in ended), proof=Holds(path, data))


def obey(node: str, node_version: int, *guids: str) -> Multi:
    """OBEY: removes inbox orders that need no COMPLETE (none of their work runs here any more, or they only started it)."""
    gone = [paths.inbox(node, guid) for guid in guids]
    return of_node("OBEY", node, node_version, *map(Delete, gone), proof=Gone(gone[0]))
