"""Identity: a name in a role, as a certificate says.

And the records by which machines enter a secured cluster, leave it, and get new secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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


# -- joining and leaving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """`/joins/<id>`: credentials made for a machine, waiting to be fetched once.

    sealed: the bundle, encrypted with the secret of the token (base64); whoever reads the znode learns nothing.
    redeemed: what the machine that fetched it calls itself (random), so that it alone may fetch again when the answer
    was lost; empty = nobody has yet.
    """

    format: int = 1
    id: str
    name: str
    role: Role
    key_id: str
    expires_us: int
    sealed: str
    redeemed: str = ""


class RevokedWork(StrEnum):
    """Fate of the work of a user whose key was revoked. Waiting work is held, unless it is cancelled."""

    KEEP = "keep"  #: what runs goes on to its end
    HOLD = "hold"  #: what runs stands still, until the operator says one of the others
    CANCEL = "cancel"  #: all of it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """`/revoked/<key_id>`: an identity that is no longer believed, for ever.

    work: what becomes of a person's work that was submitted before (`RevokedWork`; "": an older release did not ask). Whatever it
    says, nothing starts and nothing is tried again that the key has signed. before: what `work` said before it was changed.
    others: he has other keys, which stand: only what this one has signed is refused.
    """

    format: int = 1
    key_id: str
    name: str
    role: Role
    by: str
    since_us: int
    reason: str = ""
    work: str = ""
    before: str = ""
    others: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRecord:
    """`/acl`: which ZooKeeper credentials stand for a role; while secrets are being rotated two do.

    generation counts rotations. roles: role -> digest ids (`role:base64(sha1)`), the newest last.
    """

    format: int = 1
    generation: int = 0
    roles: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """`/secrets/<role>`: the newest ZooKeeper secret of a role, encrypted with the secret of the WatchDogs (base64)."""

    format: int = 1
    generation: int
    sealed: str
