"""TLS of sockets that are not gRPC's: both ends show certificates of the cluster's authority; nobody else's word counts."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmgr.adapters.identity.pki import identity_of
from rmgr.errors import ConfigError
from rmgr.model.cluster.identity import Identity

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials


def context_of(credentials: Credentials, protocol: int) -> ssl.SSLContext:
    """A context that shows this bundle's certificate and asks for one of the same authority. Raises ConfigError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=credentials.ca_pem.decode())
        context.load_cert_chain(credentials.path("tls.crt"), credentials.path("tls.key"))
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{credentials.directory}: {error}", hint="[security] dir must name a complete bundle: rmgr doctor") from error
    return context


class ServerContext:
    """Gives a server its certificate as it is now, so that a renewed one needs no restart. One thread uses it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._shown: tuple[int, ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext:
        """Cost: one stat, and 1 ms when the file has changed. Raises OSError, ConfigError."""
        stamp = Path(self._credentials.path("tls.crt")).stat().st_mtime_ns
        if self._shown is None or self._shown[0] != stamp:
            self._shown = stamp, context_of(self._credentials, ssl.PROTOCOL_TLS_SERVER)
        return self._shown[1]


def peer_of(sock: Any) -> Identity:
    """Whose certificate the other end has shown. Raises PermissionDenied."""
    shown: Iterable[tuple[str, str]] = (sock.getpeercert() or {}).get("subjectAltName", ())
    return identity_of([name for kind, name in shown if kind == "URI"])
