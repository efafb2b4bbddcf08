"""A cluster's authority and the bundles that it begins with: each made once, and never overwritten.

    DIR/ca.crt, ca.key, zookeeper.secrets, ...   the authority, and the admin's own bundle
    DIR/bundles/<name>/                          a bundle to be carried to where it is used
    DIR/servers/<name>/                          a certificate of a ZooKeeper or Cassandra server: server.pem (key and certificate), ca.pem
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rmgr.adapters.identity.credentials import Credentials, load_ca, write_files
from rmgr.adapters.identity.pki import Authority, cluster_of, issue, issue_server, make_ca
from rmgr.errors import ConfigError
from rmgr.model.cluster.identity import Role

#: Every machine reaches itself by these; bundles for one machine carry them beside its names.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def ensure_authority(directory: Path, *, cluster: str = "") -> tuple[Authority, bool]:
    """The authority in `directory`, made if there is none; (it, whether it was made).

    Args: cluster: name of the trust domain, "" = a random one, or the one that is there.
    Raises: ConfigError when another cluster's is there, or a bundle without an authority.
    """
    if (directory / "ca.key").exists():
        found = load_ca(directory)
        if cluster and found.cluster != cluster:
            raise ConfigError(f"{directory} is the authority of the cluster {found.cluster}, not of {cluster}", hint="choose another --dir")
        return found, False
    if (directory / "ca.crt").exists():
        raise ConfigError(f"{directory} holds a bundle of credentials, but no authority", hint="choose another --dir")
    made = make_ca(cluster)
    write_files(directory, issue(made, "admin", Role.ADMIN) | made.files())
    return made, True


def ensure_bundle(authority: Authority, directory: Path, name: str, role: Role, *, hosts: Sequence[str] = (), renew: bool = False) -> bool:
    """A bundle in `directory`, made if there is none; whether it was made.

    Args: renew: one that cannot be used any more (expired, another authority's) is replaced.
    Raises: ConfigError when one is there that is not this cluster's, or cannot be used.
    """
    if (directory / "ca.crt").exists():
        try:
            found = Credentials.load(directory)
            mine = found.ca_pem == authority.cert_pem
            if not mine and not renew:
                raise ConfigError(
                    f"{directory} holds credentials of another cluster ({cluster_of(found.ca_pem)})",
                    hint="they are left alone: move them away, or name another place",
                )
            if mine and not (renew and found.days_left() < 1):
                return False
        except ConfigError:
            if not renew:
                raise
    write_files(directory, issue(authority, name, role, hosts=hosts), replace=renew)
    return True


def ensure_server(authority: Authority, directory: Path, name: str, hosts: Sequence[str]) -> bool:
    """The certificate of a server that is not ours in `directory`, made if there is none; whether it was made."""
    if (directory / "server.pem").exists():
        return False
    certificate, key = issue_server(authority, name, tuple(dict.fromkeys((*hosts, *LOCAL_HOSTS))))
    write_files(directory, {"server.pem": key + certificate, "ca.pem": authority.cert_pem})
    return True
