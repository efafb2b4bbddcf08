"""Applies hold, release, cancel and new terms to a submission's record: for the asker, and again for the gateway. Pure.

Proof, never the request, tells who makes a change. If that is another user than the submission's own, the record names the user; only
operators release what an operator has held.

When terms change, the record keeps what its user has signed beside each amendment, and the node that runs the work checks all of them
(`coord/seal.py`). An operator may change priority and time limit of others' work, and nothing that would make it other work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rmgr.model.states import Reason
from rmgr.model.submission import MOST_CHANGES, OF_OPERATORS, Amendment, Phase, Submission, Terms, terms_of, with_terms
from rmgr.model.units import utc

#: Characters of the user's words that are kept.
MAX_DETAIL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Doer:
    """The user who holds, releases or cancels.

    name: "" = the submission's user. is_operator: may change everybody's work. now_us: on the doer's clock, for people.
    """

    name: str = ""
    is_operator: bool = False
    now_us: int = 0

    def of(self, record: Submission, own: Reason, operators: Reason) -> tuple[Reason, str, int]:
        """Returns reason, name and time to record; only the reason if it is the doer's own work."""
        return (own, "", 0) if self.name in {"", record.user} else (operators, self.name, self.now_us)


#: Stands for the submission's own user.
ITS_USER = Doer()


@dataclass(frozen=True, slots=True)
class Change:
    """The changed record. gate: True creates it, False deletes it, None leaves it (`ops.set_record`)."""

    record: Submission
    gate: bool | None


@dataclass(frozen=True, slots=True)
class Changed:
    """A submission before and after an order. unchanged: why the order did nothing, "" if it did something.

    to_sign: nothing was changed yet; the user must sign this amendment and send it.
    """

    before: Submission
    after: Submission
    unchanged: str = ""
    to_sign: Amendment | None = None


def cancelled(record: Submission, detail: str, doer: Doer = ITS_USER) -> Change | str:
    """Returns the change for CANCEL, or why there is nothing to do."""
    if record.phase in {Phase.CLOSED, Phase.CANCELLED}:
        return f"{_why_over(record.phase)} already"
    reason, by, by_us = doer.of(record, Reason.USER_CANCEL, Reason.OPERATOR_CANCEL)
    gone = replace(record, phase=Phase.CANCELLED, reason=reason, reason_detail=detail[:MAX_DETAIL], by=by, by_us=by_us)
    return Change(gone, False if record.phase is Phase.OPEN else None)


def held(record: Submission, detail: str, doer: Doer = ITS_USER) -> Change | str:
    """Returns the change for HOLD, or why there is nothing to do. An operator's hold replaces the user's, and a wait for dependencies."""
    reason, by, by_us = doer.of(record, Reason.USER_HOLD, Reason.OPERATOR_HOLD)
    takes_over = reason is Reason.OPERATOR_HOLD and record.reason in {Reason.USER_HOLD, Reason.DEPENDENCY}
    if record.phase is Phase.HELD and not takes_over:
        return "it is held already" if record.reason != Reason.DEPENDENCY else "it waits for its dependencies already"
    if record.phase not in {Phase.OPEN, Phase.HELD}:
        return _why_over(record.phase)
    now = replace(record, phase=Phase.HELD, reason=reason, reason_detail=detail[:MAX_DETAIL], by=by, by_us=by_us)
    return Change(now, False if record.phase is Phase.OPEN else None)


def released(record: Submission, doer: Doer = ITS_USER) -> Change | str:
    """Returns the change for RELEASE, or why there is nothing to do. With dependencies it waits again, until the leader opens the gate."""
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
    """Returns `held by root, an operator, since 2026-11-28T22:40:00Z (disk is full)`, `cancelled by ...`; "" without an operator."""
    if record.reason not in {Reason.OPERATOR_HOLD, Reason.OPERATOR_CANCEL}:
        return ""
    verb, since = ("held", "since ") if record.reason == Reason.OPERATOR_HOLD else ("cancelled", "")
    message = f"{verb} by {record.by or 'somebody'}, an operator"
    message += f", {since}{utc(record.by_us)}" if record.by_us else ""
    return message + (f" ({record.reason_detail})" if record.reason_detail else "")


def cancel_words(record: Submission) -> str:
    """Returns the detail for tasks that end with the submission, or by a single cancel: the operator, and the words of the cancel."""
    return words_of(record.by if record.reason == Reason.OPERATOR_CANCEL else "", record.reason_detail)


def words_of(by: str, detail: str) -> str:
    """Returns `by root: disk is full`. by: "" = the tasks' own user, who is not named."""
    return (f"by {by}" + f": {detail}" * bool(detail)) if by else detail


# -- terms ---------------------------------------------------------------------------------------------------------------------


#: Terms that may change even if nothing waits any more.
OF_RUNNING = frozenset({"time_limit_us"})
#: Terms that may change as long as all tasks are still in waiting blocks, which move with the change.
OF_STILL = frozenset({"queue", "cores"})
#: Changes of `MOST_CHANGES` that are reserved for operators.
_FOR_OPERATORS = 4
#: Names of the terms for people.
WORDS = {
    "priority": "priority",
    "time_limit_us": "time limit",
    "memory_bytes": "memory",
    "name": "name",
    "begin_us": "begin",
    "after": "after",
    "features": "features",
    "queue": "queue",
    "cores": "cores",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What of a submission waits and runs. waits: some tasks, or more may come. is_still: all open tasks wait in blocks, no more come."""

    waits: bool = True
    runs: bool = False
    is_still: bool = True


def amended(record: Submission, terms: Terms, doer: Doer, standing: Standing = Standing()) -> Change | str:
    """Returns the change for UPDATE, not signed yet, or why there is nothing to do.

    standing: as its user saw it; the commit itself checks what must hold (`ops.update`).
    """
    if record.phase in {Phase.CLOSED, Phase.CANCELLED}:
        return _why_over(record.phase)
    if not (standing.waits or standing.runs):
        return _why_over(Phase.CLOSED)  # the leader is about to close it
    if record.reason == Reason.REVOKED:
        return f"{record.reason_detail}: submit it again with new ones"
    said = {name: value for name, value in terms.said().items() if value != getattr(terms_of(record), name)}
    if not said:
        return "it is so already"
    is_own = doer.name in {"", record.user}
    if why := _why_not(record, said, doer, standing, is_own=is_own):
        return why
    now = terms_of(record)
    grows = said.get("priority", record.priority) > record.priority or is_longer(
        said.get("time_limit_us", record.request.time_limit_us), record.request.time_limit_us
    )
    change = Amendment(
        number=len(record.changes) + 1,
        by=doer.name or record.user,
        by_us=doer.now_us,
        is_operators=doer.is_operator and (not is_own or grows),
        terms=Terms(**said),
    )
    was = Terms(**({name: getattr(now, name) for name in said} | (record.was.said() if record.was is not None else {})))
    new = replace(with_terms(record, change.terms), was=was, changes=(*record.changes, change))
    if "after" not in said:
        return Change(new, None)
    if record.phase is Phase.OPEN and new.after:
        return Change(replace(new, phase=Phase.HELD, reason=Reason.DEPENDENCY, reason_detail="", by="", by_us=0), False)
    if record.phase is Phase.HELD and record.reason == Reason.DEPENDENCY and not new.after:
        return Change(replace(new, phase=Phase.OPEN, reason="", reason_detail="", by="", by_us=0), True)
    return Change(new, None)


def signed(record: Submission, signature: str) -> Submission:
    """Returns the record with the signature of its last amendment."""
    return replace(record, changes=(*record.changes[:-1], replace(record.changes[-1], signature=signature)))


def _why_not(record: Submission, said: dict[str, Any], doer: Doer, standing: Standing, *, is_own: bool) -> str:
    most = MOST_CHANGES if doer.is_operator else MOST_CHANGES - _FOR_OPERATORS
    if len(record.changes) >= most:
        instead = f"rmgr cancel {record.id} is left" if doer.is_operator else "submit it again"
        return f"it was changed {len(record.changes)} times, and no more is kept: {instead}"
    others = [WORDS[name] for name in said if name not in OF_OPERATORS]
    if not is_own and not doer.is_operator:
        return f"it belongs to {record.user}"
    if not is_own and others:
        return f"an operator may change its priority and its time limit; only {record.user} changes its {' and '.join(others)}"
    if said.get("priority", record.priority) > record.priority and not doer.is_operator:
        return f"its user may lower its priority ({record.priority} now), and an operator may raise it"
    if "begin_us" in said and record.rigid is None:
        return f"only jobs that the leader places wait for a time, and Starters take those of queue {record.queue}"
    late = [item.submission for item in said.get("after", ()) if item.submission >= record.id]
    if late:
        return f"it can wait for what was submitted before it, not for {late[0]}"
    if moved := [WORDS[name] for name in said if name in OF_STILL and not standing.is_still]:
        return f"its {' and '.join(moved)} can be changed while nothing of it runs, is to be tried again, or may still be added"
    if standing.waits:
        return ""
    waiting = [WORDS[name] for name in said if name not in OF_RUNNING]
    if waiting:
        return f"nothing of it waits any more: its {' and '.join(waiting)} cannot be changed"
    new, old = said["time_limit_us"], record.request.time_limit_us
    if not may_cut(new, old, record, by=doer.name or record.user, is_operators=doer.is_operator):
        who = "its user may shorten the time limit of what runs" if is_longer(old, new) else "an operator may lengthen it"
        return f"it runs: {who}"
    return ""


def is_longer(limit_us: int, other_us: int) -> bool:
    """Returns whether a time limit lets work run longer than `other_us`; 0 = no limit."""
    return limit_us != other_us and (not limit_us or 0 < other_us < limit_us)


def may_cut(new_us: int, old_us: int, record: Submission, *, by: str, is_operators: bool) -> bool:
    """Returns whether a new time limit applies to running work: its user may only shorten it there, an operator only lengthen it."""
    return is_operators if is_longer(new_us, old_us) else by == record.user


def limit_of_running(record: Submission, old_us: int, since: int) -> int:
    """Returns the time limit of a task running with `old_us`, after all changes later than number `since`."""
    limit_us = old_us
    for change in record.changes[since:]:
        new_us = change.terms.time_limit_us
        if new_us is not None and may_cut(new_us, limit_us, record, by=change.by, is_operators=change.is_operators):
            limit_us = new_us
    return limit_us


def _why_over(phase: Phase) -> str:
    """Returns why the submission cannot change."""
    return "it has ended" if phase is Phase.CLOSED else f"it is {phase}"
