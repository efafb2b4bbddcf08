"""Multis, outcomes, znodes and errors to the gateway's messages and back."""

from __future__ import annotations

from typing import Any

from rmgr import errors
from rmgr.adapters.rpc.server import named_error
from rmgr.coord.protocol.multi import (
    Check,
    Committed,
    Conflict,
    ConflictKind,
    Create,
    Delete,
    Exists,
    Gone,
    GoneOrHolds,
    Holds,
    Multi,
    Op,
    Outcome,
    Proof,
    Set,
    Stamped,
    Stat,
    Unknown,
)
from rmgr.v1 import gateway_pb2 as pb

# -- multis ------------------------------------------------------------------------------------------------------------------


def multi_to(multi: Multi, message: Any) -> None:
    """Writes `multi` into a pb.Multi. Cost: O(operations)."""
    message.name = multi.name
    for op in multi.ops:
        _op_to(op, message.ops.add())
    proof = multi.proof
    message.proof.path = proof.path
    match proof:
        case Exists(data=data):
            message.proof.kind = pb.EXISTS
            if data is not None:
                message.proof.data = data
        case Gone():
            message.proof.kind = pb.GONE
        case Holds(data=data):
            message.proof.kind, message.proof.data = pb.HOLDS, data
        case GoneOrHolds(data=data):
            message.proof.kind, message.proof.data = pb.GONE_OR_HOLDS, data
    if multi.guard is not None:
        _op_to(multi.guard, message.guard)


def multi_from(message: Any) -> Multi:
    """A pb.Multi as data. Raises UsageError when it is none."""
    guard = _op_from(message.guard) if message.HasField("guard") else None
    if guard is not None and not isinstance(guard, Check):
        raise errors.UsageError(f"{message.name}: a guard is a check")
    return Multi(name=message.name, ops=tuple(_op_from(op) for op in message.ops), proof=_proof_from(message.proof), guard=guard)


def _op_to(op: Op, message: Any) -> None:
    message.path = op.path
    match op:
        case Check(version=version):
            message.kind, message.version = pb.CHECK, version
        case Create(data=data, ephemeral=ephemeral, sequence=sequence):
            message.kind, message.data, message.ephemeral, message.sequence = pb.CREATE, data, ephemeral, sequence
        case Set(data=data, version=version):
            message.kind, message.data, message.version = pb.SET, data, version
        case Delete(version=version):
            message.kind, message.version = pb.DELETE, version


def _op_from(message: Any) -> Op:
    kind = message.kind
    if kind == pb.CREATE:
        return Create(message.path, message.data, message.ephemeral, message.sequence)
    if kind == pb.SET:
        return Set(message.path, message.data, message.version)
    if kind == pb.DELETE:
        return Delete(message.path, message.version)
    if kind == pb.CHECK:
        return Check(message.path, message.version)
    raise errors.UsageError(f"unknown kind of operation {kind}", hint="is the client newer than the gateway? rmgr version")


def _proof_from(message: Any) -> Proof:
    kind = message.kind
    if kind == pb.EXISTS:
        return Exists(message.path, message.data if message.HasField("data") else None)
    if kind == pb.GONE:
        return Gone(message.path)
    if kind == pb.HOLDS:
        return Holds(message.path, message.data)
    if kind == pb.GONE_OR_HOLDS:
        return GoneOrHolds(message.path, message.data)
    raise errors.UsageError(f"unknown kind of proof {kind}", hint="is the client newer than the gateway? rmgr version")


# -- outcomes ----------------------------------------------------------------------------------------------------------------


def outcome_to(outcome: Outcome, message: Any) -> None:
    """Writes an outcome into a pb.Outcome."""
    match outcome:
        case Committed(paths=paths, versions=versions, resolved=resolved):
            message.committed.paths.extend(paths)
            message.committed.versions.extend(versions)
            message.committed.resolved = resolved
        case Conflict(index=index, path=path, kind=kind):
            message.conflict.index, message.conflict.path, message.conflict.kind = index, path, str(kind)
        case Unknown(cause=cause):
            message.unknown = cause


def outcome_from(message: Any) -> Outcome:
    """A pb.Outcome as data."""
    match message.WhichOneof("what"):
        case "committed":
            done = message.committed
            return Committed(paths=tuple(done.paths), versions=tuple(done.versions), resolved=done.resolved)
        case "conflict":
            return Conflict(index=message.conflict.index, path=message.conflict.path, kind=ConflictKind(message.conflict.kind))
        case _:
            return Unknown(message.unknown)


# -- znodes ------------------------------------------------------------------------------------------------------------------


def stat_to(stat: Stat, message: Any) -> None:
    """Writes a stat into a pb.Stat."""
    message.version = stat.version
    message.mzxid = stat.mzxid
    message.children = stat.children
    message.creates = stat.creates
    message.ephemeral_owner = stat.ephemeral_owner
    message.mtime_ms = stat.mtime_ms


def znode_to(znode: Stamped, message: Any) -> None:
    """Writes data and stat into a pb.Znode."""
    message.data = znode.data
    stat_to(znode.stat, message.stat)


# -- errors ------------------------------------------------------------------------------------------------------------------


def error_to(error: errors.RmgrError, message: Any) -> None:
    """Writes an error into a pb.Error."""
    message.type, message.message, message.hint = type(error).__name__, error.message, error.hint


def error_from(message: Any) -> errors.RmgrError:
    """A pb.Error as the class that it was."""
    return named_error(message.type, message.message, message.hint)
