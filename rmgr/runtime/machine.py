"""Gives daemons and client what they need of the machine: clocks, waits, threads and randomness; and says what a log is to them.

Nothing in `rmgr/daemons` or `rmgr/client` asks `time`, `random`, `os.urandom` or `threading` for these (`tests/test_house_machine.py`
compares), so a test can put another machine in place of this one (`replaced`) and let a whole cluster run on a virtual clock in one thread.

Use it as `machine.monotonic()`: a name that was imported from here, or became a default argument, stays this machine's for ever.
A call costs what the call of the standard library costs: the names are bound, not looked up in an object.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")

#: Seconds that only grow, from an unknown beginning: for deadlines, pauses and ages.
monotonic: Callable[[], float] = time.monotonic
#: The same in the finest steps: for durations that become metrics.
perf_counter: Callable[[], float] = time.perf_counter
#: Seconds since 1970, as the machine believes: for people, signatures and retention.
wall_s: Callable[[], float] = time.time
#: Lets the calling thread wait for so many seconds.
sleep: Callable[[float], None] = time.sleep
#: A number between two others, each equally likely: for jitter, never for secrets.
uniform: Callable[[float, float], float] = random.uniform
#: As `threading.Thread` and `threading.Timer`.
Thread: Callable[..., threading.Thread] = threading.Thread
Timer: Callable[..., threading.Timer] = threading.Timer

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS's monotonic clock does not stand still


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def boottime_ns() -> int:
    """Nanoseconds since the machine was started, its suspensions included."""
    return time.clock_gettime_ns(_BOOTTIME)


def random_hex(count: int) -> str:
    """So many random bytes in hexadecimal digits, fit for secrets."""
    return os.urandom(count).hex()


def guid() -> str:
    """A name of 32 hexadecimal digits that nothing else has."""
    return os.urandom(16).hex()


def pool(most: int, name: str) -> Executor:
    """Up to `most` threads for calls that wait (store, files, callbacks of users)."""
    return ThreadPoolExecutor(most, thread_name_prefix=name)


def steady_pool(most: int, name: str) -> Executor:
    """The same, started at once, for a daemon that must not become mute when the machine has no thread left. Raises: RuntimeError."""
    from rmgr.adapters.rpc.server import SteadyThreads

    return SteadyThreads(most, name)


def result(future: Future[T], timeout_s: float | None) -> T:
    """What another thread of this process brings. Raises: TimeoutError; what the future holds."""
    return future.result(timeout_s)


def wait_for(condition: threading.Condition, holds: Callable[[], object], timeout_s: float | None) -> bool:
    """Waits, with the condition's lock, until another thread has seen to it. False: it does not hold after so many seconds."""
    return bool(condition.wait_for(holds, timeout_s))


#: What another machine has to offer, by these names.
OFFERED = (
    "monotonic", "perf_counter", "wall_s", "wall_us", "boottime_ns", "sleep", "uniform", "random_hex", "guid",
    "Thread", "Timer", "pool", "steady_pool",
    "result", "wait_for",
)  # fmt: skip


@contextmanager
def replaced(other: object) -> Iterator[None]:
    """Lets `other` stand for this machine in the whole process while the block runs. For tests and simulations.

    Args: other: has an attribute for each name in `OFFERED`.
    """
    own = {name: globals()[name] for name in OFFERED}
    globals().update({name: getattr(other, name) for name in OFFERED})
    try:
        yield
    finally:
        globals().update(own)


class Backoff:
    """Delays that grow by `factor` from `first_s` to `most_s`, each drawn between half of it and all of it.

    Args:
        rng: where the jitter comes from; tests pass a seeded one.
    """

    def __init__(self, first_s: float = 0.1, most_s: float = 5.0, *, factor: float = 2.0, rng: random.Random | None = None) -> None:
        if not 0 < first_s <= most_s or factor < 1:
            msg = f"back-off from {first_s} to {most_s} s by {factor}"
            raise ValueError(msg)
        self._first_s = first_s
        self._most_s = most_s
        self._factor = factor
        self._draw = rng.uniform if rng is not None else uniform
        self._next_s = first_s
        self.attempts = 0

    def next_s(self) -> float:
        """Seconds to wait now; each call counts as one more failure."""
        full_s = self._next_s
        self._next_s = min(self._most_s, full_s * self._factor)
        self.attempts += 1
        return full_s * self._draw(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next failure starts from the beginning."""
        self._next_s = self._first_s
        self.attempts = 0


# -- the log -----------------------------------------------------------------------------------------------------------------


class Log(Protocol):
    """Takes one fact a call, in the past tense; `fields` are of `rmgr.log.FIELDS`."""

    def debug(self, event: str, /, **fields: object) -> object: ...
    def info(self, event: str, /, **fields: object) -> object: ...
    def warning(self, event: str, /, **fields: object) -> object: ...
    def error(self, event: str, /, **fields: object) -> object: ...
    def exception(self, event: str, /, **fields: object) -> object: ...
    def bind(self, **fields: object) -> Log:
        """The same logger, with `fields` on each line."""
        ...
