"""Whether what a submission waits for has happened: endings of others in, a verdict out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rmgr.model.base.states import Reason, State
from rmgr.model.tasks.submission import Condition, Dependency


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionEnd:
    """Known end of a submission.

    state: how it ended, None while it has not. spoiled: something of it has FAILED or was CANCELLED already.
    began: an attempt of it ran, or was lost. known: False when neither ZooKeeper nor the history has heard of it.
    """

    state: State | None = None
    spoiled: bool = False
    began: bool = False
    known: bool = True


@dataclass(frozen=True, slots=True)
class Met:
    """All conditions hold: it may run."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """One condition can never hold any more."""

    detail: str


@dataclass(frozen=True, slots=True)
class Open:
    """Not decided: these submissions have not ended. `missing`: those of which nothing was told."""

    waits_for: tuple[int, ...]
    missing: tuple[int, ...] = ()


Verdict = Met | Unmet | Open


def weigh(after: Sequence[Dependency], endings: Mapping[int, SubmissionEnd]) -> Verdict:
    """The verdict on a list of dependencies, all of which must hold. Cost: O(dependencies).

    Args:
        endings: what is known, by submission; one that is not in it has not been looked up.
    """
    waits: list[int] = []
    missing: list[int] = []
    for item in after:
        ending = endings.get(item.submission)
        if ending is None:
            missing.append(item.submission)
            continue
        broken = _broken(item, ending)
        if broken:
            return Unmet(f"{item.condition}:{item.submission}: {broken}")
        if ending.state is None:
            waits.append(item.submission)
    return Open(tuple(waits), tuple(missing)) if waits or missing else Met()


def is_branch_not_taken(reason: str, detail: str) -> bool:
    """It was cancelled because what it was to run after the failure of has succeeded: nothing is wrong. (As the leader records it.)"""
    return reason == Reason.DEPENDENCY_FAILED and detail.startswith(f"{Condition.FAIL}:") and detail.endswith(f" ended {State.COMPLETED}")


def _broken(item: Dependency, ending: SubmissionEnd) -> str:
    if not ending.known:
        return f"submission {item.submission} is neither in the cluster nor in the history"
    if item.condition is Condition.OK:
        if ending.state in {State.FAILED, State.CANCELLED}:
            return f"submission {item.submission} ended {ending.state}"
        if ending.spoiled:
            return f"not all tasks of submission {item.submission} can complete any more"
    if item.condition is Condition.FAIL:
        if ending.state is State.COMPLETED:
            return f"submission {item.submission} ended {State.COMPLETED}"
        if ending.state is State.CANCELLED and not ending.began:
            return f"submission {item.submission} was cancelled before anything of it ran"
    return ""
