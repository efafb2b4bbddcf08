"""Waits until real processes have met a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Long enough (s) for everything that comes at all, even on a busy machine that is four times slower.
PATIENCE_S = 120.0
_LEAST_S, _MOST_S = 0.005, 1.0
#: The pause before the next look grows with the time waited so far: this share of it, at most so long (s).
_LATER, _LATEST_S = 0.05, 0.25


def eventually(condition: Callable[[], T | None], what: str | Callable[[], object] = "", *, within_s: float = PATIENCE_S) -> T:
    """Waits until `condition` returns a true value, and returns it. Fails with `what`, or its result if callable, after `within_s`.

    Pauses three times as long as the last look took, so that conditions that run commands leave the cores to the cluster.
    """
    first_s = time.monotonic()
    end_s = first_s + within_s
    while True:
        begun_s = time.monotonic()
        if answer := condition():
            return answer
        now_s = time.monotonic()
        assert now_s < end_s, f"not within {within_s:g} s: {(what() if callable(what) else what) or condition}"
        later_s = min(_LATER * (now_s - first_s), _LATEST_S)
        time.sleep(min(max(_LEAST_S, 3 * (now_s - begun_s), later_s), _MOST_S))
