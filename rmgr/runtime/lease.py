"""The lease: until when this process may act on what it was given, counted from the last request that was answered.

ZooKeeper ends a session no earlier than T - tick/2 after it received the last request, and a client that is cut off is
told nothing at all. So the holder counts for himself, from the *send* of the last answered request, and stops at
L < T: with L + (time to kill) + tick < 0.95 T his work is dead before anybody may requeue it (reliability.md 5.2).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Answered(Protocol):
    """The part of `coord.ports.Coordinator` that a lease is counted from."""

    @property
    def session_timeout_s(self) -> float: ...
    def last_answer_s(self) -> float: ...


class Lease:
    """Args:
    coordinator: whose session it is.
    share: L as a part of the session timeout T.
    clock: the clock of `last_answer_s`, monotonic seconds. It does not count time in which the machine slept: a host
        that wakes up finds its lease still running by this clock, hence `slept_s`.
    """

    def __init__(self, coordinator: Answered, *, share: float = 2 / 3, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < share < 0.95:
            msg = f"a lease of {share} of the session timeout leaves no time to stop"
            raise ValueError(msg)
        self._coordinator = coordinator
        self._share = share
        self._clock = clock
        self._offset_s = _boot_offset_s()

    @property
    def length_s(self) -> float:
        """L in seconds."""
        return self._share * self._coordinator.session_timeout_s

    def valid_until_s(self) -> float:
        """The end of the lease on `clock`; 0.0 before the first answer. A suspension of the host counts as time passed."""
        last_s = self._coordinator.last_answer_s()
        return 0.0 if last_s == 0.0 else last_s + self.length_s - self.slept_s()

    def remaining_s(self) -> float:
        """Seconds left, 0.0 when it is over."""
        return max(0.0, self.valid_until_s() - self._clock())

    def is_valid(self) -> bool:
        """Whether the holder may act."""
        return self.valid_until_s() > self._clock()

    def slept_s(self) -> float:
        """How long the host was suspended since `rearm` (or the start): CLOCK_BOOTTIME counts what monotonic leaves out."""
        return max(0.0, _boot_offset_s() - self._offset_s)

    def rearm(self) -> None:
        """After a new session: earlier suspensions of the host count no more."""
        self._offset_s = _boot_offset_s()


def _boot_offset_s() -> float:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; macOS's monotonic clock has no such sister
    return 0.0 if boottime is None else time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC)
