"""Local accounts, and using files with the rights of one of them.

The work of users must not lead a Starter that is root astray: a path that their processes name, or that lies in
a directory of theirs, is opened and removed with the user's rights, never with root's.

`obstacle` checks with the account's own rights what keeps it from a file: groups and access lists count as they do for the kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import pwd
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rmgr.runner.host.outputs import read_live

#: Number of the system call setgroups: the C library's function would change all threads of the process.
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
#: File systems that show the kernel's own data, by their magic numbers: proc, sys, control groups, debug, trace,
#: security, config, terminals, bpf. A name in /proc means something else to a daemon than to the user who wrote it down.
_KERNELS = frozenset(
    {0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0x62656570, 0x1CD1, 0xCAFE4A11, 0x6E736673}
)
_MAX_LINKS = 40
#: Flags for the steps on the way to a file: directories may be passed but not read, links are opened as links.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
#: Variables that work inherits from the Starter's environment; work sees none of the others.
_INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A local user. groups: all groups of the user, including the primary one."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    shell: str = "/bin/sh"

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """Returns the environment for the user's programs, derived from the Starter's."""
        kept = {name: value for name, value in base.items() if name in _INHERITED or name.startswith("LC_")}
        return kept | {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def find_account(name: str) -> Account | None:
    """Returns the local account of this name, or None if absent. Asks the system (files, LDAP, ...), which may take time."""
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
    """Gives this thread (and no other) the file access rights of `account` within the block; None keeps its own.

    Cost: six system calls. Raises: OSError if the system refuses (the block never runs with more rights than asked for).
    """
    if account is None:
        yield
        return
    libc = _libc()
    before = os.getgroups()
    try:
        _set_groups(libc, list(account.groups))
        libc.setfsgid(ctypes.c_uint(account.gid))
        libc.setfsuid(ctypes.c_uint(account.uid))
        # An impossible id changes nothing; the call returns the current one.
        if (libc.setfsuid(ctypes.c_int(-1)), libc.setfsgid(ctypes.c_int(-1))) != (account.uid, account.gid):
            raise PermissionError(errno.EPERM, f"files cannot be used as {account.name}: that takes root")
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(os.geteuid()))
        libc.setfsgid(ctypes.c_uint(os.getegid()))
        _set_groups(libc, before)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _set_groups(libc: ctypes.CDLL, groups: list[int]) -> None:
    number = _SETGROUPS.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is None:
        raise OSError(errno.ENOSYS, f"work cannot run as its user on {sys.platform} {platform.machine()}")
    if libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), (ctypes.c_uint * len(groups))(*groups)) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")


def open_regular(path: str, account: Account | None, *, below: str = "", follow: bool = True) -> int:
    """Returns the descriptor of a plain file, opened for reading with the rights of `account`; never waits for a pipe.

    below: for a relative `path`, the directory that no step may leave. follow: the last name may be a link; never
    with an account.
    Raises: OSError, also for anything but a plain file, and for a file in /proc or reached through it: the opened file is
        checked, not its name. ValueError for an impossible name. Cost: with an account or `below`, five system calls a step.
    """
    with acting(account):
        if account is not None or below:
            fd = _walk(path, below, follow=follow and account is None)
        else:
            fd = os.open(path, _READ if follow else _READ | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", path)
        _refuse_kernels(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def live_output(path: str, account: Account | None, offset: int, limit: int, cap: int) -> tuple[bytes, int] | None:
    """Returns the content of a growing output file, see `read_live`; None if it cannot be opened. Never follows a link."""
    try:
        fd = open_regular(path, account, follow=False)
    except (OSError, ValueError):
        return None
    try:
        return read_live(fd, offset, limit, cap)
    finally:
        os.close(fd)


def _walk(path: str, below: str, *, follow: bool) -> int:
    """Opens a file step by step, so that no link leads out of `below` or into the kernel's view of this process."""
    base = below if below and not os.path.isabs(path) else "/"
    way: list[int] = []
    links = 0
    try:
        way.append(os.open(base, _LOOK & ~os.O_NOFOLLOW | os.O_DIRECTORY))
        _refuse_kernels(way[0], base)
        todo = path.split("/")[::-1]
        while todo:
            name = todo.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                if len(way) > 1:
                    os.close(way.pop())
                elif base != "/":
                    raise PermissionError(errno.EXDEV, "leads out of the work directory", path)
                continue
            way.append(os.open(name, _LOOK, dir_fd=way[-1]))
            mode = os.fstat(way[-1]).st_mode
            if stat.S_ISLNK(mode):
                os.close(way.pop())
                links += 1
                if links > _MAX_LINKS or not (todo or follow):
                    raise OSError(errno.ELOOP, "is a link" if links == 1 else os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=way[-1])
                if os.path.isabs(target):
                    if base != "/":
                        raise PermissionError(errno.EXDEV, "leads out of the work directory through a link", path)
                    while len(way) > 1:
                        os.close(way.pop())
                todo += target.split("/")[::-1]
            elif stat.S_ISDIR(mode):
                _refuse_kernels(way[-1], path)
            elif todo:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            else:
                return os.open(name, _READ | os.O_NOFOLLOW, dir_fd=way[-2])
        raise OSError(errno.EINVAL, "not a plain file", path)
    finally:
        for fd in way:
            os.close(fd)


def _refuse_kernels(fd: int, path: str) -> None:
    """Raises PermissionError for a file or directory of /proc, /sys and the like. Cost: a system call."""
    if sys.platform.startswith("linux") and _kind_of(fd) in _KERNELS:
        raise PermissionError(errno.EPERM, "lies where the kernel tells of itself (/proc, /sys)", path)


def _kind_of(fd: int) -> int:
    """Returns the magic number of the file system of an open file (Linux)."""
    found = (ctypes.c_long * 32)()  # struct statfs: its first word, and space for the rest
    if _libc().fstatfs(ctypes.c_int(fd), ctypes.byref(found)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found[0]


def uid_of(pid: int) -> int:
    """Returns the user id of a process, or -1 if the process is gone or its ids differ."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            words = next((line.split() for line in file if line.startswith(b"Uid:")), [])
    except OSError:
        return -1
    ids = {int(word) for word in words[1:5]}
    return ids.pop() if len(ids) == 1 else -1


# -- what keeps an account from a file -----------------------------------------------------------------------------------------


def obstacle(account: Account, *, directories: Iterable[Path] = (), programs: Iterable[Path] = (), modules: Iterable[Path] = ()) -> str:
    """Returns what keeps `account` from the given files, with the command that helps; "" if nothing does.

    Args:
        directories: must be passable. programs: all directories on the way to them must be passable, links followed.
        modules: must be readable as well, and so must their directories: otherwise Python imports nothing from them.
    Cost: about 30 us a directory. Raises: OSError if the rights of the account cannot be taken.
    """
    for path in directories:
        if found := _closed_directory(account, path, path):
            return found
    read = list(modules)
    for path in (*programs, *read):
        if found := _closed_directory(account, path.parent, path) or _closed_directory(account, Path(os.path.realpath(path)).parent, path):
            return found
        if found := _missing(account, path):
            return found
    for place in dict.fromkeys(place for path in read for place in (path.parent, path)):
        if found := _unreadable(account, place):
            return found
    return ""


def _closed_directory(account: Account, directory: Path, wanted: Path) -> str:
    """Names the first directory on the way to `directory` that the account cannot pass."""
    for place in _way(directory):
        try:
            with acting(account):
                os.stat(f"{place}/.")  # needs the right to pass the directory
        except PermissionError:
            below = f", and {wanted} is below it" if wanted != place else ""
            return f"{place} is closed to that account{below}: chmod {_class(account, place)}+x {shlex.quote(str(place))}"
        except OSError as error:
            return f"{wanted} cannot be used: {place}: {error.strerror}"
    return ""


def _missing(account: Account, path: Path) -> str:
    try:
        with acting(account):
            os.stat(path)
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    return ""


def _unreadable(account: Account, path: Path) -> str:
    try:
        with acting(account):
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError:
        return f"{path} cannot be read by that account: chmod -R {_class(account, path)}+rX {shlex.quote(str(path))}"
    except OSError as error:
        return f"{path} cannot be used: {error.strerror}"
    return ""


def _way(directory: Path) -> list[Path]:
    """Returns all directories that have to be passed, from the root; for a link, those on the way to its target."""
    found: dict[Path, None] = {}
    for place in (*reversed(directory.parents), directory):
        real = Path(os.path.realpath(place))
        found.update(dict.fromkeys((*reversed(real.parents), real)))
    return list(found)


def _class(account: Account, place: Path) -> str:
    """Returns the class of permission bits that apply to the account there, as chmod names it: u, g or o."""
    try:
        found = os.stat(place)
    except OSError:
        return "o"
    if found.st_uid == account.uid:
        return "u"
    return "g" if found.st_gid in {account.gid, *account.groups} else "o"
