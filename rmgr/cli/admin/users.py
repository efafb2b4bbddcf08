"""`rmgr admin add-user`, `add-server`: credentials for a person, and for a server of calls."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rmgr.cli.admin.authority import as_admin, authority_option, open_authority
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.model.cluster.identity import Role, check_name

#: What --direct means, in one sentence.
_DIRECT = (
    "whoever has this bundle is trusted with everybody's state: it holds ZooKeeper's secret of role submitter, as a gateway does "
    "(and runs no code as somebody else, nor forges results); SECURITY.md says more"
)


@command(
    "add-user",
    examples="""\
    rmgr admin add-user ann
    rmgr admin add-user ann --days 90
    rmgr admin add-user portal --direct       # trusted with everybody's state: an application, the admin
    rmgr admin add-user bob --operator --out /mnt/usb/bob""",
    exits="0 made, 2 a name that cannot be one, or a place that is taken, 4 not the admin's directory",
)
@click.argument("name")
@click.option("--operator", is_flag=True, help="may act on everybody's work, drain nodes, change settings")
@click.option("--direct", is_flag=True, help="with a gateway's secret of ZooKeeper: trusted with everybody's state")
@click.option("--days", type=click.IntRange(1, 3650), default=365, metavar="N", help="how long they are valid  [365]")
@click.option("--out", metavar="DIR", help="where they go  [AUTHORITY/bundles/NAME]")
@authority_option
def add_user(session: Session, name: str, operator: bool, direct: bool, days: int, out: str | None, authority: str | None) -> None:
    """Makes credentials for a user: a directory to hand over, by which rmgr knows the user.

    The name is that of the user's account on the nodes: where Starters run as root, work runs as that user.
    Users come through a gateway (rmgr submitter), which shows and changes their own work only.

    With --direct the bundle holds ZooKeeper's secret of role submitter, as a gateway's does, and works without one. Whoever has it
    is trusted with everybody's state: reads all submissions, can spoil, cancel and hold them. It is for the admin, for one-user
    clusters (rmgr dev) and for applications that are trusted. Revoke one with rmgr admin revoke, then rotate --role submitter.
    """
    from rmgr.adapters.identity.credentials import write_files
    from rmgr.adapters.identity.pki import issue
    from rmgr.cli.display.render import emit

    ca, where = open_authority(session, authority)
    role = Role.OPERATOR if operator else Role.USER
    place = Path(out).expanduser() if out else where / "bundles" / check_name(name)
    write_files(place, issue(ca, check_name(name), role, days=days, zookeeper=direct))
    if session.json:
        emit({"name": name, "role": role, "bundle": str(place), "direct": direct})
        return
    sys.stdout.write(f"{role} {name}: credentials in {place}\n")
    session.note(_DIRECT if direct else f"{name} comes through a gateway: --gateway HOST:PORT or RMGR_GATEWAY")
    session.note(f"hand it over as a secret (tar czf - -C {place} .); in ~/.config/rmgr/bundle of {name} rmgr finds it by itself")


@command(
    "add-server",
    examples="""\
    rmgr admin add-server j90
    rmgr admin add-server j90 --days 90 --out /mnt/usb/j90""",
    exits="0 made, 2 a name that cannot be one, or a place that is taken, 4 not the admin's directory, 5 ZooKeeper cannot be reached",
)
@click.argument("name")
@click.option("--days", type=click.IntRange(1, 3650), default=730, metavar="N", help="how long they are valid  [730]")
@click.option("--out", metavar="DIR", help="where they go  [AUTHORITY/bundles/server-NAME]")
@authority_option
def add_server(session: Session, name: str, days: int, out: str | None, authority: str | None) -> None:
    """Makes credentials for a server of calls (rmgr server --name NAME): a directory to hand over.

    They open its stream to gateways, and nothing else: it knows no secret of ZooKeeper, and may not call, submit or read. The cluster
    knows its key from now on: rmgr admin revoke NAME ends its streams.
    """
    from rmgr.adapters.identity.credentials import Credentials, write_files
    from rmgr.adapters.identity.pki import issue
    from rmgr.adapters.identity.trust import publish
    from rmgr.cli.display.render import emit
    from rmgr.runner.host.removal import remove_tree

    ca, where = open_authority(session, authority)
    as_admin(session, authority)
    coordinator = session.zookeeper()
    place = Path(out).expanduser() if out else where / "bundles" / f"{Role.SERVER}-{check_name(name)}"
    write_files(place, issue(ca, check_name(name), Role.SERVER, days=days, zookeeper=False))
    try:
        publish(coordinator, Credentials.load(place, roles=(Role.SERVER,)))
    except BaseException:
        remove_tree(place)  # nobody could revoke a key that the cluster does not know
        raise
    if session.json:
        emit({"name": name, "role": Role.SERVER, "bundle": str(place)})
        return
    sys.stdout.write(f"server {name}: credentials in {place}\n")
    session.note(f"hand it over as a secret (tar czf - -C {place} .), and start there: rmgr server --name {name} --security-dir DIR")
