"""Ends processes that a dead Starter left behind, found by recorded pid and start time, by cgroup, or by a mark in the environment.

Never by name. Every spawner and worker is recorded in the node's directory before it works; every process it starts carries
`RMGR_SLOT=<mark>`, unique to one slot of one incarnation.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path

import psutil

from rmgr.adapters.host.cgroup import kill_group, remove_group
from rmgr.errors import UNREADABLE_TEXT, StateConflict
from rmgr.model.units import counted
from rmgr.runner.host.files import identity_of, remove_tree

_RECORDS = "records"
#: Seconds that a spawner gets to end its own work after its Starter has died.
_OWN_ACCORD_S = 2.0
_ROUNDS = 50


class _Guard:
    """Exclusive use of a node's directory, until `close` or the end of this process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def is_of(self, directory: Path) -> bool:
        """Returns whether `directory` is the held directory, not another one now under its name."""
        found = os.fstat(self._fd) if self._fd >= 0 else None
        return found is not None and (found.st_dev, found.st_ino) == identity_of(directory)

    def close(self) -> None:
        """Releases the directory. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def hold(directory: Path) -> _Guard:
    """Locks `directory` for this process. Raises: StateConflict while another live process has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StateConflict(
            f"the directory {directory} is used by another Starter that is alive",
            hint="stop it, or give this one another node name or directory",
        ) from None
    return _Guard(fd)


def record_spawner(directory: Path, name: str, *, pid: int, marker: str) -> None:
    """Records a process that must not outlive this incarnation (the file is replaced as a whole, never half written)."""
    started = born(pid)
    if started is not None:
        with contextlib.suppress(FileNotFoundError):  # `directory` was removed: recorded again after it has been made again
            _record(directory, name, {"pid": pid, "born": started, "marker": marker})


def record_cgroups(directory: Path, paths: list[str]) -> None:
    """Records the cgroups of this incarnation."""
    _record(directory, "cgroups", {"cgroups": paths})


def forget(directory: Path, name: str) -> None:
    """Removes the record of a dead process."""
    with contextlib.suppress(OSError):
        (directory / _RECORDS / f"{name}.json").unlink()


def reap(directory: Path) -> list[str]:
    """Ends everything that older incarnations recorded in `directory`, then empties it. Returns one line for each action.

    Cost: a listdir if there is nothing to do, otherwise at most a few seconds (spawners get 2 s to end their own work).
    """
    done: list[str] = []
    records = [_load(path) for path in sorted((directory / _RECORDS).glob("*.json"))]
    deadline = time.monotonic() + _OWN_ACCORD_S
    for record in records:
        while (process := _alive(record)) is not None and time.monotonic() < deadline:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(timeout=0.05)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                done.append(f"killed process {process.pid} of an older incarnation")
    done += end_cgroups(directory)
    markers = sorted({str(record["marker"]) for record in records if record.get("marker")})
    done.extend(f"killed {counted(killed, 'process')} marked {marker}" for marker in markers if (killed := kill_marked(marker)))
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            with contextlib.suppress(OSError):
                entry.unlink()
    return done


def end_cgroups(directory: Path) -> list[str]:
    """Ends and removes the cgroups that a dead incarnation recorded in `directory`. Returns one line for each action."""
    done: list[str] = []
    for path in _strings(_load(directory / _RECORDS / "cgroups.json").get("cgroups")):
        if killed := kill_group(Path(path)):
            done.append(f"killed {counted(killed, 'process')} in {path}")
        if not remove_group(Path(path), wait_s=1.0):
            done.append(f"cannot remove {path}")
    return done


def kill_marked(marker: str) -> int:
    """Kills every process with RMGR_SLOT=<marker> in its environment, until there is none; returns how many it saw.

    Cost: about 15 us per process of the machine.
    """
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        found = _marked(marker)
        if not found:
            break
        seen.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return len(seen)


def _marked(marker: str) -> list[int]:
    wanted = f"RMGR_SLOT={marker}".encode()
    if not os.path.isdir("/proc/self"):
        return [process.pid for process in psutil.process_iter() if _psutil_marked(process, marker)]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environ = file.read()
            except OSError:
                continue
            if wanted in environ.split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def _psutil_marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get("RMGR_SLOT") == marker
    except (psutil.Error, OSError):
        return False


def _alive(record: dict[str, object]) -> psutil.Process | None:
    """Returns the recorded process if it still lives (a reused pid has another start time)."""
    pid = record.get("pid")
    if not isinstance(pid, int) or born(pid) != record.get("born"):
        return None
    try:
        process = psutil.Process(pid)
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def born(pid: int) -> str | None:
    """Identifies the start of a process; neither a clock jump nor a reboot can confuse it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = file.read().rpartition(b")")[2].split()[19].decode()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}:{ticks}"
    except OSError:
        if os.path.isdir("/proc/self"):
            return None
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _record(directory: Path, name: str, value: dict[str, object]) -> None:
    records = directory / _RECORDS
    records.mkdir(exist_ok=True)
    part = records / f".{name}.part"
    part.write_text(json.dumps(value))
    part.replace(records / f"{name}.json")


def _load(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text())
    except (OSError, *UNREADABLE_TEXT):
        return {}
    return value if isinstance(value, dict) else {}


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
