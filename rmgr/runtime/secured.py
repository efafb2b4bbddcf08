"""Secures a process of a cluster: its credentials, its way to ZooKeeper, where it may listen, and at which address others reach it.

One place for daemons and clients. An open cluster has no credentials; then daemons listen on loopback only, unless
`--insecure` was typed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmgr.errors import ConfigError
from rmgr.model.cluster.identity import Role

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.adapters.zookeeper.server import ZkSecurity
    from rmgr.adapters.zookeeper.tree import RootReport
    from rmgr.config import Config
    from rmgr.coord.protocol.ports import Coordinator

#: Hosts that mean every address: nobody can dial them.
_EVERYWHERE = frozenset({"", "*", "0.0.0.0", "::", "[::]"})  # noqa: S104 - compared with, not bound to


def credentials_of(config: Config, *roles: Role) -> Credentials | None:
    """The bundle that the configuration names, None for an open cluster.

    Args:
        roles: what its holder may be; none = anything.
    Raises: ConfigError naming the file and what to do.
    """
    if not config.security.dir:
        return None
    from rmgr.adapters.identity.credentials import from_config

    return from_config(config.security, roles=roles)


def zookeeper_security(config: Config, credentials: Credentials | None, *, insecure: bool = False) -> ZkSecurity | None:
    """How connections to ZooKeeper are protected, and as whom they speak; None in an open cluster.

    Raises: ConfigError for a bundle without the secret, and where it would travel in clear to another machine, unless `insecure`.
    """
    if credentials is None:
        return None
    from rmgr.adapters.zookeeper.server import ZkSecurity

    if credentials.zookeeper_auth is None:
        named = f"--zk {config.cluster.zk} names ZooKeeper itself" if config.cluster.zk else "no gateway is named"
        raise ConfigError(
            f"the credentials in {credentials.directory} are for gateways, and {named}",
            hint="name a gateway: --gateway HOST:PORT or RMGR_GATEWAY",
        )
    tls = config.security.zookeeper_tls
    hosts = config.cluster.hosts_and_chroot()[0]
    far = next((host for host in hosts.split(",") if not is_loopback(host)), "")
    if far and not tls and not insecure:
        raise ConfigError(
            f"the secret of role {credentials.identity.role.at_zookeeper} would travel in clear to ZooKeeper at {far.strip()}",
            hint="set zookeeper_tls = true in [security] (RMGR_SECURITY_ZOOKEEPER_TLS=true), and give ZooKeeper its certificates",
        )
    scheme, secret = credentials.zookeeper_auth
    return ZkSecurity(
        tls=tls,
        ca_file=credentials.path("ca.crt") if tls else "",
        cert_file=credentials.path("tls.crt") if tls else "",
        key_file=credentials.path("tls.key") if tls else "",
        auth_scheme=scheme,
        auth_credential=secret,
    )


def zookeeper_options(config: Config, credentials: Credentials | None, *, insecure: bool = False) -> dict[str, Any]:
    """Keyword arguments of every `ZkCoordinator` of this process: `zookeeper_security`, and the access lists of what it makes."""
    security = zookeeper_security(config, credentials, insecure=insecure)
    if credentials is None or security is None:
        return {}
    from rmgr.adapters.zookeeper.acl import RoleLists

    return {"security": security, "acl": RoleLists({role: (digest_id,) for role, digest_id in credentials.roles.items()})}


def close_zookeeper(config: Config, credentials: Credentials, *, heap_mib: int) -> RootReport:
    """ZooKeeper's own `/` is closed to strangers, and the cluster's subtrees get quotas for servers with such a heap.

    Args: credentials: the admin's, or a WatchDog's.
    Raises: as `zookeeper_options`, `zk_root.close_root`; NotConnected where no ZooKeeper is named.
    """
    from rmgr.adapters.zookeeper.tree import close_root

    options = zookeeper_options(config, credentials)
    return close_root(*config.cluster.hosts_and_chroot(), options["security"], options["acl"], heap_mib=heap_mib)


def open_zookeeper(config: Config, credentials: Credentials | None, *, insecure: bool = False) -> ZkCoordinator:
    """A session with the ZooKeeper that the configuration names, connecting in the background.

    Raises: as `zookeeper_options`; NotConnected where no ZooKeeper is named.
    """
    from rmgr.adapters.zookeeper.client import ZkCoordinator

    options = zookeeper_options(config, credentials, insecure=insecure)
    hosts, chroot = config.cluster.hosts_and_chroot()
    return ZkCoordinator(hosts, chroot, session_timeout_s=config.cluster.session_timeout_s, **options)


def open_trust(coordinator: Coordinator, credentials: Credentials | None) -> Trust | None:
    """Whose keys count at present, None in an open cluster."""
    if credentials is None:
        return None
    from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys

    return Trust(ZooKeeperKeys(coordinator), credentials.ca_pem)


def check_exposure(credentials: Credentials | None, *, listen: str, metrics: str, insecure: bool) -> None:
    """Raises ConfigError where other machines could reach what nobody guards, unless `--insecure` was typed.

    Args: listen, metrics: HOST:PORT. Both are guarded by TLS where there are credentials.
    """
    if insecure or credentials is not None:
        return
    if not is_loopback(listen):
        raise ConfigError(
            f"--listen {listen}: other machines reach this daemon there, and nobody has to prove an identity",
            hint="listen on 127.0.0.1, name credentials with [security] dir (rmgr admin init makes them), "
            "or type --insecure where everybody on the network may do anything",
        )
    if not is_loopback(metrics):
        raise ConfigError(
            f"--metrics {metrics}: other machines read them there, and nobody has to prove an identity",
            hint="serve them on 127.0.0.1, name credentials with [security] dir (then TLS is spoken, and a certificate asked for), "
            "or type --insecure where everybody on the network may read the names of nodes and queues",
        )


def certifier(credentials: Credentials) -> Callable[[bytes], tuple[str, bytes]]:
    """Key id and canonical form of a signing key's certificate of this cluster. What reads certificates is not loaded for one's own."""

    def certify(pem: bytes) -> tuple[str, bytes]:
        if pem == credentials.certificate_pem:
            return credentials.identity.key_id, pem
        from rmgr.adapters.identity.pki import signing_certificate

        return signing_certificate(pem, ca_pem=credentials.ca_pem)

    return certify


def is_loopback(address: str) -> bool:
    """HOST:PORT (or HOST) that only this machine reaches."""
    host, colon, port = address.strip().rpartition(":")
    host = (host if colon and port.isdigit() else address.strip()).strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def advertised(endpoint: str, advertise: str = "") -> str:
    """The HOST:PORT that a daemon listening on `endpoint` tells the others.

    Args:
        endpoint: HOST:PORT that it listens on, with the real port.
        advertise: HOST or HOST:PORT from the configuration; "" = `endpoint` itself, or this machine's name (a container's
            name, in a container) where `endpoint` stands for every address.
    """
    host, _, port = endpoint.rpartition(":")
    if advertise:
        is_bare = advertise.endswith("]") or ":" not in advertise
        return f"{advertise}:{port}" if is_bare else advertise
    return f"{socket.gethostname()}:{port}" if host in _EVERYWHERE else endpoint


def advertised_metrics(address: str, advertise: str = "") -> str:
    """As `advertised`, of where measurements are served; `advertise` is of gRPC, and only its host counts."""
    if address.rpartition(":")[0] not in _EVERYWHERE:
        return address
    is_bare = advertise.endswith("]") or ":" not in advertise
    return advertised(address, advertise if is_bare else advertise.rpartition(":")[0])


def address_towards(endpoint: str, *, timeout_s: float) -> str:
    """The address of this machine from which a connection to HOST:PORT goes out, an IPv6 one in brackets.

    "" where only this machine (loopback) or only its link would reach it, or where no connection comes about.
    Cost: a connection, ended at once.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            found = ipaddress.ip_address(connection.getsockname()[0])
    except (OSError, ValueError):
        return ""
    if found.is_loopback or found.is_link_local:
        return ""
    return f"[{found}]" if found.version == 6 else str(found)
