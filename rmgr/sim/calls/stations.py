"""Queues: servers and links where requests of clients and other work wait, in order of arrival or sharing what there is.

Times are seconds as floats. A station is advanced before it is asked or given anything; other work comes by itself meanwhile.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol


class Background(NamedTuple):
    """Other work: Poisson arrivals, exponential services. weight: of one in units of a request."""

    utilisation: float
    mean_s: float
    weight: float
    random: Random

    def gap_s(self, slots: int) -> float:
        """Until the next one comes."""
        rate = self.utilisation * slots / self.mean_s
        return self.random.expovariate(rate) if rate else math.inf


class Done(NamedTuple):
    """A request that left the station at `at_s`."""

    at_s: float
    request: int


@dataclass(slots=True)
class Tally:
    """Counts of a monitor at a station since the beginning: arrivals and moments of their services, busy and loaded time."""

    arrivals: int = 0
    service_s: float = 0.0
    squares: float = 0.0
    busy_s: float = 0.0  #: of all slots together
    load_s: float = 0.0  #: load x time

    def came(self, service_s: float) -> None:
        self.arrivals += 1
        self.service_s += service_s
        self.squares += service_s * service_s

    @property
    def mean_s(self) -> float:
        return self.service_s / self.arrivals if self.arrivals else 0.0

    @property
    def cv(self) -> float:
        """Standard deviation of the services over their mean; 1 until two have come."""
        if self.arrivals < 2 or not self.service_s:
            return 1.0
        mean = self.mean_s
        return math.sqrt(max(self.squares / self.arrivals - mean * mean, 0.0)) / mean


class Station(Protocol):
    """Questions of the simulation to a queue."""

    tally: Tally

    def submit(self, now_s: float, request: int, service_s: float) -> None:
        """A request of a client, whose service alone takes so long, comes now."""
        ...

    def due_s(self) -> float:
        """When the station must be advanced next; infinity while no request of a client is in it."""
        ...

    def advance(self, now_s: float) -> list[Done]:
        """Lets time pass; requests of clients that have left, in order."""
        ...

    def load(self) -> float:
        """Requests running and waiting, other work by its weight."""
        ...

    @property
    def requests(self) -> int:
        """Requests of clients that are in it."""
        ...


@dataclass(slots=True)
class FcfsStation:
    """k slots, first come first served. An arrival fixes its end, so other work is drawn only when somebody looks."""

    slots: int = 1
    background: Background | None = None
    tally: Tally = field(default_factory=Tally)
    _now: float = 0.0
    _next: float = math.inf  #: arrival of other work
    _free: list[float] = field(default_factory=list)  #: when each slot is free, a heap
    _ends: list[tuple[float, float, int]] = field(default_factory=list)  #: (end, weight, request or -1) of what is in it, a heap
    _load: float = 0.0
    _requests: int = 0

    def __post_init__(self) -> None:
        self._free = [0.0] * self.slots
        if self.background is not None:
            self._next = self.background.gap_s(self.slots)

    @property
    def requests(self) -> int:
        return self._requests

    def submit(self, now_s: float, request: int, service_s: float) -> None:
        self._requests += 1
        self._enter(now_s, service_s, 1.0, request)

    def due_s(self) -> float:
        return min((end for end, _, request in self._ends if request >= 0), default=math.inf) if self._requests else math.inf

    def advance(self, now_s: float) -> list[Done]:
        done: list[Done] = []
        while True:
            end = self._ends[0][0] if self._ends else math.inf
            at = min(end, self._next)
            if at > now_s:
                break
            self._pass(at)
            if end <= self._next:
                _, weight, request = heapq.heappop(self._ends)
                self._load -= weight
                if request >= 0:
                    self._requests -= 1
                    done.append(Done(at, request))
            else:
                other = self.background
                assert other is not None
                self._enter(at, other.random.expovariate(1 / other.mean_s), other.weight, -1)
                self._next = at + other.gap_s(self.slots)
        self._pass(now_s)
        return done

    def load(self) -> float:
        return max(self._load, 0.0)

    def _enter(self, now_s: float, service_s: float, weight: float, request: int) -> None:
        self.tally.came(service_s)
        end = max(now_s, self._free[0]) + service_s
        heapq.heapreplace(self._free, end)
        heapq.heappush(self._ends, (end, weight, request))
        self._load += weight

    def _pass(self, until_s: float) -> None:
        lasted = until_s - self._now
        self.tally.busy_s += lasted * min(len(self._ends), self.slots)
        self.tally.load_s += lasted * self._load
        self._now = until_s


@dataclass(slots=True)
class SharedStation:
    """k slots shared evenly: n in it get min(1, k / n) each."""

    slots: int = 1
    background: Background | None = None
    tally: Tally = field(default_factory=Tally)
    _now: float = 0.0
    _next: float = math.inf
    _left: dict[int, float] = field(default_factory=dict)  #: seconds of service left, by request; other work has ids below 0
    _others: int = 0

    def __post_init__(self) -> None:
        if self.background is not None:
            self._next = self.background.gap_s(self.slots)

    @property
    def requests(self) -> int:
        return sum(request >= 0 for request in self._left)

    def submit(self, now_s: float, request: int, service_s: float) -> None:  # noqa: ARG002 - it was advanced to now
        self.tally.came(service_s)
        self._left[request] = service_s

    def due_s(self) -> float:
        return min(self._first_end(), self._next) if self.requests else math.inf

    def advance(self, now_s: float) -> list[Done]:
        done: list[Done] = []
        while True:
            end = self._first_end()
            at = min(end, self._next)
            if at > now_s:
                break
            self._pass(at)
            if end <= self._next:
                request = min(self._left, key=lambda one: (self._left[one], one))
                del self._left[request]
                if request >= 0:
                    done.append(Done(at, request))
            else:
                other = self.background
                assert other is not None
                self._others += 1
                service_s = other.random.expovariate(1 / other.mean_s)
                self.tally.came(service_s)
                self._left[-self._others] = service_s
                self._next = at + other.gap_s(self.slots)
        self._pass(now_s)
        return done

    def load(self) -> float:
        weight = self.background.weight if self.background is not None else 0.0
        return sum(1.0 if request >= 0 else weight for request in self._left)

    def _first_end(self) -> float:
        if not self._left:
            return math.inf
        return self._now + max(min(self._left.values()), 0.0) / self._share()

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
