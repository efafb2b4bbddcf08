"""`rmgr admin add-node`, `identities`, `revoke`: who belongs to a secured cluster. The admin's directory decides who may."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rmgr.cli.admin.authority import GRACE_S, as_admin, authority_option
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import DURATION, listed, one_of
from rmgr.errors import NotConnected, UsageError
from rmgr.model.cluster.identity import Role, check_name
from rmgr.model.cluster.joining import RevokedWork

if TYPE_CHECKING:
    from rmgr.procedures.securing import KnownIdentity

_EXITS = "0 done, 2 usage, 3 nobody of that name, 4 not the admin's directory, 5 ZooKeeper cannot be reached"
_LASTS_S = 3600.0
_DAEMONS = ("starter", "watchdog", "submitter")
_WORKS = tuple(work.value for work in RevokedWork)
_TOLD = {
    RevokedWork.KEEP: "waiting work of this user is held, running work goes on (--work cancel ends all of it)",
    RevokedWork.HOLD: "waiting work of this user is held, running work stands still (--work keep or cancel decides)",
    RevokedWork.CANCEL: "all work of this user ends",
}
_ROLES = tuple(role.value for role in Role if role is not Role.JOIN)


@command(
    "add-node",
    examples="""\
    rmgr admin add-node n4
    rmgr admin add-node n4 --hosts n4.example.org,10.0.0.4 --expires 15m""",
    exits=_EXITS,
)
@click.argument("name")
@click.option("--hosts", metavar="A,B", default="", help="names and addresses of the machine  [NAME]")
@click.option("--role", type=one_of("role", _DAEMONS), default="starter", metavar="ROLE", help="starter, watchdog or submitter  [starter]")
@click.option("--expires", "lasts_s", type=DURATION, default=_LASTS_S, metavar="DURATION", help="how long the token works  [1h]")
@click.option("--renew", "renews", is_flag=True, help="new credentials for a machine that has joined: its certificates end")
@authority_option
def add_node(session: Session, name: str, hosts: str, role: str, lasts_s: float, renews: bool, authority: str | None) -> None:
    """Invites a machine: prints the one command that makes it a part of the cluster.

    The token in it works once, and ends. Whoever has it can take the machine's place: pass it on as you would a password.
    """
    from rmgr.adapters.identity.invitation import Token
    from rmgr.cli.display.render import emit
    from rmgr.procedures import securing
    from rmgr.runtime.secured import is_loopback

    check_name(name)
    ca = as_admin(session, authority)
    cluster, coordinator = session.config().cluster, session.zookeeper()
    endpoints = securing.watchdogs(coordinator)
    if endpoints and all(is_loopback(endpoint) for endpoint in endpoints):
        session.note(
            "every WatchDog listens on this machine alone: another one cannot join ([watchdog] listen = ADDRESS, or rmgr join --watchdog)"
        )
    if not endpoints:
        raise NotConnected("no WatchDog runs whom the new machine could ask", hint="rmgr status; rmgr watchdog")
    securing.withdraw(coordinator, name=name)
    draft = Token(
        ca=b"",
        certificate=b"",
        key=b"",
        invitation="",
        name=name,
        role=role,
        endpoints=endpoints,
        zk=cluster.zk,
        store=cluster.store,
        zookeeper_tls=session.config().security.zookeeper_tls,
        session_timeout_s=cluster.session_timeout_s,
    )
    named = listed(hosts) or (name,)
    token = securing.invite(coordinator, ca, draft, hosts=named, lasts_s=lasts_s, renews=renews)
    line = f"echo {token} | rmgr join -"  # the shell's own echo: a secret among a program's arguments would be seen by all
    if session.json:
        emit({"name": name, "role": role, "token": token, "command": line, "expires_in": lasts_s})
        return
    from rmgr.model.base.units import format_duration

    sys.stdout.write(f"{line}\n")
    session.note(f"type that on {name}, as the user who will run its {role}, within {format_duration(lasts_s)}; it works once")


@command("identities", examples="rmgr admin identities\nrmgr admin identities --json", exits=_EXITS)
@authority_option
def identities(session: Session, authority: str | None) -> None:
    """Lists whose keys the cluster knows: users and daemons that were here, machines that were invited, what was revoked."""
    from rmgr.cli.display.render import Column, Layout, emit, table
    from rmgr.procedures import securing

    ca = as_admin(session, authority)
    found = securing.identities(session.zookeeper(), ca.cert_pem)
    if session.json:
        emit({"identities": [_shape(one) for one in found]})
        return
    columns = (
        Column(name="NAME", text=lambda one: one.identity.name, is_id=True),
        Column(name="ROLE", text=lambda one: str(one.identity.role)),
        Column(name="KEY", text=lambda one: one.identity.key_id, is_id=True),
        Column(name="STATE", text=_state, state=True),
    )
    table(found, columns, Layout())


@command(
    "revoke",
    examples="""\
    rmgr admin revoke n4 --reason 'stolen'
    rmgr admin revoke ann --role user
    rmgr admin revoke ann --work cancel        # also later: ann's keys are revoked already, her work ends now
    rmgr admin revoke 5f0c2b61c0ffee00c0ffee00c0ffee00      # one key""",
    exits=_EXITS,
)
@click.argument("whom", metavar="NAME|KEY_ID")
@click.option("--role", type=one_of("role", _ROLES), metavar="ROLE", help="which one, where a name has several")
@click.option("--reason", metavar="TEXT", default="", help="kept with the revocation")
@click.option("--work", type=one_of("kind", _WORKS), metavar="cancel|hold|keep", help="what becomes of a user's running work  [keep]")
@click.option("--rotate/--no-rotate", "rotates", default=True, help="also give a daemon's role a new secret of ZooKeeper  [yes]")
@click.option("--grace", "grace_s", type=DURATION, default=GRACE_S, metavar="DURATION", help="how long the old secret stays good  [15s]")
@authority_option
def revoke(
    session: Session, whom: str, role: str | None, reason: str, work: str | None, rotates: bool, grace_s: float, authority: str | None
) -> None:
    """Believes a node or a user no longer, for ever.

    Their calls are refused; their sessions, logs and terminals end; work that they signed neither starts nor is tried again. A node
    is fenced and its work goes elsewhere. A daemon knows the secret that its role shares in ZooKeeper: that is rotated, so that
    the old one opens nothing any more.

    A user's waiting work is held (reason REVOKED), and what runs goes on to its end, as a hold or a limit does it in Slurm: hours
    of computing are not lost because a laptop was. With --work hold what runs stands still where it is, until you say one of the
    others; with --work cancel all of it ends.
    """
    from rmgr.cli.admin.rotate import rotate_role
    from rmgr.cli.display.render import emit
    from rmgr.procedures import securing

    if not whom.strip():
        raise UsageError("whom?", hint="a name or key id as rmgr admin identities lists it")
    ca = as_admin(session, authority)
    made = securing.revoke(
        session.zookeeper(),
        ca.cert_pem,
        whom,
        role=Role(role) if role else None,
        by=session.me,
        reason=reason,
        work=RevokedWork(work) if work else None,
    )
    for shared in sorted({one.role for one in made} & {Role.STARTER, Role.SUBMITTER}) if rotates else ():
        rotate_role(session, ca, shared, grace_s=grace_s)
    if session.json:
        emit({"revoked": [{"name": one.name, "role": one.role, "key": one.key_id, "work": one.work} for one in made]})
        return
    for one in made:
        sys.stdout.write(f"{one.role} {one.name} is revoked (key {one.key_id})\n")
    for told in sorted({one.work for one in made if one.work in _WORKS and not one.others}):
        session.note(_TOLD[RevokedWork(told)])
    for name in sorted({one.name for one in made if one.others}):
        session.note(f"{name} has other keys: what only this one has signed is refused, other work of this user is as it was")
    if any(one.role in (Role.USER, Role.OPERATOR) for one in made):
        session.note("who was made with --direct knows ZooKeeper's secret of gateways: rmgr admin rotate --role submitter")


def _state(one: KnownIdentity) -> str:
    if one.is_revoked:
        return "revoked"
    return "invited" if one.invited else "known"


def _shape(one: KnownIdentity) -> dict[str, str]:
    who = one.identity
    return {"name": who.name, "role": who.role, "key": who.key_id, "state": _state(one)}
