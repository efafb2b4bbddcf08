"""Calls into the kernel that Python does not offer; each does nothing, and says so, if the system lacks it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import time

IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
#: Errors of the node, not of the work: elsewhere it may succeed.
NODE_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS, errno.EIO})
#: Beginning of the error of work that failed while the disk of its node was full.
DISK_WAS_FULL = "the disk was full"
#: Free space below this, or below a hundredth of the file system, counts as none.
_FULL_BYTES = 1024 * 1024
#: Report of a spawner whose slot's directory was removed: nothing more can be started there.
DIRECTORY_GONE = "directory_gone"
#: Variables of a spawner's interpreter that its work must not see.
OF_SPAWNERS = ("PYTHONPATH", "PYTHONHASHSEED")
#: The clock of leases and time limits: it goes on while the machine sleeps.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _prctl(option: int, value: int) -> bool:
    if not IS_LINUX:
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def become_subreaper() -> bool:
    """Makes orphaned descendants children of this process, so that processes that fork twice can still be found."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> bool:
    """Lets this process get `signum` when the thread that forked it ends."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def close_to_others() -> bool:
    """Keeps other processes of the same user from tracing this one, or reading its memory or descriptors, until `open_to_others` or exec.

    Meanwhile /proc/self belongs to root: write there before (`prefer_for_oom`). Reading still works.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def open_to_others() -> bool:
    """Undoes `close_to_others`: a worker's user may look into it."""
    return _prctl(_PR_SET_DUMPABLE, 1)


def prefer_for_oom(score: int) -> None:
    """Lets the kernel's out-of-memory killer take this process before those with a lower score (0 = daemons)."""
    if IS_LINUX:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))


def keep_memory() -> None:
    """Lets up to 16 MiB of freed memory be used again: glibc would map large values anew, and each of their pages costs a fault.

    It makes arguments of 1 MiB, and the objects in them, cost 0.05 ms of the processor instead of 1 ms.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 8 * 1024 * 1024)
        libc.mallopt(_M_TRIM_THRESHOLD, 16 * 1024 * 1024)


def trim_memory() -> None:
    """Gives freed memory back to the system: 0.7-1 MiB of what importing has taken. Does nothing if the C library cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_full(directory: str) -> bool:
    """Returns whether a file system has no block left for this user, or no file. Cost: 2 us."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    free = found.f_bavail if os.geteuid() else found.f_bfree
    left, whole = free * found.f_frsize, found.f_blocks * found.f_frsize
    return left < min(_FULL_BYTES, whole // 100) or (found.f_files > 0 and not found.f_favail)


def oom_kills() -> int:
    """Returns how many processes the kernel has killed for lack of memory since boot."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


# -- processors that work may use, as its variable RMGR_CPU_BIND names them ----------------------------------------------------


CPU_BIND = "RMGR_CPU_BIND"


def bind_processors(text: str, *, every_thread: bool = False) -> None:
    """Binds this process, and those that it starts from now on, to these processors (`0,2`; "" = unchanged). Cost: a few us a thread.

    every_thread: also threads of libraries. Missing processors are no error: work keeps the ones that it has.
    """
    if not text:
        return
    cpus = [int(number) for number in text.split(",")]
    threads = [0]
    if every_thread:
        with contextlib.suppress(OSError):
            threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        with contextlib.suppress(OSError, AttributeError):  # only Linux has this call
            os.sched_setaffinity(thread, cpus)
