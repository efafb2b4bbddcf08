"""Builds the multis that a gateway commits for a client. Pure, but for what it asks of the cluster (`Known`).

    client's multi --taken apart--> arguments of the builder --checked, built--> the gateway's multi --compared--> committed

One byte, version, flag, proof or operation that is not the builder's, and the whole is refused. Every operation of a client has its
line here; the decoders are in `rebuild/submits.py` (how submissions begin and grow) and `rebuild/changes.py` (the rest).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmgr.coord.protocol.multi import Multi
from rmgr.coord.protocol.records import UNREADABLE
from rmgr.coord.rebuild import changes, submits
from rmgr.coord.rebuild.parts import Known, compared
from rmgr.errors import PermissionDenied
from rmgr.model.tasks.submission import Submission, Tail


@dataclass(frozen=True, slots=True)
class Built:
    """A multi that may be committed. record: of a new submission. tail: of one that grows, as it is then; number: which."""

    multi: Multi
    record: Submission | None = None
    number: int = 0
    tail: Tail | None = None


#: How an operation's multi is taken apart and built anew; SUBMIT, ENQUEUE and HAND have more to tell.
CHANGES: dict[str, Callable[[Multi, Known], Multi]] = {
    "RESUBMIT": changes.resubmit,
    "GIVE_UP": changes.resubmit,
    "CANCEL_FAILED": changes.cancel_failed,
    "TAKE_OUT": changes.take_out,
    "ENTER": changes.enter,
    "IDENTIFY": changes.identify,
    "TAKE_OWNERSHIP": changes.take_ownership,
    "GATE": changes.gate,
    "ORDER": changes.order,
    "ASK": changes.ask,
    "DRAIN": changes.drain,
    "RESUME": changes.resume,
    "SETTINGS": changes.settings,
}
GROWS: dict[str, Callable[[Multi, Known], tuple[Multi, int, Tail]]] = {"ENQUEUE": submits.enqueue, "HAND": submits.hand}


def rebuild(multi: Multi, known: Known) -> Built:
    """The same multi, built here.

    Raises: PermissionDenied naming the first operation that differs; InvalidRecord; `rebuild_parts.Moved` when what it builds upon has
        changed, so that it would meet a conflict; CoordinationUnavailable. Cost: see `rebuild_submits`; others 10 to 50 us, and a
        reading or two of what they change.
    """
    try:
        return _rebuilt(multi, known)
    except (*UNREADABLE, ArithmeticError, LookupError, AssertionError) as error:
        why = f"{multi.name}: it cannot be built of what stands in it ({type(error).__name__})"
        raise PermissionDenied(why, hint="is the client of the cluster's release? rmgr version") from error


def _rebuilt(multi: Multi, known: Known) -> Built:
    if multi.name == "SUBMIT":
        built, record, tail = submits.submit(multi, known)
        return Built(compared(built, multi), record, record.id, tail)
    if multi.name in GROWS:
        built, number, tail = GROWS[multi.name](multi, known)
        return Built(compared(built, multi), None, number, tail)
    if multi.name == "ENTER":  # what is committed says more than what was sent: who has sent it
        return Built(changes.entered(compared(changes.enter(multi, known), multi), known))
    if multi.name in changes.NAMED:  # as well
        return Built(changes.NAMED[multi.name](compared(CHANGES[multi.name](multi, known), multi), known, named=True))
    change = CHANGES.get(multi.name)
    if change is None:
        raise PermissionDenied(f"{multi.name}: clients of a gateway may not do this", hint="daemons need ZooKeeper itself: --zk")
    return Built(compared(change(multi, known), multi))
