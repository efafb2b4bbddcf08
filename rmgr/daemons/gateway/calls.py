"""The gateway's part in calls besides the relay: which functions exist, which server gets a call, and measurements for picks (paper 004).

    servers <--ask, probe-- monitor --Report--> leader        every `[submitter] refresh_s`
    a try   --understood, pick--> leader, or the gateway's own Metaserver, which knows only this gateway's measurements

The leader picks; if it does not answer within a second, the gateway picks, says so (`degraded`), and asks the leader again each second.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import msgspec
from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.access.limits import Bounds
from rmgr.adapters.calls.links import ServerLink
from rmgr.adapters.calls.relay import Relay, Wanted
from rmgr.adapters.gateway.forward import ClusterRoutes, LeaderLink
from rmgr.adapters.rpc.convert import from_message, to_message
from rmgr.adapters.rpc.metaserver import MetaserverClient
from rmgr.coord.calls.ledger import Life
from rmgr.daemons.service.metaserver import Metaserver
from rmgr.errors import UNREADABLE_TEXT, NotFound, PermissionDenied, RmgrError, UsageError, closest
from rmgr.model.interface import LARGEST, LENGTHS, Interface, offers, readable
from rmgr.model.queue import PipelineSpec
from rmgr.model.servers import (
    CALLS,
    CallReport,
    Candidate,
    GatewayReport,
    Pick,
    PickRequest,
    ReportAnswer,
    ServerLoad,
    ServerReport,
    ServersView,
)
from rmgr.model.units import counted, format_duration
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint
from rmgr.runtime.machine import Log
from rmgr.v1 import calls_pb2 as pb

#: Time limit of the leader's pick; pause before a leader that missed it is asked again.
LEADER_S, AGAIN_S = 1.0, 1.0
#: Time limit for servers to report their load.
_LOAD_S = 1.0
#: Interval of looks for servers that came or went, and for loads that arrived.
_LOOK_S, _POLL_S = 0.25, 0.01
_SIZES_CHARACTERS = 65_536
#: Characters of a call's sizes that are shown.
_SIZES_SHOWN = 200
#: Longest interval between reports, whatever the refresh: a gateway that stops reporting is taken to hear no server
#: (`metaserver.FRESH_US`).
_LIVES_S = 5.0
#: Most bytes of functions in one report to the leader: a message has 4 MiB at most, and must be read within `LEADER_S`.
_FUNCTIONS_BYTES = 1024 * 1024
_LONGEST_S = 1e12
_BUCKETS = (0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600)


class Calls:
    """Implements `relay.Choosing`. Thread-safe.

    Args:
        site: of this gateway. refresh_s: interval between two looks at all servers. ask: opens a client for the leader's endpoint.
    """

    def __init__(
        self,
        routes: ClusterRoutes,
        metrics: GatewayMetrics,
        log: Log,
        *,
        site: str,
        refresh_s: float,
        ask: Callable[[str], MetaserverClient],
        bounds: Bounds | None = None,
    ) -> None:
        self.relay = Relay(self, bounds=bounds)
        self._metrics, self._log = metrics, log
        self._site, self._refresh_s = site, refresh_s
        self._own = Metaserver(lambda: machine.boottime_ns() // 1000)
        self._leader = LeaderLink(routes, ask)
        self.is_degraded = False  #: no leader answers
        self._shunned_s = -math.inf  # when the leader last failed to answer
        self._looked_s = self._linked_s = 0.0  # duration of the last look at loads, and at links
        self._stop = threading.Event()
        self._told: frozenset[tuple[str, int, str]] = frozenset()  # servers of the last report, with their states
        self._known: frozenset[int] = frozenset()  # lives whose functions were reported to the leader
        self._thread = machine.Thread(target=self._run, name="calls-monitor", daemon=True)

    def start(self, endpoint: str) -> None:
        """Starts looking at servers. endpoint: of this gateway."""
        self.relay.endpoint = endpoint
        self._thread.start()

    def close(self) -> None:
        """Ends the looks and the channel to the leader. Idempotent."""
        self._stop.set()
        self._leader.close()

    # -- functions ----------------------------------------------------------------------------------------------------------------

    def understood(self, caller: Caller, ask: Any) -> Wanted | Any:
        began_s = machine.perf_counter()
        failpoint("calls.request")
        interface = self._find(ask.function, ask.function_version)
        if interface is None:
            return None
        if ask.interface and ask.interface.hex() != interface.digest:
            why = f"{interface.key} has another interface now"
            return pb.NoneNow(kind=pb.NoneNow.CHANGED, reason=why)
        return replace(self._wanted_call(caller, interface, ask.sizes), took_s=machine.perf_counter() - began_s)

    def _wanted_call(self, caller: Caller, interface: Interface, sizes: str) -> Wanted:
        allowed = self._allowed_users(interface.key)
        if allowed is not None and caller.user not in allowed:  # its servers refuse operators, too
            who = caller.user or "nobody in particular"
            raise PermissionDenied(f"{interface.key} is not for {who}", hint="ask who runs its servers: `users` of the function")
        try:
            known = json.loads(sizes or "{}") if len(sizes) <= _SIZES_CHARACTERS else None
        except UNREADABLE_TEXT:
            known = None
        if not isinstance(known, dict) or not all(type(value) in (int, float) for value in known.values()):
            raise UsageError(f"the sizes of a call of {interface.key} cannot be read")
        lengths = known.pop(LENGTHS, 0)
        cost = interface.cost(known, lengths=int(min(lengths, 2 * LARGEST)) if lengths > 0 else 0)  # any number, also inf and nan
        sizes = ", ".join(f"{name}={known[name]}" for name in interface.sizes)
        return Wanted(interface.key, cost.operations, cost.bytes, sizes=sizes[:_SIZES_SHOWN])

    def _allowed_users(self, key: str) -> frozenset[str] | None:
        """Returns the users who may call a function, None = all. Any server may get a call, so all that name users must allow them."""
        found = self._offers().get(key)
        named = [users for link in found[1] if (users := link.users.get(key))] if found is not None else []
        return frozenset.intersection(*named) if named else None

    def offering(self, wanted: Wanted) -> Sequence[ServerLink]:
        """See `relay.Choosing`. Cost: O(functions of all servers), once a pick."""
        found = self._offers().get(wanted.function)
        return () if found is None else found[1]

    def functions(self, request: Any) -> Any:
        """See `relay.Choosing`. Returns every interface by name and version; those that are not offered say why."""
        views: list[Any] = []
        names: set[str] = set()
        for link in self.relay.links.all():
            for text in link.functions:
                interface = readable(text)
                name = interface.name if isinstance(interface, Interface) else ""
                names.add(name)
                if request.name in ("", name) and all(view.interface != text for view in views):
                    views.append(pb.FunctionView(interface=text, odd=interface if isinstance(interface, str) else ""))
        offered = {interface.digest: links for interface, links in self._offers().values()}
        for view in views:
            interface = readable(view.interface)
            holders = offered.get(interface.digest, ()) if isinstance(interface, Interface) else ()
            view.servers.extend(link.name for link in holders)
            if not holders and not view.odd:
                view.odd = "more servers offer another interface under this name and version"
        return pb.FunctionsReply(functions=views, nearest="" if views else "".join(closest(request.name, sorted(names))))

    def _find(self, name: str, version: int) -> Interface | None:
        """Returns the valid interface of this version, or of the highest."""
        offered = [interface for interface, _ in self._offers().values() if interface.name == name]
        if version:
            return next((interface for interface in offered if interface.version == version), None)
        return max(offered, key=lambda interface: interface.version, default=None)

    def _offers(self) -> dict[str, tuple[Interface, list[ServerLink]]]:
        """Returns for each name@version its valid interface, and the servers that offer it, by name."""
        return {key: several[0] for key, several in offers((link, link.functions) for link in self.relay.links.all()).items()}

    # -- picks -------------------------------------------------------------------------------------------------------------------

    def pick(self, wanted: Wanted, user: str, links: Sequence[ServerLink]) -> tuple[Any, Sequence[Any]]:
        began_s = machine.perf_counter()
        found = self._request_pick(self._request(wanted, user, links))
        took_s = machine.perf_counter() - began_s
        failpoint("calls.picked")
        self._metrics.picks.labels("gateway" if found.degraded else "leader").inc()
        return to_message(found), self._trace(wanted, links, found, took_s)

    def explain(self, caller: Caller, request: Any) -> Any:
        interface = self._find(request.function, request.function_version)
        if interface is None:
            raise NotFound(f"no server offers {request.function}", hint="rmgr functions")
        wanted = self._wanted_call(caller, interface, request.sizes)
        request = self._request(wanted, caller.user, self.relay.links.all())
        return to_message(self._request_pick(msgspec.structs.replace(request, explain=True)))

    def _request(self, wanted: Wanted, user: str, links: Sequence[ServerLink]) -> PickRequest:
        return PickRequest(
            gateway=self.relay.endpoint,
            site=self._site,
            function=wanted.function,
            operations=wanted.operations,
            bytes=wanted.bytes,
            user=user,
            servers=tuple(_candidate(link) for link in links),
        )

    def _request_pick(self, request: PickRequest) -> Pick:
        failpoint("calls.proxy")
        found = self._ask_leader(lambda leader: leader.pick(request))
        if found is not None and found.unknown:  # a new leader, or a new server
            self._report()
            found = self._ask_leader(lambda leader: leader.pick(request))
        return msgspec.structs.replace(self._own.pick(request), degraded=True) if found is None else found

    def _ask_leader(self, question: Callable[[MetaserverClient], Any]) -> Any:
        """Returns the leader's answer, None if there is none in time."""
        if machine.monotonic() - self._shunned_s < AGAIN_S:
            return None
        try:
            answer = self._leader.ask(question)
        except RmgrError as error:
            self._shunned_s = machine.monotonic()
            if not self.is_degraded:
                self.is_degraded = True
                self._log.warning("calls_without_leader", error=str(error))
            return None
        if self.is_degraded:
            self.is_degraded = False
            self._log.info("calls_with_leader", leader=self._leader.endpoint)
        return answer

    def _trace(self, wanted: Wanted, links: Sequence[ServerLink], found: Pick, took_s: float) -> list[Any]:
        now_s = machine.monotonic()
        age_s = max((now_s - link.loaded_s for link in links), default=0.0)
        rates = ", ".join(f"{link.name} {link.link.bytes_per_s / 1e6:.0f} MB/s" for link in links if link.link.bytes_per_s)
        link_age_s = max((now_s - link.link.at_s for link in links if link.link.bytes_per_s), default=0.0)
        who = "picked by the gateway itself: no leader answers" if found.degraded else f"asked the leader of epoch {found.epoch}"
        predicted = f"{format_duration(found.computing_s)} + {format_duration(found.transfer_s)} predicted"
        chosen = f"{found.policy}: {found.server}, {predicted}" if found.server else found.why
        took_us = round(took_s * 1e6)
        sizes = f"{wanted.sizes}: " if wanted.sizes else ""
        steps = (
            ("monitor", self._looked_s * 1e6, f"load of {counted(len(links), 'server')}, {format_duration(age_s)} old"),
            ("links", self._linked_s * 1e6, f"{rates or 'not measured'}, {format_duration(link_age_s)} old"),
            ("request", wanted.took_s * 1e6, f"{sizes}{wanted.operations:,} operations, {wanted.bytes:,} bytes"),
            ("proxy", max(0, took_us - found.took_us), who),
            ("scheduler", found.took_us, chosen),
        )
        return [pb.TraceStep(step=at, name=name, took_us=round(took), text=text) for at, (name, took, text) in enumerate(steps, 1)]

    # -- measurements ------------------------------------------------------------------------------------------------------------

    def forwarding(self, count: int) -> None:
        failpoint("calls.forward")
        self._metrics.call_bytes.inc(count)

    def ended(self, wanted: Wanted, link: ServerLink, outcome: Any, took_s: float, out_s: float, pick: Any) -> None:
        self._metrics.calls.labels(pb.CallOutcome.Kind.Name(outcome.kind).lower()).inc()
        parts = (("in", outcome.in_us / 1e6), ("waited", outcome.waited_us / 1e6), ("ran", outcome.ran_us / 1e6), ("out", out_s))
        for part, part_s in parts:
            self._metrics.call_seconds.labels(part).observe(part_s)
        if outcome.kind == pb.CallOutcome.OK:
            rate, took_us = link.link.bytes_per_s, round(took_s * 1e6)
            ran_us = min(outcome.ran_us, took_us)  # whatever the server says
            link.answered.append(
                CallReport(
                    function=wanted.function,
                    operations=wanted.operations,
                    bytes=wanted.bytes,
                    ran_us=ran_us,
                    alone_us=ran_us + (_to_us(wanted.bytes / rate) if rate else 0),
                    took_us=took_us,
                    predicted_us=_to_us(pick.computing_s + pick.transfer_s),
                )
            )

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        self._metrics.count(what, kind, amount)

    def servers(self, request: Any) -> Any:
        found: ServersView | None = self._ask_leader(lambda leader: leader.servers(request.name))
        return to_message(msgspec.structs.replace(self._own.servers(request.name), degraded=True) if found is None else found)

    def _run(self) -> None:
        looked_s = reported_s = -math.inf
        while not self._stop.wait(_LOOK_S):
            now_s = machine.monotonic()
            try:
                if now_s - looked_s >= self._refresh_s:
                    looked_s = reported_s = now_s
                    self._look()
                elif self._link_states() != self._told or now_s - reported_s >= _LIVES_S:
                    reported_s = now_s
                    self._report()
            except Exception:  # noqa: BLE001 - loop boundary: what one server says must not end the looks at all others
                self._log.exception("calls_monitor_failed")

    def _look(self) -> None:
        """Steps 1 and 2: asks all servers for their load, measures the links to them, reports."""
        began_s = machine.monotonic()
        links = self.relay.links.all()
        for link in links:
            link.ask()
        failpoint("calls.monitor")
        while any(link.loaded_s < began_s and not link.ended for link in links) and machine.monotonic() - began_s < _LOAD_S:
            self._stop.wait(_POLL_S)
        self._looked_s = machine.monotonic() - began_s
        failpoint("calls.links")
        for link in links:
            link.probe(self._refresh_s)
        known_s = max((link.link.round_trip_s for link in links), default=0.0)
        self._linked_s = machine.monotonic() - began_s - self._looked_s + known_s
        self._report()
        for link in links:
            self._metrics.server(link.name, link.load, link.link.bytes_per_s, machine.monotonic() - link.loaded_s)
        self._metrics.only_servers([link.name for link in links])

    def _report(self) -> None:
        """Reports what is known here to the leader and to this gateway's own picks."""
        self._told = self._link_states()
        links = [*self.relay.links.all(), *self.relay.links.gone()]
        report = GatewayReport(
            gateway=self.relay.endpoint,
            site=self._site,
            servers=tuple(self._server_report(link) for link in links),
            refresh_us=round(self._refresh_s * 1e6),
        )
        self._own.report(report)
        answer = self._report_to_leader(report)
        if answer is None:
            return
        self._own.set_pipeline(PipelineSpec(partition=CALLS, document=answer.pipeline, name=answer.policy))
        for life in answer.lives:
            self.relay.links.heard_elsewhere(Life(life.name, life.life), life.heard_ago_us, is_over=life.over)

    def _report_to_leader(self, report: GatewayReport) -> ReportAnswer | None:
        """Reports in portions, without functions that the leader knows. Returns None if the leader does not answer."""
        answer: ReportAnswer | None = None
        for _ in range(len(report.servers) + 1):
            part, size = set[int](), 0
            for server in report.servers:
                count = sum(map(len, server.functions))
                if server.life not in self._known and (not part or size + count <= _FUNCTIONS_BYTES):
                    part.add(server.life)
                    size += count
            servers = (one if one.life in part else msgspec.structs.replace(one, functions=(), same=True) for one in report.servers)
            answer = self._ask_leader(methodcaller("report", msgspec.structs.replace(report, servers=tuple(servers))))
            if answer is None:
                return None
            self._known = (self._known & {server.life for server in report.servers} | part) - set(answer.untold)
            if not answer.untold:
                return answer
            report = msgspec.structs.replace(report, servers=tuple(msgspec.structs.replace(one, answered=()) for one in report.servers))
        return answer

    def _server_report(self, link: ServerLink) -> ServerReport:
        now_s = machine.monotonic()
        answered = []
        while link.answered:
            answered.append(link.answered.popleft())
        return ServerReport(
            name=link.name,
            life=link.life,
            site=link.site,
            slots=link.slots,
            mops=link.mops,
            mops_declared=link.mops_declared,
            functions=link.functions,
            load=None if link.loaded_s == -math.inf else from_message(ServerLoad, link.load),
            measured_ago_us=_ago_us(now_s, link.loaded_s),
            bytes_per_s=link.link.bytes_per_s,
            round_trip_s=link.link.round_trip_s,
            link_ago_us=_ago_us(now_s, link.link.at_s),
            state=_state(link),
            answered=tuple(answered),
            heard_ago_us=_ago_us(now_s, link.heard_s),
        )

    def _link_states(self) -> frozenset[tuple[str, int, str]]:
        return frozenset((link.name, link.life, _state(link)) for link in [*self.relay.links.all(), *self.relay.links.gone()])


def _to_us(seconds: float) -> int:
    """Converts to whole microseconds, bounded so that any expectation can be sent."""
    return round(min(seconds, _LONGEST_S) * 1e6)


def _candidate(link: ServerLink) -> Candidate:
    return Candidate(name=link.name, life=link.life, bytes_per_s=link.link.bytes_per_s, round_trip_s=link.link.round_trip_s)


def _state(link: ServerLink) -> str:
    """Returns the state as reports name it."""
    return "closed" if link.is_over else "away" if link.ended else "leaving" if link.is_leaving else "open"


def _ago_us(now_s: float, at_s: float) -> int:
    return 0 if at_s == -math.inf else max(0, round((now_s - at_s) * 1e6))


# -- metrics ---------------------------------------------------------------------------------------------------------------


class GatewayMetrics:
    """Metrics of one gateway process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.sessions = Gauge("rmgr_gateway_sessions", "clients that have a stream", registry=registry)
        self.connected = Gauge("rmgr_gateway_zookeeper_connected", "1 while ZooKeeper answers this gateway", registry=registry)
        self._counters = {
            "asked": Counter("rmgr_gateway_requests", "what clients asked, and said of their work, by kind", ["kind"], registry=registry),
            "committed": Counter("rmgr_gateway_commits", "what was committed for clients, by operation", ["kind"], registry=registry),
            "refused": Counter("rmgr_gateway_refusals", "requests refused, by error", ["kind"], registry=registry),
            "cut": Counter("rmgr_gateway_cuts", "clients cut off, by reason", ["kind"], registry=registry),
            "passed_on": Counter("rmgr_gateway_forwarded", "calls passed on to daemons, by method", ["kind"], registry=registry),
            "stored_bytes": Counter("rmgr_gateway_store_bytes", "bytes of values, put and get", ["kind"], registry=registry),
        }

        self.calls = Counter("rmgr_calls", "calls of functions on servers by outcome", ["outcome"], registry=registry)
        self.call_bytes = Counter("rmgr_call_argument_bytes", "bytes of arguments passed on to servers", registry=registry)
        self.call_seconds = Histogram(
            "rmgr_call_seconds", "seconds of calls by part: in, waited, ran, out", ["part"], buckets=_BUCKETS, registry=registry
        )
        self.picks = Counter("rmgr_call_picks", "servers picked, by leader or (where none answers) gateway", ["by"], registry=registry)
        self._server_load = Gauge("rmgr_call_server_load", "calls that run and wait, and other work", ["server"], registry=registry)
        self._server_link = Gauge("rmgr_call_link_bytes_per_second", "bytes/s of the way to a server", ["server"], registry=registry)
        self._server_age = Gauge("rmgr_call_server_age_seconds", "age of a server's load", ["server"], registry=registry)

    def server(self, name: str, load: Any, bytes_per_s: float, age_s: float) -> None:
        """Shows what was measured of a server for calls (`pb.Load`)."""
        self._server_load.labels(name).set(load.running + load.waiting + load.other)
        self._server_link.labels(name).set(bytes_per_s)
        self._server_age.labels(name).set(age_s)

    def only_servers(self, names: Collection[str]) -> None:
        """Removes the rows of all other servers."""
        for gauge in (self._server_load, self._server_link, self._server_age):
            for metric in gauge.collect():
                for name in {sample.labels["server"] for sample in metric.samples} - set(names):
                    gauge.remove(name)

    def count(self, what: str, kind: str, amount: float = 1) -> None:
        """Counts an event of one kind: `asked`, `committed`, `refused`, `cut`, `stored_bytes`, `passed_on`."""
        self._counters[what].labels(kind).inc(amount)
