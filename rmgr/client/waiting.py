"""Waiting, wherever it happens: inside a task the slot goes back while one waits; outside it costs nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

from rmgr.errors import UsageError
from rmgr.runtime import machine


def giving_slot_back() -> AbstractContextManager[None]:
    """Around every wait for other tasks. Only in a worker does it do anything."""
    module = sys.modules.get("rmgr.runner.current")  # a worker has loaded it before any task ran
    return module.blocking() if module is not None else nullcontext()


def check_timeout(seconds: float) -> float:
    """`seconds`, within which something is to be made or opened. Raises UsageError: nothing can be, so the cluster would be blamed."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"timeout must be more than 0 seconds, not {seconds!r}", hint="leave it out for the usual one")
    return seconds


class Deadline:
    """End of a wait: `left()` seconds, None = never."""

    __slots__ = ("_end",)

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else machine.monotonic() + timeout_s

    def left(self) -> float | None:
        """Seconds left, at least 0; None without a deadline."""
        return None if self._end is None else max(0.0, self._end - machine.monotonic())

    @property
    def is_over(self) -> bool:
        """The time has run out."""
        return self._end is not None and machine.monotonic() >= self._end
