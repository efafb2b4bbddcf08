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
from rmgr.errors import ConfigError, PermissionDenied, Unavailable, UsageError

if TYPE_CHECKING:
    from rmgr.adapters.identity.invitation import Token

_MOST = 64 * 1024
#: For one more connection to who has just answered.
_CONNECT_S = 5.0


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
    from rmgr.coord.ops.join import check_nonce

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
