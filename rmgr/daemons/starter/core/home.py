"""The directories of a Starter and the disk they are on. Directories are made at the start, and again when something has removed them
(a cleaner of temporary files).

They may lie where users can write (/tmp), so whatever stands in place of a removed directory is never followed. A directory is trusted
if it is no link and still has the owner it had at the start; anything else is put aside before a new one is made.
The directories are checked every two seconds and whenever a file was not found, never for each task.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from rmgr.model.units import format_size
from rmgr.runtime import machine
from rmgr.runtime.machine import Log

#: Pause between two checks made because a task was lost.
_PACE_S = 0.05
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: For the directories on the way: they may be passed and not read.
_PASS = _DIRECTORY | getattr(os, "O_PATH", 0)
#: With less free space than this, or than this share of the file system, the node takes no work until twice as much is free.
_LOW_BYTES, _LOW_SHARE = 64 * 1024 * 1024, 0.05


class Home:
    """All directories of one Starter, the outer ones first. Any thread may call it.

    Args:
        root: the work directory, which exists. on_mended: called (on any thread) after directories were made again.
    """

    def __init__(self, root: Path, *, on_mended: Callable[[], None], log: Log) -> None:
        self.root = root.resolve()
        self.generation = 0  #: how often directories had to be made again
        self.forget: list[Callable[[], bool]] = []  #: caches: each forgets files that are gone, returns whether any was; any thread
        self._on_mended = on_mended
        self._log = log
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[int, int]] = {}  #: mode and owner
        self._owners = {place: os.lstat(place).st_uid for place in self.root.parents}  #: of the directories above: trusted if unchanged

    def keep(self, *places: Path) -> None:
        """Adds existing directories, the root or below it, outer ones first, to those that must stay with their current mode."""
        for place in places:
            found = os.stat(place)
            self._kept[place.resolve()] = stat.S_IMODE(found.st_mode), found.st_uid

    def mend(self) -> bool:
        """Makes missing directories again. Returns: whether any was missing. Raises: OSError if one cannot be made. Cost: an lstat each."""
        with self._lock:
            made = [str(place) for place in self._kept if self._make(place)]  # one by one: a directory below a link may look like ours
            if not made:
                return False
            self.generation += 1
        self._log.warning("directories_made_again", name=",".join(made), why="they were removed, or something else stood there")
        self._on_mended()
        return True

    def check(self) -> None:
        """Checks the root before files are made below it. Raises: OSError if it was removed and cannot be made again. Cost: an lstat.

        Users can exchange only the root: everything below it is in directories in which they cannot write.
        """
        if not self._stands(self.root):
            self.mend()

    def look(self) -> bool:
        """Checks everything after a file was not found. Returns: whether directories or kept files were missing; those are mended or
        forgotten."""
        try:
            was_gone = self.mend()
        except OSError as error:
            self._log.error("directories_not_made", error=str(error))
            return False
        found = [forget() for forget in self.forget]
        return was_gone or any(found)

    def retry(self, error: BaseException, before: int) -> bool:
        """Returns whether to retry what failed with `error`: something was missing, and was mended since generation `before`."""
        return isinstance(error, (FileNotFoundError, NotADirectoryError)) and (self.look() or self.generation != before)

    def _make(self, place: Path) -> bool:
        """Makes one directory again; False if it still stands. Raises: OSError."""
        if self._stands(place):
            return False
        mode, _ = self._kept[place]
        fd = self._open_parent(place)
        try:
            _put_aside(place.name, fd)
            os.mkdir(place.name, 0o700, dir_fd=fd)
            made = os.open(place.name, _DIRECTORY, dir_fd=fd)
            try:
                if os.fstat(made).st_uid != os.geteuid():
                    raise OSError(errno.EIO, f"{place} was exchanged while it was made")
                os.fchmod(made, mode)
            finally:
                os.close(made)
        finally:
            os.close(fd)
        self._kept[place] = mode, os.geteuid()
        return True

    def _stands(self, place: Path) -> bool:
        """Returns whether `place` is a directory with the owner it had at the start."""
        try:
            found = os.lstat(place)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and place in self._kept and found.st_uid == self._kept[place][1]

    def _open_parent(self, place: Path) -> int:
        """Returns a descriptor of the parent of `place`, made if absent; follows no link. Raises: OSError."""
        fd = os.open("/", _PASS)
        at = Path("/")
        try:
            for name in place.parent.parts[1:]:
                at /= name
                try:
                    below = os.open(name, _PASS, dir_fd=fd)
                except FileNotFoundError:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=fd)
                    below = os.open(name, _PASS, dir_fd=fd)
                os.close(fd)
                fd = below
                self._check_trusted(at, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_trusted(self, place: Path, found: os.stat_result) -> None:
        kept = self._kept.get(place)
        if found.st_uid not in (0, os.geteuid(), self._owners.get(place), kept[1] if kept is not None else None):
            raise OSError(errno.EIO, f"{place} belongs to uid {found.st_uid}, not to this Starter: remove it, or choose another --work-dir")


def _put_aside(name: str, fd: int) -> None:
    """Clears `name`: removes a link or file, gives a directory another name. Raises: OSError."""
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        os.rename(name, f"{name}.foreign-{machine.guid()[:8]}", src_dir_fd=fd, dst_dir_fd=fd)
    else:
        os.unlink(name, dir_fd=fd)


# -- room on the disk ------------------------------------------------------------------------------------------------------
# Whether the work directory has room for what work writes: enough free space, and a test write that succeeds.


class DiskWatch:
    """Looks at one directory, and knows how much room its file system had then (bytes, 0 = not known). A look may hang: see `Outlook`.

    mend: makes again what was removed; may raise OSError.
    """

    def __init__(self, directory: Path, mend: Callable[[], object] = lambda: None) -> None:
        self.directory = directory
        self.free_bytes = self.total_bytes = 0  #: free for ordinary users; at the last look
        self._mend = mend
        self._is_bad = False

    def look(self) -> str:
        """Returns why no work should be taken, "" when all is well. Cost: a small write. One thread at a time."""
        why = self._check(2 if self._is_bad else 1)
        self._is_bad = bool(why)
        return why

    def _check(self, factor: int) -> str:
        try:
            self._mend()
            found = os.statvfs(self.directory)
            self.free_bytes, self.total_bytes = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
            low = min(_LOW_BYTES, int(self.total_bytes * _LOW_SHARE)) * factor
            if self.free_bytes < low:
                return f"the work directory {self.directory} is full ({format_size(self.free_bytes)} free)"
            probe = self.directory / ".probe"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except OSError as error:
            self.free_bytes = 0
            return f"the work directory {self.directory} cannot be written: {error.strerror or error}"
        return ""
