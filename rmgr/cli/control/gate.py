"""`rmgr cancel`, `hold`, `release`: one commit a submission (GATE); from it on nothing new of it starts."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from rmgr.cli.display.render import emit, now_us
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.numbers import positions_of
from rmgr.cli.session.tables import filter_options
from rmgr.cli.words.selectors import Changes, Filter, Target, parse, resolve, targets_of
from rmgr.errors import NotFound, PermissionDenied, UsageError
from rmgr.model.tasks.submission import Phase, Submission

if TYPE_CHECKING:
    from rmgr.coord.decisions.gating import Doer
    from rmgr.coord.protocol.ports import Coordinator
    from rmgr.procedures.control import Changed

_EXITS = """\
0 ok (what had ended already is listed, and is no error), 2 usage, 3 no such id, 4 not yours,
5 ZooKeeper cannot be reached"""

#: What one command does to one submission: (reach, number, timeout in s).
Change = Callable[["ControlReach", int, float], "Changed"]


@command(
    "cancel",
    examples="""\
    rmgr cancel 42
    rmgr cancel 42_7 42_10-20             single tasks of an array
    rmgr cancel last --reason 'wrong input'
    rmgr cancel all                       all of yours
    rmgr cancel -u ada                    all of a user's; nothing live is no error
    rmgr cancel --name 'train-*' --state initial""",
    exits=_EXITS,
)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--reason", metavar="TEXT", default="", help="shown by show and explain")
@filter_options
def cancel(session: Session, selectors: tuple[str, ...], reason: str, chosen: Filter) -> None:
    """Ends work: what waits ends at once, what runs is killed (SIGTERM, then SIGKILL)."""
    targets = select(session, selectors, chosen, may_be_none=True)
    _tell(session, cancel_targets(session, targets, reason=reason), "cancelled")


@command(
    "hold",
    examples="rmgr hold 42\nrmgr hold --queue default --name 'sweep-*'\nrmgr hold all",
    exits=_EXITS,
)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--reason", metavar="TEXT", default="", help="shown by show and explain")
@filter_options
def hold(session: Session, selectors: tuple[str, ...], reason: str, chosen: Filter) -> None:
    """Keeps waiting work from starting until rmgr release; what runs goes on. What an operator holds, operators release."""
    targets = _whole(select(session, selectors, chosen), "hold")
    _tell(session, _change_all(session, targets, partial(_hold, doer_of(session), reason)), "held")


@command("release", examples="rmgr release 42\nrmgr release all", exits=_EXITS)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@filter_options
def release(session: Session, selectors: tuple[str, ...], chosen: Filter) -> None:
    """Lets held work start; what waits for other work goes on waiting for that."""
    targets = _whole(select(session, selectors, chosen), "release")
    _tell(session, _change_all(session, targets, partial(_release, doer_of(session, is_free=is_operator(session)))), "released")


def cancel_ids(session: Session, ids: Sequence[str], *, reason: str) -> Changes:
    """Cancels what the ids name, without looking at anything else. Raises NotFound, PermissionDenied, Unavailable."""
    targets = targets_of(parse(ids))
    return cancel_targets(session, targets, reason=reason)


def cancel_targets(session: Session, targets: Sequence[Target], *, reason: str) -> Changes:
    """Cancels submissions and single tasks. Raises NotFound, PermissionDenied, StateConflict, Unavailable."""
    changes, me = Changes(), doer_of(session)
    for target in targets:
        if target.tasks:
            _cancel_tasks(session, target, reason, changes)
        else:
            why = _change(session, target.submission, partial(_cancel, me, reason))
            changes.add(target.ids, _always(why))
            if not why and not session.query().has_leader():
                _order_kill(session, target.submission)
    return changes


def _order_kill(session: Session, number: int) -> None:
    """Writes the orders that a leader would give to the Starters, while there is none."""
    from rmgr.coord.decisions.gating import cancel_words
    from rmgr.coord.decisions.keeping import cancel_reason
    from rmgr.coord.ops.leader import order
    from rmgr.coord.protocol import paths
    from rmgr.model.cluster.node import InboxOrder, OrderKind
    from rmgr.procedures.snapshot import read_claimed, read_submission

    coordinator, timeout_s = session.coordinator(), session.left_s(10.0) or 10.0
    names = coordinator.children(paths.NODES, timeout_s=timeout_s).result(timeout_s + 1.0) or []
    claimed = read_claimed(coordinator, names, submission=number, timeout_s=timeout_s)
    record = read_submission(coordinator, number, timeout_s=timeout_s)
    what = InboxOrder(order=OrderKind.CANCEL, submission=number, reason=cancel_reason(record), detail=cancel_words(record))
    orders = [
        coordinator.commit(order(node, uuid.uuid4().hex, what), timeout_s=timeout_s) for node in sorted({node for node, _, _ in claimed})
    ]
    for given in orders:
        given.result(timeout_s + 5.0)
    session.note(f"{number}: what runs is ordered to end; what waits ends as soon as a WatchDog leads")


# -- changes of a record ------------------------------------------------------------------------------------------------------


def _change_all(session: Session, targets: Sequence[Target], change: Change) -> Changes:
    changes = Changes()
    for target in targets:
        why = _change(session, target.submission, change)
        changes.add(target.ids, _always(why))
    return changes


def _change(session: Session, number: int, change: Change) -> str:
    """Carries out one change; returns "" or why nothing was changed."""
    from rmgr.coord.decisions.view import overall_state
    from rmgr.procedures.snapshot import read_progress

    timeout_s = session.left_s(30.0) or 30.0
    read = read_progress(session.coordinator(), session.store_or_none(), number, timeout_s=timeout_s)
    if read is None:
        return f"it has ended {session.query().job(number).state} and is history"  # or NotFound
    record, progress = read
    check_owner(session, record)
    if record.phase is Phase.CLOSED or progress.is_ended:
        return f"it has ended {overall_state(record, progress, 0)}"
    return change(ControlReach(session.coordinator()), number, timeout_s).unchanged


@dataclass(slots=True)
class ControlReach:
    """`client.control.HasCoordinator`."""

    coordinator: Coordinator | None


def _hold(doer: Doer, reason: str, reach: ControlReach, number: int, timeout_s: float) -> Changed:
    from rmgr.procedures.control import hold_submission

    return hold_submission(reach, number, detail=reason, doer=doer, timeout_s=timeout_s)


def _release(doer: Doer, reach: ControlReach, number: int, timeout_s: float) -> Changed:
    from rmgr.procedures.control import release_submission

    return release_submission(reach, number, doer=doer, timeout_s=timeout_s)


def _cancel(doer: Doer, reason: str, reach: ControlReach, number: int, timeout_s: float) -> Changed:
    from rmgr.procedures.control import cancel_submission

    return cancel_submission(reach, number, detail=reason, doer=doer, timeout_s=timeout_s)


def _cancel_tasks(session: Session, target: Target, reason: str, changes: Changes) -> None:
    from rmgr.model.tasks.block import MOST_TASKS
    from rmgr.model.tasks.request import TaskRanges, ranges_of
    from rmgr.procedures.cancelling import cancel_tasks
    from rmgr.procedures.snapshot import read_progress

    coordinator, number = session.coordinator(), target.submission
    timeout_s = session.left_s(30.0) or 30.0
    read = read_progress(coordinator, session.store_or_none(), number, timeout_s=timeout_s)
    if read is None:
        raise NotFound(f"there is no submission {number}", hint="rmgr jobs -a lists those in memory, rmgr history the older ones")
    check_owner(session, read[0])
    positions = positions_of(session, number, target.tasks, total=read[1].total)
    open_ = [position for position in positions if read[1].state_of(position) is None]
    end_s = time.monotonic() + timeout_s
    gone = cancel_tasks(coordinator, number, ranges_of(open_), detail=reason, by=session.me, running=True, deadline_s=end_s)
    ended = TaskRanges(gone, MOST_TASKS)
    for id_, position in zip(target.ids, positions, strict=True):
        state = read[1].state_of(position)
        late = "" if ended.covers(position, position + 1) else "it has ended meanwhile"
        changes.add([id_], _always(f"it has ended {state}" if state else late))


def check_owner(session: Session, record: Submission) -> None:
    """A courtesy among users who reach ZooKeeper itself: gateways are the wall (`daemons/gateway/rights`)."""
    if record.user not in {session.me, ""} and not is_operator(session):
        raise PermissionDenied(
            f"{record.id} belongs to {record.user}", hint="its owner or an operator may do that (operators: rmgr config)"
        )


def is_operator(session: Session) -> bool:
    """By certificate or settings; in an open cluster root is one. A gateway knows better, and decides."""
    from rmgr.model.cluster.identity import Role
    from rmgr.procedures.bootstrap import read_settings

    credentials = session.credentials()
    if credentials is None and session.me == "root":
        return True
    if credentials is not None and credentials.identity.role in {Role.OPERATOR, Role.ADMIN}:
        return True
    return session.me in read_settings(session.coordinator()).operators


def doer_of(session: Session, *, is_free: bool = False) -> Doer:
    """Who types this. is_free: he is an operator; asked of a release alone."""
    from rmgr.coord.decisions.gating import Doer

    return Doer(name=session.me, is_operator=is_free, now_us=now_us())


# -- selection and answer -----------------------------------------------------------------------------------------------------


def select(session: Session, selectors: tuple[str, ...], chosen: Filter, *, may_be_none: bool = False) -> list[Target]:
    """may_be_none: filters alone that leave nothing select nothing, as scripts that clean up expect. Raises: NotFound."""
    selection = parse(selectors, chosen)
    session.query().check_queue(chosen.queue)
    query = session.query()
    if not selection.needs_list:
        return resolve(selection, [query.job(number) for number in selection.named], me=session.me)
    known = {job.id: job for job in query.jobs(ended=bool(selection.ranges or selection.last or chosen.states))}
    for number in selection.named:
        known.setdefault(number, query.job(number))
    if may_be_none and not selectors and not any(chosen.admits(job) for job in known.values()):
        return []
    return resolve(selection, known.values(), me=session.me)


def _whole(targets: list[Target], verb: str) -> list[Target]:
    for target in targets:
        if target.tasks:
            raise UsageError(
                f"{target.ids[0]}: single tasks cannot be {'held' if verb == 'hold' else 'released'}",
                hint=f"rmgr {verb} {target.submission}",
            )
    return targets


def _tell(session: Session, changes: Changes, verb: str) -> None:
    if session.json:
        emit({"changed": changes.changed, "unchanged": [{"id": id_, "why": why} for id_, why in changes.unchanged]})
        return
    if changes.changed:
        sys.stdout.write(f"{verb} {' '.join(changes.changed)}\n")
    for id_, why in changes.unchanged:
        session.note(f"{id_}: {why}")
    if not changes.changed and not changes.unchanged:
        session.note("nothing is there to be changed")


def _always(why: str) -> Callable[[str], str]:
    """The same of each id."""
    return lambda _id: why
