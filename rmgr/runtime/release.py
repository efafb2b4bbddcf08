"""Checks this process's release, and whether a cluster is the right one and may be joined (`model/base/version.py` has the rule)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.errors import VersionMismatch, WrongCluster
from rmgr.model.base import version
from rmgr.model.base.version import Release

if TYPE_CHECKING:
    from rmgr.model.cluster.node import Meta

#: The package's name for pip; `rmgr` on the public index is another project.
DISTRIBUTION = "rmgr-cluster"
#: Hint if the tree of a known cluster is missing.
WIPED = "ZooKeeper was wiped, or it is another one: restore its data, or give rmgr a new data store; rmgr doctor reports more"

#: Hint if the data store of a known cluster is empty.
EMPTIED = (
    "restore it from a backup, or name the right one (--store); to go on without all that was in it, stop the daemons and type "
    "rmgr admin init-store --accept-loss"
)


def release() -> Release:
    """Returns the release of this process."""
    return Release(version=version.VERSION, protocol=version.PROTOCOL)


def check_cluster(meta: Meta, expected: str | None) -> None:
    """Raises WrongCluster if the cluster's id is not `expected` (None: any is accepted); VersionMismatch as `check_release`."""
    if expected and meta.cluster_id != expected:
        raise WrongCluster(f"ZooKeeper belongs to cluster {meta.cluster_id}, but cluster {expected} is expected", hint=WIPED)
    check_release(meta)


def check_store(meta: Meta, owner: str | None) -> None:
    """Raises WrongCluster if the data store names no cluster (`owner` is None or "") although this one has bound its store."""
    if not owner and meta.store_bound_us:
        raise emptied(meta.cluster_id)


def emptied(cluster_id: str) -> WrongCluster:
    """Returns the error for an empty data store of a cluster that has used one."""
    what = f"the data store is empty, but cluster {cluster_id} has kept its data in one: it was emptied, or this is another store"
    return WrongCluster(what, hint=EMPTIED)


def check_release(meta: Meta) -> None:
    """Raises VersionMismatch, naming both, if this release is too old or too new for the cluster."""
    if version.refusal(Release(protocol=version.PROTOCOL), protocol=meta.protocol, oldest=meta.oldest) is None:
        return
    refused = version.refusal(release(), protocol=meta.protocol, oldest=meta.oldest)
    if refused is not None:
        raise VersionMismatch(refused.what, hint=refused.hint)
