"""Secrets of ZooKeeper on their way through ZooKeeper: encrypted with the secret of the WatchDogs, who alone hand them out."""

from __future__ import annotations

import base64

from rmgr.adapters.identity.invitation import seal, unseal
from rmgr.errors import CoordinationUnavailable, UsageError
from rmgr.model.cluster.joining import SealedSecret

_PURPOSE = "zookeeper secret of {role}, generation {generation}"


def seal_secret(watchdogs: str, role: str, generation: int, secret: str) -> SealedSecret:
    """What `/secrets/<role>` is to hold. watchdogs: the secret of their own role."""
    sealed = seal(watchdogs.encode(), _PURPOSE.format(role=role, generation=generation), secret.encode())
    return SealedSecret(generation=generation, sealed=base64.b64encode(sealed).decode())


def open_secret(watchdogs: str, role: str, record: SealedSecret) -> str:
    """Reverse of `seal_secret`. Raises CoordinationUnavailable where the WatchDogs' own secret is another one."""
    purpose = _PURPOSE.format(role=role, generation=record.generation)
    try:
        return unseal(watchdogs.encode(), purpose, base64.b64decode(record.sealed)).decode()
    except UsageError as error:
        hint = "give this WatchDog the newest bundle of its role"
        raise CoordinationUnavailable(f"the secret of {role} cannot be opened: {error.message}", hint=hint) from None
