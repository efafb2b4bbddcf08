"""What this machine has and how busy it is: cores, memory, load, room in the work directory."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What does not change while a Starter lives. cores: usable by this process. memory_bytes: physical, or its cgroup's limit."""

    cores: int
    memory_bytes: int
    host: str
    system: str
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What a Starter looks at before it pulls (reliability.md rule 26), all of this moment.

    load: runnable processes, mean of a minute. cpu_percent: of all cores since the last look. memory_free_bytes: what can
    be had without swapping. disk_free_bytes: in the work directory. files_free: descriptors this process may still open.
    """

    load: float
    cpu_percent: float
    memory_free_bytes: int
    disk_free_bytes: int
    files_free: int


def machine() -> Machine:
    """Describes this machine. Cost: a few ms."""
    return Machine(
        cores=usable_cores(),
        memory_bytes=min(filter(None, (psutil.virtual_memory().total, _cgroup_memory()))),
        host=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def usable_cores() -> int:
    """Cores that this process may run on (its affinity), at least 1."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1


def pressure(directory: str | Path) -> Pressure:
    """Measures now. `directory`: where work writes. Never blocks on a dead disk's numbers: an unreadable one counts as full."""
    try:
        disk = shutil.disk_usage(directory).free
    except OSError:
        disk = 0
    return Pressure(
        load=_load(),
        cpu_percent=psutil.cpu_percent(interval=None),
        memory_free_bytes=psutil.virtual_memory().available,
        disk_free_bytes=disk,
        files_free=max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _open_files()),
    )


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _open_files() -> int:
    try:
        return psutil.Process().num_fds()
    except (psutil.Error, AttributeError):
        return 0


def _cgroup_memory() -> int:
    """The memory limit of the cgroup (v2 or v1) this process sees itself in, 0 = none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = int(Path(path).read_text())
        except (OSError, ValueError):
            continue
        if 0 < limit < 1 << 60:
            return limit
    return 0
