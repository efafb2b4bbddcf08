"""Can this interpreter run the work? Versions of Python, of cloudpickle and of rmgr itself, compared before anything is unpickled."""

from __future__ import annotations

import sys

import cloudpickle

from rmgr.errors import VersionMismatch
from rmgr.model.base.version import PROTOCOL
from rmgr.model.wire.frames import StartWorker


def check_versions(spec: StartWorker, node: str) -> None:
    """Raises VersionMismatch naming the node and both versions."""
    where = f"node {node} runs {sys.executable}"
    if spec.protocol and spec.protocol != PROTOCOL:
        raise VersionMismatch(
            f"{where} with rmgr of protocol {PROTOCOL}, its Starter speaks {spec.protocol}",
            hint="install the Starter's release of rmgr in that interpreter, or name another one with --python",
        )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec.python_version and spec.python_version != here:
        raise VersionMismatch(
            f"the work was submitted by Python {spec.python_version}, node {node} runs Python {here}",
            hint=f"submit with Python {here}, or name an interpreter of the nodes with --python",
        )
    if spec.cloudpickle and _major(spec.cloudpickle) != _major(cloudpickle.__version__):
        raise mismatch(spec.cloudpickle, node)


def mismatch(theirs: str, node: str) -> VersionMismatch:
    """The work's cloudpickle is not ours."""
    here = cloudpickle.__version__
    return VersionMismatch(
        f"the work was pickled by cloudpickle {theirs}, node {node} has cloudpickle {here} ({sys.executable})",
        hint="install the same cloudpickle on both sides, or name an interpreter that has it with --python",
    )


def _major(version: str) -> str:
    return version.partition(".")[0]
