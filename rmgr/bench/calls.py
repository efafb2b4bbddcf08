"""Calls of named functions (paper 004, live): the cost of a pick, a call and a transfer compared with bare gRPC, and their cost to others.

A cluster of its own: ZooKeeper, one WatchDog, a Starter of two cores, a gateway that polls its servers every second, and two servers of
two slots with the shipped functions. It is unsecured, like the bare gRPC. The baseline of a call is two hops of bare gRPC, each in a
process (`load/call_load.py`). Long measurements run only if `--row` names them: 10,000 waiting jobs, 50 servers, and the scenarios of the
paper.
"""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Self

import psutil

import rmgr
from rmgr.adapters.rpc.channels import OPTIONS
from rmgr.adapters.rpc.metaserver import MetaserverClient
from rmgr.adapters.rpc.server import OwnVoice
from rmgr.bench.jobs import AwaitedEnds, send_tasks
from rmgr.bench.load import offered
from rmgr.bench.load.call_load import Hops, ShapedLink
from rmgr.bench.load.processes import MIB, Child, cpu_s, sampled
from rmgr.bench.measuring import (
    SAME_RUN,
    MeasuringPlan,
    Row,
    compared,
    connected,
    over,
    per_second,
    row,
    scratch,
    took_s,
    wait_until,
    zookeeper_counts,
)
from rmgr.bench.reality import WorkloadStage
from rmgr.bench.tasks import no_op
from rmgr.client.calls import Caller, CallFuture
from rmgr.client.connection import connect
from rmgr.client.specs import Options, draft_of
from rmgr.client.submission.engine import Engine
from rmgr.client.taskqueue import TaskQueue
from rmgr.config import ClusterConfig, Config
from rmgr.coord.protocol import paths
from rmgr.coord.protocol.records import decode_record
from rmgr.dev.cluster import DevCluster
from rmgr.errors import NotConnected, Unavailable, UsageError
from rmgr.model.node import EpochRecord
from rmgr.model.queue import PipelineSpec
from rmgr.model.servers import CALLS, Candidate, PickRequest
from rmgr.model.submission import Command, Rigid, Work
from rmgr.model.units import percentile
from rmgr.sched.catalogue import call_policy_named
from rmgr.sim.calls.scenario import Case, ClientPlan, Scenario, scenario_named
from rmgr.sim.calls.world import Replication, replicate
from rmgr.sim.papers.paper004 import POLICIES
from rmgr.sim.workload.jobs import stream

_SETUP = "a gateway, 2 servers of 2 slots"
_PICKS, _CALLS, _TASKS = 400, 100, 40
_WARM = 10
_WAITING = 10_000
_BULK_BYTES, _LARGE_BYTES = 64 * MIB, 1024 * MIB - 4096  # with its overhead at most 1 GiB
_PIECE_BYTES = MIB
_PATIENCE_S = 300.0
#: For `fifty`: number of servers; (how often they are polled, how long that is watched) in s.
_MANY, _REFRESHES = 50, ((1.0, 20.0), (60.0, 61.0))
#: For `predictors`: number of calls, their length (s), and the load of both servers.
_MODEL_CALLS, _MODEL_S, _MODEL_LOAD, _MOPS = 100, 0.1, 0.5, 100
#: Factor by which everything is faster than in the paper: servers, links, clients, polls.
FASTER = 20
_SEED = 1
_PLAYED_S = 300.0


def calls(plan: MeasuringPlan) -> list[Row]:
    """Measures `plan.rows`, by default those that take a few minutes in total. Raises: UsageError for an unknown row."""
    known = {**_ON_ONE_CLUSTER, **_ALONE}
    wanted = plan.rows or tuple(name for name in known if name not in _LONG)
    for name in wanted:
        if name not in known:
            raise UsageError(f"bench calls has no row {name!r}", hint=f"known: {', '.join(known)}")
    rows: list[Row] = []
    together = [name for name in wanted if name in _ON_ONE_CLUSTER]
    if together:
        with _Bench.of(plan) as bench:
            for name in together:
                plan.progress(name)
                rows += _ON_ONE_CLUSTER[name](bench)
    for name in wanted:
        if name in _ALONE:
            rows += _ALONE[name](plan)
    return rows


@dataclass(frozen=True, slots=True)
class _Bench:
    plan: MeasuringPlan
    calls: CallsCluster
    caller: Caller
    hops: Hops
    directory: Path
    gateway_pid: int

    @staticmethod
    @contextmanager
    def of(plan: MeasuringPlan) -> Iterator[_Bench]:
        """Yields a started and warm bench; everything is stopped afterwards."""
        with ExitStack() as stack:
            directory = stack.enter_context(scratch())
            plan.progress("starting a cluster")
            cluster = stack.enter_context(CallsCluster(directory, nodes=1))
            gateway_pid = cluster.start_gateway("g1", refresh_s=1.0)
            for name in ("s1", "s2"):
                cluster.start_server(name, "--slots", "2", "--speed", str(_MOPS))
            cluster.wait_for_servers(2)
            end = stack.enter_context(_hop(directory, ""))
            between = stack.enter_context(_hop(directory, end.told("endpoint")))
            hops = Hops(between.told("endpoint"))
            stack.callback(hops.close)
            caller = cluster.caller()
            stack.callback(caller.close)
            for _ in range(_WARM):
                caller.call("echo", bytes(8))
            yield _Bench(plan, cluster, caller, hops, directory, gateway_pid)

    # -- picks -------------------------------------------------------------------------------------------------------------------

    def pick(self) -> list[Row]:
        """Measures a pick by gRPC from the leader against a health check of the leader, one after the other."""
        return self._picks("a pick by gRPC")

    def waiting(self) -> list[Row]:
        """Measures picks as `pick`, while 10,000 jobs wait for a full node."""
        count = self.plan.count(_WAITING)
        with connected(self.calls.cluster) as connection:
            self.plan.progress(f"queueing {count} jobs")
            ends = [self._submit(connection.submitter, *jobs) for jobs in ((1, 2, ("/bin/sleep", "3600")), (count, 1, ("/bin/true",)))]
            rows = self._picks(f"... beside {count:,} waiting jobs")
            del ends
        return rows

    @staticmethod
    def _submit(engine: Engine, count: int, processes: int, argv: tuple[str, ...]) -> AwaitedEnds:
        options = Options(queue="batch", name="bench", time=3600)
        draft = draft_of(options, work=Work.COMMAND, command=Command(argv=argv), rigid=Rigid(processes=processes))
        return send_tasks(engine, draft, count, patience_s=_PATIENCE_S)

    def _picks(self, what: str) -> list[Row]:
        found = self.calls.cluster.coordinator.get(paths.EPOCH).result(30.0)
        assert found is not None
        endpoint = decode_record(found.data, EpochRecord, paths.EPOCH).endpoint
        leader = MetaserverClient(endpoint, credentials=None)
        health = OwnVoice(endpoint, None, OPTIONS)
        servers = tuple(Candidate(name=one.name, life=one.life) for one in self.calls.servers().servers)
        asked = PickRequest(gateway=self.calls.gateways()[0], function="echo@1", operations=1, bytes=8, servers=servers)
        count = self.plan.count(_PICKS)
        times: dict[str, list[list[float]]] = {"a health check of that leader": [], "rmgr": []}
        try:
            assert leader.pick(asked).server
            for _ in self.plan.rounds(what):
                pairs = [(took_s(lambda: health.greet(10.0)), took_s(lambda: leader.pick(asked))) for _ in range(count)]
                for one, values in zip(times.values(), zip(*pairs, strict=True), strict=True):
                    one.append([value * 1e3 for value in values])
        finally:
            leader.close()
            health.close()
        return _compared(what, "ms", times, percents=(50, 99))

    # -- calls -------------------------------------------------------------------------------------------------------------------

    def echo(self) -> list[Row]:
        """Measures a call of 8 bytes and back against its bare hops, one at a time, and the call's writes to ZooKeeper."""
        count, data = self.plan.count(_CALLS), bytes(8)
        times: dict[str, list[list[float]]] = {"two hops of bare gRPC": [], "Executor.submit": [], "rmgr": []}
        written: list[float] = []
        with connected(self.calls.cluster) as connection, rmgr.Executor(connection=connection) as executor:
            for value in range(_WARM):
                executor.submit(no_op, value).result(60)
            for _ in self.plan.rounds("a task of an Executor"):
                times["Executor.submit"].append([took_s(lambda: executor.submit(no_op, 1).result(60)) * 1e3 for _ in range(count)])
        for _ in self.plan.rounds("echo of 8 bytes, and its writes to ZooKeeper"):
            began_s, before = time.monotonic(), zookeeper_counts(self.calls.cluster)[1]
            pairs = [(took_s(lambda: self.hops.small(data)), took_s(lambda: self.caller.call("echo", data))) for _ in range(count)]
            for system, values in zip(("two hops of bare gRPC", "rmgr"), zip(*pairs, strict=True), strict=True):
                times[system].append([value * 1e3 for value in values])
            lasted_s, between = time.monotonic() - began_s, zookeeper_counts(self.calls.cluster)[1]
            time.sleep(lasted_s)
            idle = zookeeper_counts(self.calls.cluster)[1] - between
            written.append((between - before - idle) / count)
        rows = _compared("echo of 8 bytes", "ms", times, percents=(50, 99))
        return [
            *rows,
            *self._parts(data),
            row("rmgr", _SETUP, "... writes to ZooKeeper a call, less those of the idle cluster", "", written),
        ]

    def _parts(self, data: bytes) -> list[Row]:
        """Measures by traces where the time of these calls goes."""
        names = ("to be named", "arguments", "waits for a slot", "runs", "answer", "the rest")
        parts: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(_WARM):
            future = self.caller.call_async("echo", data)
            future.result(_PATIENCE_S)
            timing = future.timing
            named = timing.total - timing.trace[-1][2]  # the last step is what followed
            values = (named, timing.arguments, timing.waited, timing.ran, timing.answer)
            for name, value in zip(parts, (*values, timing.total - sum(values)), strict=True):
                parts[name].append(value * 1e3)
        return [row("rmgr", _SETUP, f"... of it: {name}", "ms", values) for name, values in parts.items()]

    def bulk(self) -> list[Row]:
        """Measures 64 MiB there and back."""
        size = max(_PIECE_BYTES, round(_BULK_BYTES * min(1.0, self.plan.scale)) // _PIECE_BYTES * _PIECE_BYTES)
        data = bytes(size)
        pieces = memoryview(data)
        self.caller.call("echo", data)
        theirs: list[float] = []
        ours: list[float] = []
        for _ in self.plan.rounds(f"{size // MIB} MiB both ways"):
            sent = (bytes(pieces[at : at + _PIECE_BYTES]) for at in range(0, size, _PIECE_BYTES))
            theirs.append(per_second(2 * size, lambda sent=sent: b"".join(self.hops.bulk(sent))) / MIB)  # type: ignore[misc]
            future = self.caller.call_async("echo", data)
            ours.append(per_second(2 * size, lambda future=future: future.result(_PATIENCE_S)) / MIB)  # type: ignore[misc]
        what = f"{size // MIB} MiB both ways"
        timing = future.timing
        detail = {"in_s": timing.arguments, "waited_s": timing.waited, "ran_s": timing.ran, "out_s": timing.answer}
        return [
            row("two hops of bare gRPC", SAME_RUN, what, "MiB/s", theirs, ratio=1.0),
            row("rmgr", _SETUP, what, "MiB/s", ours, ratio=over(ours, theirs), **detail),
        ]

    def memory(self) -> list[Row]:
        """Measures the gateway's memory while 1 GiB passes through it, and afterwards."""
        size = round(_LARGE_BYTES * min(1.0, self.plan.scale))
        data = bytes(size)
        most: list[float] = []
        kept: list[float] = []
        process = psutil.Process(self.gateway_pid)
        before = process.memory_info().rss / MIB
        for _ in self.plan.rounds(f"{size / MIB:.0f} MiB both ways"):
            with sampled(lambda: float(process.memory_info().rss), 0.01) as seen:
                self.caller.call("echo", data, timeout=_PATIENCE_S)
            most.append(max(seen) / MIB - before)
            kept.append(process.memory_info().rss / MIB - before)
        what = f"RSS of the gateway above {before:.0f} MiB"
        return [
            row("rmgr", _SETUP, f"{what}, {size / MIB:.0f} MiB both ways: the most", "MiB", most),
            row("rmgr", _SETUP, "... and after it", "MiB", kept),
        ]

    def aside(self) -> list[Row]:
        """Measures one task at a time through the same gateway, quiet and while another client transfers."""
        count = self.plan.count(_TASKS)
        size = max(_PIECE_BYTES, round(_BULK_BYTES * min(1.0, self.plan.scale)) // _PIECE_BYTES * _PIECE_BYTES)
        gateway = self.calls.gateways()[0]
        times: dict[str, list[list[float]]] = {"quiet": [], "rmgr": []}
        with (
            connect(config=Config(cluster=ClusterConfig(gateway=gateway))) as connection,
            TaskQueue(no_op, connection=connection) as queue,
        ):
            for value in range(_WARM):
                queue.submit_call(value).result(timeout=60)

            def tasks() -> list[float]:
                return [took_s(lambda: queue.submit_call(1).result(timeout=60)) * 1e3 for _ in range(count)]

            for _ in self.plan.rounds("a task through the gateway"):
                times["quiet"].append(tasks())
                with Child("rmgr.bench.load.call_load", f"transfers {gateway} {size}", log=self.directory / "transfers.log") as child:
                    child.told("ready")
                    times["rmgr"].append(tasks())
                self.calls.settle()
        return _compared(f"one task through the gateway (rmgr: during transfers of {size // MIB} MiB)", "ms", times, percents=(50,))

    # -- predictions -------------------------------------------------------------------------------------------------------------

    def predictors(self) -> list[Row]:
        """Measures predicted / measured time of `model`, which sleeps, with random arrivals, the same for each predictor."""
        count = self.plan.count(_MODEL_CALLS)
        slots = sum(one.slots for one in self.calls.servers().servers)
        rows: list[Row] = []
        for predictor in ("last", "ewma", "queueing"):
            name = f"loth+l with {predictor}"
            self.calls.use(name, {"stage": [{"policy": "loth+l", "parameters": {"predictor": predictor}}]})
            medians: list[float] = []
            every: list[float] = []
            for number in self.plan.rounds(f"model at a load of {_MODEL_LOAD:g}, {predictor}"):
                self.calls.settle()
                found = self._arrivals(count, slots * _MODEL_LOAD / _MODEL_S, Random(number))
                medians.append(statistics.median(found))
                every += found
            spread = {"p10": percentile(every, 10), "p90": percentile(every, 90)}
            what = f"predicted / measured, model of {_MODEL_S:g} s at a load of {_MODEL_LOAD:g}, {predictor}"
            rows.append(row("rmgr", _SETUP, what, "", medians, **spread))
        self.calls.use("loth+l", {"stage": [{"policy": "loth+l"}]})
        return rows

    def _arrivals(self, count: int, rate: float, chance: Random) -> list[float]:
        """Returns predicted / measured time of each call, from the pick to the answer."""
        asked: list[_Asked] = []
        next_s = time.monotonic()
        for _ in range(count):
            next_s += chance.expovariate(rate)
            time.sleep(max(0.0, next_s - time.monotonic()))
            future = self.caller.call_async("model", round(_MODEL_S * _MOPS * 1e6), bytes(8))
            asked.append(_Asked(time.monotonic(), future))
            future.add_done_callback(asked[-1].ended)
        for one in asked:
            one.future.result(_PATIENCE_S)
        return [(one.future.timing.computing + one.future.timing.transfer) / (one.ended_s - one.at_s) for one in asked]


@dataclass(slots=True)
class _Asked:
    """A request. at_s, ended_s: monotonic times of its issue and of its answer."""

    at_s: float
    future: CallFuture
    ended_s: float = math.nan

    def ended(self, _future: object) -> None:
        """Notes that it is answered."""
        self.ended_s = time.monotonic()


def fifty(plan: MeasuringPlan) -> list[Row]:
    """Measures what a gateway and a leader use for 50 servers, and without servers."""
    rows: list[Row] = []
    count = min(_MANY, plan.count(_MANY))
    with scratch() as where:
        for refresh_s, window_s in _REFRESHES:
            plan.progress(f"{count} servers, looked at every {refresh_s:g} s: {2 * window_s:g} s")
            with CallsCluster(where / f"{refresh_s:g}", nodes=0) as cluster:
                gateway = cluster.start_gateway("g1", refresh_s=refresh_s)
                leader = cluster.cluster.process("w1").pid
                wait_until("the gateway answers", lambda cluster=cluster: not cluster.servers().degraded)  # type: ignore[misc]
                idle = _used(cluster, (gateway, leader), window_s)
                command = f"servers {cluster.gateways()[0]} {count}"
                with Child("rmgr.bench.load.call_load", command, log=where / "servers.log") as child:
                    ready = child.told("ready")
                    cluster.wait_for_servers(ready)
                    busy = _used(cluster, (gateway, leader), window_s)
            what = f"{ready} servers, looked at every {refresh_s:g} s: processor of"
            for part, without, with_them in zip(("the gateway", "the leader"), idle[0], busy[0], strict=True):
                rows.append(row("without servers", SAME_RUN, f"{what} {part}", "% of a core", [without]))
                rows.append(row("rmgr", f"a gateway, {ready} servers", f"{what} {part}", "% of a core", [with_them]))
            rows.append(row("without servers", SAME_RUN, "... writes to ZooKeeper", "a second", [idle[1]]))
            rows.append(row("rmgr", f"a gateway, {ready} servers", "... writes to ZooKeeper", "a second", [busy[1]]))
    return rows


def _used(cluster: CallsCluster, pids: tuple[int, ...], window_s: float) -> tuple[list[float], float]:
    """Returns (per cent of a core of each process, writes to ZooKeeper a second)."""
    before, began_s, written = [cpu_s([pid]) for pid in pids], time.monotonic(), zookeeper_counts(cluster.cluster)[1]
    time.sleep(window_s)
    lasted_s = time.monotonic() - began_s
    used = [100 * (cpu_s([pid]) - was) / lasted_s for pid, was in zip(pids, before, strict=True)]
    return used, (zookeeper_counts(cluster.cluster)[1] - written) / lasted_s


def _hop(directory: Path, target: str) -> Child:
    return Child("rmgr.bench.load.call_load", f"hop {target}", log=directory / f"hop-{'between' if target else 'end'}.log")


def _compared(what: str, unit: str, times: dict[str, list[list[float]]], *, percents: tuple[int, ...]) -> list[Row]:
    """Returns rows of each system by percentile; rmgr's ratio is to the first system. times: system -> a list per repetition."""
    rows: list[Row] = []
    for percent in percents:
        found = {
            (system, _SETUP if system == "rmgr" else SAME_RUN): [percentile(one, percent) for one in runs]
            for system, runs in times.items()
        }
        rows += compared(f"{what}, p{percent}", unit, found)
    return rows


def ninf_shared(plan: MeasuringPlan) -> list[Row]:
    """Measures the scenario of table 3."""
    return _scenario(plan, "ninf_shared")


def ninf_table4(plan: MeasuringPlan) -> list[Row]:
    """Measures the scenario of table 4, as papers.md 4.4 decodes it."""
    return _scenario(plan, "ninf_table4")


@dataclass(frozen=True, slots=True)
class Played:
    """Mean seconds of a request in the paper's time (`FASTER` times the measured time): total, and the function with its wait for the slot.
    shares: of the requests, by server.
    """

    total_s: float
    computing_s: float
    shares: dict[str, float]


def as_live(scenario: Scenario) -> Scenario:
    """Returns the scenario with servers like the live ones: one slot, in order, without other work."""
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
    """Returns the simulator's result in the same terms."""
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
        """Yields the started stage; everything is stopped afterwards."""
        is_shared = not scenario.links[0].own
        clients = sum(client.count for client in scenario.clients)
        (kind,) = scenario.clients
        with ExitStack() as stack:
            directory = stack.enter_context(scratch())
            functions = directory / "functions.toml"
            functions.write_text(
                f'[[function]]\nname = "solve"\ncall = "{offered.__name__}:solve"\noperations = "operations"\nbytes = "{kind.bytes}"\n'
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
        """Plays one replication, beginning with idle servers. Raises: Unavailable; RmgrError for a failed call."""
        self._cluster.use(policy, {"stage": [{"policy": policy}]})
        self._cluster.settle()
        names = self._kind.names
        callers = [self._cluster.caller(self._gateways[at % len(self._gateways)]) for at in range(len(names))]
        for caller in callers:  # makes known what `solve` takes before the clock runs
            wait_until("every gateway answers", lambda caller=caller: caller.interface("solve").name == "solve")  # type: ignore[misc]
        play = _Play(self._scenario.requests)
        try:
            clients = [
                threading.Thread(target=play.client, args=(caller, name, self._kind, case, seed), name=name, daemon=True)
                for caller, name in zip(callers, names, strict=True)
            ]
            for client in clients:
                client.start()
            if not play.over.wait(_PLAYED_S):
                raise Unavailable(f"policy {policy}: {play.answers} of {self._scenario.requests} requests have answers")
        finally:
            play.over.set()
            for caller in callers:
                caller.close()  # cancels later requests
        for client in clients:
            client.join(_PLAYED_S)
        return play.played()


class _Play:
    """Requests of one replication, by number of issue. over: set once the counted requests have answers or one has failed."""

    def __init__(self, requests: int) -> None:
        self.over = threading.Event()
        self.answers = 0
        self._requests = requests
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._error: BaseException | None = None
        self._began_s = time.monotonic()

    def client(self, caller: Caller, name: str, kind: ClientPlan, case: Case, seed: int) -> None:
        """Issues one client's requests, drawn as in `sim/calls/world.py`."""
        issues, draws = stream(seed, f"issue/{name}"), stream(seed, f"transfer/{name}")
        mean_s = case.interval_s / FASTER
        next_s = issues.expovariate(1 / mean_s)
        while not self.over.wait(max(0.0, self._began_s + next_s - time.monotonic())):
            at_s = time.monotonic()
            drawn = draws.expovariate(1.0) if kind.kind == "open" else 1.0
            try:
                future = self._ask(caller, kind, drawn, at_s)
            except NotConnected:  # closed because the replication is over
                return
            # an open client keeps to its own clock, however long the issue took; a closed one is late with all that follows
            next_s = (next_s if kind.kind == "open" else at_s - self._began_s) + issues.expovariate(1 / mean_s)
            if kind.kind == "closed":
                try:
                    future.exception()
                except BaseException:  # noqa: BLE001 - cancelled at the end
                    return

    def _ask(self, caller: Caller, kind: ClientPlan, drawn: float, at_s: float) -> CallFuture:
        with self._lock:
            future = caller.call_async("solve", kind.operations, bytes(round(kind.bytes * drawn)))
            asked = _Asked(at_s, future)
            self._asked.append(asked)
            number = len(self._asked)
        future.add_done_callback(lambda _: self._answered(asked, number))
        return future

    def _answered(self, asked: _Asked, number: int) -> None:
        asked.ended(asked.future)
        if number > self._requests or asked.future.cancelled():
            return
        with self._lock:
            self.answers += 1
            self._error = self._error or asked.future.exception()
            if self.answers == self._requests or self._error is not None:
                self.over.set()

    def played(self) -> Played:
        """Returns the result of the counted requests. Raises what one of them has raised."""
        if self._error is not None:
            raise self._error
        counted: Sequence[_Asked] = self._asked[: self._requests]
        servers = [one.future.server for one in counted]
        timings = [one.future.timing for one in counted]
        return Played(
            total_s=FASTER * statistics.fmean(one.ended_s - one.at_s for one in counted),
            computing_s=FASTER * statistics.fmean(timing.waited + timing.ran for timing in timings),
            shares={name: servers.count(name) / len(servers) for name in set(servers)},
        )


class CallsCluster:
    """One WatchDog, `nodes` Starters of two cores, and the gateways and servers started later. Context manager.

    Args:
        directory: where the cluster lives; files that it leaves stay there.
    """

    def __init__(self, directory: Path, *, nodes: int) -> None:
        self.cluster = DevCluster(directory / "cluster", nodes=nodes, cores=2, watchdogs=1, secured=False)
        self._refresh_s = 0.0
        self._callers: dict[str, Caller] = {}

    def __enter__(self) -> Self:
        self.cluster.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for caller in self._callers.values():
            caller.close()
        self.cluster.stop(at_once=True)

    def start_gateway(self, name: str, *, refresh_s: float) -> int:
        """Starts a gateway; returns its pid. refresh_s: how often it polls its servers."""
        self._refresh_s = max(self._refresh_s, refresh_s)
        return self.cluster.start_gateway(name, environment={"RMGR_SUBMITTER_REFRESH": f"{refresh_s:g}s"})

    def start_server(self, name: str, *options: str) -> int:
        """Starts a server; returns its pid."""
        return self.cluster.start_server(name, options=options)

    def gateways(self) -> tuple[str, ...]:
        """Returns HOST:PORT of each gateway."""
        return tuple(self.cluster.state.gateway.split(","))

    def caller(self, gateway: str = "") -> Caller:
        """Returns a new client of this gateway, by default the first; the caller closes it."""
        return Caller(Config(cluster=ClusterConfig(gateway=gateway or self.gateways()[0])))

    def servers(self) -> Any:
        """Returns `pb.ServersReply` of the first gateway. Raises: RmgrError."""
        if "" not in self._callers:
            self._callers[""] = self.caller()
        return self._callers[""].asked(lambda client: client.servers(""))

    def wait_for_servers(self, count: int) -> None:
        """Waits until all servers are open and every link is measured. Raises: Unavailable."""
        wanted = count * len(self.gateways())

        def are_there() -> bool:
            found = self.servers().servers
            return sum(one.state == "open" for one in found) == count and sum(len(one.links) for one in found) == wanted

        wait_until(f"{count} servers are open", are_there)

    def use(self, name: str, document: Mapping[str, object]) -> None:
        """Makes picks use this pipeline. name: its name while it is used. Raises: Unavailable."""
        with connected(self.cluster) as connection:
            WorkloadStage(connection).use(PipelineSpec(partition=CALLS, document=json.dumps(document, sort_keys=True), name=name))
        wait_until(f"policy {name} picks", lambda: bool(self.servers().policy == name))

    def settle(self) -> None:
        """Waits until nothing runs and every gateway has measured that. Raises: Unavailable."""
        idle_s = 0.0

        def is_settled() -> bool:
            nonlocal idle_s
            now_s = time.monotonic()
            found = self.servers().servers
            if any(one.running or one.waiting for one in found):
                idle_s = 0.0
                return False
            idle_s = idle_s or now_s
            return now_s - idle_s > self._refresh_s and all(one.age_s < now_s - idle_s and not one.assigned for one in found)

        wait_until("the servers are idle", is_settled)


_ON_ONE_CLUSTER: dict[str, Callable[[_Bench], list[Row]]] = {
    "pick": _Bench.pick, "echo": _Bench.echo, "bulk": _Bench.bulk, "memory": _Bench.memory, "aside": _Bench.aside,
    "predictors": _Bench.predictors, "waiting": _Bench.waiting,
}
_ALONE: dict[str, Callable[[MeasuringPlan], list[Row]]] = {"fifty": fifty, "ninf_shared": ninf_shared, "ninf_table4": ninf_table4}
#: Rows that take minutes each: measured only if named.
_LONG = ("waiting", "fifty", "ninf_shared", "ninf_table4")
#: All row names.
ROWS = (*_ON_ONE_CLUSTER, *_ALONE)
