"""Paper 004 implemented a second time, naively, from papers.md 4.1, 4.2 and 4.4: the same servers, the same times.

Only the streams of random numbers are the simulator's. A queue is the list of what has not ended; nothing is summed up over time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from rmgr.sched.catalogue import call_policy_named
from rmgr.sim.calls.scenario import Case, Scenario, scenario_named
from rmgr.sim.calls.world import replicate
from rmgr.sim.workload.jobs import stream

BACKGROUND, REFRESH, ISSUE = range(3)  # order at one instant; a transfer ends as other work does


class Naive:
    """One replication of open clients with links of their own, exponential services, first come, first served."""

    def __init__(self, scenario: Scenario, case: Case, policy: str, seed: int) -> None:
        self.scenario, self.policy, self.mean_gap = scenario, policy, case.interval_s
        self.clients = {name: plan for plan in scenario.clients for name in plan.names}
        self.servers = {plan.name: plan for plan in scenario.servers}
        self.links = {plan.server: plan for plan in scenario.links}
        self.names = sorted(self.servers)
        self.issues = {name: stream(seed, f"issue/{name}") for name in self.clients}
        self.transfers = {name: stream(seed, f"transfer/{name}") for name in self.clients}
        self.queues: dict[Any, list[tuple[float, float]]] = {}  # station -> (end, weight) of all that was in it
        self.known: dict[str, float] = {}  # server -> its load at the last refresh
        self.sent = dict.fromkeys(self.servers, 0)  # since then
        self.turn = 0
        self.calls: list[tuple[str, float]] = []
        self.agenda: list[tuple[float, int, int, Callable[[], None]]] = []
        self.now, self.serials = 0.0, count()
        for name, plan in self.servers.items():
            if plan.background:
                self.other_work(name, plan.slots, plan.background, plan.background_operations / plan.speed, stream(seed, f"server/{name}"))
        for server, link in self.links.items():
            for client in self.clients:
                if link.background:
                    random = stream(seed, f"link/{server}/{client}")
                    self.other_work((server, client), 1, link.background, link.background_bytes / link.capacity, random)
        self.at(0.0, REFRESH, self.refresh)
        for name in self.clients:
            self.at(self.issues[name].expovariate(1 / self.mean_gap), ISSUE, lambda name=name: self.issue(name))  # type: ignore[misc]

    def at(self, time: float, rank: int, what: Callable[[], None]) -> None:
        heappush(self.agenda, (time, rank, next(self.serials), what))

    def enter(self, station: Any, service: float, weight: float = 1.0) -> float:
        queue = self.queues.setdefault(station, [])
        end = max([self.now, *(other for other, _ in queue[-1:])]) + service
        queue.append((end, weight))
        return end

    def other_work(self, station: Any, slots: int, share: float, mean: float, random: Any) -> None:
        weight = mean * self.servers[station].speed / self.largest() if station in self.servers else 1.0

        def come() -> None:
            self.enter(station, random.expovariate(1 / mean), weight)
            self.at(self.now + random.expovariate(share * slots / mean), BACKGROUND, come)

        self.at(random.expovariate(share * slots / mean), BACKGROUND, come)

    def largest(self) -> int:
        return max(plan.operations for plan in self.clients.values())

    def refresh(self) -> None:
        for name in self.servers:
            self.known[name] = sum(weight for end, weight in self.queues.get(name, []) if end > self.now)
            self.sent[name] = 0
        self.at(self.now + self.scenario.refresh_us / 1e6, REFRESH, self.refresh)

    def choose(self, operations: int, size: int) -> str:
        base, _, corrections = self.policy.partition("+")

        def load(name: str) -> float:
            return self.known[name] + 1 + ("l" in corrections) * self.sent[name]

        def speed(name: str) -> float:
            return self.servers[name].speed

        if base == "rr":
            self.turn += 1
            return self.names[(self.turn - 1) % len(self.names)]
        if base == "load":
            return min(self.names, key=lambda name: load(name) / speed(name))

        def seconds(name: str) -> float:
            throughput = self.links[name].capacity / (1 + ("t" in corrections) * self.sent[name])
            return operations / (speed(name) / load(name)) + size / throughput

        return min(self.names, key=seconds)

    def issue(self, client: str) -> None:
        plan, number = self.clients[client], len(self.calls)
        server = self.choose(plan.operations, plan.bytes)
        self.sent[server] += 1
        self.calls.append((server, -1.0))
        mean = plan.bytes / self.links[server].capacity
        arrives = self.enter((server, client), mean * self.transfers[client].expovariate(1.0))

        def arrive() -> None:
            self.calls[number] = server, self.enter(server, plan.operations / self.servers[server].speed)

        self.at(arrives, BACKGROUND, arrive)
        self.at(self.now + self.issues[client].expovariate(1 / self.mean_gap), ISSUE, lambda: self.issue(client))

    def run(self) -> list[tuple[str, float]]:
        while len(self.calls) < self.scenario.requests or min(end for _, end in self.calls[: self.scenario.requests]) < 0:
            self.now, _, _, what = heappop(self.agenda)
            what()
        return self.calls[: self.scenario.requests]


@pytest.mark.parametrize("name", ["ninf_table4", "ninf_text", "ninf_tnet"])
@pytest.mark.parametrize("policy", ["rr", "load", "load+l", "loth", "loth+l", "loth+t", "loth+lt"])
def test_every_call_goes_where_a_naive_program_sends_it(name: str, policy: str) -> None:
    scenario = scenario_named(name)
    for case in scenario.cases:
        for seed in range(36, 42):  # among them some in which +L makes 10 / 400 Mops and 1 / 40 Mops equal: the first server goes first
            mine = replicate(scenario, case, call_policy_named(policy), seed=seed).requests
            naive = Naive(scenario, case, policy, seed).run()
            assert [call.server for call in mine] == [server for server, _ in naive]
            assert [call.ended_s for call in mine] == pytest.approx([end for _, end in naive], abs=1e-9)
