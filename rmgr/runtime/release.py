"""Which release this process runs, and whether it may join a cluster (`model/version.py` has the rule)."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from rmgr.errors import VersionMismatch
from rmgr.model import version
from rmgr.model.node import Meta
from rmgr.model.version import Release


@cache
def package_version() -> str:
    """Of the installed package; "" when rmgr runs from a source tree that is not installed."""
    try:
        return metadata.version("rmgr")
    except metadata.PackageNotFoundError:
        return ""


def release() -> Release:
    """What this process runs."""
    return Release(version=package_version(), protocol=version.PROTOCOL)


def check_release(meta: Meta) -> None:
    """Raises VersionMismatch when this release is too old or too new for the cluster: the message names both."""
    refused = version.refusal(release(), protocol=meta.protocol, oldest=meta.oldest)
    if refused is not None:
        raise VersionMismatch(refused.what, hint=refused.hint)
