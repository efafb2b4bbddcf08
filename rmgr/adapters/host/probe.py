"""What this machine has and how busy it is: cores, memory, load, room in the work directory."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What does not change while a Starter lives. cores: usable by this process. memory_bytes: physical, or its cgroup's limit."""

    cores: int
    memory_bytes: int
    host: str
    system: str
    python: str


def machine() -> Hardware:
    """Describes this machine. Cost: a few ms."""
    return Hardware(
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
