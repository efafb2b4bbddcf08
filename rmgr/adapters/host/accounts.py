"""Local accounts, and doing something with files as one of them does it.

A Starter that is root must not be led astray by the work of its users: a path that their processes name, or that lies in
a directory of theirs, is opened and removed with their own rights, never with root's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import pwd
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass

#: System call of setgroups, which the C library would carry out for all threads of the process.
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
#: What everybody's work takes over from the Starter; the rest of its environment is nobody else's business.
_INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A local user. groups: all of the user's groups, the first one too."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    shell: str = "/bin/sh"

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """What a program of his starts with, from the environment of the Starter."""
        kept = {name: value for name, value in base.items() if name in _INHERITED or name.startswith("LC_")}
        return kept | {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def find_account(name: str) -> Account | None:
    """The local account of this name, None when there is none. Asks the system (files, LDAP, ...): may take its time."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    groups = tuple(dict.fromkeys((entry.pw_gid, *os.getgrouplist(name, entry.pw_gid))))
    return Account(
        name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=entry.pw_dir or "/", shell=entry.pw_shell or "/bin/sh"
    )


@contextlib.contextmanager
def acting(account: Account | None) -> Iterator[None]:
    """Within it this thread (and no other) has the rights of `account` where files are concerned; None: its own.

    Cost: six system calls. Raises: OSError when the system refuses (it never goes on with more rights than asked for).
    """
    if account is None:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.getgroups()
    try:
        _set_groups(libc, list(account.groups))
        libc.setfsgid(ctypes.c_uint(account.gid))
        libc.setfsuid(ctypes.c_uint(account.uid))
        # An impossible id changes nothing, and answers with the present one.
        if (libc.setfsuid(ctypes.c_int(-1)), libc.setfsgid(ctypes.c_int(-1))) != (account.uid, account.gid):
            raise PermissionError(errno.EPERM, f"files cannot be used as {account.name}: that takes root")
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(os.geteuid()))
        libc.setfsgid(ctypes.c_uint(os.getegid()))
        _set_groups(libc, before)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    number = _SETGROUPS.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is None:
        raise OSError(errno.ENOSYS, f"work cannot run as its user on {sys.platform} {platform.machine()}")
    if libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), (ctypes.c_uint * len(groups))(*groups)) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")


def open_regular(path: str, account: Account | None) -> int:
    """Descriptor of a plain file, opened for reading with the rights of `account`; never waits for a pipe.

    Raises: OSError, also for what is no plain file, and for a link as the last name where an account is given.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if account is not None else 0)
    with acting(account):
        fd = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", path)
    return fd


def uid_of(pid: int) -> int:
    """Whose process it is, -1 when there is none (any more)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            words = next((line.split() for line in file if line.startswith(b"Uid:")), [])
    except OSError:
        return -1
    ids = {int(word) for word in words[1:5]}
    return ids.pop() if len(ids) == 1 else -1
