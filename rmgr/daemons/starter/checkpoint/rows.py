"""The checkpoints of a task in the data store: which there are, one read or written, old ones removed (`protocol/keys.py` names them)."""

from __future__ import annotations

from collections.abc import Callable

from rmgr.coord.protocol import keys
from rmgr.coord.protocol.keys import Checkpoint
from rmgr.coord.protocol.ports import Store
from rmgr.daemons.starter.checkpoint.files import Manifest, decode_manifest, encode_manifest
from rmgr.daemons.starter.checkpoint.seal import OPEN, Seals
from rmgr.errors import DataLost, PermissionDenied

#: How many of a task are kept: should the last not be readable, there is one before.
KEPT = 2
_PAGE = 1000


def listed(store: Store, sub: int, index: int) -> list[Checkpoint]:
    """All of a task, the newest first. Raises: StoreUnavailable."""
    found = [found for key in _keys(store, keys.checkpoints_of(sub, index)) if (found := keys.parse_checkpoint(key)) is not None]
    return sorted(found, key=lambda one: one.order, reverse=True)


def read(store: Store, checkpoint: Checkpoint, seals: Seals = OPEN) -> Manifest:
    """What one holds. Raises: DataLost; PermissionDenied when it is not to be believed; StoreUnavailable, CoordinationUnavailable."""
    found = store.get(checkpoint.key)
    if found is None:
        raise DataLost("its list of files is not in the data store")
    manifest = decode_manifest(found[0])
    seals.check(found[0], manifest)
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
    """Gets pieces of a checkpoint."""

    def get(digest: str) -> bytes | None:
        found = store.get(keys.checkpoint_piece(manifest.sub, manifest.index, manifest.attempt, digest))
        return found[0] if found is not None else None

    return get


def write(store: Store, manifest: Manifest) -> None:
    """From now on it can be restored: its pieces are there. Raises: StoreUnavailable."""
    store.put(Checkpoint(sub=manifest.sub, index=manifest.index, attempt=manifest.attempt, n=manifest.n).key, encode_manifest(manifest))


def prune(store: Store, sub: int, index: int, attempt: int, seals: Seals = OPEN) -> None:
    """Removes all but the last `KEPT`, and pieces that none of these needs. One that is not to be believed is none of them.

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
        except DataLost:
            files = ()
            unreadable.add(one.attempt)
        kept += 1
        needed.setdefault(one.attempt, set()).update(row[0] for entry in files for row in entry.rows)
    for key in _keys(store, keys.checkpoints_of(sub, index)):
        if keys.parse_checkpoint(key) is None:
            _, _, _, made, digest = key.split("/")
            if int(made) <= attempt and int(made) not in unreadable and digest not in needed.get(int(made), set()):
                store.delete(key)


def _keys(store: Store, prefix: str) -> list[str]:
    found: list[str] = []
    while True:
        page = store.keys(prefix, after=found[-1] if found else "", limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found
