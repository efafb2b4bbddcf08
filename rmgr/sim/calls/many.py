"""A program with many calls to make (`call_many`): when it hands over the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from rmgr.sched.predictors.forecast import Added, InFlight, Last, sends_now
from rmgr.sched.records import Call, Server
from rmgr.sim.calls.request import CallRequest

_LAST = Last()


def wants_next(
    window: Literal["predicted", "one", "all"], call: Call, servers: Mapping[str, Server], in_flight: Iterable[CallRequest], now_s: float
) -> bool:
    """Whether the program makes its next call now.

    Args:
        window: `predicted` (rmgr.sched.predictors.forecast), `one` call at a time, or `all` at once.
        servers: as last measured. in_flight: the program's own calls without an answer; they share its link to their server, and
            those sent before the measurement are in the server's load.
    """
    mine = list(in_flight)
    if window == "all" or not mine:
        return True
    if window == "one":
        return False
    counts = Counter(request.server for request in mine)
    now: dict[str, float] = {}
    alone: dict[str, float] = {}
    for name, server in servers.items():
        if not server.takes(call):
            continue
        unseen = counts[name] - sum(request.server == name and request.sent_s * 1e6 < server.at_us for request in mine)
        now[name] = _LAST.forecast(call, (server,), server.speed, Added(unseen, counts[name])).total_s
        # a call that was measured on its way to the server is in no load, so there is none to take away
        fewer = Added(max(unseen - 1, -int(server.load)), counts[name] - 1) if counts[name] else Added(unseen)
        alone[name] = _LAST.forecast(call, (server,), server.speed, fewer).total_s
    # what the policy predicted may count calls that were answered since (+L, +T): it takes no longer than beside those in flight
    takes = [min(request.predicted_s, alone.get(request.server, request.predicted_s)) for request in mine]
    left = [InFlight(request.server, max(request.sent_s + s - now_s, 0.0)) for request, s in zip(mine, takes, strict=True)]
    return sends_now(left, now, alone)
