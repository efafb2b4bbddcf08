"""Forecasts how long a call takes at a server (computing and transfer) from measurements and learnt performance, and when to send the next
one.

Predictors differ in the load and throughput they assume: as last measured (`Last`), moving averages (`Ewma`), queues (`Queueing`). Their
`forecast` takes the measurements of one server (the oldest first, at least one) and `speed`, the operations/s (> 0) of the call alone
there. Equal arguments give equal forecasts. Cost: O(measurements + clients).
`speed_of` says what performance a call alone can count on (P, the paper's first open point). `sends_now` is application scheduling: it
decides when a program with many calls sends the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from rmgr.sched.records import Call, Demand, Server

#: Weight of the newest measurement in a moving average.
WEIGHT = 0.5
#: Highest utilization assumed for a queue; at 1 its mean wait would grow without bound.
BUSIEST = 0.98
#: Speed of a server about which nothing is known, in operations/s.
SLOWEST = 1e-6
#: (server, function, operations) -> operations/s that answered calls showed; None if none was similar.
Lookup: TypeAlias = Callable[[str, str, int], float | None]
#: Predictions that differ by less count as equal, because they are rounded on their way.
EARLIER_S = 1e-3


class Forecast(NamedTuple):
    """Seconds from the moment a call is sent until its answer arrives."""

    computing_s: float
    transfer_s: float
    sharing: float = 1.0  #: computing takes this many times as long as alone (L + 1 on a server of one slot)

    @property
    def total_s(self) -> float:
        """Computing and transfer, one after the other."""
        return self.computing_s + self.transfer_s


class Added(NamedTuple):
    """Corrections for calls sent since the last measurement.

    load: added to the server's load. sharing: the throughput is divided by 1 + sharing.
    """

    load: int = 0
    sharing: int = 0


NOTHING_ADDED = Added()


@dataclass(frozen=True, slots=True)
class Last:
    """Assumes that load and throughput stay as last measured, as the paper's policies do.

    mean: use the load averaged over the last interval instead of the load at its end.
    """

    mean: bool = False

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        server = measured[-1]
        load = (server.mean_load if self.mean else server.load) + added.load
        return loaded(call, speed, load, server.slots, transfer_s(call, throughput_of(server, call.client), added.sharing))


@dataclass(frozen=True, slots=True)
class Ewma:
    """Uses moving averages of the last loads and throughputs, in which the newest counts most. mean: as in `Last`."""

    mean: bool = False

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        load = smoothed((one.mean_load if self.mean else one.load) for one in measured)
        rates = [rate for one in measured if (rate := throughput_of(one, call.client)) is not None]
        server = measured[-1]
        transfer = transfer_s(call, smoothed(rates) if rates else None, added.sharing)
        return loaded(call, speed, load + added.load, server.slots, transfer)


def smoothed(values: Iterable[float]) -> float:
    """Returns the exponentially weighted mean, starting at the first value. Raises: ValueError if there is no value."""
    rest = iter(values)
    mean = next(rest, None)
    if mean is None:
        raise ValueError("there is nothing to smooth")
    for value in rest:
        mean += WEIGHT * (value - mean)
    return mean


@dataclass(frozen=True, slots=True)
class Queueing:
    """Treats every server and link as a queue with measured arrivals and services; a call waits for the mean time of the queue.

    computing = operations / P + W(server), transfer = bytes / T0 + W(link), W = s rho / (1 - rho) x (1 + cv^2) / 2, rho = lambda s / k.
    Source: paper 004, 2.1 (a predictor that queues, not one that extrapolates); cv = 1 is its M/M/1. The general cv is
    Pollaczek-Khinchine's mean wait; k > 1 slots share the arrivals evenly (ours).
    Differs from `Last` in: the load is ignored, so `load` and +L change nothing; arrivals/s are those of the last measurement.
    """

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        server = measured[-1]
        link = next((one for one in server.links if one.client == call.client), None)
        alone = call.operations / speed
        computing = alone + waiting_s(server.demand, server.slots)
        rate = throughput_of(server, call.client) if link is None else link.capacity
        transfer = transfer_s(call, rate, added.sharing) + (0.0 if link is None else waiting_s(link.demand))
        return Forecast(computing, transfer, computing / alone if alone else 1.0)


Predictor: TypeAlias = Last | Ewma | Queueing


def waiting_s(demand: Demand, slots: int = 1) -> float:
    """Returns the mean wait in a queue of this demand, in seconds."""
    busy = min(demand.arrivals_per_s * demand.service_s / slots, BUSIEST)
    return demand.service_s * busy / (1 - busy) * (1 + demand.cv**2) / 2


def loaded(call: Call, speed: float, load: float, slots: int, transfer: float) -> Forecast:
    """Forecasts operations / (P / (L + 1)) of computing; a server of k slots runs k calls at full speed: max(1, (L + 1) / k) replaces L +
    1.

    Source: papers.md 4.1; k = 1 is the paper's formula to the last digit, larger k is our addition.
    """
    sharing = load + 1 if slots == 1 else max(1.0, (load + 1) / slots)
    return Forecast(call.operations / (speed / sharing), transfer, sharing)


def transfer_s(call: Call, throughput: float | None, sharing: int = 0) -> float:
    """Returns bytes / T in seconds. throughput None: nothing was measured, so the link counts as free and will be tried and measured."""
    if not call.bytes or throughput is None:
        return 0.0
    rate = throughput / (1 + sharing) if sharing else throughput
    return call.bytes / rate if rate > 0 else float("inf")


def throughput_of(server: Server, client: str) -> float | None:
    """Returns the measured bytes/s between the server and this client, else the mean over its other clients, or None."""
    known = dict(server.throughput)
    if client in known:
        return known[client]
    return sum(known.values()) / len(known) if known else None


class Performance(StrEnum):
    """Sources of P. If the chosen source has no value, the one before it in this list is used."""

    DECLARED = "declared"  #: by the server's owner
    CALIBRATED = "calibrated"  #: by a benchmark run there
    LEARNT = "learnt"  #: from answered calls of the same function and size


def speed_of(learnt: Lookup, call: Call, server: Server, performance: Performance) -> float:
    """Returns operations/s of this call alone on this server, above 0; a server never declared, calibrated or used is the slowest."""
    if performance is Performance.LEARNT:
        shown = learnt(server.name, call.function, call.operations)
        if shown is not None and shown > 0:
            return shown
    if performance is not Performance.DECLARED and server.calibrated > 0:
        return server.calibrated
    return server.speed if server.speed > 0 else SLOWEST


class InFlight(NamedTuple):
    """A call of this program that is in flight: its server, and the expected time to its answer (s from now, at least 0)."""

    server: str
    left_s: float


def sends_now(in_flight: Iterable[InFlight], now_s: Mapping[str, float], alone_s: Mapping[str, float]) -> bool:
    """Whether a program's next call should be sent now.

    Sent too early, a call takes capacity from the program's own calls in flight; sent too late, it leaves a server idle. So it is sent as
    soon as some server is expected to answer it sooner than if it first waited for a call in flight.
    Source: paper 004, 2.1 (network tasks serve the application's completion time); the rule is ours.

    Args:
        now_s: server -> seconds until the answer if the call is sent there now, with all calls in flight.
        alone_s: server -> the same if one call of this program fewer were there.
    Returns: True if the best of `now_s` beats the best of waiting for a call in flight, or if nothing is in flight.
    Cost: O(calls in flight + servers).
    """
    if not now_s:
        return False
    waits = [call.left_s + alone_s.get(call.server, now_s.get(call.server, float("inf"))) for call in in_flight]
    return not waits or min(now_s.values()) < min(waits) - EARLIER_S
