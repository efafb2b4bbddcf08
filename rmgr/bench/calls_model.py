"""Scenarios of paper 004 on servers that run, beside the simulator with the same draws: 20 times as fast as the paper.

    clients --Call--> gateways <--Serve, Take, Give-- ShapedLink -- servers of one slot whose function sleeps

`ninf_shared` (table 3): one gateway, one link a server for all, clients that wait for their answers. `ninf_table4`: a gateway and links for
each client, who asks on; byte counts are drawn, of which policies know the mean, as in the simulator. Both sides draw from the same
streams: when each client asks, and how many bytes. Apart from the paper: servers that run serve calls in order, so in these runs the
simulated ones do, too, and other work on servers, which a sleep does not feel, is left out of both.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rmgr.bench.calls_cluster import CallsCluster
from rmgr.bench.load import solver
from rmgr.bench.load.shaped_link import ShapedLink
from rmgr.bench.measuring import MeasuringPlan, Row, row
from rmgr.client.calls import Caller, CallFuture
from rmgr.errors import NotConnected, RmgrError, Unavailable
from rmgr.sched.catalogue import call_policy_named
from rmgr.sim.calls.scenario import Case, ClientPlan, Scenario, scenario_named
from rmgr.sim.calls.world import Replication, replicate
from rmgr.sim.papers.paper004 import POLICIES
from rmgr.sim.workload.jobs import stream

#: How much faster than the paper everything is: servers, links, clients, looks.
FASTER = 20
_SEED = 1
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Played:
    """Mean seconds a request, as the paper has them (so `FASTER` times those of the clock): all of it, and the function with its wait for
    the slot. shares: of the requests, by server."""

    total_s: float
    computing_s: float
    shares: dict[str, float]


def ninf_shared(plan: MeasuringPlan) -> list[Row]:
    """Table 3."""
    return _scenario(plan, "ninf_shared")


def ninf_table4(plan: MeasuringPlan) -> list[Row]:
    """Table 4, as papers.md 4.4 decodes it."""
    return _scenario(plan, "ninf_table4")


def as_live(scenario: Scenario) -> Scenario:
    """With servers as those that run are: one slot, in order, without other work."""
    servers = (replace(server, discipline="fcfs", background=0.0, background_operations=0.0) for server in scenario.servers)
    return replace(scenario, servers=tuple(servers))


def _scenario(plan: MeasuringPlan, name: str) -> list[Row]:
    printed = scenario_named(name)
    scenario = replace(as_live(printed), requests=plan.count(printed.requests))
    live: dict[tuple[str, str], list[Played]] = {}
    virtual: dict[tuple[str, str], list[Played]] = {}
    with _Stage.of(scenario) as stage:
        for number in plan.rounds(f"{name}, {len(POLICIES)} policies", f" of {scenario.requests} requests each"):
            for case in scenario.cases:
                for policy in POLICIES:
                    began_s = time.monotonic()
                    seed = _SEED + number
                    live.setdefault((case.name, policy), []).append(stage.play(case, policy, seed))
                    simulated = replicate(scenario, case, call_policy_named(policy), seed=seed)
                    virtual.setdefault((case.name, policy), []).append(simulated_as(simulated))
                    one, other = live[case.name, policy][-1], virtual[case.name, policy][-1]
                    plan.progress(
                        f"case {case.name}, {policy}: {one.total_s:.2f} s live, {other.total_s:.2f} s simulated, "
                        f"in {time.monotonic() - began_s:.0f} s"
                    )
    rows: list[Row] = []
    first = scenario.servers[0].name
    for key, found in live.items():
        ratios = [one.total_s / other.total_s for one, other in zip(found, virtual[key], strict=True)]
        for system, setup, played, ratio in (
            ("the simulator", "the same draws", virtual[key], 1.0),
            ("rmgr", f"{len(scenario.servers)} servers, times x {FASTER}", found, statistics.median(ratios)),
        ):
            detail = {
                "least_ratio": min(ratios),
                "most_ratio": max(ratios),
                "computing": statistics.fmean(one.computing_s for one in played),
                f"share_of_{first}": statistics.fmean(one.shares.get(first, 0.0) for one in played),
            }
            if system != "rmgr":
                del detail["least_ratio"], detail["most_ratio"]
            totals = [one.total_s for one in played]
            what = f"{name}, case {key[0]}, {key[1]}: mean of a request"
            rows.append(row(system, setup, what, "s", totals, ratio=ratio, **detail))
    return rows


def simulated_as(found: Replication) -> Played:
    """What the simulator says, in the same terms."""
    requests = found.requests
    servers = [request.server for request in requests]
    return Played(
        total_s=statistics.fmean(request.total_s for request in requests),
        computing_s=statistics.fmean(request.computing_s for request in requests),
        shares={name: servers.count(name) / len(servers) for name in set(servers)},
    )


class _Stage:
    """The servers, gateways and links of one scenario."""

    def __init__(self, scenario: Scenario, cluster: CallsCluster) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._gateways = cluster.gateways()
        (self._kind,) = scenario.clients

    @staticmethod
    @contextmanager
    def of(scenario: Scenario) -> Iterator[_Stage]:
        """Started; gone afterwards."""
        is_shared = not scenario.links[0].own
        clients = sum(client.count for client in scenario.clients)
        (kind,) = scenario.clients
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmgr-bench-", ignore_cleanup_errors=True)))
            functions = directory / "functions.toml"
            functions.write_text(
                f'[[function]]\nname = "solve"\ncall = "{solver.__name__}:solve"\noperations = "operations"\nbytes = "{kind.bytes}"\n'
                'arguments = ["in operations int", "in data bytes", "out count int"]\n'
            )
            cluster = stack.enter_context(CallsCluster(directory, nodes=0))
            refresh_s = scenario.refresh_us / 1e6 / FASTER
            for number in range(1 if is_shared else clients):
                cluster.start_gateway(f"g{number + 1}", refresh_s=refresh_s)
            for server, link in zip(scenario.servers, scenario.links, strict=True):
                assert server.name == link.server
                shaped = [stack.enter_context(ShapedLink(one, link.capacity * FASTER)) for one in cluster.gateways()]
                dial = ",".join(one.endpoint for one in shaped)
                speed = f"{server.speed / 1e6 * FASTER:g}"
                cluster.start_server(
                    server.name, "--functions", str(functions), "--slots", str(server.slots), "--speed", speed, "--dial", dial
                )
            cluster.wait_for_servers(len(scenario.servers))
            yield _Stage(scenario, cluster)

    def play(self, case: Case, policy: str, seed: int) -> Played:
        """One replication, from idle servers on. Raises: Unavailable; RmgrError for a call that fails."""
        self._cluster.use(policy, {"stage": [{"policy": policy}]})
        self._cluster.settle()
        names = self._kind.names
        callers = [self._cluster.caller(self._gateways[at % len(self._gateways)]) for at in range(len(names))]
        for caller in callers:  # what `solve` takes is known before the clock runs
            self._cluster.until(lambda caller=caller: _knows(caller), "every gateway answers")  # type: ignore[misc]
        play = _Play(self._scenario.requests)
        try:
            clients = [
                threading.Thread(target=play.client, args=(caller, name, self._kind, case, seed), name=name, daemon=True)
                for caller, name in zip(callers, names, strict=True)
            ]
            for client in clients:
                client.start()
            if not play.over.wait(_PATIENCE_S):
                raise Unavailable(f"policy {policy}: {play.answers} of {self._scenario.requests} requests have answers")
        finally:
            play.over.set()
            for caller in callers:
                caller.close()  # what was asked later is cancelled
        for client in clients:
            client.join(_PATIENCE_S)
        return play.played()


def _knows(caller: Caller) -> bool:
    try:
        return caller.interface("solve").name == "solve"
    except RmgrError:
        return False


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request. at_s: monotonic. ended_s: [when its answer was there]."""

    at_s: float
    future: CallFuture
    ended_s: list[float]


class _Play:
    """Requests of one replication, by number of their issue. over: those that count have their answers, or one has failed."""

    def __init__(self, requests: int) -> None:
        self.over = threading.Event()
        self.answers = 0
        self._requests = requests
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._error: BaseException | None = None
        self._began_s = time.monotonic()

    def client(self, caller: Caller, name: str, kind: ClientPlan, case: Case, seed: int) -> None:
        """As `sim/calls/world.py` draws."""
        issues, draws = stream(seed, f"issue/{name}"), stream(seed, f"transfer/{name}")
        mean_s = case.interval_s / FASTER
        next_s = issues.expovariate(1 / mean_s)
        while not self.over.wait(max(0.0, self._began_s + next_s - time.monotonic())):
            at_s = time.monotonic()
            drawn = draws.expovariate(1.0) if kind.kind == "open" else 1.0
            try:
                future = self._ask(caller, kind, drawn, at_s)
            except NotConnected:  # closed meanwhile: it is over
                return
            # an open client goes by its own clock, whatever its asking took; one that waits is late with all that follows
            next_s = (next_s if kind.kind == "open" else at_s - self._began_s) + issues.expovariate(1 / mean_s)
            if kind.kind == "closed":
                try:
                    future.exception()
                except BaseException:  # noqa: BLE001 - cancelled at the end
                    return

    def _ask(self, caller: Caller, kind: ClientPlan, drawn: float, at_s: float) -> CallFuture:
        with self._lock:
            future = caller.call_async("solve", kind.operations, bytes(round(kind.bytes * drawn)))
            asked = _Asked(at_s, future, [])
            self._asked.append(asked)
            number = len(self._asked)
        future.add_done_callback(lambda _: self._answered(asked, number))
        return future

    def _answered(self, asked: _Asked, number: int) -> None:
        asked.ended_s.append(time.monotonic())
        if number > self._requests or asked.future.cancelled():
            return
        with self._lock:
            self.answers += 1
            self._error = self._error or asked.future.exception()
            if self.answers == self._requests or self._error is not None:
                self.over.set()

    def played(self) -> Played:
        """Of those that count. Raises what one of them has raised."""
        if self._error is not None:
            raise self._error
        counted: Sequence[_Asked] = self._asked[: self._requests]
        servers = [one.future.server for one in counted]
        timings = [one.future.timing for one in counted]
        return Played(
            total_s=FASTER * statistics.fmean(one.ended_s[0] - one.at_s for one in counted),
            computing_s=FASTER * statistics.fmean(timing.waited + timing.ran for timing in timings),
            shares={name: servers.count(name) / len(servers) for name in set(servers)},
        )
