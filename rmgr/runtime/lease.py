"""The lease: until when this process may act on what it was given, counted from the last request that was answered.

ZooKeeper ends a session no earlier than T - tick/2 after it received the last request, and a client that is cut off is
told nothing at all. So the holder counts for himself, from the *send* of the last answered request, and stops at
L < T: with L + (time to kill) + tick < 0.95 T his work is dead before anybody may requeue it (reliability.md 5.2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from rmgr.runtime import machine

_NOISE_S = 0.05


class LastAnswer(Protocol):
    """The part of `coord.ports.Coordinator` that a lease is counted from."""

    @property
    def session_timeout_s(self) -> float: ...
    def last_answer_s(self) -> float: ...


class Lease:
    """The lease of one coordinator's session. One thread asks it.

    Args:
        coordinator: whose session it is.
        share: L as a part of the session timeout T.
        clock: the clock of `last_answer_s`, monotonic seconds.
        suspended: seconds that the host has been suspended since its boot. The monotonic clock stands still meanwhile:
            without them a host that wakes up after an hour would find its lease still running.
    """

    def __init__(
        self,
        coordinator: LastAnswer,
        *,
        share: float = 2 / 3,
        clock: Callable[[], float] | None = None,
        suspended: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < share < 0.95:
            msg = f"a lease of {share} of the session timeout leaves no time to stop"
            raise ValueError(msg)
        self._coordinator = coordinator
        self._share = share
        self._clock = clock or machine.monotonic
        self._suspended = suspended or suspended_s
        self._seen_s = self._suspended()
        self._woke_s = -math.inf  # when the last suspension was noticed
        self._slept_s = 0.0  # by those that no answer has followed

    @property
    def length_s(self) -> float:
        """L in seconds."""
        return self._share * self._coordinator.session_timeout_s

    def valid_until_s(self) -> float:
        """The end of the lease on `clock`; -inf before the first answer."""
        last_s = self._coordinator.last_answer_s()
        return last_s + self.length_s - self._slept_since_s(last_s)

    def remaining_s(self) -> float:
        """Seconds left, 0.0 when it is over."""
        return max(0.0, self.valid_until_s() - self._clock())

    def is_valid(self) -> bool:
        """Whether the holder may act."""
        return self.valid_until_s() > self._clock()

    def rearm(self) -> None:
        """A new session: suspensions of the host before it count no more."""
        self._seen_s = self._suspended()
        self._slept_s = 0.0

    def _slept_since_s(self, last_s: float) -> float:
        """How long the host slept after the last answered request was sent; too long rather than too short."""
        if last_s > self._woke_s:
            self._slept_s = 0.0
        suspended = self._suspended()
        if suspended - self._seen_s > _NOISE_S:
            self._slept_s += suspended - self._seen_s
            self._seen_s = suspended
            self._woke_s = self._clock()
        return self._slept_s


def suspended_s() -> float:
    """Seconds that this host was suspended since its boot (or a little less); 0.0 where the system does not tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; macOS's monotonic clock has no such sister
    if boottime is None:
        return 0.0
    # A thread switch between the two readings makes the difference smaller, never larger.
    now = time.clock_gettime
    first, second, third = now(boottime) - now(_MONOTONIC), now(boottime) - now(_MONOTONIC), now(boottime) - now(_MONOTONIC)
    return max(0.0, first, second, third)


_MONOTONIC = time.CLOCK_MONOTONIC
