"""`rmgr cancel`, `hold`, `release`: one commit per submission (GATE), after which nothing new of it starts; and `rmgr update`: other terms
for submitted work, and another time limit for running work (UPDATE).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import clock, printable
from rmgr.cli.session import Session, command
from rmgr.cli.session.tables import filter_options, positions_of
from rmgr.cli.words.params import BEGIN, BEGINS, MEMORY, TIME_LIMIT_US, Parsed, listed, parse_after
from rmgr.cli.words.selectors import Changes, Filter, Target, parse, resolve, targets_of
from rmgr.errors import Infeasible, NotFound, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.block import MOST_TASKS, PRIORITY_RANGE, TaskRanges, ranges_of

if TYPE_CHECKING:
    from rmgr.coord.decisions.changing import Changed
    from rmgr.model.states import State
    from rmgr.model.submission import Dependency, Terms
    from rmgr.submitter.questions import Question

_EXITS = """\
0 ok (what had ended already is listed, and is no error), 2 usage, 3 no such id, 4 not yours,
5 ZooKeeper cannot be reached"""

#: Returns what a command orders of one submission, given its number.
Order = Callable[[int], "Question[Changed]"]


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
@click.option("--reason", metavar="TEXT", default="", help="reason, shown by show and explain")
@filter_options
def cancel(session: Session, selectors: tuple[str, ...], reason: str, chosen: Filter) -> None:
    """Ends work: waiting work at once; running work by SIGTERM, then SIGKILL."""
    targets = select(session, selectors, chosen, may_be_none=True)
    _tell_ids(session, cancel_targets(session, targets, reason=reason), "cancelled")


@command("hold", examples="rmgr hold 42\nrmgr hold --queue default --name 'sweep-*'\nrmgr hold all", exits=_EXITS)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@click.option("--reason", metavar="TEXT", default="", help="reason, shown by show and explain")
@filter_options
def hold(session: Session, selectors: tuple[str, ...], reason: str, chosen: Filter) -> None:
    """Keeps waiting work from starting until rmgr release; running work continues. Only operators release an operator's hold."""
    from rmgr.submitter.questions import HoldSubmission

    targets = _whole_submissions(select(session, selectors, chosen), "hold")
    _tell_ids(session, _change_all(session, targets, lambda number: HoldSubmission(number=number, detail=reason)), "held")


@command("release", examples="rmgr release 42\nrmgr release all", exits=_EXITS)
@click.argument("selectors", nargs=-1, metavar="[SELECTOR]...")
@filter_options
def release(session: Session, selectors: tuple[str, ...], chosen: Filter) -> None:
    """Lets held work start; work that depends on other work keeps waiting for that."""
    from rmgr.submitter.questions import ReleaseSubmission

    targets = _whole_submissions(select(session, selectors, chosen), "release")
    _tell_ids(session, _change_all(session, targets, lambda number: ReleaseSubmission(number=number)), "released")


def cancel_ids(session: Session, ids: Sequence[str], *, reason: str) -> Changes:
    """Cancels what the ids name, without looking at anything else. Raises NotFound, PermissionDenied, Unavailable."""
    targets = targets_of(parse(ids))
    return cancel_targets(session, targets, reason=reason)


def cancel_targets(session: Session, targets: Sequence[Target], *, reason: str) -> Changes:
    """Cancels submissions and single tasks. Raises NotFound, PermissionDenied, StateConflict, Unavailable."""
    from rmgr.submitter.questions import CancelSubmission

    changes = Changes()
    for target in targets:
        if target.tasks:
            _cancel_tasks(session, target, reason, changes)
        else:
            why = _change(session, target.submission, lambda number: CancelSubmission(number=number, detail=reason))
            changes.add(target.ids, why)
            if not why and not session.query().has_leader():
                _order_kill(session, target.submission)
    return changes


def _order_kill(session: Session, number: int) -> None:
    """Gives the Starters the orders that a leader would give, while there is none."""
    from rmgr.submitter.questions import KillRunning

    session.ask(KillRunning(number=number))
    session.note(f"{number}: what runs is ordered to end; what waits ends as soon as a WatchDog leads")


# -- changes of a record -------------------------------------------------------------------------------------------------------


def _change_all(session: Session, targets: Sequence[Target], order: Order) -> Changes:
    changes = Changes()
    for target in targets:
        changes.add(target.ids, _change(session, target.submission, order))
    return changes


def _change(session: Session, number: int, order: Order) -> str:
    """Gives one order; returns "", or the reason why nothing was changed."""
    try:
        return session.ask(order(number), 30.0).unchanged
    except NotFound:
        return f"it has ended {session.query().job(number).state} and is history"  # or NotFound


def _cancel_tasks(session: Session, target: Target, reason: str, changes: Changes) -> None:
    from rmgr.submitter.questions import MOST_RANGES, CancelTasks, ReadRecord

    number = target.submission
    total = session.ask(ReadRecord(number=number)).tail.next
    positions = positions_of(session, number, target.tasks, total=total)
    ranges = ranges_of(positions)
    ended: list[tuple[int, int]] = []
    before: list[tuple[int, int, State]] = []
    for at in range(0, len(ranges), MOST_RANGES):
        told = session.ask(CancelTasks(number=number, ranges=ranges[at : at + MOST_RANGES], detail=reason), 30.0)
        ended += told.ended
        before += told.before
    gone, firsts = TaskRanges(ended, MOST_TASKS), [first for first, _, _ in before]
    for id_, position in zip(target.ids, positions, strict=True):
        first, count, state = before[at - 1] if (at := bisect_right(firsts, position)) else (0, 0, None)
        state = state if position < first + count else None
        late = "" if gone.covers(position, position + 1) else "it has ended meanwhile"
        changes.add([id_], f"it has ended {state}" if state else late)

# -- `rmgr update` -------------------------------------------------------------------------------------------------------------


def _after_or_none(text: str) -> tuple[Dependency, ...]:
    return () if text.strip() == "none" else parse_after(text)


@command(
    "update",
    examples="""\
    rmgr update 42 --priority -5 -t 2h    waiting work: later, and longer
    rmgr update 42 43 --mem 4G -c 2
    rmgr update last --name big           all of yours: rmgr update all ...
    rmgr update 42 --after ok:41          ends any other wait; --after none: waits for nothing
    rmgr update 42 -t 30m                 also what runs, from its start on""",
    exits="""\
0 ok (what stays as it is is listed with the reason), 1 all of it has ended, 2 usage or infeasible,
3 no such id, 4 not yours, 5 ZooKeeper cannot be reached""",
)
@click.argument("selectors", nargs=-1, metavar="SELECTOR...", required=True)
@click.option(
    "--priority",
    type=click.IntRange(-PRIORITY_RANGE, PRIORITY_RANGE),
    metavar="N",
    help="higher goes first; its user may lower it, an operator raise it",
)
@click.option("-t", "--time", "time_us", type=TIME_LIMIT_US, metavar="TIME", help="time limit of each task; for running work see below")
@click.option("--mem", "memory_bytes", type=MEMORY, metavar="SIZE", help="memory of each task, as 512M or 2G")
@click.option("-c", "--cores", type=click.IntRange(1, 99_999), metavar="C", help="cores of each task, or process, while none of it runs")
@click.option("-q", "--queue", metavar="NAME", help="another queue of the same kind, while none of it runs")
@click.option("-J", "--name", metavar="NAME", help="name of the job")
@click.option("--begin", "begin_us", type=BEGIN, metavar="TIME", help=f"not before, of placed jobs: {BEGINS}")
@click.option("-d", "--after", type=Parsed("dependencies", _after_or_none), metavar="ok:ID,...", help="wait for these instead, or for none")
@click.option("--features", metavar="A,B", help='only on nodes with all of these; "" = on any')
def update(session: Session, selectors: tuple[str, ...], features: str | None, **values: Any) -> None:
    """Changes the given options of waiting work, and prints old -> new.

    Of running work only the time limit changes: its user may shorten it, an operator may lengthen it. An operator may change
    priority and time limit of everybody's work. Cores and queue can change only while none of the work runs.
    rmgr show ID tells who has changed what, and when.
    """
    from rmgr.cli.display import shapes
    from rmgr.coord.views.submission import changes_in_words
    from rmgr.model.submission import Terms

    terms = Terms(
        priority=values["priority"],
        time_limit_us=values["time_us"],
        memory_bytes=values["memory_bytes"],
        name=values["name"],
        queue=values["queue"],
        cores=values["cores"],
        begin_us=values["begin_us"],
        after=values["after"],
        features=None if features is None else tuple(listed(features)),
    )
    if not terms.said():
        raise UsageError("nothing is to be changed", hint="rmgr update 42 -t 2h; rmgr update --help lists what can be")
    numbers = []
    for target in select(session, selectors, Filter()):
        if target.tasks:
            raise UsageError(f"{target.ids[0]}: single tasks cannot be changed", hint=f"rmgr update {target.submission}")
        numbers.append(target.submission)
    for item in terms.after or ():
        session.query().job(item.submission)  # or NotFound
    changes, made = Changes(), dict[str, dict[str, Any]]()
    refused: list[RmgrError] = []
    for number in numbers:
        try:
            changed, why = _update(session, number, terms)
        except (UsageError, Infeasible, NotFound, PermissionDenied, StateConflict) as error:  # this one only; the others go on
            refused.append(error)
            changed, why = {}, error.message
        except RmgrError:
            for done, what in made.items():  # before the error says that no more can be done
                session.note(f"{done}: {changes_in_words(what, clock)}")
            raise
        changes.add([str(number)], why)
        if not why:
            made[str(number)] = changed
    if refused and len(refused) == len(numbers):
        for other in refused[1:]:
            session.note(other.message)
        raise refused[0]
    text = "".join(f"{number}: {printable(changes_in_words(changed, clock))}\n" for number, changed in made.items())
    _tell(session, changes, text, {"changes": {number: shapes.changed(changed) for number, changed in made.items()}})


def _update(session: Session, number: int, terms: Terms) -> tuple[dict[str, Any], str]:
    """Returns (what differs now, why nothing does). Raises as `UpdateSubmission`; StateConflict if it has ended."""
    from rmgr.cli.control.operate import read_settings
    from rmgr.client.identity import update
    from rmgr.coord.views.submission import differences
    from rmgr.daemons.leader.placement.pipeline import idle_priority
    from rmgr.model.submission import Phase

    signer = session.signer()
    timeout_s = session.left_s(30.0)
    ended = "{} has ended {}: nothing of it can be changed"
    try:
        done = update(session.asks(), number, terms, signer=signer, timeout_s=timeout_s)
    except NotFound:
        past = session.query().job(number)  # or NotFound
        if not past.state.is_final:
            raise  # it is the queue that does not exist
        raise StateConflict(ended.format(number, past.state), hint=f"it is history: rmgr history {number}") from None
    if done.unchanged and (job := session.query().job(number)).state.is_final:
        raise StateConflict(ended.format(number, job.state), hint=f"rmgr rerun {number} OPTIONS submits it again, with other options")
    if done.unchanged or done.to_sign is not None:
        return {}, done.unchanged
    if done.after.phase is not Phase.HELD and not session.query().has_leader():
        session.note(f"{number}: a WatchDog that leads orders its blocks by this, and tells what runs; there is none just now")
    if terms.priority is not None and (told := idle_priority(read_settings(session)[0], done.after.queue)):
        session.note(f"{number}: {told}")
    return differences(done.before, done.after), ""


# -- selection and answer ------------------------------------------------------------------------------------------------------


def select(session: Session, selectors: tuple[str, ...], chosen: Filter, *, may_be_none: bool = False) -> list[Target]:
    """Returns what is selected. may_be_none: filters alone may select nothing, as clean-up scripts expect. Raises: NotFound."""
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


def _whole_submissions(targets: list[Target], verb: str) -> list[Target]:
    for target in targets:
        if target.tasks:
            raise UsageError(
                f"{target.ids[0]}: single tasks cannot be {'held' if verb == 'hold' else 'released'}",
                hint=f"rmgr {verb} {target.submission}",
            )
    return targets


def _tell_ids(session: Session, changes: Changes, verb: str) -> None:
    _tell(session, changes, f"{verb} {' '.join(changes.changed)}\n" if changes.changed else "", {})


def _tell(session: Session, changes: Changes, text: str, more: dict[str, Any]) -> None:
    document = {"changed": changes.changed, "unchanged": [{"id": id_, "why": why} for id_, why in changes.unchanged], **more}
    notes = [f"{id_}: {why}" for id_, why in changes.unchanged]
    session.answer(document, text, *(notes if notes or changes.changed else ["nothing is there to be changed"]))
