"""`rmgr history purge`: removes lines of the history before the cluster's settings would (`history_retention`)."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from rmgr.cli.control.operate import for_operators
from rmgr.cli.display.render import clock, emit, iso, now_us, printable
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.moments import parse_since
from rmgr.cli.words.params import DURATION_US, Parsed
from rmgr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmgr.model.views import JobView


@command(
    "purge",
    examples="""\
    rmgr history purge --older-than 90d --dry-run   how many lines would go, of whom
    rmgr history purge --older-than 90d
    rmgr history purge --before 2026-01-01 --user anna""",
    exits="0 ok (nothing to remove, too), 2 usage, 4 not an operator, 5 store unavailable, 6 --timeout ran out (run it again)",
)
@click.option("--older-than", "age_us", type=DURATION_US, metavar="DURATION", help="ended longer ago than this: 90d, 12h")
@click.option("--before", "before_us", type=Parsed("time", parse_since), metavar="TIME", help="ended before: 90d (ago), 16:00, 2026-01-01")
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
