"""Multis and bulk reads on ZooKeeper's wire (jute): encoded in the caller's thread, decoded without intermediate objects.

Why not kazoo's own `Transaction`: it costs three times the processor time (110 us a commit against 35 to 50), hides
exceptions in a list, and drops empty results.

One request, ZooKeeper's multiRead, reads many znodes or lists of names. Among pipelined requests, a znode read by itself costs ZooKeeper
17-28 us of processor and the client 30; as one of 64 in a request, 5 and 5. When each request is awaited, a single read costs 140 and 100,
and one of 8 znodes 195 and 155. multiRead cannot set watches. Servers know it since 3.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmgr.coord.protocol.multi import (
    MAX_MULTI_BYTES,
    MAX_ZNODE_BYTES,
    Check,
    Committed,
    Conflict,
    ConflictKind,
    Create,
    Delete,
    Multi,
    Set,
    Stamped,
    Stat,
    most_bytes,
)
from rmgr.errors import RequestTooLarge

OP_MULTI = 14
_CREATE, _DELETE, _SET, _CHECK, _ERROR = 1, 2, 5, 13, -1
_HEADER = struct.Struct("!iBi")  # type, done, error: before each operation and each result
_OP_START = struct.Struct("!iBii")  # as _HEADER, then the length of the path
_INT = struct.Struct("!i")
_END = _HEADER.pack(-1, 1, -1)
_STAT_BYTES = 68
_STAT_VERSION_AT = 32

#: Error codes of KeeperException.java that mean "the tree differs from what the multi expects".
CONFLICTS = {-101: ConflictKind.NO_NODE, -110: ConflictKind.NODE_EXISTS, -103: ConflictKind.BAD_VERSION, -111: ConflictKind.NOT_EMPTY}


@dataclass(frozen=True, slots=True)
class Failure:
    """A multi that failed for a reason other than a conflict: operation `index`, error code of KeeperException.java."""

    index: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One entry of an access list: `perms` (1 read, 2 write, 4 create, 8 delete, 16 admin), scheme and id."""

    perms: int = 31
    scheme: str = "world"
    id: str = "anyone"


OPEN_ACL = (Acl(),)


def encode_acl(entries: tuple[Acl, ...]) -> bytes:
    """Encodes an access list as every create carries it."""
    out = bytearray(_INT.pack(len(entries)))
    for entry in entries:
        out += _INT.pack(entry.perms)
        for text in (entry.scheme.encode(), entry.id.encode()):
            out += _INT.pack(len(text)) + text
    return bytes(out)


def encode_multi(multi: Multi, root: str, acl: Callable[[str], bytes]) -> bytes:
    """Returns the request's body, with paths below `root`. Cost: O(operations), about 1 us each.

    Args:
        acl: returns the encoded access list for a znode to create. Lists do not count against the caps: they take up to 0.4 KiB per
            operation, and the server accepts four times what the caps allow.
    Raises: RequestTooLarge over the caps of coord/protocol/multi.py; never UsageError, since the server checks the paths.
    """
    if len(multi.ops) > multi.most_ops:
        msg = f"{multi.name}: {len(multi.ops)} operations in one multi, at most {multi.most_ops} are sent"
        raise RequestTooLarge(msg)
    out = bytearray()
    lists = 0
    for op in multi.ops:
        path = (root + op.path).encode()
        kind = type(op)
        if kind is Check:
            out += _OP_START.pack(_CHECK, 0, -1, len(path)) + path + _INT.pack(op.version)  # type: ignore[union-attr]
        elif kind is Delete:
            out += _OP_START.pack(_DELETE, 0, -1, len(path)) + path + _INT.pack(op.version)  # type: ignore[union-attr]
        else:
            data: bytes = op.data  # type: ignore[union-attr]
            if len(data) > MAX_ZNODE_BYTES and len(data) > most_bytes(op.path):
                msg = f"{multi.name}: {len(data)} bytes for {op.path}, a znode takes at most {most_bytes(op.path)}"
                raise RequestTooLarge(msg)
            if kind is Set:
                out += _OP_START.pack(_SET, 0, -1, len(path)) + path + _INT.pack(len(data)) + data + _INT.pack(op.version)  # type: ignore[union-attr]
            else:
                assert isinstance(op, Create)
                flags = (1 if op.ephemeral else 0) | (2 if op.sequence else 0)
                entries = acl(op.path)
                lists += len(entries)
                out += _OP_START.pack(_CREATE, 0, -1, len(path)) + path + _INT.pack(len(data)) + data + entries + _INT.pack(flags)
    if len(out) - lists > MAX_MULTI_BYTES:
        msg = f"{multi.name}: {len(out) - lists} bytes in one multi, at most {MAX_MULTI_BYTES} are sent"
        raise RequestTooLarge(msg)
    return bytes(out + _END)


def decode_multi(multi: Multi, root: str, buffer: bytes | bytearray, offset: int) -> Committed | Conflict | Failure:
    """Decodes the answer to `multi`, element by element. Cost: O(operations)."""
    paths: list[str] = []
    versions: list[int] = []
    ops = multi.ops
    index = 0
    while True:
        kind, done, _ = _HEADER.unpack_from(buffer, offset)
        offset += _HEADER.size
        if done:
            return Committed(paths=tuple(paths), versions=tuple(versions))
        op = ops[index]
        if kind == _CREATE:
            (length,) = _INT.unpack_from(buffer, offset)
            offset += 4 + length
            paths.append(buffer[offset - length + len(root) : offset].decode())
            versions.append(0)
        elif kind == _ERROR:
            (code,) = _INT.unpack_from(buffer, offset)
            offset += 4
            if code != 0:  # operations before the failing one say 0 (rolled back), those after it -2
                conflict = CONFLICTS.get(code)
                return Failure(index, code) if conflict is None else Conflict(index=index, path=op.path, kind=conflict)
        else:
            paths.append(op.path)
            if kind == _SET:
                versions.append(_INT.unpack_from(buffer, offset + _STAT_VERSION_AT)[0])
                offset += _STAT_BYTES
            else:
                versions.append(op.version if type(op) is Check else -1)
        index += 1


# -- many znodes ---------------------------------------------------------------------------------------------------------------


#: Most znodes per request: with the largest znodes allowed, the answer has 1 MiB.
MOST = 64

_GET, _CHILDREN = 4, 8
_NO_NODE = -101
_ITEM = struct.Struct("!iBii")  # type, done, error; length of the path
_STAT = struct.Struct("!qqqqiiiqiiq")


class Refused(NamedTuple):
    """A znode that could not be read for a reason other than absence: its place in the request, ZooKeeper's error code."""

    place: int
    code: int


class BulkRead:
    """The request in kazoo's form: reads the data at `paths`, then the names below `lists`, all at one moment.

    A server answers a multiRead while it applies no write: a stand-alone one has one thread for both, and the CommitProcessor of
    an ensemble's member "allows no read requests to be processed in parallel with write requests". So writes wait in the meantime: about
    5 us for each item and 1 ms for 10,000 names.
    """

    __slots__ = ("lists", "paths")
    type = 22

    def __init__(self, paths: Sequence[str], lists: Sequence[str] = ()) -> None:
        self.paths = paths
        self.lists = lists

    def serialize(self) -> bytes:
        """Returns the request's body."""
        out = bytearray()
        for kind, paths in ((_GET, self.paths), (_CHILDREN, self.lists)):
            for path in paths:
                name = path.encode()
                out += _ITEM.pack(kind, 0, -1, len(name)) + name + b"\0"
        return bytes(out + _END)

    def deserialize(self, buffer: bytes, offset: int) -> list[Stamped | list[str] | None] | Refused:
        """Returns the data at each path and the names below each list, None where the znode is absent. Cost: O(paths), 2 us each."""
        found: list[Stamped | list[str] | None] = []
        unpack, at = _HEADER.unpack_from, offset
        while True:
            kind, done, _ = unpack(buffer, at)
            at += 9
            if done:
                return found
            (size,) = _INT.unpack_from(buffer, at)
            at += 4
            if kind == _ERROR:
                if size != _NO_NODE:
                    return Refused(len(found), size)
                found.append(None)
            elif kind == _CHILDREN:
                names = []
                for _ in range(size):
                    (length,) = _INT.unpack_from(buffer, at)
                    names.append(bytes(buffer[at + 4 : at + 4 + length]).decode())
                    at += 4 + length
                found.append(names)
            else:
                data = bytes(buffer[at : at + size]) if size > 0 else b""
                at += max(0, size)
                czxid, mzxid, ctime, mtime, version, changes, _, owner, _, children, _ = _STAT.unpack_from(buffer, at)
                at += _STAT.size
                found.append(Stamped(data, Stat(version, mzxid, children, (changes + children) // 2, owner, mtime, czxid, ctime)))
