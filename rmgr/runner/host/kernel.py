"""Calls into the kernel that Python has no name for; each does nothing, and says so, where the system lacks it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import time

IS_LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
#: Errors that say something of the node, not of the work: elsewhere it may succeed.
NODE_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS, errno.EIO})
#: Begins what is told of work that failed by itself while the disk of its node was full.
DISK_WAS_FULL = "the disk was full"
#: Less free than this, or than a hundredth of the file system, is nothing.
_FULL_BYTES = 1024 * 1024
#: What a spawner reports when its slot's directory was removed: nothing more can be started there.
DIRECTORY_GONE = "directory_gone"
#: Variables that a spawner's interpreter starts with, and that are not of its work.
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
    """Orphaned descendants become children of this process: whatever forks twice can still be found."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int) -> bool:
    """This process gets `signum` when the thread that forked it ends."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def close_to_others() -> bool:
    """No process of the same user reads this one's memory, takes its descriptors or traces it, until `open_to_others` or exec.

    /proc/self belongs to root meanwhile: what is written there is written before (`prefer_for_oom`). Reading it goes on.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def open_to_others() -> bool:
    """Undoes `close_to_others`: a worker is its user's to look into."""
    return _prctl(_PR_SET_DUMPABLE, 1)


def forbid_new_privileges() -> bool:
    """Set-uid programs gain nothing, here and in all descendants."""
    return _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def prefer_for_oom(score: int) -> None:
    """The kernel's out-of-memory killer takes this process before those with a lower score (0 = daemons)."""
    if IS_LINUX:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))


def keep_memory() -> None:
    """Freed memory is used again, up to 16 MiB of it: glibc maps large values anew, and each page of theirs costs a fault.

    Arguments of 1 MiB take 0.05 ms instead of 1 ms of the processor that way, and so do the objects in them.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 8 * 1024 * 1024)
        libc.mallopt(_M_TRIM_THRESHOLD, 16 * 1024 * 1024)


def trim_memory() -> None:
    """Gives freed memory back to the system: 0.7-1 MiB of what importing has taken. Nothing where the C library has no name for it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_full(directory: str) -> bool:
    """Nothing can be written on its file system now: no block is left for who asks, or no file. Cost: 2 us."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    free = found.f_bavail if os.geteuid() else found.f_bfree
    left, whole = free * found.f_frsize, found.f_blocks * found.f_frsize
    return left < min(_FULL_BYTES, whole // 100) or (found.f_files > 0 and not found.f_favail)


def oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since boot."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


# -- processors that work may use, as its variable RMGR_CPU_BIND names them ----------------------------------------------------


CPU_BIND = "RMGR_CPU_BIND"


def bind_processors(text: str, *, every_thread: bool = False) -> None:
    """This process, and what it starts from now on, use these processors only (`0,2`; "" = as they do). Cost: a few us a thread.

    every_thread: those that libraries have begun, too. Processors that are gone are nobody's error: work runs on where it is.
    """
    if not text:
        return
    cpus = [int(number) for number in text.split(",")]
    threads = [0]
    if every_thread:
        with contextlib.suppress(OSError):
            threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        with contextlib.suppress(OSError, AttributeError):  # no such call where there is no Linux
            os.sched_setaffinity(thread, cpus)
