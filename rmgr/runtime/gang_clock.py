"""Reads the clock by which gang time is counted: CLOCK_BOOTTIME of another machine, over gRPC, from the shortest of several round trips."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from rmgr.adapters.identity.credentials import Credentials
from rmgr.adapters.rpc.services import NodeClient
from rmgr.errors import RmgrError
from rmgr.runtime import machine
from rmgr.runtime.failpoint import failpoint

#: Questions of one reading, of which the one with the shortest round trip counts.
_ASKED = 8
#: Pause between two readings, and after one without an answer.
_EVERY_S, _AGAIN_S = 10.0, 1.0
_CALL_S = 1.0
#: Boot clocks drift apart by less than this (us a second): an old exact reading may be better than a new one taken under load.
_DRIFT = 100


class ClockReading(NamedTuple):
    """offset_us: their boot clock minus ours, give or take error_us (half a round trip). at_ns: by our boot clock."""

    offset_us: int
    error_us: int
    at_ns: int


#: The reading for a node on this machine.
OWN = ClockReading(0, 0, 0)


def better(old: ClockReading | None, new: ClockReading) -> ClockReading:
    """Returns the reading that is more exact at the time of the new one, as far as known."""
    if old is None:
        return new
    age_s = (new.at_ns - old.at_ns) / 1e9
    return new if new.error_us <= old.error_us + age_s * _DRIFT else old


class ClockReader:
    """Asks one Starter at a time, in a thread of its own. `reading` may be read from any thread.

    Args: told: called on that thread after each new reading.
    """

    def __init__(self, credentials: Credentials | None, told: Callable[[], None]) -> None:
        self._credentials = credentials
        self._told = told
        self._lock = threading.Condition()
        self._target: tuple[str, int, str] | None = None  # node, incarnation, endpoint
        self._reading: ClockReading | None = None
        self.problem = "it has not answered yet"  #: why the last try failed, "" if it did not
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def reading(self) -> ClockReading | None:
        """The last reading of the followed Starter; None if there is none yet. It stays while the Starter does not answer."""
        return self._reading

    def follow(self, node: str, incarnation: int, endpoint: str) -> None:
        """Sets the Starter to ask from now on. Forgets the reading of another one; does nothing if unchanged."""
        target = (node, incarnation, endpoint)
        with self._lock:
            if self._closed or target == self._target:
                return
            if self._target is None or self._target[:2] != target[:2]:
                self._reading = None
            self._target = target
            if self._thread is None:
                self._thread = machine.Thread(target=self._run, name="gang-clock", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """Ends the questions. Idempotent."""
        with self._lock:
            self._closed = True
            self._lock.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                target = self._target
                if self._closed or target is None:
                    return
            reading = self._ask(*target)
            with self._lock:
                is_better = target == self._target and reading is not None and better(self._reading, reading) is reading
                if is_better:
                    self._reading = reading
            if is_better:
                self._told()
            with self._lock:
                pause_s = _EVERY_S if self._reading is not None else _AGAIN_S
                machine.wait_for(self._lock, partial(self._is_over, target), pause_s)

    def _is_over(self, target: tuple[str, int, str]) -> bool:
        return self._closed or target != self._target

    def _ask(self, node: str, incarnation: int, endpoint: str) -> ClockReading | None:
        best: ClockReading | None = None
        try:
            with NodeClient(endpoint, timeout_s=_CALL_S, credentials=self._credentials) as client:
                client.clock(node)  # the first call opens the connection
                for _ in range(_ASKED):
                    began_ns = machine.boottime_ns()
                    there_us, its_incarnation = client.clock(node)
                    failpoint("gang_clock.answered")
                    ended_ns = machine.boottime_ns()
                    if its_incarnation != incarnation:
                        self.problem = "its Starter was started anew"
                        return None
                    trip_us = (ended_ns - began_ns) // 1000
                    if best is None or trip_us < 2 * best.error_us:
                        best = ClockReading(there_us - (began_ns + ended_ns) // 2000, max(1, (trip_us + 1) // 2), ended_ns)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: credentials that are being exchanged, say
            self.problem = (error.message if isinstance(error, RmgrError) else f"{type(error).__name__}: {error}") if best is None else ""
        else:
            self.problem = ""
        return best
