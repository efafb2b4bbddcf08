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
from rmgr.model.base.units import format_size

#: Limit where nobody sets one ([starter] staging_cap_bytes).
CAP_BYTES = 16 * 1024 * 1024 * 1024
_PAGE = 4096
#: Taken in steps of this where an estimate was too low.
_STEP_BYTES = 1024 * 1024


class NoRoom(Exception):
    """The limit is reached now: it is worth asking again once `StagingRoom.given` has changed. user: it is that user's own limit."""

    def __init__(self, user: str = "") -> None:
        super().__init__(user)
        self.user = user


class GivenUpError(Exception):
    """Nobody waits for it any more."""


class StagingRoom:
    """Bytes on disk that a Starter's staged files may take. Thread-safe.

    Attributes:
        cap_user_bytes: of it, for each user. used_bytes: taken now. given: grows whenever something is given back, or could be thrown out.
        throw_out: asked to give back at least so many bytes that nobody uses.
    """

    def __init__(self, cap_bytes: int = CAP_BYTES, cap_user_bytes: int = 0) -> None:
        self.cap_bytes = cap_bytes
        self.cap_user_bytes = min(cap_user_bytes or cap_bytes, cap_bytes)
        self.used_bytes = 0
        self._of: dict[str, int] = {}  #: taken by users
        self.given = 0
        self.throw_out: Callable[[int], None] = lambda _short: None
        self._lock = threading.Lock()

    def take(self, need_bytes: int, what: str, *, held_bytes: int = 0, user: str = "") -> None:
        """Takes `need_bytes`, or nothing at all.

        Args:
            what: needs them, for messages. held_bytes: taken already by the task that asks, which keeps them meanwhile.
            user: whose they are, "" = of what all share.
        Raises: ValueTooLarge when they will never fit; NoRoom when they do not fit now.
        """
        whole, cap, setting = held_bytes + need_bytes, self.cap_bytes, "staging_cap_bytes"
        if user and self.cap_user_bytes < cap:
            cap, setting = self.cap_user_bytes, "staging_cap_user_bytes"
        if whole > cap:
            told = f"{what} would take {format_size(whole)} of this node's disk, and "
            told += "its limit for staged files" if cap == self.cap_bytes else "the limit for staged files of one user"
            told += f" is {format_size(cap)} ([starter] {setting})"
            raise ValueTooLarge(f"{told}: send less, use a shared file system, or have the limit raised")
        if self._try(need_bytes, user):
            return
        self.throw_out(self.used_bytes + need_bytes - self.cap_bytes)
        if not self._try(need_bytes, user):
            raise NoRoom

    def settle(self, taken_bytes: int, really_bytes: int, *, user: str = "") -> None:
        """What was taken by an estimate uses `really_bytes`: 0 gives it back."""
        with self._lock:
            self._add(really_bytes - taken_bytes, user)
            self.given += really_bytes < taken_bytes

    def freed(self) -> None:
        """Nobody uses something any more that could be thrown out."""
        with self._lock:
            self.given += 1

    def _try(self, need_bytes: int, user: str) -> bool:
        with self._lock:
            if user and self._of.get(user, 0) + need_bytes > self.cap_user_bytes < self.cap_bytes:
                raise NoRoom(user)
            fits = self.used_bytes + need_bytes <= self.cap_bytes
            if fits:
                self._add(need_bytes, user)
        return fits

    def _add(self, more_bytes: int, user: str) -> None:
        self.used_bytes += more_bytes
        if user:
            self._of[user] = self._of.get(user, 0) + more_bytes
            if not self._of[user]:
                del self._of[user]


@dataclass(slots=True, eq=False)
class Wish:
    """A task that is being staged. is_wanted: its block is still on this node, and it was not given away."""

    is_wanted: bool = True


class StagingShare:
    """Room that one task takes while it is staged. what: for messages. user: whose it is."""

    def __init__(self, room: StagingRoom, wish: Wish, what: str, user: str = "") -> None:
        self._user = user
        self._room = room
        self._wish = wish
        self._what = what
        self.held_bytes = 0  #: by uploads that it uses
        self._taken = self._made = 0

    def take(self, need_bytes: int) -> None:
        """So much is going to be written. Raises: ValueTooLarge, NoRoom (see `StagingRoom.take`); GivenUpError."""
        if not self._wish.is_wanted:
            raise GivenUpError
        self._room.take(need_bytes, self._what, held_bytes=self.held_bytes + self._taken, user=self._user)
        self._taken += need_bytes

    def making(self, more_bytes: int) -> None:
        """So much more is written now, taken before or not. Raises: as `take`."""
        self._made += more_bytes
        if self._made > self._taken or not self._wish.is_wanted:
            self.take(max(self._made - self._taken, _STEP_BYTES))

    def settle(self, really_bytes: int) -> None:
        """The end of staging: so much is kept."""
        self._room.settle(self._taken, really_bytes, user=self._user)
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
