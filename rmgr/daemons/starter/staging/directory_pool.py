"""Directories, and names of them, used again by the next job: to make one and to remove it costs a Starter more than a short job does.

Only what is as it was made is kept (the caller sees to that), and not for long: what nobody has wanted for a moment is removed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Hashable
from pathlib import Path

from rmgr.runner.host.files import blind_ns, marks_of
from rmgr.runtime import machine

#: What nobody has wanted for so long goes; so many of a kind are kept.
IDLE_S, MOST = 1.0, 64


class DirectoryPool:
    """Lends directories of one node again. after: calls later, in its thread. remove: takes one away for good; may raise OSError."""

    def __init__(self, after: Callable[[float, Callable[[], None]], object], remove: Callable[[Path], None]) -> None:
        self._after = after
        self._remove = remove
        self._free: dict[Hashable, list[Path]] = {}
        self._wanted_s = -math.inf
        self._is_looking = False

    def take(self, kind: Hashable) -> Path | None:
        """One of that kind that still stands, None: there is none. Cost: a stat."""
        self._wanted_s = machine.monotonic()
        free = self._free.get(kind)
        while free:
            place = free.pop()
            if place.exists():  # a cleaner may have been here: nobody notices until work misses it, and that work would have failed
                return place
            self._gone(place)
        return None

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

    def forget_lost(self) -> None:
        """Those that were removed by somebody else are not lent any more."""
        for kind, places in self._free.items():
            self._free[kind] = [place for place in places if place.exists()]
            for place in set(places).difference(self._free[kind]):
                self._gone(place)

    def _look(self) -> None:
        left_s = self._wanted_s + IDLE_S - machine.monotonic()
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


class Untouched:
    """Whether an empty directory is as it was made. Cost: an lstat; for those lent as soon as they were made a reading, too."""

    def __init__(self) -> None:
        self._made: dict[Path, tuple[tuple[int, ...], float]] = {}  #: its marks, and since when any change of it changes them
        self._lent_s: dict[Path, float] = {}

    def made(self, place: Path) -> None:
        """It is made, empty, and its owner's. Raises: OSError."""
        marks = marks_of(place)
        self._made[place] = marks, machine.monotonic() + blind_ns(marks) / 1e9

    def lent(self, place: Path) -> None:
        """From now on somebody may change it."""
        self._lent_s[place] = machine.monotonic()

    def is_as_made(self, place: Path) -> bool:
        """Nobody has left anything in it, or changed it, since it was made."""
        made, lent_s = self._made.get(place), self._lent_s.get(place, -math.inf)
        try:
            return made is not None and marks_of(place) == made[0] and (lent_s > made[1] or not os.listdir(place))
        except OSError:
            return False

    def forget(self, place: Path) -> None:
        """It is gone, or somebody else's."""
        self._made.pop(place, None)
        self._lent_s.pop(place, None)
