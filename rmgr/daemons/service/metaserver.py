"""The metaserver (paper 004, live): picks a server for each call, by a policy of the simulator and the gateways' reports.

The leader has one, filled by the reports of all gateways; each gateway has its own for times without a leader. A `ServerBook` holds what is
known about servers; what counts of it becomes facts in a `ClusterState` of one partition. A pick is one `run_pass` on that state, in the
asking thread, under one lock. A policy that raises loses its pick: RR picks for 5 minutes.

Every fact and pass can be written as an event log (`sched/state/event_log.py`), which `rmgr sim replay` repeats. A new policy begins
another log; so does a gap of lines that could not be kept.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Protocol

import msgspec

from rmgr.coord.calls.ledger import OVER_US
from rmgr.model.interface import Interface, offers, readable
from rmgr.model.queue import PipelineSpec
from rmgr.model.servers import (
    CALLS,
    DEFAULT_CALL_POLICY,
    REFRESH_US,
    Candidate,
    GatewayReport,
    LifeHeard,
    LinkView,
    Pick,
    PickRequest,
    ReportAnswer,
    ServerLoad,
    ServerReport,
    ServersView,
    ServerView,
    TermView,
)
from rmgr.model.units import format_duration
from rmgr.sched.catalogue import call_policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.forecast import throughput_of
from rmgr.sched.pipeline import stage_for_calls
from rmgr.sched.plan import Plan, Send, Why
from rmgr.sched.policies.servers import Choosing, Option
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Answered, Call, Demand, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Recorder

#: Time until a failed policy is tried again; the policy that picks until then.
BENCH_US, INSTEAD = 300_000_000, "rr"
#: Longest time of one log: logs can then expire one by one.
LOG_US = 86_400_000_000
#: Characters of an error that are kept: a policy may raise very long ones.
_MOST_CHARACTERS = 500
_SEED = 0
#: A server without a report of its load for this many refreshes is stale.
STALE_REFRESHES = 3
#: Time after which a server without any stream is forgotten.
KEPT_US = 3_600_000_000
#: Bytes/s of a link if none was ever measured: no link is free.
UNMEASURED = 1e6
#: Most calls to a server that are remembered until it is measured again.
_MOST_SENT = 10_000
#: States in which the reporting gateway has the server's stream.
_STREAMS = frozenset({"open", "leaving"})
#: Gateways report at least every 5 s, and when a stream breaks: their streams are believed this long after the last report.
FRESH_US = 12_000_000


class LogLines(Protocol):
    """Takes the event log; called under the metaserver's lock, so it must not block."""

    @property
    def has_room(self) -> bool:
        """Whether the lines of some more facts and passes can be kept."""
        ...

    def begin(self) -> None:
        """Begins another log."""
        ...

    def write(self, line: str, /) -> object: ...


def default_pipeline() -> PipelineSpec:
    """Returns the pipeline that picks if none was set."""
    document = json.dumps({"stage": [{"policy": DEFAULT_CALL_POLICY}]})
    return PipelineSpec(partition=CALLS, document=document, name=DEFAULT_CALL_POLICY)


class Metaserver:
    """Picks servers; all methods may be called from any thread.

    Args:
        clock: microseconds that never go back. pipeline: see `set_pipeline`. lines: takes the event log, None = none is kept.
        failed: called with (policy, error) when a policy raised. about: header of the log.
    Attribute passes: number of picks tried.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        pipeline: PipelineSpec | None = None,
        *,
        epoch: int = 0,
        lines: LogLines | None = None,
        failed: Callable[[str, str], None] = lambda _policy, _error: None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.passes = 0
        self._clock = clock
        self._epoch = epoch
        self._lines, self._about = lines, dict(about or {})
        self._failed = failed
        self._lock = threading.Lock()
        self.state = ClusterState()
        self._book = ServerBook()
        self._recorder: Recorder | None = None
        self._unlogged = self._logged_us = 0
        self._calls = self._answers = 0
        self._now_us = 0
        self._bench: tuple[int, str] | None = None  # until when RR picks, and why
        self._spec = pipeline or default_pipeline()
        self.stage = stage_for_calls(self._spec.tables(), CALLS)
        self._instead = Stage(call_policy_named(INSTEAD), (CALLS,))

    def set_pipeline(self, pipeline: PipelineSpec) -> bool:
        """Picks by this policy from now on. Returns whether it is new. Raises: ConfigError if it cannot send calls; the old one stays."""
        stage = stage_for_calls(pipeline.tables(), CALLS)
        with self._lock:
            if (pipeline.document, pipeline.name) == (self._spec.document, self._spec.name):
                return False
            self._spec, self.stage, self._bench = pipeline, stage, None
            self._reset_for_policy()
            return True

    def close(self) -> None:
        """Writes the last line of the log. Idempotent."""
        with self._lock:
            self._end_log(self._now())

    # -- reports and servers ----------------------------------------------------------------------------------------------------

    def report(self, report: GatewayReport) -> ReportAnswer:
        """Takes in a gateway's measurements. Cost: O(servers known), some 20 us each."""
        with self._lock:
            now_us = self._begin_change()
            for name in self._book.report(report, now_us):
                if name in self._servers:
                    self._tell("server_left", name, CALLS)
            for ruling in self._book.rulings.values():
                self._tell_server(ruling.record())
            for server in report.servers:
                for call in server.answered:
                    self._answers += 1
                    submit_us = max(now_us - call.took_us, 0)
                    numbers = (submit_us, now_us, call.operations, call.ran_us, call.alone_us, call.predicted_us)
                    self._tell("call_answered", Answered(self._answers, server.name, *numbers, call.function, CALLS))
            lives = self._book.heard(report, now_us)
            untold = tuple(server.life for server in report.servers if self._book.find(server.name, server.life) is None)
            return ReportAnswer(epoch=self._epoch, policy=self._spec.name, pipeline=self._spec.document, lives=lives, untold=untold)

    def servers(self, name: str = "") -> ServersView:
        """Returns all servers, or one by name; a server with two known lives has two rows."""
        with self._lock:
            now_us = self._now()
            return ServersView(servers=self._book.views(name, now_us), policy=self._policy_name(now_us), epoch=self._epoch)

    def instead(self) -> str:
        """Returns which policy picks in place of the set one, and why; "" while the set one picks."""
        with self._lock:
            bench = self._bench
            return "" if bench is None or self._now() >= bench[0] else f"{bench[1]}: {INSTEAD} picks servers for 5 minutes"

    # -- picks ------------------------------------------------------------------------------------------------------------------

    def pick(self, asked: PickRequest) -> Pick:
        """Picks the server for a call, and counts the call there, unless it was only to be explained.

        Cost: one pass, and a fact for each candidate whose link has changed.
        """
        with self._lock:
            now_us = self._begin_change()
            able, notes, unknown = self._usable_servers(asked, now_us)
            found = Pick(epoch=self._epoch, policy=self._policy_name(now_us), unknown=unknown)
            if asked.explain:
                return self._explained_pick(asked, able, notes, found, now_us)
            if not able:
                return msgspec.structs.replace(found, why=_why_none(asked, notes, unknown))
            for candidate in asked.servers:
                if candidate.name in able:
                    self._tell_link(*able[candidate.name], asked, candidate, now_us)
            self.passes += 1
            self._calls += 1
            call = self._call(asked, self._servers.keys() - able.keys(), now_us)
            self._tell("call_submitted", call)
            plan = self._run_pass(now_us)
            sent = next((one for one in plan.decisions if isinstance(one, Send)), None)
            option = self._option(self.state, call, sent.to, now_us) if sent is not None else None
            for decision in plan.decisions:
                self.state.carried_out(decision, now_us)
            if sent is None or option is None:
                self._tell("call_left", call.id, CALLS)
                why = plan.left.get(call.id)
                return msgspec.structs.replace(found, policy=self._policy_name(now_us), why=_explain(why, plan))
            one, _ = able[sent.to]
            one.sent_us.append(now_us)
            return msgspec.structs.replace(
                found,
                server=sent.to,
                life=one.life,
                policy=self._policy_name(now_us),
                why=_sentence(sent.why),
                computing_s=option.forecast.computing_s,
                transfer_s=option.forecast.transfer_s,
            )

    def _usable_servers(self, request: PickRequest, now_us: int) -> tuple[dict[str, tuple[Life, float]], dict[str, str], tuple[str, ...]]:
        """Returns usable candidates with their bytes/s, why others are not usable, and those that are unknown here."""
        able: dict[str, tuple[Life, float]] = {}
        notes: dict[str, str] = {}
        unknown: list[str] = []
        for candidate in sorted(request.servers, key=lambda one: one.name):
            name = candidate.name
            one = self._book.find(name, candidate.life)
            if one is None or not (one.stream or one.over):
                notes[name] = "it was not reported here"
                unknown.append(name)
            elif one is not self._book.rulings.get(name) or one.leaving or one.unfit:
                notes[name] = ": ".join(self._book.standing(one, now_us))
            elif request.function and request.function not in one.offered:
                is_odd = request.function in one.odd
                notes[name] = self._book.standing(one, now_us)[1] if is_odd else f"it does not offer {request.function}"
            else:
                rate = candidate.bytes_per_s
                able[name] = one, rate if is_rate(rate) else self._book.rate(one, request.gateway)
        fresh = {name: found for name, found in able.items() if not found[0].is_stale(now_us)}
        if fresh and len(fresh) < len(able):
            notes |= {name: ": ".join(self._book.standing(one, now_us)) for name, (one, _) in able.items() if name not in fresh}
            able = fresh
        return able, notes, tuple(unknown)

    def _tell_link(self, one: Life, rate: float, request: PickRequest, candidate: Candidate, now_us: int) -> None:
        """Tells the state the current link of a candidate, if it has changed. Cost: 1 us if not."""
        self._book.link_told(one, request, candidate, now_us)
        known = self._servers.get(one.name)
        rates = dict(known.throughput) if known is not None else {}
        if known is None or known.life != one.life or rates.get(request.gateway, 0.0) != rate:
            self._tell_server(one.record(request.gateway, rate))

    def _run_pass(self, now_us: int) -> Plan:
        """Runs one pass; by RR if the policy raises, or did so lately."""
        if self._bench is not None and now_us >= self._bench[0]:
            self._bench = None
            self._reset_for_policy()
        while True:
            stage = self._current_stage(now_us)
            plan = run_pass(self.state, frozenset({Cause.CALL_SUBMITTED}), now=now_us, seed=_SEED, pipeline=(stage,))
            if not plan.faults:
                if self._recorder is not None:
                    self._recorder.passed(now_us, frozenset({Cause.CALL_SUBMITTED}), plan)
                return plan
            fault = plan.faults[0]
            name = self._spec.name if stage is self.stage else INSTEAD
            error = fault.error[:_MOST_CHARACTERS]
            self._failed(name, error)
            if stage is self._instead:
                return plan
            self._bench = now_us + BENCH_US, f"policy {name} failed ({error})"
            self._reset_for_policy()

    def _current_stage(self, now_us: int) -> Stage:
        return self.stage if self._bench is None or now_us >= self._bench[0] else self._instead

    def _policy_name(self, now_us: int) -> str:
        return self._spec.name if self._current_stage(now_us) is self.stage else f"{INSTEAD} instead of {self._spec.name}"

    def _explained_pick(
        self, request: PickRequest, able: Mapping[str, tuple[Life, float]], notes: Mapping[str, str], found: Pick, now_us: int
    ) -> Pick:
        """Returns all terms, and the pick that would be made, computed on a copy of the state."""
        state = ClusterState.restored(self.state.snapshot())
        terms = {name: TermView(server=name, note=note) for name, note in notes.items()}
        for one, rate in able.values():
            state.server_changed(one.record(request.gateway, rate))
        if not able:
            why = _why_none(request, notes, found.unknown)
            return msgspec.structs.replace(found, why=why, terms=tuple(terms[name] for name in sorted(terms)))
        call = self._call(request, state.partitions[CALLS].servers.keys() - able.keys(), now_us)
        state.call_submitted(call)
        plan = run_pass(state, frozenset({Cause.CALL_SUBMITTED}), now=now_us, seed=_SEED, pipeline=(self._current_stage(now_us),))
        sent = next((one for one in plan.decisions if isinstance(one, Send)), None)
        for name in able if not plan.faults else ():
            option = self._option(state, call, name, now_us)
            rate = throughput_of(option.server, call.client) or 0.0
            policy = self._current_stage(now_us).policy
            mean = isinstance(policy, Choosing) and policy.load == "mean"
            terms[name] = TermView(
                server=name,
                load=(option.server.mean_load if mean else option.server.load) + option.added.load,
                mops=option.speed / 1e6,
                bytes_per_s=rate / (1 + option.added.sharing),
                computing_s=option.forecast.computing_s,
                transfer_s=option.forecast.transfer_s,
            )
        found = msgspec.structs.replace(found, terms=tuple(terms[name] for name in sorted(terms)))
        if sent is None:
            return msgspec.structs.replace(found, why=_explain(plan.left.get(call.id), plan))
        chosen = terms[sent.to]
        return msgspec.structs.replace(
            found,
            server=sent.to,
            life=able[sent.to][0].life,
            why=_sentence(sent.why),
            computing_s=chosen.computing_s,
            transfer_s=chosen.transfer_s,
        )

    def _option(self, state: ClusterState, call: Call, name: str, now_us: int) -> Option:
        """Returns what the policy expects of this call on that server, before the pick is carried out."""
        policy = self._current_stage(now_us).policy
        assert isinstance(policy, Choosing)  # as all policies for calls in the catalogue are
        part = state.partitions[CALLS]
        draft = Draft(part, now_us, _SEED, (policy.name,))
        draft.policy = policy.name
        try:
            return policy.option(draft, call, part.servers[name])
        finally:
            draft.close()

    # -- the state and its log --------------------------------------------------------------------------------------------------

    @property
    def _servers(self) -> Mapping[str, Server]:
        part = self.state.partitions.get(CALLS)
        return {} if part is None else part.servers

    def _call(self, request: PickRequest, excluded: Collection[str], now_us: int) -> Call:
        barred = tuple(sorted(excluded))
        return Call(self._calls, now_us, request.operations, request.bytes, request.gateway, CALLS, request.function, barred)

    def _tell_server(self, record: Server) -> None:
        if self._servers.get(record.name) != record:
            self._tell("server_changed", record)

    def _tell(self, fact: str, *arguments: Any) -> None:
        getattr(self.state, fact)(*arguments)
        if self._recorder is not None:
            self._recorder.told(self._now_us, fact, arguments, {})

    def _now(self) -> int:
        self._now_us = max(self._now_us, self._clock())
        return self._now_us

    def _begin_change(self) -> int:
        """Prepares a change of the state: reads the time, and begins or ends the log as needed."""
        now_us = self._now()
        if self._lines is None:
            return now_us
        if not self._lines.has_room:
            self._end_log(now_us)
            self._unlogged += 1
        else:
            if now_us - self._logged_us > LOG_US:
                self._end_log(now_us)
            if self._recorder is None:
                self._begin_log()
        return now_us

    def _begin_log(self) -> None:
        """Begins another log with the current state. Cost: O(records)."""
        assert self._lines is not None
        lost = {"lost": self._unlogged} if self._unlogged else {}
        self._unlogged, self._logged_us = 0, self._now_us
        policy, parameters = self._spec.name, {}
        if self._current_stage(self._now_us) is self._instead:
            policy = INSTEAD
        else:
            (table,) = self._spec.tables()["stage"]
            policy, parameters = table["policy"], {name: str(value) for name, value in table.get("parameters", {}).items()}
        self._lines.begin()
        self._recorder = Recorder(self._lines.write, policy=policy, parameters=parameters, about={**self._about, **lost})
        self._recorder.begin(self.state, seed=_SEED, half_life_us=0)

    def _end_log(self, now_us: int) -> None:
        if self._recorder is not None:
            self._recorder.end(now_us)
            self._recorder = None

    def _reset_for_policy(self) -> None:
        """Prepares for another policy: drops notes, counts calls sent since the last measurements as `sent`, begins another log."""
        is_logged = self._recorder is not None
        self._end_log(self._now())
        self.state = ClusterState.restored(replace(self.state.snapshot(), notes=()))
        for name, known in list(self._servers.items()):
            one = self._book.find(name, known.life)
            if one is not None and one.load is not None:
                one.sent_before = len(one.sent_us)
                self.state.server_changed(known._replace(sent=one.sent_before))
        if is_logged:
            self._begin_log()


def _why_none(request: PickRequest, notes: Mapping[str, str], unknown: tuple[str, ...]) -> str:
    """Returns why no candidate can have the call."""
    if not request.servers:
        return "no server offers it"
    if unknown:
        return f"{', '.join(unknown)} not reported here yet"
    return "; ".join(f"{name}: {why}" for name, why in notes.items())


def _explain(why: Why | None, plan: Plan) -> str:
    if plan.faults:
        return f"{plan.faults[0].policy} failed: {plan.faults[0].error[:_MOST_CHARACTERS]}"
    return _sentence(why) if why is not None else "the policy has picked no server"


def _sentence(why: Why) -> str:
    """Returns the sentence of a reason, without its policy, which is shown beside it."""
    return why.agreed.format(*why.facts)


@dataclass(frozen=True, slots=True)
class _GatewayReport:
    """What a gateway last reported of a server."""

    at_us: int
    state: str
    site: str
    bytes_per_s: float
    round_trip_s: float
    link_us: int
    heard_us: int

    def has_stream(self, now_us: int) -> bool:
        """Whether the gateway has the server's stream, as far as known now."""
        return self.state in _STREAMS and now_us - self.at_us <= FRESH_US

    def hears_us(self, now_us: int) -> int:
        """Returns when the gateway last heard the server, as far as known now."""
        return now_us if self.has_stream(now_us) else self.heard_us


@dataclass(slots=True)
class Life:
    """One process of a server.

    Attributes: about: its last report. measured_us: time of its newest load; refresh_us: of the gateway that measured it. words: by
    gateway. sent_us: calls sent since `measured_us`; sent_before: number of those sent before that load arrived. odd: functions that it is
    not sent. unfit: why its report cannot be computed with. offered: functions that it is sent. stream, over, leaving: from the reports.
    """

    name: str
    life: int
    first_us: int
    seen_us: int
    about: ServerReport
    load: ServerLoad | None = None
    measured_us: int = 0
    refresh_us: int = REFRESH_US
    words: dict[str, _GatewayReport] = field(default_factory=dict)
    sent_us: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_SENT))
    sent_before: int = 0
    odd: tuple[str, ...] = ()
    unfit: str = ""
    offered: tuple[str, ...] = ()
    stream: bool = False
    over: bool = False
    leaving: bool = False

    def is_stale(self, now_us: int) -> bool:
        """Whether its load is old, or was never measured."""
        return now_us - self.measured_us > STALE_REFRESHES * self.refresh_us

    def rates(self) -> dict[str, float]:
        """Returns measured bytes/s by gateway."""
        return {gateway: word.bytes_per_s for gateway, word in self.words.items() if word.bytes_per_s > 0}

    def has_stream(self, now_us: int) -> bool:
        """Whether any gateway has its stream."""
        return any(word.has_stream(now_us) for word in self.words.values())

    def record(self, gateway: str = "", rate: float = 0.0) -> Server:
        """Returns the scheduler's record. gateway, rate: bytes/s of that link, 0 = as measured."""
        load, about = self.load or ServerLoad(), self.about
        speed = about.mops * 1e6
        rates = self.rates() | ({gateway: rate} if rate else {})
        return Server(
            self.name,
            speed,
            load.running + load.waiting + load.other,
            throughput=tuple(sorted(rates.items())),
            at_us=self.measured_us,
            partition=CALLS,
            slots=max(about.slots, 1),
            functions=self.offered,
            site=about.site,
            life=self.life,
            is_open=bool(self.offered) and not self.leaving,
            mean_load=load.mean_load,
            calibrated=0.0 if about.mops_declared else speed,
            demand=Demand(load.arrivals_per_s, load.service_s, load.service_cv),
            sent=self.sent_before,
        )

    def settle(self, now_us: int) -> None:
        """Updates derived attributes after its words or odd functions have changed."""
        states = [word.state for word in self.words.values()]
        self.stream = self.has_stream(now_us)
        self.leaving = "leaving" in states
        silent = bool(states) and all(now_us - word.hears_us(now_us) >= OVER_US for word in self.words.values())
        self.over = self.over or "closed" in states or silent
        self.offered = tuple(name for name in _keys(self.about.functions) if name not in self.odd)


class ServerBook:
    """Lives of servers by name. Attribute rulings: name -> the life that counts.

    - Times are converted to this clock by their reported age. Of several gateways' loads of a server the newest counts; of links, each
      gateway's measurement of its own.
    - A server is known by its name. Of two lives of a name the newer one counts; but an older one that is measured after the newer came is
      still running, and keeps the name.
    - A life that one gateway reports as over is over for all; so is one that no gateway has heard for 60 s. The word of a gateway
      that stops reporting grows old: the gateway may be gone, together with the server.
    - A sent call counts until a load arrives that was measured after it was sent. A load that arrives later but was measured before does
      not include it: `sent_before` counts such calls.

    It has no clock and no lock: callers pass `now_us`, never descending, and the metaserver admits one thread.
    """

    def __init__(self) -> None:
        self.rulings: dict[str, Life] = {}
        self._lives: dict[str, dict[int, Life]] = {}

    def find(self, name: str, life: int) -> Life | None:
        return self._lives.get(name, {}).get(life)

    def report(self, report: GatewayReport, now_us: int) -> list[str]:
        """Takes in a gateway's measurements. Returns the names that are forgotten. Cost: O(servers known), some 10 us each."""
        listed = {(server.name, server.life) for server in report.servers}
        for one in self._all_lives():
            if report.gateway in one.words and (one.name, one.life) not in listed:
                del one.words[report.gateway]  # the gateway was started anew
        for server in report.servers:
            if not server.same or self.find(server.name, server.life) is not None:  # otherwise its functions are unknown
                self._take_report(report, server, now_us)
        gone = self._forget(now_us)
        for one in self._all_lives():
            one.settle(now_us)
        self._judge_functions(now_us)
        self.rulings = {name: ruling for name in sorted(self._lives) if (ruling := self._ruling_life(name, now_us)) is not None}
        return gone

    def link_told(self, one: Life, asked: PickRequest, candidate: Candidate, now_us: int) -> None:
        """Takes in the gateway's newest measurement of its link, which came with a pick."""
        word = one.words.get(asked.gateway)
        if is_rate(candidate.bytes_per_s) and (word is None or word.bytes_per_s != candidate.bytes_per_s):
            known = word or _GatewayReport(now_us, "open", asked.site, 0.0, 0.0, now_us, now_us)
            rate, round_trip_s = candidate.bytes_per_s, candidate.round_trip_s
            one.words[asked.gateway] = replace(known, bytes_per_s=rate, round_trip_s=round_trip_s, link_us=now_us)
            if word is None:
                one.settle(now_us)

    def rate(self, one: Life, gateway: str) -> float:
        """Returns bytes/s of the gateway's link to the server; 0 if only other gateways measured: the mean of their links is used.

        A server without any measured link is assumed to have one like the slowest measured.
        """
        known = one.rates()
        if gateway in known or known:
            return known.get(gateway, 0.0)
        return min((rate for other in self._all_lives() for rate in other.rates().values()), default=UNMEASURED)

    def heard(self, report: GatewayReport, now_us: int) -> tuple[LifeHeard, ...]:
        """Returns what other gateways know of each life: calls bound to it may come to any gateway."""
        found: list[LifeHeard] = []
        for one in self._all_lives():
            others = [word.hears_us(now_us) for gateway, word in one.words.items() if gateway != report.gateway]
            if others or one.over:
                ago_us = now_us - max(others, default=one.seen_us)
                found.append(LifeHeard(name=one.name, life=one.life, heard_ago_us=ago_us, over=one.over))
        return tuple(found)

    def views(self, name: str, now_us: int) -> tuple[ServerView, ...]:
        """Returns all servers, or those of one name; a server with several known lives has several views."""
        lives = [one for one in self._all_lives() if name in {"", one.name}]
        return tuple(self._view(one, now_us) for one in sorted(lives, key=lambda one: (one.name, one.first_us, one.life)))

    def standing(self, one: Life, now_us: int) -> tuple[str, str]:
        """Returns the state of a life (open, stale, away, odd or closed), and why."""
        ruling = self.rulings.get(one.name)
        if one.over:
            return "closed", "its process has ended"
        if not one.has_stream(now_us):
            return "away", f"no gateway has had its stream for {format_duration((now_us - one.seen_us) / 1e6)}"
        if ruling is not None and ruling is not one:
            if _runs_beside(ruling, one):
                return "odd", f"another server is called {one.name}: life {ruling.life:016x}, site {ruling.about.site or '?'}"
            return "closed", f"a newer process is called {one.name}"
        if one.leaving:
            return "closed", "it is leaving: it finishes what it has"
        if one.unfit:
            return "odd", one.unfit
        if one.odd:
            return "odd", f"other servers have another interface of {', '.join(sorted(one.odd))}, which it does not get"
        if one.load is None:
            return "stale", "its load was never measured"
        if one.is_stale(now_us):
            return "stale", f"no report of its load for {format_duration((now_us - one.measured_us) / 1e6)}"
        return "open", ""

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _all_lives(self) -> Iterator[Life]:
        return (one for lives in self._lives.values() for one in lives.values())

    def _take_report(self, report: GatewayReport, server: ServerReport, now_us: int) -> None:
        lives = self._lives.setdefault(server.name, {})
        one = lives.get(server.life)
        if one is None:
            one = lives[server.life] = Life(server.name, server.life, now_us, now_us, server)
        refresh_us = report.refresh_us or REFRESH_US
        one.unfit = _unsound_number(server)
        if one.unfit:  # nothing of it gets into a formula, a log or a view
            server = msgspec.structs.replace(server, mops=0.0, bytes_per_s=0.0, round_trip_s=0.0, load=None)
        functions = one.about.functions if server.same else server.functions
        one.about = msgspec.structs.replace(server, answered=(), load=None, functions=functions, same=False)
        rate, round_trip_s, link_us = server.bytes_per_s, server.round_trip_s, now_us - server.link_ago_us
        before = one.words.get(report.gateway)
        if before is not None and before.bytes_per_s > 0 and (before.link_us > link_us or not rate):  # a pick brought a newer one
            rate, round_trip_s, link_us = before.bytes_per_s, before.round_trip_s, before.link_us
        heard_us = now_us - server.heard_ago_us
        one.words[report.gateway] = _GatewayReport(now_us, server.state, report.site, rate, round_trip_s, link_us, heard_us)
        if server.state in _STREAMS:
            one.seen_us = now_us
        measured_us = now_us - server.measured_ago_us
        if server.load is not None and (one.load is None or measured_us > one.measured_us):
            one.load, one.measured_us, one.refresh_us = server.load, measured_us, refresh_us
            while one.sent_us and one.sent_us[0] <= measured_us:
                one.sent_us.popleft()
            one.sent_before = len(one.sent_us)

    def _forget(self, now_us: int) -> list[str]:
        for one in list(self._all_lives()):
            if now_us - one.seen_us > KEPT_US:
                del self._lives[one.name][one.life]
        gone = [name for name, lives in self._lives.items() if not lives]
        for name in gone:
            del self._lives[name]
        return gone

    def _judge_functions(self, now_us: int) -> None:
        """Finds the odd functions of servers, those of which another interface is valid (`interface.offers`, by names of servers)."""
        judged: list[Life] = []
        holders: list[tuple[Life, tuple[bytes, ...]]] = []
        for one in sorted(self._all_lives(), key=lambda one: (one.name, one.first_us, one.life)):
            if one.odd:
                one.odd = ()
                judged.append(one)
            if one.stream and not one.over:
                holders.append((one, one.about.functions))
        for function, (_, *others) in offers(holders).items():
            for _, lives in others:
                for one in lives:
                    one.odd = (*one.odd, function)
                    judged.append(one)
        for one in judged:
            one.settle(now_us)

    def _ruling_life(self, name: str, now_us: int) -> Life | None:
        there = sorted((one for one in self._lives[name].values() if one.stream and not one.over), key=lambda one: (one.first_us, one.life))
        older = (one for one in there[:-1] if _runs_beside(one, there[-1]) and not one.is_stale(now_us))
        return next(older, there[-1]) if there else None

    def _view(self, one: Life, now_us: int) -> ServerView:
        state, why = self.standing(one, now_us)
        load, about = one.load or ServerLoad(), one.about
        links = tuple(
            LinkView(
                site=word.site,
                gateway=gateway,
                bytes_per_s=word.bytes_per_s,
                round_trip_s=word.round_trip_s,
                age_s=max(now_us - word.link_us, 0) / 1e6,
            )
            for gateway, word in sorted(one.words.items())
        )
        return ServerView(
            name=one.name,
            state=state,
            site=about.site,
            slots=about.slots,
            running=load.running,
            waiting=load.waiting,
            other=load.other,
            mops=about.mops,
            bytes_per_s=max((link.bytes_per_s for link in links), default=0.0),
            age_s=max(now_us - (one.measured_us if one.load is not None else one.first_us), 0) / 1e6,
            assigned=len(one.sent_us),
            life=one.life,
            links=links,
            functions=one.offered,
            why=why,
        )


def _runs_beside(older: Life, newer: Life) -> bool:
    """Whether the older life was measured after the newer one came."""
    return older.first_us <= newer.first_us < older.measured_us


def _keys(functions: Iterable[bytes]) -> list[str]:
    """Returns `name@version` of each readable interface, in order."""
    return sorted(one.key for text in functions if isinstance(one := readable(text), Interface))


def is_rate(value: float) -> bool:
    """Whether bytes/s can be a divisor."""
    return value > 0 and isfinite(value)


def _unsound_number(server: ServerReport) -> str:
    """Returns which number of a report cannot be computed with, "" if all are sound."""
    load = server.load or ServerLoad()
    numbers = {name: getattr(load, name) for name in ("other", "mean_load", "arrivals_per_s", "service_s", "service_cv")}
    numbers |= {name: getattr(server, name) for name in ("mops", "bytes_per_s", "round_trip_s")}
    wrong = next((name for name, value in numbers.items() if not (isfinite(value) and (value > 0 if name == "mops" else value >= 0))), "")
    return f"its report has {wrong} = {numbers[wrong]}" if wrong else ""
