"""Sums up replications: means with 90 % confidence, by policy and case; and by client, server and prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

from rmgr.sim.calls.request import CallRequest
from rmgr.sim.calls.world import Replication


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Means over the replications of one policy in one case; times in seconds.

    half_width_s: of the 90 % confidence interval of total_s. busy: utilisation by server. chosen: share of the calls by server.
    throughput: bytes/s of the transfers by server. response_s: total by client. requests_per_s: of all clients; 0: no time passed.
    makespan_s: until the last answer. error: sum of |predicted - actual| over the sum of actual times; None: nothing was predicted.
    spread_s: of total_s over the replications, standard deviation.
    belief: mean distance of the operations/s believed in from the true ones.
    """

    computing_s: float
    transfer_s: float
    total_s: float
    half_width_s: float
    spread_s: float
    busy: Mapping[str, float]
    chosen: Mapping[str, float]
    throughput: Mapping[str, float]
    response_s: Mapping[str, float]
    requests_per_s: float
    makespan_s: float
    error: float | None
    belief: float


def summed(replications: Sequence[Replication]) -> Summary:
    """Raises: ValueError for no replication."""
    if not replications:
        raise ValueError("there is no replication to sum up")
    totals = [_mean(one.requests, lambda request: request.total_s) for one in replications]
    servers = [name for name, _ in replications[0].busy]
    requests = [request for one in replications for request in one.requests]
    by_server = {name: [request for request in requests if request.server == name] for name in servers}
    clients = sorted({request.client for request in requests}, key=lambda name: (len(name), name))
    predicted = [request for request in requests if request.predicted_s]
    rates = [len(one.requests) / one.duration_s for one in replications if one.duration_s]
    took = sum(request.ended_s - request.sent_s for request in predicted)
    return Summary(
        computing_s=fmean(_mean(one.requests, lambda request: request.computing_s) for one in replications),
        transfer_s=fmean(_mean(one.requests, lambda request: request.transfer_s) for one in replications),
        total_s=fmean(totals),
        half_width_s=half_width(totals),
        spread_s=stdev(totals) if len(totals) > 1 else 0.0,
        busy={name: fmean(dict(one.busy)[name] for one in replications) for name in servers},
        chosen={name: len(by_server[name]) / len(requests) for name in servers},
        throughput={name: _rate(by_server[name]) for name in servers},
        response_s={name: _mean([r for r in requests if r.client == name], lambda request: request.total_s) for name in clients},
        requests_per_s=fmean(rates) if rates else 0.0,
        makespan_s=fmean(one.duration_s for one in replications),
        error=sum(abs(request.missed_s) for request in predicted) / took if took else None,
        belief=_mean(requests, lambda request: abs(request.believed)),
    )


def half_width(values: Sequence[float], confidence: float = 0.90) -> float:
    """Half the confidence interval of their mean, by Student's t; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return student_t(0.5 + confidence / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution, right to 0.5 % from 4 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5 (expansion about the normal quantile).
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))


def _mean(requests: Iterable[CallRequest], measure: Callable[[CallRequest], float]) -> float:
    return fmean(map(measure, requests))


def _rate(requests: Sequence[CallRequest]) -> float:
    seconds = sum(request.transfer_s for request in requests)
    return sum(request.bytes for request in requests) / seconds if seconds else 0.0
