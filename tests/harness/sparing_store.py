"""A store that fails every caller that reads a large value whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.harness.memory_store import MemoryStore

_CHUNK = 512 * 1024


class SparingStore(MemoryStore):
    """A store in memory. large: keys whose values may only be streamed."""

    def __init__(self) -> None:
        super().__init__()
        self.large: set[str] = set()

    def get_noted_many(self, keys: Sequence[str], *, largest: int = 2**62, **options: Any) -> Any:
        assert largest < 2**40 or not self.large.intersection(keys), f"{keys} are read whatever their size"
        return super().get_noted_many(keys, largest=largest, **options)

    def get_noted(self, key: str, **options: Any) -> Any:
        assert key not in self.large, f"{key} is read whatever its size"
        return super().get_noted(key, **options)

    def stream(self, key: str, **options: Any) -> Iterator[bytes] | None:
        found = super().get_noted(key, **options)
        return None if found is None else (found[0][at : at + _CHUNK] for at in range(0, len(found[0]), _CHUNK))
