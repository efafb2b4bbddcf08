"""What workers run for benches, alone in its module: a worker imports nothing else for it (a benchmark itself: 0.3 s of CPU)."""

from __future__ import annotations

import os
import time

from rmgr.runner.python import shipped


def timed_sleep(seconds: float) -> tuple[str, float, float]:
    """(node, start, end by the machine's clock) of a task that takes no processor."""
    started = time.time()
    time.sleep(seconds)
    return os.environ.get("RMGR_NODELIST", ""), started, time.time()


def solve(operations: int, data: bytes) -> int:
    """A call of the scenarios of paper 004: as long as so many operations take at this server's speed; `data` is not sent back."""
    shipped.model(operations, b"")
    return len(data)
