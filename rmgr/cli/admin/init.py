"""`rmgr admin init`: a cluster's authority, the bundles of its daemons, and the first user's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmgr.cli.session.command import command
from rmgr.cli.session.context import Session
from rmgr.cli.words.params import SIZE, listed
from rmgr.coord.protocol.quotas import HEAP_MIB
from rmgr.errors import ConfigError
from rmgr.model.cluster.identity import Role, check_name

if TYPE_CHECKING:
    from rmgr.adapters.identity.pki import Authority
    from rmgr.adapters.zookeeper.root import RootReport

_DAEMONS = (Role.WATCHDOG, Role.STARTER, Role.SUBMITTER)


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
    from rmgr.adapters.identity.founding import LOCAL_HOSTS, ensure_authority, ensure_bundle, ensure_server
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
    from rmgr.adapters.identity.founding import ensure_bundle
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
