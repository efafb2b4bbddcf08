"""Performance P of a server: operations/s that a call alone has there, declared, calibrated or learnt (the paper's first open point)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from rmgr.sched.records import Call, Server

#: Of a server of which nothing is known.
SLOWEST = 1e-6
#: (server, function, operations) -> operations/s that answered calls showed, None: none of them was like this.
Lookup: TypeAlias = Callable[[str, str, int], float | None]


class Performance(StrEnum):
    """Source of P. Where it is not known that way, the source before it in this list answers."""

    DECLARED = "declared"  #: as its owner says
    CALIBRATED = "calibrated"  #: a benchmark run there
    LEARNT = "learnt"  #: answered calls of the same function and size


def speed_of(learnt: Lookup, call: Call, server: Server, performance: Performance) -> float:
    """Operations/s of this call alone on this server, above 0: one that nobody has declared, calibrated or used comes last."""
    if performance is Performance.LEARNT:
        shown = learnt(server.name, call.function, call.operations)
        if shown is not None and shown > 0:
            return shown
    if performance is not Performance.DECLARED and server.calibrated > 0:
        return server.calibrated
    return server.speed if server.speed > 0 else SLOWEST
