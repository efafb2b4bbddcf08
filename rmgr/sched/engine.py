"""One pass: each stage of the pipeline writes on its drafts; accepted decisions become the plan; the state stays unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmgr.sched.draft import Draft
from rmgr.sched.plan import NO_ASIDE, NO_REASONS, Fault, Plan, of_tuple
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state.cluster import ClusterState
from rmgr.sched.state.partition import Partition


def _never() -> bool:
    return False


def run_pass(
    state: ClusterState,
    causes: frozenset[Cause],
    *,
    now: int,
    seed: int,
    pipeline: Iterable[Stage],
    expired: Callable[[], bool] = _never,
) -> Plan:
    """Returns what to do now. Pure: equal arguments give equal plans, and the state is unchanged when it returns.

    Args:
        now: us. seed: for policies that draw random numbers. pipeline: stages in order; a later one sees the decisions of earlier ones.
        expired: tells whether the pass has taken too long (by the driver's clock); called after each policy, which then loses its
        decisions. A policy that raises or names an unknown partition loses its decisions for it and is reported as a `Fault`; the others go
        on.
    """
    drafts: dict[str, Draft] = {}
    faults: list[Fault] = []
    stages = tuple(pipeline)
    try:
        for stage in stages:
            policy = stage.policy
            for name in stage.partitions or state.partitions:
                draft = drafts.get(name)
                if draft is None:
                    part = state.partitions.get(name)
                    if part is None:
                        faults.append(Fault(policy.name, name, "no such partition"))
                        continue
                    if part.begins or now < part.now_us:
                        part.open_for(now)
                    part.now_us = now
                    recorded = part.reservations or part.notes or part.holds or part.gangs.by_name or part.suspended
                    draft = drafts[name] = _inheriting(part, now, seed, stages) if recorded else Draft(part, now, seed)
                    mark = None
                else:
                    mark = draft.mark()
                draft.policy = policy.name
                try:
                    policy.plan(draft, causes)
                    error = "out of time" if expired is not _never and expired() else ""
                except (Exception, SystemExit, GeneratorExit) as exc:  # noqa: BLE001 - a user's policy may raise anything: it loses its decisions
                    error = f"{type(exc).__name__}: {exc}"
                if error:
                    faults.append(Fault(policy.name, name, error))
                    if mark is None:
                        draft.close()
                        drafts[name] = _inheriting(state.partitions[name], now, seed, stages)
                    else:
                        draft.back(mark)
        return _sealed(drafts, tuple(faults))
    finally:
        for draft in drafts.values():
            draft.close()


def _inheriting(part: Partition, now: int, seed: int, stages: tuple[Stage, ...]) -> Draft:
    """Returns a draft on which the engine has dealt with records whose policy no longer serves this partition."""
    keepers = frozenset(stage.policy.name for stage in stages if not stage.partitions or part.name in stage.partitions)
    draft = Draft(part, now, seed, keepers)
    if part.suspended:
        draft.inherit(keepers)
    return draft


def _sealed(drafts: dict[str, Draft], faults: tuple[Fault, ...]) -> Plan:
    if len(drafts) == 1:  # most passes: nothing to merge
        for name, draft in drafts.items():
            aside = draft.aside
            rest = NO_REASONS if draft.rest is None else {name: draft.rest}
            return of_tuple(Plan, (draft.sealed(), draft.left, rest, faults, draft.refused, {name: aside} if aside else NO_ASIDE))
    return Plan(
        tuple(decision for draft in drafts.values() for decision in draft.sealed()),
        {job_id: why for draft in drafts.values() for job_id, why in draft.left.items()},
        {name: draft.rest for name, draft in drafts.items() if draft.rest is not None},
        faults,
        sum(draft.refused for draft in drafts.values()),
        {name: draft.aside for name, draft in drafts.items() if draft.aside},
    )
