"""Processes that a bench starts and watches: a program of ours that answers in lines of JSON (`Child`), and the cost of processes.

Cost is processor time, wake-ups and memory, by process or with all its descendants. The used heap of a Java process comes through
HotSpot's own attach protocol, which needs only `java`, no JDK.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from rmgr.errors import Unavailable

MIB = 1 << 20
#: Kind of a process's clock, by pid, as clock_getcpuclockid(3) makes it: time counted by the scheduler.
_SCHED = 2
_DEADLINE_S = 30.0
_LOOK_S = 0.02
#: "def new generation   total 39296K, used 1234K", "tenured generation ...", and lines of other collectors; never "Metaspace".
_USED = re.compile(r"^ *(?!Metaspace|class space)\S[^\n]*?total \S+, used (\d+)K", re.MULTILINE)


class Child:
    """`python -m MODULE ARGUMENT`; it ends with its standard input. Context manager: the process is gone afterwards."""

    def __init__(self, module: str, argument: str, *, log: Path) -> None:
        self._name = module.rpartition(".")[2]
        with log.open("wb") as err:
            command = [sys.executable, "-m", module, argument]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=log.parent)

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    def told(self, what: str) -> Any:
        """Returns `what` from the child's next line; the child keeps the deadline. Raises: Unavailable if it ended instead."""
        assert self._process.stdout is not None
        try:
            return json.loads(self._process.stdout.readline())[what]
        except (ValueError, KeyError):
            raise Unavailable(f"{self._name} ended instead of saying {what!r}") from None

    def ask(self) -> None:
        """Sends a line, which the child will answer. Raises: Unavailable."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"?\n")
            self._process.stdin.flush()
        except OSError:
            raise Unavailable(f"{self._name} has ended") from None

    def asked(self, what: str) -> Any:
        """Sends a line and returns `what` from the answer. Raises: Unavailable."""
        self.ask()
        return self.told(what)

    def finish(self) -> None:
        """Ends the questions: the child says its last line (`told`) and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kills the child, like the death of a machine. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def say(what: Mapping[str, Any]) -> None:
    """Writes a line of a child to its parent (`Child.told`)."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- cost of processes -------------------------------------------------------------------------------------------------------



@dataclass(frozen=True, slots=True)
class Cost:
    """Since a process's start: processor seconds, and how often its threads gave the processor up voluntarily."""

    cpu_s: float
    wakeups: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wakeups - other.wakeups)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wakeups + other.wakeups)


@contextlib.contextmanager
def sampled(look: Callable[[], float], every_s: float) -> Iterator[list[float]]:
    """Yields samples of `look()`, added every `every_s` seconds while the context lasts."""
    samples, over = list[float](), threading.Event()

    def watch() -> None:
        while True:
            samples.append(look())
            if over.wait(every_s):
                return

    thread = threading.Thread(target=watch, name="rmgr-bench-samples")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def children_of(pid: int) -> list[int]:
    """Returns the pids of all descendants of `pid`."""
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def cost_of(pid: int) -> Cost:
    """Returns the cost of one process, including ended threads. Raises: ProcessLookupError. Resolution: ns of processor time."""
    try:
        cpu_s = time.clock_gettime((~pid << 3) | _SCHED)
    except OSError:
        raise ProcessLookupError(pid) from None
    wakeups = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # the thread has just ended
            wakeups += next(int(line.split()[1]) for line in thread.read_text().splitlines() if line.startswith("voluntary_ctxt"))
    return Cost(cpu_s, wakeups)


def pss_bytes(pid: int) -> int:
    """Returns the memory of one process, each page shared by n as 1/n; 0 if it is gone. Cost: ms, with the kernel's lock on its pages."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the processor seconds of these processes, without those that are gone."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            total += cost_of(pid).cpu_s
    return total


def live_heap_bytes(pid: int) -> int:
    """Returns the bytes of reachable objects in process `pid`: runs a full collection, then reads what is in use.

    Raises: Unavailable if it is no HotSpot JVM of this user, or does not answer. Cost: the pause of a full collection.
    """
    _ask(pid, "GC.run")
    used = _USED.findall(_ask(pid, "GC.heap_info"))
    if not used:
        raise Unavailable(f"process {pid} does not tell its heap")
    return sum(map(int, used)) * 1024


def _ask(pid: int, command: str) -> str:
    """Returns the answer to a diagnostic command, as `jcmd` does."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_DEADLINE_S)
        try:
            peer.connect(str(_listening(pid, deadline_s)))
            peer.sendall(b"1\0jcmd\0" + command.encode() + b"\0\0\0")
            parts = []
            while part := peer.recv(65_536):
                parts.append(part)
        except OSError as error:
            raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    code, _, answer = b"".join(parts).decode(errors="replace").partition("\n")
    if code.strip() != "0":
        raise Unavailable(f"the Java process {pid} refuses {command}: {answer.strip()[:200]}")
    return answer


def _listening(pid: int, deadline_s: float) -> Path:
    """Returns the socket where the JVM listens; a file of a known name and SIGQUIT make it begin to listen."""
    path = Path(f"/proc/{pid}/root", "tmp", f".java_pid{pid}")
    if path.exists():
        return path
    wish = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    try:
        wish.touch(mode=0o600)
        try:
            os.kill(pid, signal.SIGQUIT)
            while not path.exists():
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"the Java process {pid} does not listen")
                time.sleep(_LOOK_S)
        finally:
            with contextlib.suppress(OSError):
                wish.unlink()
    except OSError as error:
        raise Unavailable(f"the Java process {pid} cannot be asked: {error}") from error
    return path
