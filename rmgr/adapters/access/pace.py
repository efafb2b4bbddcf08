"""Limits the TLS handshakes that a port does a second: each costs 2 to 4 ms of a processor, whoever asks for it.

Each address has its own rate, so that who floods from one takes nothing from the others, and all together have one.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

#: Addresses that are remembered, the latest ones.
_ADDRESSES = 1024


class Handshakes:
    """Args:
    rate, burst: of one address, a second and at once. all_: so many times as much for all addresses. clock: monotonic seconds.

    For one thread. Cost: 1 us.
    """

    def __init__(self, rate: float, burst: float, *, all_: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._rate, self._burst, self._times = rate, burst, all_
        self._clock = clock
        self._all = (math.inf, clock())  #: what is left, as of when
        self._of: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may(self, address: str) -> bool:
        """Whether who calls from there gets one now; it is counted then."""
        now_s = self._clock()
        mine = _filled(self._of.pop(address, (math.inf, now_s)), self._rate, self._burst, now_s)
        whole = _filled(self._all, self._rate * self._times, self._burst * self._times, now_s)
        is_free = mine >= 1 and whole >= 1
        self._of[address] = mine - is_free, now_s
        self._all = whole - is_free, now_s
        if len(self._of) > _ADDRESSES:
            self._of.popitem(last=False)
        self.refused += not is_free
        return is_free


def _filled(bucket: tuple[float, float], rate: float, burst: float, now_s: float) -> float:
    left, at_s = bucket
    return min(burst, left + (now_s - at_s) * rate)
