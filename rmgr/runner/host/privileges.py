"""Becomes the user whose work a spawner is to run, irrevocably, and only then loads anything: runs between a root Starter and its spawner.

Exec'd by a Starter that is root, in an isolated interpreter with the standard library alone (`python -I -S host/privileges.py PLAN`),
because anything loaded before the change is loaded as root. PLAN is JSON and holds no secret. The order matters: the cgroup first (a user
may not enter it), then groups, then uid, then what can only be given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import NoReturn

_PR_SET_NO_NEW_PRIVS = 38
#: The same as the spawner's own (`runner/spawner.py`): set by root, so that no work of the user can go below it.
_OOM_SCORE = 500


def drop(uid: int, gid: int, groups: list[int]) -> None:
    """Makes this process the user's, irrevocably. Raises: OSError, PermissionError."""
    if uid <= 0 or gid < 0:
        raise PermissionError(f"work never runs as uid {uid}, gid {gid}")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or sorted(os.getgroups()) != sorted(set(groups)):
        raise PermissionError(f"the system did not change to uid {uid}, gid {gid}")
    try:
        os.setresuid(-1, 0, -1)
    except PermissionError:
        return
    raise PermissionError(f"uid {uid} could become root again")


def forbid() -> None:
    """Keeps set-uid programs from gaining rights, and this user's memory from being dumped to disk. Raises: OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def bound(processes: int) -> None:
    """Sets what only root may set: a minimum score for the kernel's out-of-memory killer, and a limit of processes and threads of the user.

    processes: of all the user's work on this machine, 0 = unchanged. If the system refuses, nothing changes.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(_OOM_SCORE))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if processes and (hard == resource.RLIM_INFINITY or processes < hard):
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def main(plan: str) -> NoReturn:
    """Carries out a plan: {uid, gid, groups, cgroups (files that take a pid), processes, fd (stays open), directory, argv}."""
    given = json.loads(plan)
    for path in given["cgroups"]:
        with open(path, "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    bound(given["processes"])
    drop(given["uid"], given["gid"], given["groups"])
    forbid()
    os.umask(0o022)
    os.chdir(given["directory"])
    keep = given["fd"]
    os.closerange(3, keep)
    os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] if sys.platform == "darwin" else 1 << 20)
    os.set_inheritable(keep, True)
    silence = os.open(os.devnull, os.O_RDWR)  # the user must not write the Starter's own log
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.closerange(silence, silence + 1)
    os.execv(given["argv"][0], given["argv"])  # noqa: S606 - that is the point


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (OSError, KeyError, ValueError) as error:
        sys.stderr.write(f"rmgr: a spawner cannot become its user: {error}\n")
        sys.exit(1)
