"""The look of `rmgr doctor` at credentials: whose they are, whether they can be used, and when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.errors import RmgrError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmgr.cli.checks import Check
    from rmgr.cli.context import Session

#: Certificates that end within so many days are mentioned.
SOON_DAYS = 30


def credentials(session: Session) -> Iterator[Check]:
    """Whose bundle it is; nothing where none is named: an open cluster."""
    from rmgr.adapters.pki import day
    from rmgr.cli.checks import Check

    try:
        mine = session.credentials()
    except RmgrError as error:
        yield Check(name="credentials", ok=False, detail=error.message, fix=error.hint)
        return
    if mine is None:
        yield Check(name="credentials", ok=True, detail="none: this is for an open cluster, on loopback")
        return
    who = mine.identity
    left_days = mine.days_left()
    fix = ""
    if left_days < SOON_DAYS:
        command = f"rmgr admin add-user {who.name}" if who.is_person else "rmgr admin rotate tls"
        fix = f"they end in {max(0, int(left_days))} days: ask the cluster's admin for new ones ({command})"
    detail = f"{who.role} {who.name} of the cluster {who.cluster}, until {day(mine.not_after_s)}; {mine.directory}"
    yield Check(name="credentials", ok=True, detail=detail, fix=fix)
