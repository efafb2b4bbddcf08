"""Who belongs to a secured cluster: `rmgr admin init` makes its authority, `rmgr join` takes a machine in; `rmgr admin add-node`,
`add-user`, `add-server`, `identities`, `revoke`, `rotate`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmgr.cli.display.render import Column, Layout, emit, table
from rmgr.cli.session import Session, command
from rmgr.cli.words.params import DURATION, SIZE, listed, one_of
from rmgr.config import authority_directory, toml_value, user_bundle, user_directory
from rmgr.coord.protocol.acl import HEAP_MIB
from rmgr.errors import ConfigError, NotConnected, PermissionDenied, Unavailable, UsageError
from rmgr.model.identity import RevokedWork, Role, check_name
from rmgr.model.units import format_duration

if TYPE_CHECKING:
    from rmgr.adapters.identity.invitation import Token
    from rmgr.adapters.identity.pki import Authority
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.adapters.zookeeper.tree import RootReport
    from rmgr.procedures.securing import KnownIdentity

_MOST = 64 * 1024
#: Timeout in seconds for one more connection to the WatchDog that has just answered.
_CONNECT_S = 5.0
_DAEMONS = (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)
#: Roles that a machine may be invited for, the usual one first.
_HOSTED = ("starter", "watchdog", "submitter")
_EXITS = "0 done, 2 usage, 3 nobody of that name, 4 not the admin's directory, 5 ZooKeeper cannot be reached"
_LASTS_S = 3600.0
_WORKS = tuple(work.value for work in RevokedWork)
_TOLD = {
    RevokedWork.KEEP: "waiting work of this user is held, running work goes on (--work cancel ends all of it)",
    RevokedWork.HOLD: "waiting work of this user is held, running work stands still (--work keep or cancel decides)",
    RevokedWork.CANCEL: "all work of this user ends",
}
_ROLES = tuple(role.value for role in Role if role is not Role.JOIN)
#: What --direct means, in one sentence.
_DIRECT = (
    "whoever has this bundle is trusted with everybody's state: it holds ZooKeeper's secret of role submitter, as a gateway does "
    "(and runs no code as somebody else, nor forges results); SECURITY.md says more"
)
_ROTATED_ROLES = ("starter", "submitter")
_ROTATE_EXITS = "0 done, 2 usage, 4 not the admin's directory, 5 ZooKeeper cannot be reached"
#: Seconds that daemons have to fetch a new secret.
GRACE_S = 15.0


@command(
    "join",
    examples="""\
    echo rmgr1.kpQE... | rmgr join -            # as rmgr admin add-node printed it
    rmgr join token.txt --dir /etc/rmgr""",
    exits="0 joined, 2 the token is damaged or the directory is taken, 4 the token was used or has expired, 5 no WatchDog answers",
)
@click.argument("source", metavar="FILE", default="-")
@click.option("--dir", "directory", metavar="DIR", help="where credentials and configuration go  [/etc/rmgr for root, else ~/.config/rmgr]")
@click.option("--watchdog", "endpoints", multiple=True, metavar="HOST:PORT", help="ask this one if the token's addresses cannot be reached")
def join(session: Session, source: str, directory: str | None, endpoints: tuple[str, ...]) -> None:
    """Makes this machine a part of a secured cluster: fetches its credentials and writes its configuration.

    A Starter will listen on the address by which this machine reached the WatchDog, so that output, ranks and terminals work from
    other machines ([starter] listen in the configuration that is written).

    The token is read from FILE, or with - from standard input. A lost answer costs nothing: the same command again, on
    the same machine, gets the same credentials.
    """
    from rmgr.adapters.identity import invitation
    from rmgr.adapters.identity.credentials import endpoints_file, write_files
    from rmgr.adapters.rpc.services import redeem
    from rmgr.procedures.securing import purpose
    from rmgr.runtime.secured import address_towards

    told = invitation.decode(_read(session, source))
    where = Path(directory).expanduser() if directory else _default_directory()
    bundle, config = where / f"{told.role}.d", where / f"{told.role}.toml"
    renews = _has_joined(told, bundle, config)
    nonce = _nonce(where, told.invitation)
    asked = endpoints or told.endpoints
    try:
        timeout_s = session.left_s(20.0)
        name, role, sealed, answered = redeem(asked, invitation.tls_pair(told), nonce.read_text(), timeout_s=timeout_s)
    except PermissionDenied as error:
        nonce.unlink()  # the nonce opens nothing any more
        if renews:
            error.hint = f"this machine is {told.role} {told.name} already: rmgr {told.role} --config {config}"
        raise
    except Unavailable as error:
        raise Unavailable(
            f"no WatchDog answers at {', '.join(asked)}: {error.message}",
            hint="does one run there ([watchdog] listen), and does this machine reach it? --watchdog HOST:PORT names another; "
            "the token stays good",
        ) from None
    files = invitation.unseal_files(told.key, purpose(name), base64.b64decode(sealed))
    write_files(bundle, files | endpoints_file(asked), replace=renews)
    listens = ""
    if not config.exists():
        listens = address_towards(answered, timeout_s=session.left_s(_CONNECT_S)) if role is Role.STARTER else ""
        config.write_text(_config(told, bundle, listens))
    nonce.unlink(missing_ok=True)
    start = f"rmgr {role} --config {config}"
    reached = f"others will reach it at {listens} ([starter] listen there)\n" if listens else ""
    joined = f"this machine is {role} {name} now: credentials in {bundle}, configuration in {config}\n{reached}start it: {start}\n"
    session.answer(
        {"name": name, "role": role, "bundle": str(bundle), "config": str(config), "listen": listens, "command": start},
        f"{role} {name} has new credentials in {bundle}: restart it\n" if renews else joined,
    )


def _has_joined(told: Token, bundle: Path, config: Path) -> bool:
    """Returns whether this machine already has the identity that the token gives. Raises ConfigError if it has another one."""
    from rmgr.adapters.identity.invitation import tls_pair
    from rmgr.adapters.identity.pki import cluster_of, named_in

    if not (bundle / "sign.crt").exists():
        if config.exists():
            raise ConfigError(f"{config} is there already", hint="another --dir, or remove it first")
        return False
    who, cluster = named_in((bundle / "sign.crt").read_bytes()), cluster_of(tls_pair(told).ca)
    if (who.name, who.role, who.cluster) != (told.name, told.role, cluster):
        raise ConfigError(
            f"{bundle} is that of {who.role} {who.name} of {who.cluster}: this machine has joined a cluster",
            hint="another --dir, or remove it first",
        )
    return True


def _read(session: Session, source: str) -> str:
    """Returns the token's text: from standard input, a file, or the argument itself (visible to everybody on this machine)."""
    if source == "-":
        if sys.stdin.isatty():
            session.note("paste the token, then Enter:")
            return sys.stdin.readline()
        return sys.stdin.read(_MOST)
    if source.startswith("rmgr1."):
        session.note("a token among the arguments can be seen by everybody on this machine; better: echo TOKEN | rmgr join -")
        return source
    try:
        with open(source, encoding="utf-8-sig") as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the token cannot be read from {source}: {why}", hint="echo TOKEN | rmgr join -") from None


def _default_directory() -> Path:
    if os.geteuid() == 0:
        return Path("/etc/rmgr")
    return user_directory()


def _nonce(where: Path, number: str) -> Path:
    """Returns the file with the name that this machine uses while it redeems a token; made anew if it was cut short."""
    from rmgr.coord.ops.membership import check_nonce

    where.mkdir(parents=True, exist_ok=True)
    path = where / f".{number}"
    try:
        check_nonce(path.read_text())
    except (OSError, UnicodeDecodeError, PermissionDenied):
        draft = where / f".{number}.new"
        draft.unlink(missing_ok=True)
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_hex(16))
        draft.replace(path)
    return path


def _config(told: Token, bundle: Path, listens: str) -> str:
    """Returns the configuration of the daemon that this machine will run. listens: the address of a Starter, "" for loopback."""
    lines = [
        f"# Written by rmgr join for {told.role} {told.name}; deploy/rmgr.toml explains every key.",
        "[cluster]",
        f"zk = {toml_value(told.zk)}",
        f"store = {toml_value(told.store)}",
        f"session_timeout_s = {told.session_timeout_s}",
        "",
        "[security]",
        f"dir = {toml_value(str(bundle))}",
        f"zookeeper_tls = {str(told.zookeeper_tls).lower()}",
    ]
    if told.role == "starter":
        lines += ["", "[starter]", f"node = {toml_value(told.name)}"]
        lines += [f"listen = {toml_value(f'{listens}:0')}"] if listens else []
    return "\n".join(lines) + "\n"


# -- `rmgr admin init` ---------------------------------------------------------------------------------------------------------


@command(
    "init",
    examples="""\
    rmgr admin init
    rmgr admin init --dir /srv/rmgr/authority --cluster lab --hosts head,10.0.0.1
    rmgr admin init --servers zk1,zk2,zk3       # and certificates for ZooKeeper's servers
    rmgr admin init --close-root --zk zk1:2281,zk2:2281/rmgr/lab    # nobody else makes anything there""",
    exits="0 everything is there (made now, or before), 2 what is there belongs to another cluster or cannot be used",
)
@click.option("--dir", "directory", metavar="DIR", help="the authority's directory: keep it safe  [~/.config/rmgr/authority]")
@click.option("--cluster", metavar="NAME", default="", help="name of the cluster in its certificates  [a random one]")
@click.option("--user", metavar="NAME", help="the first user, an operator  [you]")
@click.option("--user-dir", metavar="DIR", help="directory for the credentials  [~/.config/rmgr/bundle, where rmgr looks]")
@click.option("--hosts", metavar="A,B", default="", help="names and addresses in the daemons' certificates, besides localhost")
@click.option("--servers", metavar="A,B", default="", help="host names of ZooKeeper and Cassandra servers that need certificates")
@click.option("--close-root", is_flag=True, help="close ZooKeeper's own / to strangers, and set quotas that protect its memory")
@click.option("--zookeeper-heap", "heap_bytes", type=SIZE, default=HEAP_MIB << 20, metavar="SIZE", help="heap of its servers  [1000M]")
def init(
    session: Session,
    directory: str | None,
    cluster: str,
    user: str | None,
    user_dir: str | None,
    hosts: str,
    servers: str,
    close_root: bool,
    heap_bytes: int,
) -> None:
    """Creates a cluster's certificate authority, credentials for its daemons, and the first user's.

    It never overwrites anything: repeat it to see what exists. Keys are files of mode 0600.
    """
    from rmgr.adapters.identity.credentials import LOCAL_HOSTS, ensure_authority, ensure_bundle, ensure_server

    where = (Path(directory).expanduser() if directory else authority_directory()).resolve()
    name = check_name(user or session.me)
    authority, is_new = ensure_authority(where, cluster=cluster)
    made: list[Path] = []
    kept: list[Path] = []
    (made if is_new else kept).append(where)
    named = (*listed(hosts), *LOCAL_HOSTS)
    for role in _DAEMONS:
        bundle = where / "bundles" / role.value
        (made if ensure_bundle(authority, bundle, role.value, role, hosts=named) else kept).append(bundle)
    own, is_made = _first_user(session, authority, where, name, user_dir)
    (made if is_made else kept).append(own)
    for server in listed(servers):
        place = where / "servers" / server
        (made if ensure_server(authority, place, server, (server,)) else kept).append(place)
    root = _close_root(session, where, heap_bytes) if close_root else None
    document: dict[str, Any] = {"cluster": authority.cluster, "dir": str(where), "made": [*map(str, made)], "kept": [*map(str, kept)]}
    document["user"] = {"name": name, "dir": str(own)}
    lines = [f"made   {path}\n" for path in made] + [f"there  {path}\n" for path in kept]
    if root is not None:
        document |= {"closed": list(root.closed), "quotas": list(root.quotas)}
        lines.append(f"closed {' '.join(root.closed) or 'before'}; quotas of {len(root.quotas)} subtrees set now\n")
    lines.append(_next_steps(authority, where, name, own, has_servers=bool(servers), is_closed=root is not None))
    session.answer(document, "".join(lines))


def _close_root(session: Session, where: Path, heap_bytes: int) -> RootReport:
    """Closes ZooKeeper's root with the admin's own bundle. Raises as `close_zookeeper`."""
    from rmgr.runtime.secured import close_zookeeper

    config = session.config({"security": {"dir": str(where)}})
    mine = session.credentials()
    if not config.cluster.zk or mine is None:
        raise NotConnected("which ZooKeeper is to be closed?", hint="name it, with the cluster's path: --zk HOSTS/rmgr/NAME or RMGR_ZK")
    return close_zookeeper(config, mine, heap_mib=heap_bytes >> 20)


def _first_user(session: Session, authority: Authority, where: Path, name: str, user_dir: str | None) -> tuple[Path, bool]:
    """Returns the user's bundle and whether it was made: where rmgr looks, if it is the caller's own and the place is free."""
    from rmgr.adapters.identity.credentials import ensure_bundle

    mine = Path(user_dir).expanduser().resolve() if user_dir else user_bundle() if name == session.me else None
    if mine is not None:
        try:
            return mine, ensure_bundle(authority, mine, name, Role.OPERATOR)
        except ConfigError as error:
            if user_dir:
                raise
            session.note(f"{error.message}; {error.hint}")
    other = where / "bundles" / f"{Role.OPERATOR}-{name}"
    return other, ensure_bundle(authority, other, name, Role.OPERATOR)


def _next_steps(authority: Authority, where: Path, name: str, own: Path, *, has_servers: bool, is_closed: bool) -> str:
    lines = [f"\nThe cluster is called {authority.cluster}. {where / 'ca.key'} is its root: back it up, and let nobody read it.\n"]
    if has_servers:
        lines.append(f"ZooKeeper: take {where}/servers/HOST to each server, and say zookeeper_tls = true in [security].\n")
    lines.append("Next, on this machine:\n")
    lines += [f"  rmgr {role} --security-dir {where}/bundles/{role} ...\n" for role in _DAEMONS[:2]]
    if own == user_bundle():
        lines.append(f"  rmgr status                      as {name}: rmgr looks in {own}\n")
    else:
        lines.append(f"  RMGR_SECURITY_DIR={own} rmgr status      as {name}\n")
    lines.append("Other machines and users: rmgr admin add-node NAME, rmgr admin add-user NAME (users come through rmgr submitter)\n")
    if not is_closed:
        lines.append("ZooKeeper lets strangers create below its own /: rmgr admin init --close-root --zk HOSTS/rmgr/NAME\n")
    return "".join(lines)


# -- who belongs to the cluster, and who no longer does ------------------------------------------------------------------------


def authority_option(function: Any) -> Any:
    """Adds `--authority DIR`, the directory of the cluster's authority."""
    return click.option(
        "--authority",
        metavar="DIR",
        help="the admin's directory, made by rmgr admin init  [[security] dir where that is one, else ~/.config/rmgr/authority]",
    )(function)


def as_admin(session: Session, directory: str | None) -> Authority:
    """Returns the cluster's authority and gives the session the admin's rights. Raises ConfigError, PermissionDenied."""
    authority, where = open_authority(session, directory)
    session.config({"security": {"dir": str(where)}})
    return authority


def open_authority(session: Session, directory: str | None) -> tuple[Authority, Path]:
    """Returns the cluster's authority and its directory. Raises ConfigError, PermissionDenied."""
    from rmgr.adapters.identity.credentials import load_ca

    own = Path(session.config().security.dir).expanduser()
    # The configured bundle may be the authority, or lie below the authority that made it (AUTHORITY/bundles/NAME).
    places = (Path(directory).expanduser(),) if directory else (own, own.parent.parent, authority_directory())
    where = next((place for place in places if (place / "ca.key").exists()), None)
    if where is None and not directory:
        raise PermissionDenied(
            "this is for who has the cluster's authority, and it is not here",
            hint="name the directory that rmgr admin init made: --authority DIR",
        )
    found = where or places[0]
    return load_ca(found), found


@command(
    "add-node",
    examples="""\
    rmgr admin add-node n4
    rmgr admin add-node n4 --hosts n4.example.org,10.0.0.4 --expires 15m""",
    exits=_EXITS,
)
@click.argument("name")
@click.option("--hosts", metavar="A,B", default="", help="names and addresses of the machine  [NAME]")
@click.option("--role", type=one_of("role", _HOSTED), default="starter", metavar="ROLE", help="starter, watchdog or submitter  [starter]")
@click.option("--expires", "lasts_s", type=DURATION, default=_LASTS_S, metavar="DURATION", help="how long the token is valid  [1h]")
@click.option("--renew", "renews", is_flag=True, help="new credentials for a machine that has joined, whose certificates expire")
@authority_option
def add_node(session: Session, name: str, hosts: str, role: str, lasts_s: float, renews: bool, authority: str | None) -> None:
    """Invites a machine: prints the one command that makes it a part of the cluster.

    The token in it works once, and ends. Whoever has it can take the machine's place: pass it on as you would a password.
    """
    from rmgr.adapters.identity.invitation import Token
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
    line = f"echo {token} | rmgr join -"  # echo is part of the shell: everybody could see a secret among a program's arguments
    session.answer(
        {"name": name, "role": role, "token": token, "command": line, "expires_in": lasts_s},
        f"{line}\n",
        f"type that on {name}, as the user who will run its {role}, within {format_duration(lasts_s)}; it works once",
    )


@command("identities", examples="rmgr admin identities\nrmgr admin identities --json", exits=_EXITS)
@authority_option
def identities(session: Session, authority: str | None) -> None:
    """Lists the keys that the cluster knows: of users and daemons, of invited machines, and revoked ones."""
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
        Column(name="STATE", text=_state_of_key, state=True),
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
@click.option("--role", type=one_of("role", _ROLES), metavar="ROLE", help="which one, if a name has several")
@click.option("--reason", metavar="TEXT", default="", help="kept with the revocation")
@click.option("--work", type=one_of("kind", _WORKS), metavar="cancel|hold|keep", help="what becomes of a user's running work  [keep]")
@click.option("--rotate/--no-rotate", "rotates", default=True, help="also give a daemon's role a new secret of ZooKeeper  [yes]")
@click.option("--grace", "grace_s", type=DURATION, default=GRACE_S, metavar="DURATION", help="how long the old secret stays valid  [15s]")
@authority_option
def revoke(
    session: Session, whom: str, role: str | None, reason: str, work: str | None, rotates: bool, grace_s: float, authority: str | None
) -> None:
    """Stops trusting a node or a user, for ever.

    Its calls are refused; its sessions, logs and terminals end; work that it signed neither starts nor is retried. A node is fenced
    and its work goes elsewhere. A daemon knows the secret that its role shares in ZooKeeper: that is rotated, so that the old one
    opens nothing.

    A user's waiting work is held (reason REVOKED), and running work continues to its end, as with a hold or a limit in Slurm: hours
    of computing are not lost because a laptop was. With --work hold running work is suspended until you choose again; with
    --work cancel all of it ends.
    """
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
    notes = [_TOLD[RevokedWork(told)] for told in sorted({one.work for one in made if one.work in _WORKS and not one.others})]
    notes += [
        f"{name} has other keys: what only this one has signed is refused, other work of this user is as it was"
        for name in sorted({one.name for one in made if one.others})
    ]
    if any(one.role in (Role.USER, Role.OPERATOR) for one in made):
        notes.append("who was made with --direct knows ZooKeeper's secret of gateways: rmgr admin rotate --role submitter")
    session.answer(
        {"revoked": [{"name": one.name, "role": one.role, "key": one.key_id, "work": one.work} for one in made]},
        "".join(f"{one.role} {one.name} is revoked (key {one.key_id})\n" for one in made),
        *notes,
    )


def _state_of_key(one: KnownIdentity) -> str:
    if one.is_revoked:
        return "revoked"
    return "invited" if one.invited else "known"


def _shape(one: KnownIdentity) -> dict[str, str]:
    who = one.identity
    return {"name": who.name, "role": who.role, "key": who.key_id, "state": _state_of_key(one)}


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
@click.option("--out", metavar="DIR", help="directory for the credentials  [AUTHORITY/bundles/NAME]")
@authority_option
def add_user(session: Session, name: str, operator: bool, direct: bool, days: int, out: str | None, authority: str | None) -> None:
    """Creates credentials for a user: a directory to hand over, by which rmgr knows the user.

    The name is that of the user's account on the nodes: where Starters run as root, work runs as that user.
    Users come through a gateway (rmgr submitter), which shows and changes only their own work.

    With --direct the bundle holds ZooKeeper's secret of role submitter, like a gateway's, and works without one. Its holder is
    trusted with everybody's state: can read, corrupt, cancel and hold all submissions. It is for the admin, for one-user clusters
    (rmgr dev) and for trusted applications. Revoke one with rmgr admin revoke, then rotate --role submitter.
    """
    from rmgr.adapters.identity.credentials import write_files
    from rmgr.adapters.identity.pki import issue
    from rmgr.dev.keeper import read_state

    ca, where = open_authority(session, authority)
    role = Role.OPERATOR if operator else Role.USER
    place = Path(out).expanduser() if out else where / "bundles" / check_name(name)
    write_files(place, issue(ca, check_name(name), role, days=days, zookeeper=direct))
    notes = [_DIRECT if direct else f"{name} comes through a gateway: --gateway HOST:PORT or RMGR_GATEWAY"]
    notes.append(f"hand it over as a secret (tar czf - -C {place} .); in ~/.config/rmgr/bundle of {name} rmgr finds it by itself")
    if read_state(where.parent) is not None:
        notes.append(
            f"all work of this cluster of rmgr dev runs as you: tasks of {name} can read your files, also those in {where}; "
            "where Starters run as root (rmgr starter), work runs as its user"
        )
    document = {"name": name, "role": role, "bundle": str(place), "direct": direct}
    session.answer(document, f"{role} {name}: credentials in {place}\n", *notes)


@command(
    "add-server",
    examples="""\
    rmgr admin add-server j90
    rmgr admin add-server j90 --days 90 --out /mnt/usb/j90""",
    exits="0 made, 2 a name that cannot be one, or a place that is taken, 4 not the admin's directory, 5 ZooKeeper cannot be reached",
)
@click.argument("name")
@click.option("--days", type=click.IntRange(1, 3650), default=730, metavar="N", help="how long they are valid  [730]")
@click.option("--out", metavar="DIR", help="directory for the credentials  [AUTHORITY/bundles/server-NAME]")
@authority_option
def add_server(session: Session, name: str, days: int, out: str | None, authority: str | None) -> None:
    """Creates credentials for a server of calls (rmgr server --name NAME): a directory to hand over.

    They open only its stream to gateways: it knows no secret of ZooKeeper, and may not call, submit or read. The cluster knows its key
    from now on: rmgr admin revoke NAME ends its streams.
    """
    from rmgr.adapters.identity.credentials import Credentials, write_files
    from rmgr.adapters.identity.pki import issue
    from rmgr.adapters.identity.trust import publish
    from rmgr.runner.host.files import remove_tree

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
    session.answer(
        {"name": name, "role": Role.SERVER, "bundle": str(place)},
        f"server {name}: credentials in {place}\n",
        f"hand it over as a secret (tar czf - -C {place} .), and start there: rmgr server --name {name} --security-dir DIR",
    )


@command(
    "rotate",
    examples="""\
    rmgr admin rotate                       # ZooKeeper's secret of Starters
    rmgr admin rotate zookeeper --role submitter --grace 1m
    rmgr admin rotate tls /srv/rmgr/authority/bundles/watchdog     # new keys and certificates in a bundle on this machine
    rmgr admin add-node n4 --renew          # ... on another one""",
    exits=_ROTATE_EXITS,
)
@click.argument("what", metavar="[zookeeper|tls]", type=one_of("kind of secret", ("zookeeper", "tls")), default="zookeeper")
@click.argument("bundles", metavar="[DIR]...", nargs=-1)
@click.option("--role", type=one_of("role", _ROTATED_ROLES), default="starter", metavar="ROLE", help="whose secret  [starter]")
@click.option("--grace", "grace_s", type=DURATION, default=GRACE_S, metavar="DURATION", help="how long the old secret stays valid  [15s]")
@authority_option
def rotate(session: Session, what: str, bundles: tuple[str, ...], role: str, grace_s: float, authority: str | None) -> None:
    """Gives a role a new secret for ZooKeeper, or a bundle new keys and certificates before the old ones expire.

    Secrets that can be rotated are those of the roles starter and submitter (gateways, and users made with --direct).
    Daemons fetch a new secret by themselves unless their key was revoked; work continues. After tls restart the daemon.
    Bundles beside the authority get the new secret at once; users with --direct elsewhere need new bundles.
    """
    if what == "tls":
        _renew_bundles(session, bundles, authority)
        return
    if bundles:
        raise UsageError(f"{bundles[0]}: secrets of ZooKeeper are those of a role, not of a bundle", hint="rmgr admin rotate --role ROLE")
    ca = as_admin(session, authority)
    rotate_role(session, ca, Role(role), grace_s=grace_s)
    session.answer({"role": role, "rotated": True}, f"role {role} has a new secret of ZooKeeper\n")


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
    session.answer({"renewed": renewed})


def rotate_role(session: Session, authority: Authority, role: Role, *, grace_s: float) -> None:
    """Rotates a role's secret, telling each step, and says whose bundles must be made anew. Call `as_admin` before."""
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.procedures.securing import rotate

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
    """Gives this machine's bundles of a role the new secret, except those whose key was revoked; returns the bundles it changed.

    A bundle whose daemon does not run, or never met a WatchDog, could not fetch the secret by itself.
    """
    from rmgr.adapters.identity.credentials import write_files
    from rmgr.adapters.identity.pki import credential, named_in, verify_certificate
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
