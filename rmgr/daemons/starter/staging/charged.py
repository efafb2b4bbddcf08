"""Counts what work writes into the data store for its user, on the way there, as a gateway counts what clients write (`store_bytes`).

Each Starter counts by itself, as each gateway does: a user may write the limit through each of them within a day.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rmgr.adapters.access.limits import Bounds
from rmgr.coord.protocol.ports import Store


class Charge:
    """Counts what one task has written: each row once, however often it has to be tried. For one thread at a time."""

    __slots__ = ("_bounds", "_rows", "_user")

    def __init__(self, bounds: Bounds, user: str) -> None:
        self._bounds = bounds
        self._user = user
        self._rows: dict[str, int] = {}

    def row(self, key: str, size: int) -> None:
        """So many bytes of a row are about to be written. Raises: LimitReached, and the row is not to be written."""
        more = size - self._rows.get(key, 0)
        if more > 0:
            self._bounds.write(self._user, more)
            self._rows[key] = size


class ChargedStore:
    """A store for `outputs.write` and for pieces of checkpoints: writes are counted and may raise LimitReached, all else is the store's."""

    def __init__(self, store: Store, charge: Charge) -> None:
        self._store = store
        self._charge = charge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, value: bytes | Iterable[bytes | memoryview], **options: Any) -> None:
        """See `Store.put`."""
        if isinstance(value, bytes):
            self._charge.row(key, len(value))
            self._store.put(key, value, **options)
        else:
            self._store.put(key, self._counted(key, value), **options)

    def adopt(self, key: str, path: str, **options: Any) -> tuple[int, bytes] | None:
        """See `Store.adopt`."""
        self._charge.row(key, os.stat(path).st_size)
        return self._store.adopt(key, path, **options)

    def _counted(self, key: str, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            self._charge.row(key, size)
            yield chunk


def charged(store: Store, charge: Charge) -> Store:
    """`store` for one who is charged."""
    made: Any = ChargedStore(store, charge)
    typed: Store = made
    return typed


#: Makes the charge of one user.
Charges = Callable[[str], Charge]
