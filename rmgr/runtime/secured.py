"""Secures a process of a cluster: its credentials, its way to ZooKeeper, where it may listen, and at which address others reach it.

One place for daemons and clients. An open cluster has no credentials; then daemons listen on loopback only, unless `--insecure` was given.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmgr.errors import ConfigError
from rmgr.model.identity import Role

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.adapters.zookeeper.server import ZkSecurity
    from rmgr.adapters.zookeeper.tree import RootReport
    from rmgr.config import Config
    from rmgr.coord.protocol.ports import Coordinator

#: Hosts that mean every address, and cannot be dialled.
_EVERYWHERE = frozenset({"", "*", "0.0.0.0", "::", "[::]"})  # noqa: S104 - compared with, not bound to


def credentials_of(config: Config, *roles: Role) -> Credentials | None:
    """Returns the bundle that the configuration names, None for an open cluster.

    Args:
        roles: accepted roles of its holder; none = any.
    Raises: ConfigError naming the file and what to do.
    """
    if not config.security.dir:
        return None
    from rmgr.adapters.identity.credentials import from_config

    return from_config(config.security, roles=roles)


def zookeeper_security(config: Config, credentials: Credentials | None, *, insecure: bool = False) -> ZkSecurity | None:
    """Returns how connections to ZooKeeper are protected, and as whom they authenticate; None in an open cluster.

    Raises: ConfigError if the bundle lacks the secret, or if that would travel in clear to another machine, unless `insecure`.
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
    """Returns the keyword arguments of this process's `ZkCoordinator`s: `zookeeper_security`, and access lists for new znodes."""
    security = zookeeper_security(config, credentials, insecure=insecure)
    if credentials is None or security is None:
        return {}
    from rmgr.adapters.zookeeper.acl import RoleLists

    return {"security": security, "acl": RoleLists({role: (digest_id,) for role, digest_id in credentials.roles.items()})}


def close_zookeeper(config: Config, credentials: Credentials, *, heap_mib: int) -> RootReport:
    """Closes ZooKeeper's own `/` to strangers, and gives the cluster's subtrees quotas for servers with a heap of `heap_mib`.

    Args: credentials: the admin's, or a WatchDog's.
    Raises: as `zookeeper_options`, and `close_root` of `adapters/zookeeper/tree.py`; NotConnected if no ZooKeeper is named.
    """
    from rmgr.adapters.zookeeper.tree import close_root

    options = zookeeper_options(config, credentials)
    return close_root(*config.cluster.hosts_and_chroot(), options["security"], options["acl"], heap_mib=heap_mib)


def open_zookeeper(config: Config, credentials: Credentials | None, *, insecure: bool = False) -> ZkCoordinator:
    """Returns a session with the configured ZooKeeper, connecting in the background.

    Raises: as `zookeeper_options`; NotConnected if no ZooKeeper is named.
    """
    from rmgr.adapters.zookeeper.client import ZkCoordinator

    options = zookeeper_options(config, credentials, insecure=insecure)
    hosts, chroot = config.cluster.hosts_and_chroot()
    return ZkCoordinator(hosts, chroot, session_timeout_s=config.cluster.session_timeout_s, **options)


def open_trust(coordinator: Coordinator, credentials: Credentials | None) -> Trust | None:
    """Returns which keys are valid now, None in an open cluster."""
    if credentials is None:
        return None
    from rmgr.adapters.identity.trust import Trust, ZooKeeperKeys

    return Trust(ZooKeeperKeys(coordinator), credentials.ca_pem)


def check_exposure(credentials: Credentials | None, *, listen: str, metrics: str, insecure: bool) -> None:
    """Raises ConfigError if other machines could reach what is not guarded, unless `--insecure` was given.

    Args: listen, metrics: HOST:PORT. With credentials, TLS guards both.
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
    """Returns a function for the key id and canonical form of a signing certificate. For its own it loads no reader of certificates."""

    def certify(pem: bytes) -> tuple[str, bytes]:
        if pem == credentials.certificate_pem:
            return credentials.identity.key_id, pem
        from rmgr.adapters.identity.pki import signing_certificate

        return signing_certificate(pem, ca_pem=credentials.ca_pem)

    return certify


def is_loopback(address: str) -> bool:
    """Returns whether only this machine reaches HOST:PORT (or HOST)."""
    host, colon, port = address.strip().rpartition(":")
    host = (host if colon and port.isdigit() else address.strip()).strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def advertised(endpoint: str, advertise: str = "") -> str:
    """Returns the HOST:PORT that a daemon listening on `endpoint` tells the others.

    Args:
        endpoint: HOST:PORT that it listens on, with the real port.
        advertise: HOST or HOST:PORT from the configuration; "" = `endpoint` itself, or if that stands for every address, this
            machine's name (in a container, the container's).
    """
    host, _, port = endpoint.rpartition(":")
    if advertise:
        is_bare = advertise.endswith("]") or ":" not in advertise
        return f"{advertise}:{port}" if is_bare else advertise
    return f"{socket.gethostname()}:{port}" if host in _EVERYWHERE else endpoint


def advertised_metrics(address: str, advertise: str = "") -> str:
    """As `advertised`, for the address of metrics; `advertise` is for gRPC, and only its host counts."""
    if address.rpartition(":")[0] not in _EVERYWHERE:
        return address
    is_bare = advertise.endswith("]") or ":" not in advertise
    return advertised(address, advertise if is_bare else advertise.rpartition(":")[0])


def address_towards(endpoint: str, *, timeout_s: float) -> str:
    """Returns this machine's address from which a connection to HOST:PORT goes out, an IPv6 one in brackets.

    "" if only this machine (loopback) or its link would reach that address, or if there is no connection.
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
