"""The look of `rmgr doctor` at credentials (whose they are, when they end) and at what ZooKeeper shows and allows to strangers."""

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


def talkative(name: str, words: set[str]) -> Iterator[Check]:
    """A server that answers more four-letter words than rmgr needs: addresses of clients and paths on its disk, to whoever asks."""
    from rmgr.cli.checks import Check

    if words:
        detail = f"tells everybody who reaches it about itself and its clients ({', '.join(sorted(words))})"
        yield Check(name=f"{name} words", ok=True, detail=detail, fix="4lw.commands.whitelist=srvr in zoo.cfg: rmgr needs no other")


def root(session: Session) -> Iterator[Check]:
    """Whether strangers can fill ZooKeeper beside a secured cluster. Nothing in an open one, or behind a gateway."""
    from rmgr.adapters.zk_root import is_open
    from rmgr.cli.checks import Check
    from rmgr.runtime.secured import zookeeper_security

    config = session.config()
    if config.cluster.uses_gateway or session.credentials() is None:
        return
    hosts, _ = config.cluster.hosts_and_chroot()
    if is_open(hosts, zookeeper_security(config, session.credentials())):
        detail = "anybody who reaches ZooKeeper may create below its /, without credentials, until its memory is full"
        yield Check(name="zookeeper /", ok=True, detail=detail, fix="rmgr admin init --close-root; and enforceQuota=true in zoo.cfg")
    else:
        yield Check(name="zookeeper /", ok=True, detail="closed to strangers")
