"""Waits until real processes have met a condition, with a deadline."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from typing import TypeVar

from rmgr.errors import CoordinationUnavailable
from tests.harness.fair_time import FairTimer

T = TypeVar("T")

#: Long enough (s) for everything that comes at all, even on a busy machine that is four times slower.
PATIENCE_S = 120.0
_LEAST_S, _MOST_S = 0.005, 1.0
#: The pause before the next look grows with the time waited so far: this share of it, at most so long (s).
_LATER, _LATEST_S = 0.1, 0.25
#: Threads that had something to do while their process stood still have begun with it by then.
_OTHERS_S = 0.1


def eventually(condition: Callable[[], T | None], what: str | Callable[[], object] = "", *, within_s: float | None = None) -> T:
    """Waits until `condition` returns a true value, and returns it. Fails with `what`, or its result if callable.

    A condition that needs ZooKeeper while that is away counts as not yet true. Looks pause three times as long as the last one took, so
    that conditions that run commands leave the cores to the cluster.

    within_s: promised time, in fair seconds (see `FairTimer`); without it, everything has `PATIENCE_S` of the clock.
    """
    first_s = time.monotonic()
    last_s = first_s + (within_s or 0.0) + PATIENCE_S
    with contextlib.nullcontext() if within_s is None else FairTimer() as timer:
        while True:
            begun_s = time.monotonic()
            with contextlib.suppress(CoordinationUnavailable):
                if answer := condition():
                    return answer
            now_s = time.monotonic()
            is_late = now_s >= last_s or (timer is not None and within_s is not None and timer.elapsed_s >= within_s)
            limit_s = PATIENCE_S if within_s is None else within_s
            assert not is_late, f"not within {limit_s:g} s: {(what() if callable(what) else what) or condition}"
            later_s = min(_LATER * (now_s - first_s), _LATEST_S)
            time.sleep(min(max(_LEAST_S, 3 * (now_s - begun_s), later_s), _MOST_S))


def stand_still(for_s: float) -> None:
    """Lets every Python thread of this process stand still, as on a machine that does; the others go on before the caller does.

    The call keeps the interpreter's lock for so long.
    """
    ctypes.PyDLL(None).usleep(round(for_s * 1e6))
    time.sleep(_OTHERS_S)


def unchanged(look: Callable[[], object], for_s: float = 0.1) -> bool:
    """Returns whether `look` returns the same after `for_s`: that something stands still shows only over time."""
    before = look()
    time.sleep(for_s)
    return look() == before
