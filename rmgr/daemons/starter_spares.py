"""Names of directories used again by the next job: to make one and to remove it costs a Starter more than a short job does.

Only what is as it was made is kept (the caller sees to that), and not for long: what nobody has wanted for a moment is removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable
from pathlib import Path

#: What nobody has wanted for so long goes; so many of a kind are kept.
IDLE_S, MOST = 1.0, 64


class Spares:
    """Of one node. after: calls later, in the owner's thread. remove: takes one away for good; may raise OSError."""

    def __init__(self, after: Callable[[float, Callable[[], None]], object], remove: Callable[[Path], None]) -> None:
        self._after = after
        self._remove = remove
        self._free: dict[Hashable, list[Path]] = {}
        self._wanted_s = 0.0
        self._is_looking = False

    def take(self, kind: Hashable) -> Path | None:
        """One of that kind, None: there is none."""
        self._wanted_s = time.monotonic()
        free = self._free.get(kind)
        return free.pop() if free else None

    def give(self, kind: Hashable, place: Path) -> None:
        """Nobody needs it now."""
        free = self._free.setdefault(kind, [])
        if len(free) >= MOST:
            self._gone(place)
            return
        free.append(place)
        if not self._is_looking:
            self._is_looking = True
            self._after(IDLE_S, self._look)

    def _look(self) -> None:
        left_s = self._wanted_s + IDLE_S - time.monotonic()
        if left_s > 0:
            self._after(left_s, self._look)
            return
        self._is_looking = False
        for places in self._free.values():
            for place in places:
                self._gone(place)
        self._free.clear()

    def _gone(self, place: Path) -> None:
        with contextlib.suppress(OSError):  # what stands there now is somebody else's doing, and goes with the next Starter
            self._remove(place)
