"""Paths that tests use: the checkout, golden files, extracts of traces, the harness. Files may move; these names stay."""

from __future__ import annotations

import sys
from pathlib import Path

#: The interpreter with the checkout's commands beside it, even while `work_that_users_reach` replaces `sys.executable`.
PYTHON = sys.executable
TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CHAOS = TESTS / "chaos"
EXTRACTS = TESTS / "papers" / "extracts"
GOLDEN = TESTS / "golden"
HARNESS = TESTS / "harness"
