"""Predictor: every server and link is a queue whose arrivals and services were measured; a call waits as long as the mean says.

computing = operations / P + W(server), transfer = bytes / T0 + W(link), W = s rho / (1 - rho) x (1 + cv^2) / 2 with rho = lambda s / k.
Source: paper 004, 2.1 (a predictor that queues, not one that extrapolates); cv = 1 is its M/M/1. The general cv is Pollaczek-Khinchine's
mean wait; k > 1 slots share the arrivals evenly (ours).
Differs from `Last` in: the load does not count, so `load` and +L change nothing; arrivals/s are those of the last measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmgr.sched.predictors.forecast import NOTHING_ADDED, Added, Forecast, throughput_of, transfer_s
from rmgr.sched.records import Call, Demand, Server

#: No queue is taken for busier: its mean wait would grow without bound.
BUSIEST = 0.98


@dataclass(frozen=True, slots=True)
class Queueing:
    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        server = measured[-1]
        link = next((one for one in server.links if one.client == call.client), None)
        alone = call.operations / speed
        computing = alone + waiting_s(server.demand, server.slots)
        rate = throughput_of(server, call.client) if link is None else link.capacity
        transfer = transfer_s(call, rate, added.sharing) + (0.0 if link is None else waiting_s(link.demand))
        return Forecast(computing, transfer, computing / alone if alone else 1.0)


def waiting_s(demand: Demand, slots: int = 1) -> float:
    """Mean wait in a queue of this demand, seconds."""
    busy = min(demand.arrivals_per_s * demand.service_s / slots, BUSIEST)
    return demand.service_s * busy / (1 - busy) * (1 + demand.cv**2) / 2
