"""Output files of tasks: the work itself appends to them (nothing stands between), they are kept below a cap, and read while they grow.

A file above its cap keeps its first and its last half: the middle is given back to the file system while the work runs (a hole), so 1 GB of
output costs 64 MiB of disk and slows nothing. Without support for holes the file is cut at the cap again and again, which keeps only its
first part.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable

from rmgr.model.tasks.gap import gap_line
from rmgr.model.wire.frames import MAX_INLINE_OUTPUT, NO_OUTPUT, Output

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_COPY = 1024 * 1024
_BLOCK = 4096


def open_output(path: str, *, append: bool = True) -> int:
    """Opens an output file for appending, created if absent. Raises: OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags if append else flags | os.O_TRUNC, 0o666)


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
    dropped = _condense(fd, final, size, cap)
    os.ftruncate(fd, 0)
    os.unlink(path)
    return Output(size=size, path=final, dropped=dropped)


def settle(path: str, cap: int) -> Output:
    """Describes a file that stays where it is (`--out FILE`), after condensing away its dropped part."""
    size = os.stat(path).st_size
    if size <= cap:
        return Output(size=size, path=path)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        dropped = _condense(fd, path + ".part", size, cap)
    finally:
        os.close(fd)
    os.replace(path + ".part", path)
    return Output(size=size, path=path, dropped=dropped)


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


def _condense(fd: int, final: str, size: int, cap: int) -> int:
    """Writes head, marker and tail of `fd` to `final`; returns the number of bytes left out."""
    head = _aligned(cap // 2)
    tail = max(head, _aligned(size - cap // 2) + _BLOCK)
    dropped = tail - head
    out = os.open(final, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _copy(fd, out, 0, head)
        os.write(out, gap_line(dropped, cap))
        _copy(fd, out, tail, size)
    finally:
        os.close(out)
    return dropped


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(_COPY, end - start), start)
        if not data:
            return
        start += len(data)
        while data:
            data = data[os.write(target, data) :]


def _aligned(offset: int) -> int:
    return offset - offset % _BLOCK


def _punch(fd: int, start: int, length: int) -> bool:
    if _fallocate is None or length <= 0:
        return length <= 0
    if _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, length) == 0:
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


_fallocate = _load_fallocate()
