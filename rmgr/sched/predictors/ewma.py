"""Predictor: load and throughput are moving averages of the last measurements, the newest of which counts most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmgr.sched.predictors.forecast import NOTHING_ADDED, Added, Forecast, loaded, throughput_of, transfer_s
from rmgr.sched.records import Call, Server

#: Share of the newest measurement.
WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Ewma:
    """mean: as in `Last`."""

    mean: bool = False

    def forecast(self, call: Call, measured: Sequence[Server], speed: float, added: Added = NOTHING_ADDED) -> Forecast:
        load = smoothed((one.mean_load if self.mean else one.load) for one in measured)
        rates = [rate for one in measured if (rate := throughput_of(one, call.client)) is not None]
        server = measured[-1]
        transfer = transfer_s(call, smoothed(rates) if rates else None, added.sharing)
        return loaded(call, speed, load + added.load, server.slots, transfer)


def smoothed(values: Iterable[float]) -> float:
    """Exponentially weighted mean, begun with the first value. Raises: ValueError for no value."""
    rest = iter(values)
    mean = next(rest, None)
    if mean is None:
        raise ValueError("there is nothing to smooth")
    for value in rest:
        mean += WEIGHT * (value - mean)
    return mean
