"""Gives daemons and client what they need of the machine: clocks, waits, threads and randomness; and defines what a log is to them.

Nothing in `rmgr/daemons` or `rmgr/client` asks `time`, `random`, `os.urandom` or `threading` for these (`tests/test_house_machine.py`
checks), so a test can put another machine in place of this one (`replaced`) and run a whole cluster on a virtual clock in one thread.

Use it as `machine.monotonic()`: a name imported from here, or bound as a default argument, stays this machine's for ever. A call costs as
much as that of the standard library: the names are bound, not looked up in an object.
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

#: Seconds that only grow, from an unknown start: for deadlines, pauses and ages.
monotonic: Callable[[], float] = time.monotonic
#: The same in the finest steps, for durations that become metrics.
perf_counter: Callable[[], float] = time.perf_counter
#: Seconds since 1970, as the machine believes: for people, signatures and retention.
wall_s: Callable[[], float] = time.time
#: Lets the calling thread wait for so many seconds.
sleep: Callable[[float], None] = time.sleep
#: A uniformly distributed number between two others: for jitter, never for secrets.
uniform: Callable[[float, float], float] = random.uniform
#: As `threading.Thread` and `threading.Timer`.
Thread: Callable[..., threading.Thread] = threading.Thread
Timer: Callable[..., threading.Timer] = threading.Timer

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS's monotonic clock does not stop during suspension


def wall_us() -> int:
    """Returns microseconds since 1970."""
    return time.time_ns() // 1000


def boottime_ns() -> int:
    """Returns nanoseconds since the machine was started, with its suspensions."""
    return time.clock_gettime_ns(_BOOTTIME)


def random_hex(count: int) -> str:
    """Returns `count` random bytes in hexadecimal digits, fit for secrets."""
    return os.urandom(count).hex()


def guid() -> str:
    """Returns a unique name of 32 hexadecimal digits."""
    return os.urandom(16).hex()


def pool(most: int, name: str) -> Executor:
    """Returns an executor with up to `most` threads for calls that wait (store, files, callbacks of users)."""
    return ThreadPoolExecutor(most, thread_name_prefix=name)


def steady_pool(most: int, name: str) -> Executor:
    """The same, with threads started at once, for a daemon that must answer even if the machine has no thread left. Raises:
    RuntimeError."""
    from rmgr.adapters.rpc.server import SteadyThreads

    return SteadyThreads(most, name)


def result(future: Future[T], timeout_s: float | None) -> T:
    """Waits for the result of another thread of this process. Raises: TimeoutError; the future's exception."""
    return future.result(timeout_s)


def wait_for(condition: threading.Condition, holds: Callable[[], object], timeout_s: float | None) -> bool:
    """Waits, holding the condition's lock, until `holds`. Returns: False if it does not hold within the timeout."""
    return bool(condition.wait_for(holds, timeout_s))


#: Names that another machine must offer.
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
    """Delays that grow by `factor` from `first_s` to `most_s`; each is drawn between half of it and all of it.

    Args:
        rng: source of the jitter; tests pass a seeded one.
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
        """Returns the seconds to wait now; each call counts one more failure."""
        full_s = self._next_s
        self._next_s = min(self._most_s, full_s * self._factor)
        self.attempts += 1
        return full_s * self._draw(0.5, 1.0)

    def reset(self) -> None:
        """Notes a success: the next failure starts from the beginning."""
        self._next_s = self._first_s
        self.attempts = 0


# -- the log -----------------------------------------------------------------------------------------------------------------


class Log(Protocol):
    """Takes one fact for each call, in the past tense; `fields` are those of `rmgr.log.FIELDS`."""

    def debug(self, event: str, /, **fields: object) -> object: ...
    def info(self, event: str, /, **fields: object) -> object: ...
    def warning(self, event: str, /, **fields: object) -> object: ...
    def error(self, event: str, /, **fields: object) -> object: ...
    def exception(self, event: str, /, **fields: object) -> object: ...
    def bind(self, **fields: object) -> Log:
        """Returns the same logger, with `fields` on each line."""
        ...
