"""The look of `rmgr doctor` at credentials (whose they are, when they end) and at what ZooKeeper shows and allows to strangers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmgr.cli.display.render import clock
from rmgr.cli.doctor.check_result import CheckResult
from rmgr.errors import RmgrError
from rmgr.model.base.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmgr.cli.session.context import Session

#: Certificates that end within so many days are mentioned.
SOON_DAYS = 30
#: Quotas of ZooKeeper that are used up so far are mentioned.
_FULL_SHARE = 0.8


def credentials(session: Session) -> Iterator[CheckResult]:
    """Whose bundle it is; nothing where none is named: an open cluster."""
    try:
        mine = session.credentials()
    except RmgrError as error:
        yield CheckResult(name="credentials", ok=False, detail=error.message, fix=error.hint)
        return
    if mine is None:
        yield CheckResult(name="credentials", ok=True, detail="none: this is for an open cluster, on loopback")
        return
    who = mine.identity
    left_days = mine.days_left()
    fix = ""
    if left_days < SOON_DAYS:
        command = f"rmgr admin add-user {who.name}" if who.is_person else "rmgr admin rotate tls"
        left = f"in {counted(int(left_days), 'day')}" if left_days >= 1 else "within a day"
        fix = f"they end {left}: ask the cluster's admin for new ones ({command})"
    detail = f"{who.role} {who.name} of the cluster {who.cluster}, until {clock(round(mine.not_after_s * 1e6))}; {mine.directory}"
    if mine.zookeeper_auth is None:
        detail += "; for gateways"
    yield CheckResult(name="credentials", ok=True, detail=detail, fix=fix)
    if not session.config().cluster.uses_gateway:
        from rmgr.runtime.secured import zookeeper_security

        try:
            zookeeper_security(session.config(), mine)
        except RmgrError as error:
            yield CheckResult(name="credentials", ok=False, detail=error.message, fix=error.hint)


def talkative(name: str, words: set[str]) -> Iterator[CheckResult]:
    """A server that answers more four-letter words than rmgr needs: addresses of clients and paths on its disk, to whoever asks."""
    if words:
        detail = f"shows itself and its clients to everybody who reaches it ({', '.join(sorted(words))})"
        yield CheckResult(name=f"{name} words", ok=True, detail=detail, fix="4lw.commands.whitelist=srvr in zoo.cfg: rmgr needs no other")


def root(session: Session) -> Iterator[CheckResult]:
    """Whether strangers can fill ZooKeeper beside a secured cluster, and how full it is. Nothing in an open one, or behind a gateway."""
    from rmgr.adapters.zookeeper.root import look_at_root
    from rmgr.runtime.secured import zookeeper_security

    config = session.config()
    if config.cluster.uses_gateway or session.credentials() is None:
        return
    seen = look_at_root(*config.cluster.hosts_and_chroot(), zookeeper_security(config, session.credentials()))
    close = "rmgr admin init --close-root --zk HOSTS/PATH; and enforceQuota=true in zoo.cfg"
    if seen.is_open:
        detail = "anybody who reaches ZooKeeper may create below its /, without credentials, until its memory is full"
        yield CheckResult(name="zookeeper /", ok=True, detail=detail, fix=close)
    else:
        yield CheckResult(name="zookeeper /", ok=True, detail="closed to strangers")
    if not seen.used:
        yield CheckResult(name="zookeeper quotas", ok=True, detail="there are none: a user may fill its memory", fix=close)
        return
    shares = {
        place: max(there.znodes / max(1, limit.znodes), there.data_bytes / max(1, limit.data_bytes))
        for place, (there, limit) in seen.used.items()
    }
    fullest = max(shares, key=lambda place: shares[place])
    fix = "who has made so much there? rmgr jobs; a larger heap: rmgr admin init --close-root --zookeeper-heap SIZE"
    detail = f"{fullest} is the fullest subtree: {shares[fullest]:.0%} of its quota"
    yield CheckResult(name="zookeeper quotas", ok=True, detail=detail, fix=fix if shares[fullest] > _FULL_SHARE else "")
