"""Measures servers and links as load monitor and client proxies do: records for the scheduler, true at that moment and stale after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmgr.sched.records import Demand, Link, Server
from rmgr.sim.calls.scenario import LinkPlan, Scenario, ServerPlan
from rmgr.sim.calls.stations import Station

#: The partition of calls.
PARTITION = "calls"


class Monitor:
    """Args:
    servers: station by server. links: station by (server, client). clients: names.
    """

    def __init__(
        self, scenario: Scenario, servers: Mapping[str, Station], links: Mapping[tuple[str, str], Station], clients: Sequence[str]
    ) -> None:
        self._scenario = scenario
        self._servers, self._links = servers, links
        self._clients = sorted(clients)
        self._plans = {link.server: link for link in scenario.links}
        self._before: dict[str, tuple[float, float]] = {}  # server -> (when it was measured, load x time then)

    def measured(self, now_s: float) -> list[Server]:
        """Every server as it is now; all stations were advanced to now."""
        return [self._server(plan, self._plans[plan.name], now_s) for plan in self._scenario.servers]

    def _server(self, plan: ServerPlan, link: LinkPlan, now_s: float) -> Server:
        station = self._servers[plan.name]
        at_s, load_s = self._before.get(plan.name, (0.0, 0.0))
        lasted = now_s - at_s
        mean = (station.tally.load_s - load_s) / lasted if lasted > 0 else station.load()
        self._before[plan.name] = (now_s, station.tally.load_s)
        return Server(
            plan.name,
            plan.speed,
            station.load(),
            throughput=tuple((client, self._throughput(link, client)) for client in self._clients),
            at_us=round(now_s * 1e6),
            partition=PARTITION,
            slots=plan.slots,
            functions=plan.functions,
            mean_load=mean,
            calibrated=plan.calibrated,
            demand=_demand(station, now_s),
            links=tuple(Link(client, link.capacity, _demand(self._links[plan.name, client], now_s)) for client in self._clients),
        )

    def _throughput(self, link: LinkPlan, client: str) -> float:
        if self._scenario.throughput == "capacity":
            return link.capacity
        return link.capacity / (self._links[link.server, client].requests + 1)


def _demand(station: Station, now_s: float) -> Demand:
    tally = station.tally
    return Demand(tally.arrivals / now_s if now_s > 0 else 0.0, tally.mean_s, tally.cv)
