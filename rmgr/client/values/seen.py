"""Keys that this process knows to have been taken: what it put, what its tasks were given, what it found to exist."""

from __future__ import annotations

import threading
from collections.abc import Iterable

#: Keys that are remembered, the latest: some MB.
MOST = 65_536


class SeenKeys:
    """A set of keys, bounded. Thread-safe. What it holds may be free again by now: who finds a key in it looks at the store."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: dict[str, None] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[str]) -> None:
        """They are taken; the earliest are forgotten for them. Cost: O(keys)."""
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)
                self._keys[key] = None
            while len(self._keys) > self._most:
                del self._keys[next(iter(self._keys))]

    def forget(self, keys: Iterable[str]) -> None:
        """They are free."""
        with self._lock:
            for key in keys:
                self._keys.pop(key, None)
