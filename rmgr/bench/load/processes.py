"""Processes that a bench starts and looks at: a program of ours that answers in lines of JSON (`Child`), and what processes cost.

Cost is time of the processor, wake-ups, memory; by process and with all that they started. The used heap of a Java process comes through
HotSpot's own attach protocol, so that no JDK is needed (only `java`).
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
#: The clock of a process by its pid, as clock_getcpuclockid(3) makes it: what the scheduler counted.
_SCHED = 2
_DEADLINE_S = 30.0
_LOOK_S = 0.02
#: "def new generation   total 39296K, used 1234K", "tenured generation ...", and what follows of other collectors; never "Metaspace".
_USED = re.compile(r"^ *(?!Metaspace|class space)\S[^\n]*?total \S+, used (\d+)K", re.MULTILINE)


class Child:
    """`python -m MODULE ARGUMENT`; it ends when its standard input does. Context manager: it is gone afterwards."""

    def __init__(self, module: str, argument: str, *, log: Path) -> None:
        self._name = module.rpartition(".")[2]
        with log.open("wb") as err:
            command = [sys.executable, "-m", module, argument]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=log.parent)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def told(self, what: str) -> Any:
        """The value of `what` in the line that it says next; the child keeps the deadline. Raises: Unavailable when it ended instead."""
        assert self._process.stdout is not None
        try:
            return json.loads(self._process.stdout.readline())[what]
        except (ValueError, KeyError):
            raise Unavailable(f"{self._name} ended instead of saying {what!r}") from None

    def ask(self) -> None:
        """Says a line, which it answers. Raises: Unavailable."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"?\n")
            self._process.stdin.flush()
        except OSError:
            raise Unavailable(f"{self._name} has ended") from None

    def asked(self, what: str) -> Any:
        """Its answer to a line of ours. Raises: Unavailable."""
        self.ask()
        return self.told(what)

    def finish(self) -> None:
        """No more questions: it says its last words (`told`) and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kills it, as a machine dies. Idempotent."""
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
    """A line of a child to who started it (`Child.told`)."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- what they cost ----------------------------------------------------------------------------------------------------------



@dataclass(frozen=True, slots=True)
class Cost:
    """Since it was started: seconds of the processor, and how often its threads gave the processor up by themselves."""

    cpu_s: float
    wakeups: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s - other.cpu_s, self.wakeups - other.wakeups)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wakeups + other.wakeups)


@contextlib.contextmanager
def sampled(look: Callable[[], float], every_s: float) -> Iterator[list[float]]:
    """What `look` finds all the while, one sample after the other."""
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
    """All processes that `pid` started and those started, without itself."""
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def cost_of(pid: int) -> Cost:
    """Of one process, threads that ended included. Raises: ProcessLookupError. Resolution: ns of the processor's time."""
    try:
        cpu_s = time.clock_gettime((~pid << 3) | _SCHED)
    except OSError:
        raise ProcessLookupError(pid) from None
    wakeups = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            wakeups += next(int(line.split()[1]) for line in thread.read_text().splitlines() if line.startswith("voluntary_ctxt"))
    return Cost(cpu_s, wakeups)


def pss_bytes(pid: int) -> int:
    """Memory of one process, each page shared by n processes as 1/n of it. 0: it is gone. Cost: ms, with the kernel's lock on its pages."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of the processor that these processes have used; of those that are gone nothing is known any more."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            total += cost_of(pid).cpu_s
    return total


def live_heap_bytes(pid: int) -> int:
    """Bytes of objects that are reachable in process `pid`: a full collection, then what is in use.

    Raises: Unavailable when it is no HotSpot JVM of this user, or does not answer. Cost: the pause of a full collection.
    """
    _ask(pid, "GC.run")
    used = _USED.findall(_ask(pid, "GC.heap_info"))
    if not used:
        raise Unavailable(f"process {pid} does not tell its heap")
    return sum(map(int, used)) * 1024


def _ask(pid: int, command: str) -> str:
    """The answer of a diagnostic command (what `jcmd` does)."""
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
    """Where it listens; a file of a known name and SIGQUIT make it begin."""
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
