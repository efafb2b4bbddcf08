"""The stall guard: a thread that ends the process when its main loop makes no progress, with all stacks on stderr.

A heartbeat thread alone proves nothing: kazoo pings from a thread of its own, and a process whose main loop is dead
keeps its session, its leadership and its nodes for ever (reliability.md rule 25). Exit, and let the supervisor restart.
The supervisor's own beats come from here too (`on_progress`), so that they stop with the loop, not with the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Self

from rmgr.runtime import machine

EXIT_CODE = 70  # EX_SOFTWARE


def _exit(what: str) -> None:
    try:
        sys.stderr.write(f"{what}; all stacks follow\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
    finally:
        os._exit(EXIT_CODE)  # no clean-up: whatever hangs would hang it too


class StallGuard:
    """Args:
    limit_s: longest time between two calls of `progress`; longer than any pass of the loop may take.
    name: of the process, for the message.
    on_stall: instead of the exit (tests).
    on_progress: is called by the loop's thread each time it comes round (the beats for systemd).
    """

    def __init__(
        self,
        limit_s: float,
        *,
        name: str = "main loop",
        on_stall: Callable[[str], None] = _exit,
        on_progress: Callable[[], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._name = name
        self._on_stall = on_stall
        self._on_progress = on_progress
        self._clock = clock or machine.monotonic
        self._last_s = self._clock()
        self._checked_s = self._clock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def progress(self) -> None:
        """The loop has come round. Cost: about 0.1 us."""
        self._last_s = self._clock()
        if self._on_progress is not None:
            self._on_progress()

    @property
    def silent_s(self) -> float:
        """How long ago the loop came round. From any thread."""
        return self._clock() - self._last_s

    def start(self) -> Self:
        """Starts the guard's thread."""
        self.progress()
        self._checked_s = self._clock()
        self._thread = threading.Thread(target=self._run, name="stall-guard", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the guard. Idempotent."""
        self._stopped.set()

    def check(self) -> None:
        """One look, about every quarter of the limit; calls `on_stall` when the loop stands still.

        When this thread itself was not run (SIGSTOP, a suspended host, a starved machine), the loop gets a new limit.
        """
        now = self._clock()
        if now - self._checked_s > self._limit_s / 2:
            self._last_s = max(self._last_s, now - self._limit_s / 2)
        self._checked_s = now
        stalled_s = now - self._last_s
        if stalled_s > self._limit_s:
            self._on_stall(f"{self._name}: no progress for {stalled_s:.1f} s (limit {self._limit_s:g} s)")

    def _run(self) -> None:
        while not self._stopped.wait(self._limit_s / 4):
            self.check()
