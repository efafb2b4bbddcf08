"""`rmgr admin rotate`: new secrets and new certificates while the cluster works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.admin_nodes import GRACE_S, as_admin, authority_option
from rmgr.cli.command import command
from rmgr.cli.context import Session
from rmgr.cli.params import DURATION, one_of
from rmgr.model.identity import Role

if TYPE_CHECKING:
    from rmgr.adapters.pki import Authority

_ROLES = ("starter", "submitter", "user", "operator")
_EXITS = "0 done, 2 usage, 4 not the admin's directory, 5 ZooKeeper cannot be reached"


@command(
    "rotate",
    examples="""\
    rmgr admin rotate                       # ZooKeeper's secret of Starters
    rmgr admin rotate --role submitter --grace 1m
    rmgr admin rotate --role user           # users with a way of their own to ZooKeeper need new bundles then""",
    exits=_EXITS,
)
@click.option("--role", type=one_of("role", _ROLES), default="starter", metavar="starter|submitter|user|operator", help="whose  [starter]")
@click.option("--grace", "grace_s", type=DURATION, default=GRACE_S, metavar="DURATION", help="how long the old secret stays good  [15s]")
@authority_option
def rotate(session: Session, role: str, grace_s: float, authority: str | None) -> None:
    """Gives a role a new secret for ZooKeeper. Daemons fetch it by themselves, unless their key was revoked; work goes on."""
    ca = as_admin(session, authority)
    rotate_role(session, ca, Role(role), grace_s=grace_s)
    if session.json:
        from rmgr.cli.render import emit

        emit({"role": role, "rotated": True})
    else:
        sys.stdout.write(f"role {role} has a new secret of ZooKeeper\n")


def rotate_role(session: Session, authority: Authority, role: Role, *, grace_s: float) -> None:
    """Rotates, telling each step; says whose bundles have to be made anew. After `as_admin`."""
    from rmgr.adapters.zk import ZkCoordinator
    from rmgr.client.rotating import SELF_RENEWING, rotate
    from rmgr.errors import NotConnected

    coordinator = session.coordinator()
    if not isinstance(coordinator, ZkCoordinator):
        raise NotConnected("secrets are rotated in ZooKeeper itself", hint="name it: --zk HOSTS")
    rotate(coordinator, authority, Path(session.config().security.dir), role, grace_s=grace_s, report=session.note)
    if role not in SELF_RENEWING:
        session.note(f"{role}s who reach ZooKeeper themselves need new bundles: rmgr admin add-user NAME; those behind a gateway do not")
