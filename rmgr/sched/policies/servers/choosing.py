"""The loop that all policies for calls share: each waiting call in order of arrival, the servers that can take it, one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from rmgr.sched.draft import Draft
from rmgr.sched.parameters import about
from rmgr.sched.plan import Why
from rmgr.sched.policy import Cause
from rmgr.sched.predictors.ewma import Ewma
from rmgr.sched.predictors.forecast import Added, Forecast, Predictor
from rmgr.sched.predictors.last import Last
from rmgr.sched.predictors.performance import Performance, speed_of
from rmgr.sched.predictors.queueing import Queueing
from rmgr.sched.records import Call, Server

NO_SERVER = Why("server", "no open server offers what it calls")
#: No prediction is longer.
_LONGEST_S = 1e9


class Option(NamedTuple):
    """A server that can take the call. speed: operations/s of the call alone there."""

    server: Server
    speed: float
    added: Added
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class Choosing(ABC):
    """A policy for calls. Subclasses say which option is chosen, and why; equals go to the server of the lowest name."""

    name: ClassVar[str]
    for_calls: ClassVar[bool] = True
    load: Literal["now", "mean"] = field(default="now", metadata=about("load at the last measurement, or averaged before it"))
    performance: Performance = field(default=Performance.DECLARED, metadata=about("where the operations/s of a server come from"))
    predictor: Literal["last", "ewma", "queueing"] = field(
        default="last", metadata=about("how load and throughput are predicted from their measurements")
    )

    def __post_init__(self) -> None:
        """Raises: ValueError for a load that nothing would look at."""
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
        """One of the options, which are in order of name and at least one."""

    def added(self, sent: int) -> Added:  # noqa: ARG002 - most policies take measurements as they are
        """Corrections for so many calls that were sent to a server since it was measured."""
        return Added()

    def predicting(self) -> Predictor:
        """The predictor that the parameters name."""
        mean = self.load == "mean"
        if self.predictor == "queueing":
            return Queueing()
        return Ewma(mean) if self.predictor == "ewma" else Last(mean)

    def option(self, draft: Draft, call: Call, server: Server) -> Option:
        """What this policy expects of the call on that server, whether or not it can be sent there."""
        return self._option(draft, call, server, self.sent_since(draft, server), self.predicting())

    @staticmethod
    def sent_since(draft: Draft, server: Server) -> int:
        """Calls that were sent to the server since its last measurement: by this policy, and before that was told."""
        known = draft.note_of(f"sent {server.name}", 0)
        return server.sent + (known[2] if known is not None and known[:2] == (server.at_us, server.life) else 0)

    def _option(self, draft: Draft, call: Call, server: Server, sent: int, predictor: Predictor) -> Option:
        speed, added = speed_of(draft.learnt, call, server, self.performance), self.added(sent)
        return Option(server, speed, added, predictor.forecast(call, draft.measurements(server.name) or (server,), speed, added))
