"""Watches the cost of processes: time of the processor, wake-ups, memory; by process and with all that they started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Since it was started: seconds of the processor, and how often its threads gave the processor up by themselves."""

    cpu_s: float
    wakeups: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wakeups - other.wakeups)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wakeups + other.wakeups)


def children_of(pid: int) -> list[int]:
    """All processes that `pid` started and those started, without itself."""
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def cost_of(pid: int) -> Cost:
    """Of one process, threads that ended included. Raises: ProcessLookupError. Resolution: ns of the processor's time."""
    try:
        cpu_s = time.clock_gettime((~pid << 3) | _SCHED)
    except OSError:
        raise ProcessLookupError(pid) from None
    wakeups = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            wakeups += next(int(line.split()[1]) for line in thread.read_text().splitlines() if line.startswith("voluntary_ctxt"))
    return Cost(cpu_s, wakeups)


def pss_bytes(pid: int) -> int:
    """Memory of one process, each page shared by n processes as 1/n of it. 0: it is gone. Cost: ms, with the kernel's lock on its pages."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of the processor that these processes have used; of those that are gone nothing is known any more."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            total += cost_of(pid).cpu_s
    return total


#: The clock of a process by its pid, as clock_getcpuclockid(3) makes it: what the scheduler counted.
_SCHED = 2
