"""The settings of the cluster for who asks often: read when they are older than some seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from rmgr.errors import Unavailable
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.runtime import machine

#: How old they may be.
FRESH_S = 5.0


class FreshSettings:
    """A callable. read: asks for them; while nobody answers what was known last is true. Thread-safe: two readers may read at once."""

    def __init__(self, read: Callable[[], ClusterSettings]) -> None:
        self._read = read
        self._known = ClusterSettings()
        self._read_s = -math.inf

    def __call__(self) -> ClusterSettings:
        now_s = machine.monotonic()
        if now_s - self._read_s > FRESH_S:
            self._read_s = now_s
            with suppress(Unavailable):
                self._known = self._read()
        return self._known
