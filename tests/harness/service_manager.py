"""Plays systemd: binds the socket that a daemon notifies, starts the daemon, and records its messages and their times."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.harness.waiting import PATIENCE_S, eventually


class Service:
    """A daemon, started as systemd does it (Type=notify, WatchdogSec).

    Args:
        words: arguments of `rmgr`. watchdog_s: WatchdogSec. abstract: whether the socket has no name in the file system.
    """

    def __init__(
        self, directory: Path, *words: str, environment: Mapping[str, str], watchdog_s: float = 2.0, abstract: bool = False
    ) -> None:
        self.log = directory / f"{words[0]}.log"
        self.said: list[tuple[float, str]] = []  #: (monotonic time, one assignment such as READY=1)
        address = f"@rmgr-{uuid.uuid4().hex}" if abstract else str(directory / f"{words[0]}.notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if abstract else address)
        self._socket.settimeout(0.2)
        self._closed = threading.Event()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}
        own = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(watchdog_s * 1e6)), "RMGR_LOG_FORMAT": "json"}
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rmgr.cli.main", *words], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                env={**inherited, **own, **environment}, cwd=directory, start_new_session=True,
            )
        self._thread = threading.Thread(target=self._listen, name="notify", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                data = self._socket.recv(4096)
            except TimeoutError:
                continue
            now_s = time.monotonic()
            self.said.extend((now_s, line) for line in data.decode().splitlines())

    def times(self, what: str) -> list[float]:
        """Returns the times at which the daemon sent `what` (monotonic, s)."""
        return [at for at, line in list(self.said) if line == what]

    def status(self) -> str:
        """Returns the status that `systemctl status` would show."""
        return next((line.removeprefix("STATUS=") for _, line in reversed(list(self.said)) if line.startswith("STATUS=")), "")

    def until(self, what: str, condition: Callable[[], object], *, within: float = PATIENCE_S) -> None:
        """Waits for a condition; fails with the end of the daemon's log."""
        eventually(condition, lambda: f"{what}\nsaid: {self.said[-12:]}\n{self.log.read_text()[-2000:]}", within_s=within)

    def silence_s(self) -> float:
        """Returns the time since the daemon's last beat (s)."""
        beats = self.times("WATCHDOG=1")
        return time.monotonic() - beats[-1] if beats else 0.0

    def stop(self, within: float = 60.0) -> int:
        """Sends SIGTERM and waits; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        self._closed.set()
        self._thread.join(60)
        self._socket.close()
