"""The function that servers of calls offer in scenarios of paper 004: it takes time, and what it was given is not sent back."""

from __future__ import annotations

from rmgr.runner.python import shipped


def solve(operations: int, data: bytes) -> int:
    """As long as so many operations take at this server's speed."""
    shipped.model(operations, b"")
    return len(data)
