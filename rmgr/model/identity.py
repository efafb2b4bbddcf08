"""Identity: a name in a role, as in a certificate.

Also the records by which machines enter a secured cluster, leave it, and get new secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from rmgr.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Role(StrEnum):
    """Role of a certificate's holder in the cluster."""

    ADMIN = "admin"  #: sets up and secures the cluster
    WATCHDOG = "watchdog"
    STARTER = "starter"
    SUBMITTER = "submitter"  #: a gateway, which acts for its users
    SERVER = "server"  #: runs named functions for clients that come through gateways
    OPERATOR = "operator"  #: a user who may act on everybody's work
    USER = "user"
    JOIN = "join"  #: a machine that is about to join

    @property
    def at_zookeeper(self) -> Role:
        """The role under which ZooKeeper knows a holder whose bundle has a secret: trusted users count as gateways."""
        return Role.SUBMITTER if self in (Role.USER, Role.OPERATOR) else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The holder of a certificate.

    cluster: the trust domain, the name of the certificate authority. key_id: first 32 hex digits of the SHA-256 of the
    holder's Ed25519 public key, "" if only the TLS certificate is known.
    """

    name: str
    role: Role
    cluster: str
    key_id: str = ""

    @property
    def uri(self) -> str:
        """The form in certificates: `rmgr://<cluster>/<role>/<name>`."""
        return f"rmgr://{self.cluster}/{self.role}/{self.name}"

    @property
    def is_person(self) -> bool:
        """Whether the holder may submit work of its own."""
        return self.role in (Role.USER, Role.OPERATOR)


def check_name(name: str) -> str:
    """Returns `name` if an identity may have it. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name here", hint="letters, digits, '.', '_' and '-', at most 63, a letter or digit first")
    return name


def parse_uri(uri: str) -> Identity:
    """Reads an `Identity.uri`. Raises UsageError."""
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != "rmgr" or len(parts) != 3 or parts[1] not in set(Role) or not parts[0]:
        raise UsageError(f"{uri!r} names nobody of a cluster")
    return Identity(name=check_name(parts[2]), role=Role(parts[1]), cluster=parts[0])


# -- joining and leaving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """`/joins/<id>`: credentials made for a machine, to be fetched once.

    sealed: the bundle, encrypted with the token's secret (base64); readers of the znode learn nothing.
    redeemed: random name of the machine that fetched it, so that it alone may fetch again after a lost
    answer; empty = not fetched yet.
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

    KEEP = "keep"  #: running work goes on to its end
    HOLD = "hold"  #: running work is suspended until the operator chooses another value
    CANCEL = "cancel"  #: all of it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """`/revoked/<key_id>`: an identity that is revoked, for ever.

    work: fate of a person's work submitted before (`RevokedWork`; "": an older release did not ask). In any case,
    nothing that the key has signed starts or is tried again. before: value of `work` before it was changed.
    others: the person has other valid keys: only what this key signed is refused.
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
    """`/acl`: the ZooKeeper credentials of each role; two per role while secrets are being rotated.

    generation: counts rotations. roles: role -> digest ids (`role:base64(sha1)`), the newest last.
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
