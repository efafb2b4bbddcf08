"""Values that are named by what they hold: written once, by whoever needs them first."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rmgr.errors import KeyExists

if TYPE_CHECKING:
    from rmgr.coord.ports import Store


def put_once(store: Store, key: str, data: bytes, *, timeout_s: float) -> None:
    """Writes `data` under a key that names its hash, unless it is there: then it holds the same, and may be somebody else's.

    Raises: StoreUnavailable, PermissionDenied, ValueTooLarge.
    """
    with suppress(KeyExists):
        store.put(key, data, overwrite=False, timeout_s=timeout_s)
