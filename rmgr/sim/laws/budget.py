"""Bounds the time of one pass by the wall clock; a policy that does not come back is interrupted."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """Raised inside a policy whose time is up. No `Exception`: neither the engine nor the policy takes it for an error of its own."""


class Budget:
    """So many seconds for one pass. 0 = as long as it likes.

    In the main thread a pass is interrupted when they are over (SIGALRM); elsewhere it is only found out afterwards.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = -math.inf

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One pass. Raises: OutOfTime."""
        self._began = time.perf_counter()
        if not self.seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @property
    def told(self) -> str:
        """What is said of a policy that took longer."""
        return f"a pass takes longer than {self.seconds:g} s"

    def expired(self) -> bool:
        """This pass has taken longer: what the engine asks after each policy."""
        return bool(self.seconds) and time.perf_counter() - self._began > self.seconds


def _interrupt(_signal: int, _frame: object) -> None:
    raise OutOfTime
