"""A gateway process that a test can kill and start again at the same endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rmgr.dev.server import free_port


class GatewayProcess:
    """`rmgr submitter` on a free port of loopback.

    Args:
        environment: variables that name the cluster. directory: for the gateway's log.
    """

    def __init__(self, environment: Mapping[str, str], directory: Path, *, options: Sequence[str] = ()) -> None:
        self._environment = {**{key: value for key, value in os.environ.items() if not key.startswith("RMGR_")}, **environment}
        self._log = directory / f"gateway-{id(self)}.log"
        self._options = tuple(options)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.metrics = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, deadline_s: float = 60.0) -> Self:
        """Starts the gateway and waits until it listens."""
        words = ["submitter", "--listen", self.endpoint, "--log-format", "json", *self._options]
        self.metrics = ""
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rmgr.cli.main", *words], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                env={**self._environment, "RMGR_STRICT_LOG": "1", "PYTHONFAULTHANDLER": "1"}, start_new_session=True,
            )
        end = time.monotonic() + deadline_s
        while not self.metrics or b"submitter_listens" not in self._log.read_bytes():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            for line in self._log.read_text().split("\n"):
                if "submitter_listens" in line:
                    self.metrics = json.loads(line)["address"]
            time.sleep(0.02)
        return self

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills the gateway and waits for its end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def autopsy(self, lines: int = 60, stacks: int = 400) -> str:
        """Ends the gateway if it lives; returns how it ended, the end of its log, and the stacks of its threads."""
        assert self._process is not None
        ended = self._process.poll()
        log = self.log().splitlines()
        if ended is None:
            self.signal(signal.SIGABRT)
            self.signal(signal.SIGCONT)
            try:
                self.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()
        told = "it was alive" if ended is None else f"it had ended with {ended}"
        return "\n".join([f"the gateway: {told}; the end of its log:", *log[-lines:], *self.log().splitlines()[len(log) :][:stacks]])

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for the gateway's end; returns its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
