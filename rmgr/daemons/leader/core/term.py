"""One term of a leader: its numbers, and where what happens in it is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmgr.daemons.leader.core.metrics import LeaderMetrics
from rmgr.runtime.aside import Aside
from rmgr.runtime.logger import Log


@dataclass(frozen=True, slots=True)
class Term:
    """From TAKE-OVER until the fence is lost.

    Attributes:
        epoch_version: E, checked by every commit. epoch: the number shown to people.
        wall_us: microseconds since the epoch, for people and retention only. aside: what made a handler raise.
    """

    epoch: int
    epoch_version: int
    log: Log
    metrics: LeaderMetrics
    wall_us: Callable[[], int]
    aside: Aside
