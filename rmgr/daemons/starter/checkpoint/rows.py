"""The checkpoints of a task in the data store: which there are, one read or written, sealed and verified, old ones removed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.coord.seal import CheckpointSeal, before_seal, checkpoint_statement
from rmgr.daemons.starter.checkpoint.files import (
    MOST_LIST_BYTES,
    MOST_PIECE_BYTES,
    Manifest,
    ManifestHead,
    decode_head,
    decode_manifest,
    encode_manifest,
)
from rmgr.errors import DataLost, PermissionDenied, UsageError
from rmgr.model.cluster.identity import Role
from rmgr.procedures.bounded import row_of

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.trust import Trust
    from rmgr.model.cluster.node import Meta

#: How many of a task are kept: should the last not be readable, there is one before.
KEPT = 2
_PAGE = 1000


# -- seals -----------------------------------------------------------------------------------------------------------------
# Checkpoints are sealed by the Starter that took them, and restored only with the seal of a Starter of the cluster. Whoever can write the
# data store could otherwise put files of his own into another user's job. An open cluster seals nothing. Called on threads that may wait.


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


# -- rows -----------------------------------------------------------------------------------------------------------------


def listed(store: Store, sub: int, index: int) -> Iterator[Checkpoint]:
    """All of a task, the newest first, a page of them in memory at a time. Raises: StoreUnavailable."""
    before = (math.inf, math.inf)
    while True:
        found = (one for _, one in _keys(store, keys.checkpoints_of(sub, index)) if one is not None and one.order < before)
        newest = heapq.nlargest(_PAGE, found, key=lambda one: one.order)
        yield from newest
        if len(newest) < _PAGE:
            return
        before = newest[-1].order


def read(store: Store, checkpoint: Checkpoint, seals: Seals = OPEN) -> Manifest:
    """What one holds. Raises: DataLost; PermissionDenied when it is not to be believed; StoreUnavailable, CoordinationUnavailable."""
    data = row_of(store, checkpoint.key, MOST_LIST_BYTES)
    if data is None:
        raise DataLost("its list of files is not in the data store")
    seals.check(data, decode_head(data))  # first: an object for each file that somebody has invented is ten times what he wrote
    manifest = decode_manifest(data)
    if (manifest.sub, manifest.index, manifest.attempt, manifest.n) != (checkpoint.sub, checkpoint.index, checkpoint.attempt, checkpoint.n):
        raise PermissionDenied(f"it is a copy of checkpoint {manifest.attempt}.{manifest.n} of task {manifest.sub}_{manifest.index}")
    return manifest


def piece_writer(store: Store, sub: int, index: int, attempt: int, written: set[str]) -> Callable[[str, bytes], None]:
    """Puts pieces, and adds their digests to `written`; those that are in it already only if they have been removed since."""

    def put(digest: str, data: bytes) -> None:
        key = keys.checkpoint_piece(sub, index, attempt, digest)
        if digest not in written or store.head(key) is None:
            store.put(key, data)
            written.add(digest)

    return put


def piece_reader(store: Store, manifest: Manifest) -> Callable[[str], bytes | None]:
    """Gets pieces of a checkpoint. They raise DataLost for one that is larger than any is made."""

    def get(digest: str) -> bytes | None:
        try:
            key = keys.checkpoint_piece(manifest.sub, manifest.index, manifest.attempt, digest)
        except UsageError as error:
            raise DataLost(f"it names a piece that there cannot be: {error.message}") from None
        return row_of(store, key, MOST_PIECE_BYTES)

    return get


def write(store: Store, manifest: Manifest) -> None:
    """From now on it can be restored: its pieces are there. Raises: StoreUnavailable."""
    store.put(Checkpoint(sub=manifest.sub, index=manifest.index, attempt=manifest.attempt, n=manifest.n).key, encode_manifest(manifest))


def prune(store: Store, sub: int, index: int, attempt: int, seals: Seals = OPEN) -> None:
    """Removes all but the last `KEPT`, and pieces that none of these needs. One that is not to be believed, or read, is none of them.

    Nothing of a later attempt is touched: whoever is slow or dead does not know what that one needs.
    Raises: StoreUnavailable, CoordinationUnavailable.
    """
    needed: dict[int, set[str]] = {}
    unreadable: set[int] = set()
    kept = 0
    for one in listed(store, sub, index):
        if kept == KEPT:
            if one.attempt <= attempt:
                store.delete(one.key)
            continue
        try:
            files = read(store, one, seals).files
        except PermissionDenied:
            if one.attempt <= attempt:
                store.delete(one.key)
            continue
        except DataLost:  # its pieces stay, and it pushes out none that can be read: anybody can write nonsense
            unreadable.add(one.attempt)
            continue
        kept += 1
        needed.setdefault(one.attempt, set()).update(row[0] for entry in files for row in entry.rows)
    for key, checkpoint in _keys(store, keys.checkpoints_of(sub, index)):
        if checkpoint is None:
            _, _, _, made, digest = key.split("/")
            if int(made) <= attempt and int(made) not in unreadable and digest not in needed.get(int(made), set()):
                store.delete(key)


def _keys(store: Store, prefix: str) -> Iterator[tuple[str, Checkpoint | None]]:
    """Keys below a prefix, a page in memory at a time, each with its checkpoint, None = a piece. What is neither is left out."""
    last = ""
    while True:
        page = store.keys(prefix, after=last, limit=_PAGE)
        for key in page:
            try:
                yield key, keys.parse_checkpoint(key)
            except UsageError:  # nobody but a user has written it, and no node is to blame for it
                continue
        if len(page) < _PAGE:
            return
        last = page[-1]
