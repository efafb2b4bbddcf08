"""Checkpoints are sealed by the Starter that took them, and restored only with the seal of a Starter of the cluster.

Whoever can write the data store could otherwise put files of his own into another user's job. An open cluster seals nothing.
Called on threads that may wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.seal import CheckpointSeal, before_seal, checkpoint_statement
from rmgr.daemons.starter.checkpoint.files import Manifest, ManifestHead, encode_manifest
from rmgr.errors import PermissionDenied
from rmgr.model.cluster.identity import Role

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.model.cluster.node import Meta


class Seals:
    """Seals nothing and believes everything, in an open cluster."""

    def seal(self, manifest: Manifest) -> Manifest:
        """A checkpoint as it is to be written."""
        return manifest

    def check(self, row: bytes, manifest: Manifest | ManifestHead) -> None:
        """It is to be believed. Raises: PermissionDenied saying why not; CoordinationUnavailable."""


class StarterSeals(Seals):
    """Seals and verifies checkpoints in a secured cluster."""

    def __init__(self, credentials: Credentials, trust: Trust, *, cluster_id: str) -> None:
        self._credentials = credentials
        self._trust = trust
        self._cluster_id = cluster_id

    def seal(self, manifest: Manifest) -> Manifest:
        bare = msgspec.structs.replace(manifest, seal=None)
        told = before_seal(encode_manifest(bare), None)
        assert told is not None, "the seal is the last field"
        mine = self._credentials
        signature = mine.sign(checkpoint_statement(told, _name(manifest), cluster_id=self._cluster_id))
        return msgspec.structs.replace(bare, seal=CheckpointSeal(key_id=mine.identity.key_id, signature=signature))

    def check(self, row: bytes, manifest: Manifest | ManifestHead) -> None:
        seal = manifest.seal
        if seal is None:
            raise PermissionDenied("no Starter has sealed it")
        signer = self._trust.find(seal.key_id, at_s=manifest.made_us / 1e6)
        if isinstance(signer, str):
            raise PermissionDenied(signer)
        who = signer.identity
        if who.role is not Role.STARTER:
            raise PermissionDenied(f"it was sealed by {who.role} {who.name}, and only Starters take checkpoints")
        told = before_seal(row, seal)
        if told is None or not signer.verify(seal.signature, checkpoint_statement(told, _name(manifest), cluster_id=self._cluster_id)):
            raise PermissionDenied(f"it is not what Starter {who.name} has sealed")


def _name(manifest: Manifest | ManifestHead) -> Checkpoint:
    return Checkpoint(sub=manifest.sub, index=manifest.index, attempt=manifest.attempt, n=manifest.n)


OPEN = Seals()


def seals_of(credentials: Credentials | None, trust: Trust | None, meta: Meta) -> Seals:
    """How a Starter of this cluster seals checkpoints."""
    if credentials is None or trust is None:
        return OPEN
    return StarterSeals(credentials, trust, cluster_id=meta.cluster_id)
