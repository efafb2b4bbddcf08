"""The interpreter and the package with which a node's work is started. Read at each use: tests put others here."""

from __future__ import annotations

import sys
from pathlib import Path

#: Interpreter of spawners and rank programs, and of Python workers unless another one is configured.
PYTHON = sys.executable
#: Directory that holds the package `rmgr`.
ROOT = Path(__file__).resolve().parents[2]
#: Both are this process's own: what it has imported is what they import.
IS_OWN = True
