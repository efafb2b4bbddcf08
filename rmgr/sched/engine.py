"""One pass: every stage of the pipeline writes on its drafts, what was accepted becomes the plan, the state stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rmgr.sched.draft import Draft
from rmgr.sched.plan import Decision, Fault, Plan, Why
from rmgr.sched.policy import Cause, Stage
from rmgr.sched.state import ClusterState


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
    """What to do now. Pure: the same arguments, the same plan; the state is as before when it returns.

    Args:
        now: us. seed: for policies that draw. pipeline: stages in order; a later one sees what an earlier one decided.
        expired: says that the pass has taken too long (the driver's clock); asked after each policy, which then loses its decisions.
    A policy that raises loses its decisions for that partition, as a `Fault`; the others go on.
    """
    decisions: list[Decision] = []
    left: dict[int, Why] = {}
    rest: dict[str, Why] = {}
    faults: list[Fault] = []
    refused = 0
    kept: list[Draft] = []
    try:
        for stage in pipeline:
            for name in stage.partitions or state.partitions:
                draft = Draft(state.partitions[name], now, seed)
                kept.append(draft)
                try:
                    stage.policy.plan(draft, causes)
                    error = "out of time" if expired() else ""
                except Exception as exc:  # noqa: BLE001 - a user's policy may raise anything; it loses its decisions, the driver goes on
                    error = f"{type(exc).__name__}: {exc}"
                refused += draft.refused
                if error:
                    kept.pop().undo()
                    faults.append(Fault(stage.policy.name, name, error))
                    continue
                decisions += draft.decisions
                left.update(draft.left)
                if draft.rest is not None:
                    rest[name] = draft.rest
    finally:
        while kept:
            kept.pop().undo()
    return Plan(tuple(decisions), left, rest, tuple(faults), refused)
