"""Describes a link to ZooKeeper: its options, its states, the meaning of its errors, and the calls that a session makes on it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from rmgr.errors import ConfigError

if TYPE_CHECKING:
    from rmgr.adapters.zookeeper.wire import Acl


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkSecurity:
    """Protection of a connection; the default is plain TCP without identity.

    Args: `tls` and the three files (PEM) with the key's password; `verify` the server's certificate and its host name;
    `auth_scheme`/`auth_credential` as ZooKeeper's addauth ("digest", "user:password"; inside TLS only).
    """

    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_hostname: bool = True
    auth_scheme: str = ""
    auth_credential: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """How a connection is protected. The files are read each time: certificates are renewed while daemons run.

        With a `ca_file` nobody else's word counts, the authorities of the operating system included.
        Raises: ConfigError naming the file that is missing or unusable.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        at = self.ca_file
        try:
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            at = f"{self.cert_file}, {self.key_file}"
            if self.cert_file and self.key_file:
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or None)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"{at}: {error.strerror or error}", hint="[security] dir must name a complete bundle: rmgr doctor") from error
        return context


def open_socket(address: tuple[str, int], hostname: str, timeout_s: float, security: ZkSecurity) -> socket.socket:
    """A connection to `address`, whose certificate names `hostname`. Raises: OSError (ssl.SSLError, TimeoutError), ConfigError."""
    made = socket.create_connection(address, timeout_s)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return security.context().wrap_socket(made, server_hostname=hostname) if security.tls else made
    except BaseException:
        made.close()
        raise


class LinkTrouble(Enum):
    """Meaning of a server's error for the operation."""

    LOST = "lost"
    ABSENT = "absent"
    EXISTS = "exists"
    DENIED = "denied"
    FULL = "full"
    OTHER = "other"


class LinkState(Enum):
    """States of a link. DEAD: it will never come back by itself."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    EXPIRED = "expired"
    DEAD = "dead"


class ZookeeperLink(Protocol):
    """Calls that `adapters/zookeeper/client.py` supplies. Requests are opaque; replies have `set(value)` and `set_exception(error)`."""

    session_timeout_s: float

    @property
    def session(self) -> tuple[int, bytes]: ...
    @property
    def last_answer_s(self) -> float: ...
    @property
    def last_error(self) -> str: ...
    def push(self, request: Any, reply: Any) -> None: ...
    def drop_link(self) -> None: ...
    def end(self, timeout_s: float) -> None: ...
    def get_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def stat_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def children_request(self, path: str, watch: Callable[[object], None] | None) -> Any: ...
    def sync_request(self, path: str) -> Any: ...
    def create_request(self, path: str, acl: tuple[Acl, ...]) -> Any: ...
    def trouble(self, error: Exception) -> LinkTrouble: ...
