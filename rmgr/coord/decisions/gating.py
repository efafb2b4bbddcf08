"""Applies a hold, a release or a cancel to a submission's record: for its owner, and again for the owner's gateway. Pure.

Who does it is told by what is proven of him, never by the request: where somebody changes another's work the record names him, and
what he has held operators alone release.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmgr.model.base.states import Reason
from rmgr.model.base.units import utc
from rmgr.model.tasks.submission import Phase, Submission

#: Characters of the user's words that are kept.
MAX_DETAIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Doer:
    """Who holds, releases or cancels.

    name: "" = its user. is_operator: he may do so with everybody's work. now_us: by his clock, for people.
    """

    name: str = ""
    is_operator: bool = False
    now_us: int = 0

    def of(self, record: Submission, own: Reason, operators: Reason) -> dict[str, str | int]:
        """Reason, name and time as they are recorded: of his own work by reason alone."""
        if self.name in {"", record.user}:
            return {"reason": own, "by": "", "by_us": 0}
        return {"reason": operators, "by": self.name, "by_us": self.now_us}


#: The user of the work.
ITS_USER = Doer()


@dataclass(frozen=True, slots=True)
class Change:
    """The record as it becomes; gate: True creates it, False deletes it, None leaves it (`ops.set_record`)."""

    record: Submission
    gate: bool | None


def cancelled(record: Submission, detail: str, doer: Doer = ITS_USER) -> Change | str:
    """CANCEL, or why there is nothing to do."""
    if record.phase in {Phase.CLOSED, Phase.CANCELLED}:
        return f"it is {record.phase} already"
    why = doer.of(record, Reason.USER_CANCEL, Reason.OPERATOR_CANCEL)
    gone = replace(record, phase=Phase.CANCELLED, reason_detail=detail[:MAX_DETAIL], **why)  # type: ignore[arg-type]
    return Change(gone, False if record.phase is Phase.OPEN else None)


def held(record: Submission, detail: str, doer: Doer = ITS_USER) -> Change | str:
    """HOLD, or why there is nothing to do. An operator's takes the place of its user's, and of a wait for others."""
    why = doer.of(record, Reason.USER_HOLD, Reason.OPERATOR_HOLD)
    takes_over = why["reason"] == Reason.OPERATOR_HOLD and record.reason in {Reason.USER_HOLD, Reason.DEPENDENCY}
    if record.phase is Phase.HELD and not takes_over:
        return "it is held already" if record.reason != Reason.DEPENDENCY else "it waits for its dependencies already"
    if record.phase not in {Phase.OPEN, Phase.HELD}:
        return f"it is {record.phase}"
    now = replace(record, phase=Phase.HELD, reason_detail=detail[:MAX_DETAIL], **why)  # type: ignore[arg-type]
    return Change(now, False if record.phase is Phase.OPEN else None)


def released(record: Submission, doer: Doer = ITS_USER) -> Change | str:
    """RELEASE, or why there is nothing to do. What waited for others waits for them again: the leader looks, and opens the gate."""
    if record.phase is not Phase.HELD:
        return f"it is not held ({record.phase})"
    if record.reason == Reason.REVOKED:
        return f"{record.reason_detail}: nothing that they signed starts any more; submit it again with new ones, and cancel this"
    if record.reason == Reason.OPERATOR_HOLD and not doer.is_operator:
        return f"{told_by(record)}: operators alone release it; ask {record.by}, or another operator"
    if record.reason == Reason.DEPENDENCY:
        return "it waits for " + ", ".join(f"{item.condition}:{item.submission}" for item in record.after)
    if record.after:
        return Change(replace(record, reason=Reason.DEPENDENCY, reason_detail="", by="", by_us=0), None)
    return Change(replace(record, phase=Phase.OPEN, reason="", reason_detail="", by="", by_us=0), True)


def told_by(record: Submission) -> str:
    """`held by root, an operator, since 2026-11-28T22:40:00Z (disk is full)`, `cancelled by ...`; "" where that was its user, or nobody."""
    if record.reason not in {Reason.OPERATOR_HOLD, Reason.OPERATOR_CANCEL}:
        return ""
    verb, since = ("held", "since ") if record.reason == Reason.OPERATOR_HOLD else ("cancelled", "")
    told = f"{verb} by {record.by or 'somebody'}, an operator"
    told += f", {since}{utc(record.by_us)}" if record.by_us else ""
    return told + (f" ({record.reason_detail})" if record.reason_detail else "")


def cancel_words(record: Submission) -> str:
    """What its tasks carry that end with it, or by a single cancel: who has cancelled them, and his words."""
    return words_of(record.by if record.reason == Reason.OPERATOR_CANCEL else "", record.reason_detail)


def words_of(by: str, detail: str) -> str:
    """`by root: disk is full`. by: "" = their user, of whom nothing needs to be said."""
    return (f"by {by}" + f": {detail}" * bool(detail)) if by else detail
