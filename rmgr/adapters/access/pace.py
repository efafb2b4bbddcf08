"""Limits what each address, or user, may have done a second: TLS handshakes (2 to 4 ms of a processor each), messages on direct lines.

Each has a rate of its own, so that who floods takes nothing from the others, and all together have one.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

#: Those that are remembered, the latest ones.
_KEEP = 1024


class Rates:
    """Args:
    rate, burst: of each, a second and at once. all_: so many times as much for all together. clock: monotonic seconds.

    For one thread. Cost: 1 us.
    """

    def __init__(self, rate: float, burst: float, *, all_: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused = 0
        self._rate, self._burst, self._times = rate, burst, all_
        self._clock = clock
        self._all = (math.inf, clock())  #: what is left, as of when
        self._of: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may(self, who: str) -> bool:
        """Whether this address, or user, gets one now; it is counted then."""
        now_s = self._clock()
        mine = _filled(self._of.pop(who, (math.inf, now_s)), self._rate, self._burst, now_s)
        whole = _filled(self._all, self._rate * self._times, self._burst * self._times, now_s)
        is_free = mine >= 1 and whole >= 1
        self._of[who] = mine - is_free, now_s
        self._all = whole - is_free, now_s
        if len(self._of) > _KEEP:
            self._of.popitem(last=False)
        self.refused += not is_free
        return is_free


def _filled(bucket: tuple[float, float], rate: float, burst: float, now_s: float) -> float:
    left, at_s = bucket
    return min(burst, left + (now_s - at_s) * rate)
