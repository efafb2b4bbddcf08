"""Address at which others reach a daemon: what it registers when it listens on every address, and what a machine has that joins."""

from __future__ import annotations

import ipaddress
import socket

#: Hosts that mean every address: nobody can dial them.
_EVERYWHERE = frozenset({"", "*", "0.0.0.0", "::", "[::]"})  # noqa: S104 - compared with, not bound to


def advertised_metrics(address: str, advertise: str = "") -> str:
    """The same of where measurements are served; `advertise` is of gRPC, and only its host counts."""
    if address.rpartition(":")[0] not in _EVERYWHERE:
        return address
    is_bare = advertise.endswith("]") or ":" not in advertise
    return advertised(address, advertise if is_bare else advertise.rpartition(":")[0])


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
