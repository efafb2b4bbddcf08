"""The one-shot `security-init`: who is who in the cluster of docker-compose.yml, made once, renewed before it ends.

Every directory below /etc/rmgr is a volume of its own, so that each container is given its own credentials and no others:
`ca` is the cluster's authority (mounted by nobody else), `admin`, `watchdog`, `starter`, `submitter` and `user` are bundles,
`zookeeper` and `cassandra` hold the certificates of these servers, readable by their group. Safe to run again, and does nothing then.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rmgr.adapters.identity.credentials import Credentials, ensure_authority, write_files
from rmgr.adapters.identity.pki import DAEMON_DAYS, Authority, issue, issue_server
from rmgr.errors import ConfigError, RmgrError
from rmgr.model.identity import Role

HOME = Path("/etc/rmgr")
#: Renewed at the first `docker compose up` within so many days of its end.
RENEW_DAYS = 60.0
#: Directory -> (name, role). The user of `docker compose exec submitter rmgr ...` may do what an operator may, and has a gateway's secret.
BUNDLES = {
    "admin": ("admin", Role.ADMIN),
    "watchdog": ("watchdog", Role.WATCHDOG),
    "starter": ("starter", Role.STARTER),
    "submitter": ("submitter", Role.SUBMITTER),
    "user": ("rmgr", Role.OPERATOR),
}
#: Directory -> host names of its servers: all of a kind show the same certificate.
SERVERS = {
    "zookeeper": ("zookeeper1", "zookeeper2", "zookeeper3"),
    "cassandra": ("cassandra1", "cassandra2", "cassandra3"),
}


def main() -> None:
    """Makes what is missing; prints a line for each."""
    authority, is_new = ensure_authority(HOME / "ca")
    if is_new:
        print(f"cluster {authority.cluster}: a new authority", flush=True)
    for directory, (name, role) in BUNDLES.items():
        if _days_left(HOME / directory) < RENEW_DAYS:
            write_files(HOME / directory, issue(authority, name, role, hosts=("localhost", "127.0.0.1", directory)), replace=True)
            print(f"{role} {name}: new certificates and keys", flush=True)
    for directory, hosts in SERVERS.items():
        _server(authority, HOME / directory, hosts)


def _days_left(directory: Path) -> float:
    """0 for a bundle that is not there, is not whole, or ended already."""
    if not (directory / "ca.crt").exists():
        return 0.0
    try:
        return Credentials.load(directory).days_left()
    except ConfigError as error:
        print(f"{directory}: {error.message}", flush=True)
        return 0.0


def _server(authority: Authority, directory: Path, hosts: tuple[str, ...]) -> None:
    """`server.pem` (key and certificate) and `ca.pem`, as ZooKeeper and Cassandra read them; their group may, others may not."""
    bundle = directory / "server.pem"
    if bundle.exists() and time.time() - bundle.stat().st_mtime < (DAEMON_DAYS - RENEW_DAYS) * 86400.0:
        return
    certificate, key = issue_server(authority, directory.name, hosts)
    for name, data in (("ca.pem", authority.cert_pem), ("server.pem", key + certificate)):
        draft = directory / f".{name}.new"
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(data)
        draft.replace(directory / name)
    print(f"{directory.name}: a new certificate for {', '.join(hosts)}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RmgrError as error:
        sys.exit(f"error: {error.message}\n{error.hint}")
