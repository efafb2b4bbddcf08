"""Simulates one replication: clients issue requests, the leader's own pass chooses servers by stale measurements, links and servers serve.

Common random numbers: each client, link and server draws from its own streams, request by request, whatever the policy does. `Monitor`
measures servers and links as load monitors and client proxies do: the records are true when taken and stale afterwards.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal, NamedTuple

from rmgr.sched.engine import run_pass
from rmgr.sched.forecast import Added, InFlight, Last, Performance, sends_now, speed_of
from rmgr.sched.plan import Send
from rmgr.sched.policy import Cause, Policy, Stage
from rmgr.sched.records import Answered, Call, Demand, Link, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Recorder
from rmgr.sim.calls.scenario import Case, ClientPlan, LinkPlan, Scenario, ServerPlan
from rmgr.sim.workload.jobs import stream

#: A policy has stopped choosing if more calls than this wait for a server, or if this many measurements in a row pass while calls wait
#: and none is on its way (closed clients ask nothing more until they are answered).
_MOST_WAITING = _MOST_IN_VAIN = 1000
#: The partition of calls.
PARTITION = "calls"
_LAST = Last()
#: Other work in place of the number of a request.
_OTHER = -1


# -- stations: servers and links, which serve requests and other work in order of arrival or by sharing -------------------------


class Background(NamedTuple):
    """Other work: Poisson arrivals, exponential services. weight: load of one such item, in requests."""

    utilisation: float
    mean_s: float
    weight: float
    random: Random

    def gap_s(self, slots: int) -> float:
        """Draws the time until the next arrival (s)."""
        rate = self.utilisation * slots / self.mean_s
        return self.random.expovariate(rate) if rate else math.inf


class Done(NamedTuple):
    """A request that left the station at `at_s`."""

    at_s: float
    request: int


@dataclass(slots=True)
class Tally:
    """Totals of a station since the beginning: arrivals and moments of their service times, busy time and integrated load."""

    arrivals: int = 0
    service_s: float = 0.0
    squares: float = 0.0
    busy_s: float = 0.0  #: busy time of all slots together
    load_s: float = 0.0  #: integral of the load over time

    def came(self, service_s: float) -> None:
        self.arrivals += 1
        self.service_s += service_s
        self.squares += service_s * service_s

    @property
    def mean_s(self) -> float:
        return self.service_s / self.arrivals if self.arrivals else 0.0

    @property
    def cv(self) -> float:
        """Returns the coefficient of variation of service times; 1 before the second arrival."""
        if self.arrivals < 2 or not self.service_s:
            return 1.0
        mean = self.mean_s
        return math.sqrt(max(self.squares / self.arrivals - mean * mean, 0.0)) / mean


class Station(ABC):
    """A queueing station of k slots with clients' requests and other work, which is drawn lazily, when the station is advanced."""

    def __init__(self, slots: int = 1, background: Background | None = None) -> None:
        self.slots, self.background, self.tally = slots, background, Tally()
        self._now = 0.0
        self._next = math.inf if background is None else background.gap_s(slots)  # next arrival of other work (s)

    def submit(self, now_s: float, request: int, service_s: float) -> None:
        """Accepts a client's request now; alone it would be served in `service_s`. The station has been advanced to now."""
        self._enter(now_s, request, service_s)

    def advance(self, now_s: float) -> list[Done]:
        """Lets time pass until now. Returns the clients' requests that have left, in order."""
        done: list[Done] = []
        while True:
            end = self._first_end()
            at = min(end, self._next)
            if at > now_s:
                break
            self._pass(at)
            if end <= self._next:
                request = self._leave()
                if request >= 0:
                    done.append(Done(at, request))
            else:
                other = self.background
                assert other is not None
                self._enter(at, _OTHER, other.random.expovariate(1 / other.mean_s))
                self._next = at + other.gap_s(self.slots)
        self._pass(now_s)
        return done

    @property
    @abstractmethod
    def requests(self) -> int:
        """Clients' requests in the station."""

    @abstractmethod
    def due_s(self) -> float:
        """Returns when the station must be advanced next; infinity while it holds no client's request."""

    def load(self) -> float:
        """Returns the requests running and waiting; other work counts by its weight. Counted, not summed up: 0 is 0 after any time."""
        requests, other = self.requests, self.background
        return requests + (other.weight * (self._held() - requests) if other is not None else 0.0)

    @abstractmethod
    def _held(self) -> int:
        """Returns how many requests and items of other work are in the station."""

    @abstractmethod
    def _enter(self, now_s: float, request: int, service_s: float) -> None: ...

    @abstractmethod
    def _first_end(self) -> float: ...

    @abstractmethod
    def _leave(self) -> int:
        """Removes what ends first. Returns the request, < 0 for other work."""

    @abstractmethod
    def _pass(self, until_s: float) -> None: ...


class FcfsStation(Station):
    """First come, first served: an arrival fixes its end."""

    def __init__(self, slots: int = 1, background: Background | None = None) -> None:
        super().__init__(slots, background)
        self._free = [0.0] * slots  # when each slot becomes free (s), a heap
        self._ends: list[tuple[float, int]] = []  # (end, request), a heap
        self._requests = 0

    @property
    def requests(self) -> int:
        return self._requests

    def due_s(self) -> float:
        return min((end for end, request in self._ends if request >= 0), default=math.inf) if self._requests else math.inf

    def _held(self) -> int:
        return len(self._ends)

    def _enter(self, now_s: float, request: int, service_s: float) -> None:
        self._requests += request >= 0
        self.tally.came(service_s)
        end = max(now_s, self._free[0]) + service_s
        heapq.heapreplace(self._free, end)
        heapq.heappush(self._ends, (end, request))

    def _first_end(self) -> float:
        return self._ends[0][0] if self._ends else math.inf

    def _leave(self) -> int:
        _, request = heapq.heappop(self._ends)
        self._requests -= request >= 0
        return request

    def _pass(self, until_s: float) -> None:
        lasted = until_s - self._now
        self.tally.busy_s += lasted * min(len(self._ends), self.slots)
        self.tally.load_s += lasted * self.load()
        self._now = until_s


class SharedStation(Station):
    """Slots shared evenly: each of n requests gets min(1, k / n) of a slot."""

    def __init__(self, slots: int = 1, background: Background | None = None) -> None:
        super().__init__(slots, background)
        self._left: dict[int, float] = {}  # request -> service time left (s); other work has negative ids
        self._others = 0

    @property
    def requests(self) -> int:
        return sum(request >= 0 for request in self._left)

    def due_s(self) -> float:
        return min(self._first_end(), self._next) if self.requests else math.inf

    def _held(self) -> int:
        return len(self._left)

    def _enter(self, now_s: float, request: int, service_s: float) -> None:  # noqa: ARG002 - it was advanced to now
        self.tally.came(service_s)
        if request < 0:
            self._others += 1
            request = -self._others
        self._left[request] = service_s

    def _first_end(self) -> float:
        if not self._left:
            return math.inf
        return self._now + max(min(self._left.values()), 0.0) / self._share()

    def _leave(self) -> int:
        request = min(self._left, key=lambda one: (self._left[one], one))
        del self._left[request]
        return request

    def _share(self) -> float:
        return min(1.0, self.slots / len(self._left))

    def _pass(self, until_s: float) -> None:
        lasted = until_s - self._now
        if self._left and lasted > 0:
            share = self._share()
            self.tally.busy_s += lasted * min(len(self._left), self.slots)
            self.tally.load_s += lasted * self.load()
            for request in self._left:
                self._left[request] -= lasted * share
        self._now = until_s


# -- one replication -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replication:
    """The result of a simulation. busy: server -> utilisation, including other work. duration_s: time until the last answer."""

    requests: tuple[CallRequest, ...]
    busy: tuple[tuple[str, float], ...]
    duration_s: float
    passes: int


def replicate(scenario: Scenario, case: Case, policy: Policy, *, seed: int, recorder: Recorder | None = None) -> Replication:
    """Simulates until the scenario's number of requests, those issued first, are answered. Equal arguments give equal results.

    Clients keep asking meanwhile, so that the last counted requests meet the same load as the others; later requests are not counted.

    Raises: RuntimeError if the policy raises, or never chooses a server for a call.
    Cost: about 0.2 ms a request.
    """
    return _World(scenario, case, policy, seed, recorder).run()


class _World:
    def __init__(self, scenario: Scenario, case: Case, policy: Policy, seed: int, recorder: Recorder | None) -> None:
        self.scenario, self.case, self.seed, self.recorder = scenario, case, seed, recorder
        self.pipeline = (Stage(policy),)
        self.now = 0.0
        self.state = self.facts = ClusterState()
        self.owners: dict[str, ClientPlan] = {name: plan for plan in scenario.clients for name in plan.names}
        self.plans = {server.name: server for server in scenario.servers}
        self.networks = {link.server: link for link in scenario.links}
        self.servers: dict[str, Station] = {name: self._server(name) for name in self.plans}
        self.links: dict[tuple[str, str], Station] = dict(self._links())
        self.stations: list[Station] = [*self.servers.values(), *{id(link): link for link in self.links.values()}.values()]
        self.names = {id(station): name for name, station in self.servers.items()}  # station -> server; all other stations are links
        self.monitor = Monitor(scenario, self.servers, self.links, list(self.owners))
        self.measured: dict[str, Server] = {}
        self.issues = {name: stream(seed, f"issue/{name}") for name in self.owners}
        self.draws = {name: stream(seed, f"transfer/{name}") for name in self.owners}
        self.next_issue: dict[str, float] = {}  # closed clients have no entry until they are answered
        self.requests: dict[int, CallRequest] = {}
        self.answers = self.passes = self.events = self.in_vain = 0
        self.causes: set[Cause] = set()
        self.agenda: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> Replication:
        if self.recorder is not None:
            self.recorder.begin(self.state, seed=self.seed, half_life_us=0)
            self.facts = self.recorder.around(self.state, self._now_us)
        self._refresh()
        for name, plan in self.owners.items():
            if plan.kind != "many":
                self._issue_after(name, self._drawn(name))
        self._decide()
        while self.answers < self.scenario.requests:
            due = min(station.due_s() for station in self.stations)
            self.now = min(due, self.agenda[0][0] if self.agenda else math.inf)
            if self.now == math.inf or self.in_vain > _MOST_IN_VAIN or len(self._waiting()) > _MOST_WAITING:
                raise RuntimeError(f"policy {self.pipeline[0].policy.name} sends no calls: {self._waiting()[:3]} wait at {self.now:.0f} s")
            self._serve()
            while self.agenda and self.agenda[0][0] <= self.now:
                heapq.heappop(self.agenda)[2]()
            self._decide()
        if self.recorder is not None:
            self.recorder.end(self._now_us())
        counted = tuple(request for request in self.requests.values() if request.number <= self.scenario.requests)
        return Replication(counted, tuple(self._busy()), self.now, self.passes)

    # -- clients ---------------------------------------------------------------------------------------------------------------

    def _drawn(self, name: str) -> float:
        """Draws when this client would ask next if it were free (s)."""
        return self.now + self.issues[name].expovariate(1 / self.case.interval_s)

    def _issue_after(self, name: str, at_s: float) -> None:
        self._at(at_s, lambda: self._issue(name))

    def _issue(self, name: str) -> None:
        plan, number = self.owners[name], len(self.requests) + 1
        draw = self.draws[name].expovariate(1.0)
        self.requests[number] = CallRequest(number, name, plan.operations, plan.bytes, plan.function, self.now, draw)
        self.facts.call_submitted(self._call(number, name))
        self.causes.add(Cause.CALL_SUBMITTED)
        if plan.kind == "open":
            self._issue_after(name, self._drawn(name))
        elif plan.kind == "closed":
            self.next_issue[name] = self._drawn(name)

    def _busy(self) -> Iterator[tuple[str, float]]:
        for name, station in self.servers.items():
            self._left(station, self.now)
            yield name, station.tally.busy_s / self.now / self.plans[name].slots if self.now else 0.0

    def _call(self, number: int, name: str) -> Call:
        plan = self.owners[name]
        return Call(number, self._now_us(), plan.operations, plan.bytes, name, PARTITION, plan.function)

    def _many(self) -> bool:
        """Lets programs with many calls make their next ones. Returns whether any did."""
        issued = False
        for name, plan in self.owners.items():
            if plan.kind == "many" and len(self.requests) < self.scenario.requests:
                mine = [request for request in self.requests.values() if request.client == name and not request.is_answered]
                if wants_next(plan.window, self._call(0, name), self.measured, mine, self.now):
                    self._issue(name)
                    issued = True
        return issued

    # -- the scheduler ---------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Runs passes until nothing more happens at this instant."""
        while self.causes or self._many():
            if not self.causes:
                continue
            if not self.scenario.refresh_us:
                self._measure()
            plan = run_pass(self.state, frozenset(self.causes), now=self._now_us(), seed=self.seed, pipeline=self.pipeline)
            self.passes += 1
            if self.recorder is not None:
                self.recorder.passed(self._now_us(), frozenset(self.causes), plan)
            self.causes.clear()
            if plan.faults:
                raise RuntimeError(f"policy {plan.faults[0].policy} failed: {plan.faults[0].error}")
            for decision in plan.decisions:
                self.state.carried_out(decision, self._now_us())
                if isinstance(decision, Send):
                    self._send(self.requests[decision.job_id], decision)

    def _send(self, request: CallRequest, decision: Send) -> None:
        request.server, request.sent_s, request.predicted_s = decision.to, self.now, decision.predicted_us / 1e6
        network = self.networks[request.server]
        mean_s = request.bytes / network.capacity
        transfer_s = mean_s * request.draw if network.service == "exponential" else mean_s
        request.service_s = request.operations / self.plans[request.server].speed_of(request.function)
        request.alone_s = mean_s + request.service_s
        request.believed = self._believed(request) * request.service_s / request.operations - 1.0 if request.operations else 0.0
        link = self.links[request.server, request.client]
        self._left(link, self.now)
        link.submit(self.now, request.number, transfer_s)

    def _believed(self, request: CallRequest) -> float:
        """Returns the speed (operations/s) that the policy assumes for this request alone."""
        source = getattr(self.pipeline[0].policy, "performance", Performance.DECLARED)
        known = self.state.partitions[PARTITION].records_of_calls
        return speed_of(known.speed, self._call(request.number, request.client), self.measured[request.server], source)

    # -- links and servers -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Advances all due stations, repeatedly if a transfer and the computation that follows it end at the same instant."""
        while True:
            due = [station for station in self.stations if station.due_s() <= self.now]
            if not due:
                return
            for station in due:
                self._left(station, self.now)

    def _left(self, station: Station, now_s: float) -> None:
        for done in station.advance(now_s):
            request = self.requests[done.request]
            if id(station) in self.names:
                self._answered(request, done.at_s)
                continue
            request.arrived_s = done.at_s
            server = self.servers[request.server]
            self._left(server, done.at_s)
            server.submit(done.at_s, request.number, request.service_s)

    def _answered(self, request: CallRequest, at_s: float) -> None:
        request.ended_s = at_s
        self.answers += request.number <= self.scenario.requests
        answered = Answered(
            request.number,
            request.server,
            round(request.issued_s * 1e6),
            round(at_s * 1e6),
            request.operations,
            round(request.service_s * 1e6),
            round(request.alone_s * 1e6),
            round(request.predicted_s * 1e6),
            request.function,
            PARTITION,
        )
        self.facts.call_answered(answered)
        self.causes.add(Cause.CALL_ANSWERED)
        if self.owners[request.client].kind == "closed":
            self._issue_after(request.client, max(self.next_issue[request.client], at_s))

    # -- measurements ----------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._measure()
        idle = all(station.due_s() == math.inf for station in self.stations)
        self.in_vain = self.in_vain + 1 if idle and self._waiting() else 0
        if self.scenario.refresh_us:
            self._at(self.now + self.scenario.refresh_us / 1e6, self._refresh)

    def _measure(self) -> None:
        for station in self.stations:
            self._left(station, self.now)
        for server in self.monitor.measured(self.now):
            self.measured[server.name] = server
            self.facts.server_changed(server)
        self.causes.add(Cause.SERVERS_CHANGED)

    # -- parts -----------------------------------------------------------------------------------------------------------------

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self.agenda, (when_s, self.events, what))

    def _now_us(self) -> int:
        return round(self.now * 1e6)

    def _waiting(self) -> list[int]:
        return [call.id for part in self.state.partitions.values() for call in part.calls.values()]

    def _server(self, name: str) -> Station:
        plan = self.plans[name]
        operations = max((client.operations for client in self.scenario.clients), default=0)
        weight = plan.background_operations / operations if operations else 1.0
        background = self._background(f"server/{name}", plan.background, plan.background_operations / plan.speed, weight)
        return (FcfsStation if plan.discipline == "fcfs" else SharedStation)(plan.slots, background)

    def _links(self) -> Iterator[tuple[tuple[str, str], Station]]:
        for link in self.scenario.links:
            common = None if link.own else self._link(link, "")
            for client in self.owners:
                yield (link.server, client), common or self._link(link, client)

    def _link(self, plan: LinkPlan, client: str) -> Station:
        background = self._background(f"link/{plan.server}/{client}", plan.background, plan.background_bytes / plan.capacity, 1.0)
        return (FcfsStation if plan.discipline == "fcfs" else SharedStation)(1, background)

    def _background(self, purpose: str, utilisation: float, mean_s: float, weight: float) -> Background | None:
        return Background(utilisation, mean_s, weight, stream(self.seed, purpose)) if utilisation else None


@dataclass(slots=True)
class CallRequest:
    """One call in the simulation. Times in seconds since the beginning, -inf until known.

    draw: random factor of its transfer time, mean 1, the same under every policy.
    """

    number: int
    client: str
    operations: int
    bytes: int
    function: str
    issued_s: float
    draw: float
    server: str = ""
    sent_s: float = -inf
    arrived_s: float = -inf  #: when all bytes had been transferred
    ended_s: float = -inf
    service_s: float = 0.0  #: computing time on an idle server
    alone_s: float = 0.0  #: total time on an idle server and link
    predicted_s: float = 0.0  #: 0 without a prediction
    believed: float = 0.0  #: relative error of the speed that the policy assumed

    @property
    def is_answered(self) -> bool:
        return self.ended_s > -inf

    @property
    def transfer_s(self) -> float:
        return self.arrived_s - self.sent_s

    @property
    def computing_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def total_s(self) -> float:
        return self.ended_s - self.issued_s

    @property
    def missed_s(self) -> float:
        """Predicted minus actual time, both from sending on."""
        return self.predicted_s - (self.ended_s - self.sent_s)


class Monitor:
    """Measures servers and links. servers: station by server. links: station by (server, client). clients: names."""

    def __init__(
        self, scenario: Scenario, servers: Mapping[str, Station], links: Mapping[tuple[str, str], Station], clients: Sequence[str]
    ) -> None:
        self._scenario = scenario
        self._servers, self._links = servers, links
        self._clients = sorted(clients)
        self._plans = {link.server: link for link in scenario.links}
        self._before: dict[str, tuple[float, float]] = {}  # server -> (time of the last measurement, integrated load then)

    def measured(self, now_s: float) -> list[Server]:
        """Returns the records of all servers as they are now; all stations must have been advanced to now."""
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


def wants_next(
    window: Literal["predicted", "one", "all"], call: Call, servers: Mapping[str, Server], in_flight: Iterable[CallRequest], now_s: float
) -> bool:
    """Returns whether a program with many calls (`call_many`) makes its next one now.

    Args:
        window: `predicted` (by rmgr.sched.forecast), `one` call at a time, or `all` at once.
        servers: as last measured. in_flight: the program's unanswered calls; they share its link to their server, and those sent
            before the measurement are part of the server's load.
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
        # A call that was in transfer during the measurement is in no server's load, so nothing is subtracted for it.
        fewer = Added(max(unseen - 1, -int(server.load)), counts[name] - 1) if counts[name] else Added(unseen)
        alone[name] = _LAST.forecast(call, (server,), server.speed, fewer).total_s
    # A prediction may still count calls that have been answered since (+L, +T): beside those in flight now it takes no longer.
    takes = [min(request.predicted_s, alone.get(request.server, request.predicted_s)) for request in mine]
    left = [InFlight(request.server, max(request.sent_s + s - now_s, 0.0)) for request, s in zip(mine, takes, strict=True)]
    return sends_now(left, now, alone)
