"""How tests wait for what real processes do: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Enough for whatever comes at all, on a machine that is four times slower and busy.
PATIENCE_S = 120.0
_LEAST_S, _MOST_S = 0.005, 1.0


def eventually(condition: Callable[[], T | None], what: str | Callable[[], object] = "", *, within_s: float = PATIENCE_S) -> T:
    """The first true answer of `condition`. Fails with `what`, or with what it says then, after `within_s`.

    It waits twice as long as a look has taken before it looks again: who asks by running a command leaves the cores to the cluster.
    """
    end_s = time.monotonic() + within_s
    while True:
        begun_s = time.monotonic()
        if answer := condition():
            return answer
        now_s = time.monotonic()
        assert now_s < end_s, f"not within {within_s:g} s: {(what() if callable(what) else what) or condition}"
        time.sleep(min(max(_LEAST_S, 2 * (now_s - begun_s)), _MOST_S))
