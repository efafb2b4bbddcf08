"""`rmgr update`: other terms for work that was sent, and another time limit for what runs; one commit a submission (UPDATE)."""

from __future__ import annotations

import sys
from typing import Any

import click

from rmgr.cli.control.gate import select
from rmgr.cli.display import shapes
from rmgr.cli.display.render import clock, emit, printable
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.submit.options import MEMORY, parse_after
from rmgr.cli.words.moments import BEGINS
from rmgr.cli.words.params import TIME_LIMIT_US, Parsed, listed
from rmgr.cli.words.placed_options import BEGIN
from rmgr.cli.words.selectors import Filter
from rmgr.coord.views.asked import changes_in_words, differences
from rmgr.errors import Infeasible, NotFound, PermissionDenied, RmgrError, StateConflict, UsageError
from rmgr.model.tasks.block import PRIORITY_RANGE
from rmgr.model.tasks.submission import Dependency, Phase, Terms


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
0 ok (what stays as it is is listed with the reason), 2 usage or infeasible, 3 no such id, 4 not yours,
5 ZooKeeper cannot be reached""",
)
@click.argument("selectors", nargs=-1, metavar="SELECTOR...", required=True)
@click.option(
    "--priority",
    type=click.IntRange(-PRIORITY_RANGE, PRIORITY_RANGE),
    metavar="N",
    help="higher goes first; its user may lower it, an operator raise it",
)
@click.option("-t", "--time", "time_us", type=TIME_LIMIT_US, metavar="TIME", help="limit of one task; of what runs: see below")
@click.option("--mem", "memory_bytes", type=MEMORY, metavar="SIZE", help="memory of one task, as 512M or 2G")
@click.option("-c", "--cores", type=click.IntRange(1, 99_999), metavar="C", help="cores of one task, or process, while nothing of it runs")
@click.option("-q", "--queue", metavar="NAME", help="another queue of the same kind, while nothing of it runs")
@click.option("-J", "--name", metavar="NAME", help="name of the work")
@click.option("--begin", "begin_us", type=BEGIN, metavar="TIME", help=f"not before, of placed jobs: {BEGINS}")
@click.option("-d", "--after", type=Parsed("dependencies", _after_or_none), metavar="ok:ID,...", help="wait for these instead; none")
@click.option("--features", metavar="A,B", help='only on nodes with all of these; "" = on any')
def update(session: Session, selectors: tuple[str, ...], features: str | None, **values: Any) -> None:
    """Changes waiting work: what was given, and nothing else; prints old -> new.

    What runs keeps all but its time limit: its user may shorten that, and an operator lengthen it. An operator may change
    priority and time limit of everybody's work. Cores and queue are those of all of it: they change while nothing of it runs.
    rmgr show ID tells who has changed what, and when.
    """
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
    changes: dict[str, dict[str, Any]] = {}
    unchanged: dict[str, str] = {}
    refused: list[RmgrError] = []
    for number in numbers:
        try:
            changed, why = _update(session, number, terms)
        except (UsageError, Infeasible, NotFound, PermissionDenied, StateConflict) as error:  # of this one: the others may have it
            refused.append(error)
            changed, why = {}, error.message
        except RmgrError:
            for done, what in changes.items():  # before it is said that no more can be done
                session.note(f"{done}: {changes_in_words(what, clock)}")
            raise
        if why:
            unchanged[str(number)] = why
        else:
            changes[str(number)] = changed
    if refused and len(refused) == len(numbers):
        raise refused[0]
    _tell(session, changes, unchanged)


def _update(session: Session, number: int, terms: Terms) -> tuple[dict[str, Any], str]:
    """(what differs now, why nothing does). Raises as `UpdateSubmission`."""
    from rmgr.cli.control.operate import read_settings
    from rmgr.client.identity import update
    from rmgr.daemons.leader.placement.pipeline import idle_priority

    signer = session.signer()
    timeout_s = session.left_s(30.0) or 30.0
    done = update(session.asks(), number, terms, signer=signer, timeout_s=timeout_s)
    if done.unchanged or done.before is None or done.after is None:
        return {}, done.unchanged
    if done.after.phase is not Phase.HELD and not session.query().has_leader():
        session.note(f"{number}: a WatchDog that leads orders its blocks by this, and tells what runs; there is none just now")
    if terms.priority is not None and (told := idle_priority(read_settings(session)[0], done.after.queue)):
        session.note(f"{number}: {told}")
    return differences(done.before, done.after), ""


def _tell(session: Session, changes: dict[str, dict[str, Any]], unchanged: dict[str, str]) -> None:
    if session.json:
        told = {number: shapes.changed(changed) for number, changed in changes.items()}
        emit({"changed": list(changes), "unchanged": [{"id": id_, "why": why} for id_, why in unchanged.items()], "changes": told})
        return
    for number, changed in changes.items():
        sys.stdout.write(f"{number}: {printable(changes_in_words(changed, clock))}\n")
    for number, why in unchanged.items():
        session.note(f"{number}: {why}")
    if not changes and not unchanged:
        session.note("nothing is there to be changed")
