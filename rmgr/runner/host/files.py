"""Files and directories of work: removed, written, and compared with how they were made.

Directories that work has had to itself are removed without following links, however deep they are and whatever their owner has closed.
"""

from __future__ import annotations

import contextlib
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opens also what its owner may not read.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER = stat.S_IRWXU


def remove_tree(directory: str | os.PathLike[str]) -> None:
    """Removes a directory, or what has been put in its place (a file, a link), as far as that is possible. Raises nothing."""
    with contextlib.suppress(OSError):
        remove_all(directory)


def remove_all(directory: str | os.PathLike[str]) -> None:
    """The same. Raises: OSError for what cannot be removed, once the rest has gone; nothing where there is nothing.

    Directories below are moved up into the first one, and removed from there: as deep as they may be, two are open at once.
    Cost: 20 us a directory, 5 us a file.
    """
    parent, name = os.path.split(os.path.abspath(directory))
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            os.unlink(directory)
            return
        above = os.open(parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        top = _opened(name, above)
        try:
            failed = _empty(top)
        finally:
            os.close(top)
        if failed is not None:
            raise failed
        os.rmdir(name, dir_fd=above)
    finally:
        os.close(above)


def _empty(top: int) -> OSError | None:
    """Removes what is in an open directory; returns what kept it from that."""
    mark, made = os.urandom(8).hex(), 0
    failed: OSError | None = None
    todo = [""]
    while todo:
        at = todo.pop()
        fd = top
        try:
            fd = _opened(at, top) if at else top
            for name in os.listdir(fd):
                try:
                    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        os.unlink(name, dir_fd=fd)
                        continue
                    os.close(_opened(name, fd))  # only who may write into a directory can move it
                    made += 1
                    moved = f".{mark}-{made}"
                    os.rename(name, moved, src_dir_fd=fd, dst_dir_fd=top)
                    todo.append(moved)
                except FileNotFoundError:
                    continue  # somebody else is at it, too
                except OSError as error:
                    failed = error
        except OSError as error:
            failed = error
        finally:
            if fd != top:
                os.close(fd)
        if at:
            try:
                os.rmdir(at, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = failed or error
    return failed


def _opened(name: str, below: int) -> int:
    """A directory, opened to its owner if it is closed to him. Raises: OSError."""
    look = os.open(name, _LOOK, dir_fd=below)
    try:
        mode = stat.S_IMODE(os.fstat(look).st_mode)
        if mode & _OWNER != _OWNER:
            with contextlib.suppress(OSError):  # somebody else's: it may be open to us all the same
                # What was opened is changed, whatever stands under its name by now.
                os.chmod(f"/proc/self/fd/{look}" if os.path.isdir("/proc/self/fd") else look, mode | _OWNER)
    finally:
        os.close(look)
    return os.open(name, _DIRECTORY, dir_fd=below)


# -- writing -------------------------------------------------------------------------------------------------------------------


#: What is written at a time. Linux takes page cache in pieces as large as the write, the largest free ones first: in a virtual
#: machine those are what its host has taken back, and a file of 1 MiB costs 2.5 ms of the system's time instead of 0.4.
_WRITE_BYTES = 64 * 1024


def write_whole(fd: int, data: bytes | memoryview) -> None:
    """Writes all of `data`. Raises: OSError; then a part of it may be written."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left[:_WRITE_BYTES]) :]


# -- whether a directory is as it was made, by what its file system notes of it: its listing and attributes are six system calls


#: The clock of a file system moves at least this often, by whether it counts below seconds.
_FINE_NS, _COARSE_NS = 50_000_000, 3_000_000_000


def marks_of(directory: str | os.PathLike[str]) -> tuple[int, ...]:
    """What changes when anything in or of a directory is changed, as finely as its time stamps tell. Raises: OSError."""
    found = os.lstat(directory)
    return (found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_ctime_ns, found.st_mtime_ns)


def blind_ns(marks: tuple[int, ...]) -> int:
    """How long after its making a change of a directory with these marks may leave them as they are."""
    return _FINE_NS if marks[-1] % 1_000_000_000 else _COARSE_NS
