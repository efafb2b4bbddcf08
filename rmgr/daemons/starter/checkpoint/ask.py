"""Asks a job on one node to save its state, and reads its answer: files in `.rmgr`, and SIGUSR1 to those who catch it.

Processes of a job are found by the mark of its slot in their environment, as leftovers are; nothing is sent to one that is not its
user's. Launchers are passed over: they would pass the signal on to ranks that do not know it, and die of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from rmgr.adapters.host.accounts import Account, acting, open_regular, uid_of
from rmgr.checkpoint import CONTROL, NUMBER, REQUEST, SAVED, STOP
from rmgr.runtime import machine

#: Programs that forward SIGUSR1 to what they have started, by the names that the kernel shows.
_LAUNCHERS = frozenset(
    {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr", "mpiexec.hydra", "srun"}
)
#: The same of rmgr: `rmgr run` and `rmgr agent` of jobs.
_RANK_CLIENT = b"rmgr.runner.ranks.client"
_ROUNDS, _PAUSE_S = 200, 0.01


def ask(directory: Path, account: Account | None, *, number: int, stop: bool, deadline_us: int) -> None:
    """Writes the request, whole or not at all. Raises: OSError."""
    told = json.dumps({"deadline": deadline_us / 1e6, "number": number, "stop": stop}, separators=(",", ":"))
    control = directory / CONTROL
    with acting(account):
        control.mkdir(mode=0o700, exist_ok=True)
        _write(control / NUMBER, f"{number}\n")
        if stop:
            _write(control / STOP, "")
        else:
            (control / STOP).unlink(missing_ok=True)  # of one that was withdrawn
        _write(control / REQUEST, told)


def answered(directory: Path, account: Account | None) -> int:
    """The request that was answered last, 0 = none. Never waits. Cost: opening a small file with the user's rights, 30 us."""
    try:
        with open(open_regular(str(directory / CONTROL / SAVED), account), "rb", buffering=0) as file:
            return int((file.read(32) or b"").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
    part.replace(path)


# -- processes ---------------------------------------------------------------------------------------------------------------


def members(marker: str, account: Account | None, spare: Iterable[int] = ()) -> list[int]:
    """Processes with the mark of a slot, of its user, but for `spare`. Cost: 15 us a process of the machine. Empty without /proc."""
    wanted = f"RMGR_SLOT={marker}".encode()
    kept = {os.getpid(), *spare}
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in kept:
                continue
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and (account is None or uid_of(int(name)) == account.uid):
                    found.append(int(name))
    return found


def notify(marker: str, account: Account | None, spare: Iterable[int] = ()) -> list[int]:
    """SIGUSR1 to the processes of the job that catch it; which."""
    told = []
    for pid in members(marker, account, spare):
        if catches(pid, signal.SIGUSR1) and not _is_launcher(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
                told.append(pid)
    return told


def end_all(marker: str, account: Account | None, spare: Iterable[int] = ()) -> bool:
    """SIGKILL to the processes of the job until there are none; False: some do not die (yet)."""
    kept = tuple(spare)
    for _ in range(_ROUNDS):
        left = [pid for pid in members(marker, account, kept) if not _is_dead(pid)]
        if not left:
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        machine.sleep(_PAUSE_S)
    return False


def catches(pid: int, signum: int) -> bool:
    """The process has a handler for the signal."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def children_of(pid: int) -> list[int]:
    """Its direct children."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return [int(child) for child in file.read().split()]
    return []


def _is_launcher(pid: int) -> bool:
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() in _LAUNCHERS:
            return True
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        runs = any(os.path.basename(word) == b"rmgr" and after in {b"run", b"agent"} for word, after in pairwise(words))
        return runs or any(_RANK_CLIENT in word for word in words)
    return False


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] in {b"Z", b"X"}
    except OSError:
        return True
