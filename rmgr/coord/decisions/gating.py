"""Applies a hold, a release or a cancel to a submission's record: for its owner, and again for the owner's gateway. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmgr.model.base.states import Reason
from rmgr.model.tasks.submission import Phase, Submission

#: Characters of the user's words that are kept.
MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Change:
    """The record as it becomes; gate: True creates it, False deletes it, None leaves it (`ops.set_record`)."""

    record: Submission
    gate: bool | None


def cancelled(record: Submission, detail: str) -> Change | str:
    """CANCEL, or why there is nothing to do."""
    if record.phase in {Phase.CLOSED, Phase.CANCELLED}:
        return f"it is {record.phase} already"
    gone = replace(record, phase=Phase.CANCELLED, reason=Reason.USER_CANCEL, reason_detail=detail[:MAX_DETAIL])
    return Change(gone, False if record.phase is Phase.OPEN else None)


def held(record: Submission, detail: str) -> Change | str:
    """HOLD, or why there is nothing to do."""
    if record.phase is Phase.HELD:
        return "it is held already" if record.reason != Reason.DEPENDENCY else "it waits for its dependencies already"
    if record.phase is not Phase.OPEN:
        return f"it is {record.phase}"
    return Change(replace(record, phase=Phase.HELD, reason=Reason.USER_HOLD, reason_detail=detail[:MAX_DETAIL]), False)


def released(record: Submission) -> Change | str:
    """RELEASE, or why there is nothing to do. What waited for others waits for them again: the leader looks, and opens the gate."""
    if record.phase is not Phase.HELD:
        return f"it is not held ({record.phase})"
    if record.reason == Reason.REVOKED:
        return f"{record.reason_detail}: nothing that they signed starts any more; submit it again with new ones, and cancel this"
    if record.reason == Reason.DEPENDENCY:
        return "it waits for " + ", ".join(f"{item.condition}:{item.submission}" for item in record.after)
    if record.after:
        return Change(replace(record, reason=Reason.DEPENDENCY, reason_detail=""), None)
    return Change(replace(record, phase=Phase.OPEN, reason="", reason_detail=""), True)
