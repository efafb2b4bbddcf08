"""The interpreter and the package with which a node's work is started. Read at each use, since tests replace them."""

from __future__ import annotations

import sys
from pathlib import Path

#: Interpreter of spawners and rank programs, and of Python workers unless another one is configured.
PYTHON = sys.executable
#: Directory that holds the package `rmgr`.
ROOT = Path(str(sys.modules["rmgr"].__file__)).resolve().parents[1]
#: Whether both are this process's own: then spawners import what it has imported.
IS_OWN = True


def source(module: str) -> Path:
    """Returns the file of a module of rmgr, for programs that start from a file, without the package. module: dotted, as in an import."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")
