"""Applies a change of terms to a submission's record (`rmgr update`): for who makes it, and again for the gateway. Pure.

What its user has signed stays: the record keeps it beside each amendment, and who runs the work compares all of them
(`coord/seal/work.py`). An operator may change priority and time limit of others' work, and nothing that would make it other work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rmgr.coord.decisions.gating import Change, Doer
from rmgr.model.base.states import Reason
from rmgr.model.tasks.amendments import MOST_CHANGES, OF_OPERATORS, terms_of, with_terms
from rmgr.model.tasks.submission import Amendment, Phase, Submission, Terms

#: What may be changed where nothing waits any more.
OF_RUNNING = frozenset({"time_limit_us"})
#: What may be changed while nothing of it has left its waiting blocks: these move with it.
OF_STILL = frozenset({"queue", "cores"})
#: Of `MOST_CHANGES` so many are left to operators.
_FOR_OPERATORS = 4
#: What people call them.
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
    """How much of it waits and runs. waits: some of it, or more may come. is_still: what has not ended waits in blocks, no more comes."""

    waits: bool = True
    runs: bool = False
    is_still: bool = True


def amended(record: Submission, terms: Terms, doer: Doer, standing: Standing = Standing()) -> Change | str:
    """UPDATE, not signed yet, or why there is nothing to do.

    standing: as its user was shown it; what must hold at the commit is checked by it (`ops.update`).
    """
    if record.phase in {Phase.CLOSED, Phase.CANCELLED}:
        return f"it is {record.phase}"
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
    """The same with the signature of its last amendment."""
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
    if not standing.runs:
        return "nothing of it waits or runs any more"
    waiting = [WORDS[name] for name in said if name not in OF_RUNNING]
    if waiting:
        return f"nothing of it waits any more: its {' and '.join(waiting)} cannot be changed"
    new, old = said["time_limit_us"], record.request.time_limit_us
    if not may_cut(new, old, record, by=doer.name or record.user, is_operators=doer.is_operator):
        who = "its user may shorten the time limit of what runs" if is_longer(old, new) else "an operator may lengthen it"
        return f"it runs: {who}"
    return ""


def is_longer(limit_us: int, other_us: int) -> bool:
    """A time limit lets work run longer than another does; 0 = for ever."""
    return limit_us != other_us and (not limit_us or 0 < other_us < limit_us)


def may_cut(new_us: int, old_us: int, record: Submission, *, by: str, is_operators: bool) -> bool:
    """A new time limit concerns what runs, too: its user may only shorten that, and an operator only lengthen it."""
    return is_operators if is_longer(new_us, old_us) else by == record.user


def limit_of_running(record: Submission, old_us: int, since: int) -> int:
    """The time limit of a task that runs with `old_us`, once all changes after number `since` count."""
    limit_us = old_us
    for change in record.changes[since:]:
        new_us = change.terms.time_limit_us
        if new_us is not None and may_cut(new_us, limit_us, record, by=change.by, is_operators=change.is_operators):
            limit_us = new_us
    return limit_us
