"""Fair time, the time that the machine grants: it measures requirements such as "within T and two seconds" on a busy machine.

A witness thread sleeps and computes a little, again and again. On a quiet machine it is never late, and fair time equals the
time of the clock. While the machine stands still or other processes use its processors, the witness is late just as daemons are,
and only its finished steps count. So a bound stays as strict as it is written, and load does not break it.

After the machine has stood still, processes connect anew, sessions may have ended, and what was asked is asked again. No bound promises
anything about that, so the first seconds afterwards do not count either.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import pytest

P = ParamSpec("P")
T = TypeVar("T")
_SLEEP_S, _WORK_S = 0.02, 0.0001
#: A step that lasted so long is a standstill; how long nothing counts after one (s).
_STILL_S, _RECOVERS_S = 2.0, 5.0


class FairTimer:
    """Measures a `with` block in fair time; readable inside it, too. Cost: 0.7 % of a processor while it runs."""

    def __init__(self) -> None:
        self._granted_s = 0.0
        self._stood_still = False
        self._begun_s, self._ended_s = time.monotonic(), 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._witness, name="fair-time", daemon=True)

    @property
    def elapsed_s(self) -> float:
        """Fair seconds since the start (grows in steps of 0.02 s)."""
        return self._granted_s

    @property
    def withheld_s(self) -> float:
        """Seconds that the machine has not granted since the start; add them to a bound for a time that was measured by a clock."""
        return (self._ended_s or time.monotonic()) - self._begun_s - self._granted_s

    @property
    def stood_still(self) -> bool:
        """Whether the machine stood still at any time since the start."""
        time.sleep(2 * _SLEEP_S)  # the witness may have something to report
        return self._stood_still

    def __enter__(self) -> Self:
        self._begun_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended_s = time.monotonic()
        self._over.set()
        self._thread.join()

    def _witness(self) -> None:
        counts_from_s = -math.inf
        while not self._over.is_set():
            begun_s = time.monotonic()
            time.sleep(_SLEEP_S)
            until_s = time.thread_time() + _WORK_S
            while time.thread_time() < until_s:
                pass
            now_s = time.monotonic()
            if now_s - begun_s > _STILL_S:
                self._stood_still, counts_from_s = True, now_s + _RECOVERS_S
            if now_s >= counts_from_s:  # a step may be short, too: never count more than the clock shows
                self._granted_s += min(_SLEEP_S + _WORK_S, now_s - begun_s)


def undisturbed(attempt: Callable[P, T]) -> Callable[P, T]:
    """Decorates a test that may be repeated on the same fixtures, or a part of a test: what fails while the machine stands still is
    repeated, at most twice.

    For promises that are themselves seconds, and for what a deadline or a short session must not end before.
    """

    @wraps(attempt)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        for left in (2, 1, 0):
            with FairTimer() as timer:
                try:
                    return attempt(*args, **kwargs)
                except (Exception, pytest.fail.Exception):
                    if not left or not timer.stood_still:
                        raise
        raise AssertionError("not reached")

    return repeated
