"""Policies that choose a server for each call (paper 004): the loop that all share, RR, LOAD, LOTH, and one that adapts to congestion.

Waiting calls are looked at in order of arrival; among the servers that can take a call, the policy chooses one. Names and presets are in
the catalogue. Parameters of all: load, performance, predictor (`rmgr.sched.forecast`).
Source: papers.md 4.1. Differs from it in: a server of k slots counts max(1, (L + 1) / k) instead of L + 1 (no difference for k = 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from rmgr.sched.draft import Draft
from rmgr.sched.forecast import Added, Ewma, Forecast, Last, Performance, Predictor, Queueing, speed_of
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause
from rmgr.sched.records import Call, Server

NO_SERVER = Why("server", "no open server offers what it calls")
#: Longest prediction, in seconds.
_LONGEST_S = 1e9
_LOTH, _SPREAD = 0, 1


@dataclass(frozen=True, slots=True)
class Choosing(ABC):
    """A policy for calls. Subclasses choose an option and give the reason; ties go to the server of the lowest name."""

    name: ClassVar[str]
    for_calls: ClassVar[bool] = True
    load: Literal["now", "mean"] = field(default="now", metadata=about("load at the last measurement, or averaged before it"))
    performance: Performance = field(default=Performance.DECLARED, metadata=about("where the operations/s of a server come from"))
    predictor: Literal["last", "ewma", "queueing"] = field(
        default="last", metadata=about("how load and throughput are predicted from their measurements")
    )

    def __post_init__(self) -> None:
        """Raises: ValueError for a `load` that the predictor would ignore."""
        if self.predictor == "queueing" and self.load == "mean":
            raise ValueError("predictor queueing looks at arrivals, not at the load: leave load=mean out, or take predictor=last or ewma")

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - the same whatever happened
        calls = list(draft.calls())
        if not calls:
            return
        predictor = self.predicting()
        servers = list(draft.servers())
        sent = {server.name: self.sent_since(draft, server) for server in servers}
        for call in calls:
            options = [self._option(draft, call, server, sent[server.name], predictor) for server in servers if server.takes(call)]
            if not options:
                draft.leave_pending(call.id, NO_SERVER)
                continue
            chosen, why = self.choose(draft, call, options)
            name = chosen.server.name
            draft.send(call.id, name, why, predicted_us=round(min(chosen.forecast.total_s, _LONGEST_S) * 1e6))
            sent[name] += 1
            draft.note(f"sent {name}", 0, (chosen.server.at_us, chosen.server.life, sent[name] - chosen.server.sent))

    @abstractmethod
    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:
        """Returns one of the options, which are in order of name and not empty, with the reason."""

    def added(self, sent: int) -> Added:  # noqa: ARG002 - most policies take measurements as they are
        """Returns corrections for `sent` calls sent to a server since its measurement."""
        return Added()

    def predicting(self) -> Predictor:
        """Returns the predictor that the parameters name."""
        mean = self.load == "mean"
        if self.predictor == "queueing":
            return Queueing()
        return Ewma(mean) if self.predictor == "ewma" else Last(mean)

    def option(self, draft: Draft, call: Call, server: Server) -> Option:
        """Returns what this policy expects of the call on that server, whether or not the call can be sent there."""
        return self._option(draft, call, server, self.sent_since(draft, server), self.predicting())

    @staticmethod
    def sent_since(draft: Draft, server: Server) -> int:
        """Returns the number of calls sent to the server since its last measurement, by this policy and before the measurement arrived."""
        known = draft.note_of(f"sent {server.name}", 0)
        return server.sent + (known[2] if known is not None and known[:2] == (server.at_us, server.life) else 0)

    def _option(self, draft: Draft, call: Call, server: Server, sent: int, predictor: Predictor) -> Option:
        speed, added = speed_of(draft.learnt, call, server, self.performance), self.added(sent)
        return Option(server, speed, added, predictor.forecast(call, draft.measurements(server.name) or (server,), speed, added))


class Option(NamedTuple):
    """A server that can take the call. speed: operations/s of the call alone there."""

    server: Server
    speed: float
    added: Added
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class RoundRobin(Choosing):
    """RR: calls go to the servers in turn, in order of arrival.

    Algorithm: a note holds the place in the list of names that comes next; a server that cannot take the call is skipped.
    Predictions are reported only.
    """

    name: ClassVar[str] = "rr"

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all calls are alike
        names = [server.name for server in draft.servers()]
        (place,) = draft.note_of("next", 0) or (0,)
        by_name = {option.server.name: option for option in options}
        turn = next(at for step in range(len(names)) if names[at := (place + step) % len(names)] in by_name)
        draft.note("next", 0, (turn + 1,))
        return by_name[names[turn]], Why("rr", "{} is next", (names[turn],))


@dataclass(frozen=True, slots=True)
class Load(Choosing):
    """LOAD: a call goes to the best server by load and performance: least (L + 1) / P; transfer does not count.

    Parameters: add_load (+L: every call sent adds 1 to the known load of its server until the next measurement).
    """

    name: ClassVar[str] = "load"
    add_load: bool = field(default=False, metadata=about("count calls that were sent since the measurement (+L)"))

    def added(self, sent: int) -> Added:
        return Added(load=sent if self.add_load else 0)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - only the servers count
        best = min(options, key=lambda option: option.forecast.sharing / option.speed)
        return best, Why("load", "{} has least load for its performance", (best.server.name,))


@dataclass(frozen=True, slots=True)
class Loth(Choosing):
    """LOTH (load and throughput): a call goes to the server that is expected to answer it first.

    Algorithm: least operations / (P / (L + 1)) + bytes / T.
    Parameters: add_load (+L: every call sent adds 1 to L until the next measurement of the server), share_link (+T: T is divided by 1 + the
    calls of all clients sent to the server since its measurement).
    """

    name: ClassVar[str] = "loth"
    add_load: bool = field(default=False, metadata=about("count calls that were sent since the measurement as load (+L)"))
    share_link: bool = field(default=False, metadata=about("divide the throughput among calls sent since the measurement (+T)"))

    def added(self, sent: int) -> Added:
        return Added(load=sent if self.add_load else 0, sharing=sent if self.share_link else 0)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all is in the options
        return soonest(options)


def soonest(options: Sequence[Option]) -> tuple[Option, Why]:
    """Returns the option with the least forecast, the first of equals."""
    best = min(options, key=lambda option: option.forecast.total_s)
    computing, transfer, _ = best.forecast
    return best, Why(
        "loth", "{} is expected to take {:.3f} s of computing and {:.3f} s of transfer", (best.server.name, computing, transfer)
    )


@dataclass(frozen=True, slots=True)
class Adaptive(Choosing):
    """Adapts to congestion: LOTH while calls are quick, spreading while they hinder each other.

    The paper's second open point: under frequent calls, policies that interfere least did best (RR); under rare calls, those that know
    most.
    Algorithm: 1. take the share of the last 20 answered calls that took more than `slow` times their time alone; 2. above `spread_above`
    spread: calls go round in proportion to performance (least (calls sent in this mode + 1) / P); below `return_below` go back to LOTH;
    in between keep the mode. Mode and counts are notes.
    Parameters: slow (1.5), spread_above (0.6), return_below (0.3). Source: papers.md 4, paper 004 section 4. Differs from it in: all of it
    is ours, the paper only asks for it.
    """

    name: ClassVar[str] = "adaptive"
    slow: float = field(default=1.5, metadata=about("a call is slow beyond so many times its time alone", least=1, most=1000))
    spread_above: float = field(default=0.6, metadata=about("share of slow calls above which calls are spread", least=0, most=1))
    return_below: float = field(default=0.3, metadata=about("share of slow calls below which LOTH is used again", least=0, most=1))

    def __post_init__(self) -> None:
        """Raises: ValueError if the two shares would make the mode oscillate, and as every policy for calls."""
        super(Adaptive, self).__post_init__()
        if self.return_below > self.spread_above:
            raise ValueError(f"return_below {self.return_below:g} is above spread_above {self.spread_above:g}")

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        (mode,) = draft.note_of("mode", 0) or (_LOTH,)
        answered = draft.answered()
        if answered:
            slow = sum(one.took_us > self.slow * one.alone_us for one in answered) / len(answered)
            wanted = _SPREAD if slow > self.spread_above else _LOTH if slow < self.return_below else mode
            if wanted != mode:
                draft.note("mode", 0, (wanted,))
                for kind in ("turns " + server.name for server in draft.servers()):
                    draft.forget(kind, 0)
        super(Adaptive, self).plan(draft, causes)

    def choose(self, draft: Draft, call: Call, options: Sequence[Option]) -> tuple[Option, Why]:  # noqa: ARG002 - all is in the options
        (mode,) = draft.note_of("mode", 0) or (_LOTH,)
        if mode == _LOTH:
            return soonest(options)
        turns = {option.server.name: (draft.note_of("turns " + option.server.name, 0) or (0,))[0] for option in options}
        best = min(options, key=lambda option: (turns[option.server.name] + 1) / option.speed)
        draft.note("turns " + best.server.name, 0, (turns[best.server.name] + 1,))
        return best, Why("adaptive", "calls hinder each other: {} is next in proportion to performance", (best.server.name,))
