"""Who may ask what: one entry a question, and one check of an owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from typing import Any

from rmgr.coord.decisions.rights import Person, check_operator, denied
from rmgr.errors import NotFound, PermissionDenied
from rmgr.submitter import questions as q
from rmgr.submitter.questions import Question


class Right(Enum):
    """Whom a question is for."""

    ANYBODY = auto()  #: whom the cluster lets in; the answer leaves out what is not his to see
    READER = auto()  #: the owner of the submissions that it names, and operators
    OWNER = auto()  #: the same, for orders: users of an open cluster are kept from others' work, too, as a courtesy
    HIMSELF = auto()  #: the user that it names, and operators
    OPERATOR = auto()


#: Every question, and whom it is for.
RIGHTS: dict[type[Question[Any]], Right] = {
    **dict.fromkeys((q.ReadMeta, q.ReadSettings, q.ReadNodes, q.ReadDrain, q.WhoLeads, q.CountWaiting, q.ReadClaims), Right.ANYBODY),
    **dict.fromkeys((q.ReadFates, q.ReadCertificate, q.ReadRevoked), Right.ANYBODY),
    **dict.fromkeys((q.ReadGangs, q.DeriveJobs, q.DeriveNodes, q.DeriveQueues, q.DeriveStatus, q.DeriveExplain), Right.ANYBODY),
    **dict.fromkeys((q.ReadRecord, q.ReadNonce, q.WhichExist, q.ReadTasks, q.ReadFragments), Right.READER),
    **dict.fromkeys((q.CountFragments, q.LocateValue, q.ReadMoved), Right.READER),
    **dict.fromkeys((q.CancelSubmission, q.HoldSubmission, q.ReleaseSubmission, q.CancelTasks, q.KillRunning), Right.OWNER),
    **dict.fromkeys((q.UpdateSubmission, q.MoveTask), Right.OWNER),
    q.ReadUse: Right.HIMSELF,
    **dict.fromkeys((q.VacateNode, q.ReadVacated, q.DrainNode, q.ResumeNode, q.ForgetNode, q.ApplySettings), Right.OPERATOR),
    q.PublishCertificate: Right.ANYBODY,  # his own alone: `orders.publish` compares it with the key of his connection
}

#: Questions that change something, and what an audit calls them.
ORDERS: dict[type[Question[Any]], str] = {
    q.CancelSubmission: "CANCEL",
    q.HoldSubmission: "HOLD",
    q.ReleaseSubmission: "RELEASE",
    q.CancelTasks: "TAKE_OUT",
    q.KillRunning: "ORDER",
    q.UpdateSubmission: "UPDATE",
    q.MoveTask: "ASK",
    q.VacateNode: "VACATE",
    q.DrainNode: "DRAIN",
    q.ResumeNode: "RESUME",
    q.ForgetNode: "FORGET",
    q.ApplySettings: "SETTINGS",
    q.PublishCertificate: "IDENTIFY",
}

#: What concerns all, in words.
_OF_OPERATORS: dict[type[Question[Any]], str] = {
    q.VacateNode: "emptying a node",
    q.ReadVacated: "emptying a node",
    q.DrainNode: "draining a node",
    q.ResumeNode: "resuming a node",
    q.ForgetNode: "forgetting a node",
    q.ApplySettings: "changing the settings of the cluster",
}


def submissions_of(question: Question[Any]) -> tuple[int, ...]:
    """The submissions that a question names."""
    if isinstance(question, q.WhichExist):
        return tuple(dict.fromkeys(question.numbers))
    if isinstance(question, q.LocateValue):
        return (question.pointer.sub,)
    number = getattr(question, "number", None)
    return () if number is None else (number,)


def target_of(question: Question[Any]) -> str:
    """What a question is about, for an audit."""
    numbers = submissions_of(question)
    return str(numbers[0]) if numbers else str(getattr(question, "node", "") or getattr(question, "user", ""))


def check_asker(
    who: Person,
    question: Question[Any],
    owner_of: Callable[[int], str | None],
    operators: Callable[[], Iterable[str]] = tuple,
    *,
    reads_all: bool = False,
) -> Collection[str]:
    """Raises PermissionDenied unless `who` may ask this; NotFound for a submission that is not there.

    Args:
        owner_of: whose a submission is, None: there is none. operators: other names that count as operators, asked when it matters.
        reads_all: whoever reaches ZooKeeper himself is kept from no reading.
    Returns: whose work it concerns beside his own, as far as that was asked.
    """
    right = RIGHTS[type(question)]
    if right is Right.OPERATOR:
        if not who.is_free and who.name not in operators():
            check_operator(who, _OF_OPERATORS[type(question)])
        return ()
    reads_all = reads_all or who.is_free
    if right is Right.HIMSELF:
        named = getattr(question, "user", "")
        if not reads_all and named != who.name and who.name not in operators():
            raise PermissionDenied(f"only operators see what {named or 'others'} may have", hint="ask an operator")
        return ()
    if right is Right.ANYBODY or (right is Right.READER and reads_all):
        return ()
    others = set()
    for number in submissions_of(question):
        owner = owner_of(number)
        if owner is None:
            if isinstance(question, q.WhichExist | q.LocateValue):
                continue  # what is not there is nobody's, and may be looked for
            raise NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")
        if who.owns(owner) or (who.is_open and not who.name):
            continue
        is_operator = who.name == "root" if who.is_open else who.is_operator
        if not is_operator and who.name not in operators():
            raise denied(number, owner)
        others.add(owner)
    return others
