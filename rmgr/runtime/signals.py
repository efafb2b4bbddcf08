"""Signals as messages: SIGTERM and SIGINT go into the mailbox, the second one of the kind ends the process at once.

Python runs a handler in the main thread between two byte codes, even while that thread holds the mailbox's lock; so
the handler only writes a byte into a pipe, and a small thread puts the message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalMessages:
    """Catches signals and reports each to `deliver` (from its own thread).

    Args:
        deliver: gets the signal; puts a message into a mailbox.
        signals: which ones.
        patience: how often the same stop signal is delivered before the next one ends the process with 128 + N.
    """

    def __init__(
        self, deliver: Callable[[signal.Signals], None], signals: Sequence[signal.Signals] = STOP_SIGNALS, *, patience: int = 1
    ) -> None:
        self._deliver = deliver
        self._signals = tuple(signals)
        self._patience = patience
        self._seen: dict[int, int] = {}
        self._previous: dict[signal.Signals, Any] = {}
        self._read, self._write = -1, -1

    def install(self) -> None:
        """Takes over the signals. Main thread only."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(target=self._pass_on, args=(self._read,), name="signals", daemon=True).start()

    def restore(self) -> None:
        """Gives the signals back. Main thread only. Idempotent."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous.clear()
        if self._write >= 0:
            os.close(self._write)  # the thread reads the end of the pipe, closes its side and ends
            self._write = -1

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._seen[number] = self._seen.get(number, 0) + 1
        if number in STOP_SIGNALS and self._seen[number] > self._patience:
            os._exit(128 + number)
        with contextlib.suppress(OSError):  # full or closed: the message is there already, or nobody reads any more
            os.write(self._write, bytes([number]))

    def _pass_on(self, source: int) -> None:
        while numbers := os.read(source, 64):
            for number in numbers:
                self._deliver(signal.Signals(number))
        os.close(source)
