"""Replays a log of calls under another policy: the same calls, measurements and answers, and which server it would have chosen.

What the other choice would have led to is not in the log: servers and links are as they were measured under the recorded policy. So picks
and predictions are compared, and the recorded answers tell how good the recorded predictions were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rmgr.errors import RmgrError
from rmgr.sched.engine import run_pass
from rmgr.sched.plan import Send
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.records import Answered
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.event_log import Entry, Fact, Opening, Passed, decision


@dataclass(slots=True)
class Picks:
    """Servers by call, as recorded and as the other policy picks; predictions in seconds; answers by call."""

    policy: str = ""
    recorded: dict[int, Send] = field(default_factory=dict)
    replayed: dict[int, Send] = field(default_factory=dict)
    answered: dict[int, Answered] = field(default_factory=dict)

    @property
    def same(self) -> int:
        """Calls that both send to the same server."""
        return sum(call in self.replayed and self.replayed[call].to == sent.to for call, sent in self.recorded.items())

    @staticmethod
    def shares(sends: Mapping[int, Send]) -> dict[str, int]:
        """Calls by server, in order of name."""
        return dict(sorted(Counter(send.to for send in sends.values()).items()))

    @staticmethod
    def predicted_s(sends: Mapping[int, Send]) -> float:
        """Mean prediction; 0 where nothing was predicted."""
        known = [send.predicted_us for send in sends.values() if send.predicted_us]
        return sum(known) / len(known) / 1e6 if known else 0.0

    @property
    def answered_s(self) -> float:
        """Mean time until the answer, as recorded."""
        return sum(one.took_us for one in self.answered.values()) / len(self.answered) / 1e6 if self.answered else 0.0


def picks(entries: Iterable[Entry], pipeline: tuple[Stage, ...]) -> Picks:
    """Runs every pass of the log under this pipeline, on a state of its own that is told the recorded facts.

    Raises: RmgrError for a policy that raises, or an empty log. Cost: one pass for each pass of the log.
    """
    found, state, seed = Picks(), None, 0
    for entry in entries:
        match entry:
            case Opening(policy, _, seed, records):
                state, found.policy = ClusterState.restored(records), policy
            case Fact() if state is not None:
                _tell(entry, state, found)
            case Passed(at_us, _, causes, decisions) if state is not None:
                for one in map(decision, decisions):
                    if isinstance(one, Send):
                        found.recorded[one.job_id] = one
                plan = run_pass(state, frozenset(map(Cause, causes)), now=at_us, seed=seed, pipeline=pipeline)
                if plan.faults:
                    raise RmgrError(f"policy {plan.faults[0].policy} failed at {at_us} us: {plan.faults[0].error}")
                for one in plan.decisions:
                    state.carried_out(one, at_us)
                    if isinstance(one, Send):
                        found.replayed[one.job_id] = one
    if state is None:
        raise RmgrError("the log is empty")
    return found


def _tell(fact: Fact, state: ClusterState, found: Picks) -> None:
    """A call that was sent or withdrawn may have left this state before."""
    if fact.name == "call_answered":
        found.answered[fact.arguments["answered"].call_id] = fact.arguments["answered"]
    if fact.name == "call_left":
        waits = state.partitions.get(fact.arguments.get("partition", "default"))
        if waits is None or fact.arguments["call_id"] not in waits.calls:
            return
    fact.tell(state)
