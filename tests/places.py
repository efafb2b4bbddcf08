"""Says where the tests find things: the checkout, golden files, extracts of traces, the harness. Files move, these names stay."""

from __future__ import annotations

import sys
from pathlib import Path

#: Has the checkout's commands beside it, also while `work_that_users_reach` has another interpreter stand for it.
PYTHON = sys.executable
TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CHAOS = TESTS / "chaos"
EXTRACTS = TESTS / "papers" / "extracts"
GOLDEN = TESTS / "golden"
HARNESS = TESTS / "harness"
