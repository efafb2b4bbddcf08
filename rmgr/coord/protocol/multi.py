"""One change of state as data: the operations of a multi, its proof, and its three-valued outcome.

A `Multi` is built by a pure function (`coord/ops/work.py`), committed by one adapter, and answered with `Committed`,
`Conflict` or `Unknown`; never with a bool. `proof` says how an unknown outcome is read back (protocol.md section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmgr.coord.protocol import paths

#: Caps checked before anything is sent, because ZooKeeper answers an oversized request by closing the connection.
MAX_OPS = 200
#: A job on hundreds of nodes is placed by one multi, with a check and a hold each. An UPDATE checks that hundreds of blocks still wait.
MAX_OPS_OF_ONE_JOB = 1600
MAX_MULTI_BYTES = 256 * 1024
MAX_ZNODE_BYTES = 16 * 1024
#: The scheduler's memory of a partition grows with its jobs: one znode per partition, read once per leadership.
MAX_PLACING_BYTES = 128 * 1024
#: All jobs of a partition that share nodes in time, in one record from which each node computes every slot.
MAX_GANGS_BYTES = 64 * 1024
#: Users' use of their caps, which every Starter reads at most once a second. It has room for the users nearest to their caps.
MAX_USAGE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """Fails unless `path` exists and is at data version `version` (-1: only exists)."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Create:
    """Creates `path`; with `sequence` the server appends ten digits, with `ephemeral` it ends with the session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replaces the data of `path`, if it is at `version`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes `path`, if it is at `version` (-1: any)."""

    path: str
    version: int = -1


Op = Check | Create | Set | Delete


def most_bytes(path: str) -> int:
    """Returns how many bytes a znode may hold."""
    if path.startswith(f"{paths.JOBS}/"):
        return MAX_PLACING_BYTES
    if path == paths.USAGE:
        return MAX_USAGE_BYTES
    return MAX_GANGS_BYTES if path.startswith(f"{paths.GANGS}/") else MAX_ZNODE_BYTES


def size_of(op: Op) -> int:
    """Returns an upper estimate of an operation's size on the wire (bytes), without its access list."""
    return 64 + len(op.path) + len(getattr(op, "data", b""))


# -- proofs: what must be read to know that a multi was committed ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exists:
    """Committed if `path` exists (a name only this multi creates). With `data`: and holds exactly these bytes."""

    path: str
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Committed if `path` no longer exists (a name only this multi deletes)."""

    path: str


@dataclass(frozen=True, slots=True)
class Holds:
    """Committed if `path` holds exactly `data` (bytes only this multi writes)."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class GoneOrHolds:
    """Committed if `path` is gone, or holds exactly `data`: for a znode that only its owner changes."""

    path: str
    data: bytes


Proof = Exists | Gone | Holds | GoneOrHolds


@dataclass(frozen=True, slots=True, kw_only=True)
class Multi:
    """Operations that happen together or not at all.

    Args:
        name: the operation's name in protocol.md (SUBMIT, CLAIM, ...): for logs, metrics and failpoints.
        ops: at most `most_ops`.
        proof: how to read back an unknown outcome.
        guard: what must still hold for the proof to count, read *after* it: the fence of a Starter whose znodes
            the leader may change once it has fenced it. A guard that no longer holds is answered as its Conflict.
    """

    name: str
    ops: tuple[Op, ...]
    proof: Proof
    guard: Check | None = None
    most_ops: int = MAX_OPS

    def size_bytes(self) -> int:
        """Returns an upper estimate of the size of the request on the wire. Cost: O(ops)."""
        return sum(map(size_of, self.ops))


def put(name: str, path: str, data: bytes, version: int | None, *checks: Check) -> Multi:
    """Sets a znode that has this version, or creates it (None); its bytes are the proof."""
    write: Op = Create(path, data) if version is None else Set(path, data, version)
    return Multi(name=name, ops=(*checks, write), proof=Holds(path, data))


def remove(name: str, path: str, version: int = -1, *checks: Check) -> Multi:
    """Deletes a znode; its absence is the proof."""
    return Multi(name=name, ops=(*checks, Delete(path, version)), proof=Gone(path))


# -- outcomes -------------------------------------------------------------------------------------------------------


class ConflictKind(StrEnum):
    """Cause of the failure of a multi's first failing operation."""

    NO_NODE = "NO_NODE"
    NODE_EXISTS = "NODE_EXISTS"
    BAD_VERSION = "BAD_VERSION"
    NOT_EMPTY = "NOT_EMPTY"


@dataclass(frozen=True, slots=True)
class Committed:
    """The multi is durable. `paths[i]` is the name that operation i created (sequence digits included), else its path.

    `resolved`: True when it was found by read-back; created sequential names are then unknown (the path as asked).
    `versions[i]` is the data version after operation i (0 for a create, -1 where it is unknown).
    """

    paths: tuple[str, ...]
    versions: tuple[int, ...] = ()
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing happened: operation `index` (on `path`) did not find the tree as expected."""

    index: int
    path: str
    kind: ConflictKind


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer was lost and could not be read back within the deadline. Nothing may be concluded."""

    cause: str


Outcome = Committed | Conflict | Unknown


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of a znode's stat that the protocol uses. `creates` counts the children ever created (sequence counter).

    mzxid, czxid: transactions of its last change and of its creation, which was at ctime_ms by the clock of ZooKeeper's leader.
    """

    version: int
    mzxid: int
    children: int
    creates: int
    ephemeral_owner: int
    mtime_ms: int
    czxid: int = 0
    ctime_ms: int = 0


@dataclass(frozen=True, slots=True)
class Stamped:
    """Bytes read from a znode, with the version under which they were read."""

    data: bytes
    stat: Stat

    @property
    def version(self) -> int:
        """Data version at the read."""
        return self.stat.version
