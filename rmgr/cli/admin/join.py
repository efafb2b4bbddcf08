"""`rmgr join`: this machine becomes a part of a secured cluster."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import SIZE, listed
from rmgr.coord.protocol.acl import HEAP_MIB
from rmgr.errors import ConfigError, PermissionDenied, Unavailable, UsageError
from rmgr.model.cluster.identity import Role, check_name

if TYPE_CHECKING:
    from rmgr.adapters.identity.invitation import Token
    from rmgr.adapters.identity.pki import Authority
    from rmgr.adapters.zookeeper.tree import RootReport

_MOST = 64 * 1024
#: For one more connection to who has just answered.
_CONNECT_S = 5.0
_DAEMONS = (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)


@command(
    "join",
    examples="""\
    echo rmgr1.kpQE... | rmgr join -            # as rmgr admin add-node printed it
    rmgr join token.txt --dir /etc/rmgr""",
    exits="0 joined, 2 the token is damaged or the directory is taken, 4 the token was used or has expired, 5 no WatchDog answers",
)
@click.argument("source", metavar="FILE", default="-")
@click.option("--dir", "directory", metavar="DIR", help="where credentials and configuration go  [/etc/rmgr for root, else ~/.config/rmgr]")
@click.option("--watchdog", "endpoints", multiple=True, metavar="HOST:PORT", help="ask this one, where the token's addresses do not lead")
def join(session: Session, source: str, directory: str | None, endpoints: tuple[str, ...]) -> None:
    """Makes this machine a part of a secured cluster: fetches its credentials and writes its configuration.

    A Starter will listen on the address by which this machine reached the WatchDog, so that output, ranks and terminals work from
    other machines ([starter] listen in the configuration that is written).

    The token is read from FILE, or with - from standard input. A lost answer costs nothing: the same command again, on
    the same machine, gets the same credentials.
    """
    from rmgr.adapters.identity import invitation
    from rmgr.adapters.identity.credentials import endpoints_file, write_files
    from rmgr.adapters.rpc import join as rpc_join
    from rmgr.cli.display.render import emit
    from rmgr.model.cluster.identity import Role
    from rmgr.procedures.securing import purpose
    from rmgr.runtime.secured import address_towards

    told = invitation.decode(_read(session, source))
    where = Path(directory).expanduser() if directory else _default_directory()
    bundle, config = where / f"{told.role}.d", where / f"{told.role}.toml"
    renews = _has_joined(told, bundle, config)
    nonce = _nonce(where, told.invitation)
    asked = endpoints or told.endpoints
    try:
        timeout_s = session.left_s(20.0) or 20.0
        name, role, sealed, answered = rpc_join.redeem(asked, invitation.tls_pair(told), nonce.read_text(), timeout_s=timeout_s)
    except PermissionDenied as error:
        nonce.unlink()  # it opens nothing any more
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
        listens = address_towards(answered, timeout_s=session.left_s(_CONNECT_S) or _CONNECT_S) if role is Role.STARTER else ""
        config.write_text(_config(told, bundle, listens))
    nonce.unlink(missing_ok=True)
    start = f"rmgr {role} --config {config}"
    if session.json:
        emit({"name": name, "role": role, "bundle": str(bundle), "config": str(config), "listen": listens, "command": start})
        return
    if renews:
        sys.stdout.write(f"{role} {name} has new credentials in {bundle}: restart it\n")
        return
    reached = f"others will reach it at {listens} ([starter] listen there)\n" if listens else ""
    sys.stdout.write(
        f"this machine is {role} {name} now: credentials in {bundle}, configuration in {config}\n{reached}start it: {start}\n"
    )


def _has_joined(told: Token, bundle: Path, config: Path) -> bool:
    """Whether this machine is already who the token makes it. Raises ConfigError when it is somebody else."""
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
    """The token's text: of standard input, of a file, or (seen by everybody on this machine) the argument itself."""
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
    from rmgr.config import user_directory

    return user_directory()


def _nonce(where: Path, number: str) -> Path:
    """What this machine calls itself while it redeems a token, kept until it has. One that was cut short is made anew."""
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
    """Configuration of the daemon that this machine will run. listens: the address of a Starter, "" = loopback."""
    lines = [
        f"# Written by rmgr join for {told.role} {told.name}; deploy/rmgr.toml explains every key.",
        "[cluster]",
        f"zk = {json.dumps(told.zk)}",
        f"store = {json.dumps(told.store)}",
        f"session_timeout_s = {told.session_timeout_s}",
        "",
        "[security]",
        f"dir = {json.dumps(str(bundle))}",
        f"zookeeper_tls = {str(told.zookeeper_tls).lower()}",
    ]
    if told.role == "starter":
        lines += ["", "[starter]", f"node = {json.dumps(told.name)}"]
        lines += [f"listen = {json.dumps(f'{listens}:0')}"] if listens else []
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
@click.option("--user-dir", metavar="DIR", help="where the credentials go  [~/.config/rmgr/bundle, where rmgr looks]")
@click.option("--hosts", metavar="A,B", default="", help="names and addresses in the daemons' certificates, beside localhost")
@click.option("--servers", metavar="A,B", default="", help="host names of ZooKeeper and Cassandra servers that need certificates")
@click.option("--close-root", is_flag=True, help="ZooKeeper's own / is closed to strangers, and quotas keep its memory from being filled")
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
    """Makes a cluster's certificate authority, credentials for its daemons, and the first user's.

    Nothing that is there is ever overwritten: type it again to see what there is. Keys are files of mode 0600.
    """
    from rmgr.adapters.identity.credentials import LOCAL_HOSTS, ensure_authority, ensure_bundle, ensure_server
    from rmgr.cli.display.render import emit
    from rmgr.config import authority_directory

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
    if session.json:
        emit(
            {
                "cluster": authority.cluster,
                "dir": str(where),
                "made": [str(path) for path in made],
                "kept": [str(path) for path in kept],
                "user": {"name": name, "dir": str(own)},
            }
            | ({"closed": list(root.closed), "quotas": list(root.quotas)} if root is not None else {})
        )
        return
    for path in made:
        sys.stdout.write(f"made   {path}\n")
    for path in kept:
        sys.stdout.write(f"there  {path}\n")
    if root is not None:
        sys.stdout.write(f"closed {' '.join(root.closed) or 'before'}; quotas of {len(root.quotas)} subtrees set now\n")
    sys.stdout.write(_next(authority, where, name, own, has_servers=bool(servers), is_closed=root is not None))


def _close_root(session: Session, where: Path, heap_bytes: int) -> RootReport:
    """With the admin's own bundle. Raises as `close_zookeeper`."""
    from rmgr.errors import NotConnected
    from rmgr.runtime.secured import close_zookeeper

    config = session.config({"security": {"dir": str(where)}})
    mine = session.credentials()
    if not config.cluster.zk or mine is None:
        raise NotConnected("which ZooKeeper is to be closed?", hint="name it, with the cluster's path: --zk HOSTS/rmgr/NAME or RMGR_ZK")
    return close_zookeeper(config, mine, heap_mib=heap_bytes >> 20)


def _first_user(session: Session, authority: Authority, where: Path, name: str, user_dir: str | None) -> tuple[Path, bool]:
    """The user's bundle, and whether it was made: where rmgr looks, if it is the caller's own and the place is free."""
    from rmgr.adapters.identity.credentials import ensure_bundle
    from rmgr.config import user_bundle

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


def _next(authority: Authority, where: Path, name: str, own: Path, *, has_servers: bool, is_closed: bool) -> str:
    from rmgr.config import user_bundle

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
