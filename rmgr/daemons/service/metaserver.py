"""The metaserver (paper 004, live): which server gets the next call, by a policy of the simulator on what gateways report.

The leader has one, filled by the reports of all gateways; a gateway has one of its own for when no leader answers. What is known of
servers is in a `ServerBook`; what of it counts are facts in a `ClusterState` of one partition. A pick is one `run_pass` on that, in the
thread of who asks, under one lock. A policy that raises loses its pick: RR picks for 5 minutes.

Every fact and pass can be written as an event log (`sched/state/event_log.py`), which `rmgr sim replay` repeats. A new policy begins
another log; so does a gap, after lines that could not be kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from rmgr.daemons.service.server_book import Life, ServerBook, is_rate
from rmgr.model.cluster.queue import PipelineSpec
from rmgr.model.cluster.servers import (
    CALLS,
    DEFAULT_CALL_POLICY,
    Candidate,
    GatewayReport,
    Pick,
    PickRequest,
    ReportAnswer,
    ServersView,
    TermView,
)
from rmgr.sched.catalogue import call_policy_named
from rmgr.sched.draft import Draft
from rmgr.sched.engine import run_pass
from rmgr.sched.pipeline import stage_for_calls
from rmgr.sched.plan import Plan, Send, Why
from rmgr.sched.policies.servers import Choosing, Option
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.predictors.forecast import throughput_of
from rmgr.sched.records import Answered, Call, Server
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Recorder

#: After so long a policy that failed is tried again; who picks until then.
BENCH_US, INSTEAD = 300_000_000, "rr"
#: Then another log begins: what expires of one takes nothing away from the next.
LOG_US = 86_400_000_000
#: Characters of an error that are kept: a policy may raise a book.
_MOST_CHARACTERS = 500
_SEED = 0

class LogLines(Protocol):
    """Where the event log goes; called under the metaserver's lock, must not wait."""

    @property
    def has_room(self) -> bool:
        """The lines of some more facts and passes are kept."""
        ...

    def begin(self) -> None:
        """What is written from now on is another log."""
        ...

    def write(self, line: str, /) -> object: ...


def default_pipeline() -> PipelineSpec:
    """Who picks where nobody was set."""
    document = json.dumps({"stage": [{"policy": DEFAULT_CALL_POLICY}]})
    return PipelineSpec(partition=CALLS, document=document, name=DEFAULT_CALL_POLICY)


class Metaserver:
    """All methods may be called from any thread.

    Args:
        clock: microseconds that never go back. pipeline: see `set_pipeline`. lines: the event log, None = none is kept.
        failed: told (policy, error) when a policy raised. about: of whom the log is.
    Attribute passes: picks that were tried.
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
        self._state = ClusterState()
        self._book = ServerBook()
        self._recorder: Recorder | None = None
        self._unlogged = self._logged_us = 0
        self._calls = self._answers = 0
        self._now_us = 0
        self._bench: tuple[int, str] | None = None  # until when RR picks, and why
        self._spec = pipeline or default_pipeline()
        self._stage = stage_for_calls(self._spec.tables(), CALLS)
        self._instead = Stage(call_policy_named(INSTEAD), (CALLS,))

    def set_pipeline(self, pipeline: PipelineSpec) -> bool:
        """Picks by it from now on. Returns: it is another one. Raises: ConfigError for what is no policy for calls; the old one stays."""
        stage = stage_for_calls(pipeline.tables(), CALLS)
        with self._lock:
            if (pipeline.document, pipeline.name) == (self._spec.document, self._spec.name):
                return False
            self._spec, self._stage, self._bench = pipeline, stage, None
            self._renew()
            return True

    def close(self) -> None:
        """The last line of the log. Idempotent."""
        with self._lock:
            self._end_log(self._now())

    # -- reports and servers ----------------------------------------------------------------------------------------------------

    def report(self, report: GatewayReport) -> ReportAnswer:
        """Takes in what a gateway has measured. Cost: O(servers known), some 20 us each."""
        with self._lock:
            now_us = self._begin()
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
        """All servers, or one, by name; a server of which two lives are known has two rows."""
        with self._lock:
            now_us = self._now()
            return ServersView(servers=self._book.views(name, now_us), policy=self._policy_words(now_us), epoch=self._epoch)

    def instead(self) -> str:
        """Who picks in place of the policy that was set, and why; "" while that does."""
        with self._lock:
            bench = self._bench
            return "" if bench is None or self._now() >= bench[0] else f"{bench[1]}: {INSTEAD} picks servers for 5 minutes"

    # -- picks ------------------------------------------------------------------------------------------------------------------

    def pick(self, asked: PickRequest) -> Pick:
        """Which server the call goes to; it counts there from now on, unless it was only to be explained.

        Cost: one pass, and a fact for each candidate whose link has changed.
        """
        with self._lock:
            now_us = self._begin()
            able, notes, unknown = self._able(asked, now_us)
            found = Pick(epoch=self._epoch, policy=self._policy_words(now_us), unknown=unknown)
            if asked.explain:
                return self._explained(asked, able, notes, found, now_us)
            if not able:
                return msgspec.structs.replace(found, why=_none_able(asked, notes, unknown))
            for candidate in asked.servers:
                if candidate.name in able:
                    self._tell_link(*able[candidate.name], asked, candidate, now_us)
            self.passes += 1
            self._calls += 1
            call = self._call(asked, self._servers.keys() - able.keys(), now_us)
            self._tell("call_submitted", call)
            plan = self._passed(now_us)
            sent = next((one for one in plan.decisions if isinstance(one, Send)), None)
            option = self._option(self._state, call, sent.to, now_us) if sent is not None else None
            for decision in plan.decisions:
                self._state.carried_out(decision, now_us)
            if sent is None or option is None:
                self._tell("call_left", call.id, CALLS)
                why = plan.left.get(call.id)
                return msgspec.structs.replace(found, policy=self._policy_words(now_us), why=_said(why, plan))
            one, _ = able[sent.to]
            one.sent_us.append(now_us)
            return msgspec.structs.replace(
                found,
                server=sent.to,
                life=one.life,
                policy=self._policy_words(now_us),
                why=_words(sent.why),
                computing_s=option.forecast.computing_s,
                transfer_s=option.forecast.transfer_s,
            )

    def _able(self, asked: PickRequest, now_us: int) -> tuple[dict[str, tuple[Life, float]], dict[str, str], tuple[str, ...]]:
        """Candidates that can have the call, with their bytes/s as they count; why others cannot; those that are not known here."""
        able: dict[str, tuple[Life, float]] = {}
        notes: dict[str, str] = {}
        unknown: list[str] = []
        for candidate in sorted(asked.servers, key=lambda one: one.name):
            name = candidate.name
            one = self._book.find(name, candidate.life)
            if one is None or not (one.stream or one.over):
                notes[name] = "it was not reported here"
                unknown.append(name)
            elif one is not self._book.rulings.get(name) or one.leaving or one.unfit:
                notes[name] = ": ".join(self._book.standing(one, now_us))
            elif asked.function and asked.function not in one.offered:
                notes[name] = self._book.standing(one, now_us)[1] if asked.function in one.odd else f"it does not offer {asked.function}"
            else:
                rate = candidate.bytes_per_s
                able[name] = one, rate if is_rate(rate) else self._book.rate(one, asked.gateway)
        fresh = {name: found for name, found in able.items() if not found[0].is_stale(now_us)}
        if fresh and len(fresh) < len(able):
            notes |= {name: ": ".join(self._book.standing(one, now_us)) for name, (one, _) in able.items() if name not in fresh}
            able = fresh
        return able, notes, tuple(unknown)

    def _tell_link(self, one: Life, rate: float, asked: PickRequest, candidate: Candidate, now_us: int) -> None:
        """The link of a candidate as it counts now, where that is new to the state. Cost: 1 us where it is not."""
        self._book.link_told(one, asked, candidate, now_us)
        known = self._servers.get(one.name)
        told = dict(known.throughput) if known is not None else {}
        if known is None or known.life != one.life or told.get(asked.gateway, 0.0) != rate:
            self._tell_server(one.record(asked.gateway, rate))

    def _passed(self, now_us: int) -> Plan:
        """One pass; by RR where the policy raises, or did lately."""
        if self._bench is not None and now_us >= self._bench[0]:
            self._bench = None
            self._renew()
        while True:
            stage = self._picking(now_us)
            plan = run_pass(self._state, frozenset({Cause.CALL_SUBMITTED}), now=now_us, seed=_SEED, pipeline=(stage,))
            if not plan.faults:
                if self._recorder is not None:
                    self._recorder.passed(now_us, frozenset({Cause.CALL_SUBMITTED}), plan)
                return plan
            fault = plan.faults[0]
            name = self._spec.name if stage is self._stage else INSTEAD
            error = fault.error[:_MOST_CHARACTERS]
            self._failed(name, error)
            if stage is self._instead:
                return plan
            self._bench = now_us + BENCH_US, f"policy {name} failed ({error})"
            self._renew()

    def _picking(self, now_us: int) -> Stage:
        return self._stage if self._bench is None or now_us >= self._bench[0] else self._instead

    def _policy_words(self, now_us: int) -> str:
        return self._spec.name if self._picking(now_us) is self._stage else f"{INSTEAD} instead of {self._spec.name}"

    def _explained(
        self, asked: PickRequest, able: Mapping[str, tuple[Life, float]], notes: Mapping[str, str], found: Pick, now_us: int
    ) -> Pick:
        """All terms, and the pick that would be made, on a copy of the state."""
        state = ClusterState.restored(self._state.snapshot())
        terms = {name: TermView(server=name, note=note) for name, note in notes.items()}
        for one, rate in able.values():
            state.server_changed(one.record(asked.gateway, rate))
        if not able:
            why = _none_able(asked, notes, found.unknown)
            return msgspec.structs.replace(found, why=why, terms=tuple(terms[name] for name in sorted(terms)))
        call = self._call(asked, state.partitions[CALLS].servers.keys() - able.keys(), now_us)
        state.call_submitted(call)
        plan = run_pass(state, frozenset({Cause.CALL_SUBMITTED}), now=now_us, seed=_SEED, pipeline=(self._picking(now_us),))
        sent = next((one for one in plan.decisions if isinstance(one, Send)), None)
        for name in able if not plan.faults else ():
            option = self._option(state, call, name, now_us)
            rate = throughput_of(option.server, call.client) or 0.0
            policy = self._picking(now_us).policy
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
            return msgspec.structs.replace(found, why=_said(plan.left.get(call.id), plan))
        chosen = terms[sent.to]
        return msgspec.structs.replace(
            found,
            server=sent.to,
            life=able[sent.to][0].life,
            why=_words(sent.why),
            computing_s=chosen.computing_s,
            transfer_s=chosen.transfer_s,
        )

    def _option(self, state: ClusterState, call: Call, name: str, now_us: int) -> Option:
        """What the policy expects of this call there, before the pick is carried out."""
        policy = self._picking(now_us).policy
        assert isinstance(policy, Choosing)  # as every policy for calls of the catalogue
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
        part = self._state.partitions.get(CALLS)
        return {} if part is None else part.servers

    def _call(self, asked: PickRequest, excluded: Collection[str], now_us: int) -> Call:
        return Call(self._calls, now_us, asked.operations, asked.bytes, asked.gateway, CALLS, asked.function, tuple(sorted(excluded)))

    def _tell_server(self, record: Server) -> None:
        if self._servers.get(record.name) != record:
            self._tell("server_changed", record)

    def _tell(self, fact: str, *arguments: Any) -> None:
        getattr(self._state, fact)(*arguments)
        if self._recorder is not None:
            self._recorder.told(self._now_us, fact, arguments, {})

    def _now(self) -> int:
        self._now_us = max(self._now_us, self._clock())
        return self._now_us

    def _begin(self) -> int:
        """Before what changes the state: the time, and a log that has room for it."""
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
        """Another log, of the state as it is. Cost: O(records)."""
        assert self._lines is not None
        lost = {"lost": self._unlogged} if self._unlogged else {}
        self._unlogged, self._logged_us = 0, self._now_us
        policy, parameters = self._spec.name, {}
        if self._picking(self._now_us) is self._instead:
            policy = INSTEAD
        else:
            (table,) = self._spec.tables()["stage"]
            policy, parameters = table["policy"], {name: str(value) for name, value in table.get("parameters", {}).items()}
        self._lines.begin()
        self._recorder = Recorder(self._lines.write, policy=policy, parameters=parameters, about={**self._about, **lost})
        self._recorder.begin(self._state, seed=_SEED, half_life_us=0)

    def _end_log(self, now_us: int) -> None:
        if self._recorder is not None:
            self._recorder.end(now_us)
            self._recorder = None

    def _renew(self) -> None:
        """Another policy picks: the notes of the one before go; what was sent since the measurements it is told with them. Another log."""
        is_logged = self._recorder is not None
        self._end_log(self._now())
        self._state = ClusterState.restored(replace(self._state.snapshot(), notes=()))
        for name, known in list(self._servers.items()):
            one = self._book.find(name, known.life)
            if one is not None and one.load is not None:
                one.sent_before = len(one.sent_us)
                self._state.server_changed(known._replace(sent=one.sent_before))
        if is_logged:
            self._begin_log()


def _none_able(asked: PickRequest, notes: Mapping[str, str], unknown: tuple[str, ...]) -> str:
    """Why no candidate can have the call."""
    if not asked.servers:
        return "no server offers it"
    if unknown:
        return f"{', '.join(unknown)} not reported here yet"
    return "; ".join(f"{name}: {why}" for name, why in notes.items())


def _said(why: Why | None, plan: Plan) -> str:
    if plan.faults:
        return f"{plan.faults[0].policy} failed: {plan.faults[0].error[:_MOST_CHARACTERS]}"
    return _words(why) if why is not None else "the policy has picked no server"


def _words(why: Why) -> str:
    """Its sentence: the policy is told beside it."""
    return why.agreed.format(*why.facts)
