"""Watches over a daemon: its lease; the stall guard, which ends a process that stands still; and messages to the service manager.

The lease tells until when a process may act on what it was given, counted from the last answered request. ZooKeeper ends a session no
earlier than T - tick/2 after it received the last request, and a client that is cut off is told nothing at all. So the holder counts
itself, from the *send* of the last answered request, and stops at L < T: with L + (time to kill) + tick < 0.95 T its work is dead before
any other process may requeue it (reliability.md 5.2).

A heartbeat thread alone proves nothing: kazoo pings from a thread of its own, and a process whose main loop is dead keeps its session, its
leadership and its nodes for ever (reliability.md rule 25). So the guard is a thread that ends the process when its main loop makes no
progress, with all stacks on stderr; the supervisor then restarts it. The supervisor's own beats also come from here (`on_progress`), so
that they stop with the loop, not with the process.

sd_notify tells the service manager that a daemon is ready, alive, what it does, and that it ends; it does nothing without NOTIFY_SOCKET.
Each message is one datagram to the socket that systemd names (a path, or `@name` in the abstract name space). The beats (WATCHDOG=1) are
sent from the daemon's own loop, through `StallGuard.progress`: a loop that stands still sends none, and systemd restarts the service even
if the stall guard itself cannot run any more.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Self

from rmgr.coord.protocol.ports import Coordinator
from rmgr.runtime import machine

_NOISE_S = 0.05


class Lease:
    """The lease of one coordinator's session. Used by one thread.

    Args:
        coordinator: of the session.
        share: L as a part of the session timeout T.
        clock: the clock of `last_answer_s`, monotonic seconds.
        suspended: returns the seconds for which the host was suspended since its boot, when the monotonic clock stands still:
            without them a host that wakes up after an hour would find its lease still running.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        share: float = 2 / 3,
        clock: Callable[[], float] | None = None,
        suspended: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < share < 0.95:
            msg = f"a lease of {share} of the session timeout leaves no time to stop"
            raise ValueError(msg)
        self._coordinator = coordinator
        self._share = share
        self._clock = clock or machine.monotonic
        self._suspended = suspended or suspended_s
        self._seen_s = self._suspended()
        self._woke_s = -math.inf  # when the last suspension was noticed
        self._slept_s = 0.0  # by suspensions since the last answer

    @property
    def length_s(self) -> float:
        """L in seconds."""
        return self._share * self._coordinator.session_timeout_s

    def valid_until_s(self) -> float:
        """The end of the lease on `clock`; -inf before the first answer."""
        last_s = self._coordinator.last_answer_s()
        return last_s + self.length_s - self._slept_since_s(last_s)

    def remaining_s(self) -> float:
        """Returns the seconds left, 0.0 when it is over."""
        return max(0.0, self.valid_until_s() - self._clock())

    def is_valid(self) -> bool:
        """Returns whether the holder may act."""
        return self.valid_until_s() > self._clock()

    def rearm(self) -> None:
        """Begins a new session: earlier suspensions of the host do not count."""
        self._seen_s = self._suspended()
        self._slept_s = 0.0

    def _slept_since_s(self, last_s: float) -> float:
        """Returns how long the host slept after the last answered request was sent; rather too long than too short."""
        if last_s > self._woke_s:
            self._slept_s = 0.0
        suspended = self._suspended()
        if suspended - self._seen_s > _NOISE_S:
            self._slept_s += suspended - self._seen_s
            self._seen_s = suspended
            self._woke_s = self._clock()
        return self._slept_s


def suspended_s() -> float:
    """Returns the seconds for which this host was suspended since its boot (or a little less); 0.0 if the system does not tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; macOS has no such clock
    if boottime is None:
        return 0.0
    # A thread switch between the two readings makes the difference smaller, never larger.
    now = time.clock_gettime
    first, second, third = now(boottime) - now(_MONOTONIC), now(boottime) - now(_MONOTONIC), now(boottime) - now(_MONOTONIC)
    return max(0.0, first, second, third)


_MONOTONIC = time.CLOCK_MONOTONIC


# -- the stall guard, and the service manager --------------------------------------------------------------------------------

EXIT_CODE = 70  # EX_SOFTWARE
#: systemd shows one line.
_MAX_STATUS = 200


def _exit(what: str) -> None:
    try:
        sys.stderr.write(f"{what}; all stacks follow\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
    finally:
        os._exit(EXIT_CODE)  # no clean-up: it would hang, too


class StallGuard:
    """Args:
    limit_s: longest time between two calls of `progress`; longer than any pass of the loop may take.
    name: of the process, for the message.
    on_stall: instead of the exit (tests).
    on_progress: is called by the loop's thread each time it comes round (the beats for systemd).
    """

    def __init__(
        self,
        limit_s: float,
        *,
        name: str = "main loop",
        on_stall: Callable[[str], None] = _exit,
        on_progress: Callable[[], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._name = name
        self._on_stall = on_stall
        self._on_progress = on_progress
        self._clock = clock or machine.monotonic
        self._last_s = self._clock()
        self._checked_s = self._clock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def progress(self) -> None:
        """Notes that the loop has made a turn. Cost: about 0.1 us."""
        self._last_s = self._clock()
        if self._on_progress is not None:
            self._on_progress()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop's last turn. From any thread."""
        return self._clock() - self._last_s

    def start(self) -> Self:
        """Starts the guard's thread."""
        self.progress()
        self._checked_s = self._clock()
        self._thread = threading.Thread(target=self._run, name="stall-guard", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the guard. Idempotent."""
        self._stopped.set()

    def check(self) -> None:
        """Checks once, about every quarter of the limit; calls `on_stall` if the loop stands still.

        If this thread itself did not run (SIGSTOP, a suspended host, a starved machine), the loop gets a new limit.
        """
        now = self._clock()
        if now - self._checked_s > self._limit_s / 2:
            self._last_s = max(self._last_s, now - self._limit_s / 2)
        self._checked_s = now
        stalled_s = now - self._last_s
        if stalled_s > self._limit_s:
            self._on_stall(f"{self._name}: no progress for {stalled_s:.1f} s (limit {self._limit_s:g} s)")

    def _run(self) -> None:
        while not self._stopped.wait(self._limit_s / 4):
            self.check()


class Notifier:
    """The line to the service manager. Used by one thread; sending never blocks and never fails the daemon.

    Args:
        address: of the socket; "" = none, and every call does nothing.
        beat_s: longest time between two beats; None = no beats are needed.
    """

    def __init__(self, address: str = "", *, beat_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._beat_s = beat_s
        self._socket: socket.socket | None = None
        self._due_s = -math.inf
        self._ready = self._stopping = False
        self._status = ""
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] | None = None) -> Self:
        """Builds it from systemd's variables, and removes these: work that the process starts must not speak in its name."""
        variables = os.environ if environ is None else environ
        address, microseconds, pid = (variables.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        if address[:1] not in {"/", "@"}:
            return cls()
        wanted = microseconds.isdigit() and int(microseconds) > 0 and pid in {"", str(os.getpid())}
        return cls(address, beat_s=int(microseconds) / 4e6 if wanted else None)

    @property
    def is_on(self) -> bool:
        """Whether a service manager listens, so that a status is worth making."""
        return self._socket is not None

    def round_s(self, usual_s: float) -> float:
        """Returns how long a loop may sleep: half of the limit for beats, or `usual_s`."""
        return usual_s if self._beat_s is None else min(usual_s, self._beat_s * 2)

    def beat(self) -> None:
        """Sends WATCHDOG=1 for a turn of the loop, at most four times in the limit. Cost otherwise: about 0.1 us."""
        if self._beat_s is None:
            return
        now_s = machine.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + self._beat_s
            self._send("WATCHDOG=1")

    def ready(self) -> None:
        """Reports that the daemon serves (registered, in the line of candidates, listening). Only the first call counts."""
        if not self._ready:
            self._ready = True
            self._send("READY=1")

    def tell(self, status: str) -> None:
        """Sets the line for `systemctl status`; sends it when it changes."""
        if status != self._status:
            self._status = status
            self._send("STATUS=" + " ".join(status.split())[:_MAX_STATUS])

    def stopping(self, *, within_s: float = 0.0) -> None:
        """Reports that the daemon ends within `within_s`: systemd waits that long, whatever TimeoutStopSec says."""
        if self._stopping:
            return
        self._stopping = True
        more = f"\nEXTEND_TIMEOUT_USEC={int(within_s * 1e6)}" if within_s > 0 else ""
        self._send("STOPPING=1" + more)

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # a full or vanished socket concerns only the service manager
                self._socket.sendto(message.encode(), self._address)
