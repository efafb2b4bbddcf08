"""`rmgr history`: work that has ended, from the data store and, the latest, from memory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import click

from rmgr.cli.display import shapes
from rmgr.cli.display.columns import HISTORY_COLUMNS
from rmgr.cli.display.render import Layout, clock, emit, iso, now_us, printable, table
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.session.tables import draw, filter_options, table_options
from rmgr.cli.words.moments import SINCE
from rmgr.cli.words.params import DURATION_US
from rmgr.cli.words.selectors import Filter, parse
from rmgr.client.queries import list_past, past_of
from rmgr.errors import NotFound, RmgrError, UsageError
from rmgr.model.views import JobView

_DEFAULT_LIMIT = 100
#: So many that are named are looked up one by one; for more of them the history is read through.
_READ_ALONE = 100


@command(
    "history",
    examples="""\
    rmgr history                            your last 100, newest first
    rmgr history 42; rmgr history last
    rmgr history --since 1d --state failed
    rmgr history -A -o jobid,user,name,exit,elapsed --sort=-elapsed
    rmgr history --json --limit 0           everything
    rmgr history purge --older-than 90d     removes old lines (operators; rmgr history purge --help)""",
    exits="0 ok, 3 no such id, 5 neither store nor ZooKeeper can be reached",
)
@click.argument("selectors", nargs=-1, metavar="[ID]...")
@click.option("-A", "--everyone", is_flag=True, help="of all users")
@click.option("--since", type=SINCE, metavar="TIME", help="ended after: 2h (ago), 16:00, 2026-11-30")
@click.option("--until", type=SINCE, metavar="TIME", help="ended before")
@click.option("--limit", type=click.IntRange(0), default=_DEFAULT_LIMIT, show_default=True, metavar="N", help="at most N, 0 = all")
@filter_options
@table_options
def history(
    session: Session,
    selectors: tuple[str, ...],
    everyone: bool,
    since: int | None,
    until: int | None,
    limit: int,
    chosen: Filter,
    layout: Layout,
    watch: bool,
) -> None:
    """Submissions that have ended: exit code, times, CPU time, memory, nodes. Newest first.

    A line stays for history_retention of the cluster's settings (365 days); rmgr history purge removes lines earlier.
    """

    def once() -> None:
        named, ranged = _wanted(session, selectors)
        wanted = named | ranged
        user = None if everyone or chosen.user or wanted else session.me
        found: list[JobView] = []
        for job in _newest_first(session, user if not chosen.user else chosen.user, wanted):
            if chosen.admits(job) and (since is None or job.ended_us >= since) and (until is None or job.ended_us <= until):
                found.append(job)
            if limit and len(found) >= limit:
                break
        missing = sorted(named - {job.id for job in found})
        if missing and not chosen.is_set and since is None and until is None and not 0 < limit <= len(found):
            raise NotFound(f"{missing[0]} is not in the history", hint=f"it may not have ended: rmgr show {missing[0]}")
        if session.json:
            emit({"history": [shapes.history(job) for job in found]})
        else:
            table(found, HISTORY_COLUMNS, layout)
            if not found and not watch:
                narrowed = chosen.is_set or since is not None or until is not None
                nothing = "nothing that matches has ended" if narrowed else "nothing has ended yet"
                session.note(nothing + ("" if everyone or chosen.user or wanted else "; -A shows everyone's"))

    draw(session, once, watch=watch)


def _wanted(session: Session, selectors: tuple[str, ...]) -> tuple[frozenset[int], frozenset[int]]:
    """Numbers that are named, and those of ranges, of which some may have ended; neither: all of them."""
    if not selectors:
        return frozenset(), frozenset()
    if "purge" in selectors:
        raise UsageError("purge comes right after history", hint="rmgr history purge --older-than 90d --json")
    selection = parse(selectors)
    if selection.tasks or selection.every:
        raise UsageError("history is listed by submission", hint="rmgr history 42 43, rmgr history 1-10, or rmgr tasks 42")
    ranged = frozenset(array.index_at(i) for array in selection.ranges for i in range(len(array)))
    newest = [job.id for job in islice(_newest_first(session, session.me), 1)] if selection.last else []
    if selection.last and not newest:
        raise NotFound("none of your submissions has ended yet", hint="rmgr jobs lists those that wait and run")
    return frozenset((*selection.ids, *newest)), ranged


def _newest_first(session: Session, user: str | None, wanted: frozenset[int] = frozenset()) -> Iterator[JobView]:
    """Ended work that is still in memory, then what the store has, each submission once. wanted: none but these; empty: all."""
    told: set[int] = set()
    try:
        recent = [job for job in session.query().jobs(ended=True, user=user or "") if job.state.is_final]
    except RmgrError as error:
        session.note(f"{error.message}; what has just ended may be missing here")
        recent = []
    for job in sorted(recent, key=lambda job: -job.id):
        if not wanted or job.id in wanted:
            told.add(job.id)
            yield job
    left = wanted - told
    if wanted and not left:
        return  # all of them are in memory
    if 0 < len(left) <= _READ_ALONE:  # a look at each, whatever the history has become
        past: Iterable[JobView] = filter(None, (past_of(session, number) for number in sorted(left, reverse=True)))
    else:
        past = list_past(session, user=user)
    for job in past:
        if job.id not in told and (not wanted or job.id in wanted) and user in {None, job.user}:
            told.add(job.id)
            yield job
            if len(told) == len(wanted):
                return


# -- `rmgr history purge` ------------------------------------------------------------------------------------------------------


@command(
    "purge",
    examples="""\
    rmgr history purge --older-than 90d --dry-run   how many lines would go, of whom
    rmgr history purge --older-than 90d
    rmgr history purge --before 2026-01-01 --user anna""",
    exits="0 ok (nothing to remove, too), 2 usage, 4 not an operator, 5 store unavailable, 6 --timeout ran out (run it again)",
)
@click.option("--older-than", "age_us", type=DURATION_US, metavar="DURATION", help="ended longer ago than this: 90d, 12h")
@click.option("--before", "before_us", type=SINCE, metavar="TIME", help="ended before: 90d (ago), 16:00, 2026-01-01")
@click.option("--user", metavar="NAME", help="only this user's  [everybody's]")
@click.option("--dry-run", is_flag=True, help="say what would go, remove nothing")
def purge(session: Session, age_us: int | None, before_us: int | None, user: str | None, dry_run: bool) -> None:
    """Removes submissions that ended before a moment from the history, and so from `rmgr report`. For operators.

    What ended just now is still listed until it leaves ZooKeeper (retention of the cluster's settings, 1h). Logs and
    results have retentions of their own (rmgr config show --cluster); named values stay.
    """
    from rmgr.procedures.history import ended_before, forget

    if (age_us is None) == (before_us is None):
        raise UsageError("before when? one of --older-than and --before", hint="rmgr history purge --older-than 90d --dry-run")
    limit_us = now_us() - age_us if age_us is not None else before_us
    assert limit_us is not None
    if not dry_run:
        from rmgr.cli.control.operate import for_operators

        for_operators(session, "purging the history")
    store = session.data_store()
    users: Counter[str] = Counter()
    for view in _chosen(session, ended_before(store, limit_us, on_unreadable=session.note, timeout_s=_left_s(session)), user):
        if not dry_run:
            forget(store, view, timeout_s=_left_s(session))
        users[view.user] += 1
    told = [{"user": name, "submissions": count} for name, count in sorted(users.items())]
    if session.json:
        removed = 0 if dry_run else users.total()
        emit({"found": users.total(), "removed": removed, "before": iso(limit_us), "dry_run": dry_run, "users": told})
        return
    verb = "would be removed" if dry_run else "removed"
    whose = f" ({', '.join(f'{name} {count}' for name, count in sorted(users.items()))})" if users else ""
    sys.stdout.write(f"{users.total()} ended before {clock(limit_us)}: {verb}{printable(whose)}\n")


def _chosen(session: Session, views: Iterator[JobView], user: str | None) -> Iterator[JobView]:
    for view in views:
        session.left_s()  # raises when --timeout has run out
        if user is None or view.user == user:
            yield view


def _left_s(session: Session) -> float:
    return session.left_s(30.0) or 30.0
