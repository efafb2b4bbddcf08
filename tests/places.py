"""Says where the tests find things: the checkout, golden files, extracts of traces, the harness. Files move, these names stay."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CHAOS = TESTS / "chaos"
EXTRACTS = TESTS / "papers" / "extracts"
GOLDEN = TESTS / "golden"
HARNESS = TESTS / "harness"
