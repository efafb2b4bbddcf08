"""What a server has to do just now, and what has been asked of it: the answer to a gateway's question."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

from rmgr.model.cluster.servers import ServerLoad

#: Over less than this nothing is said of other work: while a server starts, much is busy for a moment.
_LEAST_S = 2.0


class LoadMeter:
    """Args:
    slots: of the server. cores: of the machine. now_s: monotonic. busy_s: processor seconds of the whole machine since its start,
    None where it does not say. own_s: of what this server runs.
    """

    def __init__(
        self, slots: int, cores: int, now_s: float, *, busy_s: Callable[[], float | None], own_s: Callable[[], float]
    ) -> None:
        self._free_cores = max(0, cores - slots)
        self._busy_s, self._own_s = busy_s, own_s
        self._begun_s = self._changed_s = now_s
        self._load = 0
        self._load_s = 0.0  #: load x time
        self._told: dict[object, tuple[float, float]] = {}  #: by who asked: when, load x time then
        self._other = 0.0
        self._looked: tuple[float, float, float] = (now_s, busy_s() or 0.0, own_s())
        self._arrivals = 0
        self._served = 0
        self._mean_s = self._squares = 0.0

    def arrived(self) -> None:
        """A call was taken."""
        self._arrivals += 1

    def served(self, seconds: float) -> None:
        """A call ran for so long."""
        self._served += 1
        off = seconds - self._mean_s
        self._mean_s += off / self._served
        self._squares += off * (seconds - self._mean_s)

    def changed(self, now_s: float, load: int) -> None:
        """So many calls run and wait from now on."""
        self._load_s += self._load * (now_s - self._changed_s)
        self._changed_s, self._load = now_s, load

    def now(self, now_s: float, running: int, waiting: int, who: object) -> ServerLoad:
        """As `who` asks for it; `mean_load` is since the same one asked before."""
        self.changed(now_s, running + waiting)
        at_s, load_s = self._told.get(who, (self._begun_s, 0.0))
        self._told[who] = now_s, self._load_s
        lasted_s = now_s - at_s
        self._look(now_s)
        return ServerLoad(
            running=running,
            waiting=waiting,
            other=self._other,
            mean_load=(self._load_s - load_s) / lasted_s if lasted_s > 0 else float(self._load),
            arrivals_per_s=self._arrivals / (now_s - self._begun_s) if now_s > self._begun_s else 0.0,
            service_s=self._mean_s,
            service_cv=math.sqrt(self._squares / self._served) / self._mean_s if self._served and self._mean_s > 0 else 0.0,
        )

    def _look(self, now_s: float) -> None:
        """OTHER: busy cores of others, beyond those that are no slots."""
        at_s, busy_s, own_s = self._looked
        lasted_s = now_s - at_s
        if lasted_s < _LEAST_S:
            return
        busy = self._busy_s()
        if busy is None:
            return
        own = self._own_s()
        others = (busy - busy_s - max(0.0, own - own_s)) / lasted_s
        self._looked = now_s, busy, own
        self._other = max(0.0, others - self._free_cores)


def machine_busy_s() -> float | None:
    """Processor seconds that all processes of this machine have used since it was started; None where the kernel does not say."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()
        user, nice, system, _, _, irq, softirq = (int(word) for word in first[1:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
