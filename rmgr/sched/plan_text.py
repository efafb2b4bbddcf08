"""Plans as JSON, for a policy that runs in another process; and a policy that repeats such a plan, verb by verb. Pure.

Whatever the other process sends: every field is checked for its type when it is read, and every decision goes through the verb that makes
it, on the draft of this very pass. A plan that does not fit any more is given up whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from rmgr.sched.draft import Draft
from rmgr.sched.draft.view import BEGINS, OF_THE_ENGINE
from rmgr.sched.plan import (
    Accepted,
    Decision,
    Fault,
    GangSet,
    HoldCores,
    Migrate,
    Noted,
    Plan,
    Preempt,
    Reject,
    ReleaseHold,
    Reserve,
    Resume,
    Route,
    Send,
    Start,
    Suspend,
    Unreserve,
    Verdict,
    WakeAt,
    Why,
)
from rmgr.sched.policy import Cause
from rmgr.sched.state.event_log import LogError, described
from rmgr.sched.state.event_log import decision as read_decision

_FACTS = (int, str, float, bool, type(None))
_SET_ASIDE = "x: y"  # stands for a reason while a decision is read


class OutOfDate(Exception):
    """The state has changed since the plan was made, and a decision of it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPlan:
    """Plan of another process for one partition. left, rest: why its other jobs wait."""

    decisions: tuple[Decision, ...] = ()
    left: Mapping[int, Why] = field(default_factory=dict)
    rest: Why | None = None
    faults: tuple[Fault, ...] = ()


def encode_plan(plan: Plan, partition: str) -> dict[str, Any]:
    """As JSON has it. Cost: O(decisions + reasons)."""
    decisions = [
        plain if type(decision) is Noted else {**plain, "why": _plain(decision.why)}
        for plain, decision in zip(described(plan.decisions), plan.decisions, strict=True)
    ]
    rest = plan.rest.get(partition)
    return {
        "decisions": decisions,
        "left": [[job_id, _plain(why)] for job_id, why in plan.left.items()],
        "rest": None if rest is None else _plain(rest),
        "faults": [list(fault) for fault in plan.faults],
    }


def decode_plan(plain: Mapping[str, Any], partition: str) -> ForeignPlan:
    """Raises: LogError naming what is wrong, also for a decision of another partition."""
    try:
        decisions = tuple(_decision(one) for one in plain["decisions"])
        left = {_id(job_id): _why(why) for job_id, why in plain["left"]}
        rest = None if plain["rest"] is None else _why(plain["rest"])
        faults = tuple(Fault(*map(str, fault)) for fault in plain["faults"])
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"no plan: {type(error).__name__}: {error}") from error
    for decision in decisions:
        if decision.partition != partition:
            raise LogError(f"a decision for partition {decision.partition}")
    return ForeignPlan(decisions=decisions, left=left, rest=rest, faults=faults)


def _decision(plain: dict[str, Any]) -> Decision:
    if plain.get("do") == "noted":
        return read_decision(plain)
    return read_decision({**plain, "why": _SET_ASIDE})._replace(why=_why(plain["why"]))  # type: ignore[call-arg]  # all others have one


def _plain(why: Why) -> list[Any]:
    return [str(why.rule), str(why.text), [fact if isinstance(fact, _FACTS) else str(fact) for fact in why.facts]]


def _why(plain: Any) -> Why:
    rule, text, facts = plain
    if not isinstance(rule, str) or not isinstance(text, str) or not isinstance(facts, list):
        raise LogError("field why: a rule, a sentence and its facts are expected")
    why = Why(rule, text, tuple(fact if isinstance(fact, _FACTS) else str(fact) for fact in facts))
    try:
        str(why)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise LogError(f"field why: its facts do not fit its sentence: {error}") from error
    return why


def _id(job_id: Any) -> int:
    if type(job_id) is not int:
        raise LogError(f"{job_id!r:.40} is no job")
    return job_id


# -- repeating it -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repeats:
    """A policy that writes what was planned elsewhere. name: of the policy that planned it."""

    name: str
    told: ForeignPlan = ForeignPlan()

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - they were looked at elsewhere
        """Raises: OutOfDate for the first decision that the draft refuses."""
        for decision in self.told.decisions:
            verdict = self._write(draft, decision)
            if not isinstance(verdict, Accepted | None):
                raise OutOfDate(f"{decision!r:.200}: {verdict.why}")
        draft.policy = self.name
        draft.left.update(self.told.left)
        if self.told.rest is not None:
            draft.leave_rest(self.told.rest)

    def _write(self, draft: Draft, decision: Decision) -> Verdict | None:
        draft.policy = self.name
        match decision:
            case Start(job_id, placement, why):
                return draft.start(job_id, why, placement)
            case Reserve(job_id, _, _, keep, why):
                draft.policy = decision.policy
                return draft.reserve(job_id, why, keep=keep)
            case Unreserve(job_id, why):
                return None if why in OF_THE_ENGINE else draft.unreserve(job_id, why)
            case WakeAt(at_us, why):
                return None if why == BEGINS or at_us <= draft.now_us else draft.wake_at(at_us, why)
            case Migrate(job_id, why):
                return draft.migrate(job_id, why)
            case Preempt(job_id, why):
                return draft.preempt(job_id, why)
            case Suspend(job_id, why):
                return draft.suspend(job_id, why)
            case Resume(job_id, why):
                return None if why in OF_THE_ENGINE else draft.resume(job_id, why)
            case HoldCores(job_id, hold, why):
                draft.policy = hold.policy
                return draft.hold(job_id, (*hold.waits_for, *hold.held), why)
            case ReleaseHold(job_id, why):
                return None if why in OF_THE_ENGINE else draft.release(job_id, why)
            case Noted(policy, kind, job_id, value):
                draft.policy = policy
                return draft.forget(kind, job_id) if value is None else draft.note(kind, job_id, value)
            case Route(job_id, to, why):
                return draft.route(job_id, to, why)
            case Reject(job_id, why):
                return draft.reject(job_id, why)
            case GangSet() | Send():
                raise OutOfDate(f"{decision!r:.200}: no leader carries it out")
            case _:
                assert_never(decision)
