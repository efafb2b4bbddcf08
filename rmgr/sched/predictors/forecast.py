"""A forecast of one call at one server, and what every predictor needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rmgr.sched.records import Call, Server


class Forecast(NamedTuple):
    """Seconds from the moment a call is sent until its answer is there."""

    computing_s: float
    transfer_s: float
    sharing: float = 1.0  #: the computing takes so many times as long as alone (L + 1 on a server of one slot)

    @property
    def total_s(self) -> float:
        """Computing and transfer one after the other."""
        return self.computing_s + self.transfer_s


class Added(NamedTuple):
    """Corrections for calls that were sent since the last measurement.

    load: added to the load of the server. sharing: the throughput is divided by 1 + sharing.
    """

    load: int = 0
    sharing: int = 0


NOTHING_ADDED = Added()


class Predictor(Protocol):
    """Forecasts from measurements. Frozen and pure: the same arguments, the same forecast."""

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        """Args:
            measured: of one server, the oldest first, at least one. speed: operations/s of the call alone there, > 0.
        Cost: O(measurements + clients).
        """
        ...


def loaded(call: Call, speed: float, load: float, slots: int, transfer: float) -> Forecast:
    """operations / (P / (L + 1)) of computing; a server of k slots runs k calls at full speed: max(1, (L + 1) / k) in place of L + 1.

    Source: papers.md 4.1; k = 1 is the paper's formula to the last digit, larger k is ours.
    """
    sharing = load + 1 if slots == 1 else max(1.0, (load + 1) / slots)
    return Forecast(call.operations / (speed / sharing), transfer, sharing)


def transfer_s(call: Call, throughput: float | None, sharing: int = 0) -> float:
    """bytes / T. None: nothing was measured, the link counts as free, so that it is tried and measured."""
    if not call.bytes or throughput is None:
        return 0.0
    rate = throughput / (1 + sharing) if sharing else throughput
    return call.bytes / rate if rate > 0 else float("inf")


def throughput_of(server: Server, client: str) -> float | None:
    """Measured bytes/s between the server and this client; else the mean of its other clients; None when there are none."""
    known = dict(server.throughput)
    if client in known:
        return known[client]
    return sum(known.values()) / len(known) if known else None
