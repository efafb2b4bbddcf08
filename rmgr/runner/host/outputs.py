"""Output files of tasks: the work itself appends to them (nothing stands between), they are kept below a cap, and read while they grow.

A file above its cap keeps its first and its last half: the middle is given back to the file system while the work runs (a hole), so 1 GB of
output costs 64 MiB of disk and slows nothing. Without support for holes the file is cut at the cap again and again, which keeps only its
first part. A file that the user named (`--out FILE`) stays whole: what is stored of it above the cap is a copy without its middle.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress

from rmgr.model.block import gap_line
from rmgr.model.frames import MAX_INLINE_OUTPUT, NO_OUTPUT, Output

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_COPY = 1024 * 1024
_BLOCK = 4096
_OPEN_FILES = ("/dev/fd/", "/dev/std", "/dev/tty", "/proc/")


def open_output(path: str, *, append: bool = True) -> int:
    """Opens an output file for appending, created if absent. Raises: OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags if append else flags | os.O_TRUNC, 0o666)


def open_named(path: str, *, append: bool) -> int:
    """`open_output` of a file that a user has named. Raises: OSError, also for what is neither a plain file nor /dev/null.

    Nobody would read a pipe, a terminal would become the spawner's own, and /dev/stdout is the log of its Starter.
    """
    if os.path.normpath(path).startswith(_OPEN_FILES):
        raise OSError(errno.EINVAL, "it names what a process has open; leave it out: rmgr logs shows what work prints", path)
    with suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or os.path.realpath(path) == os.devnull):
            raise OSError(errno.EINVAL, "it is no plain file", path)
    return open_output(path, append=append)


def trim(fd: int, cap: int) -> bool:
    """Gives back the middle of a file above `cap` bytes; returns whether it was above. Cost: one fstat when below."""
    size = os.fstat(fd).st_size
    if size <= cap:
        return False
    head = _aligned(cap // 2)
    tail = _aligned(size - cap // 2)
    if not _punch(fd, head, tail - head):
        os.ftruncate(fd, cap)  # writers append: they go on at the new end
    return True


def trim_path(path: str, cap: int) -> bool:
    """Trims a file that another process writes; ignores an absent one."""
    try:
        if os.stat(path).st_size <= cap:
            return False
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return trim(fd, cap)
    except OSError:
        return False
    finally:
        os.close(fd)


def take(fd: int, path: str, final: str, cap: int) -> Output:
    """Ends one task's use of an output file and empties it for the next.

    Small output is returned inline; otherwise the file is moved (copied, if its middle was dropped) to `final`. After a move `path` is
    free: the caller opens it again if `Output.path` is not empty.
    Cost: one lseek if nothing was written.
    """
    size = os.lseek(fd, 0, os.SEEK_END)
    if size == 0:
        return NO_OUTPUT
    if size <= MAX_INLINE_OUTPUT:
        data = os.pread(fd, size, 0)
        os.ftruncate(fd, 0)
        return Output(size=size, data=data)
    if size <= cap:
        os.rename(path, final)
        return Output(size=size, path=final)
    dropped = _condense(fd, final, 0, size, cap)
    os.ftruncate(fd, 0)
    os.unlink(path)
    return Output(size=size, path=final, dropped=dropped)


def settle(fd: int, path: str, start: int, final: str, cap: int) -> Output:
    """Describes what lies from `start` on in a file that stays as it is (`--out FILE`).

    If that is not all of it, is more than `cap`, or the file is no longer at `path`, the result names a copy, `final`, without the middle
    above `cap`.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):  # /dev/null
        return NO_OUTPUT
    start = start if start <= found.st_size else 0  # the file was truncated meanwhile
    size = found.st_size - start
    if not start and size <= cap and _is_at(found, path):
        return Output(size=size, path=path)
    if size <= MAX_INLINE_OUTPUT:
        return Output(size=size, data=os.pread(fd, size, start))
    return Output(size=size, path=final, dropped=_condense(fd, final, start, found.st_size, cap))


def read_live(fd: int, offset: int, limit: int, cap: int) -> tuple[bytes, int] | None:
    """Returns (bytes of a growing output file from `offset`, next offset), b"" at its end; None if it cannot be read.

    A read stops before the dropped middle; one that begins there gets the line that counts missing bytes, and what follows the gap. `limit`
    does not count that line.
    """
    try:
        return _read_around(fd, offset, limit, cap)
    except OSError:
        return None


def _read_around(fd: int, offset: int, limit: int, cap: int) -> tuple[bytes, int]:
    start = offset
    while True:
        data = os.pread(fd, limit, start)
        if os.fstat(fd).st_size <= cap:  # a hole in it is the work's own
            break
        # Checked after the read: bytes given back meanwhile were read as NULs.
        head = max(start, _aligned(cap // 2))
        hole = _seek(fd, head, os.SEEK_HOLE)
        if hole >= start + len(data):
            break
        if hole > start:
            data = data[: hole - start]
            break
        following = _seek(fd, start, os.SEEK_DATA)
        if following <= start:
            break  # the file system does not tell
        start = following
    line = gap_line(start - offset, cap) if start > offset else b""
    return line + data, start + len(data)


def _seek(fd: int, offset: int, whence: int) -> int:
    """Returns where the next data or hole begins; the end of the file if the system does not tell."""
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        if error.errno not in {errno.ENXIO, errno.EINVAL}:
            raise
        return os.fstat(fd).st_size


def _condense(fd: int, final: str, start: int, end: int, cap: int) -> int:
    """Writes what lies from `start` to `end` to `final`: its head, a marker and its tail where it is more than `cap`.

    Returns: how many bytes were left out.
    """
    head = start + _aligned(cap // 2) if end - start > cap else end
    tail = max(head, _aligned(end - cap // 2) + _BLOCK) if head < end else end
    out = os.open(final, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _copy(fd, out, start, head)
        if tail > head:
            os.write(out, gap_line(tail - head, cap))
            _copy(fd, out, tail, end)
    finally:
        os.close(out)
    return tail - head


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(_COPY, end - start), start)
        if not data:
            return
        start += len(data)
        while data:
            data = data[os.write(target, data) :]


def _is_at(found: os.stat_result, path: str) -> bool:
    with suppress(OSError):
        return os.path.samestat(found, os.stat(path))
    return False


def _aligned(offset: int) -> int:
    return offset - offset % _BLOCK


def _punch(fd: int, start: int, length: int) -> bool:
    if fallocate is None or length <= 0:
        return length <= 0
    if fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, length) == 0:
        return True
    # other errors (interrupted, disk in trouble) are tried again at the next tick
    return ctypes.get_errno() not in {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM}


def _load_fallocate() -> Callable[[int, int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


fallocate = _load_fallocate()
