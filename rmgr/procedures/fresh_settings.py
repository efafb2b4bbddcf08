"""The settings of the cluster for who asks often: read when they are older than some seconds."""

from __future__ import annotations

import math
from contextlib import suppress

from rmgr.coord.protocol.ports import Coordinator
from rmgr.errors import CoordinationUnavailable
from rmgr.model.cluster.queue import ClusterSettings
from rmgr.procedures.bootstrap import read_settings
from rmgr.runtime import machine

#: How old they may be.
FRESH_S = 5.0


class FreshSettings:
    """A callable. While ZooKeeper is away what was known last is true. Thread-safe: two readers may read at once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._known = ClusterSettings()
        self._read_s = -math.inf

    def __call__(self) -> ClusterSettings:
        now_s = machine.monotonic()
        if now_s - self._read_s > FRESH_S:
            self._read_s = now_s
            with suppress(CoordinationUnavailable):
                self._known = read_settings(self._coordinator)
        return self._known
