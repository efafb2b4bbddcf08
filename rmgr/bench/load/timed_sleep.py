"""The task of `bench mixed`, alone in its module: a worker imports nothing else for it (the benchmark itself: 0.3 s of CPU)."""

from __future__ import annotations

import os
import time


def timed_sleep(seconds: float) -> tuple[str, float, float]:
    """(node, start, end by the machine's clock) of a task that takes no processor."""
    started = time.time()
    time.sleep(seconds)
    return os.environ.get("RMGR_NODELIST", ""), started, time.time()
