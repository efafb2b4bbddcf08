"""Identity: a name in a role, as a certificate says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rmgr.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Role(StrEnum):
    """Role of the holder of a certificate in the cluster."""

    ADMIN = "admin"  #: sets up and secures the cluster
    WATCHDOG = "watchdog"
    STARTER = "starter"
    SUBMITTER = "submitter"  #: a gateway: it speaks for its users
    SERVER = "server"  #: runs named functions for clients that come through gateways
    OPERATOR = "operator"  #: a user who may act on everybody's work
    USER = "user"
    JOIN = "join"  #: a machine that is about to become something

    @property
    def at_zookeeper(self) -> Role:
        """As whom ZooKeeper knows a holder of this role whose bundle has a secret: users who are trusted with it are as gateways."""
        return Role.SUBMITTER if self in (Role.USER, Role.OPERATOR) else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The holder of a certificate.

    cluster: the trust domain, the name of the certificate authority. key_id: first 32 hex digits of the SHA-256 of the
    holder's Ed25519 public key, "" where only the TLS certificate is known.
    """

    name: str
    role: Role
    cluster: str
    key_id: str = ""

    @property
    def uri(self) -> str:
        """`rmgr://<cluster>/<role>/<name>`: how certificates say it."""
        return f"rmgr://{self.cluster}/{self.role}/{self.name}"

    @property
    def is_person(self) -> bool:
        """May submit work of his own."""
        return self.role in (Role.USER, Role.OPERATOR)


def check_name(name: str) -> str:
    """`name` if it can be the name of an identity. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name here", hint="letters, digits, '.', '_' and '-', at most 63, a letter or digit first")
    return name


def parse_uri(uri: str) -> Identity:
    """What `Identity.uri` says. Raises UsageError."""
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != "rmgr" or len(parts) != 3 or parts[1] not in set(Role) or not parts[0]:
        raise UsageError(f"{uri!r} names nobody of a cluster")
    return Identity(name=check_name(parts[2]), role=Role(parts[1]), cluster=parts[0])
