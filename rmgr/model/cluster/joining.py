"""Records by which machines enter a secured cluster, leave it, and get new secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rmgr.model.cluster.identity import Role


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
