"""Room for staged files on a Starter's disk: a limit in bytes, what is taken of it, and who gives way when it is full.

What is about to be written is taken first, by an estimate; what it turns out to use is put right afterwards. Nobody waits
here: who gets no room is told so, and asks again once something was given back.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmgr.errors import ValueTooLarge
from rmgr.model.units import format_size

#: Limit where nobody sets one ([starter] staging_cap_bytes).
CAP_BYTES = 16 * 1024 * 1024 * 1024
_PAGE = 4096
#: Taken in steps of this where an estimate was too low.
_STEP_BYTES = 1024 * 1024


class NoRoom(Exception):
    """The limit is reached now: it is worth asking again once `Room.given` has changed."""


class GivenUpError(Exception):
    """Nobody waits for it any more."""


class Room:
    """Bytes on disk that a Starter's staged files may take. Thread-safe.

    Attributes:
        used_bytes: taken now. given: grows whenever something is given back, or could be thrown out.
        throw_out: asked to give back at least so many bytes that nobody uses.
    """

    def __init__(self, cap_bytes: int = CAP_BYTES) -> None:
        self.cap_bytes = cap_bytes
        self.used_bytes = 0
        self.given = 0
        self.throw_out: Callable[[int], None] = lambda _short: None
        self._lock = threading.Lock()

    def take(self, need_bytes: int, what: str, *, held_bytes: int = 0) -> None:
        """Takes `need_bytes`, or nothing at all.

        Args:
            what: needs them, for messages. held_bytes: taken already by the task that asks, which keeps them meanwhile.
        Raises: ValueTooLarge when they will never fit; NoRoom when they do not fit now.
        """
        if held_bytes + need_bytes > self.cap_bytes:
            size, cap = format_size(held_bytes + need_bytes), format_size(self.cap_bytes)
            told = f"{what} would take {size} of this node's disk, and its limit for staged files is {cap} ([starter] staging_cap_bytes)"
            raise ValueTooLarge(f"{told}: send less, use a shared file system, or have the limit raised")
        if self._try(need_bytes):
            return
        self.throw_out(self.used_bytes + need_bytes - self.cap_bytes)
        if not self._try(need_bytes):
            raise NoRoom

    def settle(self, taken_bytes: int, really_bytes: int) -> None:
        """What was taken by an estimate uses `really_bytes`: 0 gives it back."""
        with self._lock:
            self.used_bytes += really_bytes - taken_bytes
            self.given += really_bytes < taken_bytes

    def freed(self) -> None:
        """Nobody uses something any more that could be thrown out."""
        with self._lock:
            self.given += 1

    def _try(self, need_bytes: int) -> bool:
        with self._lock:
            fits = self.used_bytes + need_bytes <= self.cap_bytes
            self.used_bytes += need_bytes if fits else 0
        return fits


@dataclass(slots=True, eq=False)
class Wish:
    """A task that is being staged. is_wanted: its block is still on this node, and it was not given away."""

    is_wanted: bool = True


class Share:
    """What one task takes of the room while it is staged. what: for messages."""

    def __init__(self, room: Room, wish: Wish, what: str) -> None:
        self._room = room
        self._wish = wish
        self._what = what
        self.held_bytes = 0  #: by uploads that it uses
        self._taken = self._made = 0

    def take(self, need_bytes: int) -> None:
        """So much is going to be written. Raises: ValueTooLarge, NoRoom (see `Room.take`); GivenUpError."""
        if not self._wish.is_wanted:
            raise GivenUpError
        self._room.take(need_bytes, self._what, held_bytes=self.held_bytes + self._taken)
        self._taken += need_bytes

    def making(self, more_bytes: int) -> None:
        """So much more is written now, taken before or not. Raises: as `take`."""
        self._made += more_bytes
        if self._made > self._taken or not self._wish.is_wanted:
            self.take(max(self._made - self._taken, _STEP_BYTES))

    def settle(self, really_bytes: int) -> None:
        """The end of staging: so much is kept."""
        self._room.settle(self._taken, really_bytes)
        self._taken = 0


def disk_bytes(path: Path) -> int:
    """What a file, or a directory with all that is in it, uses on disk: each inode once, no link followed. Cost: an lstat a name."""
    seen: set[tuple[int, int]] = set()
    used = 0
    names = [str(path)]
    while names:
        name = names.pop()
        try:
            found = os.lstat(name)
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                used += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode):
                names += [entry.path for entry in os.scandir(name)]
        except FileNotFoundError:
            continue
    return used


def on_disk(size_bytes: int) -> int:
    """An estimate for a file of that size: whole pages."""
    return -(-size_bytes // _PAGE) * _PAGE
