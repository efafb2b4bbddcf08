"""Releases side by side: which may work together in one cluster, and what an older one keeps of a newer one's records.

A *protocol* is the form of records and RPC that a release knows; it rises by one when a release writes something that the
release before does not know. A cluster is upgraded one process at a time, so releases whose protocols differ by one
work together; all others are refused. The rules for changing a record:

- fields are only added, with a default; their type and meaning never change; no name is used again;
- JSON records keep unknown fields (`Newer` in `model/base.py`) when an older release rewrites them;
- MessagePack structs get new fields only at the end; blocks keep unknown trailing elements;
- a new reason of an end may come at any time: a release that does not know it reads `Reason.OTHER`;
- another new value of an enum is written only when `Meta.oldest` has reached the release that knows it;
- the same holds for a new field that is signed with the work (`coord/seal.py`), because a release that cannot honour it must refuse
  the work, and for a new form of its signature, which the release before would take for a forgery.

A new cluster admits no release older than its creator's, so all that this release writes may be used at once. A cluster upgraded to
this release still admits the one before, and begins to write such values once the next release is everywhere.

    1  the first
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmgr.errors import VersionMismatch, WrongCluster

if TYPE_CHECKING:
    from rmgr.model.node import Meta

#: The package's name for pip; `rmgr` on the public index is another project.
DISTRIBUTION = "rmgr-cluster"
#: Version of the package, for people.
VERSION = "0.2.0"
#: Protocol of this release, and the oldest that it works with.
PROTOCOL = 1
#: Most difference of protocols that work side by side.
SKEW = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release that a process runs. version: of the package, for people."""

    version: str = ""
    protocol: int = PROTOCOL

    def __str__(self) -> str:
        return f"{self.version or 'an unknown version'} (protocol {self.protocol})"


def release() -> Release:
    """Returns the release of this process."""
    return Release(version=VERSION, protocol=PROTOCOL)


def refusal(mine: Release, *, protocol: int, oldest: int) -> VersionMismatch | None:
    """Returns why `mine` may not join, None if it may.

    Args:
        protocol: of all processes of the cluster. oldest: the oldest that may join.
    """
    if mine.protocol < oldest:
        return VersionMismatch(
            f"this rmgr {mine} is too old for the cluster, which speaks protocol {protocol} and lets in {oldest} and later",
            hint="upgrade this installation",
        )
    if mine.protocol > protocol + SKEW:
        return VersionMismatch(
            f"this rmgr {mine} is too new for the cluster, which speaks protocol {protocol}: one release at a time",
            hint=f"upgrade every daemon to a release with protocol {protocol + SKEW} first",
        )
    return None


def raised(protocol: int, members: list[int]) -> int:
    """Returns the new protocol of a cluster whose leader and members speak `members`: their lowest, but never below `protocol`."""
    return max(protocol, min(members, default=protocol))


# -- whether a cluster is the right one, and this process may join it ----------------------------------------------------------


#: Hint if the tree of a known cluster is missing.
WIPED = "ZooKeeper was wiped, or it is another one: restore its data, or give rmgr a new data store; rmgr doctor reports more"

#: Hint if the data store of a known cluster is empty.
EMPTIED = (
    "restore it from a backup, or name the right one (--store); to go on without all that was in it, stop the daemons and type "
    "rmgr admin init-store --accept-loss"
)


def check_cluster(meta: Meta, expected: str | None) -> None:
    """Raises WrongCluster if the cluster's id is not `expected` (None: any is accepted); VersionMismatch as `check_release`."""
    if expected and meta.cluster_id != expected:
        raise WrongCluster(f"ZooKeeper belongs to cluster {meta.cluster_id}, but cluster {expected} is expected", hint=WIPED)
    check_release(meta)


def check_release(meta: Meta) -> None:
    """Raises VersionMismatch, naming both, if this release is too old or too new for the cluster."""
    if (refused := refusal(release(), protocol=meta.protocol, oldest=meta.oldest)) is not None:
        raise refused


def check_store(meta: Meta, owner: str | None) -> None:
    """Raises WrongCluster if the data store names no cluster (`owner` is None or "") although this one has bound its store."""
    if not owner and meta.store_bound_us:
        raise emptied(meta.cluster_id)


def emptied(cluster_id: str) -> WrongCluster:
    """Returns the error for an empty data store of a cluster that has used one."""
    what = f"the data store is empty, but cluster {cluster_id} has kept its data in one: it was emptied, or this is another store"
    return WrongCluster(what, hint=EMPTIED)
