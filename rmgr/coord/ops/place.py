"""The multis of placed jobs: PLACE gives a waiting block of one task to a node, UNHOLD ends its holds elsewhere, STOP gives it up.

RESERVE promises cores of running jobs to a waiting one, in the commit of the pass that decided it; the job's own start removes the
promise. Nothing is committed when a run ends whose cores were promised: the COMPLETE that deletes its block makes them the waiting job's.

Everything after PLACE is as for pulled work: the head's Starter commits COMPLETE or RETURN, the leader FAIL after FENCE. The block
under `/running/<head>` is the ownership; holds on other nodes follow it: the leader deletes a hold whose block is gone.

STOP is for a started job what RETURN is for tasks that have not started: its Starter gives the attempt up, through no fault of the job, to
go on elsewhere from a checkpoint (MIGRATED) or to make room (PREEMPTED). The job waits again as the next attempt, without back-off and
without count; whatever must be restored is in the store before this commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from rmgr.coord.ops.leader import MAX_PAST
from rmgr.coord.ops.work import of_node
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.multi import (
    MAX_OPS,
    MAX_OPS_OF_ONE_JOB,
    Check,
    Create,
    Delete,
    Exists,
    Gone,
    GoneOrHolds,
    Holds,
    Multi,
    Op,
    Set,
    most_bytes,
    remove,
    size_of,
)
from rmgr.coord.protocol.records import encode_block, encode_fragment, encode_record
from rmgr.model.base import Needs
from rmgr.model.block import Allocation, BlockData, BlockKey, Fragment, NodeHold, PastAttempt, Reserved
from rmgr.model.node import InboxOrder, OrderKind
from rmgr.model.units import counted

#: Bytes by which a block may still grow while it runs, and in the record of its failure.
_GROWS_BYTES = 1024


@dataclass(frozen=True, kw_only=True)  # without slots: derived values are cached
class Assigned:
    """One job on its way to its nodes. fences: (node, version of its record), the head first."""

    queue: str
    key: BlockKey
    data: BlockData
    version: int
    allocation: Allocation
    fences: tuple[tuple[str, int], ...]
    incarnation: int
    guid: str
    stamp: str
    reserved: tuple[str, ...] = ()  #: nodes with cores reserved for it; its start removes these promises

    @cached_property
    def running(self) -> BlockKey:
        """The key under which it runs."""
        return running_key(self.key, self.allocation)

    @cached_property
    def name(self) -> str:
        """The name of its block there."""
        return paths.block_name(self.running)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The operations of its start."""
        return tuple(assign_ops(self))

    @cached_property
    def size(self) -> int:
        """Upper estimate of the size of `ops` on the wire (bytes)."""
        return sum(map(size_of, self.ops))

    @cached_property
    def target(self) -> str:
        """The job's znode under /running."""
        return f"{paths.running_node(self.allocation.head)}/{self.name}"


def running_key(key: BlockKey, allocation: Allocation) -> BlockKey:
    """Returns the key of a waiting block once placed: with the cores and memory of its processes on the head."""
    processes = allocation.shares[0][1]
    cores, memory_mib = processes * allocation.threads, processes * allocation.memory_mib
    return key if (cores, memory_mib) == (key.cores, key.memory_mib) else replace(key, cores=cores, memory_mib=memory_mib)


def assign_ops(job: Assigned) -> list[Op]:
    """Returns the operations of one start: fences of all nodes, the gate, the move of the block, the order, holds on the other nodes."""
    key, allocation = job.running, job.allocation
    data = msgspec.structs.replace(
        job.data,
        incarnation=job.incarnation,
        claimed_us=allocation.started_us,
        stamp=job.stamp,
        started=0,
        allocation=allocation,
        stopping="",
        awaits="",
        saving="",
    )
    order = InboxOrder(order=OrderKind.START, submission=key.submission, index=key.first, extra={"block": job.name})
    ops: list[Op] = [Check(paths.node(node), version) for node, version in job.fences]
    ops += [
        Check(paths.gate(key.submission), allocation.changes),
        Delete(f"{paths.pending(job.queue)}/{job.name}" if key is job.key else paths.pending_block(job.queue, job.key), job.version),
        Create(job.target, encode_block(data)),
        Create(paths.inbox(allocation.head, job.guid), encode_record(order)),
    ]
    for node, processes in allocation.helpers:
        hold = NodeHold(
            head=allocation.head,
            key=job.name,
            cores=processes * allocation.threads,
            memory_mib=processes * allocation.memory_mib,
            processes=processes,
            whole=bool(allocation.whole),
            gang=allocation.gang,
            generation=allocation.generation,
        )
        ops.append(Create(paths.hold_of(node, key.submission, key.first, key.attempt), encode_record(hold)))
    ops += [Delete(paths.reserved_of(node, key.submission, key.first)) for node in job.reserved]
    return ops


def too_large(job: Assigned, most: int) -> str:
    """Returns why no commit can place the job, "" if one can. most: bytes."""
    if not paths.has_digits(job.running):
        return "it asks for more than the name of a block can tell"
    block = next(op for op in job.ops if op.path == job.target)
    size, cap = len(getattr(block, "data", b"")), most_bytes(block.path) - _GROWS_BYTES
    if size > cap:
        what = f"with {counted(len(job.fences), 'node')} its arguments"
        return f"{what} are {size} bytes, and at most {cap} are committed: larger ones are stored"
    if len(job.ops) + 2 > MAX_OPS_OF_ONE_JOB or job.size > most:
        return f"a job cannot be put on {counted(len(job.fences), 'node')} by one commit"
    return ""


def ask_ops(node: str, version: int, key: BlockKey, guid: str, order: InboxOrder) -> list[Op]:
    """Returns an order to the head of a job that runs there, valid while it runs. version: of the node's record."""
    path = paths.inbox(node, guid)
    return [Check(paths.node(node), version), Check(paths.running_block(node, key)), Create(path, encode_record(order))]


def reserve_ops(
    submission: int, index: int, before: Mapping[str, bytes], after: Mapping[str, bytes], runs: Sequence[tuple[str, BlockKey]] = ()
) -> list[Op]:
    """Returns the operations that replace the promises of a waiting job, node by node (encoded `Reserved`).

    runs: (head, block) of the running jobs whose cores it gets: a promise of cores whose job has ended is refused, and decided anew.
    """
    ops: list[Op] = [Check(paths.running_block(node, key)) for node, key in runs] if before != after else []
    for node in sorted({*before, *after}):
        path, data = paths.reserved_of(node, submission, index), after.get(node)
        if data == before.get(node):
            continue
        if node in before:
            ops.append(Delete(path))
        if data is not None:
            ops.append(Create(path, data))
    return ops


def reserve(ops: Sequence[Op]) -> Multi:
    """RESERVE by itself: removes promises whose job is gone, and writes those that a former leader had decided but not written."""
    return Multi(name="RESERVE", ops=tuple(ops), proof=_proof(ops), most_ops=MAX_OPS_OF_ONE_JOB)


def reserved(shares: Sequence[tuple[str, int]], memory_mib: int, resources: Needs = ()) -> bytes:
    """Returns the record of a promise on one node."""
    return encode_record(Reserved(shares=tuple(sorted(shares)), memory_mib=memory_mib, resources=resources))


def _proof(ops: Sequence[Op]) -> Exists | Gone:
    """Returns the proof by the last operation, which creates or deletes a znode."""
    last = ops[-1]
    return Gone(last.path) if type(last) is Delete else Exists(last.path, last.data if type(last) is Create else None)


def place(
    jobs: Sequence[Assigned],
    records: Sequence[tuple[str, bytes, int | None]],
    orders: Sequence[Op] = (),
    gangs: Sequence[tuple[str, bytes, int | None]] = (),
) -> Multi:
    """PLACE: everything that one pass decided, or an independent part of it.

    Args:
        records: (partition, the scheduler's memory, version of its znode or None if there is none). gangs: the same for records of
            gangs.
        orders: `ask_ops` of running jobs, in one commit with what the scheduler remembers of them. Also `reserve_ops`.
    Raises: ValueError if there is nothing to commit.
    """
    ops: list[Op] = [*orders]
    written = [(paths.gangs(partition), data, version) for partition, data, version in gangs]
    written += [(paths.placing(partition), data, version) for partition, data, version in records]
    for path, data, version in written:
        ops.append(Create(path, data) if version is None else Set(path, data, version))
    checked: set[Op] = set()
    for job in jobs:
        for op in job.ops:
            if type(op) is Check:
                if op in checked:
                    continue  # jobs share nodes and submissions
                checked.add(op)
            ops.append(op)
    most = MAX_OPS_OF_ONE_JOB if len(jobs) < 2 else MAX_OPS
    if jobs:
        return Multi(name="PLACE", ops=tuple(ops), proof=Exists(jobs[0].target), most_ops=most)
    if orders and not written:
        return Multi(name="PLACE", ops=tuple(ops), proof=_proof(orders), most_ops=most)
    if not written:
        raise ValueError("a plan without decisions needs no commit")
    path, data, _ = written[0]
    return Multi(name="PLACE", ops=tuple(ops), proof=Holds(path, data), most_ops=most)


def unhold(node: str, submission: int, index: int, attempt: int) -> Multi:
    """UNHOLD: removes a hold whose block is gone."""
    return remove("UNHOLD", paths.hold_of(node, submission, index, attempt))


def complete(
    node: str,
    node_version: int,
    blocks: Sequence[tuple[BlockKey, int]],
    fragment: Fragment,
    *,
    orders: Sequence[str] = (),
    go_idle: bool = False,
) -> Multi:
    """COMPLETE of several jobs of one submission and attempt, each a whole block, in one fragment (of one job: as `ops.complete`).

    Args:
        blocks: (key, version of its running znode). orders: inbox guids that this obeys. go_idle: also create the idle marker.
    """
    gone = [Delete(paths.running_block(node, key), version) for key, version in blocks]
    ops: list[Op] = [*gone, Create(paths.fragment_prefix(blocks[0][0].submission), encode_fragment(fragment), sequence=True)]
    ops += [Delete(paths.inbox(node, guid)) for guid in orders]
    if go_idle:
        ops.append(Create(paths.idle(node)))
    return of_node("COMPLETE", node, node_version, *ops, proof=Gone(gone[0].path))


# -- multis of a Starter: giving an attempt up ---------------------------------------------------------------------------------


def stop(
    node: str,
    node_version: int,
    queue: str,
    key: BlockKey,
    data: BlockData,
    version: int,
    *,
    past: PastAttempt,
    stamp: str,
    held: bool = False,
    moved: bool = False,
    orders: Sequence[str] = (),
) -> tuple[Multi, BlockKey]:
    """STOP: the claimed block waits again in its old place with the next attempt, and with `past` added.

    Args:
        node_version: the fence of the Starter. data, version: of the running znode; none of its tasks may be done.
        past: the attempt that ends here; its reason says why. held: the submission has no gate: set the block aside instead.
        moved: moved by a policy, which is counted. orders: inbox guids that this obeys.
    Returns: the multi, and the key under which the block waits.
    Raises: ValueError if a task of it is done.
    """
    if data.done:
        raise ValueError(f"{paths.block_name(key)} cannot be given up: tasks of it are done")
    path = paths.running_block(node, key)
    following = replace(key, attempt=key.attempt + 1)
    target = paths.held_block(queue, following) if held else paths.pending_block(queue, following)
    again = msgspec.structs.replace(
        data,
        incarnation=0,
        claimed_us=0,
        started=0,
        allocation=None,
        stopping="",
        saving="",
        moves=data.moves + moved,
        past=(*data.past, past)[-MAX_PAST:],
        stamp=stamp,
    )
    done = (Delete(paths.inbox(node, guid)) for guid in orders)
    waits = Create(target, encode_block(again))
    return of_node("STOP", node, node_version, Delete(path, version), waits, *done, proof=Gone(path)), following


def note(node: str, node_version: int, key: BlockKey, data: BlockData, version: int, *, orders: Sequence[str] = ()) -> Multi:
    """NOTE: the claimed block stays, and records the fate of its checkpoints; removes orders that are done or refused.

    data: as it is from now on, with a new stamp.
    """
    path, encoded = paths.running_block(node, key), encode_block(data)
    done = (Delete(paths.inbox(node, guid)) for guid in orders)
    return of_node("NOTE", node, node_version, Set(path, encoded, version), *done, proof=GoneOrHolds(path, encoded))
