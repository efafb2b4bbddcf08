"""A foreign server (ZooKeeper, Cassandra) as a child process: started, awaited, stopped, killed, paused."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from rmgr.errors import Unavailable
from rmgr.model.units import format_duration

_LOG_TAIL_LINES = 20
_GIVEN: deque[int] = deque(maxlen=256)
"""The ports that this process named last: nobody listens on most of them yet, and one port cannot serve two."""


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that is free now, that the kernel does not use for outgoing connections, and that was not returned lately.

    With a port from the outgoing range, a client that connects to a dead server may connect to itself, and hold the port.
    """
    low = 32768
    with contextlib.suppress(OSError, ValueError):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(200):
        port = random.randrange(max(1024, low - 16384), low) if low > 2048 else 0
        if port in _GIVEN:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        if port not in _GIVEN:  # the kernel's choice may be one of them
            _GIVEN.append(port)
            return port
    raise Unavailable(f"no free port on {host}")


class ServerProcess(ABC):
    """One server process on one data directory; start, stop, kill and start again as often as needed.

    Args:
        log_name: file in `data_dir` for the output of the process.
        die_with_parent: the server is killed when the *thread* that started it ends (PR_SET_PDEATHSIG through
            setpriv(1), if that exists): start it from a thread that lives as long as the process.
    """

    NAME: ClassVar[str]  #: name in messages
    START_S: ClassVar[float]  #: time limit of a start
    STOP_S: ClassVar[float]  #: time limit of an orderly end
    POLL_S: ClassVar[float]  #: pause between two looks while waiting

    def __init__(self, data_dir: Path | str, *, log_name: str, die_with_parent: bool = False) -> None:
        self.data_dir = Path(data_dir)
        self._log_name = log_name
        self._log_start = 0  # offset in the log at which the current process begins
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None

    # -- what each kind of server defines

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it listens, in words for messages: `on port 2181`."""

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command to run; writes its configuration. Raises: Unavailable if a part is missing here."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it serves now. Asked repeatedly; answers within a second."""

    # -- life cycle

    def start(self, *, wait_s: float | None = None) -> Self:
        """Starts the process and waits until it serves (None: `START_S`; 0: does not wait). Raises: Unavailable."""
        if self.running:
            return self
        command = self.command()
        setpriv = shutil.which("setpriv")
        if self._die_with_parent and setpriv:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            # A session of its own: Ctrl-C in the terminal is for the supervisor, which stops servers last.
            self._process = subprocess.Popen(
                command, cwd=self.data_dir, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline_s = self.START_S if wait_s is None else wait_s
        if deadline_s > 0:
            try:
                self.wait_ready(deadline_s)
            except BaseException:
                self.kill()
                raise
        return self

    def wait_ready(self, deadline_s: float) -> None:
        """Waits until the process serves. Raises: Unavailable, with the end of its log."""
        end = time.monotonic() + deadline_s
        while True:
            if not self.running:
                raise self.trouble("ended at its start")
            if self.is_ready():
                return
            if time.monotonic() > end:
                raise self.trouble(f"does not serve after {format_duration(deadline_s)}")
            time.sleep(self.POLL_S)

    def trouble(self, what: str) -> Unavailable:
        """Returns the error that says `what` is wrong, with the last output and the place of the log."""
        return Unavailable(f"{self.NAME} {self.place} {what}:\n{self.log_tail()}", hint=f"the whole log: {self.log_file}")

    def stop(self, timeout_s: float | None = None) -> None:
        """Sends SIGTERM, and SIGKILL after `timeout_s` (None: `STOP_S`). Idempotent."""
        process, timeout_s = self._process, self.STOP_S if timeout_s is None else timeout_s
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout_s)
        self._process = None

    def kill(self) -> None:
        """Sends SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10.0)
            self._process = None

    def restart(self, *, wait_s: float | None = None) -> None:
        """Kills the process and starts it again on the same data and ports."""
        self.kill()
        self.start(wait_s=wait_s)

    def pause(self) -> None:
        """Sends SIGSTOP: the process holds its connections and says nothing."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    # -- facts

    @property
    def pid(self) -> int | None:
        """Pid of the server's process, None if it does not run."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process is alive, serving or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """File with the server's output."""
        return self.data_dir / self._log_name

    def log(self) -> str:
        """Returns what the current process has written."""
        with contextlib.suppress(OSError):
            return self.log_file.read_bytes()[self._log_start :].decode("utf-8", "replace")
        return ""

    def log_tail(self) -> str:
        """Returns its last lines, for error messages."""
        return "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:]) or "(no log)"


def wait_all_ready(servers: Sequence[ServerProcess], deadline_s: float) -> None:
    """Waits until all servers serve. Raises: Unavailable for the first that does not."""
    end = time.monotonic() + deadline_s
    for server in servers:
        server.wait_ready(max(0.1, end - time.monotonic()))
