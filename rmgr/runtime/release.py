"""Which release this process runs, and whether a cluster is the right one and may be joined (`model/version.py` has the rule)."""

from __future__ import annotations

from functools import cache

from rmgr.errors import VersionMismatch, WrongCluster
from rmgr.model import version
from rmgr.model.node import Meta
from rmgr.model.version import Release

#: What to do where the tree of a known cluster is not there.
WIPED = "ZooKeeper was wiped, or it is another one: restore its data, or give rmgr a new data store; rmgr doctor tells more"


@cache
def package_version() -> str:
    """Of the installed package; "" when rmgr runs from a source tree that is not installed."""
    from importlib import metadata  # 10 ms, and most processes have no use for it

    try:
        return metadata.version("rmgr")
    except metadata.PackageNotFoundError:
        return ""


def release() -> Release:
    """What this process runs."""
    return Release(version=package_version(), protocol=version.PROTOCOL)


def check_cluster(meta: Meta, expected: str | None) -> None:
    """Raises WrongCluster when it is not the one whose id is `expected` (None: any is); VersionMismatch as `check_release`."""
    if expected and meta.cluster_id != expected:
        raise WrongCluster(f"ZooKeeper belongs to cluster {meta.cluster_id}, but cluster {expected} is expected", hint=WIPED)
    check_release(meta)


def check_release(meta: Meta) -> None:
    """Raises VersionMismatch when this release is too old or too new for the cluster: the message names both."""
    if version.refusal(Release(protocol=version.PROTOCOL), protocol=meta.protocol, oldest=meta.oldest) is None:
        return
    refused = version.refusal(release(), protocol=meta.protocol, oldest=meta.oldest)
    if refused is not None:
        raise VersionMismatch(refused.what, hint=refused.hint)
