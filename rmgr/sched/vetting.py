"""Untrusted plans: refuses what a policy wrote past its verbs, and repeats the plan of another process verb by verb.

Verbs vet their arguments. A policy can still decide something that a leader carries out only for shipped policies (`gang`), or write
into the list of decisions itself. Such a plan is refused whole, before any part of it is carried out (`Vetted`).

A policy that runs in another process sends its plan as JSON (`encode_plan`, `decode_plan`). Whatever it sends, the type of every field is
checked on reading, and every decision goes through the verb that makes it, on the draft of this very pass (`Repeats`). A plan that no
longer fits is given up whole. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never, get_args

from rmgr.errors import StateConflict
from rmgr.sched.draft import Draft
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
from rmgr.sched.policy import Cause, Policy
from rmgr.sched.state.event_log import LogError, described
from rmgr.sched.state.event_log import decision as read_decision
from rmgr.sched.view import BEGINS, OF_THE_ENGINE

#: Package of the shipped policies.
_OWN = "rmgr.sched."
_KINDS = frozenset(get_args(Decision))
_OF_WAITING = frozenset({Reject, Reserve, HoldCores, Route})
_MOVES = frozenset({Migrate, Preempt, Suspend, Resume})
_FACTS = (int, str, float, bool, type(None))
_SET_ASIDE = "x: y"  # stands for a reason while a decision is read


class Vetted:
    """A policy whose plan is refused whole if no leader can carry it out. turn: called with its name and partition before it plans."""

    def __init__(self, policy: Policy, turn: Callable[[str, str], object] = lambda *_: None) -> None:
        self.name = policy.name
        self._policy, self._turn = policy, turn
        self._typed = not type(policy).__module__.startswith(_OWN)

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:
        """Raises: StateConflict and LogError as `check_plan`, and whatever the policy raises."""
        self._turn(self.name, draft.partition)
        since = len(draft.decisions)
        self._policy.plan(draft, causes)
        check_plan(draft, since, typed=self._typed)


def check_plan(draft: Draft, since: int, *, typed: bool) -> None:
    """Checks the decisions from index `since` on. Cost: under 1 us each, about 20 us with `typed`.

    Args: typed: check the type of every field, too (for policies that no type checker has seen).
    Raises: StateConflict for the first decision that cannot be carried out; LogError for a field of a wrong type.
    """
    part = draft._part  # noqa: SLF001 - of this very layer
    for decision in draft.decisions[since:]:
        kind: Any = type(decision)
        if kind not in _KINDS or decision.partition != draft.partition or not isinstance(decision.why, Why):
            raise StateConflict(f"its plan has {decision!r:.200}, which is no decision for partition {draft.partition}")
        if kind is GangSet and typed:
            raise StateConflict(
                f"it decided to share nodes in time (gang {decision.gang.name}), which a leader carries out for the shipped dqt alone"  # type: ignore[union-attr]
            )
        if kind is Send:
            raise StateConflict(f"it sends call {decision.job_id} to a server, which is not the business of a leader that places jobs")  # type: ignore[union-attr]
        if kind is Start:
            run = draft.run(decision.job_id)  # type: ignore[union-attr]
            known = run is not None and run.placement == decision.placement  # type: ignore[union-attr]
        elif kind in _OF_WAITING:
            known = decision.job_id in part.jobs or decision.job_id in part.running or decision.job_id in part.suspended  # type: ignore[union-attr]
        elif kind in _MOVES:
            known = decision.job_id in part.running or decision.job_id in part.suspended  # type: ignore[union-attr]
        else:
            known = True
        if typed:
            read_decision(json.loads(json.dumps(described((decision,))[0])))
        if not known:
            raise StateConflict(f"its plan has {decision!r:.200}, which no verb of the draft has accepted")


class OutOfDate(Exception):
    """The state has changed since the plan was made, and the draft refuses one of its decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPlan:
    """Another process's plan for one partition. left, rest: why its other jobs wait."""

    decisions: tuple[Decision, ...] = ()
    left: Mapping[int, Why] = field(default_factory=dict)
    rest: Why | None = None
    faults: tuple[Fault, ...] = ()


def encode_plan(plan: Plan, partition: str) -> dict[str, Any]:
    """Returns the plan as JSON values. Cost: O(decisions + reasons)."""
    decisions = [
        plain if type(decision) is Noted else {**plain, "why": _plain_why(decision.why)}
        for plain, decision in zip(described(plan.decisions), plan.decisions, strict=True)
    ]
    rest = plan.rest.get(partition)
    return {
        "decisions": decisions,
        "left": [[job_id, _plain_why(why)] for job_id, why in plan.left.items()],
        "rest": None if rest is None else _plain_why(rest),
        "faults": [list(fault) for fault in plan.faults],
    }


def decode_plan(plain: Mapping[str, Any], partition: str) -> ForeignPlan:
    """Reads a plan. Raises: LogError naming the fault, also for a decision of another partition."""
    try:
        decisions = tuple(_decision(one) for one in plain["decisions"])
        left = {_job_id(job_id): _why(why) for job_id, why in plain["left"]}
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


def _plain_why(why: Why) -> list[Any]:
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


def _job_id(job_id: Any) -> int:
    if type(job_id) is not int:
        raise LogError(f"{job_id!r:.40} is no job")
    return job_id


# -- repeating it -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repeats:
    """A policy that repeats a plan made elsewhere. name: of the policy that planned it."""

    name: str
    told: ForeignPlan = ForeignPlan()

    def plan(self, draft: Draft, causes: frozenset[Cause]) -> None:  # noqa: ARG002 - causes were looked at elsewhere
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
