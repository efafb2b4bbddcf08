"""Measures how late threads of this process get their turn, and lets users who flood feel it: then who works beside them does not.

What a request costs is no constant: other processes take the machine's cores, and the threads of hundreds of sessions wait for one
interpreter. A thread that sleeps for some milliseconds and wakes later than it asked for has waited as any request does.
"""

from __future__ import annotations

import threading
import time

from rmgr.adapters.access.limits import Bounds

_SLEEP_S, _SAMPLES, _IDLE_S = 0.02, 12, 0.5


class StrainMeter:
    """Args: bounds: told of the mean lateness and of the processor time, four times a second while many ask.

    Cost: 0.2 % of a core then, else nothing.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._stopped = threading.Event()

    def start(self) -> StrainMeter:
        """Begins to measure."""
        threading.Thread(target=self._run, name="strain", daemon=True).start()
        return self

    def stop(self) -> None:
        """Idempotent."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._bounds.is_crowded:
                self._bounds.strained(0.0)
                self._stopped.wait(_IDLE_S)
                continue
            late_s, burnt_s, looked_s = 0.0, time.process_time(), time.monotonic()
            for _ in range(_SAMPLES):
                began_s = time.monotonic()
                self._stopped.wait(_SLEEP_S)
                late_s += max(0.0, time.monotonic() - began_s - _SLEEP_S)
            self._bounds.strained(late_s / _SAMPLES, (time.process_time() - burnt_s) / (time.monotonic() - looked_s))
