"""What a link to ZooKeeper is: its options, its states, what its errors mean, and the calls a session makes on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from rmgr.adapters.zk_wire import Acl


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkSecurity:
    """How the connection is protected; the default is plain TCP without identity.

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


class Trouble(Enum):
    """What an error of the server means for the operation."""

    LOST = "lost"
    ABSENT = "absent"
    EXISTS = "exists"
    DENIED = "denied"
    OTHER = "other"


class LinkState(Enum):
    """States of a link. DEAD: it will never come back by itself."""

    CONNECTED = "connected"
    CONNECTING = "connecting"
    EXPIRED = "expired"
    DEAD = "dead"


class Link(Protocol):
    """What `adapters/zk.py` supplies. Requests are opaque; replies have `set(value)` and `set_exception(error)`."""

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
    def trouble(self, error: Exception) -> Trouble: ...
