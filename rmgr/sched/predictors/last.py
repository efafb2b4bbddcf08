"""Predictor: load and throughput stay as they were measured last (what the paper's policies assume)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmgr.sched.predictors.forecast import NOTHING_ADDED, Added, Forecast, loaded, throughput_of, transfer_s
from rmgr.sched.records import Call, Server


@dataclass(frozen=True, slots=True)
class Last:
    """mean: the load averaged over the last interval in place of the load at its end."""

    mean: bool = False

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        server = measured[-1]
        load = (server.mean_load if self.mean else server.load) + added.load
        return loaded(call, speed, load, server.slots, transfer_s(call, throughput_of(server, call.client), added.sharing))
