"""`rmgr admin rotate`: new secrets and new certificates while the cluster works."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.admin.authority import GRACE_S, as_admin, authority_option, open_authority
from rmgr.cli.display.render import emit
from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import DURATION, one_of
from rmgr.errors import ConfigError, PermissionDenied, UsageError
from rmgr.model.cluster.identity import Role

if TYPE_CHECKING:
    from rmgr.adapters.identity.pki import Authority
    from rmgr.adapters.zookeeper.client import ZkCoordinator

_ROLES = ("starter", "submitter")
_EXITS = "0 done, 2 usage, 4 not the admin's directory, 5 ZooKeeper cannot be reached"


@command(
    "rotate",
    examples="""\
    rmgr admin rotate                       # ZooKeeper's secret of Starters
    rmgr admin rotate zookeeper --role submitter --grace 1m
    rmgr admin rotate tls /srv/rmgr/authority/bundles/watchdog     # new keys and certificates in a bundle on this machine
    rmgr admin add-node n4 --renew          # ... on another one""",
    exits=_EXITS,
)
@click.argument("what", metavar="[zookeeper|tls]", type=one_of("kind of secret", ("zookeeper", "tls")), default="zookeeper")
@click.argument("bundles", metavar="[DIR]...", nargs=-1)
@click.option("--role", type=one_of("role", _ROLES), default="starter", metavar="ROLE", help="whose secret  [starter]")
@click.option("--grace", "grace_s", type=DURATION, default=GRACE_S, metavar="DURATION", help="how long the old secret stays good  [15s]")
@authority_option
def rotate(session: Session, what: str, bundles: tuple[str, ...], role: str, grace_s: float, authority: str | None) -> None:
    """Gives a role a new secret for ZooKeeper, or a bundle new keys and certificates before the old ones end.

    Roles with a secret that can be rotated: starter, and submitter: of gateways, and of users who were made with --direct.
    Daemons fetch a new secret by themselves, unless their key was revoked; work goes on. After tls restart the daemon.
    Bundles beside the authority get the new secret at once; users with --direct elsewhere need theirs again.
    """
    if what == "tls":
        _renew_bundles(session, bundles, authority)
        return
    if bundles:
        raise UsageError(f"{bundles[0]}: secrets of ZooKeeper are those of a role, not of a bundle", hint="rmgr admin rotate --role ROLE")
    ca = as_admin(session, authority)
    rotate_role(session, ca, Role(role), grace_s=grace_s)
    if session.json:
        emit({"role": role, "rotated": True})
    else:
        sys.stdout.write(f"role {role} has a new secret of ZooKeeper\n")


def _renew_bundles(session: Session, bundles: tuple[str, ...], authority: str | None) -> None:
    from rmgr.adapters.identity.credentials import write_files
    from rmgr.adapters.identity.pki import hosts_in, issue, named_in

    ca, _ = open_authority(session, authority)
    if not bundles:
        raise UsageError("which bundle?", hint="rmgr admin rotate tls DIR...; of another machine: rmgr admin add-node NAME --renew")
    renewed = []
    for place in map(Path, bundles):
        try:
            who, hosts = named_in((place / "sign.crt").read_bytes()), hosts_in((place / "tls.crt").read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{place} is not a bundle: {error}", hint="its directory holds sign.crt, tls.crt and their keys") from None
        if who.cluster != ca.cluster:
            raise ConfigError(f"{place} is a bundle of the cluster {who.cluster}, not of {ca.cluster}", hint="--authority DIR")
        has_secret = (place / "zookeeper.secret").exists()
        write_files(place, issue(ca, who.name, who.role, hosts=hosts, zookeeper=has_secret), replace=True)
        renewed.append({"name": who.name, "role": who.role, "bundle": str(place)})
        if not session.json:
            sys.stdout.write(f"{who.role} {who.name} has new keys and certificates in {place}: restart it\n")
    if session.json:
        emit({"renewed": renewed})


def rotate_role(session: Session, authority: Authority, role: Role, *, grace_s: float) -> None:
    """Rotates, telling each step; says whose bundles have to be made anew. After `as_admin`."""
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.errors import NotConnected
    from rmgr.procedures.rotating import rotate

    coordinator = session.zookeeper()
    if not isinstance(coordinator, ZkCoordinator):
        raise NotConnected("secrets are rotated in ZooKeeper itself", hint="name it: --zk HOSTS")
    where = Path(session.config().security.dir)
    renewed = rotate(coordinator, authority, where, role, grace_s=grace_s, report=session.note)
    for place in refresh_bundles(coordinator, renewed, where, role):
        session.note(f"{place} has the new secret")
    if role is Role.SUBMITTER:
        session.note(f"users who were made with --direct need theirs again, from {where / 'bundles'}; those behind a gateway do not")


def refresh_bundles(coordinator: ZkCoordinator, authority: Authority, where: Path, role: Role) -> list[Path]:
    """Gives the bundles with a role's secret that lie on this machine the new one, but none whose key was revoked; returns them.

    A bundle whose daemon does not run, or never met a WatchDog, could not fetch it by itself.
    """
    from rmgr.adapters.identity.credentials import write_files
    from rmgr.adapters.identity.pki import credential, named_in, verify_certificate
    from rmgr.config import user_bundle
    from rmgr.procedures.securing import identities

    revoked = {one.identity.key_id for one in identities(coordinator, authority.cert_pem) if one.is_revoked}
    files = {"zookeeper.secret": credential(role, authority.secrets[role]).encode(), "roles.json": authority.files()["roles.json"]}
    done = []
    for place in (*sorted((where / "bundles").glob("*")), user_bundle()):
        if not (place / "zookeeper.secret").exists():
            continue
        with contextlib.suppress(OSError, ValueError, PermissionDenied):  # not a bundle, another cluster's, or out of date
            pem = (place / "sign.crt").read_bytes()
            if named_in(pem).role.at_zookeeper == role and verify_certificate(pem, authority.cert_pem).identity.key_id not in revoked:
                write_files(place, files, replace=True)
                done.append(place)
    return done
