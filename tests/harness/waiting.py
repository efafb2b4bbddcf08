"""How tests wait for what real processes do: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Enough for whatever comes at all, on a machine that is four times slower and busy.
PATIENCE_S = 120.0
_LEAST_S, _MOST_S = 0.005, 1.0
#: The longer it has waited, the longer it may wait for the next look: this part of it, and at most so long.
_LATER, _LATEST_S = 0.05, 0.25


def eventually(condition: Callable[[], T | None], what: str | Callable[[], object] = "", *, within_s: float = PATIENCE_S) -> T:
    """The first true answer of `condition`. Fails with `what`, or with what it says then, after `within_s`.

    It waits three times as long as a look has taken before it looks again: who asks by running a command leaves the cores to the cluster.
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
