"""Failures that are the node's own: enough of them in a row and it takes no work for a while (no black hole eats the queue). Pure."""

from __future__ import annotations

import math
from collections import deque

#: Failures of slots, files, spool within the window that put the node out.
OWN = 5
#: Work that could not be started, of this many different submissions: one bad submission puts no node out.
SUBMISSIONS = 4
WINDOW_S = 60.0
#: How long the node stays out.
OUT_S = 60.0


class Strikes:
    """Recent failures of the node."""

    def __init__(self) -> None:
        self.last = ""
        self._own: deque[float] = deque(maxlen=OWN)
        self._starts: dict[str, float] = {}
        self.out_until_s = -math.inf  #: the node takes no work before this (monotonic)

    def add(self, what: str, detail: str, now_s: float) -> None:
        """The node failed at `what`; for `start_failed` the detail begins with the submission and a colon."""
        self.last = f"{what}: {detail}"
        if what == "start_failed":
            self._starts[detail.partition(":")[0]] = now_s
            self._starts = {one: at for one, at in self._starts.items() if now_s - at < WINDOW_S}
            if len(self._starts) >= SUBMISSIONS:
                self._out(now_s)
            return
        self._own.append(now_s)
        if len(self._own) == OWN and now_s - self._own[0] < WINDOW_S:
            self._out(now_s)

    def success(self) -> None:
        """Work ran well here."""
        self._starts.clear()

    def is_out(self, now_s: float) -> bool:
        """The node takes no work at present."""
        return now_s < self.out_until_s

    def _out(self, now_s: float) -> None:
        self.out_until_s = now_s + OUT_S
        self._own.clear()
        self._starts.clear()
